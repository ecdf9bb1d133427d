"""The methods of the paper's comparison: which space, and which losses beside the classification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from zoo.hyperbolic.functional import UncertaintyKind
from zoo.hyperbolic_bct.baselines import AdvBCTLoss, BCTLoss, HOCLoss, HotRefreshLoss, L2Loss
from zoo.hyperbolic_bct.embedding import Space
from zoo.hyperbolic_bct.losses import Alignment, EntailmentConeLoss, InfluenceLoss, RobustContrastiveLoss


@dataclass(frozen=True)
class Method:
    """One way to train a compatible model.

    Attributes:
        space: The space of the embeddings.
        weights: Weight of each loss beside the classification.
    """

    space: Space
    weights: Mapping[str, float] = field(default_factory=dict)


METHODS: Mapping[str, Method] = {
    "independent": Method("cosine"),
    "l2": Method("cosine", {"l2": 5.0}),
    "bct": Method("cosine", {"bct": 1.0}),
    "bct_strong": Method("cosine", {"bct": 3.0}),  # the weight that did best on validation images here
    "hot_refresh": Method("cosine", {"hot_refresh": 1.0}),
    "hoc": Method("cosine", {"hoc": 1.0}),
    "advbct": Method("cosine", {"advbct": 1.0}),
    "independent_hyperbolic": Method("lorentz"),
    "hbct_no_entailment": Method("lorentz", {"align": 0.6}),
    "hbct": Method("lorentz", {"align": 0.6, "entail": 0.3}),
    # Extensions of ours, with the influence loss; no part of the paper's method.
    "influence_only": Method("lorentz", {"influence": 1.0}),
    "hbct_influence": Method("lorentz", {"align": 0.2, "entail": 0.3, "influence": 1.0}),
}
"""The paper's method, its ablations and its baselines by name."""


def build_losses(
    names: Mapping[str, float],
    *,
    num_classes: int,
    embed_dim: int,
    curvature: float,
    old_clip_radius: float,
    alignment: Alignment,
    tau: float,
    q_min: float,
    q_max: float,
    lam: float,
    mask_same_class: bool,
    uncertainty: UncertaintyKind,
    normalise_uncertainty: bool,
    min_radius: float,
    aperture_scale: float,
) -> nn.ModuleDict:
    """The losses that have a weight above 0, unfitted, by name.

    Raises:
        ValueError: If an argument is out of its range, also of a loss that is not used.
    """
    losses = {
        "align": RobustContrastiveLoss(
            alignment,
            curvature,
            tau,
            q_min,
            q_max,
            lam,
            mask_same_class,
            uncertainty,
            old_clip_radius,
            normalise_uncertainty,
        ),
        "entail": EntailmentConeLoss(curvature, min_radius, aperture_scale),
        "influence": InfluenceLoss(num_classes, embed_dim, curvature),
        "l2": L2Loss(),
        "bct": BCTLoss(num_classes, embed_dim),
        "hot_refresh": HotRefreshLoss(),
        "hoc": HOCLoss(embed_dim),
        "advbct": AdvBCTLoss(num_classes, embed_dim),
    }
    return nn.ModuleDict({name: losses[name] for name, weight in names.items() if weight > 0})
