"""Classifier heads that are not hyperbolic."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
