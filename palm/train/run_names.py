"""Names of the files and folders of a run, and the content of its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from palm.train.history import HISTORY_FILE
from palm.train.model_paths import BEST, BEST_OF_RUN, LAST, ON_THE_WAY
from palm.train.run_lock import HOLDER

RECORD = "run.json"
CONFIGURATION = "resolved_config.yaml"
BAD_ROWS = "bad_rows.jsonl"

RECIPE = "recipe.yaml"
"""Components of a run that was assembled in Python, in the sections of a resolved configuration."""

MODELS = re.compile(rf"{LAST}|{re.escape(ON_THE_WAY)}\d+|{BEST}")
"""Names of the model folders of one task."""

STAGES = "stages"
STAGES_RECORD = "stages.json"
STAGE_FOLDERS = "[0-9]*-*"
STAGE_WEIGHTS = "weights"
"""For a run with stages: the folder of its stages, their record, a pattern of the stages' own folders (number
and name), and the folder of a stage's final weights."""

CHECKPOINT = "step_"
CHECKPOINT_FORMAT = "palm-checkpoint"
STATE = "state.json"
"""For checkpoints: the prefix of their folders, their format, and the file with their position."""

FOLDERS = ("tensorboard", "trackio", "wandb", "mlflow")
"""Folders of loggers. Loggers import from this package, so their own constants cannot be imported here."""

FILES = (RECORD, HISTORY_FILE, CONFIGURATION, RECIPE, BAD_ROWS, STAGES_RECORD)
"""Files of a run."""

NAMES = (*FILES, HOLDER, BEST_OF_RUN, STAGES, STAGE_WEIGHTS, *FOLDERS)
RESERVED = re.compile("|".join([rf"{CHECKPOINT}\d+", *map(re.escape, NAMES)]))


def name_problem(task: object) -> str | None:
    """Return the reason why a task's folder would clash with those of the run, or None."""
    if not isinstance(task, str) or not task.strip() or "\0" in task:
        return f"the name of a task should be a non-empty string, not {task!r}"
    # Many file systems ignore case.
    if RESERVED.fullmatch(task.casefold()) or task.startswith(".") or "/" in task or "\\" in task:
        return (
            f"task {task!r}: this name is reserved for files of the run under save_path (step_N, best, "
            f"{RECORD}, hidden files, paths); rename the task"
        )
    return None


class Identity(TypedDict):
    """The part of a configuration that identifies a run."""

    tasks: Mapping[str, Mapping[str, Any]]


class RunRecord(TypedDict):
    """The content of `run.json`."""

    id: str
    since: str
    launch: str | None
    identity: Identity
