"""Encoders by name: two small nets for 14 x 14 images, a CIFAR ResNet-18, and everything timm has."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn


class SmallCNN(nn.Module):
    """Three 3 x 3 convolutions (8, 16, 32 channels, strides 1, 2, 2), pooled to 2 x 2, and a linear layer.

    Args:
        embed_dim: Output dimension D.
        in_channels: Input channels C.
    """

    def __init__(self, embed_dim: int, in_channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, stride in ((8, 1), (16, 2), (32, 2)):
            layers += [
                nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            ]
            in_channels = channels
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.project = nn.Linear(4 * in_channels, embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to features (B, D)."""
        return self.project(self.features(images))


class SmallMLP(nn.Module):
    """One hidden layer of 24 units with batch norm: a deliberately weak first generation.

    Args:
        embed_dim: Output dimension D.
        in_features: Input size C * H * W.
        hidden: Units of the hidden layer.
    """

    def __init__(self, embed_dim: int, in_features: int, hidden: int = 24) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(),
            nn.Linear(in_features, hidden, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, embed_dim),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to features (B, D)."""
        return self.net(images)


def build_encoder(
    name: str, embed_dim: int, in_channels: int = 1, image_size: int = 14, pretrained: bool = False
) -> nn.Module:
    """An encoder from images (B, C, H, W) to features (B, D).

    Args:
        name: ``cnn``, ``mlp``, ``resnet18_cifar`` (3 x 3 stem, no max-pool) or any timm model name.
        embed_dim: Output dimension D; a linear layer maps a timm backbone's features to it.
        in_channels: Input channels C.
        image_size: Height and width H = W in pixels; used by the MLP and by timm models of fixed input size.
        pretrained: Load timm's weights into the backbone; downloads them unless they are cached.

    Raises:
        ValueError: If the name is neither ours nor timm's, or of ours and ``pretrained``.
    """
    if pretrained and name in ("cnn", "mlp", "resnet18_cifar"):
        raise ValueError(f"pretrained: there are no weights for the encoder {name!r}")
    if name == "cnn":
        return SmallCNN(embed_dim, in_channels)
    if name == "mlp":
        return SmallMLP(embed_dim, in_channels * image_size**2)

    import timm  # 2 s to import, and the small nets do without

    if name == "resnet18_cifar":
        backbone = timm.create_model("resnet18", num_classes=0, in_chans=in_channels)
        backbone.conv1 = nn.Conv2d(in_channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(backbone.conv1.weight, mode="fan_out", nonlinearity="relu")
        backbone.maxpool = nn.Identity()
    elif timm.is_model(name):
        sized: dict[str, Any] = {"img_size": image_size} if timm.models.is_model_in_modules(name, _FIXED_SIZE) else {}
        backbone = timm.create_model(name, pretrained, num_classes=0, in_chans=in_channels, **sized)
    else:
        near = timm.list_models(f"*{name}*")[:3]
        hint = f"; timm has {', '.join(near)}" if near else ""
        raise ValueError(f"encoder must be 'cnn', 'mlp', 'resnet18_cifar' or a timm model, got {name!r}{hint}")
    features = int(backbone.num_features)  # type: ignore[arg-type]
    project = nn.Linear(features, embed_dim)
    nn.init.normal_(project.weight, std=1 / math.sqrt(features))
    nn.init.zeros_(project.bias)
    return nn.Sequential(backbone, project)


# timm families whose constructor wants the input size.
_FIXED_SIZE = ("vision_transformer", "deit", "beit", "swin_transformer", "mlp_mixer", "cait", "crossvit")
