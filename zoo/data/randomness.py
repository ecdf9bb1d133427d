"""Random numbers that are a function of a key, so that no global generator is read or moved.

A batch's augmentation depends on what the batch *is* (run seed, epoch, step, samples) and not on what
was drawn before it: any process, any worker and any resumed run draws the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


class Stream(IntEnum):
    """What a random number is for. Two streams are independent under the same key."""

    SHUFFLE = 1
    BATCH = 2
    SAMPLE = 3
    SPLIT = 4
    NOISE = 5


def keyed_rng(stream: Stream, *key: int) -> np.random.Generator:
    """A NumPy generator that depends on ``stream`` and ``key`` only.

    Args:
        stream: What the numbers are for. Each stream is used with one length of key.
        *key: Non-negative integers, e.g. the seed and the epoch.
    """
    return np.random.default_rng([int(stream), *key])


@dataclass(frozen=True)
class BatchKey:
    """Names one training batch, and gives its random numbers.

    Attributes:
        seed: The run's seed.
        epoch: The epoch, from 0.
        step: The batch's place in its epoch, from 0; the same on every process.
        index: Places of the batch's ``B`` samples in their dataset.
        size: Length of that dataset.
    """

    seed: int
    epoch: int
    step: int
    index: list[int]
    size: int

    def for_batch(self) -> np.random.Generator:
        """A generator for decisions shared by the whole batch, on every process."""
        return keyed_rng(Stream.BATCH, self.seed, self.epoch, self.step)

    def for_samples(self, count: int) -> Tensor:
        """Uniform numbers in [0, 1) for each sample, whichever batch it is in: float32 ``(B, count)``."""
        return _uniform_table(self.seed, self.epoch, self.size, count)[self.index]


@lru_cache(maxsize=2)
def _uniform_table(seed: int, epoch: int, size: int, count: int) -> Tensor:
    """One row of uniform numbers per sample of the dataset, drawn once an epoch."""
    rng = keyed_rng(Stream.SAMPLE, seed, epoch)
    return torch.from_numpy(rng.random((size, count), dtype=np.float32))
