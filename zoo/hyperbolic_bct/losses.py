"""Losses that keep a new embedding compatible with an old one, in hyperbolic space (after HBCT, arXiv 2506.05826).

The paper's method equations were not available to us: these losses are rebuilt from the ingredients it names and
the sources they come from, and each choice is an argument. :class:`InfluenceLoss` is our own addition.

Hyperbolic embeddings are tangent vectors at the origin (:mod:`zoo.hyperbolic.functional`). Every loss is called
``loss(new, old, labels)``, and may have class statistics of the old embeddings to :meth:`~CompatibilityLoss.fit`.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.hyperbolic import functional as H
from zoo.hyperbolic.functional import UncertaintyKind, check_curvature

Alignment = Literal["gce", "rince", "infonce", "weighted", "distance"]


class Gathered(NamedTuple):
    """The embeddings of all processes, for losses that compare a sample with others.

    Attributes:
        new: New embeddings (M, D), gathered with gradients.
        old: Old embeddings (M, D).
        labels: Labels (M,).
        offset: Row of this process's first sample, e.g. ``rank * B``.
    """

    new: Tensor
    old: Tensor
    labels: Tensor
    offset: int = 0


@dataclass(frozen=True)
class Batch:
    """What a loss gets to see: checked, in float32 or float64, old embeddings detached.

    Attributes:
        new: New embeddings of this process (B, D).
        old: Old embeddings of the same samples (B, D).
        labels: Their labels (B,).
        others: Everything to compare with, on all processes.
        uncertainty: Uncertainty of the old embeddings (B,), if it was given.
    """

    new: Tensor
    old: Tensor
    labels: Tensor
    others: Gathered
    uncertainty: Tensor | None = None

    def own(self) -> Tensor:
        """Where ``others`` holds the same sample: (B, M), one True a row."""
        rows = torch.arange(len(self.new), device=self.new.device) + self.others.offset
        return rows[:, None] == torch.arange(len(self.others.labels), device=self.new.device)

    def same_class(self) -> Tensor:
        """Where ``others`` holds a sample of the same class: (B, M)."""
        return self.labels[:, None] == self.others.labels


class CompatibilityLoss(nn.Module, ABC):
    """Base of the losses: one way to call them all, in full precision."""

    def fit(self, old_embeddings: Tensor, labels: Tensor) -> None:
        """Take the statistics that the loss needs from the old model; they are in its ``state_dict``.

        Args:
            old_embeddings: Old embeddings of the new training set (N, D).
            labels: Their labels (N,).
        """

    @abstractmethod
    def compute(self, batch: Batch) -> Tensor:
        """The loss of a batch, a scalar: the mean over this process's samples."""

    def forward(
        self,
        new: Tensor,
        old: Tensor,
        labels: Tensor,
        gathered: Gathered | None = None,
        uncertainty: Tensor | None = None,
    ) -> Tensor:
        """Check a batch and compute its loss in float32 (float64 for float64 embeddings), without autocast.

        Args:
            new: New embeddings (B, D), with gradients.
            old: Old embeddings of the same samples (B, D); detached here.
            labels: Labels (B,), int64.
            gathered: What all processes have, under DDP; None takes the batch alone.
            uncertainty: Uncertainty of the old embeddings (B,) in [0, 1], for losses that weigh by it; None
                lets the loss compute it.

        Returns:
            The loss, a scalar.

        Raises:
            ValueError: If shapes do not fit, or an embedding is not finite.
        """
        if new.dim() != 2 or old.shape != new.shape or labels.shape != new.shape[:1]:
            raise ValueError(
                "new, old and labels must be (B, D), (B, D) and (B,), got "
                f"{tuple(new.shape)}, {tuple(old.shape)} and {tuple(labels.shape)}"
            )
        if uncertainty is not None and uncertainty.shape != labels.shape:
            raise ValueError(f"uncertainty must be (B,) = {tuple(labels.shape)}, got {tuple(uncertainty.shape)}")
        others = gathered or Gathered(new, old, labels)
        if not len(others.new) == len(others.old) == len(others.labels) >= others.offset + len(new):
            raise ValueError(
                f"gathered must hold new, old and labels of all M samples, these {len(new)} from row {others.offset}, "
                f"got {len(others.new)}, {len(others.old)} and {len(others.labels)} rows"
            )
        with torch.autocast(new.device.type, enabled=False):
            new, old = _full(new), _full(old.detach())
            others = others._replace(new=_full(others.new), old=_full(others.old.detach()))
            _check_finite("new", new)
            _check_finite("old", old)
            if uncertainty is not None:
                uncertainty = uncertainty.detach().to(new.dtype)
            return self.compute(Batch(new, old, labels, others, uncertainty))


