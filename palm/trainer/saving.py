"""Saving and loading of trainers: checkpoints and models under the names of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from palm.core.errors import ConfigError, StorageError
from palm.core.files.tensors import load_into
from palm.core.logging import logger
from palm.distributed.group import barrier
from palm.engine.run.checkpoint import save_checkpoint, trained_weights
from palm.engine.run.saving import save_model
from palm.engine.training.events import Saved
from palm.engine.training.loop import Training
from palm.trainer.assembly import Forward

FOLDERS = {"ckpt": "ckpt", "predict": "pred"}
"""Kind of what is saved -> the beginning of its directory's name."""


def kinds_of(save_type: str) -> list[str]:
    """The kinds that a `save_type` names.

    Raises:
        ConfigError: for an unknown one.
    """
    kinds = [kind.strip() for kind in save_type.split(",")]
    if not set(kinds) <= FOLDERS.keys():
        raise ConfigError(f"save_type should be 'ckpt', 'predict' or 'ckpt,predict', not {save_type!r}")
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
        saved = [
            save_model(
                run,
                task,
                path if len(run.tasks) == 1 else path / task.name,
                "target" if task.done else "on_the_way",
            )
            for task in run.tasks
        ]
        logger.info("predict model has been saved at %s", path)
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
