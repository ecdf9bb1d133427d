"""Image data used by more than one paper, as LightningDataModules that resume exactly.

Batches are ``(images float32 (B, C, H, W), labels int64 (B,))``. Importing this package loads neither
torch nor Lightning; each data set's own package is first imported when the data are read.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoo.data.digits import Digits as Digits
    from zoo.data.emoji import OpenMoji as OpenMoji
    from zoo.data.images import ImageDataModule as ImageDataModule
    from zoo.data.images import ImageDataset as ImageDataset
    from zoo.data.loading import EpochSampler as EpochSampler
    from zoo.data.loading import ResumableDataLoader as ResumableDataLoader
    from zoo.data.mnist import MNIST5k as MNIST5k
    from zoo.data.torchvision_sets import CIFAR10 as CIFAR10
    from zoo.data.torchvision_sets import CIFAR100 as CIFAR100
    from zoo.data.torchvision_sets import TinyImageNet as TinyImageNet

_HOME = {
    "CIFAR10": "torchvision_sets",
    "CIFAR100": "torchvision_sets",
    "Digits": "digits",
    "EpochSampler": "loading",
    "ImageDataModule": "images",
    "ImageDataset": "images",
    "MNIST5k": "mnist",
    "OpenMoji": "emoji",
    "ResumableDataLoader": "loading",
    "TinyImageNet": "torchvision_sets",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