class EntailmentConeLoss(CompatibilityLoss):
    """Pulls each new embedding into the entailment cone of its old one.

    ``mean_i max(0, ext(old_i, new_i) - eta psi(old_i))`` (cone of arXiv 2304.09172). A point no further out than
    the apex is in no cone, so new embeddings need a larger clip radius than old ones.

    Args:
        c: Curvature magnitude.
        min_radius: K, the width of the cones, see :func:`zoo.hyperbolic.functional.half_aperture`.
        aperture_scale: eta, a factor on the half-aperture.
    """

    def __init__(self, c: float = 1.0, min_radius: float = 0.4, aperture_scale: float = 1.0) -> None:
        super().__init__()
        check_curvature(c)
        check_positive(min_radius=min_radius, aperture_scale=aperture_scale)
        self.c = c
        self.min_radius = min_radius
        self.aperture_scale = aperture_scale

    def compute(self, batch: Batch) -> Tensor:
        """The mean angle, in radians, by which new embeddings are outside the cones."""
        aperture = H.half_aperture(batch.old, self.c, self.min_radius)
        return F.relu(H.exterior_angle(batch.old, batch.new, self.c) - self.aperture_scale * aperture).mean()


class RobustContrastiveLoss(CompatibilityLoss):
    """Aligns new embeddings with old ones by contrast, less strictly where the old one is uncertain.

    With ``s_ij = -d(new_i, old_j) / tau``, the positive ``j = i``, and ``p_i`` its softmax probability:

    - ``gce``: ``(1 - p^q) / q`` (arXiv 1805.07836): InfoNCE as q -> 0, ``1 - p`` at q = 1.
    - ``rince``: ``-e^{q s+} / q + (lam Z)^q / q`` (arXiv 2201.04309), Z the sum over positive and negatives. It
      moves with a common shift of all distances: where ``p < lam`` it pushes new embeddings away from everything.
    - ``infonce``: ``-log p``.
    - ``weighted``: ``-(1 - u) log p``.
    - ``distance``: ``d(new_i, old_i)``, without negatives.

    The exponent is ``q_i = q_min + (q_max - q_min) u_i``, with ``u_i`` the uncertainty of the old embedding.

    Args:
        alignment: One of the above.
        c: Curvature magnitude.
        tau: Temperature.
        q_min: q of a certain old embedding, in (0, 1].
        q_max: q of an uncertain one, in [q_min, 1]. Near 1 the loss ignores samples that are far off.
        lam: Weight of the negatives in ``rince``, in (0, 1].
        mask_same_class: Take no sample of the same class as a negative.
        uncertainty: How to compute it, see :func:`zoo.hyperbolic.functional.uncertainty`.
        clip_radius: Clip radius of the old embeddings, for ``uncertainty="clip"``.
        normalise: Stretch the uncertainty so that its 5 % and 95 % quantiles over the old training embeddings
            become 0 and 1. Needs :meth:`fit`.
    """

    uncertainty_range: Tensor

    def __init__(
        self,
        alignment: Alignment = "gce",
        c: float = 1.0,
        tau: float = 0.2,
        q_min: float = 0.1,
        q_max: float = 0.5,
        lam: float = 0.01,
        mask_same_class: bool = True,
        uncertainty: UncertaintyKind = "poincare",
        clip_radius: float | None = None,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        if alignment not in get_args(Alignment):
            raise ValueError(f"alignment must be one of {', '.join(get_args(Alignment))}, got {alignment!r}")
        check_curvature(c)
        check_positive(tau=tau)
        if not 0 < q_min <= q_max <= 1:
            raise ValueError(f"q_min and q_max must satisfy 0 < q_min <= q_max <= 1, got {q_min} and {q_max}")
        if not 0 < lam <= 1:
            raise ValueError(f"lam must be in (0, 1], got {lam}")
        H.uncertainty(torch.zeros(1, 1), c, uncertainty, clip_radius)  # checks the two together
        self.alignment = alignment
        self.c = c
        self.tau = tau
        self.q_min = q_min
        self.q_max = q_max
        self.lam = lam
        self.mask_same_class = mask_same_class
        self.kind: UncertaintyKind = uncertainty
        self.clip_radius = clip_radius
        self.normalise = normalise
        if normalise:
            self.register_buffer("uncertainty_range", torch.full((2,), math.nan))
        self._warned = False

    def fit(self, old_embeddings: Tensor, labels: Tensor) -> None:
        """Take the quantiles for ``normalise`` from old embeddings (N, D); labels are not used."""
        if self.normalise:
            u = H.uncertainty(old_embeddings.detach(), self.c, self.kind, self.clip_radius)
            self.uncertainty_range.copy_(torch.quantile(u, u.new_tensor([0.05, 0.95])))

    def uncertainty(self, old: Tensor) -> Tensor:
        """Uncertainty in [0, 1] of old embeddings (N, D), as the loss uses it: (N,)."""
        u = H.uncertainty(old.detach(), self.c, self.kind, self.clip_radius)
        if not self.normalise:
            return u
        low, high = self.uncertainty_range
        if low.isnan():
            raise RuntimeError("normalise=True needs the old embeddings first: call fit(old_embeddings, labels)")
        return ((u - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)

    def compute(self, batch: Batch) -> Tensor:
        """The mean over the samples; 0, with one warning, if there are no negatives."""
        # The positive decides the loss and may be close, so it gets the accurate distance.
        positive = -H.dist(batch.new, batch.old, self.c) / self.tau
        if self.alignment == "distance":
            return -self.tau * positive.mean()

        excluded = batch.same_class() if self.mask_same_class else batch.own()
        if not self._warned and bool(excluded.all()):
            self._warned = True
            warnings.warn(
                "RobustContrastiveLoss has no negatives in a batch of a single class, and is 0 there: use batches "
                "of several classes, or mask_same_class=False",
                stacklevel=3,
            )
        negatives = -H.pairwise_dist(batch.new, batch.others.old, self.c) / self.tau
        negatives = negatives.masked_fill(excluded, -math.inf)
        log_p = positive - torch.cat([positive[:, None], negatives], dim=1).logsumexp(dim=1)
        if self.alignment == "infonce":
            return -log_p.mean()

        u = self.uncertainty(batch.old) if batch.uncertainty is None else batch.uncertainty
        if self.alignment == "weighted":
            return -((1 - u) * log_p).mean()
        q = self.q_min + (self.q_max - self.q_min) * u
        if self.alignment == "gce":
            return (-torch.expm1(q * log_p) / q).mean()
        # -e^{q s} / q + (lam Z)^q / q with Z = e^s / p, as one difference that stays accurate for small q.
        rince = (q * positive).exp() * torch.expm1(q * (math.log(self.lam) - log_p)) / q
        return rince.masked_fill(excluded.all(dim=1), 0).mean()


class InfluenceLoss(CompatibilityLoss):
    """Classifies new embeddings by their distance to the old classes' centroids.

    Cross entropy of ``-scale d(new, mu_k)``, mu_k the Lorentz centroid of the old embeddings of class k: the
    influence loss of BCT (arXiv 2003.11942) in hyperbolic space. Our extension; no part of HBCT.

    Args:
        num_classes: Number of classes K, in the numbering of the labels that :meth:`fit` gets.
        dim: Dimension D of the old embeddings.
        c: Curvature magnitude.
        scale: Factor on the distances, positive.
        label_map: Where the two models number their classes differently: new label -> label given to
            :meth:`fit`. A sample whose label is not in the map, or whose class has no centroid, is skipped.
    """

    centroids: Tensor
    known: Tensor
    targets: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        c: float = 1.0,
        scale: float = 4.0,
        label_map: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__()
        check_curvature(c)
        check_positive(num_classes=num_classes, dim=dim, scale=scale)
        self.c = c
        self.scale = scale
        for new_label, old_label in (label_map or {}).items():
            if new_label < 0 or not 0 <= old_label < num_classes:
                raise ValueError(f"label_map must map labels to 0..{num_classes - 1}, got {new_label}: {old_label}")
        if label_map is None:
            targets = torch.arange(num_classes)
        else:  # the last entry stands for every label that is not in the map
            targets = torch.full((max(label_map, default=-1) + 2,), -1)
            targets[list(label_map)] = torch.tensor(list(label_map.values()), dtype=torch.int64)
        self.has_map = label_map is not None
        self.register_buffer("targets", targets, persistent=False)
        self.register_buffer("centroids", torch.zeros(num_classes, dim))
        self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))

    def fit(self, old_embeddings: Tensor, labels: Tensor) -> None:
        """Take the centroids of the classes from old embeddings (N, D) with labels (N,)."""
        check_statistics(old_embeddings, labels, *self.centroids.shape)
        self.known.zero_()
        for k in labels.unique().tolist():
            self.centroids[k] = H.lorentz_centroid(old_embeddings[labels == k].detach(), self.c)
            self.known[k] = True

    def compute(self, batch: Batch) -> Tensor:
        """The mean over the samples whose class has a centroid; 0 if there are none."""
        check_fitted(self.known)
        labels = batch.labels
        if self.has_map:
            last = len(self.targets) - 1
            labels = labels.where((labels >= 0) & (labels < last), last)
        else:
            check_labels(labels, len(self.targets))
        target = self.targets[labels]
        target = target.where(self.known[target.clamp_min(0)], -1)
        logits = -self.scale * H.pairwise_dist(batch.new, self.centroids, self.c)
        return mean_cross_entropy(logits.masked_fill(~self.known, -math.inf), target)


