"""How well one model's queries find the right items in another model's gallery: CMC@k and mAP.

Both are computed in one pass over the queries, a chunk at a time, and need memory for one chunk of
scores only. Every metric of this room ranks by :func:`similarity`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from zoo.hyperbolic.functional import pairwise_dist

Space = Literal["cosine", "euclidean", "lorentz"]
Stream = Literal["query", "gallery", "both"]

# Scores in one chunk when the caller names no chunk size: about 100 MB with all that is derived from them.
_CHUNK_SCORES = 2**21


@dataclass(frozen=True)
class RetrievalScores:
    """What :func:`retrieval_scores` found, all shares in [0, 1].

    Attributes:
        cmc: For each k, the share of queries with a correct item among the first k.
        map: Mean over the queries of average precision.
        num_queries: Queries that the two are averaged over.
        num_unmatched: Queries left out, as the gallery has no item of their label.
    """

    cmc: dict[int, float]
    map: float
    num_queries: int
    num_unmatched: int

    def as_dict(self) -> dict[str, float]:
        """The scores under the names that are logged: ``cmc1``, ``cmc5``, ..., ``map``."""
        return {**{f"cmc{k}": share for k, share in self.cmc.items()}, "map": self.map}


def check_space(space: str, c: float | None) -> None:
    """Check a space and its curvature.

    Raises:
        ValueError: If the space is unknown, or ``c`` is missing, not positive, or given for a flat space.
    """
    if space not in get_args(Space):
        raise ValueError(f"space: want one of {', '.join(get_args(Space))}, got {space!r}")
    if space == "lorentz":
        if c is None or not 0 < c < float("inf"):
            raise ValueError(f"c: the lorentz space wants a finite curvature magnitude > 0, got {c!r}")
    elif c is not None:
        raise ValueError(f"c: only the lorentz space has a curvature, got {c!r} for {space!r}")


def check_vectors(name: str, vectors: Tensor, dim: int | None = None) -> None:
    """Check that vectors are (N, D) and finite.

    Raises:
        ValueError: Names the argument, and the first row with NaN or infinity.
    """
    if vectors.ndim != 2 or (dim is not None and vectors.shape[1] != dim):
        raise ValueError(f"{name}: want shape (N, {dim or 'D'}), got {tuple(vectors.shape)}")
    finite = vectors.isfinite().all(dim=1)
    if not finite.all():
        raise ValueError(f"{name}: row {int((~finite).nonzero()[0])} holds NaN or infinity")


@torch.no_grad()
def similarity(queries: Tensor, gallery: Tensor, space: Space = "cosine", c: float | None = None) -> Tensor:
    """Score every gallery item for every query; the higher, the nearer.

    The cosine, or minus the distance in the Euclidean and the Lorentz space. Computed in float64, since in
    float32 cancellation reorders near neighbours, and rounded to float32, so that copies of an item tie.
    What is left of the error shows below a distance of about 1e-6 (Lorentz, vectors of length 4 / sqrt(c)).

    Args:
        queries: Vectors (N, D); in the Lorentz space tangent vectors at the origin.
        gallery: Vectors (M, D), likewise.
        space: The space that the vectors live in.
        c: Curvature magnitude of the Lorentz space; None for the others.

    Returns:
        Scores (N, M), float32.

    Raises:
        ValueError: If the space and ``c`` do not fit, or the dimensions differ.
    """
    check_space(space, c)
    if queries.ndim != 2 or gallery.ndim != 2 or queries.shape[1] != gallery.shape[1]:
        raise ValueError(f"gallery: want (M, D) beside queries {tuple(queries.shape)}, got {tuple(gallery.shape)}")
    # MPS has no float64.
    exact = torch.float32 if queries.device.type == "mps" else torch.float64
    queries, gallery = queries.to(exact), gallery.to(queries.device, exact)
    if c is not None:
        return -pairwise_dist(queries, gallery, c=c).float()
    if space == "cosine":
        return (F.normalize(queries, dim=1) @ F.normalize(gallery, dim=1).T).float()
    return -torch.cdist(queries, gallery).float()


@torch.no_grad()
def retrieval_scores(
    queries: Tensor,
    gallery: Tensor,
    query_labels: Tensor,
    gallery_labels: Tensor,
    *,
    space: Space = "cosine",
    c: float | None = None,
    ks: Sequence[int] = (1, 5),
    exclude_self: bool = False,
    chunk_size: int | None = None,
) -> RetrievalScores:
    """CMC@k and mAP of queries that search a gallery; an item is correct if it has the query's label.

    An item's rank counts all items that score at least as high as it does. So a wrong item that ties with
    a correct one comes before it, and a model that maps everything to one point finds nothing. A query's
    average precision equals ``sklearn.metrics.average_precision_score`` on its scores, which treats ties
    in this way too. Queries whose label is not in the gallery are left out of both, and counted.

    Args:
        queries: Vectors (N, D).
        gallery: Vectors (M, D).
        query_labels: Integer labels (N,).
        gallery_labels: Integer labels (M,).
        space: The space that both live in, see :func:`similarity`.
        c: Curvature magnitude of the Lorentz space.
        ks: The k of CMC@k.
        exclude_self: Query i and gallery item i are the same sample (N = M), so i must not find itself.
        chunk_size: Queries that are scored at a time; by default as many as make about two million scores.

    Returns:
        The scores, and how many queries they are over. NaN, with a warning, if that is none.

    Raises:
        ValueError: If shapes do not fit, a vector is not finite (its row is named), there is no query or no
            gallery, or k or the chunk size is below 1.
    """
    check_space(space, c)
    check_vectors("queries", queries)
    check_vectors("gallery", gallery, dim=queries.shape[1])
    for name, labels, vectors in (
        ("query_labels", query_labels, queries),
        ("gallery_labels", gallery_labels, gallery),
    ):
        if not len(vectors):
            raise ValueError(f"{name.replace('_labels', '')}: want at least one vector, got none")
        if labels.shape != vectors.shape[:1] or labels.is_floating_point():
            raise ValueError(
                f"{name}: want integers of shape ({len(vectors)},), got {labels.dtype} {tuple(labels.shape)}"
            )
    if exclude_self and len(queries) != len(gallery):
        raise ValueError(f"exclude_self: want as many queries as gallery items, got {len(queries)}, {len(gallery)}")
    if not ks or min(ks) < 1:
        raise ValueError(f"ks: want integers >= 1, got {tuple(ks)}")
    if chunk_size is None:
        chunk_size = max(1, _CHUNK_SCORES // len(gallery))
    elif chunk_size < 1:
        raise ValueError(f"chunk_size: want an integer >= 1, got {chunk_size}")

    gallery = gallery.to(queries.device)
    gallery_labels = gallery_labels.to(queries.device)
    query_labels = query_labels.to(queries.device)
    precision, mistakes = [], []
    for start in range(0, len(queries), chunk_size):
        rows = slice(start, start + chunk_size)
        scores = similarity(queries[rows], gallery, space, c)
        correct = query_labels[rows, None] == gallery_labels
        if exclude_self:
            own = torch.arange(len(scores), device=scores.device)
            scores[own, own + start] = -torch.inf
            correct[own, own + start] = False
        matched = correct.any(dim=1)
        if matched.any():
            chunk_precision, chunk_mistakes = _rank(scores[matched], correct[matched])
            precision.append(chunk_precision)
            mistakes.append(chunk_mistakes)

    if not precision:
        warnings.warn("no query has an item of its label in the gallery: CMC and mAP are NaN", stacklevel=2)
        return RetrievalScores(dict.fromkeys(ks, float("nan")), float("nan"), 0, len(queries))
    wrong_first = torch.cat(mistakes)
    return RetrievalScores(
        cmc={k: (wrong_first < k).double().mean().item() for k in ks},
        map=torch.cat(precision).mean().item(),
        num_queries=len(wrong_first),
        num_unmatched=len(queries) - len(wrong_first),
    )


def _rank(scores: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Average precision of each query and the number of wrong items before its first correct one.

    Only the correct items' ranks matter, and those follow from sorted scores: no order of items is needed.

    Args:
        scores: Scores (B, M), -inf for items that do not take part.
        correct: Whether the item has the query's label (B, M); at least one in each row.

    Returns:
        Average precision (B,) in float64 and counts (B,).
    """
    most = int(correct.sum(dim=1).max())
    hits = _sort_rows(scores.masked_fill(~correct, -torch.inf))[:, -most:].contiguous()
    at_least = scores.shape[1] - torch.searchsorted(_sort_rows(scores), hits)
    correct_at_least = most - torch.searchsorted(hits, hits)
    real = hits > -torch.inf  # rows with fewer correct items are padded in front
    precision = torch.where(real, correct_at_least.double() / at_least, 0).sum(dim=1) / real.sum(dim=1)
    return precision, at_least[:, -1] - correct_at_least[:, -1]


