"""The LightningModule: one generation of a backward-compatible embedding model."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics.classification import MulticlassAccuracy

from zoo.hyperbolic import LorentzMLR, LorentzPrototypes, RiemannianAdam
from zoo.hyperbolic import functional as H
from zoo.hyperbolic_bct.embedding import CHECKPOINT_KEY, CompatibleEncoder, Space, StoredEmbeddings
from zoo.hyperbolic_bct.heads import CosineHead, SimplexHead
from zoo.hyperbolic_bct.losses import CompatibilityLoss, Gathered, check_labels
from zoo.hyperbolic_bct.methods import METHODS, build_losses
from zoo.retrieval import GalleryIndex

MethodName = Literal[
    "independent",
    "l2",
    "bct",
    "bct_strong",
    "hot_refresh",
    "hoc",
    "advbct",
    "independent_hyperbolic",
    "hbct_no_entailment",
    "hbct",
    "influence_only",
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
        pretrained: Start from timm's weights, for a timm encoder.
        method: ``hbct``, one of its ablations, or a baseline; see :data:`zoo.hyperbolic_bct.METHODS`.
        old_model: The previous generation: a checkpoint of this class, a :class:`CompatibleEncoder`, or any module
            from inputs to vectors (B, D). It is frozen, and kept in the checkpoint: a resumed run needs no other file.
        old_embeddings: A saved :class:`~zoo.retrieval.GalleryIndex` to use instead of ``old_model`` when only the
            stored vectors are left; batches must then carry ids.
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

    fitted: Tensor

    def __init__(
        self,
        encoder: str | nn.Module = "cnn",
        num_classes: int = 10,
        embed_dim: int = 128,
        in_channels: int = 1,
        image_size: int = 14,
        pretrained: bool = False,
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
        check_choice("method", method, METHODS)
        check_choice("head", head, ("prototypes", "mlr", "linear"))
        check_range("num_classes", num_classes, num_classes >= 2, "an integer >= 2")
        check_range("lr", lr, 0 < lr < math.inf, "a positive number")
        check_range("weight_decay", weight_decay, 0 <= weight_decay < math.inf, "a number >= 0")
        check_range("warmup", warmup, 0 <= warmup < 1, "a number in [0, 1)")
        check_range("label_smoothing", label_smoothing, 0 <= label_smoothing < 1, "a number in [0, 1)")
        if old_model is not None and old_embeddings is not None:
            raise ValueError("old_embeddings: give the old model or its stored vectors, not both")
        self.space: Space = METHODS[method].space
        self.curvature = curvature
        self.independent_model = independent_model
        has_old = old_model is not None or old_embeddings is not None
        radius = clip_radius if clip_radius is not None else 3.0 if has_old else 1.0
        if isinstance(encoder, nn.Module):
            self.model = CompatibleEncoder(encoder, embed_dim, self.space, curvature, radius)
        else:
            self.model = CompatibleEncoder.from_spec(
                encoder, embed_dim, self.space, curvature, radius, in_channels, image_size, pretrained
            )

        self.old_model: nn.Module | None = None
        self._fit_old_scale = False
        old_radius = old_clip_radius
        if old_embeddings is not None:
            self.old_model, old_radius = self._load_stored(old_embeddings, old_radius)
        elif old_model is not None:
            self.old_model = self._load_old(old_model, old_clip_radius)
            old_radius = self.old_model.clip_radius
        if self.old_model is not None:
            self.old_model.requires_grad_(False).eval()

        given = {"align": align_weight, "entail": entail_weight, "influence": influence_weight}
        self.weights = {
            name: weight if (value := given.get(name, compat_weight)) is None else value
            for name, weight in ({**dict.fromkeys(given, 0.0), **METHODS[method].weights}).items()
            if self.space == "lorentz" or name not in given
        }
        for name, weight in self.weights.items():
            check_range(f"{name}_weight", weight, 0 <= weight < math.inf, "a number >= 0")
        # Built even without an old model, so that its arguments are checked in generation 0 as well.
        losses = build_losses(
            self.weights,
            num_classes=num_classes,
            embed_dim=embed_dim,
            curvature=curvature,
            old_clip_radius=old_radius,
            alignment=alignment,
            tau=tau,
            q_min=q_min,
            q_max=q_max,
            lam=lam,
            mask_same_class=mask_same_class,
            uncertainty=uncertainty,
            normalise_uncertainty=normalise_uncertainty,
            min_radius=min_radius,
            aperture_scale=aperture_scale,
        )
        self.losses = losses if has_old and compatible else nn.ModuleDict()
        if "entail" in self.losses and radius <= old_radius:
            raise ValueError(
                f"clip_radius must be larger than the old model's {old_radius:g}, got {radius:g}: a point no further "
                "from the origin than the old embedding is outside its entailment cone. Or set entail_weight=0"
            )
        self.head: nn.Module
        if "hoc" in self.losses:
            self.head = SimplexHead(embed_dim, num_classes)
        elif self.space == "cosine":
            self.head = CosineHead(embed_dim, num_classes)
        elif head == "prototypes":
            self.head = LorentzPrototypes(num_classes, embed_dim, curvature, manifold_parameters=manifold_parameters)
        elif head == "mlr":
            self.head = LorentzMLR(num_classes, embed_dim, curvature)
        else:
            self.head = nn.Linear(embed_dim, num_classes)
        self.register_buffer("fitted", torch.tensor(False))
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

        given_as_modules = {"encoder": encoder, "old_model": old_model}
        self.save_hyperparameters(ignore=[k for k, v in given_as_modules.items() if isinstance(v, nn.Module)])
        # A checkpoint must not need the old model's file: it rebuilds the old model from this, and holds its weights.
        self.hparams["old_model"] = self.old_model.spec if isinstance(self.old_model, CompatibleEncoder) else None

    # The old model

    def _load_old(self, old: str | Path | nn.Module | Mapping[str, Any], clip_radius: float) -> CompatibleEncoder:
        if isinstance(old, (str, Path)):
            old = CompatibleEncoder.from_checkpoint(old)
        elif isinstance(old, Mapping):
            old = CompatibleEncoder.from_spec(**old)
        if not isinstance(old, CompatibleEncoder):
            self._fit_old_scale = self.space == "lorentz"
            return CompatibleEncoder(old, self.model.embed_dim, self.space, self.curvature, clip_radius)
        if old.embed_dim != self.model.embed_dim:
            raise ValueError(f"embed_dim must be the old model's {old.embed_dim}, got {self.model.embed_dim}")
        if old.space != self.space:
            if self.space == "cosine":
                raise ValueError("old_model lives in hyperbolic space: this method needs a Euclidean one")
            rank_zero_warn(
                "The old model is Euclidean and gets lifted into hyperbolic space. Search there: lift the stored "
                "vectors in place with module.old_model.lift, without embedding anything again."
            )
            lifted = CompatibleEncoder(old, old.embed_dim, "lorentz", self.curvature, clip_radius)
            self._fit_old_scale = True
            return lifted
        if self.space == "lorentz" and old.curvature != self.curvature:
            raise ValueError(f"curvature must be the old model's {old.curvature:g}, got {self.curvature:g}")
        return copy.deepcopy(old)

    def _load_stored(self, path: str | Path, clip_radius: float) -> tuple[StoredEmbeddings, float]:
        c = self.curvature if self.space == "lorentz" else None
        gallery = GalleryIndex.load(path, space=self.space, dim=self.model.embed_dim, c=c)
        if gallery.ids.dtype.kind not in "iu":
            raise ValueError("old_embeddings: the gallery's ids must be integers, as the batches' are")
        stored = StoredEmbeddings(torch.from_numpy(gallery.ids), gallery.vectors())
        return stored, gallery.clip_radius or clip_radius

    def train(self, mode: bool = True) -> HyperbolicBCT:
        """Set the mode of everything but the old model, whose batch statistics must not move."""
        super().train(mode)
        if self.old_model is not None:
            self.old_model.eval()
        return self

    @torch.no_grad()
    def _embed_old(self, batch: Any) -> Tensor:
        if isinstance(self.old_model, StoredEmbeddings):
            if len(batch) < 3:
                raise ValueError("old_embeddings: batches must be (inputs, labels, ids)")
            return self.old_model(batch[2])
        assert self.old_model is not None
        return self.old_model(batch[0])

    @torch.no_grad()
    def on_fit_start(self) -> None:
        """Embed the training set once with the old model, for the statistics that the losses need."""
        if self.old_model is not None:
            # Lightning warns of modules in eval mode. Of these, the old model's, there is nothing to say.
            frozen = sum(1 for _ in self.old_model.modules())
            warnings.filterwarnings("ignore", rf"Found {frozen} module\(s\) in eval mode at the start of training")
        if not self.losses or self.fitted:
            return
        loader = plain_loader(self.trainer)
        if self._fit_old_scale and isinstance(self.old_model, CompatibleEncoder):
            features = [self.old_model.encoder(self._to_device(batch)[0]) for batch in loader]
            self.old_model.fit_scale(torch.cat(features))
        old, labels = [], []
        for batch in loader:
            batch = self._to_device(batch)
            old.append(self._embed_old(batch))
            labels.append(batch[1])
        embeddings, classes = torch.cat(old), torch.cat(labels)
        check_labels(classes, self.hparams["num_classes"])
        for loss in self.losses.values():
            cast(CompatibilityLoss, loss).fit(embeddings, classes)
        self.fitted.fill_(True)
        if self.space == "lorentz":
            self._warn_about_radii(embeddings)

    def _to_device(self, batch: Any) -> Any:
        return self.trainer.strategy.batch_to_device(batch, self.device)

    def _warn_about_radii(self, old: Tensor) -> None:
        radii = torch.linalg.vector_norm(old, dim=1)
        clip = getattr(self.old_model, "clip_radius", float(radii.max()))
        saturated = float((radii > 0.999 * clip).float().mean())
        if saturated > 0.9 and "align" in self.losses:
            rank_zero_warn(
                f"{saturated:.0%} of the old embeddings lie on the clip radius {clip:g}, so that their uncertainty "
                "tells nothing and all samples are weighted alike"
            )
        if "entail" in self.losses:
            widest = math.degrees(H.max_cone_angle(old, self.curvature, self.hparams["min_radius"]).median())
            if widest < 1:
                rank_zero_warn(
                    f"the old embeddings' cones are at most {widest:.2g} degrees wide (median), so that the entailment "
                    "loss can only pull outward; use a larger min_radius, or a smaller old clip radius"
                )

    # Steps

    def forward(self, inputs: Tensor) -> Tensor:
        """Embed inputs: :meth:`embed`."""
        return self.embed(inputs)

    def embed(self, inputs: Tensor) -> Tensor:
        """Embed inputs with the new model.

        Args:
            inputs: What the encoder takes, e.g. images (B, C, H, W).

        Returns:
            Embeddings (B, D): tangent vectors at the origin, or unit vectors for a cosine method.
        """
        return self.model(inputs)

    def _loss(self, batch: Any, batch_idx: int, stage: str) -> tuple[Tensor, Tensor]:
        """Total loss and logits of a batch; logs every part."""
        inputs, labels = batch[0], batch[1]
        if batch_idx == 0 or labels.device.type == "cpu":  # elsewhere every look at a value waits for the device
            check_labels(labels, self.hparams["num_classes"])
        new = self.embed(inputs)
        with torch.autocast(new.device.type, enabled=False):
            logits = self.head(new)
            parts = {"cls": F.cross_entropy(logits, labels, label_smoothing=self.hparams["label_smoothing"])}
        total = parts["cls"].new_zeros(()) if "hoc" in self.losses else parts["cls"]
        if self.losses:
            old = self._embed_old(batch)
            gathered = self._gather(new, old, labels) if self.training else None
            for name, loss in self.losses.items():
                parts[name] = loss(new, old, labels, gathered)
                total = total + self.weights[name] * parts[name]
            if self.training and self.space == "lorentz" and self._logs_this_step():
                self._log_geometry(new.detach(), old)
        if not self.training or self._logs_this_step():
            self.log_dict(
                {f"{stage}/loss": total, **{f"{stage}/loss_{name}": part for name, part in parts.items()}},
                batch_size=len(labels),
                sync_dist=not self.training,
            )
        return total, logits

    def _logs_this_step(self) -> bool:
        """Whether the loggers take this training step; for small models, logging in between costs a tenth of it."""
        return (self.global_step + 1) % self.trainer.log_every_n_steps == 0  # type: ignore[attr-defined]

    def _gather(self, new: Tensor, old: Tensor, labels: Tensor) -> Gathered | None:
        """The embeddings of all processes, new ones with gradients; None for a single process."""
        if self.trainer.world_size == 1:
            return None

        def gather(tensor: Tensor, sync_grads: bool = False) -> Tensor:
            return cast(Tensor, self.all_gather(tensor, sync_grads=sync_grads)).flatten(0, 1)

        return Gathered(gather(new, True), gather(old), gather(labels), offset=self.global_rank * len(labels))

    def _log_geometry(self, new: Tensor, old: Tensor) -> None:
        c, min_radius = self.curvature, self.hparams["min_radius"]
        radius_new = torch.linalg.vector_norm(new, dim=1)
        in_cone = H.exterior_angle(old, new, c) <= self.hparams["aperture_scale"] * H.half_aperture(old, c, min_radius)
        self.log_dict(
            {
                "geom/radius_old": torch.linalg.vector_norm(old, dim=1).mean(),
                "geom/radius_new": radius_new.mean(),
                "geom/uncertainty_old": H.uncertainty(old, c).mean(),
                "geom/uncertainty_new": H.uncertainty(new, c).mean(),
                "geom/clip_saturation": (radius_new > 0.999 * self.model.clip_radius).float().mean(),
                "geom/in_cone": in_cone.float().mean(),
                "geom/t_max_deg": H.max_cone_angle(old, c, min_radius).rad2deg().median(),
            }
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Classification, and compatibility with the old model."""
        return self._loss(batch, batch_idx, "train")[0]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the same losses, and the accuracy of the head."""
        self.val_accuracy(self._loss(batch, batch_idx, "val")[1], batch[1])
        self.log("val/acc", self.val_accuracy)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Log the accuracy of the head; retrieval is measured by the ``BackwardCompatibility`` callback."""
        self.test_accuracy(self.head(self.embed(batch[0])), batch[1])
        self.log("test/acc", self.test_accuracy)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Embeddings (B, D), their labels if there are any, and in hyperbolic space their uncertainty (B,)."""
        inputs, *more = batch if isinstance(batch, (tuple, list)) else (batch,)
        embedding = self.embed(inputs)
        result = {"embedding": embedding}
        if more:
            result["label"] = more[0]
        if len(more) > 1:
            result["ids"] = more[1]
        if self.space == "lorentz":
            clip = self.model.clip_radius
            result["uncertainty"] = H.uncertainty(embedding, self.curvature, self.hparams["uncertainty"], clip)
        return result

    # Training set-up

    def configure_optimizers(self) -> Any:
        """AdamW (RiemannianAdam with ``manifold_parameters``) and a one-cycle schedule over the whole training.

        Raises:
            ValueError: If the number of training steps is not known.
        """
        trained = [p for p in self.parameters() if p.requires_grad]
        decayed = {id(p) for p in self.model.encoder.parameters() if p.ndim > 1}
        groups = [
            {"params": [p for p in trained if id(p) in decayed], "weight_decay": self.hparams["weight_decay"]},
            {"params": [p for p in trained if id(p) not in decayed], "weight_decay": 0.0},
        ]
        lr = self.hparams["lr"]
        optimizer: torch.optim.Optimizer
        if self.hparams["manifold_parameters"]:
            optimizer = RiemannianAdam(groups, lr=lr)
        else:
            optimizer = torch.optim.AdamW(groups, lr=lr)
        steps = self.trainer.estimated_stepping_batches
        if math.isinf(steps):
            raise ValueError("max_epochs or max_steps must be set: the schedule spans the whole training")
        schedule = OneCycle(optimizer, max_lr=lr, total_steps=max(2, int(steps)), pct_start=self.hparams["warmup"])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # Checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what rebuilds the encoder alone; leave the old model out if asked to."""
        checkpoint[CHECKPOINT_KEY] = self.model.spec
        if not self.hparams["save_old"]:
            drop(checkpoint["state_dict"], "old_model.")

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the old model from the checkpoint, or keep the one given if the checkpoint has none.

        A module built without an old model ignores what belongs to it: it can embed, but not train on.
        """
        state = checkpoint["state_dict"]
        if self.old_model is None:
            drop(state, "old_model.", "losses.")
        elif not any(key.startswith("old_model.") for key in state):
            state |= {f"old_model.{k}": v for k, v in self.old_model.state_dict().items()}


class OneCycle(torch.optim.lr_scheduler.OneCycleLR):
    """torch's one-cycle schedule, which a run that goes on with more epochs stretches over all of them."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the position from ``state_dict``, but not the length."""
        length = {name: getattr(self, name) for name in ("total_steps", "_schedule_phases")}
        super().load_state_dict({**state_dict, **length})


def drop(state: dict[str, Any], *prefixes: str) -> None:
    """Remove the entries whose name begins with one of the prefixes."""
    for key in [key for key in state if key.startswith(prefixes)]:
        del state[key]


def plain_loader(trainer: Trainer) -> DataLoader[Any]:
    """The training set in order, once, without shuffling: every process sees all of it.

    A dataset that can only be iterated is taken through its own loader.

    Raises:
        ValueError: If there are several training loaders.
    """
    trainer.fit_loop.setup_data()
    loader = trainer.train_dataloader
    if not isinstance(loader, DataLoader):
        raise ValueError(f"HyperbolicBCT needs one training DataLoader, got {type(loader).__name__}")
    if isinstance(loader.dataset, IterableDataset):
        return loader
    return DataLoader(
        loader.dataset,
        batch_size=loader.batch_size or 128,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        generator=torch.Generator(),  # else the loader draws from the global one
    )


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def check_range(name: str, value: float, ok: bool, want: str) -> None:
    """Raise ValueError naming an argument that is out of its range."""
    if not ok:
        raise ValueError(f"{name} must be {want}, got {value}")
