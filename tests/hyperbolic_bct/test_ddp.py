"""Two processes train as one process does on the same global batches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "two_processes.py"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hbct_influence", "hot_refresh"])
def test_two_processes_equal_one(tmp_path: Path, method: str) -> None:
    results = []
    for devices in (1, 2):  # the batch of a process is half as large for two
        path = tmp_path / f"{devices}.pt"
        command = [sys.executable, str(SCRIPT), str(devices), method, str(path)]
        subprocess.run(command, check=True, capture_output=True, timeout=180)
        results.append(torch.load(path, weights_only=True))
    one, two = results
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-4, atol=1e-5, msg=name)
