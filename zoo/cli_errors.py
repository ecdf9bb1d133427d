"""Parser errors as one sentence that names the option, what came and what is wanted."""

from __future__ import annotations

import difflib
import inspect
import re
from pathlib import Path

import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from zoo import recipes
from zoo.command import Command


def shorten(message: str) -> str:
    """A jsonargparse message as one sentence: what was wanted and what came, without the parser's inner life."""
    key = re.search(r'Parser key "([^"]+)"', message)
    given = re.search(r"Given value: (.*)", message)
    reasons = [line.strip().removeprefix("- ") for line in message.splitlines()[1:] if line.strip()]
    reasons = [
        r for r in reasons if not re.match(r"Parser key|Does not validate|Subtypes|Errors:|Given value|Problem", r)
    ]
    expected = [
        m[1] for r in reasons if (m := re.fullmatch(r"Expected (?:an? )?<class '([\w.]+)'>(?:\. Got value: .*)?", r))
    ]
    other = [r for r in reasons if not r.startswith(("Expected a <class", "Expected <class", "Expected a path but"))]
    if other:
        text = "; ".join(dict.fromkeys(other))
    elif expected:
        value = given[1] if given else message.rpartition("Got value: ")[2]
        names = [e.removeprefix("builtins.").replace("NoneType", "null") for e in expected]
        text = f"expected {' or '.join(names)}, got {value}"
    else:
        text = message.strip()
    return f"{key[1]}: {text}" if key else text


def name_option(message: str, command: Command) -> str:
    """Say which option of the command line a message is about, and what was probably meant."""
    options = [option.partition("=")[0] for option in command.options if option.startswith("--")]
    if unknown := re.search(r"Option '([\w.]+)' is not accepted|unrecognized arguments: --([\w.]+)", message):
        wrong = unknown[1] or unknown[2]
        given = next((o.removeprefix("--") for o in options if o.endswith(wrong)), wrong)
        near = difflib.get_close_matches(given, _known_options(command), n=3, cutoff=0.6)
        hint = f" Did you mean {' or '.join('--' + n for n in near)}?" if near else ""
        return f"--{given}: no such option.{hint}"
    if named := re.match(r"(?:[\w.]+: )+", message):
        key = named[0].rstrip(": ").replace(": ", ".")
        given = next((o for o in options if o == f"--{key}" or o.endswith(f".{key}")), None)
        if given:
            return f"{given}: {message[named.end() :]}"
    return message


def _known_options(command: Command) -> list[str]:
    known = [f"trainer.{name}" for name in inspect.signature(Trainer).parameters]
    known += [f"checkpoint.{name}" for name in inspect.signature(ModelCheckpoint).parameters]
    known += [
        "seed_everything",
        "ckpt_path",
        "config",
        "model",
        "data",
        "trainer",
        "callbacks",
        "logger",
        "optimizer",
        "lr_scheduler",
    ]
    for key, class_path in classes(command).items():
        known += [f"{key}.{name}" for name in inspect.signature(recipes.import_class(class_path)).parameters]
    return known


def classes(command: Command) -> dict[str, str]:
    """Class paths of the model and data that a command's recipes name."""
    found: dict[str, str] = {}
    for config in command.configs:
        content = yaml.safe_load(Path(config).read_text()) if Path(config).is_file() else {}
        for key in ("model", "data"):
            section = (content or {}).get(key)
            if isinstance(section, dict) and "class_path" in section:
                found[key] = section["class_path"]
    return found
