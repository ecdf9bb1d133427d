"""One run's folder: where it is, what it keeps, what it reports.

A run folder holds config.yaml, metrics.json, checkpoints/ (best.ckpt, last.ckpt), csv/, figures/ and,
where the recipe trains earlier runs first, before/NAME/ with the same inside.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = "config.yaml"
METRICS = "metrics.json"
LAST = Path("checkpoints", "last.ckpt")

# Set by the first process for the ones that it launches, so that all ranks share one folder.
_ENV = "ZOO_RUN_DIR"


def is_first_process() -> bool:
    """Whether this is the first (or only) process of the run, the one that reports."""
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return all(os.environ.get(rank, "0") == "0" for rank in ranks)


def new_run_dir(model: str, root: Path | str = "runs") -> Path:
    """A fresh folder ``runs/<model>/<time>/``, the same for every process of one run.

    Raises:
        OSError: If it cannot be made.
    """
    if not is_first_process() and _ENV in os.environ:
        return Path(os.environ[_ENV])
    # A job's processes that start at once (SLURM, torchrun) agree on the job's id instead of the time.
    job = os.environ.get("SLURM_JOB_ID") or os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if job != "none":
        return make_run_dir(Path(root, model, job))
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(1000):
        folder = Path(root, model, stamp if attempt == 0 else f"{stamp}-{attempt + 1}")
        try:
            folder.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            if folder.is_dir():
                continue  # another run began in this second
            raise
        return make_run_dir(folder)
    raise FileExistsError(f"no free run folder at {Path(root, model, stamp)}")


def make_run_dir(folder: Path | str) -> Path:
    """Make ``folder`` if needed, check that it can be written, and name it to launched processes.

    Raises:
        OSError: If it cannot be made or written.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write into {folder}")
    os.environ[_ENV] = str(folder)
    return folder


def latest_run_dir(model: str, having: Path | str = CONFIG, root: Path | str = "runs") -> Path:
    """The newest run folder of a model that holds the file ``having``.

    Raises:
        FileNotFoundError: If there is none.
    """
    if not is_first_process() and _ENV in os.environ:
        return Path(os.environ[_ENV])
    folders = [folder for folder in Path(root, model).glob("*/") if (folder / having).is_file()]
    if not folders:
        raise FileNotFoundError(f"no earlier run of {model!r} with a {having} in {Path(root, model)}")
    return max(folders, key=lambda folder: (folder / CONFIG).stat().st_mtime)


def run_dir_of(checkpoint: Path) -> Path | None:
    """The run folder that a checkpoint lies in, or None if it stands alone."""
    for folder in checkpoint.resolve().parents[:2]:
        if (folder / CONFIG).is_file():
            return folder
    return None


def write_metrics(folder: Path, **content: Any) -> None:
    """Write metrics.json, whole or not at all. NaN and infinity become null: JSON has neither."""
    scratch = folder / f".{METRICS}.tmp"
    scratch.write_text(json.dumps(_plain(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    scratch.replace(folder / METRICS)


def read_metrics(folder: Path) -> dict[str, Any]:
    """What metrics.json says, or an empty dict if there is none."""
    try:
        return json.loads((folder / METRICS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
