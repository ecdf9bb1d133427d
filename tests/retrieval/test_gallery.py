import builtins
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.retrieval import GalleryIndex
from zoo.retrieval import gallery as gallery_module

SPACES = [("cosine", None), ("euclidean", None), ("lorentz", 0.7)]


def ball(n: int, dim: int = 32, low: float = 0.5, high: float = 4.0, seed: int = 0) -> Tensor:
    """Tangent vectors of uniform direction whose lengths are uniform in [low, high]."""
    generator = torch.Generator().manual_seed(seed)
    direction = F.normalize(torch.randn(n, dim, generator=generator), dim=1)
    return direction * (low + (high - low) * torch.rand(n, 1, generator=generator))


def distances(x: Tensor, y: Tensor, space: str, c: float | None) -> Tensor:
    """All distances in float64, from the textbook's formulas; fine between separated points."""
    x, y = x.double()[:, None], y.double()[None]
    if space == "cosine":
        return 1 - F.cosine_similarity(x, y, dim=-1)
    if c is None:
        return (x - y).norm(dim=-1)
    rx, ry = x.norm(dim=-1), y.norm(dim=-1)
    cosine = F.cosine_similarity(x, y, dim=-1)
    law = torch.cosh(c**0.5 * rx) * torch.cosh(c**0.5 * ry) - torch.sinh(c**0.5 * rx) * torch.sinh(c**0.5 * ry) * cosine
    return torch.acosh(law.clamp_min(1)) / c**0.5


def recall(found: np.ndarray | Tensor, truth: np.ndarray | Tensor) -> float:
    pairs = zip(np.asarray(found).tolist(), np.asarray(truth).tolist(), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in pairs]))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(gallery_module, "_QUERIES_AT_A_TIME", 7)
    monkeypatch.setattr(gallery_module, "_VECTORS_AT_A_TIME", 33)


@pytest.fixture
def saved(tmp_path) -> Path:
    gallery = GalleryIndex("lorentz", 4, c=1.0, clip_radius=2.0, model_sha="first")
    gallery.add(ball(10, 4, high=2.0), labels=torch.arange(10))
    gallery.add(ball(5, 4, high=3.0, seed=1), labels=torch.arange(5), generation=1, model_sha="second", clip_radius=3.0)
    return gallery.save(tmp_path / "gallery")


# Searching


@pytest.mark.parametrize(("space", "c"), SPACES)
@pytest.mark.usefixtures("small_chunks")
def test_search_is_exact(space, c):
    items, queries = ball(200, 8), ball(30, 8, seed=1)
    gallery = GalleryIndex(space, 8, c=c, dtype="float32")
    for part in items.split(90):
        gallery.add(part)
    found = gallery.search(queries, k=5)
    want, order = distances(queries, items, space, c).sort(dim=1)
    assert found.ids.tolist() == order[:, :5].tolist()
    torch.testing.assert_close(found.distances.double(), want[:, :5], rtol=1e-6, atol=1e-6)


def test_search_tells_near_neighbours_apart_far_from_the_origin():
    """Distances of 1e-3 to 1e-1 at radius 4, where a float32 inner product resolves about 1e-2."""
    centre = ball(1, 16, low=4.0)
    step = torch.linspace(1e-3, 1e-1, 100)
    items = centre + F.normalize(ball(1, 16, seed=1)) * (step / torch.sinh(torch.tensor(4.0)))[:, None] * 4
    shuffled = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    gallery = GalleryIndex("lorentz", 16, c=1.0, dtype="float32")
    gallery.add(items[shuffled], ids=shuffled)
    found = gallery.search(centre, k=100)
    assert found.ids[0].tolist() == list(range(100))
    assert (found.distances[0] > 0).all()


def test_a_stored_vector_is_at_distance_zero_from_itself():
    items = ball(50, 8)
    gallery = GalleryIndex("lorentz", 8, c=1.0, dtype="float32")
    gallery.add(items)
    found = gallery.search(items, k=1)
    assert found.ids[:, 0].tolist() == list(range(50))
    assert found.distances.max() < 1e-6


