"""The command line: a thin LightningCLI.

It adds to Lightning's own CLI: recipes by name (``--model NAME`` reads ``conf/model/NAME.yaml``), a
default verb (fit, then test on the best checkpoint), a run folder with a result, and clear errors.
The only place that reads the command line; it imports no paper: recipes name classes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from zoo import recipes
from zoo.command import CommandError, parse

USAGE = """\
usage: python train.py --model NAME [options]     train, then test on the best checkpoint
       python train.py {fit,validate,test,predict} --model NAME [options]
       zoo list                                   every recipe: its paper, data and minutes
       zoo show NAME [options]                    the resolved config of a recipe
       zoo sweep NAME                             walk conf/sweep/NAME.yaml on this machine

`zoo train ...` and `zoo ...` are the same as `python train.py ...`.
"""

EPILOG = """\
options:
  --ckpt_path last|PATH      continue the newest run of the model, or the run of a checkpoint
  --seed_everything N        random seed
  --config FILE              a YAML file of options; later ones win
  --model.ARG, --data.ARG, --trainer.ARG, --checkpoint.ARG
                             one option, e.g. --model.lr 1e-3 --trainer.max_epochs 5
  --model NAME --help        the options of that recipe's model and data
  --help                     this page
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point of ``zoo`` and ``train.py``.

    Exit codes: 0 done, 1 failed, 2 bad input, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        sys.exit(_dispatch(arguments))
    except (CommandError, recipes.UnknownRecipeError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # e.g. `zoo list | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _dispatch(arguments: list[str]) -> int:
    match arguments:
        case [] | ["-h" | "--help", *_]:
            _print_help()
            return 0
        case ["--version"]:
            from zoo import __version__

            print(f"lightning-paper-zoo {__version__}")
            return 0
        case ["list", *rest]:
            return _list(rest)
        case ["show", *rest]:
            return _show(rest)
        case ["sweep", *rest]:
            from zoo.sweep import main as sweep

            return sweep(rest)
        case ["train", *rest]:
            arguments = rest
    command = parse(arguments)
    if command.help and command.model is None and not command.options:
        _print_help()
        return 0
    from zoo.lightning_cli import run  # torch and Lightning load here, not before

    return run(command)


def _print_help() -> None:
    print(USAGE)
    print("recipes, by option:")
    for group in recipes.groups():
        if group != "sweep":
            print(f"  {'--' + group + ' NAME':<26} {', '.join(recipes.names(group))}")
    print()
    print(EPILOG, end="")


def _list(arguments: list[str]) -> int:
    if arguments:
        raise CommandError(f"zoo list takes no argument, got {' '.join(arguments)!r}")
    width = max(map(len, recipes.names("model")))
    for name in recipes.names("model"):
        about = recipes.about(name)
        minutes = "GPU" if about.minutes is None else f"{about.minutes:g} min"
        print(f"{name:<{width}}  {minutes:>7}  {about.data}")
        print(f"{'':<{width}}  {'':>7}  {about.summary}. {about.paper}")
    print("\nMinutes are for two CPU cores. Train one with: python train.py --model NAME")
    return 0


def _show(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        raise CommandError(f"zoo show needs a recipe. Known: {', '.join(recipes.names('model'))}.")
    name, *overrides = arguments
    command = parse(["fit", "--model", name, *overrides])
    from zoo.lightning_cli import show

    return show(command)


if __name__ == "__main__":
    main()
