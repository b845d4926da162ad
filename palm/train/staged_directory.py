"""The folder of a run with stages: finished stages, one combined history, models in their usual place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from palm.core.errors import StorageError, changes, setting_name
from palm.core.io import is_sealed, linked_copy, wrap_read_errors
from palm.core.logging import logger
from palm.train.callbacks import Drawn, Ended, Logged, Planned, PlannedTask, Recorded, Saved, StageStarted
from palm.train.folder import RunFolder, RunStart, read_run_record
from palm.train.history import HISTORY_FILE, read_events, seconds_of, write_events
from palm.train.model_paths import BEST, LAST, RECORD, STAGE_WEIGHTS, STAGES
from palm.train.result import TrainingResult, result_of

Settings = Mapping[str, Any]
"""Everything that the final weights of a stage depend on, JSON-ready."""


@dataclass(frozen=True)
class StagedDirectory:
    """A `save_path` with one run per stage under `stages/`; only rank 0 changes it.

    Args:
        run: the folder, and the settings `resume` and `overwrite`.
        stages: label -> what the stage depends on, in order.
    """

    run: RunFolder
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
        """Return True if a stage is finished and its weights are saved."""
        record = read_run_record(self.folder(stage))
        return record is not None and record["finished"] is not None and is_sealed(self.weights(stage))

    def has_begun(self, stage: str) -> bool:
        """Return True if a stage has written anything."""
        return (self.folder(stage) / RECORD).is_file()

    def open(self, launch: str | None = None, restarted: bool = False) -> None:
        """Continue with existing stages, or make room for new ones.

        Args:
            launch: the id that the processes of one launch share.
            restarted: the launcher has restarted this run, so existing stages may be its own.

        Raises:
            StorageError: the folder holds an earlier run, or stages with other settings.
        """
        record = read_run_record(self.path)
        saved = {} if record is None else record["identity"].get("stages", {})
        identity = {"tasks": {}, "stages": dict(self.stages)}
        is_own = restarted and record is not None and record["launch"] == launch
        start = RunStart("" if record is None else record["id"], continues=True)
        lines = list(self._changed(saved))
        is_same = saved == self.stages and all(map(self.is_done, self.stages)) and not self.run.overwrite
        if saved and not lines and (is_own or is_same or self.run.resume == "auto"):
            self.run.record(start, identity, 0, launch)
            return
        if saved and lines and self.run.resume == "auto" and not self.run.overwrite:
            raise StorageError(
                "\n  ".join([f"{self.path} holds stages that were trained with other settings:", *lines])
                + "\nRestore these settings, or begin anew (overwrite: true without resume)"
            )
        # Each stage resumes from its own checkpoints; the folder of the whole run has none.
        begun = replace(self.run, resume=None).open()
        self.run.begin(begun, identity, 0, launch)

    def _changed(self, saved: Mapping[str, Settings]) -> Iterator[str]:
        """Yield one line for each stage that has begun and whose settings have changed."""
        for label, before in saved.items():
            now = self.stages.get(label)
            if now == before or not self.has_begun(label):
                continue
            if now is None:
                yield f"stage {label} is no longer in the configuration"
                continue
            changed = sorted({setting_name(change.path) for change in changes(before, now)})
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

    def write_history(self) -> list[Recorded]:
        """Write the events of all stages so far to `history.jsonl`, as those of one run, and return them."""
        files = {stage: self.folder(stage) / HISTORY_FILE for stage in self.stages}
        recorded = [(stage, read_events(file)) for stage, file in files.items() if file.is_file()]
        with wrap_read_errors(self.path / STAGES, " the histories of"):
            events = combined([(stage, events) for stage, events in recorded if events])
        write_events(self.path / HISTORY_FILE, events)
        return events

    def result(self, last: Mapping[str, str]) -> TrainingResult:
        """Return the result of the run; `last` maps each task to the last stage that trained it."""
        events = self.write_history()
        start = events[0]
        assert isinstance(start, Planned)
        planned = {name: task.expected_steps for name, task in start.tasks.items()}
        steps = dict.fromkeys(planned, 0)
        for event in events:
            steps |= event.steps if isinstance(event, Drawn) else {}
        return result_of(events, steps, planned, seconds_of(events), last)


def combined(stages: Sequence[tuple[str, Sequence[Recorded]]]) -> list[Recorded]:
    """Combine the histories of stages: steps, rows and seconds are cumulative.

    Args:
        stages: (label, events of the stage's run) in order.
    """
    found: list[Recorded] = []
    before: dict[str, Any] = {"step": 0, "seconds": 0.0, "rows": 0, "tokens": 0}
    counts: Mapping[str, int] = {}
    plans = []
    for number, (label, events) in enumerate(stages):
        plan = next(event for event in events if isinstance(event, Planned))
        plans.append(plan)
        found.append(StageStarted(before["step"], label, plan.total_steps, plan.tasks))
        own = [_moved(event, label, before, counts) for event in events if not isinstance(event, Planned)]
        is_last = number == len(stages) - 1
        found += [event for event in own if is_last or not isinstance(event, Ended)]
        # Every stage counts from 0; the totals of the stages before it are added.
        counts = next((event.steps for event in reversed(own) if isinstance(event, Drawn)), counts)
        totals = {name: [getattr(event, name, None) or 0 for event in own] for name in before}
        before = {name: max([value, *totals[name]]) for name, value in before.items()}
    return [_plan_of_all(plans, [label for label, _ in stages]), *found] if plans else []


def _plan_of_all(plans: Sequence[Planned], labels: Sequence[str]) -> Planned:
    tasks: dict[str, PlannedTask] = {}
    for name, task in ((name, task) for plan in plans for name, task in plan.tasks.items()):
        known = tasks.get(name, replace(task, expected_steps=0))
        tasks[name] = replace(
            known,
            expected_steps=known.expected_steps + task.expected_steps,
            is_target=known.is_target or task.is_target,
        )
    total = sum(plan.total_steps for plan in plans)
    return replace(plans[0], tasks=tasks, total_steps=total, stages=labels)


def _moved(event: Recorded, label: str, before: Mapping[str, Any], counts: Mapping[str, int]) -> Recorded:
    """Return an event of a stage as one of the whole run."""
    moved: dict[str, Any] = {
        name: round(own + value, 3)
        for name, value in before.items()
        if (own := getattr(event, name, None)) is not None
    }
    if isinstance(event, Logged):
        moved["task_step"] = event.task_step + counts.get(event.task, 0)
    elif isinstance(event, Drawn):
        moved["steps"] = {**counts, **{name: n + counts.get(name, 0) for name, n in event.steps.items()}}
    elif isinstance(event, Saved) and not event.path.is_absolute():
        moved["path"] = Path(STAGES, label, event.path)
    return replace(event, **moved)
