import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.data.randomness import BatchKey, Stream, keyed_rng

KEYS = st.integers(0, 2**32 - 1)


@given(KEYS, KEYS)
def test_same_key_same_numbers(seed: int, epoch: int) -> None:
    draws = [keyed_rng(Stream.SHUFFLE, seed, epoch).random(4) for _ in range(2)]
    assert np.array_equal(*draws)


@given(st.tuples(KEYS, KEYS), st.tuples(KEYS, KEYS))
def test_another_key_gives_other_numbers(a: tuple[int, int], b: tuple[int, int]) -> None:
    """Not so with ``seed + epoch``, where seed 0 in epoch 1 is seed 1 in epoch 0."""
    same = np.array_equal(keyed_rng(Stream.SHUFFLE, *a).random(4), keyed_rng(Stream.SHUFFLE, *b).random(4))
    assert same == (a == b)


def test_streams_are_apart() -> None:
    draws = {tuple(keyed_rng(stream, 3, 5).random(2)) for stream in Stream}
    assert len(draws) == len(Stream)


@given(st.permutations(range(9)), st.integers(1, 8))
def test_a_sample_draws_the_same_in_any_batch(order: list[int], cut: int) -> None:
    whole = BatchKey(1, 2, 0, list(range(9)), 9).for_samples(3)
    parts = [BatchKey(1, 2, step, part, 9).for_samples(3) for step, part in enumerate((order[:cut], order[cut:]))]
    assert torch.equal(torch.cat(parts), whole[order])


def test_samples_change_with_epoch_and_seed() -> None:
    base, epoch, seed = (BatchKey(s, e, 0, [0, 1], 2).for_samples(2) for s, e in ((0, 0), (0, 1), (1, 0)))
    assert not torch.equal(base, epoch)
    assert not torch.equal(base, seed)
    assert not torch.equal(epoch, seed)


def test_samples_are_uniform() -> None:
    numbers = BatchKey(0, 0, 0, list(range(20_000)), 20_000).for_samples(3)
    assert numbers.shape == (20_000, 3)
    assert numbers.dtype == torch.float32
    assert float(numbers.min()) >= 0
    assert float(numbers.max()) < 1
    # Five standard errors of the mean of 20,000 uniform numbers.
    assert numbers.mean(0).tolist() == pytest.approx([0.5] * 3, abs=5 * 12**-0.5 / 20_000**0.5)
    assert torch.corrcoef(numbers.T).sub(torch.eye(3)).abs().max() < 5 / 20_000**0.5


def test_batch_numbers_follow_the_step_alone() -> None:
    first = BatchKey(0, 0, 4, [1, 2], 9).for_batch().random(3)
    other_process = BatchKey(0, 0, 4, [3, 4], 9).for_batch().random(3)
    next_step = BatchKey(0, 0, 5, [1, 2], 9).for_batch().random(3)
    assert np.array_equal(first, other_process)
    assert not np.array_equal(first, next_step)
