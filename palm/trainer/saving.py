"""What trainers save and load: checkpoints and models, now or every so many steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from palm.core.errors import ConfigError, StorageError
from palm.core.files.tensors import load_into
from palm.core.logging import logger
from palm.distributed import barrier
from palm.engine.run.checkpoint import save_checkpoint, trained_weights
from palm.engine.run.saving import save_model
from palm.engine.training.events import Completed, Event, Saved
from palm.engine.training.loop import Step, Training
from palm.trainer.assembly import Forward

FOLDERS = {"ckpt": "ckpt", "predict": "pred"}
"""Kind of what is saved -> the beginning of its directory's name."""


class Saver:
    """Saves every so many steps, and once more when a training ends in between.

    Args:
        save: writes one directory, given its path and kind, and tells what it saved.
        save_path: where directories go: `ckpt.step<N>` and `pred.step<N>`.
        save_steps: 0 or less: only at the end.
        save_type: 'ckpt', 'predict' or both, with a comma between them.

    Raises:
        ConfigError: another `save_type`.
    """

    def __init__(
        self, save: Callable[[Path, str], list[Saved]], save_path: Path, save_steps: int, save_type: str
    ) -> None:
        self.save, self.save_path, self.save_steps = save, save_path, save_steps
        self.kinds = kinds_of(save_type)
        self._saved: int | None = None

    def __call__(self, event: Event) -> list[Saved]:
        if isinstance(event, Completed):
            return [] if self._saved == event.step else self._save(event.step)
        if isinstance(event, Step) and self.save_steps > 0 and event.number % self.save_steps == 0:
            return self._save(event.number)
        return []

    def _save(self, step: int) -> list[Saved]:
        paths = {kind: self.save_path / f"{FOLDERS[kind]}.step{step}" for kind in self.kinds}
        self._saved = step
        return [saved for kind, path in paths.items() for saved in self.save(path, kind)]


def kinds_of(save_type: str) -> list[str]:
    """The kinds that a `save_type` names.

    Raises:
        ConfigError: for an unknown one.
    """
    kinds = [kind.strip() for kind in save_type.split(",")]
    if not set(kinds) <= FOLDERS.keys():
        raise ConfigError([f"save_type should be 'ckpt', 'predict' or 'ckpt,predict', not {save_type!r}"])
    return kinds


def save_run(run: Training, path: Path, kind: str) -> list[Saved]:
    """Save a run's present state, or the models of its tasks; of several ranks, all must call this.

    Args:
        run: whose.
        path: the directory; of several tasks, their models go to `<path>/<task>`.
        kind: 'ckpt' or 'predict'.
    """
    if kind == "ckpt":
        save_checkpoint(run, path)
        logger.info("checkpoint has been saved at %s", path)
        saved = [Saved(run.step, "checkpoint", path)]
    else:
        places = {task.name: path if len(run.tasks) == 1 else path / task.name for task in run.tasks}
        for task in run.tasks:
            save_model(run, task, places[task.name])
        logger.info("predict model has been saved at %s", path)
        on_the_way = [task.name for task in run.tasks if not task.done]
        saved = [
            Saved(run.step, "on_the_way" if name in on_the_way else "target", place, name)
            for name, place in places.items()
        ]
    barrier()  # whoever goes on may read it
    return saved


def load_trained(forwards: Mapping[str, Forward], path: Path) -> None:
    """Give encoders and heads the weights of a checkpoint, to predict with them.

    Args:
        forwards: task -> its encoder and head.
        path: the checkpoint.

    Raises:
        StorageError: missing, damaged, or without one of the tasks.
    """
    weights = trained_weights(path)
    for name, forward in forwards.items():
        if name not in weights.heads:
            known = ", ".join(weights.heads)
            raise StorageError(
                f"{path} has no task {name!r}; it has {known}. Name the trainer as in training"
            )
        load_into(forward.backbone, weights.backbone, path)
        load_into(forward.head, weights.heads[name], path)
