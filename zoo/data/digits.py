"""scikit-learn's digits: 1,797 grey images of 8 x 8, the smoke test."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.data.images import ImageDataModule, ImageDataset, Splits, check, share, stratified_split
from zoo.data.randomness import BatchKey


class Digits(ImageDataModule):
    """Handwritten digits, 8 x 8 pixels in [0, 1], about 180 of each class, not augmented.

    From ``sklearn.datasets.load_digits`` (BSD-3), which needs no network.

    Args:
        val_fraction: Share of each class for validation, in (0, 1).
        test_fraction: Share of each class for testing, in (0, 1).
        batch_size: Images a batch, on each process.
        num_workers: Loading processes; the data are in memory, so 0 is the fastest.
        classes: Keep the first ``n`` classes, or these; None keeps all. Labels keep their numbers.
        seed: Fixes the split. The order of training follows ``seed_everything``, or this without it.
        drop_last: Leave out the last training batch if it is not full.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        val_fraction: float = 0.15,
        test_fraction: float = 0.25,
        batch_size: int = 128,
        num_workers: int = 0,
        classes: int | list[int] | None = None,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        super().__init__(
            num_classes=10,
            image_shape=(1, 8, 8),
            class_names=[str(digit) for digit in range(10)],
            batch_size=batch_size,
            num_workers=num_workers,
            classes=classes,
            seed=seed,
            drop_last=drop_last,
        )
        check("val_fraction", val_fraction, 0 < val_fraction < 1, "a number between 0 and 1")
        check("test_fraction", test_fraction, 0 < test_fraction < 1 - val_fraction, "between 0 and 1 - val_fraction")
        self.save_hyperparameters(logger=False)
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction

    def load(self) -> Splits:
        """Read the images from scikit-learn and split them by class."""
        from sklearn.datasets import load_digits

        bunch = load_digits()
        pixels = torch.from_numpy(bunch.images).float().unsqueeze(1) / 16
        labels = torch.from_numpy(bunch.target).long()

        def sizes(count: int) -> list[int]:
            test, val = share(count, self.test_fraction), share(count, self.val_fraction)
            return [test, val, count - test - val]

        test, val, train = (
            ImageDataset(pixels, rows, labels[rows], _plain) for rows in stratified_split(labels, sizes, self.seed)
        )
        return Splits(train, val, test)


def _plain(pixels: Tensor, key: BatchKey | None) -> Tensor:
    return pixels
