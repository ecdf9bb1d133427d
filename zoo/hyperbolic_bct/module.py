"""The LightningModule: one generation of a backward-compatible embedding model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics.classification import MulticlassAccuracy

from zoo.hyperbolic import LorentzMLR, LorentzPrototypes, RiemannianAdam
from zoo.hyperbolic import functional as H
from zoo.hyperbolic_bct.embedding import CompatibleEncoder
from zoo.hyperbolic_bct.heads import CosineHead
from zoo.hyperbolic_bct.methods import METHODS, build_terms

MethodName = Literal[
    "independent",
    "l2",
    "bct",
    "hot_refresh",
    "hoc",
    "advbct",
    "independent_hyperbolic",
    "hbct_no_entailment",
    "hbct_influence_only",
    "hbct",
    "hbct_influence",
]


class HyperbolicBCT(LightningModule):
    """Train an embedding model whose queries can search a gallery that an older model embedded.

    After HBCT (Bui et al., ICML 2025, arXiv 2506.05826): the embedding lives in hyperbolic space; the new one is
    pulled into the entailment cone of the old one and aligned with it by a contrastive loss that trusts an old
    embedding less the nearer it is to the origin. Every choice that is rebuilt from the paper's stated ingredients is
    an argument. Without an old model this trains generation 0.

    Batches are ``(inputs, labels)`` or ``(inputs, labels, ids)``.

    Args:
        encoder: ``cnn``, ``mlp``, ``resnet18_cifar``, a timm model name, or a module from inputs to features (B, D).
        num_classes: Number of classes K; labels are 0 to K - 1.
        embed_dim: Embedding dimension D.
        in_channels: Channels of the images, for an encoder by name.
        image_size: Height and width of the images in pixels, for an encoder by name.
        method: ``hbct``, one of its ablations, or a baseline; see :data:`zoo.hyperbolic_bct.METHODS`.
        old_model: The previous generation: a checkpoint of this class, a :class:`CompatibleEncoder`, or any module from
            inputs to vectors (B, D). It is frozen, and kept in the checkpoint so that a resumed run needs no other file.
        old_embeddings: A saved :class:`~zoo.retrieval.GalleryIndex` to use instead of ``old_model`` when only the stored
            vectors are left; batches must then carry ids.
        compatible: False trains with the classification loss alone and keeps the old model for evaluation only: the
            independent model that P_up and P_com compare with.
        independent_model: Checkpoint of that independent model; only reports use it.
        curvature: Curvature magnitude c of the hyperbolic space, the same for every generation.
        clip_radius: Largest distance to the origin. None: 1 without an old model, else 3. A new generation needs a
            larger one than the old: no point at the same distance lies in the old one's cone.
        old_clip_radius: Clip radius for an old model that was not trained by this class.
        head: Hyperbolic classifier: ``prototypes`` (distances to class prototypes), ``mlr`` (Lorentz multinomial
            regression) or ``linear`` (on the tangent vector). Cosine methods use a cosine classifier.
        manifold_parameters: Keep the prototypes as ``geoopt.ManifoldParameter`` and train with RiemannianAdam.
        compat_weight: Weight of a Euclidean baseline's loss. None: the method's own.
        align_weight: Weight of the alignment loss w_a. None: the method's own.
        entail_weight: Weight of the entailment loss w_e. None: the method's own.
        influence_weight: Weight of the influence loss w_i, an extension of ours. None: the method's own (0 for hbct).
        alignment: Form of the alignment loss.
        tau: Temperature of the alignment loss.
        q_min: Exponent q of a certain old embedding.
        q_max: Exponent q of an uncertain old embedding.
        lam: Weight lambda of RINCE's denominator.
        mask_same_class: Leave other samples of the anchor's class out of its negatives.
        uncertainty: ``poincare``: 1 - tanh(sqrt(c) r / 2); ``clip``: 1 - r / clip radius.
        normalise_uncertainty: Stretch the 5 % to 95 % range over the training set to [0, 1].
        min_radius: Cone constant K; larger is wider.
        aperture_scale: Factor eta on the half-aperture.
        lr: Peak learning rate of the one-cycle schedule.
        weight_decay: Weight decay (decoupled), on weight matrices only.
        label_smoothing: Label smoothing of the classification loss.
        warmup: Share of the steps in which the learning rate rises.
        save_old: Keep the old model in the checkpoint.

    Raises:
        ValueError: If an argument is out of its range, or the old model does not fit the new one.
        FileNotFoundError: If ``old_model`` is a path and nothing is there.
    """

    def __init__(
        self,
        encoder: str | nn.Module = "cnn",
        num_classes: int = 10,
        embed_dim: int = 128,
        in_channels: int = 1,
        image_size: int = 14,
        method: MethodName = "hbct",
        old_model: str | Path | nn.Module | dict[str, Any] | None = None,
        old_embeddings: str | Path | None = None,
        compatible: bool = True,
        independent_model: str | Path | None = None,
        curvature: float = 1.0,
        clip_radius: float | None = None,
        old_clip_radius: float = 1.0,
        head: Literal["prototypes", "mlr", "linear"] = "prototypes",
        manifold_parameters: bool = False,
        compat_weight: float | None = None,
        align_weight: float | None = None,
        entail_weight: float | None = None,
        influence_weight: float | None = None,
        alignment: Literal["gce", "rince", "infonce", "weighted", "distance"] = "gce",
        tau: float = 0.2,
        q_min: float = 0.01,
        q_max: float = 0.5,
        lam: float = 0.01,
        mask_same_class: bool = True,
        uncertainty: Literal["poincare", "clip"] = "poincare",
        normalise_uncertainty: bool = True,
        min_radius: float = 0.4,
        aperture_scale: float = 1.0,
        lr: float = 4e-3,
        weight_decay: float = 0.0,
        label_smoothing: float = 0.0,
        warmup: float = 0.3,
        save_old: bool = True,
    ) -> None:
        super().__init__()
