"""A project that was written without the zoo: what the command line is tried on."""

import time

import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Points(LightningDataModule):
    """Sixty-four points in the plane, labelled by their side of a line."""

    def __init__(self, batch_size: int = 8, seed: int = 0):
        super().__init__()
        points = torch.randn(64, 2, generator=torch.Generator().manual_seed(seed))
        self.data = TensorDataset(points, (points.sum(1) > 0).long())
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.data, batch_size=self.batch_size, generator=torch.Generator())

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Toy(LightningModule):
    """A linear classifier.

    Args:
        lr: Learning rate.
        old: Checkpoint of an earlier model.
        slow: Seconds that a step takes.
        fail_at: Step at which training raises.
    """

    def __init__(self, lr: float = 0.1, old: str | None = None, slow: float = 0.0, fail_at: int = -1):
        super().__init__()
        if lr <= 0:
            raise ValueError(f"lr must be > 0, got {lr}")
        self.save_hyperparameters()
        self.net = nn.Linear(2, 2)
        if old is not None:
            self.net.load_state_dict(
                {k.removeprefix("net."): v for k, v in torch.load(old, weights_only=True)["state_dict"].items()}
            )

    def loss(self, batch: tuple[Tensor, Tensor], name: str) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log(f"{name}/loss", loss, sync_dist=name != "train")
        return loss

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        if self.global_step == self.hparams.fail_at:
            raise RuntimeError("the toy broke")
        time.sleep(self.hparams.slow)
        return self.loss(batch, "train")

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.loss(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.loss(batch, "test")

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


class Other(Toy):
    """Another model with the same weights."""


class Note(Callback):
    """Says that it was plugged in."""

    def __init__(self, text: str = "noted"):
        self.text = text

    def on_fit_start(self, trainer, pl_module):
        print(self.text)