@pytest.mark.parametrize(("space", "c"), SPACES)
@pytest.mark.parametrize(("dtype", "least"), [("float32", 1.0), ("float16", 0.998), ("int8", 0.985)])
def test_recall_of_stored_types(space, c, dtype, least):
    items, queries = ball(5000), ball(200, seed=1)
    gallery = GalleryIndex(space, 32, c=c, clip_radius=None, dtype=dtype)
    gallery.add(items)
    truth = distances(queries, items, space, c).topk(10, largest=False).indices
    assert recall(gallery.search(queries, k=10).ids, truth) >= least


def test_generations_share_one_index():
    gallery = GalleryIndex("lorentz", 4, c=1.0, clip_radius=1.0, model_sha="first")
    gallery.add(ball(3, 4, low=0.9, high=0.9))
    gallery.add(ball(2, 4, low=0.7, high=0.7, seed=1))
    gallery.add(ball(4, 4, high=3.0, seed=2), generation=1, model_sha="second", clip_radius=3.0)
    assert [(b.generation, b.model_sha, b.clip_radius, b.count) for b in gallery.blocks] == [
        (0, "first", 1.0, 5),
        (1, "second", 3.0, 4),
    ]
    assert gallery.blocks[0].radius == pytest.approx(0.9)
    assert gallery.generations.tolist() == [0] * 5 + [1] * 4
    assert gallery.search(ball(1, 4), k=9).ids.shape == (1, 9)


def test_string_ids_and_labels():
    gallery = GalleryIndex("euclidean", 2)
    gallery.add(torch.eye(2), ids=["cat.png", "a much longer name.png"], labels=[7, 8])
    gallery.add(torch.ones(1, 2), ids=["ones.png"], labels=torch.tensor([9]))
    assert gallery.search(torch.tensor([[0.0, 1.1]]), k=2).ids.tolist() == [["a much longer name.png", "ones.png"]]
    assert gallery.labels is not None
    assert gallery.labels.tolist() == [7, 8, 9]


def test_default_ids_go_on_from_the_largest():
    gallery = GalleryIndex("euclidean", 2)
    gallery.add(torch.eye(2), ids=torch.tensor([5, 3]))
    gallery.add(torch.eye(2))
    assert gallery.ids.tolist() == [5, 3, 6, 7]


def test_equal_distances_come_in_the_order_of_insertion():
    gallery = GalleryIndex("cosine", 2)
    gallery.add(torch.ones(6, 2), ids=[9, 4, 7, 1, 3, 2])
    assert gallery.search(torch.ones(1, 2), k=3).ids.tolist() == [[9, 4, 7]]
    assert gallery.rerank(torch.ones(1, 2), torch.tensor([[5, 0, 3, 2]]), k=3).ids.tolist() == [[9, 7, 1]]