def mean_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over the samples whose target is not -1; 0, not NaN, if there are none.

    Args:
        logits: (B, K); minus infinity for a class that is no option.
        target: (B,), -1 for a sample to skip.
    """
    kept = (target >= 0).sum().clamp_min(1)
    return F.cross_entropy(logits, target, ignore_index=-1, reduction="sum") / kept


def check_labels(labels: Tensor, num_classes: int) -> None:
    """Raise ValueError naming the first label outside ``0..num_classes - 1``."""
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        raise ValueError(f"labels must be in 0..{num_classes - 1}, got {int(labels[outside][0])}")


def check_statistics(old_embeddings: Tensor, labels: Tensor, num_classes: int, dim: int) -> None:
    """Raise ValueError unless these are finite (N, D) embeddings with labels (N,) in ``0..num_classes - 1``."""
    if old_embeddings.shape != (len(labels), dim) or labels.dim() != 1:
        raise ValueError(
            f"old_embeddings and labels must be (N, {dim}) and (N,), got "
            f"{tuple(old_embeddings.shape)} and {tuple(labels.shape)}"
        )
    check_labels(labels, num_classes)
    _check_finite("old", old_embeddings)


def check_fitted(known: Tensor) -> None:
    """Raise RuntimeError if no class has statistics yet."""
    if not known.any():
        raise RuntimeError("the loss needs the old classes first: call fit(old_embeddings, labels)")


def _full(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def check_positive(**values: float) -> None:
    """Raise ValueError naming the first argument that is not positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {value}")


def _check_finite(name: str, embeddings: Tensor) -> None:
    finite = torch.isfinite(embeddings).all(dim=1)
    if not finite.all():
        raise ValueError(f"{name} embeddings must be finite, sample {int((~finite).nonzero()[0])} is not")
