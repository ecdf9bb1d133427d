"""Hyperbolic geometry in the Lorentz model, on tangent vectors at the origin.

A point of the space of curvature ``-c`` is given by its tangent vector ``v`` at the origin: the point lies at
distance ``|v|`` from the origin, in the direction of ``v``. That form is exact to store and differentiate;
hyperboloid coordinates grow like ``exp(sqrt(c) |v|)`` and lose the difference between close points.

Conventions. ``c`` is the magnitude of the curvature, a float or a 0-d tensor (geoopt's ``k`` is ``1 / c``).
``R = sqrt(c) |v|`` is the radius in units of the curvature. Every function works in float32 or, if an input is
float64, in float64, also under autocast; keep ``R`` at most 8 in float32 (:data:`MAX_RADIUS`). Values and
gradients are finite for any finite input: where a gradient is undefined (equal points, the origin) it is 0, and
points beyond ``R = 22`` (float32) or ``177`` (float64) are taken to lie there.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, ParamSpec

import torch
from torch import Tensor

_P = ParamSpec("_P")
Curvature = float | Tensor
UncertaintyKind = Literal["poincare", "clip"]

MAX_RADIUS = 8.0
"""Largest ``sqrt(c) * radius`` at which float32 still tells directions apart to about 1e-4 of a distance."""

# Norms are divided by at least this. Below it float32 squares underflow, so a direction is lost anyway.
_EPS = 1e-15
# Keeps the slope of arcsin finite at the edge of a cone that spans a half-space.
_ARCSIN_MARGIN = 1e-4


def _full_precision(function: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Run in float32, or float64 if an input is, whatever autocast says.

    Switching autocast off is not enough: inputs that an autocast layer made arrive as bfloat16.
    """

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> Tensor:
        vectors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim() > 0]
        dtype = torch.float64 if any(v.dtype == torch.float64 for v in vectors) else torch.float32

        def cast(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, Tensor) and value.dim() > 0 else value

        device = vectors[0].device.type if vectors else "cpu"
        with torch.autocast(device, enabled=False):
            return function(*map(cast, args), **{k: cast(v) for k, v in kwargs.items()})

    return wrapper


def check_curvature(c: Curvature) -> None:
    """Raise ValueError unless ``c`` is a positive finite number or a 0-d tensor (whose value is not read)."""
    if isinstance(c, Tensor):
        if c.dim() > 0:
            raise ValueError(f"c must be a number or a 0-d tensor, got shape {tuple(c.shape)}")
    elif not 0 < c < math.inf:
        raise ValueError(f"c must be positive and finite (the curvature is -c), got {c}")


def _sqrt(c: Curvature) -> Any:
    check_curvature(c)
    return c.sqrt() if isinstance(c, Tensor) else math.sqrt(c)


def _norm(v: Tensor) -> Tensor:
    return torch.linalg.vector_norm(v, dim=-1, keepdim=True)


