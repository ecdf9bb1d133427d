"""A geoopt Lorentz manifold and a Riemannian Adam that train in float32 and resume exactly.

geoopt supplies the manifold, its parameters and the optimizer; the subclasses here replace what fails in
geoopt 0.5.1. Each override names its fault, and a test shows it, so that it can go when geoopt has it fixed.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

with warnings.catch_warnings():
    # geoopt compiles its functions with torch.jit.script on import, which newer torch calls deprecated.
    warnings.filterwarnings("ignore", r".*torch\.jit\.script.* is (deprecated|not supported)", Warning)
    import geoopt

from zoo.hyperbolic.functional import MAX_RADIUS, check_curvature

__all__ = ["LorentzManifold", "RiemannianAdam", "geoopt", "lorentz_manifold"]


class LorentzManifold(geoopt.Lorentz):
    """``geoopt.Lorentz`` with ``k = 1 / c`` in float64, and stable operations for Riemannian optimizers.

    Args:
        c: Curvature magnitude, positive and finite.
    """

    def __init__(self, c: float) -> None:
        check_curvature(c)
        # geoopt would make a float32 of a Python float, 1e-8 off for c = 0.1; a 0-d float64 promotes nothing.
        super().__init__(k=torch.tensor(1 / float(c), dtype=torch.float64))

    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        """geoopt's tolerance does not grow with the coordinates: from ``R = 4`` on no float32 point passes."""
        scale = x.narrow(dim, 0, 1).double().square()
        error = self.inner(x, x.double(), keepdim=True, dim=dim) + self.k
        ok = bool((error.abs() <= atol + rtol * scale).all())
        return ok, None if ok else f"'x' has a Lorentz square that is not {-self.k.item()}"

    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5, dim: int = -1
    ) -> tuple[bool, str | None]:
        """geoopt's fails for float64 vectors, and its tolerance does not grow with the coordinates."""
        scale = (x.narrow(dim, 0, 1) * u.narrow(dim, 0, 1)).double()
        error = self.inner(x, x.double(), u.double(), keepdim=True, dim=dim)
        ok = bool((error.abs() <= atol + rtol * scale.abs()).all())
        return ok, None if ok else "the Lorentz product of 'x' and 'u' is not zero"

    def projx(self, x: Tensor, *, dim: int = -1) -> Tensor:
        """Project onto the hyperboloid by the space rows; in float32 no further out than ``R = 8``.

        Beyond, float32 cannot tell a point from its neighbours, and an optimizer that walks there ends in NaN.
        """
        if x.dtype != torch.float64:
            limit = self.k.sqrt() * math.sinh(MAX_RADIUS)
            norm = torch.linalg.vector_norm(x.narrow(dim, 1, x.shape[dim] - 1), dim=dim, keepdim=True)
            x = x * (limit / norm.clamp_min(limit))
        return super().projx(x, dim=dim)

    def egrad2rgrad(self, x: Tensor, u: Tensor, *, dim: int = -1) -> Tensor:
        """Riemannian gradient of a Euclidean one. geoopt's flips the time row of ``p.grad`` in place."""
        flipped = torch.cat([-u.narrow(dim, 0, 1), u.narrow(dim, 1, u.shape[dim] - 1)], dim=dim)
        return self.proju(x, flipped, dim=dim)

    def component_inner(self, x: Tensor, u: Tensor, v: Tensor | None = None) -> Tensor:
        """Inner product of tangent vectors at ``x``, (..., 1).

        The difference ``u_s . v_s - u_0 v_0`` cancels far from the origin and goes negative, and its root makes
        Adam's step NaN. A tangent vector's time row follows from its space rows, so split those along ``x_s``:
        the part along it is scaled by ``1 / (sqrt(c) x_0)``, the rest counts in full.
        """
        v = u if v is None else v
        time, space = x[..., :1], x[..., 1:]
        direction = space / torch.linalg.vector_norm(space, dim=-1, keepdim=True).clamp_min(1e-15)
        u_along = (u[..., 1:] * direction).sum(-1, keepdim=True)
        v_along = (v[..., 1:] * direction).sum(-1, keepdim=True)
        across = ((u[..., 1:] - u_along * direction) * (v[..., 1:] - v_along * direction)).sum(-1, keepdim=True)
        return across + self.k / time.square() * u_along * v_along

    def retr_transp(self, x: Tensor, u: Tensor, v: Tensor, *more: Tensor, dim: int = -1) -> tuple[Tensor, ...]:
        """Move from ``x`` along ``u``, and take ``v`` there by parallel transport.

        geoopt's transport divides by the squared distance of the two points, which float32 rounds to 0.
        """
        u = self.proju(x, u, dim=dim)
        length = (self.component_inner(x, u) / self.k).clamp_min(1e-30).sqrt()
        y = self.projx(torch.cosh(length) * x + torch.sinh(length) / length * u, dim=dim)
        return y, *(self.transp(x, y, w, dim=dim) for w in (v, *more))

    def transp(self, x: Tensor, y: Tensor, v: Tensor, *, dim: int = -1) -> Tensor:
        """Parallel transport of ``v`` along the geodesic from ``x`` to ``y``."""
        scale = self.inner(y, y, v, keepdim=True, dim=dim) / (self.k - self.inner(x, x, y, keepdim=True, dim=dim))
        return self.proju(y, v + scale * (x + y), dim=dim)


def lorentz_manifold(c: float = 1.0) -> LorentzManifold:
    """The hyperboloid of curvature ``-c`` for :class:`geoopt.ManifoldParameter`.

    Args:
        c: Curvature magnitude, positive and finite.

    Raises:
        ValueError: If ``c`` is not (geoopt takes a negative ``k`` without a word).
    """
    return LorentzManifold(c)


class RiemannianAdam(geoopt.optim.RiemannianAdam):
    """geoopt's Riemannian Adam, resuming bit for bit from a ``state_dict``.

    Parameters that are no ``geoopt.ManifoldParameter`` get plain Adam, so one optimizer serves a whole model.
    geoopt counts steps with an int that torch turns into a float32 tensor on loading, and from then on the bias
    correction is rounded differently.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for values in self.state.values():
            if "step" in values:
                values["step"] = int(values["step"])
