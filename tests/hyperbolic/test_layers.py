"""The layers against geoopt and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.hyperbolic import LorentzLift, LorentzMLR, LorentzPrototypes
from zoo.hyperbolic.functional import dist, exp_map0
from zoo.hyperbolic.manifold import geoopt


def test_lift_scales_and_clips() -> None:
    lift = LorentzLift(16, c=0.5, clip_radius=2.0)
    features = torch.randn(32, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(0, 5, 32)[:, None]
    lifted = lift(features)
    length = lifted.norm(dim=-1)
    torch.testing.assert_close(length, (features.norm(dim=-1) / 4).clamp_max(2.0))
    assert (length < 1.9).any()
    assert (length > 1.99).any()
    torch.testing.assert_close(lifted * features.norm(dim=-1, keepdim=True), features * length[:, None])


def test_lift_scale_is_learned_or_kept() -> None:
    lift = LorentzLift(4)
    lift(torch.full((1, 4), 0.1)).sum().backward()
    assert lift.log_scale.grad is not None
    assert lift.log_scale.grad > 0
    fixed = LorentzLift(4, learn_scale=False)
    assert list(fixed.parameters()) == []
    assert "log_scale" in fixed.state_dict()


def test_lift_works_in_float32_under_autocast() -> None:
    lift = LorentzLift(8)
    features = torch.randn(4, 8).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lifted = lift(features)
    assert lifted.dtype == torch.float32
    assert torch.equal(lifted, lift(features.float()))
    assert lift(features.double()).dtype == torch.float64


@pytest.mark.parametrize("manifold_parameters", [False, True])
def test_prototype_logits_are_scaled_distances(manifold_parameters: bool) -> None:
    torch.manual_seed(0)
    head = LorentzPrototypes(3, 5, c=0.5, scale_init=2.0, manifold_parameters=manifold_parameters)
    head = head.double()
    x = torch.randn(7, 5, dtype=torch.float64)
    expected = -2.0 * dist(x[:, None], head.prototypes, 0.5)
    torch.testing.assert_close(head(x), expected, rtol=1e-6, atol=1e-6)
    if manifold_parameters:
        assert isinstance(head.weight, geoopt.ManifoldParameter)
        h = exp_map0(x, 0.5)
        torch.testing.assert_close(
            head(x), -2.0 * head.weight.manifold.dist(h[:, None], head.weight), rtol=1e-5, atol=1e-5
        )


def test_mlr_is_the_signed_distance_to_a_hyperplane() -> None:
    torch.manual_seed(0)
    c = 0.7
    head = LorentzMLR(4, 3, c).double()
    x = torch.randn(9, 3, dtype=torch.float64)
    logits = head(x)

    # The distance of h to {<w, .>_L = 0} is asinh(sqrt(c) <w, h>_L / |w|_L) / sqrt(c), with the normal
    # w = (sinh(sqrt(c) a) |z|, cosh(sqrt(c) a) z).
    z, a = head.weight, head.bias
    time = torch.sinh(math.sqrt(c) * a) * z.norm(dim=-1)
    w = torch.cat([time[:, None], torch.cosh(math.sqrt(c) * a)[:, None] * z], dim=-1)
    norm = (w[:, 1:].square().sum(-1) - w[:, 0].square()).sqrt()
    h = exp_map0(x, c)
    product = h[:, 1:] @ w[:, 1:].T - h[:, :1] * w[:, 0]
    torch.testing.assert_close(logits, norm / math.sqrt(c) * torch.asinh(math.sqrt(c) * product / norm))
    assert torch.autograd.gradcheck(head, (x.requires_grad_(),))


def test_mlr_has_no_nan_where_the_reference_form_has() -> None:
    head = LorentzMLR(2, 3)
    with torch.no_grad():
        head.weight[0] = 0.0  # no direction
        head.bias.fill_(12.0)  # cosh^2 - sinh^2 = 0 in float32
    x = torch.tensor([[0.0, 0.0, 0.0], [4.0, 0.0, 0.0]], requires_grad=True)
    logits = head(x)
    logits.sum().backward()
    grads = [x.grad, *(p.grad for p in head.parameters())]
    assert logits.isfinite().all()
    assert all(g is not None and g.isfinite().all() for g in grads)


@pytest.mark.parametrize("head", [LorentzMLR(3, 8), LorentzPrototypes(3, 8)], ids=["mlr", "prototypes"])
def test_heads_learn_and_ignore_autocast(head: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat(10)
    x: Tensor = torch.randn(3, 8, generator=generator)[labels] + 0.1 * torch.randn(30, 8, generator=generator)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(x), labels).backward()
        optimizer.step()
    assert (head(x).argmax(dim=-1) == labels).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(head(x), head(x.clone()))
        assert head(x).dtype == torch.float32


@pytest.mark.parametrize("c", [0.0, -2.0, math.nan])
def test_curvature_must_be_positive(c: float) -> None:
    for build in (LorentzLift, lambda dim, c: LorentzMLR(3, dim, c), lambda dim, c: LorentzPrototypes(3, dim, c)):
        with pytest.raises(ValueError, match=f"c must be positive and finite.*{c}"):
            build(4, c=c)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="dim must be at least 1, got 0"):
        LorentzLift(0)
    with pytest.raises(ValueError, match=r"clip_radius must be positive and finite, got -1\.0"):
        LorentzLift(4, clip_radius=-1.0)
    with pytest.raises(ValueError, match=r"at most 8 / sqrt\(c\) = 4 .* got 5"):
        LorentzLift(4, c=4.0, clip_radius=5.0)
    with pytest.raises(ValueError, match="num_classes must be at least 1, got 0"):
        LorentzPrototypes(0, 4)
    with pytest.raises(ValueError, match="num_classes must be at least 1, got -1"):
        LorentzMLR(-1, 4)
    with pytest.raises(ValueError, match="scale_init must be positive and finite, got 0"):
        LorentzPrototypes(3, 4, scale_init=0)
