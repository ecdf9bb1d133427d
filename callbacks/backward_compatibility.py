"""Does the new model search the old model's gallery? Measured while any Lightning module validates or tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils.data.distributed import DistributedSampler

from zoo.retrieval import CompatibilityScore, CrossModelRetrieval, GalleryIndex
from zoo.retrieval.figures import compatibility_figure
from zoo.tracking import log_figure

Embed = Callable[[Any], Tensor]
T = TypeVar("T")


class BackwardCompatibility(Callback):
    """Log how well a module's queries search its own gallery and an older model's.

    The test (or validation) set is query set and gallery at once; no sample finds itself. Logged under ``compat/``,
    for ``cmc1``, ``cmc5`` and ``map``: ``self_`` (new queries, new gallery), ``cross_`` (new queries, old gallery),
    ``old_`` (old queries, old gallery), ``satisfied_`` (1 if cross beats old), and with an independent model
    ``independent_``, ``p_up_`` (what compatibility cost) and ``p_com_`` (share of the possible gain that was reached
    without re-embedding; 1 means that re-embedding would gain nothing). Definitions: arXiv 2506.05826.

    It needs a method that embeds a batch, by default ``embed`` or else ``forward``, and nothing else of the module.

    Args:
        old_model: The model that embedded the gallery: a module from inputs to vectors, or a checkpoint of the same
            LightningModule class. None: the module's own ``old_model``, if it has one; else only ``self_`` is logged.
        old_gallery: Instead of an old model, a saved :class:`~zoo.retrieval.GalleryIndex` with labels: the new queries
            search it as it is. ``old_`` and what follows from it then need ``old_model`` as well.
        independent_model: A model that was trained without regard to the old one, as for ``old_model``. None: the
            module's own ``independent_model``, if it has one.
        embed: Name of the module's method from inputs to embeddings (B, D).
        space: ``cosine``, ``euclidean`` or ``lorentz``. None: the module's ``space``, else ``cosine``.
        curvature: Curvature magnitude c of the Lorentz space. None: the module's ``curvature``.
        ks: The k of CMC@k.
        inputs: Key of the inputs in a batch (tuple position or dict key).
        labels: Key of the integer labels in a batch.
        every_n_epochs: Measure in every n-th validation; 0 only in ``test``.
        figure: Save and log a figure at the end of ``test``.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        old_model: str | Path | nn.Module | None = None,
        old_gallery: str | Path | GalleryIndex | None = None,
        independent_model: str | Path | nn.Module | None = None,
        embed: str = "embed",
        space: Literal["cosine", "euclidean", "lorentz"] | None = None,
        curvature: float | None = None,
        ks: Sequence[int] = (1, 5),
        inputs: int | str = 0,
        labels: int | str = 1,
        every_n_epochs: int = 0,
        figure: bool = True,
    ) -> None:
        if every_n_epochs < 0:
            raise ValueError(f"every_n_epochs: want an integer >= 0, got {every_n_epochs}")
        if not ks or min(ks) < 1:
            raise ValueError(f"ks: want integers >= 1, got {tuple(ks)}")
        self.old_model = old_model
        self.old_gallery = old_gallery
        self.independent_model = independent_model
        self.embed = embed
        self.space = space
        self.curvature = curvature
        self.ks = tuple(ks)
        self.inputs = inputs
        self.labels = labels
        self.every_n_epochs = every_n_epochs
        self.figure = figure
        self._round: _Round | None = None
        self._loaded: dict[str, nn.Module] = {}

    # Rounds: one pass over the evaluation set

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a round, if this validation is to be measured."""
        due = self.every_n_epochs and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        if due and not trainer.sanity_checking:
            self._begin(trainer, pl_module)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a round."""
        self._begin(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Embed a batch with each model."""
        self._take(trainer, batch, trainer.val_dataloaders)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *_: Any
    ) -> None:
        """Embed a batch with each model."""
        self._take(trainer, batch, trainer.test_dataloaders)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the scores."""
        self._finish(pl_module)

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the scores and the figure."""
        scores = self._finish(pl_module)
        if self.figure and "cross_map" in scores:
            log_figure(trainer, "compatibility", compatibility_figure(scores))

    def on_exception(self, *_: Any) -> None:
        """Forget a round that was cut short."""
        self._round = None

    def _begin(self, trainer: Trainer, pl_module: LightningModule) -> None:
        space = self.space or getattr(pl_module, "space", None) or "cosine"
        curvature = self.curvature or getattr(pl_module, "curvature", None)
        c = float(curvature) if space == "lorentz" and curvature is not None else None
        gallery = self.old_gallery
        if isinstance(gallery, (str, Path)):
            gallery = GalleryIndex.load(gallery)
        self._round = _Round(
            new=self._embedder(pl_module),
            old=self._other(pl_module, "old_model"),
            independent=self._other(pl_module, "independent_model"),
            gallery=gallery,
            space=space,
            c=c,
            ks=self.ks,
            device=pl_module.device,
        )

    def _take(self, trainer: Trainer, batch: Any, loaders: Any) -> None:
        if self._round is None:
            return
        inputs, labels = _item(batch, self.inputs), _item(batch, self.labels)
        ids = self._round.ids(trainer, loaders, len(labels))
        with torch.no_grad(), trainer.precision_plugin.forward_context():
            self._round.update(inputs, labels, ids)

    def _finish(self, pl_module: LightningModule) -> dict[str, float]:
        if self._round is None:
            return {}
        scores, self._round = self._round.compute(), None
        # Every process has computed the same from all samples; Lightning warns unless it may average them.
        pl_module.log_dict({f"compat/{name}": value for name, value in scores.items()}, sync_dist=True)
        return {name: float(value) for name, value in scores.items()}

    # Models

    def _embedder(self, model: nn.Module) -> Embed:
        method = getattr(model, self.embed, None)
        return method if callable(method) else model.forward

    def _other(self, pl_module: LightningModule, name: str) -> Embed | None:
        """The old or the independent model, loaded once, in eval mode, on the module's device."""
        given = getattr(self, name)
        model = getattr(pl_module, name, None) if given is None else given
        if model is None:
            return None
        if not isinstance(model, nn.Module):
            path = str(model)
            if path not in self._loaded:
                if not Path(path).is_file():
                    raise FileNotFoundError(f"{name}: no checkpoint {path!r}")
                self._loaded[path] = type(pl_module).load_from_checkpoint(path, map_location="cpu")
            model = self._loaded[path]
        return self._embedder(model.to(pl_module.device).eval())


class _Round:
    """The models and metrics of one pass over the evaluation set."""

    def __init__(
        self,
        new: Embed,
        old: Embed | None,
        independent: Embed | None,
        gallery: GalleryIndex | None,
        space: Any,
        c: float | None,
        ks: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.new, self.old, self.independent, self.gallery = new, old, independent, gallery
        self.seen = 0

        def retrieval(exclude_self: bool = True) -> CrossModelRetrieval:
            return CrossModelRetrieval(space=space, c=c, ks=ks, exclude_self=exclude_self).to(device)

        self.self_score = retrieval()
        self.independent_score = None if independent is None else retrieval()
        self.upgrade = None if old is None else CompatibilityScore(space=space, c=c, ks=ks).to(device)
        self.stored = None
        if gallery is not None:
            if gallery.labels is None:
                raise ValueError(
                    "old_gallery: the gallery was saved without labels, which tell what a query should find"
                )
            self.stored = retrieval(exclude_self=False)
            self.stored.update(gallery.vectors().to(device), gallery.labels.to(device), stream="gallery")

    def ids(self, trainer: Trainer, loader: Any, size: int) -> Tensor | None:
        """Places of the samples in the dataset, if the sampler tells; a sampler that pads repeats some of them."""
        sampler = getattr(loader, "sampler", None)
        start, self.seen = self.seen, self.seen + size
        if isinstance(sampler, DistributedSampler) and not sampler.shuffle:
            places = sampler.rank + sampler.num_replicas * torch.arange(start, start + size)
            return places % len(sampler.dataset)  # type: ignore[arg-type]
        if trainer.world_size > 1 and start == 0:
            rank_zero_warn(
                "BackwardCompatibility: the sampler does not tell which samples it repeats; they may count twice"
            )
        return None

    def update(self, inputs: Any, labels: Tensor, ids: Tensor | None) -> None:
        new = _vectors("the module", self.new(inputs), labels)
        if self.upgrade is not None and self.old is not None:
            self.upgrade.update(new, _vectors("old_model", self.old(inputs), labels), labels, ids)
        else:
            self.self_score.update(new, labels, ids)
        if self.independent_score is not None and self.independent is not None:
            self.independent_score.update(_vectors("independent_model", self.independent(inputs), labels), labels, ids)
        if self.stored is not None:
            self.stored.update(new, labels, ids, stream="query")

    def compute(self) -> dict[str, Tensor]:
        scores: dict[str, Tensor] = {}
        if self.independent_score is not None:
            scores |= {f"independent_{name}": value for name, value in self.independent_score.compute().items()}
        if self.upgrade is not None:
            self.upgrade.independent = {k.removeprefix("independent_"): float(v) for k, v in scores.items()}
            scores |= self.upgrade.compute()
        else:
            scores |= {f"self_{name}": value for name, value in self.self_score.compute().items()}
        if self.stored is not None:
            scores |= {f"cross_{name}": value for name, value in self.stored.compute().items()}
        return scores


def _vectors(who: str, embeddings: Any, labels: Tensor) -> Tensor:
    if not isinstance(embeddings, Tensor) or embeddings.ndim != 2 or len(embeddings) != len(labels):
        came = tuple(embeddings.shape) if isinstance(embeddings, Tensor) else type(embeddings).__name__
        raise ValueError(f"BackwardCompatibility: {who} must embed a batch as ({len(labels)}, D), got {came}")
    return embeddings.detach()


def _item(batch: Any, key: int | str) -> Any:
    try:
        return batch[key]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"BackwardCompatibility: the batch ({type(batch).__name__}) has no item {key!r}") from error