def _sort_rows(scores: Tensor) -> Tensor:
    """Sort each row, ascending. NumPy's vectorised sort of values is eight times as fast as torch's on a CPU."""
    if scores.device.type == "cpu":
        return torch.from_numpy(np.sort(scores.numpy(), axis=1))
    return scores.sort(dim=1).values


def first_of_each(ids: Tensor) -> Tensor:
    """Positions that hold an id for the first time, in the order of the ids.

    Args:
        ids: Sample ids (N,); a negative id stands for an unknown sample, and each of those is kept.

    Returns:
        Positions (M,), M <= N.
    """
    ids, order = ids.sort(stable=True)
    new = torch.ones_like(ids, dtype=torch.bool)
    new[1:] = ids[1:] != ids[:-1]
    return order[new | (ids < 0)]


def sample_ids(ids: Tensor | None, labels: Tensor) -> Tensor:
    """Check the ids of one batch, or mark all of its samples as unknown (-1).

    Raises:
        ValueError: If ids are given that are not one integer >= 0 for each label.
    """
    if ids is None:
        return torch.full_like(labels, -1, dtype=torch.int64)
    if ids.shape != labels.shape or ids.is_floating_point() or (ids < 0).any():
        raise ValueError(f"ids: want integers >= 0 of shape {tuple(labels.shape)}, got {ids.dtype} {tuple(ids.shape)}")
    return ids.to(labels.device, torch.int64)


