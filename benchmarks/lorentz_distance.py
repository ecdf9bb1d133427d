"""Pairwise Lorentz distances: ours beside geoopt's broadcasting ``dist``.

``python benchmarks/lorentz_distance.py`` takes all distances of 1,500 x 1,500 and 1,000 x 10,000 float32 vectors,
d = 128 and radii up to 4, and prints the median time over interleaved repeats, the peak memory that the call adds to
a fresh process (on Linux), and the largest error against geoopt in float64: for far pairs, for near ones (0.004 apart
as tangent vectors, at radius 4), and for a point and itself (0 expected). geoopt broadcasts to (N, M, d + 1), so it is
given the rows of x in chunks (``--peer-rows``). Lifting the vectors to the hyperboloid counts for both.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import zoo
from zoo.hyperbolic.functional import exp_map0, pairwise_dist
from zoo.hyperbolic.manifold import geoopt

DIM = 128
SIZES = ((1500, 1500), (1000, 10_000))


def vectors(n: int, seed: int, low: float = 0.0, high: float = 4.0) -> Tensor:
    """Tangent vectors (n, d), float64, of uniform radius."""
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(n, DIM, generator=generator, dtype=torch.float64), dim=-1)
    return direction * (low + (high - low) * torch.rand(n, 1, generator=generator, dtype=torch.float64))


def geoopt_dist(x: Tensor, y: Tensor, rows: int = 50) -> Tensor:
    manifold = geoopt.Lorentz(k=torch.tensor(1.0, dtype=x.dtype))
    lifted_x, lifted_y = (manifold.expmap0(torch.cat([v.new_zeros(len(v), 1), v], dim=-1)) for v in (x, y))
    return torch.cat([manifold.dist(chunk[:, None], lifted_y) for chunk in lifted_x.split(rows)])


def acosh_dist(x: Tensor, y: Tensor) -> Tensor:
    flipped = exp_map0(y) * torch.tensor([-1.0] + [1.0] * DIM, dtype=y.dtype)
    return torch.acosh(torch.clamp(-(exp_map0(x) @ flipped.T), min=1 + torch.finfo(x.dtype).eps))


def methods(peer_rows: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {
        "zoo": pairwise_dist,
        "zoo, exact": lambda x, y: pairwise_dist(x, y, exact=True),
        "matmul and acosh": acosh_dist,
        "geoopt": lambda x, y: geoopt_dist(x, y, peer_rows),
    }


def time_methods(n: int, m: int, repeats: int, peer_rows: int) -> dict[str, float]:
    """Median seconds of each method."""
    x, y = vectors(n, 1).float(), vectors(m, 2).float()
    seconds: dict[str, list[float]] = {name: [] for name in methods(peer_rows)}
    for repeat in range(repeats + 1):
        for name, method in methods(peer_rows).items():
            start = time.perf_counter()
            method(x, y)
            if repeat:  # the first one warms up
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(measured) for name, measured in seconds.items()}


def added_peak(name: str, n: int, m: int, peer_rows: int) -> float:
    """MB by which one call raises this process's peak resident memory."""
    x, y = vectors(n, 1).float(), vectors(m, 2).float()
    methods(peer_rows)[name](x[:2], y[:2])  # loads what is loaded on first use
    Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark anew, below that of the imports
    before = high_water_mark()
    methods(peer_rows)[name](x, y)
    return high_water_mark() - before


def high_water_mark() -> float:
    """Peak resident memory of this process in MB, as Linux counts it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def added_peak_in_a_fresh_process(name: str, n: int, m: int, peer_rows: int) -> float:
    if not sys.platform.startswith("linux"):
        return math.nan
    command = [sys.executable, __file__, "--peak-of", name, str(n), str(m), "--peer-rows", str(peer_rows)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def errors(peer_rows: int) -> dict[str, dict[str, float]]:
    """Largest absolute error of each method in float32, for each kind of pair; NaN where it gives NaN."""
    x, y = vectors(300, 1).float(), vectors(1000, 2).float()
    apex = vectors(300, 3, low=4.0).float()
    near = (apex.double() + 4e-3 * torch.nn.functional.normalize(vectors(300, 4), dim=-1)).float()
    far_exact = geoopt_dist(x.double(), y.double())
    near_exact = geoopt_dist(apex.double(), near.double()).diagonal()
    found = {}
    for name, method in methods(peer_rows).items():
        found[name] = {
            "far": float((method(x, y) - far_exact).abs().max()),
            "near": float((method(apex, near).diagonal() - near_exact).abs().max()),
            "self": float(method(apex, apex).diagonal().max()),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peer-rows", type=int, default=50, help="rows of x that geoopt gets at a time")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--peak-of", nargs=3, metavar=("METHOD", "N", "M"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    if args.peak_of:
        name, n, m = args.peak_of
        print(added_peak(name, int(n), int(m), args.peer_rows))
        return

    error = errors(args.peer_rows)
    rows: list[dict[str, Any]] = []
    for n, m in SIZES:
        seconds = time_methods(n, m, args.repeats, args.peer_rows)
        for name, value in seconds.items():
            peak = added_peak_in_a_fresh_process(name, n, m, args.peer_rows)
            ratio = seconds["geoopt"] / value
            rows.append({"size": [n, m], "method": name, "seconds": value, "ratio": ratio, "peak_mb": peak})
    setting = {
        "dim": DIM,
        "dtype": "float32",
        "repeats": args.repeats,
        "threads": args.threads,
        "peer_rows": args.peer_rows,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "geoopt": geoopt.__version__,
        "zoo": zoo.__version__,
    }

    table = Table("size", "method", "seconds", "ratio", "peak MB", "error far", "error near", "self-distance")
    for row in rows:
        e = error[row["method"]]
        table.add_row(
            "{:,} x {:,}".format(*row["size"]),
            row["method"],
            f"{row['seconds']:.3f}",
            f"{row['ratio']:.1f}",
            f"{row['peak_mb']:.0f}",
            *(f"{e[kind]:.1e}" for kind in ("far", "near", "self")),
        )
    console = Console(width=100)
    console.print(table)
    console.print(", ".join(f"{k} {v}" for k, v in setting.items()))
    if args.json:
        args.json.write_text(json.dumps({"setting": setting, "rows": rows, "errors": error}, indent=2) + "\n")


if __name__ == "__main__":
    main()
