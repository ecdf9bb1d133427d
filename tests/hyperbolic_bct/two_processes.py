"""Trains for a few steps on one or two processes and saves the weights: run by test_ddp.py."""

import sys
import warnings

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from zoo.data import MNIST5k
from zoo.hyperbolic_bct import HyperbolicBCT

warnings.simplefilter("ignore")


def encoder(seed: int) -> nn.Module:
    """Without batch norm, whose statistics are per process."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(196, 16), nn.ReLU(), nn.Linear(16, 12))


def main(devices: int, method: str, path: str) -> None:
    data = MNIST5k(train_per_class=32, val_per_class=10, test_per_class=10, batch_size=64 // devices)
    old, new = encoder(0), encoder(1)
    torch.manual_seed(2)
    module = HyperbolicBCT(encoder=new, embed_dim=12, method=method, old_model=old)
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=devices,
        strategy=DDPStrategy(process_group_backend="gloo") if devices > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, datamodule=data)
    if trainer.is_global_zero:
        torch.save(module.state_dict(), path)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
