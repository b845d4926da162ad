"""The folder of a run with stages: finished stages, one combined history, models in their usual place."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

from palm.core.differences import changes
from palm.core.errors import StorageError
from palm.core.files.atomic_dir import linked_copy
from palm.core.files.door import has_link
from palm.core.files.fs import write_json
from palm.core.files.manifest import is_sealed
from palm.core.files.records import read_record
from palm.core.files.untrusted import wrap_read_errors
from palm.core.logging import logger
from palm.train.events import Drawn, Ended, Line, Planned, Saved, StageStarted
from palm.train.history import HISTORY_FILE, read_lines, write_lines
from palm.train.model_paths import BEST, LAST
from palm.train.result import TrainingResult, result_of
from palm.train.run_directory import RunDirectory, RunStart
from palm.train.run_names import RECORD, STAGE_WEIGHTS, STAGES, STAGES_RECORD

Settings = Mapping[str, Any]
"""Everything that the final weights of a stage depend on, JSON-ready."""


class StagesRecord(TypedDict):
    """The content of `stages.json`."""

    launch: str | None
    stages: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StagedDirectory:
    """A `save_path` with one run per stage under `stages/`; only rank 0 changes it.

    Args:
        run: the folder, its tasks and targets, and the settings `resume` and `overwrite`.
        stages: label -> what the stage depends on, in order.
    """

    run: RunDirectory
    stages: Mapping[str, Settings]

    @property
    def path(self) -> Path:
        """The folder of the whole run."""
        return self.run.path

    def folder(self, stage: str) -> Path:
        """Return the folder of one stage, laid out like that of a run."""
        return self.path / STAGES / stage

    def weights(self, stage: str) -> Path:
        """Return the folder of a stage's final weights."""
        return self.folder(stage) / STAGE_WEIGHTS

    def is_done(self, stage: str) -> bool:
        """Return True if a stage is finished; its weights are written last."""
        return is_sealed(self.weights(stage))

    def has_begun(self, stage: str) -> bool:
        """Return True if a stage has written anything."""
        return (self.folder(stage) / RECORD).is_file() or self.is_done(stage)

    def open(self, launch: str | None = None, restarted: bool = False) -> None:
        """Continue with existing stages, or remove earlier results before new ones.

        Args:
            launch: the id that the processes of one launch share.
            restarted: the launcher has restarted this run, so existing stages may be its own.

        Raises:
            StorageError: the folder holds an earlier run, or stages with other settings.
        """
        for stage in self.stages:
            if has_link(self.folder(stage), self.path):
                raise StorageError(f"{self.folder(stage)} is a link; remove it, or give another save_path")
        file = self.path / STAGES_RECORD
        saved = read_record(file, StagesRecord) if file.exists() else None
        is_own = restarted and saved is not None and saved["launch"] == launch
        record = {"launch": launch, "stages": dict(self.stages)}
        if saved and (is_own or self.run.resume == "auto"):
            lines = list(self._changed(saved))
            if not lines:
                write_json(file, record)
                return
            if not self.run.overwrite:
                raise StorageError(
                    "\n  ".join([f"{self.path} holds stages that were trained with other settings:", *lines])
                    + "\nRestore these settings, or replace the run (overwrite: true without resume)"
                )
        # Each stage resumes from its own checkpoints; the folder of the whole run has none.
        replace(self.run, resume=None).check()
        identity = {"tasks": {task: {} for task in self.run.tasks}, "stages": list(self.stages)}
        replace(self.run, resume=None, overwrite=True).begin(
            RunStart(uuid.uuid4().hex, None), identity, launch
        )
        write_json(file, record)

    def _changed(self, saved: StagesRecord) -> Iterator[str]:
        """Yield one line for each stage that has begun and whose settings have changed."""
        for label, before in saved["stages"].items():
            now = self.stages.get(label)
            if now == before or not self.has_begun(label):
                continue
            if now is None:
                yield f"stage {label} is no longer in the configuration"
                continue
            changed = sorted(change.path[0] for change in changes(before, now, depth=1))
            yield f"stage {label}: {', '.join(changed)}"

    def publish(self, stage: str, targets: Sequence[str]) -> None:
        """Copy the models of targets to their usual place, `<save_path>/<task>`."""
        for task in targets:
            for kind in (LAST, BEST):
                source = self.folder(stage) / task / kind
                place = self.path / task / kind
                # A resumed run meets stages whose models have been published already.
                if is_sealed(source) and not is_sealed(place):
                    linked_copy(source, place)
                    logger.info("%s: %s of stage %s is at %s", task, kind, stage, place)

    def write_history(self) -> list[Line]:
        """Write the lines of all stages so far to `history.jsonl`, as those of one run, and return them."""
        recorded = ((stage, read_lines(self.folder(stage) / HISTORY_FILE)) for stage in self.stages)
        with wrap_read_errors(self.path / STAGES, " the histories of"):
            lines = combined([(stage, lines) for stage, lines in recorded if lines])
        write_lines(self.path / HISTORY_FILE, lines)
        return lines

    def result(self, last: Mapping[str, str]) -> TrainingResult:
        """Return the result of the run; `last` maps each task to the last stage that trained it."""
        lines = self.write_history()
        planned = {name: task["expected_steps"] for name, task in lines[0]["tasks"].items()}
        steps = dict.fromkeys(planned, 0)
        for line in lines:
            steps |= line["steps"] if line["event"] == Drawn.recorded_as else {}
        seconds = next((line["seconds"] for line in reversed(lines) if "seconds" in line), 0.0)
        return result_of(lines, steps, planned, float(seconds), last)


