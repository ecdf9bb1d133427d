"""Layers of hyperbolic networks: lifting features into the space, and classifiers on it.

All of them take and return tangent vectors at the origin, see :mod:`zoo.hyperbolic.functional`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from zoo.hyperbolic.functional import (
    MAX_RADIUS,
    check_curvature,
    clip_norm,
    exp_map0,
    log_map0,
    pairwise_dist,
)


class LorentzLift(nn.Module):
    """Lifts Euclidean features: scales them, and clips their length, which is the distance to the origin.

    Args:
        dim: Feature dimension D; the scale starts at ``D ** -0.5``.
        c: Curvature magnitude.
        clip_radius: Largest distance to the origin.
        learn_scale: Train the scale; it is a parameter ``exp(log_scale)``, or else a buffer.

    Raises:
        ValueError: If an argument is not positive, or ``sqrt(c) * clip_radius`` is too large for float32.
    """

    def __init__(self, dim: int, c: float = 1.0, clip_radius: float = 1.0, learn_scale: bool = True) -> None:
        super().__init__()
        check_curvature(c)
        _check_sizes(dim=dim)
        if not 0 < clip_radius < math.inf:
            raise ValueError(f"clip_radius must be positive and finite, got {clip_radius}")
        if math.sqrt(c) * clip_radius > MAX_RADIUS:
            raise ValueError(
                f"clip_radius must be at most {MAX_RADIUS:g} / sqrt(c) = {MAX_RADIUS / math.sqrt(c):g} for float32 "
                f"to resolve directions, got {clip_radius}"
            )
        self.dim = dim
        self.c = c
        self.clip_radius = clip_radius
        log_scale = torch.tensor(-0.5 * math.log(dim))
        if learn_scale:
            self.log_scale = nn.Parameter(log_scale)
        else:
            self.register_buffer("log_scale", log_scale)

    def forward(self, features: Tensor) -> Tensor:
        """Map features (..., D) to tangent vectors (..., D) no longer than ``clip_radius``; float32 at least."""
        features = features if features.dtype == torch.float64 else features.float()
        return clip_norm(features * self.log_scale.exp(), self.clip_radius)

    def extra_repr(self) -> str:
        """Constructor arguments for ``print``."""
        return f"dim={self.dim}, c={self.c}, clip_radius={self.clip_radius}"


class LorentzPrototypes(nn.Module):
    """Classifies by the distance to one learnable point per class, ``logit_k = -sigma d(x, mu_k)``.

    Args:
        num_classes: Number of classes K.
        dim: Dimension D.
        c: Curvature magnitude.
        scale_init: Initial sigma, positive; sigma is learned as ``exp(log_scale)``.
        manifold_parameters: Keep the prototypes as points of the hyperboloid, a ``geoopt.ManifoldParameter``
            (K, D + 1) for :class:`zoo.hyperbolic.RiemannianAdam`, instead of tangent vectors (K, D) for any
            optimizer.
    """

    def __init__(
        self, num_classes: int, dim: int, c: float = 1.0, scale_init: float = 4.0, manifold_parameters: bool = False
    ) -> None:
        super().__init__()
        check_curvature(c)
        _check_sizes(num_classes=num_classes, dim=dim)
        if not 0 < scale_init < math.inf:
            raise ValueError(f"scale_init must be positive and finite, got {scale_init}")
        self.c = c
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale_init)))
        tangent = torch.randn(num_classes, dim) / math.sqrt(dim * c)  # about R = 1
        if manifold_parameters:
            from zoo.hyperbolic.manifold import geoopt, lorentz_manifold

            self.weight = geoopt.ManifoldParameter(exp_map0(tangent, c), manifold=lorentz_manifold(c))
        else:
            self.weight = nn.Parameter(tangent)
        self.manifold_parameters = manifold_parameters

    @property
    def prototypes(self) -> Tensor:
        """The prototypes as tangent vectors (K, D)."""
        return log_map0(self.weight, self.c) if self.manifold_parameters else self.weight

    def forward(self, x: Tensor) -> Tensor:
        """Map tangent vectors (B, D) to logits (B, K)."""
        return -self.log_scale.exp() * pairwise_dist(x, self.prototypes, self.c)

    def extra_repr(self) -> str:
        """Constructor arguments for ``print``."""
        shape = ", ".join(map(str, self.weight.shape))
        return f"weight=({shape}), c={self.c}, manifold_parameters={self.manifold_parameters}"


class LorentzMLR(nn.Module):
    """Multinomial logistic regression by signed distance to hyperplanes of the space (arXiv 2303.15919, eq. 4).

    Args:
        num_classes: Number of classes K.
        dim: Dimension D.
        c: Curvature magnitude.
    """

    def __init__(self, num_classes: int, dim: int, c: float = 1.0) -> None:
        super().__init__()
        check_curvature(c)
        _check_sizes(num_classes=num_classes, dim=dim)
        self.c = c
        bound = 1 / math.sqrt(dim)
        self.weight = nn.Parameter(torch.empty(num_classes, dim).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_classes).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map tangent vectors (B, D) to logits (B, K)."""
        with torch.autocast(x.device.type, enabled=False):
            point = exp_map0(x, self.c)
            time, space = point[..., :1], point[..., 1:]
            sqrt_c = math.sqrt(self.c)
            # The Lorentz norm of the hyperplane's normal is exactly |z|; as a difference it could be NaN.
            norm = torch.linalg.vector_norm(self.weight, dim=-1).clamp_min(1e-15)
            shift = sqrt_c * self.bias
            alpha = torch.cosh(shift) * (space @ self.weight.T) - torch.sinh(shift) * norm * time
            return norm / sqrt_c * torch.asinh(sqrt_c * alpha / norm)

    def extra_repr(self) -> str:
        """Constructor arguments for ``print``."""
        return f"num_classes={self.weight.shape[0]}, dim={self.weight.shape[1]}, c={self.c}"


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
