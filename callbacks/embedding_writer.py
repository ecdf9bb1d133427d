"""Keep what ``predict`` returns: sample ids and tensors, in one safetensors file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from safetensors.torch import load_file, save_file
from torch import Tensor


class EmbeddingWriter(BasePredictionWriter):
    """Write the tensors that ``predict_step`` returns into one safetensors file, with the id of every sample.

    ``predict_step`` returns a tensor (B, ...), stored as ``embedding``, or a dict of such tensors, stored under their
    names. ``ids`` (N,) are the places of the samples in their dataset, unless the dict holds its own ``ids``. With
    several predict loaders, file names end in the loader's number. With several processes each sample is in the file
    once, in the order of the ids.

    Args:
        path: The file. None: ``embeddings.safetensors`` in the trainer's default root folder.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        super().__init__(write_interval="batch")
        self.path = None if path is None else Path(path)
        self._rows: dict[int, list[dict[str, Tensor]]] = {}

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with nothing."""
        self._rows = {}

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Take the tensors of one batch to the CPU.

        Raises:
            TypeError: If ``predict_step`` returned neither a tensor nor a dict of tensors.
            ValueError: If the ids of the batch are not known.
        """
        rows = prediction if isinstance(prediction, Mapping) else {"embedding": prediction}
        wrong = {k: type(v).__name__ for k, v in rows.items() if not isinstance(v, Tensor)}
        if wrong:
            raise TypeError(f"EmbeddingWriter: predict_step must return a tensor or a dict of tensors, got {wrong}")
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in rows.items()}
        if "ids" not in kept:
            if not batch_indices:
                raise ValueError(
                    "EmbeddingWriter: the loader tells no sample ids; return them from predict_step as 'ids'"
                )
            kept["ids"] = torch.tensor(batch_indices, dtype=torch.int64)
        self._rows.setdefault(dataloader_idx, []).append(kept)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file, or one per loader. Every process writes its part, the first one joins them."""
        target = self.path or Path(trainer.default_root_dir, "embeddings.safetensors")
        target.parent.mkdir(parents=True, exist_ok=True)
        for number, rows in self._rows.items():
            part = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
            save_file(part, _part(target, number, trainer.global_rank))
        trainer.strategy.barrier("embeddings are written")
        if trainer.is_global_zero:
            for number in self._rows:
                parts = [_part(target, number, rank) for rank in range(trainer.world_size)]
                path = target if len(self._rows) == 1 else target.with_stem(f"{target.stem}_{number}")
                save_file(_join([load_file(p) for p in parts if p.is_file()]), path)
                for file in parts:
                    file.unlink(missing_ok=True)
        self._rows = {}


def _part(target: Path, number: int, rank: int) -> Path:
    return target.with_name(f".{target.name}.{number}.{rank}")


def _join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate, in the order of the ids, each id once."""
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    ids, order = whole["ids"].sort(stable=True)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[1:] = ids[1:] != ids[:-1]
    return {name: tensor[order[first]].contiguous() for name, tensor in whole.items()}
