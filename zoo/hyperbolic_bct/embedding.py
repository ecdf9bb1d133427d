"""The part of a model that is deployed: images to vectors that can be stored and searched."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.hyperbolic import LorentzLift
from zoo.hyperbolic_bct.encoders import build_encoder

Space = Literal["lorentz", "cosine"]


class CompatibleEncoder(nn.Module):
    """An encoder and the space that its embeddings live in.

    In the Lorentz space an embedding is the tangent vector at the origin, clipped to a radius: its length is the
    distance to the origin. In the cosine space it is a unit vector.

    Args:
        encoder: Maps inputs to features (B, D).
        embed_dim: Dimension D.
        space: ``lorentz`` or ``cosine``.
        curvature: Curvature magnitude c of the Lorentz space.
        clip_radius: Largest length of an embedding in the Lorentz space.
    """

    def __init__(
        self,
        encoder: nn.Module,
        embed_dim: int,
        space: Space = "lorentz",
        curvature: float = 1.0,
        clip_radius: float = 1.0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.embed_dim = embed_dim
        self.space: Space = space
        self.curvature = curvature
        self.clip_radius = clip_radius
        self.lift = LorentzLift(embed_dim, c=curvature, clip_radius=clip_radius) if space == "lorentz" else None
        self.spec: dict[str, Any] | None = None
        """Arguments of :meth:`from_spec` that rebuild this encoder; None if it was built from an nn.Module."""

    @classmethod
    def from_spec(
        cls,
        encoder: str,
        embed_dim: int,
        space: Space,
        curvature: float,
        clip_radius: float,
        in_channels: int,
        image_size: int,
    ) -> CompatibleEncoder:
        """Build an untrained one from plain values, as a checkpoint keeps them."""
        spec = {k: v for k, v in locals().items() if k != "cls"}
        built = build_encoder(encoder, embed_dim, in_channels, image_size)
        model = cls(built, embed_dim, space, curvature, clip_radius)
        model.spec = spec
        return model

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed inputs, as float32 whatever the precision of the encoder.

        Args:
            inputs: What the encoder takes, e.g. images (B, C, H, W).

        Returns:
            Embeddings (B, D).
        """
        features = self.encoder(inputs)
        with torch.autocast(features.device.type, enabled=False):
            features = features if features.dtype == torch.float64 else features.float()
            return F.normalize(features, dim=-1) if self.lift is None else self.lift(features)

    @torch.no_grad()
    def fit_scale(self, features: Tensor, quantile: float = 0.95) -> None:
        """Scale features that were trained elsewhere so that this share of them lies within the clip radius.

        Args:
            features: Encoder outputs (N, D).
            quantile: Share of the features whose length should stay below the clip radius.
        """
        if self.lift is None:
            raise ValueError("fit_scale needs a Lorentz space")
        length = torch.linalg.vector_norm(features.float(), dim=-1).quantile(quantile).clamp_min(1e-6)
        self.lift.log_scale.fill_(torch.log(self.clip_radius / length))
