"""Names in the folder of a run, and the form of its record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from palm.engine.inference.model_paths import BEST, BEST_OF_RUN, LAST, ON_THE_WAY
from palm.engine.run.run_lock import HOLDER
from palm.engine.watching.history import HISTORY_FILE

RECORD = "run.json"
CONFIGURATION = "resolved_config.yaml"
BAD_ROWS = "bad_rows.jsonl"

RECIPE = "recipe.yaml"
"""What a run is made of that was put together in Python, in the sections of a resolved configuration."""

MODELS = re.compile(rf"{LAST}|{re.escape(ON_THE_WAY)}\d+|{BEST}")
"""The folders of one task."""

STAGES = "stages"
STAGES_RECORD = "stages.json"
STAGE_WEIGHTS = "weights"
"""Of a run in stages: a folder for each, what they are, and what each ended with, in its folder."""

CHECKPOINT = "step_"
CHECKPOINT_FORMAT = "palm-checkpoint"
STATE = "state.json"
"""Of checkpoints: their folders, whose step follows, their format, and the file with their position."""

FOLDERS = ("tensorboard", "trackio", "wandb", "mlflow")
"""Those of trackers, which import from this package and so are not imported here."""

FILES = (RECORD, HISTORY_FILE, CONFIGURATION, RECIPE, BAD_ROWS, STAGES_RECORD)
"""Those of a run, beside its folders."""

NAMES = (*FILES, HOLDER, BEST_OF_RUN, STAGES, STAGE_WEIGHTS, *FOLDERS)
RESERVED = re.compile("|".join([rf"{CHECKPOINT}\d+", *map(re.escape, NAMES)]))


def name_problem(task: object) -> str | None:
    """Return the reason why a task cannot have a folder of its name beside those of the run, or None."""
    if not isinstance(task, str) or not task.strip() or "\0" in task:
        return f"the name of a task should be a text, not {task!r}"
    if RESERVED.fullmatch(task) or task.startswith(".") or "/" in task or "\\" in task:
        return (
            f"task {task!r}: its folder under save_path would be one that the run needs (step_N, best, "
            f"{RECORD}, hidden files, paths); give the task another name"
        )
    return None


class Identity(TypedDict):
    """The part of a configuration that makes a run this run."""

    tasks: Mapping[str, Mapping[str, Any]]


class RunRecord(TypedDict):
    """The content of `run.json`."""

    id: str
    since: str
    launch: str | None
    identity: Identity
