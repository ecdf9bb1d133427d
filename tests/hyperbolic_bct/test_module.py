"""One generation after another: training, checkpoints, resuming, precision, and what is refused."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from zoo.data import MNIST5k
from zoo.hyperbolic_bct import METHODS, CompatibleEncoder, HyperbolicBCT
from zoo.retrieval import GalleryIndex, average_compatibility, retrieval_scores

SMALL: dict[str, Any] = {"encoder": "cnn", "embed_dim": 12}


def new_module(old: dict[str, str], method: str = "hbct", **kwargs: Any) -> HyperbolicBCT:
    torch.manual_seed(1)
    return HyperbolicBCT(**{**SMALL, "method": method, "old_model": old[METHODS[method].space], **kwargs})


def images(data: MNIST5k) -> tuple[Tensor, Tensor]:
    dataset = data.dataset("test")
    return dataset.__getitems__(list(range(len(dataset))))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in module.state_dict().items()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name].nan_to_num(), b[name].nan_to_num()), name


# Training


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(data, fit, old_checkpoints, method: str) -> None:
    module = new_module(old_checkpoints, method)
    before = state(module.model)
    trainer = fit(module, data)
    moved = [name for name in before if not torch.equal(before[name], module.model.state_dict()[name])]
    assert any("encoder" in name for name in moved)
    logged = set(trainer.callback_metrics)
    assert {f"val/loss_{name}" for name in module.losses} <= logged
    assert math.isfinite(trainer.callback_metrics["val/loss"])
    assert set(module.losses) == set(METHODS[method].weights)


def test_total_loss_is_the_weighted_sum(data, fit, old_checkpoints) -> None:
    module = new_module(old_checkpoints, "hbct_influence", align_weight=0.25)
    metrics = fit(module, data, max_epochs=1).callback_metrics
    total = metrics["val/loss_cls"] + 0.25 * metrics["val/loss_align"]
    total += 0.3 * metrics["val/loss_entail"] + 1.0 * metrics["val/loss_influence"]
    torch.testing.assert_close(metrics["val/loss"], total)


def test_geometry_is_logged(data, fit, old_checkpoints) -> None:
    metrics = fit(new_module(old_checkpoints), data).callback_metrics
    names = (
        "radius_old",
        "radius_new",
        "uncertainty_old",
        "uncertainty_new",
        "clip_saturation",
        "in_cone",
        "t_max_deg",
    )
    assert {f"geom/{name}" for name in names} <= set(metrics)
    assert metrics["geom/radius_old"] <= 1.0
    assert 0 <= metrics["geom/in_cone"] <= 1


def test_old_model_stays_as_it_was(data, fit, old_checkpoints) -> None:
    module = new_module(old_checkpoints)
    x, _ = images(data)
    before, embedded = state(module.old_model), module.old_model(x)
    fit(module, data)
    assert_same(before, state(module.old_model))  # batch statistics too
    assert torch.equal(embedded, module.old_model(x))
    module.train()
    assert not any(m.training for m in module.old_model.modules())
    assert not any(p.requires_grad for p in module.old_model.parameters())


def test_independent_model_has_no_compatibility_loss(data, fit, old_checkpoints) -> None:
    module = new_module(old_checkpoints, compatible=False)
    assert not module.losses
    assert module.old_model is not None
    assert module.model.clip_radius == 3.0
    fit(module, data, max_epochs=1)


def test_compatibility_is_learned(data, fit, old_checkpoints) -> None:
    """New queries find in the old gallery what an independent model's cannot."""
    x, y = images(data)

    def cross(module: HyperbolicBCT) -> float:
        module.eval()
        with torch.no_grad():
            return retrieval_scores(module.embed(x), module.old_model(x), y, y, space="lorentz", c=1.0).map

    trained, independent = new_module(old_checkpoints, "hbct_influence"), new_module(old_checkpoints, compatible=False)
    for module in (trained, independent):
        fit(module, data, max_epochs=25)
    assert cross(trained) > cross(independent) + 0.1


def test_chain_of_generations(data, fit, old_checkpoints, tmp_path: Path) -> None:
    """Each generation starts from the one before; a generation's file is enough for the next."""
    path, embedded = old_checkpoints["lorentz"], []
    x, y = images(data)
    models = [CompatibleEncoder.from_checkpoint(path)]
    for number in (1, 2):
        module = HyperbolicBCT(**SMALL, method="hbct_influence", old_model=path, clip_radius=1.0 + number)
        trainer = fit(module, data, max_epochs=3)
        path = str(tmp_path / f"{number}.ckpt")
        trainer.save_checkpoint(path)
        models.append(CompatibleEncoder.from_checkpoint(path))
    with torch.no_grad():
        embedded = [model(x) for model in models]
    matrix = [[retrieval_scores(q, g, y, y, space="lorentz", c=1.0).map for g in embedded] for q in embedded]
    assert 0 <= average_compatibility(matrix) <= 1
    assert [model.clip_radius for model in models] == [1.0, 2.0, 3.0]


