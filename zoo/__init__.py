"""The Paper Zoo: recent papers' methods as PyTorch Lightning modules and callbacks.

``zoo.list_models()`` names the recipes, ``zoo.create_model(name)`` builds one as a LightningModule.
Callbacks live in ``zoo.callbacks``; each paper has a folder, e.g. ``zoo.hyperbolic_bct``.
"""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

__all__ = ["create_model", "list_models"]

__version__ = "0.1.0.dev0"


def list_models(pattern: str = "*") -> list[str]:
    """Names of the model recipes that match a shell pattern, sorted.

    >>> list_models("hyperbolic_bct")
    ['hyperbolic_bct']
    """
    from zoo import recipes

    return [name for name in recipes.names("model") if fnmatch(name, pattern)]


def create_model(name: str, **init_args: Any) -> LightningModule:
    """Build the LightningModule of a recipe, untrained.

    Args:
        name: A recipe, one of :func:`list_models`.
        **init_args: Constructor arguments that replace the recipe's.

    Returns:
        The module. Where the recipe takes a checkpoint of an earlier run (``{before.NAME}``), the
        argument is left at its default unless you give it.

    Raises:
        zoo.recipes.UnknownRecipeError: If there is no such recipe.
        TypeError: If the module's constructor has no such argument.
    """
    from zoo import recipes

    model = recipes.load(name)["model"]
    recipe_args = {k: v for k, v in model.get("init_args", {}).items() if not recipes.is_earlier_run(v)}
    return recipes.import_class(model["class_path"])(**{**recipe_args, **init_args})
