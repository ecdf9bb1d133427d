"""Sweeps on this machine: ``python -m zoo.sweep NAME`` walks ``conf/sweep/NAME.yaml``.

A sweep file is in W&B's own format, so ``wandb sweep conf/sweep/NAME.yaml`` takes it as it is::

    program: train.py
    method: grid
    metric: {name: compat/p_com_map, goal: maximize}
    parameters:
      model: {values: [hyperbolic_bct, hyperbolic_bct_ext]}
      model.method: {values: [l2, bct, hbct]}
      seed_everything: {values: [0, 1, 2, 3, 4]}

Each run is one process, ``python train.py --model=hyperbolic_bct --model.method=l2 --seed_everything=0``, in a
folder of its own. Runs that finished are not run again; those that were stopped go on from their last checkpoint.
In the end the runs are written to ``results/NAME/`` (see :mod:`zoo.results`). Imports nothing heavy.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo import recipes, results
from zoo import run as run_folder

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["PlannedRun", "Sweep", "SweepError", "load_sweep", "main", "validate_sweep"]

PARAMETERS, LOG = "parameters.json", "run.log"
SEED = "seed_everything"

_POLL_SECONDS = 0.05
_LOG_LINES_SHOWN = 8
# W&B draws without a fixed seed; here one file gives the same runs everywhere.
_SAMPLER_SEED = 0

# fmt: off
_KEYS = (
    "apiVersion", "command", "controller", "description", "early_terminate", "entity", "image_uri", "job", "kind",
    "method", "metric", "name", "parameters", "program", "project", "run_cap",
)
# fmt: on
_METHODS = ("grid", "random", "bayes")
_MACROS = ("${env}", "${interpreter}", "${program}", "${args}")
_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

# W&B's distributions: options with their defaults (None: required), and the draw from a numpy RandomState.
_Options = Mapping[str, Any]
_RANGE: _Options = {"min": None, "max": None}
_BELL: _Options = {"mu": 0.0, "sigma": 1.0}
_CONTINUOUS: dict[str, tuple[_Options, Callable[[Any, _Options], float]]] = {
    "uniform": (_RANGE, lambda rng, o: rng.uniform(o["min"], o["max"])),
    "log_uniform": (_RANGE, lambda rng, o: math.exp(rng.uniform(o["min"], o["max"]))),
    "log_uniform_values": (_RANGE, lambda rng, o: math.exp(rng.uniform(math.log(o["min"]), math.log(o["max"])))),
    "normal": (_BELL, lambda rng, o: rng.normal(o["mu"], o["sigma"])),
    "log_normal": (_BELL, lambda rng, o: math.exp(rng.normal(o["mu"], o["sigma"]))),
    "beta": ({"a": 1.0, "b": 1.0}, lambda rng, o: rng.beta(o["a"], o["b"])),
}
_OPTIONS: dict[str, _Options] = {
    "constant": {"value": None},
    "categorical": {"values": None},
    "categorical_w_probabilities": {"values": None, "probabilities": None},
    "int_uniform": _RANGE,
    **{name: options for name, (options, _) in _CONTINUOUS.items()},
    **{f"q_{name}": {**options, "q": 1.0} for name, (options, _) in _CONTINUOUS.items()},
}


class SweepError(ValueError):
    """A sweep that cannot be run; the message says what came and what is wanted."""


def validate_sweep(config: object) -> None:
    """Check a sweep against W&B's format, as far as it can be walked here too.

    Narrower than W&B in three places: no nested ``parameters`` (write ``model.lr``), no custom scheduler, and only
    the macros ``${env} ${interpreter} ${program} ${args}`` in ``command``.

    Args:
        config: The content of a sweep file.

    Raises:
        SweepError: If something is wrong; the message has one line for each problem.
    """
    if not isinstance(config, Mapping):
        raise SweepError(f"a sweep is a mapping with program, method and parameters, got {config!r}")
    problems = [f"{key}: no such key. Known: {', '.join(_KEYS)}" for key in config if key not in _KEYS]
    if config.get("method") not in _METHODS:
        problems.append(f"method: wanted one of {', '.join(_METHODS)}, got {config.get('method')!r}")
    if not isinstance(config.get("program"), str):
        problems.append(f"program: wanted a script such as train.py, got {config.get('program')!r}")
    if not _is_number(config.get("run_cap", 1), int) or config.get("run_cap", 1) < 1:
        problems.append(f"run_cap: wanted a whole number of at least 1, got {config['run_cap']!r}")
    problems += _metric_problems(config) + _command_problems(config.get("command"))
    parameters = config.get("parameters")
    if isinstance(parameters, Mapping) and parameters:
        problems += [
            f"parameters.{name}: {problem}"
            for name, spec in parameters.items()
            if (problem := _parameter_problem(name, spec, config.get("method")))
        ]
    else:
        problems.append(f"parameters: wanted a mapping of name to values, got {parameters!r}")
    if problems:
        raise SweepError("\n".join(problems))


def _metric_problems(config: Mapping[str, Any]) -> list[str]:
    metric = config.get("metric")
    if metric is None:
        return ["metric: a bayes sweep needs one"] if config.get("method") == "bayes" else []
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
        return [f"metric: wanted {{name: ..., goal: ...}}, got {metric!r}"]
    goal = metric.get("goal", "minimize")
    return [] if goal in ("minimize", "maximize") else [f"metric.goal: wanted minimize or maximize, got {goal!r}"]


def _command_problems(command: object) -> list[str]:
    if command is None:
        return []
    if not isinstance(command, list) or not all(isinstance(part, str) for part in command):
        return [f"command: wanted a list of words, got {command!r}"]
    unknown = [part for part in command if "${" in part and part not in _MACROS]
    problems = [f"command: {part!r} is not known here. Known: {' '.join(_MACROS)}" for part in unknown]
    return problems if "${args}" in command else [*problems, "command: ${args} is missing"]


def _parameter_problem(name: object, spec: object, method: object) -> str | None:
    """What is wrong with one parameter, if anything."""
    if not isinstance(name, str) or not _PARAMETER_NAME.fullmatch(name):
        return "a name starts with a letter and has letters, digits, '_', '.' and '-' only"
    if not isinstance(spec, Mapping):
        return f"wanted {{value: ...}}, {{values: [...]}} or a distribution, got {spec!r}"
    if "parameters" in spec:
        return f"nested parameters cannot be walked here; write {name}.NAME beside it"
    kind = _kind(spec)
    if kind not in _OPTIONS:
        return f"no such distribution: {kind!r}. Known: {', '.join(_OPTIONS)}"
    options = {**_OPTIONS[kind], **{key: value for key, value in spec.items() if key != "distribution"}}
    if unknown := set(options) - set(_OPTIONS[kind]):
        return f"{kind} takes {', '.join(_OPTIONS[kind])}, got {', '.join(sorted(map(str, unknown)))}"
    if missing := [key for key in _OPTIONS[kind] if options[key] is None and key not in spec]:
        return f"{kind} needs {', '.join(missing)}"
    try:
        json.dumps(dict(spec), allow_nan=False)
    except (TypeError, ValueError):
        return f"wanted text, finite numbers, true, false, null, or lists and mappings of them, got {dict(spec)}"
    if kind == "constant":
        return None
    if "values" in options:
        return _values_problem(options)
    if method == "grid" and kind != "int_uniform":
        return f"a grid needs value or values, got {kind}"
    return _range_problem(kind, options)


def _values_problem(options: _Options) -> str | None:
    values = options["values"]
    if not isinstance(values, list) or not values:
        return f"values: wanted a list with something in it, got {values!r}"
    weights = options.get("probabilities", [1] * len(values))
    if (
        not isinstance(weights, list)
        or len(weights) != len(values)
        or not all(_is_number(weight) and weight >= 0 for weight in weights)
        or sum(weights) <= 0
    ):
        return f"probabilities: wanted {len(values)} numbers of at least 0, not all 0, got {weights!r}"
    return None


def _range_problem(kind: str, options: _Options) -> str | None:
    number = int if kind == "int_uniform" else (int, float)
    for key, value in options.items():
        if not _is_number(value, number):
            # YAML 1.1 reads a number with an exponent but no point, such as 1e-4, as text.
            hint = " (YAML wants 1.0e-4 for 1e-4)" if isinstance(value, str) and "e" in value.lower() else ""
            wanted = "a whole number" if number is int else "a number"
            return f"{key}: wanted {wanted}, got {value!r}{hint}"
    if "min" in options and not options["min"] < options["max"]:
        return f"wanted min < max, got {options['min']} and {options['max']}"
    if kind.endswith("_values") and options["min"] <= 0:
        return f"min: {kind} wants more than 0, got {options['min']}"
    if options.get("sigma", 0) < 0:
        return f"sigma: wanted at least 0, got {options['sigma']}"
    for key in ("a", "b", "q"):
        if options.get(key, 1) <= 0:
            return f"{key}: wanted more than 0, got {options[key]}"
    return None


def _is_number(value: object, types: type | tuple[type, ...] = (int, float)) -> bool:
    return isinstance(value, types) and not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]


def _kind(spec: Mapping[str, Any]) -> str:
    """The distribution of a parameter: the one it names, or the one that W&B takes it for."""
    if "distribution" in spec:
        return str(spec["distribution"])
    if "value" in spec:
        return "constant"
    if "values" in spec:
        return "categorical_w_probabilities" if "probabilities" in spec else "categorical"
    return "int_uniform" if all(_is_number(spec.get(key), int) for key in ("min", "max")) else "uniform"


@dataclass(frozen=True)
class _Distribution:
    """A parameter to draw: what scikit-learn's ParameterSampler asks for is ``rvs``."""

    kind: str
    options: Mapping[str, Any]

    def rvs(self, random_state: Any) -> Any:
        if self.kind == "int_uniform":
            return int(random_state.randint(self.options["min"], self.options["max"] + 1))
        if self.kind == "categorical_w_probabilities":
            weights = self.options["probabilities"]
            values = self.options["values"]
            return values[random_state.choice(len(values), p=[weight / math.fsum(weights) for weight in weights])]
        value = float(_CONTINUOUS[self.kind.removeprefix("q_")][1](random_state, self.options))
        if not self.kind.startswith("q_"):
            return value
        step = self.options["q"]
        # 12 digits: 0.3, not 0.30000000000000004.
        return round(value / step) * step if isinstance(step, int) else float(f"{round(value / step) * step:.12g}")


