"""A command line, with recipe names resolved to files. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zoo import recipes

VERBS = ("fit", "validate", "test", "predict")


class CommandError(Exception):
    """Bad input on the command line: one message, no traceback, exit code 2."""


@dataclass
class Command:
    """A command line, with recipe names resolved to files."""

    verb: str = "fit"
    test_after: bool = True
    """No verb was given: test on the best checkpoint after training."""
    model: str | None = None
    """Recipe name of the model."""
    configs: list[str] = field(default_factory=list)
    """YAML files (or YAML text), earliest first; options on the command line win over all of them."""
    options: list[str] = field(default_factory=list)
    """What goes through to LightningCLI unchanged."""
    ckpt_path: str | None = None
    run_dir: str | None = None
    help: bool = False


def parse(arguments: Sequence[str]) -> Command:
    """Resolve recipe names in a command line.

    For every folder G in ``conf/``, ``--G NAME`` and ``--G=NAME`` stand for that recipe's file. A value that
    cannot be a recipe (a dotted class path, a file, inline YAML) goes through unchanged.

    Raises:
        CommandError: If an option lacks its value.
        zoo.recipes.UnknownRecipeError: If a name is no recipe.
    """
    command = Command()
    rest = list(arguments)
    if rest and rest[0] in VERBS:
        command.verb, command.test_after = rest.pop(0), False
    elif rest and not rest[0].startswith("-"):
        raise CommandError(
            f"unknown command {rest[0]!r}. Commands: {', '.join(VERBS)}, list, show, sweep, train. "
            "To train a recipe: --model NAME."
        )
    while rest:
        token = rest.pop(0)
        if token in ("-h", "--help"):
            command.help = True
            continue
        option, equals, value = token.partition("=")
        name = option.removeprefix("--")
        is_group = option.startswith("--") and name in recipes.groups() and name != "sweep"
        if not is_group and option not in ("--ckpt_path", "--trainer.default_root_dir", "--config", "-c"):
            command.options.append(token)
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise CommandError(f"{option} needs a value")
            value = rest.pop(0)
        if option == "--ckpt_path":
            command.ckpt_path = value
        elif option == "--trainer.default_root_dir":
            command.run_dir = value
        elif option in ("--config", "-c"):
            command.configs.append(_existing_file(value, option))
        elif _is_recipe_name(value):
            if name == "model":
                command.model = value
                command.configs.insert(0, str(recipes.path(value, name)))
            else:
                command.configs.append(str(recipes.path(value, name)))
        elif name in ("callbacks", "logger"):
            command.options += [f"--trainer.{name}{'+' * (name == 'callbacks')}={value}"]
        else:
            command.options += [option, value]
    return command


def _is_recipe_name(value: str) -> bool:
    return not any(mark in value for mark in ".{[/\\")


def _existing_file(value: str, option: str) -> str:
    if not value.lstrip().startswith("{") and "\n" not in value and not Path(value).is_file():
        raise CommandError(f"{option}: no file {value!r}")
    return value
