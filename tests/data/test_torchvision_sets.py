import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from zoo.data import CIFAR10, CIFAR100, TinyImageNet
from zoo.data.randomness import BatchKey
from zoo.data.torchvision_sets import Photo, crop_and_mirror

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def write(path: Path, content: object) -> str:
    """Pickle, and give the MD5 sum."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content))
    return hashlib.md5(path.read_bytes()).hexdigest()


def pictures(labels: list[int], seed: int) -> np.ndarray:
    """Rows as CIFAR has them: 3072 bytes, all red, then green, then blue. The first byte is the label."""
    rows = np.random.default_rng(seed).integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    rows[:, 0] = labels
    return rows


@pytest.fixture(params=[CIFAR10, CIFAR100], ids=["cifar10", "cifar100"])
def cifar(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in in the real format: 20 training and 2 test images of each class."""
    cls = request.param
    ten = cls is CIFAR10
    label_key = "labels" if ten else "fine_labels"
    folder = tmp_path / ("cifar-10-batches-py" if ten else "cifar-100-python")
    official = getattr(torchvision.datasets, cls.__name__)
    names = [f"class {label}" for label in range(cls.full_classes)]
    sums: dict[str, list[list[str]]] = {"train_list": [], "test_list": []}
    for split, per_class in (("train_list", 20), ("test_list", 2)):
        files = [name for name, _ in getattr(official, split)]
        labels = np.random.default_rng(0).permutation(np.repeat(np.arange(cls.full_classes), per_class))
        for number, part in enumerate(np.array_split(labels, len(files))):
            content = {"data": pictures(part.tolist(), number), label_key: part.tolist()}
            sums[split].append([files[number], write(folder / files[number], content)])
    meta = dict(official.meta)
    meta["md5"] = write(folder / meta["filename"], {meta["key"]: names})
    for name, value in {**sums, "meta": meta}.items():
        monkeypatch.setattr(official, name, value)
    return lambda **kwargs: cls(str(tmp_path), **{"batch_size": 16, **kwargs})


class TestCIFAR:
    def test_reads_the_official_format(self, cifar: Any) -> None:
        module = cifar()
        module.setup()
        assert module.num_classes == len(module.class_names)
        assert module.class_names[3] == "class 3"
        for split, per_class in (("train", 18), ("val", 2), ("test", 2)):
            data = module.dataset(split)
            assert data.labels.bincount().tolist() == [per_class] * module.num_classes
            # Undo the normalisation: the first red pixel is the label.
            images, labels = data.__getitems__(range(20))
            first = images[:, 0, 0, 0] * module.std[0] + module.mean[0]
            torch.testing.assert_close(first * 255, labels.float(), rtol=0, atol=1e-3)
        images, labels = next(iter(module.train_dataloader()))
        assert (images.shape, images.dtype, labels.dtype) == ((16, 3, 32, 32), torch.float32, torch.int64)

    def test_fractions(self, cifar: Any) -> None:
        half, full = cifar(val_fraction=0.25, train_fraction=0.5), cifar(val_fraction=0)
        for module in (half, full):
            module.setup()
        assert half.dataset("val").labels.bincount().tolist() == [5] * half.num_classes
        assert half.dataset("train").labels.bincount().tolist() == [8] * half.num_classes  # round(7.5)
        assert not set(half.dataset("val").rows.tolist()) & set(half.dataset("train").rows.tolist())
        assert len(full.dataset("train")) == 20 * full.num_classes
        assert full.val_dataloader() == []

    def test_size_and_classes(self, cifar: Any) -> None:
        module = cifar(size=48, classes=[2, 5])
        module.setup()
        images, labels = next(iter(module.train_dataloader()))
        assert images.shape == (16, *module.image_shape) == (16, 3, 48, 48)
        assert set(labels.tolist()) == {2, 5}

    def test_augments_training_only(self, cifar: Any) -> None:
        plain, augmented = cifar(augment=False, drop_last=False), cifar(drop_last=False)
        for module in (plain, augmented):
            module.setup()
        a, b = (torch.cat([images for images, _ in m.train_dataloader()]) for m in (plain, augmented))
        assert (a != b).flatten(1).any(1).float().mean() > 0.9
        a, b = (torch.cat([images for images, _ in m.test_dataloader()]) for m in (plain, augmented))
        assert torch.equal(a, b)

    def test_damaged_file(self, cifar: Any) -> None:
        module = cifar()
        for path in module.root.rglob("*"):
            if path.name in ("train", "data_batch_1"):
                path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(FileNotFoundError, match=r"CIFAR-10+ is not \(or not whole\).*--data.download true"):
            module.setup()

    @pytest.mark.parametrize("cls", [CIFAR10, CIFAR100])
    def test_missing(self, cls: type[CIFAR10], tmp_path: Path) -> None:
        module = cls(str(tmp_path / "nowhere"))
        module.prepare_data()  # downloads nothing unless asked to
        with pytest.raises(FileNotFoundError, match=r"nowhere: .*--data.root DIR.*--data.download true"):
            module.setup()
        assert not (tmp_path / "nowhere").exists()

    def test_download_is_asked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        class Fake:
            def __init__(self, root: str, train: bool, download: bool) -> None:
                asked.append((root, train, download))

        monkeypatch.setattr(torchvision.datasets, "CIFAR100", Fake)
        CIFAR100(str(tmp_path), download=True).prepare_data()
        assert asked == [(str(tmp_path), True, True), (str(tmp_path), False, True)]


