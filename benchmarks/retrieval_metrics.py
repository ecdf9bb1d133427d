"""Chunked CMC and mAP beside scikit-learn's average precision, one query at a time.

``python benchmarks/retrieval_metrics.py`` scores 2,000 queries against 2,000 items of 100 classes, with
both sides given the same embeddings, and prints the median time over interleaved repeats and the largest
difference between the two mAPs. Ours computes CMC@1 and CMC@5 in the same pass; scikit-learn's does not.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import average_precision_score
from torch import Tensor

import zoo
from zoo.retrieval import retrieval_scores, similarity
from zoo.retrieval.metrics import Space


def sample(n: int, classes: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings (N, D) around class centres, of length about 1, and labels (N,)."""
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    return (centres[labels] + torch.randn(n, dim, generator=generator) * 2) / (5 * dim) ** 0.5, labels


def ours(queries: Tensor, gallery: Tensor, labels: tuple[Tensor, Tensor], space: Space, c: float | None) -> float:
    return retrieval_scores(queries, gallery, *labels, space=space, c=c).map


def per_query(queries: Tensor, gallery: Tensor, labels: tuple[Tensor, Tensor], space: Space, c: float | None) -> float:
    scores = similarity(queries, gallery, space, c).numpy()
    correct = (labels[0][:, None] == labels[1]).numpy()
    return float(np.mean([average_precision_score(*row) for row in zip(correct, scores, strict=True)]))


def measure(size: int, repeats: int, classes: int, dim: int) -> list[dict[str, Any]]:
    """One row for each space."""
    queries, query_labels = sample(size, classes, dim, seed=1)
    gallery, gallery_labels = sample(size, classes, dim, seed=2)
    peers: dict[str, Callable[..., float]] = {"zoo": ours, "scikit-learn": per_query}
    rows = []
    spaces: list[tuple[Space, float | None]] = [("cosine", None), ("euclidean", None), ("lorentz", 1.0)]
    for space, c in spaces:
        times: dict[str, list[float]] = {name: [] for name in peers}
        values = {}
        for repeat in range(repeats + 1):
            for name, peer in peers.items():
                start = time.perf_counter()
                values[name] = peer(queries, gallery, (query_labels, gallery_labels), space, c)
                if repeat:  # the first one warms up
                    times[name].append(time.perf_counter() - start)
        seconds = {name: statistics.median(measured) for name, measured in times.items()}
        rows.append(
            {
                "space": space,
                "map": values["zoo"],
                "difference": abs(values["zoo"] - values["scikit-learn"]),
                "seconds": seconds,
                "ratio": seconds["scikit-learn"] / seconds["zoo"],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2000, help="queries, and gallery items")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    rows = measure(args.size, args.repeats, args.classes, args.dim)
    versions = {
        "zoo": zoo.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
    table = Table(
        "space",
        "mAP",
        "|difference|",
        "zoo, s",
        "scikit-learn, s",
        "ratio",
        title=f"{args.size:,} queries x {args.size:,} items, d = {args.dim}, {args.classes} classes, CPU, "
        f"{args.threads} thread(s), median of {args.repeats}",
        caption=", ".join(f"{name} {version}" for name, version in versions.items()),
    )
    for row in rows:
        seconds = row["seconds"]
        table.add_row(
            row["space"],
            f"{row['map']:.4f}",
            f"{row['difference']:.1e}",
            f"{seconds['zoo']:.3f}",
            f"{seconds['scikit-learn']:.3f}",
            f"{row['ratio']:.1f}",
        )
    Console().print(table)
    if args.json:
        settings = {key: value for key, value in vars(args).items() if key != "json"}
        content = {"settings": settings, "versions": versions, "rows": rows}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
