"""The process of one run: train or resume it, score its models, and write the result."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from palm.controller.controller import Controller
from palm.controller.startup import start_processes
from palm.core.directories import is_sealed
from palm.core.errors import ResourceError, StorageError, TrainingError
from palm.core.io import locked, make_folder, write_json, write_text
from palm.core.numerics.device import device_of
from palm.core.records import read_record
from palm.experiments.grid.data import changed_data
from palm.experiments.grid.folder import (
    CONFIGURATION,
    JOB,
    OUT,
    RESULT,
    ROWS,
    Job,
    Result,
    Tested,
    remove_models,
)
from palm.metrics import metrics_of, scores_of
from palm.parallel.group import broadcast, is_launched, is_main_process
from palm.predict.loading import load_model
from palm.train.evaluation import json_ready
from palm.train.events import Evaluated, StageStarted
from palm.train.history import HISTORY_FILE, read_events
from palm.train.model_paths import BEST, LAST
from palm.train.task_model import encoded


def work(folder: Path) -> None:
    """Train and score the run of a folder, unless it has a result; `result.json` is written last."""
    if not is_launched():  # otherwise its launcher does so, and ends it
        threading.Thread(target=_end_with_parent, daemon=True).start()
    controller = Controller(folder / CONFIGURATION, argv=[])
    # All processes come here.
    start_processes(controller.run.settings)
    # A process whose grid was killed may still be saving.
    lock = locked(folder / ".worker.lock", f"ending the run in {folder}")
    with lock if is_main_process() else nullcontext():
        if broadcast(lambda: (folder / RESULT).is_file()):
            return
        job = read_record(folder / JOB, Job)
        broadcast(partial(_check_data, job))
        result = _trained(folder, controller, job)
        broadcast(partial(_check_data, job))
        if is_main_process():
            # Before the result, which marks the run as done: nobody would remove what a killed process left.
            if not job["keep_models"]:
                remove_models(folder)
            write_json(folder / RESULT, result)


def _check_data(job: Job) -> None:
    """Check that the data files are still those that the run was begun with.

    Raises:
        StorageError: some have changed; names them.
    """
    if changed := changed_data(job["data"]):
        raise StorageError(
            f"the data changed after the run was begun: {', '.join(changed)}; restore the files and "
            "run the same command again, or train all runs anew (--overwrite)"
        )


def _end_with_parent() -> None:
    """End as on SIGTERM, with a checkpoint, when the parent process has died.

    It holds the other end of standard input and never writes, so reading returns at the end of the file.
    """
    os.read(sys.stdin.fileno(), 1)  # a buffered read would hold a lock when the interpreter ends
    os.kill(os.getpid(), signal.SIGTERM)


def _trained(folder: Path, controller: Controller, job: Job) -> Result:
    try:
        trained = controller.train()
    except (ResourceError, TrainingError) as error:  # too little memory or a NaN loss is a result, too
        why = str(error).splitlines()[0]
        return {"state": "failed", "why": why, "dev": [], "steps": {}, "seconds": 0.0, "test": {}}
    return {
        "state": "done",
        "why": "",
        "dev": dev_scores(folder / OUT / HISTORY_FILE),
        "steps": trained.steps,
        "seconds": round(trained.seconds, 3),
        "test": {task: _scored(folder, controller, task, job) for task in job["test"]},
    }


def dev_scores(history: Path) -> list[tuple[int, float]]:
    """Return global step and score of the evaluations of a run, in its last stage if it has several."""
    found: list[tuple[int, float]] = []
    for event in read_events(history):
        if isinstance(event, StageStarted):
            found = []
        elif isinstance(event, Evaluated) and event.mean is not None and math.isfinite(event.mean):
            found.append((event.step, event.mean))
    return found


def _scored(folder: Path, controller: Controller, task: str, job: Job) -> Tested:
    """Score a model on a file with labels; every prediction is written to the run's folder with its truth."""
    settings = controller.run.settings
    saved = folder / OUT / task
    which = BEST if job["model"] == "best" and is_sealed(saved / BEST) else LAST
    model = load_model(saved / which, precision=settings.precision)
    model.to(device_of(settings.use_gpu, settings.device))
    chosen = next(each for each in controller.run.tasks if each.name == task).settings.metrics
    names: Sequence[str] = chosen or model.head.metrics
    chunks = encoded(model.reader, model.reader.read_gold(Path(job["test"][task])))
    pairs = [(each.record, each.gold or {}) for each in model.predictions(chunks, with_gold=True)]
    if is_main_process():
        make_folder(folder / ROWS)
        lines = (
            json.dumps({"prediction": record, "truth": truth}, ensure_ascii=False) for record, truth in pairs
        )
        write_text(folder / ROWS / f"{task}.jsonl", "".join(f"{line}\n" for line in lines))
    return {"metric": names[0], "model": which, "scores": json_ready(scores_of(metrics_of(names), pairs))}
