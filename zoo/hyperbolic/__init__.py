"""Hyperbolic geometry that is exact in float32: functions, layers, and a geoopt manifold that resumes.

``zoo.hyperbolic.functional`` is the geometry in plain functions. Importing geoopt takes a while, so
``lorentz_manifold``, ``LorentzManifold`` and ``RiemannianAdam`` load it when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.hyperbolic import functional
from zoo.hyperbolic.layers import LorentzLift, LorentzMLR, LorentzPrototypes

if TYPE_CHECKING:
    from zoo.hyperbolic.manifold import LorentzManifold, RiemannianAdam, lorentz_manifold

__all__ = [
    "LorentzLift",
    "LorentzMLR",
    "LorentzManifold",
    "LorentzPrototypes",
    "RiemannianAdam",
    "functional",
    "lorentz_manifold",
]


def __getattr__(name: str) -> Any:
    if name in ("LorentzManifold", "RiemannianAdam", "lorentz_manifold"):
        from zoo.hyperbolic import manifold

        return getattr(manifold, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