# Checkpoints


def test_checkpoint_round_trip_needs_no_other_file(data, fit, old_checkpoints, tmp_path: Path) -> None:
    old = tmp_path / "old.ckpt"
    old.write_bytes(Path(old_checkpoints["lorentz"]).read_bytes())
    module = new_module({"lorentz": str(old)})
    trainer = fit(module, data)
    path = tmp_path / "new.ckpt"
    trainer.save_checkpoint(path)
    old.unlink()
    loaded = HyperbolicBCT.load_from_checkpoint(path, weights_only=True)
    assert_same(state(module), state(loaded))
    x, _ = images(data)
    assert torch.equal(module.eval().embed(x), loaded.eval().embed(x))
    assert torch.equal(module.old_model(x), loaded.old_model(x))
    assert torch.equal(module.embed(x), CompatibleEncoder.from_checkpoint(path)(x))


def test_old_model_can_stay_out_of_the_checkpoint(data, fit, old_checkpoints, tmp_path: Path) -> None:
    module = new_module(old_checkpoints, save_old=False)
    trainer = fit(module, data)
    trainer.save_checkpoint(tmp_path / "new.ckpt")
    saved = torch.load(tmp_path / "new.ckpt", weights_only=True)["state_dict"]
    assert not any(name.startswith("old_model.") for name in saved)
    loaded = HyperbolicBCT.load_from_checkpoint(tmp_path / "new.ckpt", old_model=old_checkpoints["lorentz"])
    assert_same(state(module), state(loaded))


def test_encoder_and_old_model_of_ones_own(data, fit, tmp_path: Path) -> None:
    torch.manual_seed(0)
    old = nn.Sequential(nn.Flatten(), nn.Linear(196, 12))
    module = HyperbolicBCT(encoder=nn.Sequential(nn.Flatten(), nn.Linear(196, 12)), embed_dim=12, old_model=old)
    trainer = fit(module, data)
    x, _ = images(data)
    lengths = torch.linalg.vector_norm(module.old_model(x), dim=1)
    assert lengths.max() <= 1.0 + 1e-6
    assert lengths.median() > 0.2, "the old features were scaled into the ball"
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    again = nn.Sequential(nn.Flatten(), nn.Linear(196, 12))
    loaded = HyperbolicBCT.load_from_checkpoint(tmp_path / "own.ckpt", encoder=again, weights_only=True)
    assert torch.equal(module.eval().embed(x), loaded.eval().embed(x))
    with pytest.raises(ValueError, match=r"was an nn\.Module"):
        HyperbolicBCT(**SMALL, old_model=tmp_path / "own.ckpt")


def test_euclidean_old_model_is_lifted(data, fit, old_checkpoints) -> None:
    with pytest.warns(UserWarning, match="lift the stored vectors"):
        module = HyperbolicBCT(**SMALL, old_model=old_checkpoints["cosine"])
    with pytest.warns(UserWarning, match="100% of the old embeddings lie on the clip radius"):
        fit(module, data, max_epochs=1)  # unit vectors have one length
    x, _ = images(data)
    stored = CompatibleEncoder.from_checkpoint(old_checkpoints["cosine"])(x)
    torch.testing.assert_close(module.old_model.lift(stored), module.old_model(x))  # no image is needed for that
    torch.testing.assert_close(torch.linalg.vector_norm(module.old_model(x), dim=1), torch.ones(len(x)))


# Stopping and going on


