"""The part of a model that is deployed: inputs to vectors that can be stored and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.hyperbolic import LorentzLift
from zoo.hyperbolic_bct.encoders import build_encoder

Space = Literal["lorentz", "cosine"]

CHECKPOINT_KEY = "compatible_encoder"
"""Where a checkpoint of :class:`~zoo.hyperbolic_bct.HyperbolicBCT` keeps the ``spec`` of its encoder."""


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

    Attributes:
        spec: Arguments of :meth:`from_spec` that rebuild this encoder; None if it was built from an nn.Module.
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
        self.encoder: nn.Module = encoder
        self.embed_dim = embed_dim
        self.space: Space = space
        self.curvature = curvature
        self.clip_radius = clip_radius
        self.lift = LorentzLift(embed_dim, curvature, clip_radius) if space == "lorentz" else None
        self.spec: dict[str, Any] | None = None

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
        pretrained: bool = False,
    ) -> CompatibleEncoder:
        """Build one from plain values; a checkpoint keeps all of them but ``pretrained``."""
        built = build_encoder(encoder, embed_dim, in_channels, image_size, pretrained)
        model = cls(built, embed_dim, space, curvature, clip_radius)
        model.spec = {
            "encoder": encoder,
            "embed_dim": embed_dim,
            "space": space,
            "curvature": curvature,
            "clip_radius": clip_radius,
            "in_channels": in_channels,
            "image_size": image_size,
        }
        return model

    @classmethod
    def from_checkpoint(cls, path: str | Path) -> CompatibleEncoder:
        """Load the encoder of a :class:`~zoo.hyperbolic_bct.HyperbolicBCT` checkpoint, on the CPU, in eval mode.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it is no checkpoint of that class, or its encoder was given as an nn.Module.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"old_model: no checkpoint {str(path)!r}")
        try:
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
            spec, state = checkpoint[CHECKPOINT_KEY], checkpoint["state_dict"]
        except Exception as error:
            raise ValueError(f"old_model: {str(path)!r} is no readable HyperbolicBCT checkpoint") from error
        if spec is None:
            raise ValueError(
                f"old_model: the encoder of {str(path)!r} was an nn.Module; give the CompatibleEncoder itself"
            )
        model = cls.from_spec(**spec)
        model.load_state_dict({k.removeprefix("model."): v for k, v in state.items() if k.startswith("model.")})
        return model.eval()

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

        Raises:
            ValueError: In a cosine space, where there is no scale.
        """
        if self.lift is None:
            raise ValueError("fit_scale needs a Lorentz space")
        lengths = torch.linalg.vector_norm(features.float(), dim=-1)
        scale = self.clip_radius / lengths.quantile(quantile).clamp_min(1e-6)
        self.lift.log_scale.fill_(scale.log())


class StoredEmbeddings(nn.Module):
    """Vectors that an old model left behind, looked up by id.

    Args:
        ids: Integers (N,), all different.
        vectors: Embeddings (N, D).
    """

    ids: Tensor
    vectors: Tensor

    def __init__(self, ids: Tensor, vectors: Tensor) -> None:
        super().__init__()
        order = ids.argsort()
        # Not in the checkpoint: it is as large as the gallery, and has a file of its own.
        self.register_buffer("ids", ids[order], persistent=False)
        self.register_buffer("vectors", vectors[order], persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors (B, D) of ids (B,).

        Raises:
            ValueError: Names the first id that is not stored.
        """
        rows = torch.searchsorted(self.ids, ids).clamp_max(len(self.ids) - 1)
        missing = self.ids[rows] != ids
        if missing.any():
            raise ValueError(f"old_embeddings: no vector with id {int(ids[missing][0])}")
        return self.vectors[rows]
