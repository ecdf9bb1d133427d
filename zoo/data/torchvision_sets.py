"""CIFAR-10, CIFAR-100 and Tiny-ImageNet from a folder on disk, as torchvision reads them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.images import ImageDataModule, ImageDataset, Pixels, Splits, check, share, stratified_split
from zoo.data.randomness import BatchKey


class PhotoDataModule(ImageDataModule):
    """Base of the sets of colour photos with fixed training and test images.

    Validation images are cut from the training images. In training, photos are shifted by up to an eighth of
    their native size and mirrored. All are normalised by the set's mean and standard deviation.

    Args:
        root: Folder that holds the data set's own folder.
        download: Download what is missing to ``root``.
        size: Height and width to resize to, e.g. 224 for a ViT; None keeps the native size.
        val_fraction: Share of each class of the training images for validation, in [0, 1); 0 for none.
        train_fraction: Share of each class of the rest to train on, in (0, 1]. Less is a subset of more.
        augment: Augment in training.
        batch_size: Images a batch, on each process.
        num_workers: Loading processes.
        classes: Keep the first ``n`` classes, or these; None keeps all. Labels keep their numbers.
        seed: Fixes the split. The order of training follows ``seed_everything``, or this without it.
        drop_last: Leave out the last training batch if it is not full.

    Raises:
        ValueError: If an argument is out of its range.
    """

    title: ClassVar[str]
    full_classes: ClassVar[int]
    native_size: ClassVar[int]
    mean: ClassVar[tuple[float, float, float]]
    std: ClassVar[tuple[float, float, float]]

    def __init__(
        self,
        root: str = "data",
        download: bool = False,
        size: int | None = None,
        val_fraction: float = 0.1,
        train_fraction: float = 1.0,
        augment: bool = True,
        batch_size: int = 128,
        num_workers: int = 0,
        classes: int | list[int] | None = None,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        size = self.native_size if size is None else size
        check("size", size, size >= 8, "an integer >= 8, or None for the native size")
        check("val_fraction", val_fraction, 0 <= val_fraction < 1, "a number from 0 to below 1")
        check("train_fraction", train_fraction, 0 < train_fraction <= 1, "a number above 0, at most 1")
        super().__init__(
            num_classes=self.full_classes,
            image_shape=(3, size, size),
            batch_size=batch_size,
            num_workers=num_workers,
            classes=classes,
            seed=seed,
            drop_last=drop_last,
        )
        self.save_hyperparameters(logger=False)
        self.root = Path(root)
        self.download = download
        self.val_fraction = val_fraction
        self.train_fraction = train_fraction
        self.augment = augment

    @abstractmethod
    def read(self, train: bool) -> tuple[Pixels, Tensor, Sequence[str]]:
        """The training or the test images.

        Returns:
            Pixels, uint8 and ``(M, 3, H, W)`` when indexed; classes, int64 ``(M,)``; names of the classes.

        Raises:
            FileNotFoundError: If they are not in ``root``.
        """

    def load(self) -> Splits:
        """Read the images and cut validation and training images from the training set by class.

        Raises:
            FileNotFoundError: If the data are not in ``root``.
        """
        pixels, labels, names = self.read(train=True)
        test_pixels, test_labels, _ = self.read(train=False)
        self.class_names = tuple(names)

        def sizes(count: int) -> list[int]:
            val = share(count, self.val_fraction)
            return [val, share(count - val, self.train_fraction)]

        val, train = stratified_split(labels, sizes, self.seed)
        padding = self.native_size // 8 if self.augment else None
        transform = Photo(self.mean, self.std, self.image_shape[-1], padding)
        return Splits(
            train=ImageDataset(pixels, train, labels[train], transform),
            val=ImageDataset(pixels, val, labels[val], transform) if len(val) else None,
            test=ImageDataset(test_pixels, torch.arange(len(test_labels)), test_labels, transform),
        )

    def missing(self, detail: object) -> FileNotFoundError:
        """The error for data that are not there."""
        return FileNotFoundError(
            f"{self.title} is not (or not whole) in {self.root.resolve()}: {detail}. Give the folder it is in "
            "(root, --data.root DIR), or let it be downloaded (download=True, --data.download true)."
        )


class CIFAR10(PhotoDataModule):
    """CIFAR-10: 50,000 training and 10,000 test photos of 32 x 32 pixels, 10 classes.

    Read by ``torchvision.datasets.CIFAR10``; ``root`` is the folder with ``cifar-10-batches-py/``.
    Arguments and errors as for :class:`PhotoDataModule`.
    """

    title = "CIFAR-10"
    full_classes = 10
    native_size = 32
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)

    def prepare_data(self) -> None:
        """Download, on one process of each machine, if asked to."""
        if self.download:
            for train in (True, False):
                self._torchvision_class()(str(self.root), train=train, download=True)

    def read(self, train: bool) -> tuple[Tensor, Tensor, Sequence[str]]:
        """The training or the test images, in memory.

        Raises:
            FileNotFoundError: If they are not in ``root``, or damaged.
        """
        try:
            data = self._torchvision_class()(str(self.root), train=train, download=False)
        except RuntimeError as error:
            raise self.missing(str(error).split(".")[0]) from error
        pixels = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
        return pixels, torch.tensor(data.targets), data.classes

    @classmethod
    def _torchvision_class(cls) -> type:
        from torchvision import datasets

        return getattr(datasets, cls.__name__)


class CIFAR100(CIFAR10):
    """CIFAR-100: 50,000 training and 10,000 test photos of 32 x 32 pixels, 100 classes.

    Read by ``torchvision.datasets.CIFAR100``; ``root`` is the folder with ``cifar-100-python/``.
    Arguments and errors as for :class:`PhotoDataModule`.
    """

    title = "CIFAR-100"
    full_classes = 100
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)


class TinyImageNet(PhotoDataModule):
    """Tiny-ImageNet: 100,000 training photos of 64 x 64 pixels, 200 classes.

    The 10,000 images of its ``val/`` are the test images here, since its own test labels are not public.
    Images are read from disk batch by batch, so give it workers. ``root`` is the folder with
    ``tiny-imagenet-200/``. Arguments and errors as for :class:`PhotoDataModule`.
    """

    title = "Tiny-ImageNet"
    full_classes = 200
    native_size = 64
    mean = (0.4802, 0.4481, 0.3975)
    std = (0.2770, 0.2691, 0.2821)

    folder = "tiny-imagenet-200"
    url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    md5 = "90528d7ca1a48142e341f4ef8d21d0de"

    def prepare_data(self) -> None:
        """Download, on one process of each machine, if asked to."""
        if self.download and not (self.root / self.folder / "train").is_dir():
            from torchvision.datasets.utils import download_and_extract_archive

            download_and_extract_archive(self.url, str(self.root), md5=self.md5)

    def read(self, train: bool) -> tuple[ImageFiles, Tensor, Sequence[str]]:
        """The paths of the training or the test images.

        Raises:
            FileNotFoundError: If they are not in ``root``.
        """
        base = self.root / self.folder
        try:
            wnids = sorted((base / "wnids.txt").read_text().split())
            words = dict(line.split("\t", 1) for line in (base / "words.txt").read_text().splitlines())
            files = list(self._train_files(base, wnids) if train else self._val_files(base, wnids))
        except OSError as error:
            raise self.missing(error) from error
        paths, labels = zip(*files, strict=True)
        return ImageFiles(paths), torch.tensor(labels), [words[wnid].split(",")[0] for wnid in wnids]

    @staticmethod
    def _train_files(base: Path, wnids: list[str]) -> list[tuple[Path, int]]:
        return [
            (path, label)
            for label, wnid in enumerate(wnids)
            for path in sorted((base / "train" / wnid / "images").iterdir())
        ]

    @staticmethod
    def _val_files(base: Path, wnids: list[str]) -> list[tuple[Path, int]]:
        rows = [line.split("\t") for line in (base / "val" / "val_annotations.txt").read_text().splitlines()]
        return [(base / "val" / "images" / name, wnids.index(wnid)) for name, wnid, *_ in rows]


class ImageFiles:
    """Image files of one size, decoded when they are asked for.

    Args:
        paths: The files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        # One array: thousands of Path objects would be copied to every worker.
        self.paths = np.array([str(path) for path in paths])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, places: Tensor) -> Tensor:
        """RGB, uint8 ``(B, 3, H, W)``."""
        from PIL import Image

        images = [np.asarray(Image.open(path).convert("RGB")) for path in self.paths[places.numpy()]]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


