"""Two processes under Lightning's DDP see what one sees. Run as a script, this file is one of the two."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from zoo.data import MNIST5k

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]

SAVED = 6
"""The step after which the checkpoint is saved: in the middle of the second epoch of 4."""


class Recorder(LightningModule):
    """Writes down the images of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(49, 10)
        self.seen: dict[str, list[list[int]]] = {"train": [], "val": [], "test": []}

    def _note(self, stage: str, images: Tensor) -> None:
        self.seen[stage].append(sorted(zlib.crc32(image.numpy().tobytes()) for image in images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        self._note("train", batch[0])
        return torch.nn.functional.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._note("val", batch[0])

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._note("test", batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Save(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == SAVED:
            trainer.save_checkpoint(self.path)


def run(folder: Path, devices: int, **kwargs: Any) -> dict[str, list[list[int]]]:
    """Train, resume from the middle of an epoch, test; the batches of this process."""
    data = MNIST5k(
        train_per_class=9, val_per_class=3, test_per_class=5, size=7, batch_size=6 // devices, classes=3, **kwargs
    )
    path = folder / f"{devices}.ckpt"

    def trainer(*callbacks: Callback) -> Trainer:
        return Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices=devices,
            strategy="ddp" if devices > 1 else "auto",
            logger=False,
            callbacks=list(callbacks),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
        )

    model, resumed = Recorder(), Recorder()
    trainer(Save(path)).fit(model, data)
    trainer().fit(resumed, data, ckpt_path=path)
    trainer().test(model, data, verbose=False)
    return {**model.seen, "resumed": resumed.seen["train"]}


def test_two_processes_see_what_one_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    subprocess.run([sys.executable, __file__, str(tmp_path)], check=True, timeout=240, capture_output=True)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    one = run(tmp_path, devices=1)

    # 27 training images: 4 batches of 6 an epoch.
    assert len(one["train"]) == 8
    for stage in ("train", "resumed"):
        assert [sorted(a + b) for a, b in zip(*(rank[stage] for rank in ranks), strict=True)] == one[stage]
    assert one["resumed"] == one["train"][SAVED:]
    # 9 and 15 evaluation images: each once, in as many batches on both processes.
    for stage, epochs, count in (("val", 2, 9), ("test", 1, 15)):
        seen = sorted(image for rank in ranks for batch in rank[stage] for image in batch)
        assert seen == sorted(image for batch in one[stage] for image in batch)
        assert len(seen) == epochs * count
        assert len(ranks[0][stage]) == len(ranks[1][stage])


if __name__ == "__main__":
    target = Path(sys.argv[1])
    batches = run(target, devices=2, num_workers=1)
    (target / f"{os.environ.get('LOCAL_RANK', '0')}.json").write_text(json.dumps(batches))
