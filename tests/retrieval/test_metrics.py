from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from zoo.retrieval import CrossModelRetrieval, RetrievalCMC, retrieval_scores, similarity


def reference(scores: Tensor, query_labels: Tensor, gallery_labels: Tensor, exclude_self: bool) -> dict[str, float]:
    """One query at a time, average precision by scikit-learn."""
    precision, first = [], []
    for i, row in enumerate(scores.numpy()):
        correct = (gallery_labels == query_labels[i]).numpy()
        if exclude_self:
            row, correct = np.delete(row, i), np.delete(correct, i)
        if not correct.any():
            continue
        precision.append(average_precision_score(correct, row))
        first.append((~correct & (row >= row[correct].max())).sum() + 1)
    return {"map": np.mean(precision), **{f"cmc{k}": np.mean(np.array(first) <= k) for k in (1, 5)}}


@pytest.fixture
def vectors() -> Callable[..., tuple[Tensor, Tensor]]:
    def make(n: int, seed: int, classes: int = 6, dim: int = 8) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(classes, (n,), generator=generator)
        centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(0))
        return 0.5 * (centres[labels] + torch.randn(n, dim, generator=generator)), labels

    return make


@pytest.mark.parametrize(("space", "c"), [("cosine", None), ("euclidean", None), ("lorentz", 0.7)])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_agrees_with_scikit_learn(vectors, space, c, exclude_self):
    queries, query_labels = vectors(60, seed=1)
    gallery, gallery_labels = vectors(60, seed=2)
    found = retrieval_scores(
        queries, gallery, query_labels, gallery_labels, space=space, c=c, exclude_self=exclude_self, chunk_size=7
    )
    want = reference(similarity(queries, gallery, space, c), query_labels, gallery_labels, exclude_self)
    assert found.as_dict() == pytest.approx(want, abs=1e-12)
    assert 0.2 < found.map < 0.95  # neither chance nor ceiling


@settings(deadline=None, max_examples=60)
@given(data=st.data(), m=st.integers(1, 12), n=st.integers(1, 6), exclude_self=st.booleans())
def test_agrees_with_scikit_learn_on_ties(data, m, n, exclude_self):
    """Few distinct points on a line, so that most scores tie; unmatched queries come too."""
    n = m if exclude_self else n

    def draw(count: int) -> Tensor:
        return torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))

    queries, gallery = draw(n).float()[:, None], draw(m).float()[:, None]
    query_labels, gallery_labels = draw(n), draw(m)
    matches = (query_labels[:, None] == gallery_labels).sum(dim=1)
    if exclude_self:
        matches -= (query_labels == gallery_labels).int()
    unmatched = int((matches == 0).sum())
    labels = (query_labels, gallery_labels)
    if unmatched == n:
        with pytest.warns(UserWarning, match="no query"):
            found = retrieval_scores(queries, gallery, *labels, space="euclidean", exclude_self=exclude_self)
        assert np.isnan([found.map, *found.cmc.values()]).all()
    else:
        found = retrieval_scores(queries, gallery, *labels, space="euclidean", exclude_self=exclude_self)
        want = reference(similarity(queries, gallery, "euclidean"), *labels, exclude_self)
        assert found.as_dict() == pytest.approx(want, abs=1e-12)
    assert (found.num_queries, found.num_unmatched) == (n - unmatched, unmatched)


def test_a_collapsed_model_finds_nothing():
    point, labels = torch.ones(20, 4), torch.arange(20) % 10
    found = retrieval_scores(point, point, labels, labels)
    assert found.cmc == {1: 0.0, 5: 0.0}
    assert found.map == pytest.approx(0.1)


def test_result_does_not_depend_on_the_chunk_size(vectors):
    queries, labels = vectors(50, seed=3)
    queries[25:] = queries[:25]  # copies must tie in every chunk
    results = {retrieval_scores(queries, queries, labels, labels, chunk_size=size).map for size in (1, 3, 50, None)}
    assert len(results) == 1


