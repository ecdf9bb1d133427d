"""Euclidean losses for compatible training, called and fitted like :mod:`zoo.hyperbolic_bct.losses`.

All of them compare unit vectors, and normalise what they are given. A loss with parameters of its own
(:class:`AdvBCTLoss`) belongs in the optimizer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.hyperbolic_bct.losses import (
    Batch,
    CompatibilityLoss,
    check_fitted,
    check_labels,
    check_positive,
    check_statistics,
    mean_cross_entropy,
)


class L2Loss(CompatibilityLoss):
    """Squared distance of the unit vectors, ``mean_i |z_new - z_old|^2``."""

    def compute(self, batch: Batch) -> Tensor:
        """The mean squared distance, in [0, 4]."""
        return (_unit(batch.new) - _unit(batch.old)).square().sum(dim=1).mean()


class BCTLoss(CompatibilityLoss):
    """Influence loss of backward-compatible training (Shen et al., arXiv 2003.11942).

    Cross entropy of the new embedding under a frozen classifier of the old space. Its rows are the normalised
    mean old embeddings of the classes, or the old model's own classifier for the classes that it knew.

    Args:
        num_classes: Number of classes K.
        dim: Dimension D.
        scale: Factor on the cosines, positive.
    """

    prototypes: Tensor
    known: Tensor

    def __init__(self, num_classes: int, dim: int, scale: float = 10.0) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, dim=dim, scale=scale)
        self.scale = scale
        self.register_buffer("prototypes", torch.zeros(num_classes, dim))
        self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))

    def fit(self, old_embeddings: Tensor, labels: Tensor, old_classifier: Tensor | None = None) -> None:
        """Set the rows of the classifier.

        Args:
            old_embeddings: Old embeddings of the new training set (N, D).
            labels: Their labels (N,).
            old_classifier: Weight (K_old, D) of the old model's classifier, for classes 0..K_old-1; its rows,
                normalised, replace the means.
        """
        num_classes, dim = self.prototypes.shape
        check_statistics(old_embeddings, labels, num_classes, dim)
        means, self.known[:] = class_means(old_embeddings, labels, num_classes)
        self.prototypes.copy_(means)
        if old_classifier is not None:
            if old_classifier.dim() != 2 or old_classifier.shape[1] != dim or len(old_classifier) > num_classes:
                raise ValueError(
                    f"old_classifier must be (K_old <= {num_classes}, {dim}), got {tuple(old_classifier.shape)}"
                )
            self.prototypes[: len(old_classifier)] = _unit(old_classifier.detach().float())
            self.known[: len(old_classifier)] = True

    def compute(self, batch: Batch) -> Tensor:
        """The mean over the samples whose class has a row; 0 if there are none."""
        check_fitted(self.known)
        check_labels(batch.labels, len(self.known))
        new = _unit(batch.new)
        logits = self.scale * new @ self.prototypes.to(new.dtype).T
        target = batch.labels.where(self.known[batch.labels], -1)
        return mean_cross_entropy(logits.masked_fill(~self.known, -math.inf), target)


class HotRefreshLoss(CompatibilityLoss):
    """Regression-alleviating contrast of Hot-Refresh (RACT, Zhang et al., ICLR 2022).

    The positive is the sample's old embedding; the negatives are old and new embeddings of other classes.

    Args:
        tau: Temperature.
        top_k: Keep only this many largest negatives of each sample; all of them if None.
    """

    def __init__(self, tau: float = 0.1, top_k: int | None = None) -> None:
        super().__init__()
        check_positive(tau=tau)
        if top_k is not None:
            check_positive(top_k=top_k)
        self.tau = tau
        self.top_k = top_k

    def compute(self, batch: Batch) -> Tensor:
        """The mean cross entropy of the positive; 0 for a sample without negatives."""
        new = _unit(batch.new)
        positive = (new * _unit(batch.old)).sum(dim=1, keepdim=True)
        others = torch.cat([_unit(batch.others.old), _unit(batch.others.new)])
        excluded = batch.same_class().repeat(1, 2)
        negatives = (new @ others.T).masked_fill(excluded, -math.inf)
        if self.top_k is not None:
            negatives = negatives.topk(min(self.top_k, negatives.shape[1]), dim=1).values
        logits = torch.cat([positive, negatives], dim=1) / self.tau
        return F.cross_entropy(logits, batch.labels.new_zeros(len(new)))


class HOCLoss(CompatibilityLoss):
    """Higher-order compatibility with a fixed simplex classifier (Biondi et al., arXiv 2405.02581).

    ``lam CE(scale z_new W^T) + (1 - lam) L_hoc``. W are the D + 1 vertices of a regular simplex, so classes up to
    that number can be added later. ``L_hoc = -mu z_old_i.z_new_i + log sum_j exp(mu z_old_i.z_new_j)`` over the
    samples j of other classes.

    Args:
        dim: Dimension D; labels must be below D + 1.
        mu: Factor on the cosines of ``L_hoc``.
        lam: Weight of the classification, in [0, 1].
        scale: Factor on the cosines of the classification.
        reference_mask: Do as the authors' code does, where a masked pair has similarity 0 and still adds 1 to the
            sum, instead of leaving it out.
    """

    vertices: Tensor

    def __init__(
        self, dim: int, mu: float = 10.0, lam: float = 0.1, scale: float = 10.0, reference_mask: bool = False
    ) -> None:
        super().__init__()
        check_positive(dim=dim, mu=mu, scale=scale)
        if not 0 <= lam <= 1:
            raise ValueError(f"lam must be in [0, 1], got {lam}")
        self.mu = mu
        self.lam = lam
        self.scale = scale
        self.reference_mask = reference_mask
        self.register_buffer("vertices", simplex_vertices(dim), persistent=False)

    def compute(self, batch: Batch) -> Tensor:
        """The mean over the samples; a sample without negatives adds its classification only."""
        check_labels(batch.labels, len(self.vertices))
        new, old = _unit(batch.new), _unit(batch.old)
        classification = F.cross_entropy(self.scale * new @ self.vertices.to(new.dtype).T, batch.labels)

        similarity = self.mu * old @ _unit(batch.others.new).T
        excluded = batch.same_class()
        if self.reference_mask:
            negatives = similarity.masked_fill(excluded, 0).logsumexp(dim=1)
            hoc = negatives - self.mu * (new * old).sum(dim=1)
        else:
            alone = excluded.all(dim=1)  # a sum over nothing has no logarithm
            negatives = similarity.masked_fill(excluded & ~alone[:, None], -math.inf).logsumexp(dim=1)
            hoc = (negatives - self.mu * (new * old).sum(dim=1)).masked_fill(alone, 0)
        return self.lam * classification + (1 - self.lam) * hoc.mean()


class AdvBCTLoss(CompatibilityLoss):
    """Adversarial and boundary-aware compatibility (AdvBCT, Pan et al., arXiv 2305.03083); weights are ours.

    A discriminator learns to tell new embeddings from old ones, and through a gradient reversal the new ones learn
    to be mistaken for old. Beside it each new embedding has to come within an elastic boundary of its class's old
    centre, ``relu(|z_new - centre| - (r_max - r_e))``: r_max is the largest old distance in the class, and
    ``r_e`` a learnable part of it.

    Args:
        num_classes: Number of classes K.
        dim: Dimension D.
        hidden: Units of the discriminator's hidden layer.
        adversarial_weight: Weight of the discriminator's cross entropy.
        boundary_weight: Weight of the boundary term.
        reversal: Factor on the reversed gradient.
    """

    centres: Tensor
    radii: Tensor
    known: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        hidden: int = 128,
        adversarial_weight: float = 0.1,
        boundary_weight: float = 20.0,
        reversal: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(num_classes=num_classes, dim=dim, hidden=hidden, reversal=reversal)
        for name, weight in (("adversarial_weight", adversarial_weight), ("boundary_weight", boundary_weight)):
            if not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be non-negative and finite, got {weight}")
        self.adversarial_weight = adversarial_weight
        self.boundary_weight = boundary_weight
        self.reversal = reversal
        self.discriminator = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        # r_e = sigmoid(elastic) r_max, so that the boundary stays between the centre and the furthest old sample.
        # It starts near the centre: outliers make r_max so large that anything would be within it.
        self.elastic = nn.Parameter(torch.full((num_classes,), 2.0))
        self.register_buffer("centres", torch.zeros(num_classes, dim))
        self.register_buffer("radii", torch.zeros(num_classes))
        self.register_buffer("known", torch.zeros(num_classes, dtype=torch.bool))

    def fit(self, old_embeddings: Tensor, labels: Tensor) -> None:
        """Take the classes' centres and radii from old embeddings (N, D) with labels (N,)."""
        check_statistics(old_embeddings, labels, *self.centres.shape)
        centres, self.known[:] = class_means(old_embeddings, labels, len(self.known))
        unit = _unit(old_embeddings.detach().to(centres.dtype))
        distance = torch.linalg.vector_norm(unit - centres[labels], dim=1)
        self.centres.copy_(centres)
        self.radii.copy_(torch.zeros_like(centres[:, 0]).scatter_reduce(0, labels, distance, "amax"))

    def compute(self, batch: Batch) -> Tensor:
        """Weighted sum of both terms; samples of classes without a centre count for the first only."""
        check_fitted(self.known)
        check_labels(batch.labels, len(self.known))
        new, old = _unit(batch.new), _unit(batch.old)
        dtype = self.elastic.dtype
        judged = self.discriminator(torch.cat([_reverse_gradient(new, self.reversal), old]).to(dtype)).squeeze(1)
        is_new = torch.cat([judged.new_ones(len(new)), judged.new_zeros(len(old))])
        adversarial = F.binary_cross_entropy_with_logits(judged, is_new)

        boundary = self.radii * (1 - torch.sigmoid(self.elastic))
        distance = torch.linalg.vector_norm(new - self.centres[batch.labels], dim=1)
        excess = F.relu(distance - boundary[batch.labels]) * self.known[batch.labels]
        return self.adversarial_weight * adversarial + self.boundary_weight * excess.mean()


