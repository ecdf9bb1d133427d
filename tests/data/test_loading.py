import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from zoo.data import MNIST5k
from zoo.data.loading import Draw, EpochSampler, ResumableDataLoader

pytestmark = [
    # How many workers are worth having depends on the machine; these tests are about what is loaded.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    # Lightning 2.6 with torch 2.14.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated:FutureWarning"),
]

SIZES = {"n": st.integers(1, 60), "batch_size": st.integers(1, 7), "epoch": st.integers(0, 3)}


def batches(sampler: EpochSampler) -> list[list[Draw]]:
    draws = list(sampler)
    return [draws[i : i + sampler.batch_size] for i in range(0, len(draws), sampler.batch_size)]


def samples(batch: list[Draw]) -> list[int]:
    return [draw.sample for draw in batch]


class TestEpochSampler:
    @given(**SIZES)
    def test_an_epoch_is_a_permutation(self, n: int, batch_size: int, epoch: int) -> None:
        sampler = EpochSampler(range(n), batch_size)
        sampler.set_epoch(epoch)
        draws = list(sampler)
        assert sorted(samples(draws)) == list(range(n))
        assert {draw.epoch for draw in draws} == {epoch}
        assert [draw.step for draw in draws] == [place // batch_size for place in range(n)]
        assert len(sampler) == n

    def test_order_depends_on_seed_and_epoch_and_not_on_their_sum(self) -> None:
        orders = set()
        for seed in range(3):
            sampler = EpochSampler(range(50), 8, seed=seed)
            for epoch in range(3):
                sampler.set_epoch(epoch)
                orders.add(tuple(samples(list(sampler))))
        assert len(orders) == 9

    @given(world=st.integers(2, 4), **SIZES)
    def test_processes_together_see_the_blocks_of_one_process(
        self, world: int, n: int, batch_size: int, epoch: int
    ) -> None:
        ranks = [EpochSampler(range(n), batch_size, num_replicas=world, rank=rank) for rank in range(world)]
        one = EpochSampler(range(n), batch_size * world)
        for sampler in (*ranks, one):
            sampler.set_epoch(epoch)
        full = n // (batch_size * world)
        together = list(zip(*map(batches, ranks), strict=True))
        for mine, reference in zip(together[:full], batches(one)[:full], strict=True):
            draws = [draw for batch in mine for draw in batch]
            assert sorted(draws) == sorted(reference)  # sample, seed, epoch and step
        assert {len(sampler) for sampler in ranks} == {n // world}

    @given(n=st.integers(1, 20), world=st.integers(2, 5))
    def test_without_drop_last_shares_are_filled_from_the_front(self, n: int, world: int) -> None:
        ranks = [EpochSampler(range(n), 2, num_replicas=world, rank=rank, drop_last=False) for rank in range(world)]
        shares = [samples(list(sampler)) for sampler in ranks]
        assert {len(share) for share in shares} == {-(-n // world)}
        dealt = [sample for turn in zip(*shares, strict=True) for sample in turn]
        assert sorted(dealt[:n]) == list(range(n))
        assert dealt[n:] == (dealt[:n] * world)[: len(dealt) - n]

    @given(start=st.integers(0, 5), **SIZES)
    def test_start_skips_whole_batches(self, start: int, n: int, batch_size: int, epoch: int) -> None:
        sampler = EpochSampler(range(n), batch_size)
        sampler.set_epoch(epoch)
        whole = batches(sampler)
        sampler.start = start
        assert batches(sampler) == whole[start:]

    @pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("seed", -1)])
    def test_bad_arguments(self, name: str, value: int) -> None:
        with pytest.raises(ValueError, match=rf"{name}: .* got {value}"):
            EpochSampler(range(4), **{"batch_size": 2, name: value})


def loader(n: int = 10, batch_size: int = 2, **kwargs: Any) -> ResumableDataLoader[list[Draw]]:
    class Echo(torch.utils.data.Dataset[list[Draw]]):
        def __len__(self) -> int:
            return n

        def __getitems__(self, draws: list[Draw]) -> list[Draw]:
            return list(draws)

    data = Echo()
    sampler = kwargs.pop("sampler", None) or EpochSampler(data, batch_size)
    return ResumableDataLoader(data, batch_size=batch_size, sampler=sampler, collate_fn=list, **kwargs)


class TestResumableDataLoader:
    """In a plain loop, without Lightning."""

    @given(epoch=st.integers(0, 2), stop=st.integers(0, 5))
    def test_the_rest_of_an_epoch(self, epoch: int, stop: int) -> None:
        first = loader()
        first.sampler.set_epoch(epoch)
        passing = iter(first)
        head = [next(passing) for _ in range(stop)]
        state = first.state_dict()

        second = loader()
        second.load_state_dict(state)
        assert second.state_dict() == state
        whole = loader()
        whole.sampler.set_epoch(epoch)
        assert head + list(second) == list(whole)

    def test_only_the_next_pass_is_shortened(self) -> None:
        resumed = loader()
        resumed.load_state_dict({"epoch": 0, "batch": 3, "seed": 0, "batch_size": 2})
        assert [len(list(resumed)) for _ in range(2)] == [2, 5]

    def test_another_epoch_is_whole(self) -> None:
        resumed = loader()
        resumed.load_state_dict({"epoch": 0, "batch": 5, "seed": 0, "batch_size": 2})
        resumed.sampler.set_epoch(1)
        assert len(list(resumed)) == 5

    def test_a_state_between_two_epochs(self) -> None:
        between = loader()
        list(between)
        assert (between.state_dict()["epoch"], between.state_dict()["batch"]) == (0, 5)
        between.sampler.set_epoch(1)
        assert (between.state_dict()["epoch"], between.state_dict()["batch"]) == (1, 0)

    def test_the_epoch_may_be_set_after_iter(self) -> None:
        late = loader()
        passing = iter(late)
        late.sampler.set_epoch(2)
        assert {draw.epoch for draw in next(passing)} == {2}

    def test_a_batch_in_flight_is_not_done(self) -> None:
        finished = 0
        training = loader(trained=lambda: finished)
        for _ in training:
            assert training.state_dict()["batch"] == finished
            finished += 1
            assert training.state_dict()["batch"] == finished

    def test_the_saved_seed_wins(self) -> None:
        first = loader(sampler=EpochSampler(range(10), 2, seed=7))
        passing = iter(first)
        next(passing)
        second = loader(sampler=EpochSampler(range(10), 2, seed=8))
        second.load_state_dict(first.state_dict())
        assert list(second) == list(passing)

    def test_refuses_another_batch_size_in_the_middle_of_an_epoch(self) -> None:
        resumed = loader(batch_size=5)
        resumed.load_state_dict({"epoch": 0, "batch": 1, "seed": 0, "batch_size": 2})
        with pytest.raises(ValueError, match=r"batch_size: .* 2 images .* got 5"):
            next(iter(resumed))

    def test_another_batch_size_from_the_end_of_an_epoch(self) -> None:
        resumed = loader(batch_size=5)
        resumed.load_state_dict({"epoch": 0, "batch": 5, "seed": 0, "batch_size": 2})
        resumed.sampler.set_epoch(1)
        assert len(list(resumed)) == 2

    def test_any_sampler_can_be_resumed(self) -> None:
        resumed = loader(sampler=SequentialSampler(range(10)))
        resumed.load_state_dict({"epoch": 0, "batch": 3, "seed": 0, "batch_size": 2})
        assert list(resumed) == [[6, 7], [8, 9]]


class Recorder(LightningModule):
    """Learns a little, and writes down each training batch."""

    def __init__(self, fail_at: int = -1) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(49, 10)
        torch.nn.init.zeros_(self.layer.weight)
        torch.nn.init.zeros_(self.layer.bias)
        self.fail_at = fail_at
        self.seen: list[tuple[int, int, int]] = []

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        if self.global_step == self.fail_at:
            raise RuntimeError("the machine was switched off")
        content = images.numpy().tobytes() + labels.numpy().tobytes()
        self.seen.append((self.current_epoch, batch_idx, zlib.crc32(content)))
        return torch.nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


STEPS = 5
"""Batches of an epoch of :func:`data`."""


def data(num_workers: int = 0) -> MNIST5k:
    return MNIST5k(train_per_class=8, val_per_class=2, test_per_class=2, size=7, batch_size=16, num_workers=num_workers)


class Save(Callback):
    """Saves after every step, and in the middle of one that fails, as a Ctrl-C handler may."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"step={trainer.global_step}.ckpt")

    def on_exception(self, trainer: Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / "failed.ckpt")


def fit(ckpt: Path | None = None, num_workers: int = 0, fail_at: int = -1, **kwargs: Any) -> Recorder:
    trainer = Trainer(
        **{"max_epochs": 3, **kwargs},
        accelerator="cpu",
        logger=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in kwargs.get("callbacks", [])),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
    )
    model = Recorder(fail_at)
    trainer.fit(model, data(num_workers), ckpt_path=ckpt)
    return model


@pytest.fixture(autouse=True)
def run_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "11")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    folder = tmp_path_factory.mktemp("unbroken")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PL_GLOBAL_SEED", "11")
        model = fit(callbacks=[Save(folder)])
    assert len({crc for *_, crc in model.seen}) == 3 * STEPS  # no batch comes twice
    return folder, model


def assert_same_rest(resumed: Recorder, unbroken: Recorder, step: int) -> None:
    assert resumed.seen == unbroken.seen[step:]
    assert torch.equal(resumed.layer.weight, unbroken.layer.weight)


class TestResumeInLightning:
    @pytest.mark.parametrize("step", [1, 4, 5, 6, 8, 10, 14])
    def test_from_any_step(self, unbroken: tuple[Path, Recorder], step: int) -> None:
        folder, whole = unbroken
        assert_same_rest(fit(folder / f"step={step}.ckpt"), whole, step)

    @pytest.mark.parametrize("step", [3, 5, 7])
    def test_with_workers(self, unbroken: tuple[Path, Recorder], tmp_path: Path, step: int) -> None:
        """Workers fetch ahead; what they fetched and nobody trained on is not lost."""
        fit(num_workers=2, max_epochs=-1, max_steps=step, callbacks=[Save(tmp_path)])
        assert_same_rest(fit(tmp_path / f"step={step}.ckpt", num_workers=2), unbroken[1], step)

    @pytest.mark.parametrize("fail_at", [0, 2, 5, 9])
    def test_from_an_exception_in_a_step(self, unbroken: tuple[Path, Recorder], tmp_path: Path, fail_at: int) -> None:
        with pytest.raises(RuntimeError, match="switched off"):
            fit(fail_at=fail_at, callbacks=[Save(tmp_path)])
        assert_same_rest(fit(tmp_path / "failed.ckpt"), unbroken[1], fail_at)

    @pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
    @pytest.mark.parametrize("when", [{}, {"save_on_train_epoch_end": True}], ids=["validation", "training"])
    @pytest.mark.parametrize("epochs", [1, 2])
    def test_from_the_end_of_an_epoch(
        self, unbroken: tuple[Path, Recorder], tmp_path: Path, epochs: int, when: dict[str, bool]
    ) -> None:
        """Saved by ModelCheckpoint after the validation, or after the epoch."""
        first, second = (ModelCheckpoint(tmp_path, save_last=True, **when) for _ in range(2))
        fit(max_epochs=epochs, callbacks=[first])
        assert_same_rest(fit(tmp_path / "last.ckpt", callbacks=[second]), unbroken[1], epochs * STEPS)

    @pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
    def test_from_a_validation_in_the_middle_of_an_epoch(self, unbroken: tuple[Path, Recorder], tmp_path: Path) -> None:
        first, second = (ModelCheckpoint(tmp_path, "{step}", save_top_k=-1) for _ in range(2))
        fit(max_epochs=2, callbacks=[first], val_check_interval=2)
        resumed = fit(tmp_path / "step=7.ckpt", callbacks=[second], val_check_interval=2)
        assert_same_rest(resumed, unbroken[1], 7)

    def test_another_global_seed_does_not_matter(
        self, unbroken: tuple[Path, Recorder], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder, whole = unbroken
        monkeypatch.setenv("PL_GLOBAL_SEED", "12")
        assert_same_rest(fit(folder / "step=7.ckpt"), whole, 7)
        assert fit(max_steps=1).seen[0] != whole.seen[0]

    def test_resumed_twice(self, unbroken: tuple[Path, Recorder], tmp_path: Path) -> None:
        folder, whole = unbroken
        middle = fit(folder / "step=3.ckpt", max_epochs=-1, max_steps=8, callbacks=[Save(tmp_path)])
        last = fit(tmp_path / "step=8.ckpt")
        assert middle.seen + last.seen == whole.seen[3:]

    def test_epochs_cut_short(self, tmp_path: Path) -> None:
        whole = fit(limit_train_batches=3, callbacks=[Save(tmp_path)])
        assert [(epoch, step) for epoch, step, _ in whole.seen] == [(e, s) for e in range(3) for s in range(3)]
        for step in (2, 3, 5):
            assert_same_rest(fit(tmp_path / f"step={step}.ckpt", limit_train_batches=3), whole, step)

    def test_loading_leaves_the_global_generator_alone(self) -> None:
        module = data()
        module.setup()
        torch.manual_seed(0)
        before = torch.get_rng_state()
        for batch_loader in (module.train_dataloader(), module.val_dataloader(), module.test_dataloader()):
            assert isinstance(batch_loader, DataLoader)
            list(batch_loader)
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.filterwarnings("ignore:You requested to overfit:UserWarning")
    def test_overfitting_repeats_the_same_batches(self) -> None:
        crcs = [crc for *_, crc in fit(overfit_batches=2).seen]
        assert crcs[:2] * 3 == crcs
