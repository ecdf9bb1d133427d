"""After HBCT: Learning Along the Arrow of Time (Bui et al., ICML 2025, arXiv 2506.05826).

Hyperbolic backward-compatible training: queries embedded by a new model search a gallery that an old one embedded.
"""

from zoo.hyperbolic_bct.baselines import AdvBCTLoss, BCTLoss, HOCLoss, HotRefreshLoss, L2Loss, procrustes
from zoo.hyperbolic_bct.embedding import CompatibleEncoder, StoredEmbeddings
from zoo.hyperbolic_bct.encoders import build_encoder
from zoo.hyperbolic_bct.losses import (
    CompatibilityLoss,
    EntailmentConeLoss,
    Gathered,
    InfluenceLoss,
    RobustContrastiveLoss,
)
from zoo.hyperbolic_bct.methods import METHODS, Method
from zoo.hyperbolic_bct.module import HyperbolicBCT

__all__ = [
    "METHODS",
    "AdvBCTLoss",
    "BCTLoss",
    "CompatibilityLoss",
    "CompatibleEncoder",
    "EntailmentConeLoss",
    "Gathered",
    "HOCLoss",
    "HotRefreshLoss",
    "HyperbolicBCT",
    "InfluenceLoss",
    "L2Loss",
    "Method",
    "RobustContrastiveLoss",
    "StoredEmbeddings",
    "build_encoder",
    "procrustes",
]
