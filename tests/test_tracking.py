"""Figures and config reach the run's folder and W&B, and W&B's absence is said, not raised."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from matplotlib.figure import Figure

from zoo.tracking import WandbLogger, log_figure


class FakeRun:
    """What wandb.init returns, as far as it is used here."""

    def __init__(self, folder: Path, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.offline = kwargs.get("mode") == "offline"
        self.dir = str(folder / "wandb" / "offline-run" / "files")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[FakeRun]:
    runs: list[FakeRun] = []

    def init(**kwargs: Any) -> FakeRun:
        runs.append(FakeRun(tmp_path, **kwargs))
        return runs[-1]

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb, "teardown", lambda: None)
    return runs


def test_no_key_means_offline_and_one_line(started, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(wandb, "login", lambda **_: False)
    logger = WandbLogger(save_dir=str(tmp_path), version="id")
    _ = logger.experiment, logger.experiment
    (run,) = started
    assert run.kwargs["mode"] == "offline"
    assert run.kwargs["id"] == "id"
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("W&B is offline; the run is in ")
    assert line.endswith("wandb/offline-run")


@pytest.mark.parametrize("mode", ["offline", "disabled", "online"])
def test_the_environment_decides(started, tmp_path, monkeypatch, mode: str) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setattr(wandb, "login", lambda **_: pytest.fail("no need to look for a key"))
    _ = WandbLogger(save_dir=str(tmp_path)).experiment
    assert started[0].kwargs["mode"] == mode


def test_a_server_that_fails_is_warned_of(started, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(wandb, "login", lambda **_: True)
    init = wandb.init

    def fail_online(**kwargs: Any) -> FakeRun:
        if kwargs.get("mode") != "offline":
            raise wandb.errors.CommError("no route\nto host")
        return init(**kwargs)

    monkeypatch.setattr(wandb, "init", fail_online)
    with pytest.warns(UserWarning, match=r"W&B could not start \(no route\); this run is kept offline"):
        _ = WandbLogger(save_dir=str(tmp_path)).experiment
    assert "wandb sync" in capsys.readouterr().out


def test_only_the_first_process_starts_a_run(started, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("lightning.pytorch.utilities.rank_zero.rank_zero_only.rank", 1)
    _ = WandbLogger(save_dir=str(tmp_path)).experiment
    assert started == []


def test_figures_go_to_the_folder_and_to_wandb(tmp_path, monkeypatch) -> None:
    sent = []
    logger = WandbLogger(save_dir=str(tmp_path))
    monkeypatch.setattr(LightningWandbLogger, "log_image", lambda self, key, images: sent.append((key, images)))
    trainer: Any = SimpleNamespace(is_global_zero=True, default_root_dir=str(tmp_path), loggers=[logger, object()])
    path = log_figure(trainer, "bars", Figure())
    assert path == tmp_path / "figures" / "bars.png"
    assert path.is_file()
    assert sent == [("figures/bars", [str(path)])]
    trainer.is_global_zero = False
    assert log_figure(trainer, "bars", Figure()) is None


def test_config_is_sent_to_wandb(main, tmp_path, monkeypatch) -> None:
    """A run's whole config, from the command line."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    toy = Path(__file__).parent / "toy" / "toy.yaml"
    updates = []
    monkeypatch.setattr(wandb.sdk.wandb_config.Config, "update", lambda self, d, **_: updates.append(d))
    done = main("fit", "--config", str(toy), "--trainer.enable_progress_bar", "false", "--trainer.max_epochs", "1")
    assert done.returncode == 0, done.stderr
    assert any(u.get("model", {}).get("class_path") == "toy_project.Toy" for u in updates if isinstance(u, dict))
