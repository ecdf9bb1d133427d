from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zoo.retrieval import (
    CompatibilityScore,
    average_accuracy,
    average_compatibility,
    p_com,
    p_up,
    retrieval_scores,
    satisfied,
)

# CMC@1 on CIFAR-100, arXiv 2506.05826, Table 1: (M(o,o), M(*,*)) of each scenario and geometry, and
# (self, cross, P_up, P_com) of each method.
PUBLISHED = {
    ("Ext-class", "Euclidean"): (0.376, 0.716),
    ("Ext-class", "hyperbolic"): (0.425, 0.722),
    ("New-arch", "Euclidean"): (0.714, 0.900),
    ("New-arch", "hyperbolic"): (0.723, 0.897),
}
ROWS = [
    ("Ext-class", "Euclidean", "independent", 0.716, 0.019, 0, -1.052),
    ("Ext-class", "Euclidean", "l2", 0.712, 0.478, -0.005, 0.302),
    ("Ext-class", "Euclidean", "BCT", 0.695, 0.447, -0.029, 0.210),
    ("Ext-class", "Euclidean", "Hot-Refresh", 0.715, 0.498, -0.001, 0.360),
    ("Ext-class", "Euclidean", "AdvBCT", 0.708, 0.459, -0.011, 0.244),
    ("Ext-class", "Euclidean", "HOC", 0.713, 0.490, -0.003, 0.336),
    ("Ext-class", "hyperbolic", "independent", 0.722, 0.002, 0, -1.428),
    ("Ext-class", "hyperbolic", "HBCT w/o entailment", 0.726, 0.555, 0.006, 0.435),
    ("Ext-class", "hyperbolic", "HBCT", 0.722, 0.572, -0.001, 0.495),
    ("New-arch", "Euclidean", "independent", 0.900, 0.021, 0, -3.706),
    ("New-arch", "Euclidean", "l2", 0.896, 0.778, -0.005, 0.343),
    ("New-arch", "Euclidean", "BCT", 0.897, 0.830, -0.004, 0.623),
    ("New-arch", "Euclidean", "Hot-Refresh", 0.897, 0.810, -0.003, 0.517),
    ("New-arch", "Euclidean", "AdvBCT", 0.891, 0.797, -0.011, 0.449),
    ("New-arch", "Euclidean", "HOC", 0.895, 0.813, -0.006, 0.534),
    ("New-arch", "hyperbolic", "independent", 0.897, 0.009, 0, -4.085),
    ("New-arch", "hyperbolic", "HBCT w/o entailment", 0.898, 0.6915, 0.001, -0.178),
    ("New-arch", "hyperbolic", "HBCT", 0.893, 0.886, -0.004, 0.937),
]


def span(function, *rounded: float) -> tuple[float, float]:
    """Least and largest value of a function of scores that were rounded to three digits, itself rounded too."""
    values = [function(*exact) for exact in product(*((x - 5e-4, x + 5e-4) for x in rounded))]
    return min(values) - 5e-4, max(values) + 5e-4


@pytest.mark.parametrize(("scenario", "geometry", "method", "own", "cross", "up", "com"), ROWS)
def test_published_columns_follow_from_the_scores(scenario, geometry, method, own, cross, up, com):
    old, independent = PUBLISHED[scenario, geometry]
    low, high = span(p_com, cross, old, independent)
    assert low <= com <= high
    if method == "independent":  # far below zero, where rounding of the scores shows more
        assert p_up(own, independent) == up == 0
    else:
        assert round(abs(p_com(cross, old, independent) - com), 3) <= 0.003
        assert p_up(own, independent) == pytest.approx(up, abs=0.0015)


@given(old=st.floats(0, 0.9), gain=st.floats(0.01, 0.1), share=st.floats(-5, 2))
def test_p_com_is_the_share_of_the_gain(old, gain, share):
    cross = old + share * gain
    assert p_com(cross, old, old + gain) == pytest.approx(share, abs=1e-9)
    assert satisfied(cross, old) == (cross > old)