def class_means(embeddings: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Normalised mean unit vector of every class.

    Args:
        embeddings: (N, D).
        labels: (N,), in 0..num_classes-1.
        num_classes: K.

    Returns:
        Means (K, D), zero for a class without samples, and which classes have any (K,), bool.
    """
    unit = _unit(embeddings.detach() if embeddings.dtype == torch.float64 else embeddings.detach().float())
    sums = unit.new_zeros(num_classes, unit.shape[1]).index_add_(0, labels, unit)
    return _unit(sums), torch.bincount(labels, minlength=num_classes) > 0


def simplex_vertices(dim: int) -> Tensor:
    """The ``dim + 1`` unit vectors at equal angles, with cosine ``-1 / dim``: (dim + 1, dim)."""
    # The unit vectors and one more point on the diagonal, at the same distance from all; then centred.
    apex = (1 - math.sqrt(dim + 1)) / dim
    points = torch.cat([torch.eye(dim, dtype=torch.float64), torch.full((1, dim), apex, dtype=torch.float64)])
    return _unit(points - points.mean(dim=0)).float()


@torch.no_grad()
def procrustes(old: Tensor, new: Tensor) -> Tensor:
    """Best rotation of new embeddings onto old ones: compatibility after training, from paired samples.

    It minimises ``|new R - old|`` over matrices with orthonormal columns or rows, by ``R = U V^T`` from the SVD of
    ``new^T old``.

    Args:
        old: Old embeddings (N, D_old).
        new: New embeddings of the same samples (N, D_new).

    Returns:
        R (D_new, D_old); search the old gallery with ``query @ R``.
    """
    if old.dim() != 2 or new.dim() != 2 or len(old) != len(new):
        raise ValueError(f"old and new must be (N, D_old) and (N, D_new), got {tuple(old.shape)}, {tuple(new.shape)}")
    u, _, vh = torch.linalg.svd(new.T @ old, full_matrices=False)
    return u @ vh


class _ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * grad, None


def _reverse_gradient(x: Tensor, factor: float) -> Tensor:
    return _ReverseGradient.apply(x, factor)


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)
