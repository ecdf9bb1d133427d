"""ZooCLI: Lightning's CLI with a run folder, earlier runs and a result."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import os
import re
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch import __version__ as lightning_version
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from zoo import __version__ as zoo_version
from zoo import recipes
from zoo import run as run_folder
from zoo.cli_errors import classes, name_option, shorten
from zoo.command import Command, CommandError

if TYPE_CHECKING:
    from rich.table import Table

_BEST = "checkpoints/best.ckpt"

# What an earlier run does not take over from the run that it is trained for.
_NOT_INHERITED = ("about", "before", "ckpt_path", "config")

# What a person's input can cause before the first batch; afterwards the same types are our bugs.
_INPUT_ERRORS = (ValueError, TypeError, OSError, ImportError, MisconfigurationException)


# Lightning says at every start what it did not find; a run that trains several models would say it several times.
for _name in (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.pytorch.trainer.setup",
    "lightning.fabric.utilities.seed",
):
    logging.getLogger(_name).setLevel(logging.WARNING)


# Lightning 2.6 asks torch whether a pytree is a leaf in a way that torch 2.14 deprecates; nothing a user can act on.
warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated")
# A run that goes on writes into its own folder.
warnings.filterwarnings("ignore", message=r"Checkpoint directory .* exists and is not empty")


class RunFailedError(Exception):
    """A run broke after it began; the cause is its ``__cause__``."""


class ZooArgumentParser(LightningArgumentParser):
    """Parser whose errors are one message instead of a usage page."""

    def error(self, message: str, ex: Exception | None = None) -> Any:
        """Raise the message; the caller prints it and exits with 2.

        Raises:
            CommandError: Always.
        """
        raise CommandError(shorten(message)) from ex


class RunRecorder(Callback):
    """Knows how far a run came, and turns Ctrl-C into a clean stop.

    The first Ctrl-C during training lets the batch finish, writes last.ckpt and stops, so that a resumed run goes
    on exactly there; the second stops at once. With several processes a Ctrl-C stops at once, as ranks could not
    agree on the batch without a synchronisation per step; last.ckpt is then the one of the last epoch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started = False
        self.interrupted = False
        self._stop = False
        self._previous_handler: Any = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Catch Ctrl-C while fitting."""
        if stage == "fit" and trainer.world_size == 1:
            with contextlib.suppress(ValueError):  # not the main thread
                self._previous_handler = signal.signal(signal.SIGINT, self._on_sigint)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give Ctrl-C back."""
        if self._previous_handler is not None and not self.interrupted:
            signal.signal(signal.SIGINT, self._previous_handler)
        self._previous_handler = None

    def _on_sigint(self, *_: Any) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        print("\nStopping after this batch; press Ctrl-C again to stop at once.", file=sys.stderr)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note that training runs; stop here if asked to."""
        self.started = True
        if self._stop:
            if not trainer.fast_dev_run:  # type: ignore[attr-defined]
                trainer.save_checkpoint(self.folder / run_folder.LAST, weights_only=False)
            raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note that evaluation runs."""
        self.started = self.started or not trainer.sanity_checking

    def on_test_batch_end(self, *_: Any) -> None:
        """Note that evaluation runs."""
        self.started = True

    def on_predict_batch_end(self, *_: Any) -> None:
        """Note that prediction runs."""
        self.started = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remember whether a person stopped the run."""
        self.interrupted = isinstance(exception, KeyboardInterrupt)


class ZooCLI(LightningCLI):
    """LightningCLI in subclass mode, with a run folder.

    Args:
        args: Arguments for LightningCLI, recipes already resolved.
        folder: The run's folder.
        test_after: Test on the best checkpoint after fit.
        name: What the run is called in its report.
        earlier: Checkpoints of earlier runs by name, for ``{before.NAME}``; those trained here are added.
    """

    def __init__(
        self,
        args: list[str],
        folder: Path,
        *,
        test_after: bool = False,
        name: str = "model",
        earlier: dict[str, str] | None = None,
    ) -> None:
        self.verb = args[0]
        self.folder = folder
        self.name = name
        self.recorder = RunRecorder(folder)
        self.test_after = test_after
        self.earlier = {} if earlier is None else earlier
        self.before_metrics: dict[str, dict[str, float]] = {}
        self.test_metrics: dict[str, float] = {}
        super().__init__(
            args=args,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=None,
            seed_everything_default=0,
            parser_class=ZooArgumentParser,
            trainer_defaults={"callbacks": [self.recorder]},
        )

    # Parsing

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """The one verb that runs: a parser for each of the four would take four times as long to build."""
        return {self.verb: LightningCLI.subcommands()[self.verb]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the recipe's own sections: about, before, checkpoint."""
        parser.add_argument("--about", type=dict, default={}, help="What `zoo list` prints of the recipe.")
        parser.add_argument(
            "--before",
            type=dict,
            default={},
            help="Runs that are trained first: name -> options that differ from this run's.",
        )
        parser.add_argument(
            "--compare", type=bool, default=True, help="Whether to train the runs in `before` that only stand beside."
        )
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {
                "checkpoint.dirpath": "{run}/checkpoints",
                "checkpoint.filename": "best",
                "checkpoint.save_last": True,
                "checkpoint.enable_version_counter": False,
            }
        )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse ``args``; Lightning's version warns whenever the process has arguments of its own."""
        self.config = parser.parse_args(args)

    def start(self) -> None:
        """Run the verb; apart from the constructor, so that the run can be seen while it goes."""
        super()._run_subcommand(str(self.subcommand))

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing yet: see :meth:`start`."""

    def _parse_ckpt_path(self) -> None:
        """Nothing: the options of a checkpoint's run are read before parsing, see :func:`_config_of`."""

    # Building

    def before_instantiate_classes(self) -> None:
        """Write config.yaml, train the runs that this one builds on, and fill in ``{run}`` and ``{before.NAME}``."""
        config = self.config[self.subcommand]
        config.trainer.default_root_dir = str(self.folder)
        config.trainer.callbacks = _unique(config.trainer.callbacks)
        if self.subcommand == "fit":
            parser = self._parser("fit")
            if run_folder.is_first_process():
                parser.save(config, self.folder / run_folder.CONFIG, overwrite=True, multifile=False)
            plain = yaml.safe_load(parser.dump(config, skip_none=False, format="yaml"))
            if needed := earlier_runs(plain):
                self._check_classes()
                self.before_metrics = train_before(needed, plain, self.folder, self.earlier)
                self._set_seed()  # as if nothing had run before
        else:
            self.earlier |= {path.parents[1].name: str(path) for path in self.folder.glob("before/*/" + _BEST)}
        values = {"{run}": str(self.folder), "{name}": "-".join(self.folder.parts[-2:])}
        values |= {f"{{before.{name}}}": path for name, path in self.earlier.items()}
        recipes.fill(config, values)

    def _check_classes(self) -> None:
        """Build everything once without the earlier runs: a bad argument should not wait until those are trained."""
        self.parser.instantiate_classes(recipes.fill(self.config.clone(), {"{run}": str(self.folder)}))
        del self.config_dump  # LightningCLI keeps the config that it saw first

    # Running

    def fit(self, model: LightningModule, **kwargs: Any) -> None:
        """Train; LightningCLI's default, plus the logged config and the test on the best checkpoint."""
        self._log_config()
        self.trainer.fit(model, **_weights_only(kwargs))
        quick = bool(self.trainer.fast_dev_run)  # type: ignore[attr-defined]
        if quick:  # Lightning keeps no checkpoint then, but later runs may build on this one
            self.trainer.save_checkpoint(self.folder / _BEST, weights_only=False)
        if self.test_after and is_overridden("test_step", model):
            best = None if quick else self.best_checkpoint
            self.trainer.test(model, datamodule=self.datamodule, ckpt_path=best, weights_only=True, verbose=False)
            self.test_metrics = _floats(self.trainer.callback_metrics)

    def test(self, model: LightningModule, **kwargs: Any) -> None:
        """Test; LightningCLI's default, but the table comes at the end."""
        self.trainer.test(model, **{**_weights_only(kwargs), "verbose": False})
        self.test_metrics = _floats(self.trainer.callback_metrics)

    def validate(self, model: LightningModule, **kwargs: Any) -> None:
        """Validate; LightningCLI's default, but the table comes at the end."""
        self.trainer.validate(model, **{**_weights_only(kwargs), "verbose": False})
        self.test_metrics = _floats(self.trainer.callback_metrics)

    def predict(self, model: LightningModule, **kwargs: Any) -> None:
        """Predict; a callback such as a ``BasePredictionWriter`` keeps the output."""
        self.trainer.predict(model, **{**_weights_only(kwargs), "return_predictions": False})

    @property
    def best_checkpoint(self) -> str | None:
        """Path of the best checkpoint, or of the last one if none was ranked."""
        checkpoint = self.config_init[self.subcommand].checkpoint
        return checkpoint.best_model_path or checkpoint.last_model_path or None

    def _log_config(self) -> None:
        self._dump_config()
        for logger in self.trainer.loggers:
            if isinstance(logger, WandbLogger) and run_folder.is_first_process():
                logger.experiment.config.update(self.config_dump, allow_val_change=True)


def execute(args: list[str], folder: Path, name: str, **kwargs: Any) -> ZooCLI:
    """Build and run a ZooCLI, and leave metrics.json whatever happens.

    Args:
        args: Arguments for LightningCLI.
        folder: The run's folder.
        name: What the run is called.
        **kwargs: Passed on to :class:`ZooCLI`.

    Returns:
        The finished CLI.

    Raises:
        CommandError: If the input is at fault, that is, if it broke before the first batch.
        RunFailedError: If it broke later.
        KeyboardInterrupt: If a person stopped it.
    """
    begin = time.monotonic()
    cli: ZooCLI | None = None
    status, error = "failed", ""
    try:
        cli = ZooCLI(args, folder, name=name, **kwargs)
        cli.start()
        status = "finished"
        return cli
    except (CommandError, RunFailedError) as failure:
        error = str(failure)
        raise
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    except SystemExit:  # Lightning's answer to Ctrl-C
        if cli is None or not cli.recorder.interrupted:
            raise
        status = "interrupted"
        raise KeyboardInterrupt from None
    except Exception as failure:
        error = f"{type(failure).__name__}: {failure}"
        if (cli is None or not cli.recorder.started) and _is_input_error(failure):
            # While it is built, the input is at fault; once it runs, the module's own code may be.
            hint = "" if cli is None or os.environ.get("ZOO_TRACEBACK") else "\n(ZOO_TRACEBACK=1 shows where.)"
            raise CommandError(shorten(str(failure)) + hint) from failure
        raise RunFailedError(error) from failure
    finally:
        if cli is not None and "wandb" in sys.modules and sys.modules["wandb"].run is not None:
            sys.modules["wandb"].finish(exit_code=0 if status == "finished" else 1)
        if run_folder.is_first_process():
            _report(folder, name, cli, status, error, (time.monotonic() - begin) / 60)


def _is_input_error(error: Exception) -> bool:
    return isinstance(error, _INPUT_ERRORS) or "Error(s) in loading state_dict" in str(error)


def _report(folder: Path, name: str, cli: ZooCLI | None, status: str, error: str, minutes: float) -> None:
    content = run_folder.read_metrics(folder) if cli is None or cli.subcommand != "fit" else {}
    content |= {"status": status, "model": name, "minutes": round(minutes, 3)}
    if cli is not None:
        best = cli.best_checkpoint if cli.subcommand == "fit" else None
        content["seed"] = cli.config[cli.subcommand]["seed_everything"]
        if best:
            content["best_checkpoint"] = os.path.relpath(best, folder)
        if cli.test_metrics:
            content["test"] = cli.test_metrics
        if cli.before_metrics:
            content["before"] = cli.before_metrics
    content["versions"] = {"zoo": zoo_version, "torch": torch.__version__, "lightning": lightning_version}
    content.pop("error", None)
    if error:
        content["error"] = error
    run_folder.write_metrics(folder, **content)


def train_before(
    needed: Sequence[str], plain: Mapping[str, Any], folder: Path, checkpoints: dict[str, str]
) -> dict[str, dict[str, float]]:
    """Train the runs that a recipe builds on, unless they are done already.

    Each is this very run with the options of its ``before:`` entry changed, in the folder ``before/NAME``. It runs
    if ``{before.NAME}`` still stands somewhere (you may have given a checkpoint instead), or if its entry says
    ``compare: true`` (a baseline that the result table shows beside this run; ``--compare false`` leaves those out).

    Args:
        needed: Their names, from :func:`earlier_runs`.
        plain: The run's config as a plain dict.
        folder: The run's folder.
        checkpoints: Gets the best checkpoint of each.

    Returns:
        The test metrics of each.
    """
    entries = plain["before"]
    base = {key: value for key, value in plain.items() if key not in _NOT_INHERITED}
    base["trainer"] = {**base["trainer"], "enable_model_summary": False}
    metrics = {}
    for number, name in enumerate(needed, start=1):
        inner = folder / "before" / name
        best = inner / _BEST
        done = run_folder.read_metrics(inner)
        if done.get("status") != "finished" or not best.is_file():
            _say(f"Earlier run {number} of {len(needed)}: {name}")
            inner.mkdir(parents=True, exist_ok=True)
            patch = {key: value for key, value in entries[name].items() if key != "compare"}
            texts = [yaml.safe_dump(base), str(recipes.path("csv", "logger")), yaml.safe_dump(patch)]
            args = ["fit", *(f"--config={text}" for text in texts)]
            if (inner / run_folder.LAST).is_file():
                args += [f"--ckpt_path={inner / run_folder.LAST}"]
            execute(args, inner, name, test_after=True, earlier=dict(checkpoints))
            done = run_folder.read_metrics(inner)
        checkpoints[name] = str(best)
        metrics[name] = done.get("test", {})
    return metrics


