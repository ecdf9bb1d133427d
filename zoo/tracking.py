"""Weights & Biases tracking that never stops training, and figures for every logger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from zoo.run import is_first_process

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from matplotlib.figure import Figure


class WandbLogger(LightningWandbLogger):
    """Lightning's W&B logger, which goes offline instead of asking or failing.

    Without an API key, or when the server cannot be reached, the run is kept on disk and one line says
    where it is and how to send it later. ``WANDB_MODE`` is respected.

    Args:
        project: W&B project.
        save_dir: Folder that gets the ``wandb/`` folder.
        version: Run id; the same id continues a resumed run.
        name: Display name.
        init_timeout: Seconds to wait for the server before going offline.
        **kwargs: Passed on to Lightning's ``WandbLogger``.
    """

    def __init__(
        self,
        project: str = "paper-zoo",
        save_dir: str = ".",
        version: str | None = None,
        name: str | None = None,
        init_timeout: float = 30.0,
        **kwargs: Any,
    ) -> None:
        settings = {"silent": True, "console": "off", "init_timeout": init_timeout}
        super().__init__(name=name, save_dir=save_dir, version=version, project=project, settings=settings, **kwargs)
        self._wandb_init.pop("anonymous", None)  # Lightning passes it, and W&B warns that it has no effect

    @property
    def experiment(self) -> Any:
        """The W&B run; started at first use, on the first process only."""
        if self._experiment is None and is_first_process():
            self._start()
        return super().experiment

    def _start(self) -> None:
        import wandb

        # W&B reads its environment once per process, so the mode goes into the arguments of init as well.
        if mode := os.environ.get("WANDB_MODE"):
            self._wandb_init["mode"] = mode
        elif not _has_api_key():
            self._wandb_init["mode"] = "offline"
        Path(self.save_dir or ".").mkdir(parents=True, exist_ok=True)
        try:
            run = super().experiment
        except (wandb.Error, OSError) as error:
            rank_zero_warn(f"W&B could not start ({_first_line(error)}); this run is kept offline.")
            self._wandb_init["mode"] = "offline"
            wandb.teardown()
            run = super().experiment
        if getattr(run, "offline", False):
            folder = os.path.relpath(Path(run.dir).parent)
            print(f"W&B is offline; the run is in {folder}. Send it with: wandb sync {folder}", flush=True)


def log_figure(trainer: Trainer, name: str, figure: Figure) -> Path | None:
    """Save a figure as ``figures/<name>.png`` in the run's folder and send it to loggers that take images.

    Args:
        trainer: The running trainer.
        name: File name without ending; also the key in the logger, under ``figures/``.
        figure: A matplotlib figure.

    Returns:
        Where it was saved; None on ranks other than the first.
    """
    if not trainer.is_global_zero:
        return None
    path = Path(trainer.default_root_dir, "figures", f"{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight")
    for logger in trainer.loggers:
        if isinstance(logger, LightningWandbLogger):
            logger.log_image(key=f"figures/{name}", images=[str(path)])
    return path


def _has_api_key() -> bool:
    import wandb

    try:
        return bool(wandb.login(prompt=False))
    except (wandb.Error, OSError):
        return True  # a key is there but cannot be checked: let wandb.init say why


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
