"""Recipes: the YAML files under ``conf/``, found by group and name.

Imports nothing heavy, so that ``zoo list`` answers at once.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import re
from argparse import Namespace
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

_EARLIER = re.compile(r"\{before\.(\w+)\}")

# libyaml reads a recipe about ten times faster than the pure Python loader.
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnknownRecipeError(ValueError):
    """No recipe of that name; the message lists the nearest names and all of them."""


@dataclass(frozen=True)
class About:
    """What ``zoo list`` prints of a recipe: its ``about:`` section."""

    name: str
    summary: str = ""
    paper: str = ""
    data: str = ""
    minutes: float | None = None
    """Expected minutes on two CPU cores; None where the recipe wants a GPU."""
    table: tuple[str, ...] = ()
    """Test metrics that the table at the end of a run shows; all of them if empty."""


def conf_dir() -> Path:
    """The folder of recipes, in the checkout or in the installed package."""
    return Path(str(files("zoo.conf")))


@functools.cache
def groups() -> tuple[str, ...]:
    """Names of the recipe groups (``model``, ``data``, ``callbacks``, ...), sorted."""
    return tuple(sorted(d.name for d in conf_dir().iterdir() if d.is_dir() and any(d.glob("*.yaml"))))


@functools.cache
def names(group: str = "model") -> tuple[str, ...]:
    """Names of the recipes in ``group``, sorted."""
    return tuple(sorted(p.stem for p in (conf_dir() / group).glob("*.yaml")))


def path(name: str, group: str = "model") -> Path:
    """Path of the recipe ``conf/<group>/<name>.yaml``.

    Raises:
        UnknownRecipeError: If there is no such recipe.
    """
    if name not in names(group):
        raise UnknownRecipeError(unknown(name, group))
    return conf_dir() / group / f"{name}.yaml"


def load(name: str, group: str = "model") -> dict[str, Any]:
    """The recipe as a plain dict.

    Raises:
        UnknownRecipeError: If there is no such recipe.
    """
    with path(name, group).open(encoding="utf-8") as stream:
        return yaml.load(stream, Loader=_Loader) or {}


def about(name: str) -> About:
    """The ``about:`` section of a model recipe.

    Raises:
        UnknownRecipeError: If there is no such recipe.
    """
    return About(name=name, **load(name).get("about", {}))


def import_class(class_path: str) -> Any:
    """The class that a recipe names, e.g. ``zoo.hyperbolic_bct.HyperbolicBCT``."""
    module, _, name = class_path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def unknown(name: str, group: str) -> str:
    """One message for a name that is no recipe: what came, the nearest names, all names."""
    have = names(group)
    near = difflib.get_close_matches(name, have, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"unknown {group} {name!r}.{hint} Known: {', '.join(have)}."


def fill(value: Any, values: dict[str, str]) -> Any:
    """Replace placeholders such as ``{run}`` in every string of a config, nested or not.

    A string that is one whole ``{before.NAME}`` without a value becomes None: nothing ran before.
    """
    if isinstance(value, str):
        for placeholder, text in values.items():
            value = value.replace(placeholder, text)
        return None if is_earlier_run(value) else value
    if isinstance(value, list):
        return [fill(v, values) for v in value]
    if isinstance(value, dict):
        return {key: fill(v, values) for key, v in value.items()}
    if isinstance(value, Namespace):
        for key, v in vars(value).items():
            setattr(value, key, fill(v, values))
    return value


def is_earlier_run(value: Any) -> bool:
    """Whether a config value stands for the checkpoint of an earlier run: ``{before.NAME}``."""
    return isinstance(value, str) and _EARLIER.fullmatch(value) is not None


def earlier_runs(value: Any) -> set[str]:
    """Names of the earlier runs that a config mentions."""
    if isinstance(value, str):
        return set(_EARLIER.findall(value))
    if isinstance(value, dict):
        return set().union(*map(earlier_runs, value.values()))
    if isinstance(value, list):
        return set().union(*map(earlier_runs, value))
    return set()
