"""The command line as a person meets it: names, overrides, results, resuming, and every kind of bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from zoo import recipes
from zoo.command import CommandError, parse

TOY = str(Path(__file__).parent / "toy" / "toy.yaml")
QUIET = ("--logger", "csv", "--trainer.enable_progress_bar", "false")


def only_run(folder: Path, model: str = "model") -> Path:
    (run,) = (folder / "runs" / model).iterdir()
    return run


def metrics(run: Path) -> dict:
    return json.loads((run / "metrics.json").read_text())


# Names and verbs


def test_recipe_names_become_files_and_options_win() -> None:
    command = parse(["--model.lr", "1", "--trainer", "cpu", "--model", "hyperbolic_bct"])
    assert command.verb == "fit"
    assert command.test_after
    assert [Path(c).stem for c in command.configs] == ["hyperbolic_bct", "cpu"]
    assert command.options == ["--model.lr", "1"]


def test_equals_sign_and_verb() -> None:
    command = parse(["test", "--model=hyperbolic_bct", "--ckpt_path=last"])
    assert (command.verb, command.test_after, command.ckpt_path) == ("test", False, "last")
    assert command.model == "hyperbolic_bct"


def test_class_paths_go_through() -> None:
    command = parse(["--model", "my_project.Net", "--data=my_project.Data", "--callbacks", "my_project.Log"])
    assert command.configs == []
    assert command.options == [
        "--model",
        "my_project.Net",
        "--data",
        "my_project.Data",
        "--trainer.callbacks+=my_project.Log",
    ]


def test_callbacks_can_be_repeated() -> None:
    assert len(recipes.names("callbacks")) >= 1
    name = recipes.names("callbacks")[0]
    assert len(parse(["--callbacks", name, "--callbacks", name]).configs) == 2


@pytest.mark.parametrize("arguments", [["--model"], ["--ckpt_path"], ["--model", "--data", "x"], ["fitt"]])
def test_incomplete_command_lines(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        parse(arguments)


@pytest.mark.parametrize("group", ["model", "data", "callbacks", "trainer", "logger"])
def test_unknown_name_lists_what_there_is(main, group: str) -> None:
    wrong = recipes.names(group)[0][:-1] + "x"
    done = main(f"--{group}", wrong)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: unknown {group} {wrong!r}.")
    assert "Did you mean" in done.stderr
    assert all(name in done.stderr for name in recipes.names(group))
    assert "Traceback" not in done.stderr


def test_list_names_every_recipe(main) -> None:
    done = main("list")
    assert done.returncode == 0
    assert all(name in done.stdout for name in recipes.names("model"))


def test_list_and_help_import_nothing_heavy() -> None:
    code = (
        "import sys; from zoo.cli import main\n"
        "try: main([{!r}])\n"
        "except SystemExit as done: assert not done.code\n"
        "print([m for m in ('torch', 'lightning', 'numpy', 'matplotlib', 'wandb') if m in sys.modules])"
    )
    for argument in ("list", "--help"):
        done = subprocess.run([sys.executable, "-c", code.format(argument)], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]"


def test_list_is_quick() -> None:
    def seconds() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "zoo.cli", "list"], check=True, capture_output=True)
        return time.perf_counter() - begin

    assert min(seconds() for _ in range(5)) < 0.5


@pytest.mark.parametrize("name", recipes.names("model"))
def test_show_prints_the_resolved_config(main, name: str) -> None:
    done = main("show", name, "--trainer.max_epochs", "3")
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load(done.stdout)
    assert config["trainer"]["max_epochs"] == 3
    assert config["model"]["class_path"] == recipes.load(name)["model"]["class_path"]


def test_model_help_shows_its_options(main) -> None:
    done = main("--model", "hyperbolic_bct", "--help")
    assert done.returncode == 0
    assert "--model.clip_radius" in done.stdout
    assert "known subclasses" not in done.stdout


# A run


def test_fit_then_test_leaves_a_run_folder(main, tmp_path: Path) -> None:
    done = main("--config", TOY, *QUIET)
    assert done.returncode == 0, done.stderr
    assert "test/loss" in done.stdout
    run = only_run(tmp_path)
    result = metrics(run)
    assert result["status"] == "finished"
    assert result["seed"] == 0
    assert result["test"]["test/loss"] > 0
    assert (run / result["best_checkpoint"]).is_file()
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["class_path"] == "toy_project.Toy"
    assert "val/loss" in (run / "csv" / "version_0" / "metrics.csv").read_text()


def test_fit_alone_does_not_test(main, tmp_path: Path) -> None:
    assert main("fit", "--config", TOY, *QUIET).returncode == 0
    assert "test" not in metrics(only_run(tmp_path))


def test_verbs_on_a_checkpoint(main, tmp_path: Path) -> None:
    main("--config", TOY, *QUIET)
    tested = metrics(only_run(tmp_path))["test"]
    done = main("test", "--config", TOY, *QUIET, "--ckpt_path", "best")
    assert done.returncode == 0, done.stderr
    assert metrics(only_run(tmp_path))["test"] == tested
    for verb in ("validate", "predict"):
        assert main(verb, "--config", TOY, *QUIET, "--ckpt_path", "last").returncode == 0


def test_run_folder_can_be_chosen_and_two_runs_do_not_clash(main, tmp_path: Path) -> None:
    assert main("--config", TOY, *QUIET, "--trainer.default_root_dir", "mine").returncode == 0
    assert metrics(tmp_path / "mine")["status"] == "finished"
    for _ in range(2):
        assert main("fit", "--config", TOY, *QUIET, "--trainer.fast_dev_run", "true").returncode == 0
    assert len(list((tmp_path / "runs" / "model").iterdir())) == 2


def test_earlier_runs_are_trained_first_and_kept(main, tmp_path: Path) -> None:
    recipe = yaml.safe_load(Path(TOY).read_text())
    recipe["model"]["init_args"]["old"] = "{before.old}"
    recipe["before"] = {
        "unused": {"model": {"init_args": {"lr": 9.0}}},
        "old": {"model": {"init_args": {"old": None, "lr": 0.5}}},
        "rival": {"compare": True, "model": {"init_args": {"old": None}}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = main("--config", "recipe.yaml", *QUIET)
    assert done.returncode == 0, done.stderr
    run = only_run(tmp_path)
    assert sorted(p.name for p in (run / "before").iterdir()) == ["old", "rival"]
    assert set(metrics(run)["before"]) == {"old", "rival"}
    assert "rival" in done.stdout
    old = torch.load(run / "before" / "old" / "checkpoints" / "best.ckpt", weights_only=True)
    assert old["hyper_parameters"]["lr"] == 0.5
    first = (run / "before" / "old" / "checkpoints" / "best.ckpt").stat().st_mtime_ns
    again = main("--config", "recipe.yaml", *QUIET, "--ckpt_path", "last", "--trainer.max_epochs", "3")
    assert again.returncode == 0, again.stderr
    assert (run / "before" / "old" / "checkpoints" / "best.ckpt").stat().st_mtime_ns == first
    # A bad argument does not wait until the earlier runs are trained.
    wrong = main("--config", "recipe.yaml", *QUIET, "--model.lr=-1", "--before.old.model.init_args.lr=1")
    assert wrong.returncode == 2
    assert "lr must be > 0" in wrong.stderr
    # A checkpoint of one's own takes its place.
    own = main("--config", "recipe.yaml", *QUIET, "--model.old", str(run / "checkpoints" / "best.ckpt"))
    assert own.returncode == 0, own.stderr
    newest = max((tmp_path / "runs" / "model").iterdir(), key=lambda p: p.name)
    assert [p.name for p in (newest / "before").iterdir()] == ["rival"]


def test_warnings_of_a_default_run(cli) -> None:
    done = cli("--config", TOY, "--logger", "csv")
    assert done.returncode == 0, done.stderr
    assert "arn" not in done.stderr.replace("TrainerFn", ""), done.stderr


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.lrr", "3"], "--model.lrr: no such option. Did you mean --model.lr"),
        (["--modle.lr", "3"], "--modle.lr: no such option. Did you mean --model.lr"),
        (["--trainer.max_epochss", "3"], "--trainer.max_epochss: no such option. Did you mean --trainer.max_epochs"),
        (["--model.lr", "abc"], "--model.lr: expected float, got abc"),
        (["--trainer.max_epochs", "abc"], "--trainer.max_epochs: expected int or null, got abc"),
        (["--model.lr=-1"], "lr must be > 0, got -1.0"),
        (["--data.batch_size", "0"], "batch_size"),
        (["--trainer.strategy", "nope"], "invalid strategy name"),
        (["--config", "nope.yaml"], "no file 'nope.yaml'"),
        (["--model", "toy_project.Nope"], "has no attribute 'Nope'"),
        (["--model", "no_project.Nope"], "No module named 'no_project'"),
        (["--ckpt_path", "nope.ckpt"], "--ckpt_path: no checkpoint 'nope.ckpt'"),
        (["--ckpt_path", "last"], "no earlier run of 'model'"),
        (["--ckpt_path", TOY], "cannot be read"),
        (["--trainer.default_root_dir", f"{TOY}/x"], "run folder"),
        (["--trainer", "gpu"], "gpu"),
        (["surplus"], "surplus"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(main, tmp_path: Path, arguments: list[str], message: str) -> None:
    if arguments == ["--trainer", "gpu"] and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    done = main("--config", TOY, *QUIET, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*/*")), "a run that did not start leaves no folder"


def test_checkpoint_of_another_model(main, tmp_path: Path) -> None:
    main("fit", "--config", TOY, *QUIET, "--trainer.default_root_dir", "mine")
    done = main("fit", "--model", "hyperbolic_bct", *QUIET, "--ckpt_path", "mine/checkpoints/last.ckpt")
    assert done.returncode == 2
    assert "of another model: toy_project.Toy" in done.stderr


def test_truncated_checkpoint(main, tmp_path: Path) -> None:
    main("fit", "--config", TOY, *QUIET, "--trainer.default_root_dir", "mine")
    last = tmp_path / "mine" / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-200])
    done = main("fit", "--config", TOY, *QUIET, "--ckpt_path", str(last))
    assert done.returncode == 2
    assert "cannot be read; it may be cut short" in done.stderr


def test_failed_run_keeps_its_error(main, tmp_path: Path) -> None:
    done = main("--config", TOY, *QUIET, "--model.fail_at", "3")
    assert done.returncode == 1
    assert "RuntimeError: the toy broke" in done.stderr
    result = metrics(only_run(tmp_path))
    assert result["status"] == "failed"
    assert "the toy broke" in result["error"]


# Stopping and going on


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")  # the toy's loader
def test_ctrl_c_stops_cleanly_and_the_run_goes_on(tmp_path: Path, main) -> None:
    command = [
        sys.executable,
        "-m",
        "zoo.cli",
        "--config",
        TOY,
        *QUIET,
        "--model.slow",
        "0.1",
        "--trainer.max_epochs",
        "50",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/model/*/checkpoints/last.ckpt")):  # an epoch is done
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "Go on with: --model model --ckpt_path runs/model/" in out
    run = only_run(tmp_path)
    assert metrics(run)["status"] == "interrupted"
    stopped = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    assert stopped >= 8
    epochs = str(stopped // 8 + 2)
    done = main("--config", TOY, *QUIET, "--ckpt_path", "last", "--model.slow", "0", "--trainer.max_epochs", epochs)
    assert done.returncode == 0, done.stderr
    assert metrics(only_run(tmp_path))["status"] == "finished"


def test_two_processes(cli, tmp_path: Path) -> None:
    done = cli("--config", TOY, *QUIET, "--trainer", "ddp_cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test/loss") == 1, "only the first process reports"
    assert metrics(only_run(tmp_path))["status"] == "finished"


# Tracking


def test_wandb_without_a_key_is_offline(main, tmp_path: Path) -> None:
    done = main("--config", TOY, "--trainer.enable_progress_bar", "false")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "W&B is offline" in line]
    folder = line.rpartition("wandb sync ")[2]
    assert list((tmp_path / folder).glob("*.wandb"))
    assert only_run(tmp_path) in (tmp_path / folder).resolve().parents


def test_wandb_mode_is_respected(main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    done = main("fit", "--config", TOY, "--trainer.enable_progress_bar", "false")
    assert done.returncode == 0, done.stderr
    assert "W&B" not in done.stdout
    assert not list(only_run(tmp_path).glob("wandb/*run*"))


def test_unreachable_wandb_does_not_stop_training(cli, tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(
        "trainer:\n  logger:\n    class_path: zoo.tracking.WandbLogger\n"
        "    init_args: {save_dir: '{run}', init_timeout: 2}\n"
    )
    done = cli(
        *("fit", "--config", TOY, "--config", "quick.yaml", "--trainer.enable_progress_bar", "false"),
        WANDB_API_KEY="0" * 40,
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    assert done.returncode == 0, done.stderr
    assert "kept offline" in done.stderr
    assert metrics(only_run(tmp_path))["status"] == "finished"


# Strategies


@pytest.mark.parametrize("name", recipes.names("trainer"))
def test_trainer_recipes_parse(main, name: str) -> None:
    done = main("show", "hyperbolic_bct", "--trainer", name)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["trainer"]["accelerator"] in ("cpu", "gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ["gpu", "ddp", "fsdp", "deepspeed"])
def test_gpu_recipes_say_what_is_missing(main, name: str) -> None:
    done = main("--config", TOY, *QUIET, "--trainer", name)
    assert done.returncode == 2
    assert "gpu" in done.stderr.lower() or "deepspeed" in done.stderr.lower()


def test_environment_is_as_before() -> None:
    assert "ZOO_RUN_DIR" not in os.environ
