"""The callback on modules that know nothing of the zoo, against models, checkpoints and saved galleries."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo.callbacks import BackwardCompatibility

from zoo.retrieval import GalleryIndex, p_com, p_up, retrieval_scores


class Plain(LightningModule):
    """A user's module: a linear embedding and no more than Lightning asks for."""

    def __init__(self, seed: int = 0, dim: int = 6) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Linear(4, dim)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0]).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...

    def test_step(self, batch: Any, batch_idx: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def points(n: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    y = torch.arange(n) % 4
    return torch.eye(4)[y] * 2 + torch.randn(n, 4, generator=generator), y


@pytest.fixture
def loader() -> DataLoader:
    return DataLoader(TensorDataset(*points()), batch_size=16)


def trainer(tmp_path: Path, callback: BackwardCompatibility, **kwargs: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[callback],
        **kwargs,
    )


@pytest.mark.filterwarnings("ignore:P_com is undefined")  # these random models make it so
def test_scores_are_those_of_the_functions(tmp_path: Path, loader: DataLoader) -> None:
    new, old, independent = Plain(1), Plain(2), Plain(3)
    callback = BackwardCompatibility(old_model=old, independent_model=independent)
    (metrics,) = trainer(tmp_path, callback).test(new, loader, verbose=False)
    x, y = points()

    def measure(query: nn.Module, gallery: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return retrieval_scores(query(x), gallery(x), y, y, exclude_self=True).as_dict()

    own, cross, before, free = (
        measure(new, new),
        measure(new, old),
        measure(old, old),
        measure(independent, independent),
    )
    for name in ("cmc1", "cmc5", "map"):
        assert metrics[f"compat/self_{name}"] == pytest.approx(own[name])
        assert metrics[f"compat/cross_{name}"] == pytest.approx(cross[name])
        assert metrics[f"compat/old_{name}"] == pytest.approx(before[name])
        assert metrics[f"compat/independent_{name}"] == pytest.approx(free[name])
        assert metrics[f"compat/p_up_{name}"] == pytest.approx(
            p_up(own[name], free[name]), abs=1e-6
        )  # logged as float32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = p_com(cross[name], before[name], free[name])
        assert metrics[f"compat/p_com_{name}"] == pytest.approx(expected, rel=1e-5, nan_ok=True)
        assert metrics[f"compat/satisfied_{name}"] == float(cross[name] > before[name])
    assert (tmp_path / "figures" / "compatibility.png").stat().st_size > 1000


def test_without_an_old_model_only_self(tmp_path: Path, loader: DataLoader) -> None:
    (metrics,) = trainer(tmp_path, BackwardCompatibility()).test(Plain(), loader, verbose=False)
    assert set(metrics) == {"compat/self_cmc1", "compat/self_cmc5", "compat/self_map"}
    assert not (tmp_path / "figures").exists()


def test_checkpoints_of_the_same_class(tmp_path: Path, loader: DataLoader) -> None:
    old = Plain(2)
    keeper = trainer(tmp_path, BackwardCompatibility())
    keeper.test(old, loader, verbose=False)
    keeper.save_checkpoint(tmp_path / "old.ckpt")
    by_path_callback = BackwardCompatibility(old_model=tmp_path / "old.ckpt")
    (by_path,) = trainer(tmp_path, by_path_callback).test(Plain(1), loader, verbose=False)
    (by_model,) = trainer(tmp_path, BackwardCompatibility(old_model=old)).test(Plain(1), loader, verbose=False)
    assert by_path == by_model


def test_saved_gallery(tmp_path: Path, loader: DataLoader) -> None:
    """The vectors that are in production, and nothing of the model that made them."""
    x, y = points()
    new, old = Plain(1), Plain(2)
    gallery = GalleryIndex("cosine", dim=6, dtype="float32")
    with torch.no_grad():
        gallery.add(old(x), labels=y)
        expected = retrieval_scores(new(x), old(x), y, y).map
    gallery.save(tmp_path / "gallery")
    callback = BackwardCompatibility(old_gallery=tmp_path / "gallery")
    (metrics,) = trainer(tmp_path, callback).test(new, loader, verbose=False)
    assert metrics["compat/cross_map"] == pytest.approx(expected)
    assert "compat/self_map" in metrics
    assert "compat/old_map" not in metrics


def test_gallery_without_labels_is_refused(tmp_path: Path, loader: DataLoader) -> None:
    gallery = GalleryIndex("cosine", dim=6)
    gallery.add(torch.randn(3, 6))
    with pytest.raises(ValueError, match="saved without labels"):
        trainer(tmp_path, BackwardCompatibility(old_gallery=gallery)).test(Plain(), loader, verbose=False)


def test_during_validation_every_second_epoch(tmp_path: Path, loader: DataLoader) -> None:
    rounds = []

    class Spy(BackwardCompatibility):
        def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
            super().on_validation_epoch_end(trainer, pl_module)
            rounds.append("compat/cross_map" in trainer.callback_metrics)

    run = trainer(tmp_path, Spy(old_model=Plain(2), every_n_epochs=2), max_epochs=2, log_every_n_steps=1)
    run.fit(Plain(1), loader, loader)
    assert rounds == [False, False, True]  # sanity check, first epoch, second epoch


def test_lorentz_space_and_named_method(tmp_path: Path) -> None:
    class Curved(Plain):
        space, curvature = "lorentz", 0.5

        def embed(self, x: Tensor) -> Tensor:
            return self(x) / 4

    x, y = points()
    module, old = Curved(1), Curved(2)
    dict_loader = DataLoader([{"image": a, "class": b} for a, b in zip(x, y, strict=True)], batch_size=16)
    callback = BackwardCompatibility(old_model=old, inputs="image", labels="class")
    (metrics,) = trainer(tmp_path, callback).test(module, dict_loader, verbose=False)
    with torch.no_grad():
        expected = retrieval_scores(module.embed(x), old.embed(x), y, y, space="lorentz", c=0.5, exclude_self=True).map
    assert metrics["compat/cross_map"] == pytest.approx(expected)


def test_models_are_evaluated_in_eval_mode_without_gradients(tmp_path: Path, loader: DataLoader) -> None:
    seen = []

    class Old(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, torch.is_grad_enabled()))
            return self.net(x)

    trainer(tmp_path, BackwardCompatibility(old_model=Old().train())).test(Plain(), loader, verbose=False)
    assert set(seen) == {(False, False)}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"every_n_epochs": -1}, "every_n_epochs: want an integer >= 0, got -1"),
        ({"ks": ()}, "ks: want integers >= 1"),
        ({"ks": (0,)}, "ks: want integers >= 1"),
    ],
)
def test_arguments_out_of_range(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BackwardCompatibility(**kwargs)


def test_what_cannot_be_measured_is_said(tmp_path: Path, loader: DataLoader) -> None:
    with pytest.raises(ValueError, match="has no item 'image'"):
        trainer(tmp_path, BackwardCompatibility(inputs="image")).test(Plain(), loader, verbose=False)
    with pytest.raises(FileNotFoundError, match=r"old_model: no checkpoint 'nope\.ckpt'"):
        trainer(tmp_path, BackwardCompatibility(old_model="nope.ckpt")).test(Plain(), loader, verbose=False)
    flat = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(ValueError, match=r"old_model must embed a batch as \(16, D\)"):
        trainer(tmp_path, BackwardCompatibility(old_model=flat)).test(Plain(), loader, verbose=False)
    with pytest.raises(ValueError, match="old"):
        trainer(tmp_path, BackwardCompatibility(old_model=Plain(2, dim=5))).test(Plain(), loader, verbose=False)