def test_lorentz_order_in_float32_inputs_is_the_float64_order():
    """At radius 4 a float32 inner product resolves distances to about .01 only."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.nn.functional.normalize(torch.randn(32, generator=generator), dim=0)
    gallery = 4 * torch.nn.functional.normalize(centre + 1e-4 * torch.randn(200, 32, generator=generator), dim=1)
    query = 4 * centre[None]
    half = (query.double() - gallery.double()).norm(dim=1) / 8  # sin(angle / 2)
    exact = 2 * torch.asinh(torch.sinh(torch.tensor(4.0, dtype=torch.float64)) * half)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = similarity(query, gallery, "lorentz", 1.0)
    assert scores[0].argsort(descending=True).equal(exact.argsort())


def test_similarity_is_minus_the_distance_or_the_cosine():
    x, y = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0], [1.0, 0.0]])
    assert similarity(x, y).tolist() == [[0.0, 1.0]]
    assert similarity(x, y, "euclidean").tolist() == [[-5.0, -2.0]]
    # one geodesic through the origin: distances subtract
    assert similarity(x, y[1:], "lorentz", 0.25).item() == pytest.approx(-2.0, abs=1e-6)


def test_k_beyond_the_gallery_finds_everything():
    found = retrieval_scores(torch.eye(3), torch.eye(3), torch.arange(3), torch.tensor([1, 2, 0]), ks=(1, 99))
    assert found.cmc == {1: 0.0, 99: 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"space": "poincare"}, "space: want one of"),
        ({"space": "lorentz"}, "c: the lorentz space wants"),
        ({"space": "lorentz", "c": -1.0}, "c: the lorentz space wants"),
        ({"space": "lorentz", "c": float("nan")}, "c: the lorentz space wants"),
        ({"c": 1.0}, "c: only the lorentz space"),
        ({"ks": ()}, "ks: want"),
        ({"ks": (0, 1)}, "ks: want"),
        ({"chunk_size": 0}, "chunk_size: want"),
        ({"exclude_self": True}, "exclude_self: want as many"),
        ({"queries": torch.zeros(2, 3)}, r"gallery: want shape \(N, 3\)"),
        ({"queries": torch.tensor([[0.0, 1], [2, torch.nan]])}, "queries: row 1"),
        ({"gallery": torch.zeros(0, 2), "gallery_labels": torch.zeros(0).long()}, "gallery: want at least one"),
        ({"query_labels": torch.zeros(3).long()}, "query_labels: want integers"),
        ({"gallery_labels": torch.zeros(3)}, "gallery_labels: want integers"),
    ],
)
def test_bad_input(change, message):
    good = {
        "queries": torch.eye(2),
        "gallery": torch.ones(3, 2),
        "query_labels": torch.zeros(2).long(),
        "gallery_labels": torch.zeros(3).long(),
    }
    with pytest.raises(ValueError, match=message):
        retrieval_scores(**{**good, **change})


def test_metric_over_batches_equals_one_pass(vectors):
    queries, labels = vectors(40, seed=4)
    gallery, _ = vectors(40, seed=5)
    metric = CrossModelRetrieval("lorentz", c=1.0, exclude_self=True)
    for batch in torch.arange(40).split(16):
        metric.update(queries[batch], labels[batch], stream="query")
        metric.update(gallery[batch], labels[batch], stream="gallery")
    want = retrieval_scores(queries, gallery, labels, labels, space="lorentz", c=1.0, exclude_self=True)
    assert {name: value.item() for name, value in metric.compute().items()} == pytest.approx(want.as_dict(), abs=1e-7)


def test_both_streams_are_needed():
    metric = CrossModelRetrieval()
    metric.update(torch.eye(2), torch.zeros(2).long(), stream="gallery")
    with pytest.raises(ValueError, match="query: no batch came"):
        metric.compute()


def test_repeated_samples_count_once(vectors):
    embeddings, labels = vectors(30, seed=6)
    padded = torch.cat([torch.arange(30), torch.arange(6)])[torch.randperm(36)]
    want = retrieval_scores(embeddings, embeddings, labels, labels, exclude_self=True)
    metric = CrossModelRetrieval(exclude_self=True)
    metric.update(embeddings[padded], labels[padded], ids=padded)
    assert metric.compute()["map"].item() == pytest.approx(want.map, abs=1e-7)
    blind = CrossModelRetrieval(exclude_self=True)
    blind.update(embeddings[padded], labels[padded])
    assert blind.compute()["map"].item() > want.map + 0.01  # a copy finds its original


def test_retrieval_cmc_is_a_scalar(vectors):
    embeddings, labels = vectors(30, seed=7)
    metric = RetrievalCMC(k=5, exclude_self=True)
    metric.update(embeddings, labels)
    want = retrieval_scores(embeddings, embeddings, labels, labels, exclude_self=True).cmc[5]
    assert metric.compute().item() == pytest.approx(want, abs=1e-7)
    assert 0 < want < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stream": "queries"}, "stream: want one of"),
        ({"labels": torch.zeros(3)}, "labels: want shape"),
        ({"ids": torch.tensor([0])}, "ids: want integers"),
        ({"ids": torch.tensor([0, -1])}, "ids: want integers"),
        ({"embeddings": torch.tensor([[0.0], [torch.inf]])}, "embeddings: row 1"),
    ],
)
def test_bad_batches(arguments, message):
    good = {"embeddings": torch.ones(2, 1), "labels": torch.zeros(2).long()}
    with pytest.raises(ValueError, match=message):
        CrossModelRetrieval().update(**{**good, **arguments})


def test_exclude_self_wants_the_same_samples():
    metric = CrossModelRetrieval(exclude_self=True)
    metric.update(torch.eye(2), torch.zeros(2).long(), ids=torch.tensor([0, 1]), stream="query")
    metric.update(torch.eye(2), torch.zeros(2).long(), ids=torch.tensor([0, 2]), stream="gallery")
    with pytest.raises(ValueError, match="do not hold the same samples"):
        metric.compute()


class Rank(CrossModelRetrieval):
    """One of two processes: where torchmetrics would gather over a process group, the other is asked directly."""

    other: "Rank"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dist_sync_fn=self.gather, distributed_available_fn=lambda: True, **kwargs)

    def sync(self, *args: Any, **kwargs: Any) -> None:
        self.theirs = iter([torch.cat(getattr(self.other, state)) for state in self._reductions])
        super().sync(*args, **kwargs)

    def gather(self, ours: Tensor, group: object) -> list[Tensor]:
        return [ours, next(self.theirs)]


def test_two_processes_equal_one(vectors):
    """31 samples dealt as DistributedSampler deals them, so that sample 0 comes twice."""
    embeddings, labels = vectors(31, seed=8)
    ranks = [Rank(exclude_self=True), Rank(exclude_self=True)]
    for rank, metric in enumerate(ranks):
        metric.other = ranks[1 - rank]
        for batch in (torch.arange(32) % 31)[rank::2].split(6):
            metric.update(embeddings[batch], labels[batch], ids=batch)
    want = retrieval_scores(embeddings, embeddings, labels, labels, exclude_self=True).as_dict()
    for metric in ranks:
        assert {name: value.item() for name, value in metric.compute().items()} == pytest.approx(want, abs=1e-7)
