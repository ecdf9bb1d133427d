"""Riemannian training: correct, finite in float32, and resumable; and the geoopt faults that we work around."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import zoo.hyperbolic
from zoo.hyperbolic import LorentzPrototypes, RiemannianAdam, lorentz_manifold
from zoo.hyperbolic.functional import MAX_RADIUS, dist, exp_map0, log_map0
from zoo.hyperbolic.manifold import LorentzManifold, geoopt


def points(radius: float, n: int = 4, dim: int = 3, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, dim, dtype=torch.float64, generator=generator)
    return exp_map0(radius * torch.nn.functional.normalize(normal, dim=-1)).to(dtype)


def tangents(x: Tensor, seed: int = 0) -> Tensor:
    ambient = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return lorentz_manifold().proju(x.double(), ambient).to(x.dtype)


# ---------------------------------------------------------------- the manifold


def test_k_is_exact_and_geoopts_is_not() -> None:
    assert lorentz_manifold(0.1).k.item() == 10.0
    assert lorentz_manifold(0.3).k.item() == 1 / 0.3
    assert geoopt.Lorentz(k=1 / 0.3).k.item() != 1 / 0.3


@pytest.mark.parametrize("c", [0.0, -1.0, float("nan"), float("inf")])
def test_curvature_must_be_positive(c: float) -> None:
    with pytest.raises(ValueError, match=f"c must be positive and finite.*{c}"):
        lorentz_manifold(c)


def test_geoopt_takes_a_negative_k() -> None:
    assert geoopt.Lorentz(k=-1.0).k.item() == -1.0


def test_operations_agree_with_geoopt_in_float64() -> None:
    ours, theirs = lorentz_manifold(0.5), geoopt.Lorentz(k=torch.tensor(2.0, dtype=torch.float64))
    x = exp_map0(torch.randn(20, 3, dtype=torch.float64), 0.5)
    u = theirs.proju(x, torch.randn(20, 4, dtype=torch.float64))
    v = theirs.proju(x, torch.randn(20, 4, dtype=torch.float64))
    torch.testing.assert_close(ours.component_inner(x, u, v), theirs.inner(x, u, v, keepdim=True))
    torch.testing.assert_close(ours.egrad2rgrad(x, u), theirs.egrad2rgrad(x, u.clone()))
    for got, expected in zip(ours.retr_transp(x, u, v), theirs.retr_transp(x, u, v), strict=True):
        torch.testing.assert_close(got, expected)


def test_egrad2rgrad_leaves_the_gradient_alone_and_geoopts_does_not() -> None:
    x = points(1.0)
    for manifold, kept in ((lorentz_manifold(), True), (geoopt.Lorentz(k=torch.tensor(1.0)), False)):
        grad = torch.ones_like(x)
        manifold.egrad2rgrad(x, grad)
        assert (grad == 1).all().item() is kept


def test_squared_norms_are_never_negative_and_geoopts_are() -> None:
    x = points(7.0, n=200)
    u = tangents(x)
    # Along the ray from the origin the two terms of the Lorentz product cancel most.
    ray = torch.cat([x[:, 1:].norm(dim=-1, keepdim=True), x[:, 1:]], dim=-1)
    exact = lorentz_manifold().component_inner(x.double(), ray.double())
    got = lorentz_manifold().component_inner(x, ray)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=0)
    assert (lorentz_manifold().component_inner(x, u) >= 0).all()
    assert (geoopt.Lorentz(k=torch.tensor(1.0)).component_inner(x, ray) <= 0).any()


def test_transport_over_no_distance_is_the_identity_and_geoopts_is_not() -> None:
    x = points(4.0, n=50)
    v = tangents(x)
    size = v.norm(dim=-1, keepdim=True)
    error = (lorentz_manifold().transp(x, x, v) - v).norm(dim=-1, keepdim=True) / size
    assert error.max() < 1e-3
    # In float32 geoopt finds the point at some distance from itself, in a direction made of rounding.
    theirs = geoopt.Lorentz(k=torch.tensor(1.0)).transp(x, x, v)
    assert not ((theirs - v).norm(dim=-1, keepdim=True) / size < 1e-3).all()


def test_checks_follow_the_size_of_the_coordinates_and_geoopts_do_not() -> None:
    ours, theirs = lorentz_manifold(), geoopt.Lorentz(k=torch.tensor(1.0))
    x = points(6.0, n=50)
    u = ours.proju(x, tangents(x))
    assert ours.check_point_on_manifold(x)
    assert ours.check_vector_on_tangent(x, u)
    assert not ours.check_point_on_manifold(x + torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert not ours.check_vector_on_tangent(x, x)
    assert not theirs.check_point_on_manifold(x)

    x, u = x.double(), u.double()
    assert ours.check_vector_on_tangent(exp_map0(log_map0(x)), ours.proju(x, u))
    with pytest.raises(RuntimeError, match="did not match"):
        theirs.check_vector_on_tangent(x, u)


def test_projection_keeps_float32_points_where_they_can_be_told_apart() -> None:
    x = points(12.0, dtype=torch.float64)
    kept = log_map0(lorentz_manifold().projx(x.float())).norm(dim=-1)
    torch.testing.assert_close(kept, torch.full((4,), MAX_RADIUS), rtol=1e-5, atol=0)
    torch.testing.assert_close(lorentz_manifold().projx(x), x)


# ---------------------------------------------------------------- the optimizer


def train(optimizer: torch.optim.Optimizer, weight: Tensor, steps: int, seed: int = 1, radius: float = 2.0) -> None:
    """Pull points towards fixed targets."""
    targets = log_map0(points(radius, seed=seed, dtype=weight.dtype))
    for _ in range(steps):
        optimizer.zero_grad()
        dist(log_map0(weight), targets).sum().backward()
        optimizer.step()


def parameter(manifold: Any, radius: float = 1.0, seed: int = 0) -> Any:
    return geoopt.ManifoldParameter(points(radius, seed=seed), manifold=manifold)


def test_converges_on_the_manifold() -> None:
    weight = parameter(lorentz_manifold())
    train(RiemannianAdam([weight], lr=0.02), weight, 300)
    assert dist(log_map0(weight), log_map0(points(2.0, seed=1))).max() < 0.05
    lorentz_manifold().assert_check_point_on_manifold(weight)


def test_first_steps_equal_geoopts_in_float64() -> None:
    ours = geoopt.ManifoldParameter(points(1.0, dtype=torch.float64), manifold=lorentz_manifold())
    k = torch.tensor(1.0, dtype=torch.float64)
    theirs = geoopt.ManifoldParameter(points(1.0, dtype=torch.float64), manifold=geoopt.Lorentz(k=k))
    train(RiemannianAdam([ours], lr=0.02), ours, 20)
    train(geoopt.optim.RiemannianAdam([theirs], lr=0.02), theirs, 20)
    torch.testing.assert_close(ours.data, theirs.data, rtol=1e-6, atol=1e-6)


def test_plain_parameters_get_plain_adam() -> None:
    start = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    ours, plain = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    for weight, optimizer in ((ours, RiemannianAdam([ours], lr=0.1)), (plain, torch.optim.Adam([plain], lr=0.1))):
        for _ in range(10):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("radius", [2.0, 4.0, 8.0])
@pytest.mark.parametrize("lr", [0.1, 1.0])
def test_stays_finite_with_large_steps(radius: float, lr: float) -> None:
    weight = parameter(lorentz_manifold(), radius)
    train(RiemannianAdam([weight], lr=lr), weight, 60, radius=2 * radius)
    assert weight.isfinite().all()


def test_geoopt_goes_nan_with_large_steps() -> None:
    """geoopt issue 227. When this fails the workaround may go."""
    weight = parameter(geoopt.Lorentz(k=torch.tensor(1.0)), 4.0)
    train(geoopt.optim.RiemannianAdam([weight], lr=1.0), weight, 60, radius=8.0)
    assert not weight.isfinite().all()


def resumed(optimizer_class: type[torch.optim.Optimizer], manifold: Any) -> tuple[Tensor, Tensor]:
    """The weight after 60 unbroken steps, and after 20 steps, a save, a load and 40 steps."""
    weight = parameter(manifold)
    optimizer = optimizer_class([weight], lr=0.1)  # type: ignore[call-arg]
    train(optimizer, weight, 20)
    buffer = io.BytesIO()
    torch.save({"weight": weight.detach(), "optimizer": optimizer.state_dict()}, buffer)
    train(optimizer, weight, 40)

    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    again = geoopt.ManifoldParameter(saved["weight"], manifold=manifold)
    optimizer = optimizer_class([again], lr=0.1)  # type: ignore[call-arg]
    optimizer.load_state_dict(saved["optimizer"])
    train(optimizer, again, 40)
    return weight.detach(), again.detach()


def test_resumes_bit_for_bit() -> None:
    unbroken, continued = resumed(RiemannianAdam, lorentz_manifold())
    assert torch.equal(unbroken, continued)


def test_geoopt_resumes_with_another_rounding() -> None:
    """When this fails, geoopt's step count survives loading and our subclass may go."""
    unbroken, continued = resumed(geoopt.optim.RiemannianAdam, geoopt.Lorentz(k=torch.tensor(1.0)))
    assert not torch.equal(unbroken, continued)


