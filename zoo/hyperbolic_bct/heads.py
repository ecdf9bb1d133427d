"""Classifier heads that are not hyperbolic."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.hyperbolic_bct.baselines import simplex_vertices


class CosineHead(nn.Module):
    """Scaled cosine to one direction per class: logits sigma <z, w_k / ||w_k||> of unit vectors z.

    Args:
        embed_dim: Dimension D.
        num_classes: Number of classes K.
        scale: Initial sigma; it is learned.
    """

    def __init__(self, embed_dim: int, num_classes: int, scale: float = 16.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, embed_dim) / math.sqrt(embed_dim))
        self.log_scale = nn.Parameter(torch.tensor(math.log(scale)))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map unit vectors (B, D) to logits (B, K)."""
        return self.log_scale.exp() * embeddings @ F.normalize(self.weight, dim=-1).T


class SimplexHead(nn.Module):
    """Scaled cosine to the fixed vertices of a regular simplex: the classifier of HOC (arXiv 2405.02581).

    Args:
        embed_dim: Dimension D.
        num_classes: Number of classes K, at most D + 1.
        scale: Factor on the cosines.

    Raises:
        ValueError: If there are more classes than vertices.
    """

    vertices: Tensor

    def __init__(self, embed_dim: int, num_classes: int, scale: float = 10.0) -> None:
        super().__init__()
        if num_classes > embed_dim + 1:
            raise ValueError(f"num_classes must be at most embed_dim + 1 = {embed_dim + 1} for HOC, got {num_classes}")
        self.scale = scale
        self.register_buffer("vertices", simplex_vertices(embed_dim)[:num_classes], persistent=False)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Map unit vectors (B, D) to logits (B, K)."""
        return self.scale * embeddings @ self.vertices.T