class CrossModelRetrieval(Metric):
    """CMC@k and mAP over all batches and processes, as a torchmetrics ``Metric``.

    Queries and gallery are two streams, which different models may fill. For one model that searches its
    own test set, update with ``stream="both"``. Embeddings are kept until :meth:`compute`.

    A distributed sampler repeats samples to fill its last batches. Give ``ids``, and a repeated sample
    counts once; without, it counts as often as it comes, which spoils the result.

    Args:
        space: The space of the embeddings, see :func:`similarity`.
        c: Curvature magnitude of the Lorentz space.
        ks: The k of CMC@k.
        exclude_self: The two streams hold the same samples, and none may find itself.
        **kwargs: As for ``torchmetrics.Metric``.

    Raises:
        ValueError: If the space and ``c`` do not fit.

    Example:
        >>> metric = CrossModelRetrieval(ks=(1,))
        >>> metric.update(torch.eye(4), torch.tensor([0, 0, 1, 1]), stream="gallery")
        >>> metric.update(torch.eye(4)[:3], torch.tensor([0, 1, 1]), stream="query")
        >>> round(metric.compute()["cmc1"].item(), 3)
        0.667
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    query_embeddings: list[Tensor]
    query_labels: list[Tensor]
    query_ids: list[Tensor]
    gallery_embeddings: list[Tensor]
    gallery_labels: list[Tensor]
    gallery_ids: list[Tensor]

    def __init__(
        self,
        space: Space = "cosine",
        c: float | None = None,
        ks: Sequence[int] = (1, 5),
        exclude_self: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_space(space, c)
        self.space, self.c, self.ks, self.exclude_self = space, c, tuple(ks), exclude_self
        for stream in ("query", "gallery"):
            for state in ("embeddings", "labels", "ids"):
                self.add_state(f"{stream}_{state}", default=[], dist_reduce_fx="cat")

    def update(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None = None, stream: Stream = "both") -> None:
        """Add one batch.

        Args:
            embeddings: Vectors (B, D).
            labels: Integer labels (B,).
            ids: Integers >= 0 (B,), the same for the same sample wherever it comes.
            stream: ``query``, ``gallery``, or ``both`` if the embeddings are searched by themselves.

        Raises:
            ValueError: If shapes do not fit, or the stream is unknown.
        """
        if stream not in get_args(Stream):
            raise ValueError(f"stream: want one of {', '.join(get_args(Stream))}, got {stream!r}")
        check_vectors("embeddings", embeddings)
        if labels.shape != embeddings.shape[:1]:
            raise ValueError(f"labels: want shape ({len(embeddings)},), got {tuple(labels.shape)}")
        ids = sample_ids(ids, labels)
        for name in ("query", "gallery") if stream == "both" else (stream,):
            getattr(self, f"{name}_embeddings").append(embeddings.detach())
            getattr(self, f"{name}_labels").append(labels)
            getattr(self, f"{name}_ids").append(ids)

    def compute(self) -> dict[str, Tensor]:
        """``cmc1``, ``cmc5``, ... (one for each k) and ``map``, scalars.

        Raises:
            ValueError: If a stream is empty, or with ``exclude_self`` if they do not hold the same samples.
        """
        queries, query_labels, query_ids = self._stream("query")
        gallery, gallery_labels, gallery_ids = self._stream("gallery")
        if self.exclude_self and not query_ids.equal(gallery_ids):
            raise ValueError("exclude_self: the query and the gallery stream do not hold the same samples")
        scores = retrieval_scores(
            queries,
            gallery,
            query_labels,
            gallery_labels,
            space=self.space,
            c=self.c,
            ks=self.ks,
            exclude_self=self.exclude_self,
        )
        return {name: torch.tensor(value, device=queries.device) for name, value in scores.as_dict().items()}

    def _stream(self, name: Literal["query", "gallery"]) -> tuple[Tensor, Tensor, Tensor]:
        states = [getattr(self, f"{name}_{state}") for state in ("embeddings", "labels", "ids")]
        if any(len(state) == 0 for state in states):
            raise ValueError(f"{name}: no batch came; update with stream={name!r} or 'both' first")
        embeddings, labels, ids = map(dim_zero_cat, states)
        keep = first_of_each(ids)
        return embeddings[keep], labels[keep], ids[keep]


class RetrievalCMC(CrossModelRetrieval):
    """CMC@k alone, a scalar that ``LightningModule.log`` takes.

    Args:
        k: A query succeeds if one of its first k items is correct.
        space: The space of the embeddings, see :func:`similarity`.
        c: Curvature magnitude of the Lorentz space.
        exclude_self: As for :class:`CrossModelRetrieval`.
        **kwargs: As for ``torchmetrics.Metric``.
    """

    def __init__(
        self,
        k: int = 1,
        space: Space = "cosine",
        c: float | None = None,
        exclude_self: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(space=space, c=c, ks=(k,), exclude_self=exclude_self, **kwargs)

    def compute(self) -> Tensor:  # type: ignore[override]
        """The share of queries with a correct item among their first k, a scalar."""
        return super().compute()[f"cmc{self.ks[0]}"]