class StopAt(Callback):
    """Raise after a step, having written a checkpoint."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            raise KeyError("stop")


@pytest.mark.parametrize("step", [5, 7])  # an epoch has five steps
@pytest.mark.parametrize(
    ("method", "kwargs"), [("hbct_influence", {}), ("advbct", {}), ("hbct", {"manifold_parameters": True})]
)
def test_resumed_run_equals_unbroken_run(data, fit, old_checkpoints, tmp_path, step, method, kwargs) -> None:
    unbroken = new_module(old_checkpoints, method, **kwargs)
    fit(unbroken, data, max_epochs=3)
    path = tmp_path / "stopped.ckpt"
    with pytest.raises(KeyError, match="stop"):
        fit(new_module(old_checkpoints, method, **kwargs), data, max_epochs=3, callbacks=[StopAt(step, path)])
    resumed = new_module(old_checkpoints, method, **kwargs)
    torch.manual_seed(99)  # the global random state is not part of it
    fit(resumed, data, max_epochs=3, ckpt_path=str(path))
    assert_same(state(unbroken), state(resumed))


def test_longer_training_stretches_the_schedule(data, fit, tmp_path: Path) -> None:
    trainer = fit(HyperbolicBCT(**SMALL), data, max_epochs=2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    assert trainer.optimizers[0].param_groups[0]["lr"] < 4e-4  # at its end
    longer = fit(HyperbolicBCT(**SMALL), data, max_epochs=4, ckpt_path=str(tmp_path / "two.ckpt"))
    assert longer.global_step == 20
    assert longer.optimizers[0].param_groups[0]["lr"] < 4e-4


def test_statistics_of_the_old_model_are_in_the_checkpoint(data, fit, old_checkpoints, tmp_path: Path) -> None:
    module = new_module(old_checkpoints, "hbct_influence")
    fit(module, data, max_epochs=1, callbacks=[ModelCheckpoint(tmp_path, save_last=True)])
    loaded = HyperbolicBCT.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert loaded.fitted
    assert_same(state(module.losses), state(loaded.losses))


# Precision, accumulation, compile


def test_bf16_mixed_precision_stays_finite(data, fit, old_checkpoints) -> None:
    module = new_module(old_checkpoints, "hbct_influence")
    trainer = fit(module, data, precision="bf16-mixed")
    assert math.isfinite(trainer.callback_metrics["val/loss"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert module.embed(images(data)[0]).dtype == torch.float32
    assert all(p.isfinite().all() for p in module.parameters())


def test_gradient_accumulation(data, fit, old_checkpoints) -> None:
    trainer = fit(new_module(old_checkpoints), data, max_epochs=1, accumulate_grad_batches=2)
    assert trainer.global_step == 3


def test_compiled_model_embeds_the_same(data, old_checkpoints) -> None:
    model = CompatibleEncoder.from_checkpoint(old_checkpoints["lorentz"])
    x, _ = images(data)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_constant_batch_gives_finite_gradients(old_checkpoints) -> None:
    """Black images: equal embeddings, distance 0, and a dead encoder at the origin."""
    module = new_module(old_checkpoints, "hbct_influence")
    labels = torch.arange(10)
    black = torch.zeros(10, 1, 14, 14)
    old = module.old_model(black)
    for loss in module.losses.values():
        loss.fit(old, labels)
    for new in (torch.zeros(10, 12, requires_grad=True), old.clone().requires_grad_()):
        total = module.head(new).logsumexp(1).sum() + sum(loss(new, old, labels) for loss in module.losses.values())
        total.backward()
        assert new.grad.isfinite().all()


# Stored embeddings instead of the old model


class Numbered(MNIST5k):
    """The same data with ids, as a user's own module may have them."""

    def loader(self, split: str, shuffle: bool = False) -> DataLoader:
        dataset = self.dataset(split)
        x, y = dataset.__getitems__(list(range(len(dataset))))
        return DataLoader(TensorDataset(x, y, torch.arange(len(y))), 64, shuffle=shuffle)

    def train_dataloader(self) -> DataLoader:
        return self.loader("train", shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return self.loader("train")

    def predict_dataloader(self) -> DataLoader:
        return self.loader("test")


def test_stored_vectors_instead_of_an_old_model(fit, old_checkpoints, tmp_path: Path) -> None:
    data = Numbered(train_per_class=32, val_per_class=10, test_per_class=10)
    data.setup()
    x, y, ids = data.loader("train").dataset.tensors
    old = CompatibleEncoder.from_checkpoint(old_checkpoints["lorentz"])
    gallery = GalleryIndex("lorentz", dim=12, c=1.0, clip_radius=old.clip_radius, dtype="float32")
    with torch.no_grad():
        gallery.add(old(x), ids=ids, labels=y)
    gallery.save(tmp_path / "gallery")
    module = HyperbolicBCT(**SMALL, method="hbct_influence", old_embeddings=tmp_path / "gallery")
    fit(module, data, max_epochs=1)
    torch.testing.assert_close(module.old_model(ids), old(x))
    with pytest.raises(ValueError, match="no vector with id 100000"):
        module.old_model(torch.tensor([3, 100000]))
    plain = MNIST5k(train_per_class=32, val_per_class=10, test_per_class=10, batch_size=64)
    module = HyperbolicBCT(**SMALL, old_embeddings=tmp_path / "gallery")
    with pytest.raises(ValueError, match=r"\(inputs, labels, ids\)"):
        fit(module, plain, max_epochs=1)


# Bad input


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"curvature": 0.0}, "c must be positive and finite"),
        ({"curvature": math.inf}, "c must be positive and finite"),
        ({"clip_radius": 9.0}, "clip_radius must be at most 8"),
        ({"clip_radius": -1.0}, "clip_radius must be positive"),
        ({"min_radius": 0.0}, "min_radius must be positive"),
        ({"tau": 0.0}, "tau must be positive"),
        ({"q_max": 1.5}, "q_min and q_max"),
        ({"q_min": 0.0}, "q_min and q_max"),
        ({"lam": 0.0}, "lam must be in"),
        ({"num_classes": 1}, "num_classes must be"),
        ({"lr": -1.0}, "lr must be a positive number, got -1.0"),
        ({"warmup": 1.0}, "warmup must be"),
        ({"label_smoothing": 1.0}, "label_smoothing must be"),
        ({"weight_decay": -1.0}, "weight_decay must be"),
        ({"align_weight": -1.0}, "align_weight must be"),
        ({"method": "nope"}, "method must be one of"),
        ({"head": "nope"}, "head must be one of"),
        ({"encoder": "nope_net"}, "encoder must be 'cnn', 'mlp'"),
        ({"pretrained": True}, "pretrained: there are no weights for the encoder 'cnn'"),
        ({"alignment": "nope"}, "alignment must be one of"),
        ({"uncertainty": "nope"}, "kind must be"),
    ],
)
def test_arguments_out_of_range(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HyperbolicBCT(**{**SMALL, **kwargs})


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"embed_dim": 16}, "embed_dim must be the old model's 12, got 16"),
        ({"curvature": 0.5}, "curvature must be the old model's 1, got 0.5"),
        ({"clip_radius": 1.0}, "clip_radius must be larger than the old model's 1, got 1: a point no further"),
        ({"method": "bct"}, "old_model lives in hyperbolic space"),
        ({"old_embeddings": "x"}, "old_embeddings: give the old model or its stored vectors"),
    ],
)
def test_old_model_that_does_not_fit(old_checkpoints, kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HyperbolicBCT(**{**SMALL, "old_model": old_checkpoints["lorentz"], **kwargs})


def test_equal_radii_are_fine_without_entailment(old_checkpoints) -> None:
    HyperbolicBCT(**SMALL, old_model=old_checkpoints["lorentz"], clip_radius=1.0, entail_weight=0.0)


def test_missing_and_broken_old_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="old_model: no checkpoint"):
        HyperbolicBCT(**SMALL, old_model=tmp_path / "nope.ckpt")
    (tmp_path / "broken.ckpt").write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match="no readable HyperbolicBCT checkpoint"):
        HyperbolicBCT(**SMALL, old_model=tmp_path / "broken.ckpt")


