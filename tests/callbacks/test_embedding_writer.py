"""What predict returns ends up in a file, each sample once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from safetensors.torch import load_file
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from zoo.callbacks import EmbeddingWriter
from zoo.callbacks.embedding_writer import _join

DATA = torch.arange(20.0).view(10, 2)


class Predicts(LightningModule):
    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.result = result or (lambda x: x)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        return self.result(batch[0])


def predict(tmp_path: Path, module: LightningModule, writer: EmbeddingWriter, loaders: Any = None) -> None:
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=tmp_path,
        callbacks=[writer],
    )
    loaders = loaders or DataLoader(TensorDataset(DATA), batch_size=4)
    trainer.predict(module, loaders, return_predictions=False)


def test_a_tensor_is_stored_with_the_places_of_its_samples(tmp_path: Path) -> None:
    predict(tmp_path, Predicts(), EmbeddingWriter())
    written = load_file(tmp_path / "embeddings.safetensors")
    assert torch.equal(written["embedding"], DATA)
    assert torch.equal(written["ids"], torch.arange(10))
    assert [p.name for p in tmp_path.iterdir()] == ["embeddings.safetensors"]


def test_dict_with_own_ids_and_own_path(tmp_path: Path) -> None:
    def result(x: Tensor) -> dict[str, Tensor]:
        return {"vector": x, "score": x[:, 0], "ids": 100 - x[:, 0].long()}

    predict(tmp_path, Predicts(result), EmbeddingWriter(tmp_path / "deep" / "out.safetensors"))
    written = load_file(tmp_path / "deep" / "out.safetensors")
    assert torch.equal(written["ids"], torch.arange(82, 101, 2))
    assert torch.equal(written["vector"], DATA.flip(0))


def test_predicting_twice_starts_anew(tmp_path: Path) -> None:
    writer = EmbeddingWriter()
    for _ in range(2):
        predict(tmp_path, Predicts(), writer)
    assert len(load_file(tmp_path / "embeddings.safetensors")["ids"]) == 10


def test_several_loaders_get_a_file_each(tmp_path: Path) -> None:
    loaders = [DataLoader(TensorDataset(DATA[:4]), 2), DataLoader(TensorDataset(DATA[4:]), 2)]
    predict(tmp_path, Predicts(), EmbeddingWriter(), loaders)
    assert torch.equal(load_file(tmp_path / "embeddings_0.safetensors")["embedding"], DATA[:4])
    assert torch.equal(load_file(tmp_path / "embeddings_1.safetensors")["embedding"], DATA[4:])


def test_parts_of_several_processes_join_in_order_each_sample_once() -> None:
    first = {"ids": torch.tensor([0, 2, 4]), "embedding": torch.tensor([0.0, 2.0, 4.0])}
    second = {"ids": torch.tensor([1, 3, 0]), "embedding": torch.tensor([1.0, 3.0, 0.0])}  # 0 fills up
    joined = _join([first, second])
    assert joined["ids"].tolist() == [0, 1, 2, 3, 4]
    assert joined["embedding"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_what_is_no_tensor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a tensor or a dict of tensors, got \{'embedding': 'list'\}"):
        predict(tmp_path, Predicts(lambda x: [x]), EmbeddingWriter())
