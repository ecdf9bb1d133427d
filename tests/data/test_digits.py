import pytest
import torch

from zoo.data import Digits


def test_images() -> None:
    digits = Digits()
    digits.setup()
    images, labels = next(iter(digits.train_dataloader()))
    assert (images.shape, images.dtype) == ((128, *digits.image_shape), torch.float32)
    assert (labels.shape, labels.dtype) == ((128,), torch.int64)
    assert float(images.min()) == 0
    assert float(images.max()) == 1


def test_splits_hold_every_image_once_in_proportion() -> None:
    digits = Digits(val_fraction=0.2, test_fraction=0.3)
    digits.setup()
    parts = [digits.dataset(split) for split in ("train", "val", "test")]
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(1797))
    total = sum(part.labels.bincount() for part in parts)
    for part, fraction in zip(parts, (0.5, 0.2, 0.3), strict=True):
        assert (part.labels.bincount() - fraction * total).abs().max() <= 1


def test_labels_belong_to_their_images() -> None:
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    digits = Digits()
    digits.setup()
    for images, labels in digits.test_dataloader():
        for image, label in zip(images[:5], labels[:5], strict=True):
            found = (torch.from_numpy(sklearn.images) == image[0] * 16).all(dim=(1, 2))
            assert int(label) in sklearn.target[found.numpy()]


@pytest.mark.parametrize(
    ("name", "value"), [("val_fraction", 0.0), ("val_fraction", 1.0), ("test_fraction", 0.0), ("test_fraction", 0.9)]
)
def test_bad_arguments(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: want .*, got {value}"):
        Digits(**{name: value})
