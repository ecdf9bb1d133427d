"""The README's code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import zoo.hyperbolic


def test_the_code_runs_as_it_stands() -> None:
    text = Path(zoo.hyperbolic.__file__).with_name("README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["loss"].isfinite()
