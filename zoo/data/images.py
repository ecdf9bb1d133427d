"""What all image data share: the dataset that serves whole batches, and the LightningDataModule."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.overrides.distributed import UnrepeatedDistributedSampler
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.data.loading import Draw, EpochSampler, ResumableDataLoader, as_is
from zoo.data.randomness import BatchKey, Stream, keyed_rng

Batch = tuple[Tensor, Tensor]


class Pixels(Protocol):
    """Stored images: a tensor ``(M, C, H, W)``, or anything that gives such a tensor for places ``(B,)``."""

    def __getitem__(self, places: Tensor, /) -> Tensor: ...


class Transform(Protocol):
    """From stored pixels to a batch of images."""

    def __call__(self, pixels: Tensor, key: BatchKey | None) -> Tensor:
        """Float32 images of pixels ``(B, C, H, W)``.

        ``key`` gives the random numbers of a training batch's augmentation; in evaluation it is None.
        """
        ...


class ImageDataset(Dataset[Batch]):
    """Labelled images, served a batch at a time.

    An index is an ``int`` (the image as in evaluation) or a :class:`~zoo.data.loading.Draw` (augmented for
    that epoch and step), so one dataset serves both.

    Args:
        pixels: All stored images.
        rows: Places of this dataset's ``N`` images in ``pixels``, int64 ``(N,)``.
        labels: Classes of these images, int64 ``(N,)``.
        transform: From stored pixels to a batch of images.
    """

    def __init__(self, pixels: Pixels, rows: Tensor, labels: Tensor, transform: Transform) -> None:
        self.pixels = pixels
        self.rows = rows
        self.labels = labels
        self.transform = transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int | Draw) -> Batch:
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int | Draw]) -> Batch:
        """The batch ``(images float32 (B, C, H, W), labels int64 (B,))``."""
        places = [i.sample if isinstance(i, Draw) else i for i in indices]
        first, key = indices[0], None
        if isinstance(first, Draw):
            key = BatchKey(first.seed, first.epoch, first.step, places, len(self))
        return self.transform(self.pixels[self.rows[places]], key), self.labels[places]

    def of_classes(self, classes: Sequence[int]) -> ImageDataset:
        """The images of these classes, in the same order."""
        kept = torch.isin(self.labels, torch.tensor(classes))
        return ImageDataset(self.pixels, self.rows[kept], self.labels[kept], self.transform)


class Splits(NamedTuple):
    """The images of the three splits; ``val`` may be None."""

    train: ImageDataset
    val: ImageDataset | None
    test: ImageDataset


class ImageDataModule(LightningDataModule, ABC):
    """Base of the image data: arguments, splits and loaders that resume exactly.

    A subclass reads its data in :meth:`load`.

    Args:
        num_classes: Number of classes of the full set.
        image_shape: ``(C, H, W)`` of an image.
        class_names: Their names, if known before the data are read.
        batch_size: Images a batch, on each process.
        num_workers: Loading processes; 0 loads in the training process.
        classes: Keep the first ``n`` classes, or these; None keeps all. Labels keep their numbers.
        seed: Fixes the splits. The order of training follows ``seed_everything``, or this without it.
        drop_last: Leave out the last training batch if it is not full.

    Attributes:
        num_classes: Number of classes of the full set, whatever ``classes`` keeps.
        image_shape: ``(C, H, W)``.
        class_names: Names of the classes of the full set; for data on disk, empty before ``setup``.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        image_shape: tuple[int, int, int],
        class_names: Sequence[str] = (),
        batch_size: int = 128,
        num_workers: int = 0,
        classes: int | Sequence[int] | None = None,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        super().__init__()
        check("batch_size", batch_size, batch_size >= 1, "an integer >= 1")
        check("num_workers", num_workers, num_workers >= 0, "an integer >= 0")
        check("seed", seed, 0 <= seed < 2**32, "an integer from 0 to 2**32 - 1")
        self.num_classes = num_classes
        self.image_shape = image_shape
        self.class_names = tuple(class_names)
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.classes = _kept_classes(classes, num_classes)
        self.seed = seed
        self.drop_last = drop_last
        self._splits: Splits | None = None
        self._train_loader: ResumableDataLoader[Batch] | None = None
        self._train_position: dict[str, int] | None = None

    @abstractmethod
    def load(self) -> Splits:
        """Read the data, of all classes."""

    def setup(self, stage: str | None = None) -> None:
        """Read the data, once.

        Raises:
            ValueError: If a split has no image of the kept classes.
        """
        if self._splits is not None:
            return
        splits = self.load()
        if self.classes is not None:
            train, val, test = splits
            splits = Splits(
                train.of_classes(self.classes), val and val.of_classes(self.classes), test.of_classes(self.classes)
            )
        if not len(splits.train) or not len(splits.test):
            raise ValueError(f"classes: no image of the classes {self.classes} in the training or test images")
        self._splits = splits

    def dataset(self, split: Literal["train", "val", "test"]) -> ImageDataset:
        """The images of a split.

        Raises:
            RuntimeError: Before ``setup``.
            ValueError: If there is no such split.
        """
        if self._splits is None:
            raise RuntimeError(f"{type(self).__name__} has not read its data yet: call setup() first")
        dataset = getattr(self._splits, split, None) if split in Splits._fields else None
        if dataset is None:
            have = [name for name in Splits._fields if getattr(self._splits, name) is not None]
            raise ValueError(f"split: want one of {have}, got {split!r}")
        return dataset

    def train_dataloader(self) -> ResumableDataLoader[Batch]:
        """Shuffled, augmented training batches.

        Raises:
            ValueError: If there are fewer training images than one batch of every process.
        """
        data, processes = self.dataset("train"), self._processes()
        whole = self.batch_size * processes["num_replicas"]
        if self.drop_last and len(data) < whole:
            raise ValueError(
                f"batch_size: want at most the {len(data)} training images over all processes, got "
                f"{self.batch_size} x {processes['num_replicas']}; a smaller one, or drop_last=False"
            )
        seed = int(os.environ.get("PL_GLOBAL_SEED", self.seed))
        sampler = EpochSampler(data, self.batch_size, seed=seed, drop_last=self.drop_last, **processes)
        self._train_loader = ResumableDataLoader(
            data,
            batch_size=self.batch_size,
            sampler=sampler,
            drop_last=self.drop_last,
            trained=self._batches_trained if self.trainer is not None else None,
            **self._loading(),
        )
        if self._train_position is not None:
            self._train_loader.load_state_dict(self._train_position)
            self._train_position = None
        return self._train_loader

    def state_dict(self) -> dict[str, Any]:
        """Where training is in its epoch.

        Lightning keeps that as well, in the state of the loader; but when a module asks for
        ``trainer.estimated_stepping_batches`` in ``configure_optimizers``, Lightning 2.6 makes the loader before it
        reads the checkpoint, and forgets to restore it. The state of a data module is restored earlier.
        """
        return {} if self._train_loader is None else {"train_position": self._train_loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Make the next training loader go on where ``state_dict`` says."""
        self._train_position = state_dict.get("train_position")

    def val_dataloader(self) -> DataLoader[Batch] | list[DataLoader[Batch]]:
        """The validation images once each; an empty list if there are none."""
        if self._splits is not None and not self._splits.val:
            return []
        return self.eval_dataloader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test images once each."""
        return self.eval_dataloader("test")

    def predict_dataloader(self) -> DataLoader[Batch]:
        """The test images once each."""
        return self.eval_dataloader("test")

    def eval_dataloader(self, split: Literal["train", "val", "test"]) -> DataLoader[Batch]:
        """The images of a split once each, in a fixed order, without augmentation.

        With several processes every image is on exactly one of them (none is repeated to fill up), and all
        processes run the same number of batches. The last batch may be smaller.

        Raises:
            RuntimeError: Before ``setup``.
            ValueError: If there is no such split, or it has fewer images than there are processes.
        """
        data, processes = self.dataset(split), self._processes()
        world = processes["num_replicas"]
        if len(data) < world:
            raise ValueError(f"devices: want at most the {len(data)} images of {split!r}, got {world} processes")
        sampler = UnrepeatedDistributedSampler(data, shuffle=False, **processes)
        size = even_batch_size(len(data), self.batch_size, world)
        return DataLoader(data, batch_size=size, sampler=sampler, **self._loading())

    def _processes(self) -> dict[str, int]:
        """Number of processes that split the data, and which this one is."""
        trainer = self.trainer
        return (trainer and trainer.distributed_sampler_kwargs) or {"num_replicas": 1, "rank": 0}

    def _batches_trained(self) -> int:
        assert self.trainer is not None
        progress = self.trainer.fit_loop.epoch_loop.batch_progress.current
        return progress.processed  # type: ignore[attr-defined]

    def _loading(self) -> dict[str, Any]:
        return {
            "collate_fn": as_is,
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
            "pin_memory": torch.cuda.is_available(),
            # A DataLoader draws a seed for its workers; from the global generator unless it has its own.
            "generator": torch.Generator(),
        }


def stratified_split(labels: Tensor, sizes: Callable[[int], Sequence[int]], seed: int) -> list[Tensor]:
    """Split images at random, class by class.

    Within a class the parts are cut one after the other from one permutation, so a part does not change
    when a later one grows or shrinks.

    Args:
        labels: Classes, int64 ``(M,)``.
        sizes: Gives the sizes of the parts for a class of ``n`` images, at most ``n`` together.
        seed: Fixes the split.

    Returns:
        For each part, the places of its images in mixed order, int64.
    """
    parts: list[list[np.ndarray]] = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero().flatten().numpy()
        members = keyed_rng(Stream.SPLIT, seed, label + 1).permutation(members)
        cuts = np.cumsum(sizes(len(members)))
        parts.append(np.split(members, cuts)[: len(cuts)])
    mix = keyed_rng(Stream.SPLIT, seed, 0)
    return [torch.from_numpy(mix.permutation(np.concatenate(part))) for part in zip(*parts, strict=True)]


def share(count: int, fraction: float) -> int:
    """``fraction`` of ``count``, rounded, but at least 1 unless the fraction is 0."""
    return max(round(count * fraction), 1) if fraction > 0 else 0


def even_batch_size(count: int, batch_size: int, world: int) -> int:
    """The smallest batch size from ``batch_size`` on with which all processes run equally many batches.

    Without repeated images the processes' shares differ by one, and one process may need a batch more. That
    would hang a module that communicates in its step.
    """
    small, large = max(count // world, 1), -(-count // world)
    while -(-small // batch_size) != -(-large // batch_size):
        batch_size += 1
    return batch_size


def check(name: str, value: object, ok: bool, want: str) -> None:
    """Refuse a bad argument by name.

    Raises:
        ValueError: Unless ``ok``.
    """
    if not ok:
        raise ValueError(f"{name}: want {want}, got {value!r}")


def _kept_classes(classes: int | Sequence[int] | None, num_classes: int) -> tuple[int, ...] | None:
    if classes is None:
        return None
    if isinstance(classes, int):
        check("classes", classes, 1 <= classes <= num_classes, f"a number of classes from 1 to {num_classes}")
        return tuple(range(classes))
    kept = tuple(classes)
    ok = 0 < len(kept) == len(set(kept)) and all(0 <= label < num_classes for label in kept)
    check("classes", classes, ok, f"different labels from 0 to {num_classes - 1}, at least one")
    return kept