def test_rerank_passes_over_missing_candidates():
    gallery = GalleryIndex("euclidean", 2)
    gallery.add(torch.eye(2))
    assert gallery.rerank(torch.eye(2)[:1], torch.tensor([[-1, 1]]), k=1).ids.tolist() == [[1]]


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"space": "poincare", "dim": 2}, "space: want one of"),
        ({"space": "lorentz", "dim": 2}, "c: the lorentz space wants"),
        ({"space": "cosine", "dim": 2, "c": 1.0}, "c: only the lorentz space"),
        ({"space": "cosine", "dim": 0}, "dim: want"),
        ({"space": "cosine", "dim": 2, "dtype": "int4"}, "dtype: want one of"),
        ({"space": "cosine", "dim": 2, "generation": -1}, "generation: want"),
        ({"space": "cosine", "dim": 2, "clip_radius": 1.0}, "clip_radius: only the lorentz space"),
        ({"space": "lorentz", "dim": 2, "c": 1.0, "clip_radius": 0.0}, "clip_radius: want"),
    ],
)
def test_bad_index(arguments, message):
    with pytest.raises(ValueError, match=message):
        GalleryIndex(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vectors": torch.ones(2, 3)}, r"vectors: want shape \(N, 2\)"),
        ({"vectors": torch.tensor([[0.0, 1], [torch.inf, 1]])}, "vectors: row 1 holds NaN"),
        ({"vectors": torch.tensor([[0.0, 1], [0, 2.5]])}, "vectors: row 1 has length 2.5, want at most clip_radius=2"),
        ({"ids": [1, 1]}, "ids: 1 comes twice"),
        ({"ids": [10, 20]}, "ids: 10 comes twice"),
        ({"ids": ["a", "b"]}, "ids: want integers"),
        ({"ids": [0.5, 1.5]}, "ids: want integers"),
        ({"ids": [1]}, "ids: want 2"),
        ({"labels": None}, "labels: want one for every vector"),
        ({"labels": [0.5, 1.0]}, "labels: want 2 integers"),
        ({"labels": [1]}, "labels: want 2 integers"),
        ({"model_sha": "other"}, "generation: model_sha and clip_radius describe"),
    ],
)
def test_bad_vectors_leave_the_gallery_as_it_was(arguments, message):
    gallery = GalleryIndex("lorentz", 2, c=1.0, clip_radius=2.0)
    gallery.add(torch.eye(2), ids=[10, 11], labels=[0, 1])
    with pytest.raises(ValueError, match=message):
        gallery.add(**{"vectors": torch.eye(2), "labels": [0, 1], **arguments})
    assert (len(gallery), gallery.ids.tolist(), len(gallery.vectors())) == (2, [10, 11], 2)
    gallery.add(torch.eye(2), ids=[1, 2], labels=[0, 1])
    assert len(gallery) == 4


def test_string_ids_cannot_be_made_up():
    gallery = GalleryIndex("cosine", 2)
    gallery.add(torch.eye(2), ids=["a", "b"])
    with pytest.raises(ValueError, match="ids: this gallery has string ids"):
        gallery.add(torch.eye(2))


def test_vectors_that_do_not_fit_their_type():
    gallery = GalleryIndex("euclidean", 1)
    with pytest.raises(ValueError, match="vectors: row 1 is too large for float16"):
        gallery.add(torch.tensor([[1.0], [1e5]]))
    with pytest.raises(ValueError, match="vectors: row 0 is zero"):
        GalleryIndex("cosine", 1).add(torch.zeros(1, 1))


@pytest.mark.parametrize("k", [0, 3])
def test_k_is_at_most_the_size(k):
    gallery = GalleryIndex("euclidean", 2)
    gallery.add(torch.eye(2))
    with pytest.raises(ValueError, match=f"k: want 1 to 2, the size of the gallery, got {k}"):
        gallery.search(torch.eye(2), k)


def test_bad_queries_and_candidates():
    gallery = GalleryIndex("euclidean", 2)
    gallery.add(torch.eye(2))
    with pytest.raises(ValueError, match=r"queries: want shape \(N, 2\), got \(2,\)"):
        gallery.search(torch.ones(2), k=1)
    with pytest.raises(ValueError, match="queries: row 0 holds NaN"):
        gallery.search(torch.full((1, 2), torch.nan), k=1)
    with pytest.raises(ValueError, match=r"rows: want shape \(1, R\)"):
        gallery.rerank(torch.ones(1, 2), torch.zeros(2, 2), k=1)
    with pytest.raises(ValueError, match="rows: want positions below 2"):
        gallery.rerank(torch.ones(1, 2), torch.tensor([[0, 2]]), k=1)
    with pytest.raises(ValueError, match="k: want at least 1 and no more"):
        gallery.rerank(torch.ones(1, 2), torch.tensor([[0, -1]]), k=2)