def combined(stages: Sequence[tuple[str, Sequence[Line]]]) -> list[Line]:
    """Combine the histories of stages: steps, rows and seconds are cumulative, every line names its stage.

    Args:
        stages: (label, lines of the stage's run) in order.
    """
    found: list[Line] = []
    before: dict[str, Any] = {"step": 0, "seconds": 0.0, "rows": 0, "tokens": 0}
    counts: dict[str, int] = {}
    plans: dict[str, dict[str, Any]] = {}
    for number, (label, lines) in enumerate(stages):
        start = next(line for line in lines if line["event"] == Planned.recorded_as)
        if not found:
            found.append({**start, "stages": [name for name, _ in stages]})
        begun = StageStarted(before["step"], label, start["total_steps"])
        found.append({**begun.as_line(), "tasks": start["tasks"]})
        _add_plans(plans, start["tasks"])
        is_last = number == len(stages) - 1
        own = [_moved(line, label, before, counts) for line in lines if line["event"] != Planned.recorded_as]
        found += [line for line in own if is_last or line["event"] != Ended.recorded_as]
        # Every stage counts from 0; the totals of the stages before it are added.
        counts = next((line["steps"] for line in reversed(own) if line["event"] == Drawn.recorded_as), counts)
        before = {
            name: max([line[name] for line in own if name in line], default=value)
            for name, value in before.items()
        }
    if found:
        total = sum(line["total_steps"] for line in found if line["event"] == StageStarted.recorded_as)
        found[0] |= {"tasks": plans, "total_steps": total}
    return found


def _add_plans(plans: dict[str, dict[str, Any]], tasks: Mapping[str, dict[str, Any]]) -> None:
    for name, plan in tasks.items():
        known = plans.setdefault(name, {**plan, "expected_steps": 0})
        known["expected_steps"] += plan["expected_steps"]
        known["is_target"] = known["is_target"] or plan["is_target"]


def _moved(line: Line, label: str, before: Mapping[str, Any], counts: Mapping[str, int]) -> Line:
    """Return a line of a stage as a line of the whole run."""
    moved = {name: line[name] + value for name, value in before.items() if name in line}
    if "seconds" in moved:
        moved["seconds"] = round(moved["seconds"], 3)
    if "task_step" in line:
        moved["task_step"] = line["task_step"] + counts.get(line["task"], 0)
    if line["event"] == Drawn.recorded_as:
        moved["steps"] = {**counts} | {
            task: steps + counts.get(task, 0) for task, steps in line["steps"].items()
        }
    if line["event"] == Saved.recorded_as and not Path(line["path"]).is_absolute():
        moved["path"] = f"{STAGES}/{label}/{line['path']}"
    return {**line, **moved, "stage": label}