def test_undefined_scores_are_nan_with_a_warning():
    with pytest.warns(UserWarning, match="P_com is undefined"):
        assert p_com(0.5, 0.4, 0.4) != p_com(0.5, 0.4, 0.4)
    with pytest.warns(UserWarning, match="P_up is undefined"):
        assert p_up(0.5, 0.0) != 0
    with pytest.warns(UserWarning, match="single model"):
        assert average_compatibility([[0.3]]) != average_compatibility([[0.3]])


def test_equality_fails_if_strict():
    assert not satisfied(0.5, 0.5)
    assert satisfied(0.5, 0.5, strict=False)


def test_chain_of_models():
    nan = float("nan")  # above the diagonal nothing is read
    chain = [[0.6, nan, nan], [0.7, 0.8, nan], [0.6, 0.9, 0.85]]
    assert average_compatibility(chain) == pytest.approx(2 / 3)  # 0.6 in the first gallery only equals it
    assert average_compatibility(chain, strict=False) == 1
    assert average_accuracy(torch.tensor(chain)) == pytest.approx((0.6 + 0.7 + 0.8 + 0.6 + 0.9 + 0.85) / 6)


@pytest.mark.parametrize("function", [average_compatibility, average_accuracy])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0.1, 0.2]], "want shape"),
        ([0.1], "want shape"),
        (torch.empty(0, 0), "want shape"),
        ([[0.1, 0.2], [float("nan"), 0.3]], "row 1, column 0 is nan"),
    ],
)
def test_bad_matrix(function, matrix, message):
    with pytest.raises(ValueError, match=f"matrix: {message}"):
        function(matrix)


def test_metric_puts_the_scores_together():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    new = torch.eye(4)[labels] + 0.4 * torch.randn(40, 4, generator=generator)
    old = torch.eye(4)[labels] + 0.8 * torch.randn(40, 4, generator=generator)
    metric = CompatibilityScore("euclidean", ks=(1,), independent={"map": 0.95})
    padded = torch.cat([torch.arange(40), torch.arange(8)])
    for batch in padded.split(20):
        metric.update(new[batch], old[batch], labels[batch], ids=batch)
    found = {name: value.item() for name, value in metric.compute().items()}

    own, cross, before = (
        retrieval_scores(queries, gallery, labels, labels, space="euclidean", exclude_self=True)
        for queries, gallery in ((new, new), (new, old), (old, old))
    )
    assert found == pytest.approx(
        {
            "self_cmc1": own.cmc[1],
            "cross_cmc1": cross.cmc[1],
            "old_cmc1": before.cmc[1],
            "satisfied_cmc1": float(cross.cmc[1] > before.cmc[1]),
            "self_map": own.map,
            "cross_map": cross.map,
            "old_map": before.map,
            "satisfied_map": 1.0,
            "p_up_map": (own.map - 0.95) / 0.95,
            "p_com_map": (cross.map - before.map) / (0.95 - before.map),
        },
        abs=1e-6,
    )
    assert own.map > cross.map > before.map


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": torch.ones(2, 4)}, r"old: want shape \(N, 3\)"),
        ({"new": torch.full((2, 3), torch.nan)}, "new: row 0"),
        ({"labels": torch.zeros(3).long()}, "old, labels: want 2"),
        ({"ids": torch.tensor([1])}, "ids: want"),
    ],
)
def test_bad_batches(change, message):
    good = {"new": torch.ones(2, 3), "old": torch.ones(2, 3), "labels": torch.zeros(2).long()}
    with pytest.raises(ValueError, match=message):
        CompatibilityScore().update(**{**good, **change})


def test_independent_scores_are_named():
    with pytest.raises(ValueError, match=r"independent: want names among .*'map'"):
        CompatibilityScore(ks=(1,), independent={"cmc5": 0.9})