def test_labels_outside_the_classes(data, fit, old_checkpoints) -> None:
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.4"):
        fit(new_module(old_checkpoints, num_classes=5), data)


def test_non_finite_inputs_name_the_sample(old_checkpoints) -> None:
    module = new_module(old_checkpoints)
    x = torch.randn(4, 1, 14, 14)
    x[2] = math.nan
    loss = module.losses["entail"]
    with pytest.raises(ValueError, match="sample 2"):
        loss(module.eval().embed(x), torch.zeros(4, 12), torch.arange(4))


def test_schedule_needs_an_end(data, fit) -> None:
    with pytest.raises(ValueError, match="max_epochs or max_steps must be set"):
        fit(HyperbolicBCT(**SMALL), data, max_epochs=-1, limit_train_batches=1)


def test_narrow_cones_are_said(data, fit, old_checkpoints) -> None:
    with pytest.warns(UserWarning, match="cones are at most .* degrees wide"):
        fit(new_module(old_checkpoints, min_radius=0.001), data, max_epochs=1)


# Prediction


def test_predict_step(old_checkpoints, data) -> None:
    x, y = images(data)
    module = new_module(old_checkpoints).eval()
    out = module.predict_step([x, y], 0)
    assert out["embedding"].shape == (len(x), 12)
    assert torch.equal(out["label"], y)
    assert ((out["uncertainty"] >= 0) & (out["uncertainty"] <= 1)).all()
    assert set(module.predict_step(x, 0)) == {"embedding", "uncertainty"}
    assert "uncertainty" not in new_module(old_checkpoints, "bct").predict_step(x, 0)


def test_predict_writes_ids_embeddings_and_uncertainties(data, old_checkpoints, tmp_path: Path) -> None:
    from zoo.callbacks import EmbeddingWriter

    module = new_module(old_checkpoints)
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        callbacks=[EmbeddingWriter()],
        default_root_dir=tmp_path,
    )
    trainer.predict(module, datamodule=data, return_predictions=False)
    written = load_file(tmp_path / "embeddings.safetensors")
    x, y = images(data)
    assert torch.equal(written["ids"], torch.arange(len(x)))
    assert torch.equal(written["label"], y)
    torch.testing.assert_close(written["embedding"], module.eval().embed(x))
    assert written["uncertainty"].shape == (len(x),)


def test_deepcopy_of_a_module(old_checkpoints) -> None:
    module = new_module(old_checkpoints)
    assert_same(state(module), state(copy.deepcopy(module)))