# Files


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("ids", [None, ["é", "b", "ccc", "d"]])
@pytest.mark.parametrize("labels", [None, [3, 1, 4, 1]])
def test_round_trip(tmp_path, dtype, ids, labels):
    gallery = GalleryIndex("lorentz", 4, c=0.3, clip_radius=4.0, generation=2, model_sha="abc", dtype=dtype)
    gallery.add(ball(4, 4), ids, labels)
    loaded = GalleryIndex.load(gallery.save(tmp_path / "new folder" / "gallery.v1"))
    assert vars(loaded).keys() == vars(gallery).keys()
    assert repr(loaded) == repr(gallery)
    for name in ("space", "dim", "c", "clip_radius", "generation", "model_sha", "dtype", "created", "blocks"):
        assert getattr(loaded, name) == getattr(gallery, name)
    assert loaded.vectors().equal(gallery.vectors())
    assert loaded.ids.tolist() == gallery.ids.tolist()
    assert (loaded.labels is None) if labels is None else (loaded.labels.tolist() == labels)
    with pytest.raises(ValueError, match="comes twice"):
        loaded.add(ball(1, 4), gallery.ids[:1], labels and labels[:1])


def test_an_empty_gallery_round_trips(tmp_path):
    loaded = GalleryIndex.load(GalleryIndex("lorentz", 4, c=1.0, clip_radius=1.0).save(tmp_path / "empty"))
    assert len(loaded) == 0
    assert loaded.to_vectors("l2").shape == (0, 6)
    loaded.add(ball(2, 4, high=1.0), ids=["a", "b"])
    assert len(loaded) == 2


def test_the_json_file_says_what_is_beside_it(saved):
    header = json.loads(saved.read_text())
    assert {
        k: header[k] for k in ("space", "c", "clip_radius", "dim", "generation", "model_sha", "dtype", "version")
    } == {
        "space": "lorentz",
        "c": 1.0,
        "clip_radius": 2.0,
        "dim": 4,
        "generation": 0,
        "model_sha": "first",
        "dtype": "float16",
        "version": 1,
    }
    assert sorted(path.name for path in saved.parent.iterdir()) == sorted(["gallery.json", header["vectors"]])


def test_whoever_reads_one_file_reads_the_other(saved):
    assert len({path.stat().st_mode for path in saved.parent.iterdir()}) == 1


def test_saving_again_replaces_both_files(saved):
    gallery = GalleryIndex.load(saved)
    gallery.add(ball(1, 4, high=2.0, seed=5), labels=[1])
    gallery.save(saved)
    assert len(list(saved.parent.iterdir())) == 2
    assert len(GalleryIndex.load(saved)) == 16
    gallery.save(saved)  # nothing new: the same vectors file
    assert len(GalleryIndex.load(saved)) == 16


@pytest.mark.parametrize("moves", [0, 1])
def test_a_failed_save_leaves_the_old_gallery(saved, monkeypatch, moves):
    """The disk fails before the first or before the second file takes its place."""
    gallery = GalleryIndex.load(saved)
    gallery.add(ball(1, 4, high=2.0, seed=5), labels=[1])
    done, move = [], Path.replace

    def failing(self: Path, target: Path) -> Path:
        if len(done) == moves:
            raise OSError("no space left on device")
        done.append(target)
        return move(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OSError, match="no space left"):
        gallery.save(saved)
    assert len(done) == moves
    assert len(GalleryIndex.load(saved)) == 15
    assert not list(saved.parent.glob("*.tmp"))


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"c": 2.0}, "c: .* holds a gallery with c=1.0, want 2.0"),
        ({"dim": 8}, "dim: .* dim=4, want 8"),
        ({"space": "cosine"}, "space: .* space='lorentz', want 'cosine'"),
        ({"lineage": ["first"]}, "lineage: .* generation 1 by model second, want models among"),
        ({"lineage": []}, "lineage: .* generation 0 by model first"),
    ],
)
def test_load_refuses_another_lineage(saved, expected, message):
    with pytest.raises(ValueError, match=message):
        GalleryIndex.load(saved, **expected)
    assert len(GalleryIndex.load(saved, space="lorentz", dim=4, c=1.0, lineage=["first", "second"])) == 15


def test_vectors_of_an_unknown_model_have_no_lineage(tmp_path):
    gallery = GalleryIndex("cosine", 2)
    gallery.add(torch.eye(2))
    with pytest.raises(ValueError, match="by model None"):
        GalleryIndex.load(gallery.save(tmp_path / "gallery"), lineage=["first"])