def earlier_runs(plain: Mapping[str, Any]) -> list[str]:
    """Names of the earlier runs that a config needs, in the order in which they are written."""
    entries: Mapping[str, Any] = plain.get("before") or {}
    wanted = recipes.earlier_runs({k: v for k, v in plain.items() if k not in _NOT_INHERITED})
    if plain["compare"]:
        wanted |= {name for name, entry in entries.items() if entry.get("compare")}
    while more := {n for name in wanted & set(entries) for n in recipes.earlier_runs(entries[name])} - wanted:
        wanted |= more
    return [name for name in entries if name in wanted]


def run(command: Command) -> int:
    """Run a command.

    Returns:
        The exit code.

    Raises:
        CommandError: If the input is at fault.
        KeyboardInterrupt: If a person stopped it.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # so that --model my_project.MyModule finds the project in this folder
    if command.help:
        return _help(command)
    name = command.model or _class_name(command)
    checkpoint, folder = _resume_from(command, name)
    is_new = folder is None
    args = _lightning_args(command, checkpoint, folder)
    try:
        folder = run_folder.new_run_dir(name) if folder is None else run_folder.make_run_dir(folder)
    except OSError as error:
        raise CommandError(f"run folder: {error}") from None
    if checkpoint is None and command.verb != "fit":
        rank_zero_warn(f"{command.verb} without --ckpt_path uses untrained weights")
    try:
        cli = execute(args, folder, name, test_after=command.test_after)
    except CommandError as error:
        if os.environ.get("ZOO_TRACEBACK"):
            traceback.print_exc()
        if is_new and run_folder.is_first_process() and not any(folder.rglob("*.ckpt")):
            shutil.rmtree(folder, ignore_errors=True)  # nothing was trained: leave nothing behind
        raise CommandError(name_option(str(error), command)) from None
    except RunFailedError as failure:
        traceback.print_exception(failure.__cause__ or failure)
        print(f"error: the run failed; see {os.path.relpath(folder / run_folder.METRICS)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        last = folder / run_folder.LAST
        _say(f"Go on with: --model {name} --ckpt_path {os.path.relpath(last) if last.is_file() else 'last'}")
        raise
    if run_folder.is_first_process():
        _print_result(cli, folder)
    return 0


def show(command: Command) -> int:
    """Print the resolved config of a command."""
    parser_args = [*_lightning_args(command), "--print_config=skip_null"]
    try:
        ZooCLI(parser_args, Path("."))
    except CommandError as error:
        raise CommandError(name_option(str(error), command)) from None
    except SystemExit as done:
        return int(done.code or 0)
    return 0


def _lightning_args(command: Command, checkpoint: Path | None = None, folder: Path | None = None) -> list[str]:
    configs = [str(recipes.path("default", "logger")), *command.configs]
    args = [command.verb]
    # The options of a run that goes on: after the model's recipe, before what else is on the command line.
    position = 2 if command.model else 1
    if checkpoint is not None:
        configs.insert(position, _config_of(checkpoint, command))
        args += [f"--ckpt_path={checkpoint}"]
    elif command.ckpt_path is not None and folder is not None:
        configs.insert(position, str(folder / run_folder.CONFIG))
    return [*args, *(f"--config={config}" for config in configs), *command.options]


def _resume_from(command: Command, name: str) -> tuple[Path | None, Path | None]:
    """The checkpoint that ``--ckpt_path`` means and the run folder that it belongs to; None for what there is not."""
    given = Path(command.run_dir) if command.run_dir else None
    if command.ckpt_path is None:
        return None, given
    if command.ckpt_path not in ("last", "best"):
        checkpoint = Path(command.ckpt_path)
        if not checkpoint.is_file():
            raise CommandError(f"--ckpt_path: no checkpoint {command.ckpt_path!r}")
        return checkpoint.resolve(), given or run_folder.run_dir_of(checkpoint)
    file = Path("checkpoints", f"{command.ckpt_path}.ckpt")
    # A run that was stopped before its first checkpoint begins again, in the same folder.
    having = run_folder.CONFIG if command.verb == "fit" else file
    try:
        folder = given or run_folder.latest_run_dir(name, having)
    except FileNotFoundError as error:
        raise CommandError(f"--ckpt_path {command.ckpt_path}: {error}") from None
    if (folder / file).is_file():
        return (folder / file).resolve(), folder
    if command.verb != "fit" or not (folder / run_folder.CONFIG).is_file():
        raise CommandError(f"--ckpt_path {command.ckpt_path}: no checkpoint {folder / file}")
    return None, folder


def _class_name(command: Command) -> str:
    for option in command.options:
        if option.startswith("--model="):
            return option.rpartition(".")[2]
    for option, value in itertools.pairwise(command.options):
        if option == "--model":
            return value.rpartition(".")[2]
    return "model"


def _config_of(checkpoint: Path, command: Command) -> str:
    """The options a checkpoint was trained with: its run's config.yaml, or its hyperparameters as YAML.

    Raises:
        CommandError: If it cannot be read, or if it is of another model.
    """
    try:
        content = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
        hparams = dict(content.get("hyper_parameters", {}))
        is_checkpoint = "state_dict" in content and "pytorch-lightning_version" in content
    except Exception as error:
        raise CommandError(
            f"--ckpt_path: {checkpoint} cannot be read; it may be cut short or no checkpoint at all"
            f" ({str(error).strip().splitlines()[0]})"
        ) from None
    if not is_checkpoint:
        raise CommandError(f"--ckpt_path: {checkpoint} is no Lightning checkpoint")
    theirs = hparams.pop("_class_path", None)
    ours = recipes.load(command.model)["model"]["class_path"] if command.model else None
    if theirs and ours and recipes.import_class(theirs) is not recipes.import_class(ours):
        raise CommandError(f"--ckpt_path: {checkpoint} is of another model: {theirs}, not {ours}")
    folder = run_folder.run_dir_of(checkpoint)
    if folder is not None:
        return str(folder / run_folder.CONFIG)
    hparams.pop("_instantiator", None)
    model = {"class_path": theirs, "init_args": hparams} if theirs else {"init_args": hparams}
    return yaml.safe_dump({"model": model} if hparams else {})


def _help(command: Command) -> int:
    for key, class_path in classes(command).items():
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            ZooCLI([command.verb, f"--{key}.help={class_path}"], Path("."))
        # Every nn.Module in memory is a "known subclass": hundreds of lines that help nobody.
        print(re.sub(r",\s+known\s+subclasses:[^)]*\)", ")", text.getvalue()))
    print("Options of the trainer and the checkpoint: those of lightning.pytorch.Trainer and ModelCheckpoint, e.g.")
    print("--trainer.max_epochs 5 --trainer.devices 2 --checkpoint.monitor val/loss")
    return 0


def _print_result(cli: ZooCLI, folder: Path) -> None:
    from rich.console import Console

    console = Console()
    if cli.test_metrics:
        runs = {**cli.before_metrics, cli.name: cli.test_metrics}
        console.print(result_table(runs, cli.config[cli.subcommand]["about"].get("table", ())))
    console.print(f"Run folder: {os.path.relpath(folder)}", soft_wrap=True, highlight=False)


def result_table(runs: Mapping[str, Mapping[str, float]], metrics: Sequence[str] = ()) -> Table:
    """Test metrics of one or more runs.

    Args:
        runs: Metrics by the name of the run, this run last.
        metrics: What to show, as columns beside one row per run; all metrics as rows if there are none.
    """
    from rich.table import Table

    def show(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}" if 0.001 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"

    table = Table(header_style="bold")
    if metrics:
        table.add_column("test", no_wrap=True)
        for metric in metrics:
            table.add_column(metric.rpartition("/")[2].replace("_", "\n", 1).replace("_", " "), justify="right")
        for name, values in runs.items():
            table.add_row(name, *(show(values.get(metric)) for metric in metrics))
    else:
        table.add_column("test metric", no_wrap=True)
        for name in runs:
            table.add_column(name, justify="right")
        for metric in dict.fromkeys(metric for values in runs.values() for metric in values):
            table.add_row(metric, *(show(values.get(metric)) for values in runs.values()))
    return table


def _unique(callbacks: Any) -> Any:
    """Callbacks without exact repeats: a resumed run gets its own again from the same command line."""
    if not isinstance(callbacks, list):
        return callbacks
    return [c for i, c in enumerate(callbacks) if c not in callbacks[:i]]


def _weights_only(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Load checkpoints without running code in them, unless told otherwise."""
    return {**kwargs, "weights_only": True if kwargs.get("weights_only") is None else kwargs["weights_only"]}


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in sorted(metrics.items())}


def _say(text: str) -> None:
    if run_folder.is_first_process():
        print(text, flush=True)
