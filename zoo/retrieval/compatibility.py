"""What a model upgrade gains when the gallery is not re-embedded.

``M(q, g)`` stands for CMC@k or mAP of queries by model q in a gallery by model g; ``o`` is the old
model, ``n`` the new one, and ``*`` one trained like the new one but without regard to the old one.
P_up and P_com are those of arXiv 2506.05826, AC and AM of a chain of models follow arXiv 2405.02581.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from zoo.retrieval.metrics import Space, check_space, check_vectors, first_of_each, retrieval_scores, sample_ids

Matrix = Tensor | Sequence[Sequence[float]]


def p_up(new: float, independent: float) -> float:
    """What compatible training costs the new model: ``(M(n,n) - M(*,*)) / M(*,*)``.

    Args:
        new: M(n,n), the new model searching its own gallery.
        independent: M(*,*), the independent model searching its own.

    Returns:
        0 if nothing is lost, negative if something is. NaN, with a warning, if M(*,*) is 0.
    """
    if independent == 0:
        warnings.warn("P_up is undefined: the independent model finds nothing", stacklevel=2)
        return float("nan")
    return (new - independent) / independent


def p_com(cross: float, old: float, independent: float) -> float:
    """Share of the possible gain that new queries reach in the old gallery.

    ``(M(n,o) - M(o,o)) / (M(*,*) - M(o,o))``. It is relative to these two models in the same geometry, so
    report M(n,n) and M(n,o) beside it.

    Args:
        cross: M(n,o), the new model searching the old gallery.
        old: M(o,o), the old model searching its own gallery.
        independent: M(*,*), the independent model searching its own.

    Returns:
        1 if re-embedding the gallery would gain nothing, below 0 if the upgrade does harm. NaN, with a
        warning, if the independent model is no better than the old one.
    """
    if independent <= old:
        warnings.warn(
            f"P_com is undefined: the independent model ({independent:.4f}) is no better than the old one ({old:.4f})",
            stacklevel=2,
        )
        return float("nan")
    return (cross - old) / (independent - old)


def satisfied(cross: float, old: float, strict: bool = True) -> bool:
    """The criterion of compatibility: new queries search the old gallery better than old ones do.

    Args:
        cross: M(n,o).
        old: M(o,o).
        strict: Whether an equal score fails.
    """
    return cross > old if strict else cross >= old


def average_compatibility(matrix: Matrix, strict: bool = True) -> float:
    """AC: the share of pairs in a chain of T models that meet the criterion.

    Args:
        matrix: (T, T); row i, column j is M(i,j), queries by model i in the gallery of model j <= i. What is
            above the diagonal is not read.
        strict: Whether ``M(i,j) = M(j,j)`` fails.

    Returns:
        ``2 / (T (T - 1))`` times the number of pairs i > j with ``M(i,j) > M(j,j)``, in [0, 1]. NaN, with a
        warning, for a single model.

    Raises:
        ValueError: If the matrix is not square, or an entry that is read is not finite.
    """
    scores = _lower_triangle(matrix)
    if len(scores) == 1:
        warnings.warn("average compatibility is undefined for a single model", stacklevel=2)
        return float("nan")
    old = scores.diagonal()
    better = scores > old if strict else scores >= old
    return better[_triangle(scores, diagonal=-1)].double().mean().item()


def average_accuracy(matrix: Matrix) -> float:
    """AM: the mean of all scores of a chain of T models, on and below the diagonal.

    Args:
        matrix: (T, T) as for :func:`average_compatibility`.

    Raises:
        ValueError: If the matrix is not square, or an entry that is read is not finite.
    """
    scores = _lower_triangle(matrix)
    return scores[_triangle(scores)].mean().item()


def _triangle(scores: Tensor, diagonal: int = 0) -> Tensor:
    """Mask (T, T) of what is on and below a diagonal."""
    return torch.ones_like(scores, dtype=torch.bool).tril(diagonal)


def _lower_triangle(matrix: Matrix) -> Tensor:
    scores = torch.as_tensor(matrix, dtype=torch.float64)
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1] or not len(scores):
        raise ValueError(f"matrix: want shape (T, T) with T >= 1, got {tuple(scores.shape)}")
    bad = ~scores.isfinite() & _triangle(scores)
    if bad.any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(f"matrix: row {row}, column {column} is {scores[row, column].item()}, want finite scores")
    return scores


class CompatibilityScore(Metric):
    """Everything about one upgrade over all batches and processes, as a torchmetrics ``Metric``.

    Both models embed the same test samples; every sample searches for all the others. Give ``ids`` if a
    sampler may repeat samples: a repeated one counts once.

    Args:
        space: The space of both models' embeddings.
        c: Curvature magnitude of the Lorentz space.
        ks: The k of CMC@k.
        independent: M(*,*) under the names ``cmc1``, ..., ``map``, as
            :meth:`~zoo.retrieval.RetrievalScores.as_dict` has them. P_up and P_com are computed for these.
        **kwargs: As for ``torchmetrics.Metric``.

    Raises:
        ValueError: If the space and ``c`` do not fit, or ``independent`` holds another name.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    new: list[Tensor]
    old: list[Tensor]
    labels: list[Tensor]
    ids: list[Tensor]

    def __init__(
        self,
        space: Space = "cosine",
        c: float | None = None,
        ks: Sequence[int] = (1, 5),
        independent: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_space(space, c)
        names = {*(f"cmc{k}" for k in ks), "map"}
        if not names.issuperset(independent or ()):
            raise ValueError(f"independent: want names among {sorted(names)}, got {sorted(independent or ())}")
        self.space, self.c, self.ks = space, c, tuple(ks)
        self.independent = dict(independent or {})
        for state in ("new", "old", "labels", "ids"):
            self.add_state(state, default=[], dist_reduce_fx="cat")

    def update(self, new: Tensor, old: Tensor, labels: Tensor, ids: Tensor | None = None) -> None:
        """Add one batch.

        Args:
            new: The new model's embeddings (B, D).
            old: The old model's embeddings of the same samples (B, D).
            labels: Integer labels (B,).
            ids: Integers >= 0 (B,), the same for the same sample wherever it comes.

        Raises:
            ValueError: If shapes do not fit, or an embedding is not finite.
        """
        check_vectors("new", new)
        check_vectors("old", old, dim=new.shape[1])
        if not len(new) == len(old) == labels.numel():
            raise ValueError(f"old, labels: want {len(new)} of each, got {len(old)} and {tuple(labels.shape)}")
        self.new.append(new.detach())
        self.old.append(old.detach())
        self.labels.append(labels)
        self.ids.append(sample_ids(ids, labels))

    def compute(self) -> dict[str, Tensor]:
        """Scalars for each metric NAME of ``cmc1``, ..., ``map``.

        ``self_NAME`` is M(n,n), ``cross_NAME`` M(n,o), ``old_NAME`` M(o,o), ``satisfied_NAME`` 1 if M(n,o) > M(o,o)
        and 0 if not, and, where ``independent`` has it, ``p_up_NAME`` and ``p_com_NAME``.

        Raises:
            ValueError: If no batch came.
        """
        if len(self.labels) == 0:
            raise ValueError("no batch came; call update first")
        keep = first_of_each(dim_zero_cat(self.ids))
        new, old, labels = (dim_zero_cat(state)[keep] for state in (self.new, self.old, self.labels))

        def measure(queries: Tensor, gallery: Tensor) -> dict[str, float]:
            found = retrieval_scores(
                queries, gallery, labels, labels, space=self.space, c=self.c, ks=self.ks, exclude_self=True
            )
            return found.as_dict()

        own, cross, before = measure(new, new), measure(new, old), measure(old, old)
        values: dict[str, float] = {}
        for name in own:
            values[f"self_{name}"] = own[name]
            values[f"cross_{name}"] = cross[name]
            values[f"old_{name}"] = before[name]
            values[f"satisfied_{name}"] = float(satisfied(cross[name], before[name]))
            if name in self.independent:
                values[f"p_up_{name}"] = p_up(own[name], self.independent[name])
                values[f"p_com_{name}"] = p_com(cross[name], before[name], self.independent[name])
        return {name: torch.tensor(value, device=new.device) for name, value in values.items()}
