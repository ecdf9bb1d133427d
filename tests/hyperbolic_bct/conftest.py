"""Small models and few images: everything trains in a second or two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from zoo.data import MNIST5k
from zoo.hyperbolic_bct import HyperbolicBCT

Fit = Callable[..., Trainer]


@pytest.fixture(scope="session")
def data() -> MNIST5k:
    """320 training images of ten classes, five batches an epoch."""
    module = MNIST5k(train_per_class=32, val_per_class=10, test_per_class=10, batch_size=64)
    module.setup()
    return module


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train a module quietly on the CPU."""

    def run(module: HyperbolicBCT, data: MNIST5k, ckpt_path: str | None = None, **kwargs: Any) -> Trainer:
        options = {"max_epochs": 2, "accelerator": "cpu", "devices": 1, "logger": False, "log_every_n_steps": 2}
        options |= {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": tmp_path}
        options |= {"enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in kwargs.get("callbacks", []))}
        trainer = Trainer(**(options | kwargs))
        trainer.fit(module, datamodule=data, ckpt_path=ckpt_path, weights_only=True)
        return trainer

    return run


@pytest.fixture(scope="session")
def old_checkpoints(data: MNIST5k, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A generation 0 in each space."""
    folder = tmp_path_factory.mktemp("old")
    paths = {}
    for space, method in (("lorentz", "hbct"), ("cosine", "bct")):
        torch.manual_seed(0)
        module = HyperbolicBCT(encoder="mlp", embed_dim=12, method=method)
        trainer = Trainer(
            max_epochs=12,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, datamodule=data)
        paths[space] = str(folder / f"{space}.ckpt")
        trainer.save_checkpoint(paths[space])
    return paths