class Photo:
    """Normalised photos; in training a random crop of the padded photo, mirrored half of the time.

    Args:
        mean: Mean of each channel, on the scale [0, 1].
        std: Standard deviation of each channel.
        size: Height and width to resize to.
        padding: Pixels of black around a training photo before the crop; None does not augment.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], size: int, padding: int | None = None) -> None:
        self.mean = torch.tensor(mean).view(1, -1, 1, 1)
        self.std = torch.tensor(std).view(1, -1, 1, 1)
        self.size = size
        self.padding = padding

    def __call__(self, pixels: Tensor, key: BatchKey | None) -> Tensor:
        """From uint8 ``(B, 3, H, W)`` to float32 ``(B, 3, size, size)``."""
        if key is not None and self.padding is not None:
            pixels = crop_and_mirror(pixels, key.for_samples(3), self.padding)
        # Normalising commutes with resizing, and is cheaper on the small side.
        images = (pixels.float() / 255 - self.mean) / self.std
        native = images.shape[-1]
        if native == self.size:
            return images
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=self.size < native)


def crop_and_mirror(pixels: Tensor, random: Tensor, padding: int) -> Tensor:
    """Shift each image by up to ``padding`` pixels each way, filling with 0, and mirror half of them.

    Args:
        pixels: Images ``(B, C, H, W)``.
        random: Uniform numbers in [0, 1) for down, right and mirror, ``(B, 3)``.
        padding: Largest shift.

    Returns:
        Images of the same shape and dtype.
    """
    count, _, height, width = pixels.shape
    padded = F.pad(pixels, (padding,) * 4)
    corner = (random[:, :2] * (2 * padding + 1)).long()
    rows = corner[:, 0:1] + torch.arange(height)
    columns = torch.arange(width).expand(count, width)
    columns = corner[:, 1:2] + torch.where(random[:, 2:3] < 0.5, columns.flip(1), columns)
    batch = torch.arange(count)[:, None, None]
    # Indexing around the channel dimension moves it to the end.
    return padded[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
