"""Shuffling and loading that stop anywhere and resume exactly.

Order, augmentation and position follow from (seed, epoch, step) alone, so neither the global random
state nor the number of workers or processes changes what a training step sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from zoo.data.randomness import Stream, keyed_rng

T = TypeVar("T")


class Draw(NamedTuple):
    """One sample as drawn in training: a dataset index that also says when it was drawn.

    It carries its key to the workers, whose copy of the dataset knows no epoch.
    """

    sample: int
    seed: int
    epoch: int
    step: int


class EpochSampler(DistributedSampler[Draw]):
    """A permutation per (seed, epoch), dealt to the processes in turn.

    The ``k``-th batches of all processes together are the ``k``-th block of
    ``num_replicas * batch_size`` samples of one permutation: two processes with batches of ``B`` see what
    one process sees with batches of ``2 B``, up to the order within the batch. It is a
    ``DistributedSampler``, so Lightning keeps it under DDP and calls ``set_epoch``.

    Args:
        data: The dataset, or anything of its length ``N``.
        batch_size: Batch size of one process.
        seed: The run's seed, from 0.
        num_replicas: Number of processes.
        rank: This process.
        drop_last: Leave out the samples that would make the processes' shares unequal; otherwise the first
            samples of the permutation are repeated for that.

    Attributes:
        start: First batch of the next pass; 0 but for a resumed epoch.
    """

    def __init__(
        self,
        data: Sized,
        batch_size: int,
        *,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = True,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size: want an integer >= 1, got {batch_size!r}")
        if seed < 0:
            raise ValueError(f"seed: want an integer >= 0, got {seed!r}")
        super().__init__(data, num_replicas, rank, shuffle=True, seed=seed, drop_last=drop_last)  # type: ignore[arg-type]
        self.batch_size = batch_size
        self.start = 0

    def __iter__(self) -> Iterator[Draw]:
        order = keyed_rng(Stream.SHUFFLE, self.seed, self.epoch).permutation(len(self.dataset))  # type: ignore[arg-type]
        own = np.resize(order, self.total_size)[self.rank :: self.num_replicas].tolist()
        for place in range(self.start * self.batch_size, len(own)):
            yield Draw(own[place], self.seed, self.epoch, place // self.batch_size)


class ResumableDataLoader(DataLoader[T]):
    """A DataLoader whose position in the epoch goes into the checkpoint.

    Lightning saves and restores any loader with ``state_dict``. This one counts the batches that were
    handed out (prefetched ones are not), and on resume skips them in the sampler without loading them.
    The order must follow from the epoch alone, as with :class:`EpochSampler`; another sampler works too,
    but then skipped batches are loaded and thrown away.

    Nothing is fetched before the first ``next()``: Lightning makes the iterator before it sets the epoch.

    Args:
        *args: As for ``torch.utils.data.DataLoader``.
        trained: Tells how many batches of this epoch the training loop has finished. Without it, a batch
            counts as done as soon as it is handed out, also when an exception comes during its step.
        **kwargs: As for ``torch.utils.data.DataLoader``.
    """

    def __init__(self, *args: Any, trained: Callable[[], int] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.trained = trained
        self._epoch = 0
        self._batches = 0
        self._resume_from: dict[str, int] | None = None

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        self._epoch = self._sampler_epoch()
        self._batches = self._first_batch()
        if isinstance(self.sampler, EpochSampler):
            self.sampler.start = self._batches
            batches = super().__iter__()
        else:
            batches = islice(super().__iter__(), self._batches, None)  # type: ignore[assignment]
        for batch in batches:
            self._batches += 1
            yield batch

    def _first_batch(self) -> int:
        state, self._resume_from = self._resume_from, None
        if state is None or state["epoch"] != self._epoch or state["batch"] == 0:
            return 0
        if state["batch_size"] != self._global_batch_size():
            raise ValueError(
                f"batch_size: the checkpoint is from the middle of an epoch with {state['batch_size']} images a "
                f"step over all processes, got {self._global_batch_size()}; resume with the same, or from the "
                "end of an epoch"
            )
        return state["batch"]

    def _sampler_epoch(self) -> int:
        return getattr(self.sampler, "epoch", 0)

    def _global_batch_size(self) -> int:
        return (self.batch_size or 1) * getattr(self.sampler, "num_replicas", 1)

    def state_dict(self) -> dict[str, int]:
        """Epoch, finished batches of it, seed and global batch size: the same on every process."""
        batches = self._batches if self.trained is None else min(self._batches, self.trained())
        epoch = self._sampler_epoch()
        return {
            "epoch": epoch,
            "batch": batches if epoch == self._epoch else 0,
            "seed": getattr(self.sampler, "seed", 0),
            "batch_size": self._global_batch_size(),
        }

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Make the next pass over the saved epoch start after its finished batches, in the saved order.

        Raises:
            ValueError: At the start of that pass, if it is the middle of an epoch that ran with another
                global batch size.
        """
        self._resume_from = dict(state_dict)
        self._epoch, self._batches = state_dict["epoch"], state_dict["batch"]
        if isinstance(self.sampler, EpochSampler):
            self.sampler.seed = state_dict["seed"]
            self.sampler.set_epoch(state_dict["epoch"])


def as_is(batch: T) -> T:
    """Collate function for a dataset whose ``__getitems__`` returns whole batches."""
    return batch