def test_missing_files(saved):
    with pytest.raises(FileNotFoundError, match=r"no gallery at .*other\.json"):
        GalleryIndex.load(saved.with_name("other"))
    next(saved.parent.glob("*.safetensors")).unlink()
    with pytest.raises(FileNotFoundError, match="without its vectors"):
        GalleryIndex.load(saved)


@pytest.mark.parametrize("keep", [0, 10, -1])
def test_truncated_files(saved, keep):
    vectors, text = next(saved.parent.glob("*.safetensors")), saved.read_text().strip()
    whole = vectors.read_bytes()
    vectors.write_bytes(whole[:keep])
    with pytest.raises(ValueError, match="truncated or damaged"):
        GalleryIndex.load(saved)
    vectors.write_bytes(whole)
    saved.write_text(text[:keep])
    with pytest.raises(ValueError, match="truncated or no gallery"):
        GalleryIndex.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "is no gallery"),
        ({"version": 99}, "format version 99, want 1"),
        ({"dim": 5}, "does not describe the vectors"),
        ({"dtype": "float32"}, "does not describe the vectors"),
        ({"blocks": []}, "does not describe the vectors"),
        ({"blocks": [{"count": 3}]}, "damaged"),
        ({"c": None}, "c: the lorentz space wants"),
    ],
)
def test_edited_files(saved, change, message):
    saved.write_text(json.dumps({**json.loads(saved.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        GalleryIndex.load(saved)


def test_incomplete_json(saved):
    header = json.loads(saved.read_text())
    del header["sha256"]
    saved.write_text(json.dumps(header))
    with pytest.raises(ValueError, match="damaged: sha256 missing"):
        GalleryIndex.load(saved)


# Vector databases


@pytest.mark.parametrize(("space", "c"), SPACES)
@pytest.mark.parametrize("kind", ["ip", "l2"])
def test_exported_scores_order_and_measure_like_the_space(space, c, kind):
    """What any database would compute from the export, with plain NumPy."""
    items, queries = ball(100, 8), ball(20, 8, seed=1)
    gallery = GalleryIndex(space, 8, c=c, dtype="float32")
    gallery.add(items)
    stored, asked = gallery.to_vectors(kind), gallery.to_queries(queries, kind)
    assert stored.dtype == asked.dtype == np.float32
    stored, asked = stored.astype(np.float64), asked.astype(np.float64)
    scores = asked @ stored.T if kind == "ip" else ((asked[:, None] - stored) ** 2).sum(axis=-1)
    want = distances(queries, items, space, c)
    found = gallery.distance_from_score(scores, kind, queries)
    np.testing.assert_allclose(found, want, atol=2e-4)
    assert (scores.argsort(axis=1)[:, :: 1 if kind == "l2" else -1][:, 0] == want.argmin(dim=1).numpy()).all()


def test_exports_of_a_growing_gallery_fit_together():
    """With the largest planned radius, vectors of a later generation join what is in the database."""
    gallery = GalleryIndex("lorentz", 8, c=1.0, clip_radius=1.0)
    gallery.add(ball(20, 8, high=1.0))
    before = gallery.to_vectors("l2", max_radius=4.0)
    gallery.add(ball(20, 8, seed=1), generation=1, clip_radius=4.0)
    after = gallery.to_vectors("l2", max_radius=4.0)
    assert np.array_equal(before, after[:20])
    norms = np.linalg.norm(after.astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, np.cosh(8.0) ** 0.5, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_rounding_in_storage_never_passes_the_radius(dtype):
    gallery = GalleryIndex("lorentz", 32, c=1.0, clip_radius=4.0, dtype=dtype)
    gallery.add(ball(500, low=4.0))
    stored = gallery.to_vectors("l2")
    assert gallery.vectors().norm(dim=1).max() > 4.0 + 1e-4
    np.testing.assert_allclose(np.linalg.norm(stored.astype(np.float64), axis=1), np.cosh(8.0) ** 0.5, rtol=1e-6)


def test_bad_exports():
    gallery = GalleryIndex("lorentz", 8, c=1.0)
    gallery.add(ball(20, 8, low=3.0, high=3.0))
    with pytest.raises(ValueError, match="kind: want 'ip' or 'l2', got 'cosine'"):
        gallery.to_vectors("cosine")
    with pytest.raises(ValueError, match="kind: want"):
        gallery.to_queries(ball(1, 8), "cosine")
    with pytest.raises(ValueError, match=r"max_radius: the gallery has a vector of length 3, got 2\.0"):
        gallery.to_vectors("l2", max_radius=2.0)
    with pytest.raises(ValueError, match=r"max_radius: want sqrt\(c\) \* max_radius <= 8"):
        gallery.to_vectors("l2", max_radius=9.0)
    with pytest.raises(ValueError, match="queries: 'l2' scores of the lorentz space need them"):
        gallery.distance_from_score(np.zeros((1, 1)), "l2")


def test_faiss_missing(monkeypatch):
    original = builtins.__import__

    def without_faiss(name, *args, **kwargs):
        if name == "faiss":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    with pytest.raises(ImportError, match="pip install faiss-cpu"):
        GalleryIndex("cosine", 2).to_faiss("ip")


# faiss: lengths 0.5 to 4 at c = 1, dimension 32, the setting in which a graph of inner products fails


@pytest.fixture(scope="module")
def faiss():
    return pytest.importorskip("faiss")


@pytest.fixture(scope="module")
def indexed() -> GalleryIndex:
    gallery = GalleryIndex("lorentz", 32, c=1.0, clip_radius=4.0, dtype="float32")
    gallery.add(ball(5000))
    return gallery


@pytest.fixture(scope="module")
def queries() -> Tensor:
    return ball(200, seed=1)


@pytest.fixture(scope="module")
def truth(indexed, queries) -> np.ndarray:
    return indexed.search(queries, k=10).ids


def test_flat_inner_product_is_exact(faiss, indexed, queries, truth):
    scores, rows = indexed.to_faiss("ip").search(indexed.to_queries(queries, "ip"), 10)
    assert recall(indexed.ids[rows], truth) == 1.0
    reranked = indexed.rerank(queries, rows, k=10)
    assert reranked.ids.tolist() == truth.tolist()
    np.testing.assert_allclose(indexed.distance_from_score(scores, "ip"), reranked.distances, atol=1e-3)


def test_graph_of_distances_finds_the_neighbours(faiss, indexed, queries, truth):
    scores, rows = indexed.to_faiss("l2").search(indexed.to_queries(queries, "l2"), 10)
    assert recall(indexed.ids[rows], truth) >= 0.99
    want = indexed.rerank(queries, rows, k=10).distances
    np.testing.assert_allclose(indexed.distance_from_score(scores, "l2", queries), want, atol=1e-3)


def test_graph_of_inner_products_does_not(faiss, indexed, queries, truth):
    with pytest.raises(ValueError, match="factory: 'HNSW32' on inner products misses most neighbours"):
        indexed.to_faiss("ip", "HNSW32")
    index = faiss.index_factory(33, "HNSW32", faiss.METRIC_INNER_PRODUCT)
    index.add(indexed.to_vectors("ip"))
    _, rows = index.search(indexed.to_queries(queries, "ip"), 10)
    assert recall(rows, truth) < 0.5


@pytest.mark.parametrize(("space", "kind"), [("cosine", "ip"), ("cosine", "l2"), ("euclidean", "l2")])
def test_flat_spaces(faiss, queries, space, kind):
    gallery = GalleryIndex(space, 32)
    gallery.add(ball(1000), ids=[f"{i}.png" for i in range(1000)])
    _, rows = gallery.to_faiss(kind, "Flat").search(gallery.to_queries(queries, kind), 10)
    assert recall(gallery.ids[rows], gallery.search(queries, k=10).ids) >= 0.999


def test_an_index_that_is_trained(faiss, indexed, queries, truth):
    index = indexed.to_faiss("l2", "IVF16,Flat")
    index.nprobe = 16
    _, rows = index.search(indexed.to_queries(queries, "l2"), 10)
    assert recall(indexed.ids[rows], truth) >= 0.999
