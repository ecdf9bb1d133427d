"""What every test gets: two cores, no network, no W&B account, and a way to run the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "no_network"), str(HERE / "toy")]
import sitecustomize  # noqa: E402, F401  (closes the network)

# Before torch is imported, so that it counts.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Child processes close the network too, and find the toy project.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "no_network"), str(HERE / "toy")])
for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
    os.environ.pop(name, None)
os.environ["NETRC"] = str(HERE / "no_such_netrc")

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run ``python -m zoo.cli ARGS`` in a fresh folder, as a user does."""

    def run(*args: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "zoo.cli", *args]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout
        )

    return run


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run the command line in this process: the same, without the seconds that imports take."""
    from zoo.cli import main

    monkeypatch.chdir(tmp_path)
    environment = dict(os.environ)
    handler = signal.getsignal(signal.SIGINT)

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as done:
            main(args)
        output = capsys.readouterr()
        return subprocess.CompletedProcess(args, done.value.code or 0, output.out, output.err)

    yield run
    signal.signal(signal.SIGINT, handler)
    os.environ.clear()
    os.environ.update(environment)
