"""zoo.sweep, with a small program in the place of training."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo import command, recipes
from zoo.sweep import SweepError, load_sweep, main, validate_sweep

PROGRAM = """
import json, os, pathlib, signal, sys, time

options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
folder = pathlib.Path(options["trainer.default_root_dir"])
with open("calls.txt", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")

def leave(status, code=0):
    content = {"status": status, "seed": int(options.get("seed_everything", 7)), "minutes": 0.5}
    if status == "finished":
        score = float(options.get("lr", 1)) + int(options.get("seed_everything", 0))
        content |= {"test": {"score": score, "undefined": None}, "before": {"old": {"score": 0.25}}}
    (folder / "metrics.json").write_text(json.dumps(content))
    sys.exit(code)

print("training with", options.get("act", "finish"))
act = options.get("act", "finish")
if act == "fail" and not os.path.exists("repaired"):
    raise RuntimeError("the loss is not finite")
if act == "silent":
    sys.exit(0)
if act in ("wait", "stubborn") and "ckpt_path" not in options:
    (folder / "checkpoints").mkdir()
    stop = (lambda *_: None) if act == "stubborn" else (lambda *_: leave("interrupted", 130))
    signal.signal(signal.SIGINT, stop)
    (folder / "checkpoints" / "last.ckpt").write_text(str(os.getpid()))
    time.sleep(60)
if act == "meet":
    pathlib.Path(folder.name + ".here").touch()
    give_up = time.monotonic() + 20
    while len(list(pathlib.Path().glob("*.here"))) < 2:
        assert time.monotonic() < give_up, "alone"
        time.sleep(0.01)
    pathlib.Path("threads.txt").write_text(os.environ["OMP_NUM_THREADS"])
leave("finished")
"""


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write demo.yaml with the given parameters, in an empty working directory that has the program."""
    monkeypatch.chdir(tmp_path)
    Path("fake.py").write_text(PROGRAM)

    def write(parameters: dict[str, Any], **config: Any) -> Path:
        content = {"program": "fake.py", "method": "grid", "parameters": parameters, **config}
        Path("demo.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tmp_path

    return write


def calls() -> list[list[str]]:
    path = Path("calls.txt")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table() -> list[dict[str, str]]:
    with Path("results/demo/runs.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


GRID = {"lr": {"values": [0.1, 0.2]}, "seed_everything": {"values": [0, 1, 2]}, "act": {"value": "finish"}}


def test_grid_runs_every_combination_once_in_its_own_folder(sweep: Callable[..., Path]) -> None:
    sweep(GRID)
    assert main(["demo.yaml"]) == 0
    seen = [[a for a in call if not a.startswith("--trainer")] for call in calls()]
    assert seen == [
        ["--logger=csv", f"--lr={lr}", f"--seed_everything={seed}", "--act=finish"]
        for lr in (0.1, 0.2)
        for seed in (0, 1, 2)
    ]
    folders = sorted(path.name.rpartition("-")[0] for path in Path("runs/sweeps/demo").iterdir())
    assert folders == [f"lr{lr}-seed{seed}" for lr in (0.1, 0.2) for seed in (0, 1, 2)]


def test_results_hold_parameters_seed_and_every_metric(sweep: Callable[..., Path]) -> None:
    sweep(GRID)
    main(["demo.yaml"])
    rows = table()
    assert [(row["param.lr"], row["seed"], float(row["test.score"])) for row in rows] == [
        (str(lr), str(seed), lr + seed) for lr in (0.1, 0.2) for seed in (0, 1, 2)
    ]
    assert {row["status"] for row in rows} == {"finished"}
    assert {row["command"] for row in rows} == {"python -m zoo.sweep demo.yaml"}
    assert {row["test.before.old.score"] for row in rows} == {"0.25"}
    assert {row["test.undefined"] for row in rows} == {""}
    assert {"table.md", "summary.json", "figure.png"} <= set(os.listdir("results/demo"))
    assert "demo/table.md" in Path("results/README.md").read_text()


def test_finished_runs_are_not_run_again(sweep: Callable[..., Path]) -> None:
    sweep(GRID)
    assert main(["demo.yaml", "--limit", "2"]) == 0
    assert len(calls()) == 2
    assert [row["status"] for row in table()].count("missing") == 4
    assert main(["demo.yaml"]) == 0
    assert len(calls()) == 6
    assert main(["demo.yaml"]) == 0
    assert len(calls()) == 6


def test_a_folder_of_another_run_does_not_count(sweep: Callable[..., Path]) -> None:
    sweep({"lr": {"values": [0.1, 0.2]}})
    main(["demo.yaml"])
    folder = next(Path("runs/sweeps/demo").glob("lr0.1-*"))
    (folder / "parameters.json").write_text('{"parameters": {"lr": 0.3}, "arguments": []}')
    main(["demo.yaml"])
    assert [call[1] for call in calls()] == ["--lr=0.1", "--lr=0.2", "--lr=0.1"]


def test_only_runs_of_the_present_file_are_reported(sweep: Callable[..., Path]) -> None:
    sweep({"lr": {"values": [0.1, 0.2]}})
    main(["demo.yaml"])
    sweep({"lr": {"values": [0.2, 0.3]}})
    main(["demo.yaml"])
    assert [call[1] for call in calls()] == ["--lr=0.1", "--lr=0.2", "--lr=0.3"]
    assert [row["param.lr"] for row in table()] == ["0.2", "0.3"]


def test_extra_arguments_are_runs_of_their_own(sweep: Callable[..., Path]) -> None:
    sweep({"lr": {"values": [0.1]}})
    main(["demo.yaml"])
    assert main(["demo.yaml", "--", "--trainer=a b", "--lr=5"]) == 0
    assert [call[2:4] for call in calls()][1] == ["--trainer=a b", "--lr=5"]
    assert [row["command"] for row in table()] == ["python -m zoo.sweep demo.yaml -- '--trainer=a b' --lr=5"]
    assert [row["test.score"] for row in table()] == ["5.0"]


def test_a_failed_run_is_shown_and_does_not_stop_the_rest(
    sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep({"act": {"values": ["fail", "silent", "finish"]}})
    assert main(["demo.yaml"]) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: the loss is not finite" in out
    assert "2 of 3 runs failed" in out
    log = next(Path("runs/sweeps/demo").glob("fail-*")) / "run.log"
    assert str(log) in out
    assert log.read_text().startswith("training with fail")
    assert {row["param.act"]: row["status"] for row in table()} == {
        "fail": "failed",
        "silent": "failed",
        "finish": "finished",
    }
    Path("repaired").touch()
    assert main(["demo.yaml"]) == 1
    assert len(calls()) == 5, "the failed ones once more, the finished one not"
    assert {row["param.act"]: row["status"] for row in table()}["fail"] == "finished"


def test_no_finished_run_leaves_older_results_alone(
    sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep({"act": {"values": ["finish"]}})
    main(["demo.yaml"])
    before = Path("results/demo/runs.csv").read_bytes()
    sweep({"act": {"values": ["fail"]}})
    assert main(["demo.yaml"]) == 1
    assert "no result" in capsys.readouterr().out
    assert Path("results/demo/runs.csv").read_bytes() == before


def test_report_starts_nothing(sweep: Callable[..., Path]) -> None:
    sweep(GRID)
    main(["demo.yaml", "--limit=1"])
    assert main(["demo.yaml", "--report", "--results", "elsewhere"]) == 0
    assert len(calls()) == 1
    assert "1 of 6 runs finished, 5 missing" in Path("elsewhere/demo/table.md").read_text()


def test_jobs_run_at_the_same_time_and_share_the_cores(
    sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("zoo.sweep._cores", lambda: 6)
    sweep({"act": {"value": "meet"}, "seed_everything": {"values": [0, 1]}})
    assert main(["demo.yaml", "--jobs", "2"]) == 0
    assert Path("threads.txt").read_text() == "3"


def test_threads_that_were_set_are_left_alone(sweep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    sweep({"act": {"value": "meet"}, "seed_everything": {"values": [0, 1]}})
    assert main(["demo.yaml", "--jobs", "2"]) == 0
    assert Path("threads.txt").read_text() == "5"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a sweep in a process of its own; whatever is left of it ends with the test."""
    started = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "zoo.sweep", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(0.2)
            os.killpg(process.pid, signal.SIGTERM)
        process.communicate()


def wait_for_checkpoints(number: int) -> list[int]:
    """Wait until that many runs wait for their end; returns their process ids."""
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        pids = [path.read_text() for path in Path("runs").glob("sweeps/demo/*/checkpoints/last.ckpt")]
        if len(pids) == number and all(pids):
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise TimeoutError("the runs did not start")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_ctrl_c_stops_the_runs_and_the_next_time_goes_on(
    sweep: Callable[..., Path], start: Callable[..., subprocess.Popen[str]]
) -> None:
    sweep({"act": {"value": "wait"}, "seed_everything": {"values": [0, 1, 2]}})
    process = start("demo.yaml", "--jobs", "2")
    pids = wait_for_checkpoints(2)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Go on with: python -m zoo.sweep demo.yaml" in out
    assert not any(map(is_alive, pids))
    assert len(calls()) == 2, "the third was not started"
    states = [json.loads(path.read_text())["status"] for path in Path("runs").glob("sweeps/demo/*/metrics.json")]
    assert states == ["interrupted", "interrupted"]
    assert not Path("results").exists()

    # The third run has no checkpoint and would wait; two suffice.
    assert main(["demo.yaml", "--limit", "2"]) == 0
    assert [call[-1] for call in calls()[2:]] == ["--ckpt_path=last", "--ckpt_path=last"]
    assert [row["status"] for row in table()] == ["finished", "finished", "missing"]


@pytest.mark.skipif(os.name != "posix", reason="process groups")
def test_a_second_signal_ends_runs_that_do_not_listen(
    sweep: Callable[..., Path], start: Callable[..., subprocess.Popen[str]]
) -> None:
    sweep({"act": {"value": "stubborn"}})
    process = start("demo.yaml")
    (pid,) = wait_for_checkpoints(1)
    os.killpg(process.pid, signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None, "it waits for the run"
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert not is_alive(pid)


def parameters_of(path: str = "demo.yaml") -> list[dict[str, Any]]:
    return [dict(run.parameters) for run in load_sweep(path).runs(Path("runs"))]


def test_random_sweeps_are_the_same_each_time_and_grow(sweep: Callable[..., Path]) -> None:
    for parameters in (
        {"lr": {"distribution": "log_uniform_values", "min": 1.0e-4, "max": 0.1}, "m": {"values": ["a", "b"]}},
        {"lr": {"values": list(range(50))}, "m": {"values": ["a", "b"]}},
    ):
        sweep(parameters, method="random", run_cap=12)
        twelve = parameters_of()
        assert parameters_of() == twelve
        assert len({json.dumps(p) for p in twelve}) == 12
        sweep(parameters, method="random", run_cap=20)
        assert parameters_of()[:12] == twelve
        assert len(parameters_of()) == 20


def test_random_sweep_over_lists_ends_with_the_grid(sweep: Callable[..., Path]) -> None:
    sweep({"a": {"values": [1, 2]}, "b": {"values": [3, 4]}}, method="random", run_cap=100)
    assert sorted((p["a"], p["b"]) for p in parameters_of()) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_run_cap_limits_a_grid(sweep: Callable[..., Path]) -> None:
    sweep(GRID, run_cap=4)
    assert len(parameters_of()) == 4


@pytest.mark.parametrize(
    ("spec", "median", "low", "high"),
    [
        ({"min": 2.0, "max": 4.0}, 3.0, 2.0, 4.0),
        ({"min": 1, "max": 9}, 5, 1, 9),
        ({"distribution": "log_uniform", "min": -4, "max": 0}, np.exp(-2), np.exp(-4), 1.0),
        ({"distribution": "log_uniform_values", "min": 1.0e-4, "max": 1.0}, 1e-2, 1e-4, 1.0),
        ({"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.1}, 0.5, 0.0, 1.0),
        ({"distribution": "q_log_uniform_values", "min": 1, "max": 256, "q": 4}, 16, 0, 256),
        ({"distribution": "normal", "mu": 3.0, "sigma": 0.5}, 3.0, -1.0, 7.0),
        ({"distribution": "log_normal", "sigma": 0.5}, 1.0, 0.0, 30.0),
        ({"distribution": "beta", "a": 2.0, "b": 2.0}, 0.5, 0.0, 1.0),
        ({"values": [0, 1, 2], "probabilities": [1, 0, 0]}, 0, 0, 0),
    ],
)
def test_distributions(
    sweep: Callable[..., Path], spec: dict[str, Any], median: float, low: float, high: float
) -> None:
    # A second parameter keeps equal draws apart.
    sweep({"x": spec, "id": {"min": 0.0, "max": 1.0}}, method="random", run_cap=400)
    drawn = [p["x"] for p in parameters_of()]
    assert len(drawn) == 400
    assert low <= min(drawn) <= max(drawn) <= high
    spread = np.percentile(drawn, 60) - np.percentile(drawn, 40)
    assert abs(np.median(drawn) - median) <= max(spread / 2, 1e-12)
    assert {type(x) for x in drawn} == {type(drawn[0])} <= {int, float}
    if "q" in spec:
        assert all(x == float(f"{round(x / spec['q']) * spec['q']:.12g}") for x in drawn)
        assert len(set(drawn)) > 5


def test_int_uniform_in_a_grid_is_every_whole_number(sweep: Callable[..., Path]) -> None:
    sweep({"depth": {"min": 2, "max": 5}})
    assert [p["depth"] for p in parameters_of()] == [2, 3, 4, 5]


def test_arguments_are_written_as_wandb_writes_them(sweep: Callable[..., Path]) -> None:
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    values = {"s": "a b", "i": 3, "x": 1.0e-5, "flag": True, "list": [1, "two"], "map": {"k": 0.5}}
    sweep({name: {"value": value} for name, value in values.items()})
    (run,) = load_sweep("demo.yaml").runs(Path("runs"))
    theirs = create_sweep_command_args({"args": {name: {"value": value} for name, value in values.items()}})
    assert run.command_line()[1:-1] == theirs["args"]


def test_none_is_null_to_yaml(sweep: Callable[..., Path]) -> None:
    sweep({"x": {"value": None}})
    (run,) = load_sweep("demo.yaml").runs(Path("runs"))
    assert "--x=null" in run.command_line()


def test_train_py_is_the_installed_command(sweep: Callable[..., Path]) -> None:
    sweep({"x": {"value": 1}}, program="train.py")
    demo = load_sweep("demo.yaml")
    (run,) = demo.runs(Path("runs"))
    assert demo.process(run) == [sys.executable, "-m", "zoo.cli", *run.command_line()]


def test_command_of_the_sweep_file(sweep: Callable[..., Path]) -> None:
    sweep({"x": {"value": 1}}, command=["nice", "${interpreter}", "-O", "${program}", "--trainer=cpu", "${args}"])
    demo = load_sweep("demo.yaml")
    (run,) = demo.runs(Path("runs"))
    assert demo.process(run) == ["nice", sys.executable, "-O", "fake.py", "--trainer=cpu", *run.command_line()]


def test_bayes_needs_the_server(sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    sweep({"x": {"min": 0.0, "max": 1.0}}, method="bayes", metric={"name": "score", "goal": "maximize"})
    assert main(["demo.yaml"]) == 2
    assert "wandb sweep demo.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "no sweep file 'nowhere.yaml'"),
        (["folder/nowhere"], "no sweep file 'folder/nowhere'"),
        (["broken.yaml"], "broken.yaml is not YAML"),
        (["program.yaml"], "no file 'gone.py'"),
        (["endless.yaml"], "run_cap: a random sweep has no end without it"),
    ],
)
def test_bad_files_end_with_one_message(
    sweep: Callable[..., Path], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    sweep({})
    Path("broken.yaml").write_text("method: [grid")
    Path("program.yaml").write_text("{program: gone.py, method: grid, parameters: {x: {value: 1}}}")
    Path("endless.yaml").write_text("{program: fake.py, method: random, parameters: {x: {min: 0.0, max: 1.0}}}")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err


def test_unknown_name_lists_the_nearest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(recipes, "names", lambda group: ("hyperbolic_bct", "weight_averaging"))
    assert main(["hyperbolic_bcd"]) == 2
    err = capsys.readouterr().err
    assert "Did you mean 'hyperbolic_bct'?" in err
    assert "weight_averaging" in err


@pytest.mark.parametrize("arguments", [["x.yaml", "--jobs", "0"], ["x.yaml", "--limit", "two"], [], ["--oops"]])
def test_bad_options_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2


GOOD: dict[str, Any] = {
    "program": "train.py",
    "method": "random",
    "metric": {"name": "compat/p_com_map", "goal": "maximize"},
    "run_cap": 20,
    "command": ["${env}", "${interpreter}", "${program}", "${args}"],
    "parameters": {
        "model": {"value": "hyperbolic_bct"},
        "model.method": {"values": ["l2", "bct"]},
        "model.lr": {"distribution": "log_uniform_values", "min": 0.0001, "max": 0.1},
        "model.depth": {"min": 1, "max": 4},
        "model.width": {"distribution": "q_log_uniform_values", "min": 8, "max": 256, "q": 8},
    },
}


def parameter(spec: Any, method: str = "random") -> dict[str, Any]:
    return {**GOOD, "method": method, "parameters": {"x": spec}}


BAD: list[tuple[Any, str]] = [
    ([], "a sweep is a mapping"),
    ({**GOOD, "methode": "grid"}, "methode: no such key"),
    ({**GOOD, "method": "gird"}, "method: wanted one of grid, random, bayes, got 'gird'"),
    ({**GOOD, "program": 3}, "program: wanted a script"),
    ({**GOOD, "run_cap": 0}, "run_cap: wanted a whole number"),
    ({**GOOD, "run_cap": True}, "run_cap: wanted a whole number"),
    ({**GOOD, "metric": "loss"}, "metric: wanted {name"),
    ({**GOOD, "metric": {"name": "loss", "goal": "max"}}, "metric.goal: wanted minimize or maximize, got 'max'"),
    ({**GOOD, "command": "python train.py"}, "command: wanted a list"),
    ({**GOOD, "parameters": {}}, "parameters: wanted a mapping"),
    ({**GOOD, "parameters": {"2x": {"value": 1}}}, "parameters.2x: a name starts with a letter"),
    (parameter(3), "parameters.x: wanted {value"),
    (parameter({"values": []}), "values: wanted a list with something in it"),
    (parameter({"values": 3}), "values: wanted a list"),
    (parameter({"values": [1], "probabilities": [-1]}), "probabilities: wanted 1 numbers"),
    (parameter({"distribution": "loguniform", "min": 1, "max": 2}), "no such distribution: 'loguniform'"),
    (parameter({"min": 0.1}), "uniform needs max"),
    (parameter({"min": 0.1, "max": 1.0, "q": 0.1}), "uniform takes min, max, got q"),
    (parameter({"min": "1e-4", "max": 1.0}), "min: wanted a number, got '1e-4' (YAML wants 1.0e-4 for 1e-4)"),
    (parameter({"distribution": "int_uniform", "min": 1, "max": 2.5}), "max: wanted a whole number, got 2.5"),
    (parameter({"distribution": "normal", "sigma": -1.0}), "sigma: wanted at least 0, got -1.0"),
    (parameter({"distribution": "q_normal", "q": 0}), "q: wanted more than 0, got 0"),
    (parameter({"distribution": "log_uniform_values", "min": 0, "max": 1}), "min: log_uniform_values wants more"),
]
# W&B's schema lets these pass.
NARROWER: list[tuple[Any, str]] = [
    (parameter({"value": math.nan}), "wanted text, finite numbers"),
    (parameter({"values": [yaml.safe_load("2025-06-01")]}), "wanted text, finite numbers"),
    (parameter({"values": [1, 2], "probabilities": [1]}), "probabilities: wanted 2 numbers"),
    ({**GOOD, "command": ["python", "train.py"]}, "${args} is missing"),
    ({**GOOD, "command": ["${args_json}", "${args}"]}, "'${args_json}' is not known here"),
    ({**GOOD, "method": "bayes", "metric": None}, "metric: a bayes sweep needs one"),
    ({**GOOD, "method": "custom"}, "method: wanted one of"),
    (parameter({"parameters": {"lr": {"value": 1}}}), "nested parameters cannot be walked here; write x.NAME"),
    (parameter({"min": 1.0, "max": 0.5}), "wanted min < max, got 1.0 and 0.5"),
    (parameter({"min": 0.1, "max": 0.5}, "grid"), "a grid needs value or values, got uniform"),
]


@pytest.mark.parametrize(("config", "message"), BAD + NARROWER)
def test_bad_sweeps_are_refused(config: Any, message: str) -> None:
    with pytest.raises(SweepError) as error:
        validate_sweep(config)
    assert message in str(error.value)


def test_every_problem_is_named() -> None:
    with pytest.raises(SweepError) as error:
        validate_sweep({"method": "gird", "parameters": {"x": 1, "y": {"values": []}}})
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "method",
        "program",
        "parameters.x",
        "parameters.y",
    ]


def test_a_good_sweep_passes() -> None:
    validate_sweep(GOOD)


@settings(max_examples=50)
@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s) | st.dictionaries(st.text(), s)))
def test_whatever_a_file_holds_the_check_answers(config: Any) -> None:
    for sweep_config in (config, {**GOOD, "parameters": config}, {**GOOD, "parameters": {"x": config}}):
        with contextlib.suppress(SweepError):
            validate_sweep(sweep_config)


def wandb_problems(config: Any) -> list[str]:
    """What W&B's own schema says; it comes with the `sweeps` package, which is read and not imported."""
    jsonschema = pytest.importorskip("jsonschema")
    package = find_spec("sweeps")
    if package is None or package.origin is None:
        pytest.skip("needs W&B's schema: pip install --no-deps sweeps")
    schema = json.loads((Path(package.origin).parent / "config" / "schema.json").read_text())
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(config)]


@pytest.mark.parametrize("config", [config for config, _ in BAD])
def test_wandb_refuses_what_we_refuse(config: Any) -> None:
    assert wandb_problems(config)


def test_wandb_takes_what_we_take() -> None:
    assert not wandb_problems(GOOD)
    assert not wandb_problems(parameter({"values": [1, 2], "probabilities": [0.5, 0.5]}))


@pytest.mark.parametrize("name", recipes.names("sweep"))
def test_every_sweep_of_the_zoo_is_one_of_wandb_s(name: str) -> None:
    config = recipes.load(name, "sweep")
    validate_sweep(config)
    assert config["program"] == "train.py"
    assert not wandb_problems(config)


@pytest.mark.parametrize("name", recipes.names("sweep"))
def test_command_lines_of_every_sweep_name_recipes(name: str) -> None:
    runs = load_sweep(name).runs(Path("runs"))
    assert runs
    for run in runs:
        parsed = command.parse(run.command_line())
        assert parsed.model in recipes.names("model")
        assert parsed.run_dir == str(run.folder)


def test_nothing_heavy_is_imported() -> None:
    heavy = {"torch", "lightning", "sklearn", "numpy", "matplotlib", "wandb"}
    code = f"import sys, zoo.sweep; print(*sorted({heavy} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == []
