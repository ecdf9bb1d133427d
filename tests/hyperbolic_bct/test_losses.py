"""The losses against loops over samples in float64, their limits, and bad batches."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from zoo.hyperbolic.functional import dist, exp_map0, lorentz_inner, uncertainty
from zoo.hyperbolic_bct.losses import (
    CompatibilityLoss,
    EntailmentConeLoss,
    Gathered,
    InfluenceLoss,
    RobustContrastiveLoss,
)

ALIGNMENTS = ["gce", "rince", "infonce", "weighted", "distance"]
C = 0.6


def batch(seed: int = 0, n: int = 12, dim: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """New and old embeddings (n, dim), float64, of 4 classes."""
    generator = torch.Generator().manual_seed(seed)
    old = torch.randn(n, dim, dtype=torch.float64, generator=generator) * 0.4
    new = 1.6 * old + torch.randn(n, dim, dtype=torch.float64, generator=generator) * 0.4
    return new, old, torch.arange(n) % 4


def d(x: Tensor, y: Tensor) -> float:
    """Lorentz distance by its definition."""
    return math.acosh(max(1.0, -C * float(lorentz_inner(exp_map0(x, C), exp_map0(y, C))))) / math.sqrt(C)


# ---------------------------------------------------------------- against loops in float64


def test_entailment_loss_against_a_loop() -> None:
    new, old, labels = batch()
    loss = EntailmentConeLoss(C, min_radius=0.2, aperture_scale=0.8)(new, old, labels)
    terms = []
    for x, y in zip(exp_map0(old, C), exp_map0(new, C), strict=True):
        inner = C * float(lorentz_inner(x, y))
        cosine = float(y[0] + x[0] * inner) / (float(x[1:].norm()) * math.sqrt(inner**2 - 1))
        aperture = math.asin(min(1 - 1e-4, 2 * 0.2 / (math.sqrt(C) * float(x[1:].norm()))))
        terms.append(max(0.0, math.acos(cosine) - 0.8 * aperture))
    assert 0.0 < sum(t > 0 for t in terms) < len(terms)  # some are inside, some are not
    assert float(loss) == pytest.approx(sum(terms) / len(terms), rel=1e-9)


def robust_reference(
    alignment: str, new: Tensor, old: Tensor, labels: Tensor, mask_same_class: bool, q: tuple[float, float], lam: float
) -> float:
    tau, terms = 0.3, []
    for i in range(len(new)):
        s = -d(new[i], old[i]) / tau
        z = math.exp(s)
        for j in range(len(old)):
            if j != i and not (mask_same_class and labels[i] == labels[j]):
                z += math.exp(-d(new[i], old[j]) / tau)
        h = exp_map0(old[i], C)
        u = 1 - math.sqrt(C) * float(h[1:].norm()) / (1 + math.sqrt(C) * float(h[0]))
        p, qi = math.exp(s) / z, q[0] + (q[1] - q[0]) * u
        terms.append(
            {
                "gce": (1 - p**qi) / qi,
                "rince": -math.exp(qi * s) / qi + (lam * z) ** qi / qi,
                "infonce": -math.log(p),
                "weighted": -(1 - u) * math.log(p),
                "distance": -tau * s,
            }[alignment]
        )
    return sum(terms) / len(terms)


@pytest.mark.parametrize("mask_same_class", [True, False])
@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_robust_loss_against_a_loop(alignment: Any, mask_same_class: bool) -> None:
    new, old, labels = batch()
    loss = RobustContrastiveLoss(alignment, C, tau=0.3, q_min=0.2, q_max=0.9, lam=0.05, mask_same_class=mask_same_class)
    expected = robust_reference(alignment, new, old, labels, mask_same_class, (0.2, 0.9), 0.05)
    assert float(loss(new, old, labels)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("label_map", [None, {0: 2, 1: 0, 3: 1}], ids=["same labels", "remapped"])
def test_influence_loss_against_a_loop(label_map: dict[int, int] | None) -> None:
    new, old, labels = batch()
    old_labels = labels % 3 if label_map else labels
    loss = InfluenceLoss(5, 5, C, scale=3.0, label_map=label_map).double()
    loss.fit(old, old_labels)

    centroids = {}
    for k in sorted(set(old_labels.tolist())):
        mean = exp_map0(old[old_labels == k], C).mean(dim=0)
        centroids[k] = mean / math.sqrt(C * -float(lorentz_inner(mean, mean)))
    terms = []
    for i, label in enumerate(labels.tolist()):
        target = label_map.get(label) if label_map else label
        if target is None:
            continue
        h = exp_map0(new[i], C)
        logits = {k: -3.0 * math.acosh(-C * float(lorentz_inner(h, m))) / math.sqrt(C) for k, m in centroids.items()}
        terms.append(math.log(sum(map(math.exp, logits.values()))) - logits[target])
    assert len(terms) == (9 if label_map else 12)  # the fourth class of the map is unknown to the old model
    assert float(loss(new, old, labels)) == pytest.approx(sum(terms) / len(terms), rel=1e-9)


# ---------------------------------------------------------------- identities and limits


def one_pair(probability: float, distance: float) -> tuple[Tensor, Tensor, Tensor, float]:
    """A batch of two on a line whose first sample has this p, and its Z; tau = 1, c = 1."""
    odds = (1 - probability) / probability
    far = distance - math.log(odds)
    old = torch.tensor([[0.0], [distance + far]], dtype=torch.float64)
    new = torch.tensor([[distance], [distance + far]], dtype=torch.float64)
    return new, old, torch.tensor([0, 1]), math.exp(-distance) / probability


@given(st.floats(0.05, 0.95), st.floats(3.0, 4.0), st.floats(0.01, 1.0), st.floats(0.001, 1.0))
@settings(max_examples=50, deadline=None)
def test_rince_identity(p: float, distance: float, q: float, lam: float) -> None:
    new, old, labels, z = one_pair(p, distance)
    loss = RobustContrastiveLoss("rince", 1.0, tau=1.0, q_min=q, q_max=q, lam=lam)
    first = Gathered(new, old, labels)
    got = float(loss(new[:1], old[:1], labels[:1], first))
    assert got == pytest.approx(z**q * (lam**q - p**q) / q, rel=1e-6, abs=1e-9)


def test_limits_of_q() -> None:
    new, old, labels = batch()

    def value(alignment: Any, q: float) -> float:
        loss = RobustContrastiveLoss(alignment, C, q_min=q, q_max=q, lam=0.05)
        return float(loss(new, old, labels))

    infonce = float(RobustContrastiveLoss("infonce", C)(new, old, labels))
    assert value("gce", 1e-7) == pytest.approx(infonce, rel=1e-5)
    assert value("rince", 1e-7) == pytest.approx(infonce + math.log(0.05), rel=1e-5)

    s = torch.tensor([[-d(x, y) / 0.2 for y in old] for x in new], dtype=torch.float64)
    own, other = torch.eye(12, dtype=torch.bool), labels[:, None] != labels
    z = s.exp()[own] + s.exp().masked_fill(~other, 0).sum(dim=1)
    assert value("gce", 1.0) == pytest.approx(float((1 - s.exp()[own] / z).mean()))
    negatives = z - s.exp()[own]
    assert value("rince", 1.0) == pytest.approx(float((-0.95 * s.exp()[own] + 0.05 * negatives).mean()))


def test_rince_pushes_everything_away_where_p_is_below_lambda_and_gce_does_not() -> None:
    """The shift trap: the sum of the gradient over the similarities is Z^q (lam^q - p^q)."""
    new, old, labels = batch()
    direction = new / new.norm(dim=-1, keepdim=True)
    old = 0.05 * old  # so that walking outward is walking away from every old embedding

    def outward(alignment: Any, **kwargs: float) -> float:
        x = new.clone().requires_grad_()
        RobustContrastiveLoss(alignment, C, tau=0.5, q_min=0.5, q_max=0.5, **kwargs)(x, old, labels).backward()
        assert x.grad is not None
        return float((-x.grad * direction).sum())  # what a descent step does

    assert outward("rince", lam=0.5) > 0.01
    assert outward("rince", lam=0.01) < 0
    assert abs(outward("gce")) < 0.2 * outward("rince", lam=0.5)


def test_certain_old_embeddings_weigh_more() -> None:
    new, old, labels = batch()
    for alignment in ("weighted", "gce"):
        loss = RobustContrastiveLoss(alignment, C)  # type: ignore[arg-type]
        certain = loss(new, old, labels, uncertainty=torch.zeros(12))
        uncertain = loss(new, old, labels, uncertainty=torch.ones(12))
        assert certain > uncertain
    loss = RobustContrastiveLoss("weighted", C)
    assert loss(new, old, labels, uncertainty=torch.ones(12)) == 0
    assert loss(new, old, labels) == loss(new, old, labels, uncertainty=uncertainty(old, C))


def test_entailment_cannot_be_met_within_the_old_radius() -> None:
    _, old, labels = batch()
    loss = EntailmentConeLoss(C)
    assert loss(old, old, labels) == 0
    assert loss(2 * old, old, labels) == 0
    turned = old.roll(1, dims=-1) * 0.9
    assert loss(turned, old, labels) > 0.5 - 1e-9


# ---------------------------------------------------------------- old embeddings, processes, statistics


LOSSES: list[tuple[str, CompatibilityLoss]] = [
    *((a, RobustContrastiveLoss(a, C)) for a in ALIGNMENTS),  # type: ignore[arg-type]
    ("normalised", RobustContrastiveLoss("gce", C, normalise=True)),
    ("entailment", EntailmentConeLoss(C)),
    ("influence", InfluenceLoss(4, 5, C)),
]
all_losses = pytest.mark.parametrize("loss", [loss for _, loss in LOSSES], ids=[name for name, _ in LOSSES])


@all_losses
def test_gradcheck_and_the_old_embeddings_stay_fixed(loss: CompatibilityLoss) -> None:
    new, old, labels = batch()
    loss.fit(old, labels)
    assert torch.autograd.gradcheck(lambda x: loss(x, old, labels), (new.requires_grad_(),))
    old.requires_grad_()
    loss(new, old, labels).backward()
    assert old.grad is None


@all_losses
def test_two_processes_give_what_one_gives(loss: CompatibilityLoss) -> None:
    new, old, labels = batch()
    loss.fit(old, labels)
    new.requires_grad_()
    whole = loss(new, old, labels)
    (expected,) = torch.autograd.grad(whole, new)
    parts = []
    for offset, rows in ((0, slice(0, 6)), (6, slice(6, 12))):
        gathered = Gathered(new, old, labels, offset)
        parts.append(loss(new[rows], old[rows], labels[rows], gathered))
    mean = torch.stack(parts).mean()
    torch.testing.assert_close(mean, whole)
    torch.testing.assert_close(torch.autograd.grad(mean, new)[0], expected)


@all_losses
def test_finite_at_every_kind_of_pair(loss: CompatibilityLoss) -> None:
    old = torch.tensor([[0.0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 8, 0, 0, 0], [0, 0, 3, 0, 0], [0, 0, 0, 9, 9]])
    labels = torch.tensor([0, 1, 2, 3, 0])
    loss.fit(old, labels)
    for new in (old, -old, 0 * old, 0.5 * old, old + 1e-4, 1e3 * old):
        for dtype in (torch.float32, torch.bfloat16):
            x = new.clone().to(dtype).requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                value = loss(x, old, labels)
            value.backward()
            assert value.dtype == torch.float32
            assert value.isfinite()
            assert x.grad is not None
            assert x.grad.isfinite().all()


def test_normalised_uncertainty_spans_the_unit_interval() -> None:
    _, old, labels = batch(n=400)
    loss = RobustContrastiveLoss(c=C, normalise=True)
    with pytest.raises(RuntimeError, match="call fit"):
        loss.uncertainty(old)
    loss.fit(old, labels)
    raw, got = uncertainty(old, C), loss.uncertainty(old)
    low, high = (raw.sort().values[round(q * 399)] for q in (0.05, 0.95))
    torch.testing.assert_close(got, ((raw - low) / (high - low)).clamp(0, 1), rtol=0, atol=0.01)
    assert (got == 0).float().mean() == pytest.approx(0.05, abs=0.01)

    copy = RobustContrastiveLoss(c=C, normalise=True)
    copy.load_state_dict(loss.state_dict())
    torch.testing.assert_close(copy.uncertainty(old), got)


def test_influence_statistics_are_in_the_state_dict() -> None:
    new, old, labels = batch()
    loss, copy = InfluenceLoss(4, 5, C), InfluenceLoss(4, 5, C)
    with pytest.raises(RuntimeError, match="call fit"):
        loss(new, old, labels)
    loss.fit(old, labels)
    copy.load_state_dict(loss.state_dict())
    assert copy(new, old, labels) == loss(new, old, labels)
    loss.fit(old[:2], labels[:2])  # a second fit forgets the first
    assert loss.known.tolist() == [True, True, False, False]
    assert loss(new[2:4], old[2:4], labels[2:4]) == 0  # no sample of a known class


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize("alignment", ["gce", "rince", "infonce", "weighted"])
def test_a_single_class_gives_zero_and_one_warning(alignment: Any) -> None:
    new, old, _ = batch()
    new.requires_grad_()
    loss = RobustContrastiveLoss(alignment, C)
    labels = torch.zeros(12, dtype=torch.int64)
    with pytest.warns(UserWarning, match="no negatives in a batch of a single class"):
        value = loss(new, old, labels)
    value.backward()
    assert value == 0
    assert (new.grad == 0).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss(new, old, labels)
    RobustContrastiveLoss("distance", C)(new, old, labels)  # needs no negatives: no warning


def test_bad_constructor_arguments() -> None:
    for build in (EntailmentConeLoss, lambda c: RobustContrastiveLoss(c=c), lambda c: InfluenceLoss(2, 2, c)):
        for c in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match=f"c must be positive and finite.*{c}"):
                build(c)
    with pytest.raises(ValueError, match="min_radius must be positive and finite, got 0"):
        EntailmentConeLoss(min_radius=0)
    with pytest.raises(ValueError, match="aperture_scale must be positive and finite, got -1"):
        EntailmentConeLoss(aperture_scale=-1)
    with pytest.raises(ValueError, match="alignment must be one of gce, rince, infonce, weighted, distance, got 'x'"):
        RobustContrastiveLoss("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tau must be positive and finite, got 0"):
        RobustContrastiveLoss(tau=0)
    for q_min, q_max in ((0.0, 0.5), (0.6, 0.5), (0.5, 1.5)):
        with pytest.raises(ValueError, match=f"0 < q_min <= q_max <= 1, got {q_min} and {q_max}"):
            RobustContrastiveLoss(q_min=q_min, q_max=q_max)
    for lam in (0.0, 1.5):
        with pytest.raises(ValueError, match=rf"lam must be in \(0, 1\], got {lam}"):
            RobustContrastiveLoss(lam=lam)
    with pytest.raises(ValueError, match="needs a positive clip_radius"):
        RobustContrastiveLoss(uncertainty="clip")
    with pytest.raises(ValueError, match=r"label_map must map labels to 0\.\.1, got 3: 2"):
        InfluenceLoss(2, 4, label_map={3: 2})
    with pytest.raises(ValueError, match="scale must be positive and finite, got 0"):
        InfluenceLoss(2, 4, scale=0)


def test_bad_batches() -> None:
    new, old, labels = batch()
    loss = RobustContrastiveLoss(c=C)
    with pytest.raises(ValueError, match=r"got \(12, 5\), \(12, 4\) and \(12,\)"):
        loss(new, old[:, :4], labels)
    with pytest.raises(ValueError, match=r"got \(12, 5\), \(12, 5\) and \(11,\)"):
        loss(new, old, labels[1:])
    with pytest.raises(ValueError, match=r"uncertainty must be \(B,\) = \(12,\), got \(3,\)"):
        loss(new, old, labels, uncertainty=torch.ones(3))
    with pytest.raises(ValueError, match="these 12 from row 4, got 12, 12 and 12 rows"):
        loss(new, old, labels, Gathered(new, old, labels, offset=4))
    for value in (math.nan, math.inf):
        broken = new.clone()
        broken[7, 2] = value
        with pytest.raises(ValueError, match="new embeddings must be finite, sample 7 is not"):
            loss(broken, old, labels)
        with pytest.raises(ValueError, match="old embeddings must be finite, sample 7 is not"):
            loss(new, broken, labels)


def test_bad_statistics() -> None:
    new, old, labels = batch()
    loss = InfluenceLoss(4, 5, C)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.3, got 9"):
        loss.fit(old, labels.masked_fill(labels == 2, 9))
    with pytest.raises(ValueError, match=r"must be \(N, 5\) and \(N,\), got \(12, 4\) and \(12,\)"):
        loss.fit(old[:, :4], labels)
    with pytest.raises(ValueError, match="old embeddings must be finite, sample 0 is not"):
        loss.fit(old / 0, labels)
    loss.fit(old, labels)
    mapped = InfluenceLoss(4, 5, C, label_map={1: 2})
    mapped.fit(old, labels)
    assert mapped(new[:1], old[:1], labels[:1] - 7) == mapped(new[:1], old[:1], labels[:1] + 7) == 0
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.3, got -2"):
        loss(new, old, labels - 2)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.3, got 4"):
        loss(new, old, labels + 1)


def test_distance_alignment_is_the_mean_distance() -> None:
    new, old, labels = batch()
    assert RobustContrastiveLoss("distance", C)(new, old, labels) == dist(new, old, C).mean()