def test_state_dict_survives_copies_and_dtype_changes() -> None:
    """geoopt issue 226 reports a KeyError from state_dict()."""
    model = LorentzPrototypes(4, 3, manifold_parameters=True)
    optimizer = RiemannianAdam(model.parameters(), lr=0.1)
    for module, optim in ((model, optimizer), copy.deepcopy((model, optimizer))):
        module(torch.randn(5, 3)).sum().backward()
        optim.step()
        assert isinstance(module.weight, geoopt.ManifoldParameter)
        assert isinstance(module.weight.manifold, LorentzManifold)
        assert set(optim.state_dict()["state"]) == {0, 1}
    model.double()
    assert isinstance(model.weight, geoopt.ManifoldParameter)
    optimizer = RiemannianAdam(model.parameters(), lr=0.1)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    assert optimizer.state_dict()["state"][1]["exp_avg"].dtype == torch.float64


# ---------------------------------------------------------------- under Lightning


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)
        self.head = LorentzPrototypes(4, 3, manifold_parameters=True)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.head(self.net(batch[0])), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return RiemannianAdam(self.parameters(), lr=0.05)


def fit(model: LightningModule, epochs: int, folder: Path, ckpt_path: Path | None = None) -> Trainer:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 6, generator=generator), torch.arange(24) % 4)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(model, DataLoader(data, batch_size=8), ckpt_path=ckpt_path)
    return trainer


@pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers")
def test_lightning_resume_equals_an_unbroken_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    start = Classifier()
    unbroken, stopped = copy.deepcopy(start), copy.deepcopy(start)
    fit(unbroken, 4, tmp_path)
    path = tmp_path / "stopped.ckpt"
    fit(stopped, 2, tmp_path).save_checkpoint(path)

    checkpoint = torch.load(path, weights_only=True)
    assert type(checkpoint["state_dict"]["head.weight"]) is Tensor
    assert "head.manifold.k" not in checkpoint["state_dict"]

    torch.manual_seed(1)
    resumed_model = Classifier()
    fit(resumed_model, 4, tmp_path, ckpt_path=path)
    for name, value in unbroken.state_dict().items():
        assert torch.equal(value, resumed_model.state_dict()[name]), name
    assert not torch.equal(unbroken.head.weight, start.head.weight)


@pytest.mark.slow
def test_importing_the_room_is_light_and_silent() -> None:
    code = "import sys, zoo.hyperbolic; assert 'geoopt' not in sys.modules; zoo.hyperbolic.lorentz_manifold(1.0)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Poincare'"):
        zoo.hyperbolic.Poincare  # noqa: B018