def _space(config: Mapping[str, Any]) -> dict[str, list[Any] | _Distribution]:
    space: dict[str, list[Any] | _Distribution] = {}
    for name, spec in config["parameters"].items():
        kind = _kind(spec)
        if kind == "constant":
            space[name] = [spec["value"]]
        elif kind == "categorical" or (config["method"] == "grid" and "values" in spec):
            space[name] = spec["values"]
        elif config["method"] == "grid":
            space[name] = list(range(spec["min"], spec["max"] + 1))
        else:
            space[name] = _Distribution(kind, {**_OPTIONS[kind], **spec})
    return space


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its parameters and its folder."""

    folder: Path
    parameters: Mapping[str, Any]
    arguments: tuple[str, ...] = ()
    """What the whole sweep adds to each command line."""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a finished run to count as this one."""
        return {"parameters": dict(self.parameters), "arguments": list(self.arguments)}

    def outcome(self) -> dict[str, Any]:
        """The folder's metrics.json, or an empty dict if there is none, or if it is of another run."""
        try:
            return run_folder.read_metrics(self.folder) if self.was_started else {}
        except ValueError:  # not JSON
            return {}

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to run."""
        return self.outcome().get("status") == "finished"

    @property
    def can_continue(self) -> bool:
        """Whether it was stopped, or the machine was, and left a checkpoint to go on from."""
        was_stopped = self.outcome().get("status", "interrupted") == "interrupted"
        return was_stopped and self.was_started and (self.folder / run_folder.LAST).is_file()

    def command_line(self) -> list[str]:
        """Arguments of train.py."""
        options = [f"--{name}={_as_argument(value)}" for name, value in self.parameters.items()]
        # The logger comes first, so that a sweep may choose another; the folder comes last, so that none may.
        return ["--logger=csv", *options, *self.arguments, f"--trainer.default_root_dir={self.folder}"]

    @property
    def was_started(self) -> bool:
        """Whether its folder is of this very run."""
        try:
            return json.loads((self.folder / PARAMETERS).read_text(encoding="utf-8")) == self.identity
        except (FileNotFoundError, ValueError):
            return False


@dataclass(frozen=True)
class Sweep:
    """A sweep file, checked."""

    name: str
    source: str
    """The name or path that it was asked for by."""
    config: Mapping[str, Any]
    arguments: tuple[str, ...] = ()
    """What to add to each command line, after the sweep's own parameters."""

    @property
    def command(self) -> str:
        """The command that makes its results."""
        extra = f" -- {shlex.join(self.arguments)}" if self.arguments else ""
        return f"python -m zoo.sweep {shlex.quote(self.source)}{extra}"

    def runs(self, root: Path) -> list[PlannedRun]:
        """Every run of the sweep, in order; the same each time.

        Args:
            root: Folder of all sweeps' runs.

        Raises:
            SweepError: If the sweep cannot be walked here.
        """
        from sklearn.model_selection import ParameterGrid, ParameterSampler

        method, cap = self.config["method"], self.config.get("run_cap")
        if method == "bayes":
            raise SweepError(
                f"{self.name} is a bayes sweep, which needs W&B's server:\n"
                f"  wandb sweep {shlex.quote(str(_path(self.source)))}\nthen the `wandb agent` line that it prints. "
                "Here: method grid or random."
            )
        space = _space(self.config)
        if method == "grid":
            chosen = ParameterGrid(space)
        elif cap is None:
            raise SweepError(f"{self.name}: run_cap: a random sweep has no end without it")
        else:
            # From lists alone the sampler draws without repeats. All of them, so that a larger run_cap adds runs
            # to those of a smaller one.
            finite = all(isinstance(values, list) for values in space.values())
            number = len(ParameterGrid(space)) if finite else cap
            chosen = ParameterSampler(space, number, random_state=_SAMPLER_SEED)
        varied = [name for name, values in space.items() if isinstance(values, _Distribution) or len(values) > 1]
        runs: dict[str, PlannedRun] = {}
        for parameters in chosen:
            ordered = {name: parameters[name] for name in space}
            folder = root / self.name / _folder_name(ordered, varied, self.arguments)
            runs.setdefault(folder.name, PlannedRun(folder, ordered, self.arguments))
            if len(runs) == cap:
                break
        return list(runs.values())

    def process(self, run: PlannedRun) -> list[str]:
        """The command that runs one of its runs, or goes on with it.

        Raises:
            SweepError: If its program does not exist.
        """
        program = self.config["program"]
        if program == "train.py":
            script = ["-m", "zoo.cli"]  # the same, wherever the zoo is installed
        elif Path(program).is_file():
            script = [program]
        else:
            raise SweepError(f"{self.name}: program: no file {program!r} (from {Path.cwd()})")
        macros = {
            "${env}": [],
            "${interpreter}": [sys.executable],
            "${program}": script,
            "${args}": run.command_line() + ["--ckpt_path=last"] * run.can_continue,
        }
        return [word for part in self.config.get("command", _MACROS) for word in macros.get(part, [part])]