def _polar(v: Tensor, sqrt_c: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Split tangent vectors (..., D) into v, bounded; R (..., 1); and the unit direction (..., D)."""
    limit = math.log(torch.finfo(v.dtype).max) / 4  # fourth powers of exp(R) stay finite
    v = clip_norm(v, limit / sqrt_c)
    norm = _norm(v)
    return v, sqrt_c * norm, v / norm.clamp_min(_EPS)


def _difference(x: Tensor, y: Tensor, unit_x: Tensor, unit_y: Tensor) -> tuple[Tensor, Tensor]:
    """``|x| - |y|`` (..., 1) and ``u_x - u_y`` (..., D), to a relative error however close x and y are.

    Both follow from ``x - y``, which floats give exactly for close points; norms and directions are rounded.
    """
    norm_x, norm_y = _norm(x), _norm(y)
    gap = ((x - y) * (x + y)).sum(-1, keepdim=True) / (norm_x + norm_y).clamp_min(_EPS)
    # u_x - u_y = (x - y - gap u_y) / |x|, or with x and y changed over: divide by the larger norm.
    inner_unit = torch.where(norm_x >= norm_y, unit_y, unit_x)
    return gap, (x - y - gap * inner_unit) / torch.maximum(norm_x, norm_y).clamp_min(_EPS)


def _sinhc(radius: Tensor) -> Tensor:
    """sinh(R) / R, which is 1 at R = 0."""
    radius = radius.clamp_min(_EPS)
    return torch.sinh(radius) / radius


def _check_dims(x: Tensor, y: Tensor) -> None:
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(f"x and y must have the same last dimension, got {tuple(x.shape)} and {tuple(y.shape)}")


@_full_precision
def clip_norm(v: Tensor, max_norm: float | Tensor) -> Tensor:
    """Shorten vectors to at most ``max_norm``, keeping their direction (arXiv 2107.11472, feature clipping).

    Args:
        v: Vectors (..., D).
        max_norm: Largest length, positive.

    Returns:
        Vectors (..., D).
    """
    return v * (max_norm / _norm(v).clamp_min(max_norm))


@_full_precision
def exp_map0(v: Tensor, c: Curvature = 1.0) -> Tensor:
    """Exponential map at the origin: tangent vectors to points of the hyperboloid.

    Args:
        v: Tangent vectors (..., D).
        c: Curvature magnitude.

    Returns:
        Points (..., D + 1), time coordinate first as in geoopt, with ``<h, h>_L = -1 / c``.
    """
    sqrt_c = _sqrt(c)
    v, radius, _ = _polar(v, sqrt_c)
    return torch.cat([torch.cosh(radius) / sqrt_c, _sinhc(radius) * v], dim=-1)


@_full_precision
def log_map0(h: Tensor, c: Curvature = 1.0) -> Tensor:
    """Logarithmic map at the origin, the inverse of :func:`exp_map0`. Reads the space coordinates only.

    Args:
        h: Points of the hyperboloid (..., D + 1), time first.
        c: Curvature magnitude.

    Returns:
        Tangent vectors (..., D).
    """
    space = h[..., 1:]
    sinh = (_sqrt(c) * _norm(space)).clamp_min(_EPS)
    return space * (torch.asinh(sinh) / sinh)


@_full_precision
def lorentz_inner(x: Tensor, y: Tensor) -> Tensor:
    """Lorentz inner product of hyperboloid coordinates, ``x_s . y_s - x_0 y_0``.

    Args:
        x: Vectors (..., D + 1), time first.
        y: Vectors that broadcast with ``x``.

    Returns:
        Products (...).
    """
    _check_dims(x, y)
    return (x[..., 1:] * y[..., 1:]).sum(-1) - x[..., 0] * y[..., 0]


@_full_precision
def dist(x: Tensor, y: Tensor, c: Curvature = 1.0) -> Tensor:
    """Geodesic distance between tangent vectors, accurate however close the points are.

    With ``q = sinh^2((R_x - R_y) / 2) + sinh(R_x) sinh(R_y) |u_x - u_y|^2 / 4`` and unit directions ``u``, the
    distance is ``2 / sqrt(c) * asinh(sqrt(q))``. In float32 the error is below 1e-6 of the distance up to
    ``R = 8``, and ``dist(x, x)`` is exactly 0.

    Args:
        x: Tangent vectors (..., D).
        y: Tangent vectors that broadcast with ``x``.
        c: Curvature magnitude.

    Returns:
        Distances (...).
    """
    _check_dims(x, y)
    sqrt_c = _sqrt(c)
    x, radius_x, unit_x = _polar(x, sqrt_c)
    y, radius_y, unit_y = _polar(y, sqrt_c)
    gap, chord = _difference(x, y, unit_x, unit_y)
    spread = (torch.sinh(radius_x) * torch.sinh(radius_y)).clamp_min(_EPS**2).sqrt()
    root_q = torch.cat([torch.sinh(sqrt_c * gap / 2), spread * chord / 2], dim=-1)
    return 2 / sqrt_c * torch.asinh(torch.linalg.vector_norm(root_q, dim=-1))


class _PairwiseArcosh(torch.autograd.Function):
    """``2 asinh(sqrt(q))`` of ``q = left @ right.T``, in place, keeping only its output for the backward pass."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        q = (left @ right.T).clamp_min_(0)
        root = q.sqrt()
        # 2 asinh(s) = log1p(2 s (s + sqrt(1 + s^2))): exact for small s, and asinh itself costs twice the time.
        arcosh = q.add_(1).sqrt_().add_(root).mul_(root).mul_(2).log1p_()
        ctx.save_for_backward(left, right, arcosh)
        return arcosh

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        left, right, arcosh = ctx.saved_tensors
        # A pair whose q is below the rounding error of the matmul has no known direction: no gradient.
        noise = torch.finfo(left.dtype).eps * torch.outer(_sinh_of(left), _sinh_of(right)) + _EPS**2
        sinh_half = torch.sinh(arcosh / 2)
        known = sinh_half.square() > noise
        slope = 1 / (sinh_half * torch.sqrt(1 + sinh_half.square())).where(known, 1)
        grad_q = (grad * slope).where(known, 0)
        return grad_q @ right, grad_q.T @ left


def _sinh_of(features: Tensor) -> Tensor:
    """sinh(R) = 2 sinh(R / 2) cosh(R / 2), from the two columns that hold their squares."""
    return 2 * (features[:, 0] * features[:, 1]).sqrt()


@_full_precision
def pairwise_dist(
    x: Tensor, y: Tensor, c: Curvature = 1.0, exact: bool = False, chunk_size: int | None = None
) -> Tensor:
    """All geodesic distances between two sets of tangent vectors, in memory O(N M).

    The default is one matmul, ``q = sinh^2(R_x/2) cosh^2(R_y/2) + cosh^2(R_x/2) sinh^2(R_y/2) - sinh(R_x)
    sinh(R_y) u_x.u_y / 2``, and ``2 / sqrt(c) * asinh(sqrt(q))``. It is right for logits and training. The matmul
    rounds ``q`` to about ``1e-7 sinh(R_x) sinh(R_y)``, so in float32 two equal points at ``R = 4`` may come out
    0.03 apart, and pairs within that error pass no gradient. ``exact=True`` measures the chord between the
    directions instead: several times slower, good for ranking near-duplicates.

    Args:
        x: Tangent vectors (N, D).
        y: Tangent vectors (M, D).
        c: Curvature magnitude.
        exact: Use the form that stays accurate for close points.
        chunk_size: Rows of ``x`` at a time with ``exact=True``, to bound the temporaries to a few times
            (chunk_size, M); None picks about 16 MB each. Without gradients only the result is kept.

    Returns:
        Distances (N, M).

    Raises:
        ValueError: If ``x`` or ``y`` is not a matrix, or they differ in D.
    """
    if x.dim() != 2 or y.dim() != 2:
        raise ValueError(f"x and y must be (N, D) and (M, D), got {tuple(x.shape)} and {tuple(y.shape)}")
    _check_dims(x, y)
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, got {chunk_size}")
    sqrt_c = _sqrt(c)
    x, radius_x, unit_x = _polar(x, sqrt_c)
    y, radius_y, unit_y = _polar(y, sqrt_c)
    if exact:
        rows = chunk_size or max(1, 4_000_000 // max(1, len(y)))
        chunks = zip(radius_x.split(rows), unit_x.split(rows), strict=True)
        return torch.cat([_chord_arcosh(r, u, radius_y, unit_y) for r, u in chunks]) / sqrt_c

    low_x, high_x = torch.sinh(radius_x / 2).square(), torch.cosh(radius_x / 2).square()
    low_y, high_y = torch.sinh(radius_y / 2).square(), torch.cosh(radius_y / 2).square()
    space_x, space_y = sqrt_c * _sinhc(radius_x) * x, sqrt_c * _sinhc(radius_y) * y
    left = torch.cat([low_x, high_x, -space_x / 2], dim=-1)
    right = torch.cat([high_y, low_y, space_y], dim=-1)
    return _PairwiseArcosh.apply(left, right) / sqrt_c


def _chord_arcosh(radius_x: Tensor, unit_x: Tensor, radius_y: Tensor, unit_y: Tensor) -> Tensor:
    """Distances (n, M) in units of the curvature, from radii (n, 1), (M, 1) and directions (n, D), (M, D)."""
    # The direct mode subtracts before it squares, and needs no (n, M, D) tensor.
    chord = torch.cdist(unit_x, unit_y, compute_mode="donot_use_mm_for_euclid_dist")
    spread = (torch.sinh(radius_x) * torch.sinh(radius_y).T).clamp_min(_EPS**2).sqrt()
    root_q = torch.stack([torch.sinh((radius_x - radius_y.T) / 2), spread * chord / 2], dim=-1)
    return 2 * torch.asinh(torch.linalg.vector_norm(root_q, dim=-1))


def _check_min_radius(min_radius: float) -> None:
    if not 0 < min_radius < math.inf:
        raise ValueError(f"min_radius must be positive and finite, got {min_radius}")


@_full_precision
def half_aperture(x: Tensor, c: Curvature = 1.0, min_radius: float = 0.1) -> Tensor:
    """Half-aperture of the entailment cone at each point, ``arcsin(2 K / sinh(R))`` (arXiv 2304.09172, eq. 4).

    Args:
        x: Tangent vectors of the apexes (..., D).
        c: Curvature magnitude.
        min_radius: K; the cone is a half-space for ``R`` below ``asinh(2 K)``, and narrows beyond.

    Returns:
        Angles (...) in radians, in (0, pi/2).
    """
    _check_min_radius(min_radius)
    _, radius, _ = _polar(x, _sqrt(c))
    sine = 2 * min_radius / torch.sinh(radius).clamp_min(_EPS)
    return torch.asin(sine.clamp_max(1 - _ARCSIN_MARGIN)).squeeze(-1)


@_full_precision
def exterior_angle(x: Tensor, y: Tensor, c: Curvature = 1.0) -> Tensor:
    """Angle at ``x`` between the ray from the origin through ``x``, prolonged, and the geodesic to ``y``.

    ``y`` is in the cone of ``x`` where this is at most :func:`half_aperture`. No further out than ``x``
    (``|y| <= |x|``) it exceeds pi/2 unless ``y = x``, so such a ``y`` is in no cone of ``x``.

    Args:
        x: Tangent vectors of the apexes (..., D).
        y: Tangent vectors that broadcast with ``x``.
        c: Curvature magnitude.

    Returns:
        Angles (...) in radians, in [0, pi]; 0 for ``y = x``.
    """
    _check_dims(x, y)
    sqrt_c = _sqrt(c)
    x, radius_x, unit_x = _polar(x, sqrt_c)
    y, radius_y, unit_y = _polar(y, sqrt_c)
    gap, chord = _difference(y, x, unit_y, unit_x)
    # Sine and cosine of half the angle at the origin: exact for small angles, where arccos is not.
    sin_half, cos_half = _norm(chord) / 2, _norm(unit_x + unit_y) / 2
    opposite = 2 * torch.sinh(radius_y) * sin_half * cos_half
    adjacent = torch.sinh(sqrt_c * gap) - 2 * torch.sinh(radius_y) * torch.cosh(radius_x) * sin_half.square()
    # atan2 divides by the squared length in its gradient: 0 / 0 at y = x.
    degenerate = opposite.square() + adjacent.square() < torch.finfo(opposite.dtype).tiny
    return torch.atan2(opposite.where(~degenerate, 0), adjacent.where(~degenerate, 1)).squeeze(-1)


@_full_precision
def max_cone_angle(x: Tensor, c: Curvature = 1.0, min_radius: float = 0.1) -> Tensor:
    """Largest angle at the origin between ``x`` and any point of its cone, ``2 atan(exp(-R) tan(psi / 2))``.

    However far out a point is, it cannot be in the cone if its direction differs by more. At K = 0.1 that is
    3.6 degrees at ``R = 1`` and 0.01 at ``R = 4``.

    Args:
        x: Tangent vectors of the apexes (..., D).
        c: Curvature magnitude.
        min_radius: K, see :func:`half_aperture`.

    Returns:
        Angles (...) in radians.
    """
    _, radius, _ = _polar(x, _sqrt(c))
    return 2 * torch.atan(torch.exp(-radius.squeeze(-1)) * torch.tan(half_aperture(x, c, min_radius) / 2))


@_full_precision
def poincare_norm(x: Tensor, c: Curvature = 1.0) -> Tensor:
    """Norm of the image in the Poincare ball scaled to radius 1, ``tanh(R / 2)``.

    Args:
        x: Tangent vectors (..., D).
        c: Curvature magnitude.

    Returns:
        Norms (...) in [0, 1).
    """
    _, radius, _ = _polar(x, _sqrt(c))
    return torch.tanh(radius / 2).squeeze(-1)


@_full_precision
def uncertainty(
    x: Tensor, c: Curvature = 1.0, kind: UncertaintyKind = "poincare", clip_radius: float | None = None
) -> Tensor:
    """How uncertain an embedding is: 1 at the origin, falling with the distance from it (after arXiv 2203.05898).

    Args:
        x: Tangent vectors (..., D).
        c: Curvature magnitude.
        kind: ``poincare`` for ``1 - tanh(R / 2)``, ``clip`` for ``1 - |x| / clip_radius``.
        clip_radius: Radius at which ``clip`` reaches 0.

    Returns:
        Uncertainties (...) in [0, 1].

    Raises:
        ValueError: If ``kind`` is unknown, or is ``clip`` without a positive ``clip_radius``.
    """
    if kind == "poincare":
        return 1 - poincare_norm(x, c)
    if kind != "clip":
        raise ValueError(f"kind must be 'poincare' or 'clip', got {kind!r}")
    if clip_radius is None or not clip_radius > 0:
        raise ValueError(f"kind='clip' needs a positive clip_radius, got {clip_radius}")
    return (1 - _norm(x).squeeze(-1) / clip_radius).clamp_min(0)


@_full_precision
def lorentz_centroid(x: Tensor, c: Curvature = 1.0, weights: Tensor | None = None) -> Tensor:
    """Lorentz centroid: the mean of the points in hyperboloid coordinates, scaled back onto the hyperboloid.

    It minimises the mean squared Lorentzian distance (arXiv 1805.08207).

    Args:
        x: Tangent vectors (..., N, D), N at least 1.
        c: Curvature magnitude.
        weights: Non-negative weights (..., N), not all zero; equal if None.

    Returns:
        Tangent vectors (..., D).
    """
    if x.dim() < 2 or x.shape[-2] == 0:
        raise ValueError(f"x must be (..., N, D) with at least one vector, got {tuple(x.shape)}")
    sqrt_c = _sqrt(c)
    x, radius, unit = _polar(x, sqrt_c)
    if weights is None:
        weights = x.new_ones(x.shape[:-1])
    weights = (weights / weights.sum(-1, keepdim=True)).unsqueeze(-1)
    space = (weights * torch.sinh(radius) * unit).sum(-2, keepdim=True)
    length = _norm(space)
    time = (weights * torch.cosh(radius)).sum(-2, keepdim=True)
    # Points that balance around the origin leave a rounding error, and no direction.
    direction = space / torch.maximum(length, torch.finfo(x.dtype).eps * time)
    # time - length, which cancels far from the origin, as a sum of positive terms (1 - cos = |u - u'|^2 / 2).
    excess = torch.exp(-radius) + torch.sinh(radius) * _norm(unit - direction).square() / 2
    excess = (weights * excess).sum(-2, keepdim=True)
    centroid_radius = torch.log((time + length) / excess) / 2
    return (centroid_radius / sqrt_c * direction).squeeze(-2)
