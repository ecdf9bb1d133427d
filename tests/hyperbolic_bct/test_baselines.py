"""The Euclidean baselines against loops over samples in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from zoo.hyperbolic_bct.baselines import (
    AdvBCTLoss,
    BCTLoss,
    HOCLoss,
    HotRefreshLoss,
    L2Loss,
    procrustes,
    simplex_vertices,
)
from zoo.hyperbolic_bct.losses import CompatibilityLoss, Gathered

NUM_CLASSES, DIM = 4, 5


def batch(n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """New and old embeddings (n, 5), float64 and of any length, of 4 classes."""
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(n, DIM, dtype=torch.float64, generator=generator) * 2
    new = old + torch.randn(n, DIM, dtype=torch.float64, generator=generator)
    return new, old, torch.arange(n) % NUM_CLASSES


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def class_mean(old: Tensor, labels: Tensor, k: int) -> Tensor:
    return unit(sum((unit(old[i]) for i in range(len(old)) if labels[i] == k), torch.zeros(DIM)))


def log_softmax(values: list[float], index: int) -> float:
    return values[index] - math.log(sum(map(math.exp, values)))


# ---------------------------------------------------------------- against loops in float64


def test_l2_against_a_loop() -> None:
    new, old, labels = batch()
    terms = [float((unit(x) - unit(y)).square().sum()) for x, y in zip(new, old, strict=True)]
    assert float(L2Loss()(new, old, labels)) == pytest.approx(sum(terms) / 12)


@pytest.mark.parametrize("old_classes", [0, 2])
def test_bct_against_a_loop(old_classes: int) -> None:
    new, old, labels = batch()
    loss = BCTLoss(NUM_CLASSES, DIM, scale=7.0).double()
    classifier = torch.randn(old_classes, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3
    loss.fit(old, labels, old_classifier=classifier if old_classes else None)
    rows = [unit(classifier[k]) if k < old_classes else class_mean(old, labels, k) for k in range(NUM_CLASSES)]
    terms = [
        -log_softmax([7.0 * float(unit(x) @ row) for row in rows], int(y)) for x, y in zip(new, labels, strict=True)
    ]
    assert float(loss(new, old, labels)) == pytest.approx(sum(terms) / 12, rel=1e-6)


@pytest.mark.parametrize("top_k", [None, 3])
def test_hot_refresh_against_a_loop(top_k: int | None) -> None:
    new, old, labels = batch()
    terms = []
    for i in range(12):
        others = [j for j in range(12) if labels[j] != labels[i]]
        negatives = [float(unit(new[i]) @ unit(z[j])) / 0.2 for z in (old, new) for j in others]
        negatives = sorted(negatives, reverse=True)[:top_k]
        terms.append(-log_softmax([float(unit(new[i]) @ unit(old[i])) / 0.2, *negatives], 0))
    assert float(HotRefreshLoss(tau=0.2, top_k=top_k)(new, old, labels)) == pytest.approx(sum(terms) / 12)


@pytest.mark.parametrize("reference_mask", [False, True])
def test_hoc_against_a_loop(reference_mask: bool) -> None:
    new, old, labels = batch()
    vertices = simplex_vertices(DIM).double()
    terms = []
    for i in range(12):
        x, y = unit(new[i]), unit(old[i])
        classification = -log_softmax([6.0 * float(x @ w) for w in vertices], int(labels[i]))
        total = 0.0
        for j in range(12):
            if labels[j] != labels[i]:
                total += math.exp(8.0 * float(y @ unit(new[j])))
            elif reference_mask:
                total += 1.0
        terms.append(0.3 * classification + 0.7 * (math.log(total) - 8.0 * float(x @ y)))
    loss = HOCLoss(DIM, mu=8.0, lam=0.3, scale=6.0, reference_mask=reference_mask)
    assert float(loss(new, old, labels)) == pytest.approx(sum(terms) / 12, rel=1e-6)


def test_advbct_against_a_loop() -> None:
    torch.manual_seed(0)
    new, old, labels = batch()
    loss = AdvBCTLoss(NUM_CLASSES, DIM, adversarial_weight=0.5, boundary_weight=2.0).double()
    loss.fit(old, labels)
    adversarial, boundary = 0.0, 0.0
    for i in range(12):
        for z, is_new in ((new[i], 1), (old[i], 0)):
            p = torch.sigmoid(loss.discriminator(unit(z))).item()
            adversarial -= math.log(p if is_new else 1 - p) / 24
        k = int(labels[i])
        centre = class_mean(old, labels, k)
        largest = max(float((unit(old[j]) - centre).norm()) for j in range(12) if labels[j] == k)
        elastic = largest / (1 + math.exp(-2.0))
        boundary += max(0.0, float((unit(new[i]) - centre).norm()) - (largest - elastic)) / 12
    assert boundary > 0
    assert loss(new, old, labels).item() == pytest.approx(0.5 * adversarial + 2.0 * boundary, rel=1e-6)


def test_advbct_discriminator_and_embedding_pull_apart() -> None:
    torch.manual_seed(0)
    new, old, labels = batch()
    loss = AdvBCTLoss(NUM_CLASSES, DIM, adversarial_weight=1.0, boundary_weight=0.0, reversal=0.5).double()
    loss.fit(old, labels)

    def discrimination(x: Tensor) -> Tensor:
        judged = loss.discriminator(torch.cat([unit(x), unit(old)])).squeeze(1)
        return torch.nn.functional.binary_cross_entropy_with_logits(judged, (torch.arange(24) < 12).double())

    new.requires_grad_()
    weight = loss.discriminator[0].weight
    got = torch.autograd.grad(loss(new, old, labels), (new, weight))
    expected = torch.autograd.grad(discrimination(new), (new, weight))
    torch.testing.assert_close(got[0], -0.5 * expected[0])  # reversed
    torch.testing.assert_close(got[1], expected[1])  # as it is


def test_advbct_boundary_never_passes_the_furthest_old_sample() -> None:
    new, old, labels = batch()
    loss = AdvBCTLoss(NUM_CLASSES, DIM, adversarial_weight=0.0).double()
    loss.fit(old, labels)
    optimizer = torch.optim.Adam(loss.parameters(), lr=0.5)
    for _ in range(50):
        optimizer.zero_grad()
        loss(new, old, labels).backward()
        optimizer.step()
    centres = torch.stack([class_mean(old, labels, k) for k in range(NUM_CLASSES)])
    beyond_radius = ((unit(new) - centres[labels]).norm(dim=1) - loss.radii[labels]).relu().mean()
    assert beyond_radius > 0
    assert loss(new, old, labels) >= beyond_radius


# ---------------------------------------------------------------- what they share


def build() -> list[CompatibilityLoss]:
    torch.manual_seed(0)
    return [
        L2Loss(),
        BCTLoss(NUM_CLASSES, DIM),
        HotRefreshLoss(),
        HOCLoss(DIM),
        HOCLoss(DIM, reference_mask=True),
        AdvBCTLoss(NUM_CLASSES, DIM, reversal=1.0, adversarial_weight=0.0),
    ]


all_losses = pytest.mark.parametrize(
    "loss", build(), ids=["l2", "bct", "hot_refresh", "hoc", "hoc_reference", "advbct"]
)


@all_losses
def test_gradcheck_and_the_old_embeddings_stay_fixed(loss: CompatibilityLoss) -> None:
    new, old, labels = batch()
    loss = loss.double()
    loss.fit(old, labels)
    assert torch.autograd.gradcheck(lambda x: loss(x, old, labels), (new.requires_grad_(),))
    old.requires_grad_()
    loss(new, old, labels).backward()
    assert old.grad is None


@all_losses
def test_two_processes_give_what_one_gives(loss: CompatibilityLoss) -> None:
    new, old, labels = batch()
    loss = loss.double()
    loss.fit(old, labels)
    new.requires_grad_()
    whole = loss(new, old, labels)
    (expected,) = torch.autograd.grad(whole, new)
    parts = [
        loss(new[rows], old[rows], labels[rows], Gathered(new, old, labels, rows.start))
        for rows in (slice(0, 6), slice(6, 12))
    ]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    torch.testing.assert_close(torch.autograd.grad(torch.stack(parts).mean(), new)[0], expected)


@all_losses
def test_length_does_not_matter_and_autocast_changes_nothing(loss: CompatibilityLoss) -> None:
    new, old, labels = (x.float() if x.is_floating_point() else x for x in batch())
    loss = loss.float()
    loss.fit(old, labels)
    value = loss(new, old, labels)
    torch.testing.assert_close(loss(3 * new, 0.5 * old, labels), value)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = loss(new.bfloat16(), old.bfloat16(), labels)
    assert got.dtype == torch.float32
    assert torch.equal(got, loss(new.bfloat16().float(), old.bfloat16().float(), labels))


@all_losses
def test_finite_for_zero_equal_and_lonely_samples(loss: CompatibilityLoss) -> None:
    _, old, labels = (x.float() if x.is_floating_point() else x for x in batch())
    loss = loss.float()
    loss.fit(old, labels)
    for new in (old.clone(), torch.zeros_like(old), -old):
        for y in (labels, torch.zeros_like(labels)):  # the latter has no negatives
            x = new.clone().requires_grad_()
            value = loss(x, old, y)
            value.backward()
            assert value.isfinite()
            assert x.grad is not None
            assert x.grad.isfinite().all()


def test_without_negatives_contrast_is_zero() -> None:
    new, old, labels = batch()
    labels = torch.zeros_like(labels)
    assert HotRefreshLoss()(new, old, labels) == 0
    assert HOCLoss(DIM, lam=0.0)(new, old, labels) == 0


@pytest.mark.parametrize("kind", [BCTLoss, AdvBCTLoss])
def test_statistics_are_kept_in_the_state_dict(kind: type[BCTLoss] | type[AdvBCTLoss]) -> None:
    new, old, labels = batch()
    loss, copy = kind(NUM_CLASSES, DIM), kind(NUM_CLASSES, DIM)
    with pytest.raises(RuntimeError, match="call fit"):
        loss(new, old, labels)
    loss.fit(old, labels)
    copy.load_state_dict(loss.state_dict())
    assert copy(new, old, labels) == loss(new, old, labels)

    few = labels < 2
    loss.fit(old[few], labels[few])
    assert loss.known.tolist() == [True, True, False, False]
    if isinstance(loss, BCTLoss):  # samples of classes without statistics are skipped
        torch.testing.assert_close(loss(new, old, labels), loss(new[few], old[few], labels[few]))
        assert loss(new[~few], old[~few], labels[~few]) == 0


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("dim", [1, 2, 7, 32])
def test_simplex_vertices(dim: int) -> None:
    vertices = simplex_vertices(dim)
    expected = torch.full((dim + 1, dim + 1), -1 / dim).fill_diagonal_(1.0)
    torch.testing.assert_close(vertices @ vertices.T, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("old_dim", "new_dim"), [(5, 5), (4, 6), (6, 4)])
def test_procrustes(old_dim: int, new_dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    old = torch.randn(100, old_dim, dtype=torch.float64, generator=generator)
    basis = torch.linalg.qr(torch.randn(max(old_dim, new_dim), max(old_dim, new_dim), generator=generator).double())[0]
    true = basis[:new_dim, :old_dim]
    new = old @ true.T
    rotation = procrustes(old, new)
    assert rotation.shape == (new_dim, old_dim)
    small, eye = min(old_dim, new_dim), torch.eye(min(old_dim, new_dim), dtype=torch.float64)
    gram = rotation.T @ rotation if old_dim == small else rotation @ rotation.T
    torch.testing.assert_close(gram, eye)
    if new_dim >= old_dim:  # nothing was lost, so the old vectors come back
        torch.testing.assert_close(new @ rotation, old)
    noisy = new + 0.3 * torch.randn(new.shape, dtype=torch.float64, generator=generator)
    best = (noisy @ procrustes(old, noisy) - old).norm()
    if new_dim == old_dim:
        assert best < (noisy @ true - old).norm()


# ---------------------------------------------------------------- bad input


def test_bad_arguments() -> None:
    new, old, labels = batch()
    for kind in (BCTLoss, AdvBCTLoss):
        with pytest.raises(ValueError, match="num_classes must be positive and finite, got 0"):
            kind(0, DIM)
        loss = kind(NUM_CLASSES, DIM)
        with pytest.raises(ValueError, match=r"labels must be in 0\.\.3, got 4"):
            loss.fit(old, labels + 1)
        with pytest.raises(ValueError, match=r"must be \(N, 5\) and \(N,\), got \(12, 3\) and \(12,\)"):
            loss.fit(old[:, :3], labels)
        loss.fit(old, labels)
        with pytest.raises(ValueError, match=r"labels must be in 0\.\.3, got -1"):
            loss(new, old, labels - 1)
    with pytest.raises(ValueError, match=r"old_classifier must be \(K_old <= 4, 5\), got \(9, 5\)"):
        BCTLoss(NUM_CLASSES, DIM).fit(old, labels, old_classifier=torch.ones(9, 5))
    with pytest.raises(ValueError, match="tau must be positive and finite, got 0"):
        HotRefreshLoss(tau=0)
    with pytest.raises(ValueError, match="top_k must be positive and finite, got 0"):
        HotRefreshLoss(top_k=0)
    with pytest.raises(ValueError, match=r"lam must be in \[0, 1\], got 1\.5"):
        HOCLoss(DIM, lam=1.5)
    with pytest.raises(ValueError, match=r"labels must be in 0\.\.5, got 6"):
        HOCLoss(DIM)(new, old, labels + 3)
    with pytest.raises(ValueError, match="boundary_weight must be non-negative and finite, got -1"):
        AdvBCTLoss(NUM_CLASSES, DIM, boundary_weight=-1)
    with pytest.raises(ValueError, match=r"got \(12, 5\), \(4, 5\)"):
        procrustes(old, new[:4])