def load_sweep(name: str, arguments: Sequence[str] = ()) -> Sweep:
    """Read and check a sweep file.

    Args:
        name: A recipe, ``conf/sweep/NAME.yaml``, or a path to a YAML file.
        arguments: What to add to each run's command line.

    Raises:
        zoo.recipes.UnknownRecipeError: If there is no such recipe.
        SweepError: If the file is missing or not a sweep.
    """
    path = _path(name)
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        validate_sweep(config)
    except OSError as error:
        raise SweepError(f"no sweep file {name!r}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SweepError(f"{path} is not YAML: {error}") from None
    except SweepError as error:
        raise SweepError(f"{path}:\n  " + str(error).replace("\n", "\n  ")) from None
    return Sweep(path.stem, name, config, tuple(arguments))


def _path(name: str) -> Path:
    is_path = name.endswith((".yaml", ".yml")) or os.sep in name
    return Path(name) if is_path else recipes.path(name, "sweep")


def _as_argument(value: Any) -> str:
    # As W&B's agent writes it, but for None, which YAML would read as the text "None".
    return "null" if value is None else str(value)


def _folder_name(parameters: Mapping[str, Any], varied: Sequence[str], arguments: Sequence[str]) -> str:
    words = []
    for name in varied:
        value, short = parameters[name], "seed" if name == SEED else name.rpartition(".")[2]
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        words.append(text if isinstance(value, str) else short + text)
    slug = re.sub(r"[^A-Za-z0-9_.+-]+", "_", "-".join(words))[:80]
    text = json.dumps([parameters, list(arguments)], sort_keys=True, default=str)
    return f"{slug or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class _StopSignals:
    """Counts Ctrl-C and requests to end instead of raising, so that no child is lost between two lines."""

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> _StopSignals:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue  # Windows has no SIGHUP; under nohup it stays ignored
            with contextlib.suppress(ValueError):  # not the main thread
                self._previous[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _count(self, *_: object) -> None:
        self.count += 1


class _Child:
    """The process of one run, with the processes that it launches itself."""

    def __init__(self, run: PlannedRun, command: Sequence[str], threads: int) -> None:
        self.run = run
        mode = "ab" if run.can_continue else "wb"
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / run_folder.METRICS).unlink(missing_ok=True)
        (run.folder / PARAMETERS).write_text(json.dumps(run.identity, indent=2) + "\n", encoding="utf-8")
        environment = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", **os.environ}
        with (run.folder / LOG).open(mode) as log:
            # A session of its own: a Ctrl-C in the terminal reaches the sweep alone, which passes it on once.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def interrupt(self) -> None:
        """Ask it to write a checkpoint and stop."""
        if os.name == "posix":
            self._send(signal.SIGINT)
        else:
            self._process.terminate()

    def kill(self) -> None:
        if os.name == "posix":
            self._send(signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _walk(
    sweep: Sweep,
    runs: Sequence[PlannedRun],
    jobs: int,
    on_end: Callable[[PlannedRun, bool], None],
) -> bool:
    """Run each in a process of its own, ``jobs`` at a time.

    Args:
        sweep: The sweep.
        runs: Its runs that are still to do.
        jobs: How many at a time.
        on_end: Gets each run that ended, and whether a person had asked to stop by then.

    Returns:
        Whether all were run: False if a person stopped it.
    """
    threads = max(1, _cores() // jobs)
    waiting, children, told = list(runs), list[_Child](), 0
    with _StopSignals() as stop:
        try:
            while children or (waiting and not stop.count):
                while waiting and len(children) < jobs and not stop.count:
                    run = waiting.pop(0)
                    children.append(_Child(run, sweep.process(run), threads))
                if stop.count > told:
                    for child in children:
                        child.interrupt() if told == 0 else child.kill()
                    told = stop.count
                for child in [child for child in children if child.has_ended()]:
                    children.remove(child)
                    on_end(child.run, told > 0)
                time.sleep(_POLL_SECONDS)
        finally:
            for child in children:
                child.kill()
    return not stop.count


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _result(run: PlannedRun) -> results.Run:
    outcome = run.outcome()
    metrics = dict(outcome.get("test", {}))
    for name, before in outcome.get("before", {}).items():
        metrics |= {f"before.{name}.{metric}": value for metric, value in before.items()}
    return results.Run(
        name=run.name,
        status=outcome.get("status", "failed" if run.was_started else "missing"),
        parameters={name: value for name, value in run.parameters.items() if name != SEED},
        seed=run.parameters.get(SEED, outcome.get("seed")),
        metrics={name: math.nan if value is None else value for name, value in metrics.items()},
        minutes=outcome.get("minutes"),
    )


def _why(run: PlannedRun) -> str:
    """Why a run failed: its last lines, which end with the error."""
    lines = (run.folder / LOG).read_text(encoding="utf-8", errors="replace").splitlines()
    tail = [f"    {line}" for line in lines[-_LOG_LINES_SHOWN:]] or ["    (it printed nothing)"]
    return "\n".join([*tail, f"    All of it: {run.folder / LOG}"])


def _train(sweep: Sweep, runs: Sequence[PlannedRun], options: argparse.Namespace, console: Console) -> int:
    """Run what is left to run, showing how far it is. Returns the exit code."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = [run for run in runs if not run.is_finished]
    todo = left[: options.limit]
    console.print(f"{sweep.name}: {len(runs)} runs, {len(runs) - len(left)} of them done before, {len(todo)} to do now")
    metric = (sweep.config.get("metric") or {}).get("name", "")
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(sweep.name, total=len(todo))

        def on_end(run: PlannedRun, stopping: bool) -> None:
            nonlocal failed
            outcome = run.outcome()
            if run.is_finished:
                value = outcome.get("test", {}).get(metric)
                figure = "" if value is None else f"  {metric} {value:.4g}"
                console.print(f"finished  {run.name}{figure}", markup=False, soft_wrap=True)
            elif stopping:
                console.print(f"stopped   {run.name}", markup=False, soft_wrap=True)
            else:
                failed += 1
                console.print(f"failed    {run.name}", style="red", markup=False, soft_wrap=True)
                console.print(_why(run), markup=False, highlight=False, soft_wrap=True)
            progress.advance(task)

        if not _walk(sweep, todo, options.jobs, on_end):
            console.print(f"Stopped. Go on with: {sweep.command}", markup=False, soft_wrap=True)
            return 130
    if failed:
        console.print(f"{failed} of {len(todo)} runs failed; the same command tries them again.", style="red")
    return 1 if failed else 0


def _write_results(sweep: Sweep, runs: Sequence[PlannedRun], root: Path, console: Console) -> None:
    found = [replace(_result(run), command=sweep.command) for run in runs]
    if not any(run.status == "finished" for run in found):
        console.print("No run has finished, so there is no result.")
        return
    folder = root / sweep.name
    results.write_runs(folder / results.RUNS, found)
    results.write_page(folder)
    results.write_index(root)
    console.print(f"Results: {folder / results.TABLE}", markup=False, soft_wrap=True, highlight=False)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wanted a whole number of at least 1, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """``python -m zoo.sweep NAME``: walk a sweep on this machine.

    Returns:
        The exit code: 0 done, 1 a run failed, 2 bad input, 130 interrupted.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m zoo.sweep",
        usage="%(prog)s NAME [--jobs N] [--limit N] [--report] [--runs DIR] [--results DIR] [-- ARGS ...]",
        description="Run every run of a sweep that has not finished yet, then write its results.",
        epilog="ARGS are added to each run's command line, e.g. -- --trainer gpu --trainer.max_epochs 20",
    )
    parser.add_argument("name", metavar="NAME", help="a sweep, conf/sweep/NAME.yaml, or a path to a YAML file")
    parser.add_argument("--jobs", type=_positive, default=1, metavar="N", help="how many at a time (default 1)")
    parser.add_argument("--limit", type=_positive, metavar="N", help="start at most N runs now")
    parser.add_argument("--report", action="store_true", help="start none: write the results of those that finished")
    parser.add_argument("--runs", type=Path, default=Path("runs", "sweeps"), metavar="DIR", help="default: runs/sweeps")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    options = parser.parse_args(arguments[:end])
    from rich.console import Console

    console = Console()
    try:
        sweep = load_sweep(options.name, arguments[end + 1 :])
        runs = sweep.runs(options.runs)
        code = 0 if options.report else _train(sweep, runs, options, console)
        if code != 130:
            _write_results(sweep, runs, options.results, console)
        return code
    except (SweepError, recipes.UnknownRecipeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