WNIDS = ["n02", "n01", "n03"]  # not in order, as in the real file


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in in the real layout: 3 classes, 10 training and 2 test images each; the red value is the class."""
    monkeypatch.setattr(TinyImageNet, "full_classes", 3)
    base = tmp_path / TinyImageNet.folder
    base.mkdir()
    (base / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (base / "words.txt").write_text("n01\tcat, true cat\nn02\tdog\nn03\tsnail\nn99\tunused\n")
    annotations = []
    (base / "val" / "images").mkdir(parents=True)
    for wnid in WNIDS:
        red = 80 * WNIDS.index(wnid)
        folder = base / "train" / wnid / "images"
        folder.mkdir(parents=True)
        for number in range(10):
            # One grey image: some of the real ones are.
            grey = number == 0
            picture = Image.new("L" if grey else "RGB", (64, 64), red if grey else (red, 10 * number, 0))
            picture.save(folder / f"{wnid}_{number}.JPEG", quality=100)
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
        for _ in range(2):
            name = f"val_{len(annotations)}.JPEG"
            Image.new("RGB", (64, 64), (red, 200, 0)).save(base / "val" / "images" / name, quality=100)
            annotations.append(f"{name}\t{wnid}\t0\t32\t44\t62")
    (base / "val" / "val_annotations.txt").write_text("\n".join(reversed(annotations)) + "\n")
    return tmp_path


class TestTinyImageNet:
    def test_reads_the_official_layout(self, tiny: Path) -> None:
        module = TinyImageNet(str(tiny), val_fraction=0.2, batch_size=4)
        module.setup()
        assert module.class_names == ("cat", "dog", "snail")
        for split, per_class in (("train", 8), ("val", 2), ("test", 2)):
            data = module.dataset(split)
            assert data.labels.bincount().tolist() == [per_class] * 3
            images, labels = data.__getitems__(range(len(data)))
            red = (images[:, 0].mean((1, 2)) * module.std[0] + module.mean[0]) * 255
            wnid = [WNIDS.index(sorted(WNIDS)[label]) for label in labels.tolist()]
            torch.testing.assert_close(red, 80 * torch.tensor(wnid).float(), rtol=0, atol=3.0)
        images, labels = next(iter(module.train_dataloader()))
        assert (images.shape, images.dtype, labels.dtype) == ((4, 3, 64, 64), torch.float32, torch.int64)

    def test_workers_change_nothing(self, tiny: Path) -> None:
        plain, workers = (TinyImageNet(str(tiny), batch_size=5, num_workers=n) for n in (0, 2))
        for module in (plain, workers):
            module.setup()
        for ours, theirs in zip(plain.train_dataloader(), workers.train_dataloader(), strict=True):
            assert torch.equal(ours[0], theirs[0])

    @pytest.mark.parametrize("gone", ["wnids.txt", "words.txt", "val/val_annotations.txt", "train/n02/images"])
    def test_missing(self, tiny: Path, gone: str) -> None:
        path = tiny / TinyImageNet.folder / gone
        path.rename(path.with_name("elsewhere"))
        with pytest.raises(FileNotFoundError, match=r"Tiny-ImageNet is not .*--data.download true"):
            TinyImageNet(str(tiny)).setup()

    def test_download_is_asked_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        monkeypatch.setattr(
            "torchvision.datasets.utils.download_and_extract_archive", lambda *args, **kwargs: asked.append(args)
        )
        TinyImageNet(str(tmp_path)).prepare_data()
        assert asked == []
        TinyImageNet(str(tmp_path), download=True).prepare_data()
        assert asked == [(TinyImageNet.url, str(tmp_path))]

    def test_no_download_of_what_is_there(self, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torchvision.datasets.utils.download_and_extract_archive", pytest.fail)
        TinyImageNet(str(tiny), download=True).prepare_data()


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 9))
def test_crop_and_mirror_against_a_loop(count: int, padding: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(1, 256, (count, 2, 5, 7), generator=generator, dtype=torch.uint8)
    random = torch.rand(count, 3, generator=generator)
    got = crop_and_mirror(pixels, random, padding)
    for image, numbers, result in zip(pixels, random, got, strict=True):
        canvas = torch.zeros(2, 5 + 2 * padding, 7 + 2 * padding, dtype=torch.uint8)
        canvas[:, padding : padding + 5, padding : padding + 7] = image
        top, left = (int(number * (2 * padding + 1)) for number in numbers[:2])
        crop = canvas[:, top : top + 5, left : left + 7]
        assert torch.equal(result, crop.flip(-1) if numbers[2] < 0.5 else crop)


def test_photo_normalises_and_resizes() -> None:
    pixels = torch.randint(0, 256, (4, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    want = (pixels.double() / 255 - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    torch.testing.assert_close(Photo(MEAN, STD, 8, padding=2)(pixels, None).double(), want, rtol=0, atol=1e-6)
    key = BatchKey(0, 0, 0, [0, 1, 2, 3], 4)
    assert torch.equal(Photo(MEAN, STD, 8)(pixels, key), Photo(MEAN, STD, 8)(pixels, None))
    flat = torch.full((1, 3, 8, 8), 51, dtype=torch.uint8)
    large = Photo(MEAN, STD, 16)(flat, None)
    assert large.shape == (1, 3, 16, 16)
    torch.testing.assert_close(large[0, :, 3, 5], (0.2 - torch.tensor(MEAN)) / torch.tensor(STD))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 4),
        ("val_fraction", 1.0),
        ("val_fraction", -0.1),
        ("train_fraction", 0.0),
        ("train_fraction", 1.1),
        ("classes", 101),
    ],
)
def test_bad_arguments(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: want .*, got {value!r}"):
        CIFAR100(**{name: value})
