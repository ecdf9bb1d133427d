import re
from pathlib import Path

import pytest
import torch

import zoo.retrieval


def test_the_code_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    pytest.importorskip("faiss")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    text = Path(zoo.retrieval.__file__).with_name("README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    # the second form's exact answer is the one that re-ranking the first form's gave
    assert names["gallery"].ids[names["positions"]].tolist() == names["ids"].tolist()
    assert names["distances"].shape == (3, 5)
