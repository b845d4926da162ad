"""`history.jsonl`: what a run tells of itself, a line each, which a resumed run continues without a seam."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from palm.core.errors import StorageError
from palm.core.files.fs import wrap_write_errors, write_text
from palm.core.version import __version__
from palm.engine.training.events import Completed, Ended, Evaluated, Event, Logged, Saved, Started, Warned
from palm.engine.training.loop import Training
from palm.engine.training.transfer import Transferred

FILE, VERSION = "history.jsonl", 1

Line = dict[str, Any]


class History:
    """Keeps the lines of a run, and writes each to a file as it comes.

    Checkpoints hold how many lines there were, so a run that goes on from one cuts off exactly what came
    after it. Where the file is not the one that the checkpoint knows, steps behind it are cut off.

    Args:
        training: its checkpoints hold the number of lines.
        folder: where the file is; None to keep the lines in memory only.

    Attributes:
        lines: those so far, earlier parts of a resumed run included.
    """

    def __init__(self, training: Training, folder: Path | None) -> None:
        self.folder = folder
        self.lines: list[Line] = []
        self._kept: int | None = None
        self._file: IO[str] | None = None
        self._training = training
        training.attach("history", self)
        if training.step > 0 and folder is not None:
            lines, kept, step = read_lines(folder / FILE), self._kept, training.step
            if kept is not None and len(lines) >= kept and all(line["step"] <= step for line in lines[:kept]):
                saved = [line for line in lines[kept : kept + 1] if line.get("kind") == "checkpoint"]
                self.lines = lines[:kept] + [line for line in saved if line["step"] == step]
            else:
                self.lines = [line for line in lines if line["step"] <= step and line["event"] != "end"]
        earlier = next((line["seconds"] for line in reversed(self.lines) if "seconds" in line), 0.0)
        self._began = time.perf_counter() - earlier

    def seconds(self) -> float:
        """Since the run began, earlier parts of a resumed run included."""
        return time.perf_counter() - self._began

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._start(event)
        elif isinstance(event, Completed):
            self._draws()
        elif isinstance(event, Warned):
            # Those about the data come again when a run goes on, and are known already.
            if all(line["event"] != "warning" or line["message"] != event.message for line in self.lines):
                self._write("warning", step=event.step, message=event.message)
        elif isinstance(event, Logged):
            on_gpu = self._training.recipe.device.type == "cuda"
            memory = {"memory_bytes": event.memory_bytes} if on_gpu else {}
            values = {name: getattr(event, name) for name in SHOWN}
            self._write("step", **values, seconds=round(event.seconds, 3), **memory)
        elif isinstance(event, Evaluated):
            self._draws()
            found = {"scores": event.scores, "dev_loss": event.dev_loss, "best": list(event.best)}
            self._write("evaluation", step=event.step, **found, seconds=round(self.seconds(), 3))
        elif isinstance(event, Transferred):
            values = {name: getattr(event, name) for name in ("cosine", "layers", "look_ahead")}
            self._write("transfer", step=event.step, **values, took=round(event.seconds, 3))
        elif isinstance(event, Saved):
            self._save(event)
        elif isinstance(event, Ended):
            self._write("end", step=event.step, reason=event.reason, seconds=round(self.seconds(), 3))
            self.close()

    def _start(self, event: Started) -> None:
        if self.folder is not None:
            path = self.folder / FILE
            with wrap_write_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                # The file is replaced as a whole, so that a kill loses no line.
                write_text(path, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.lines))
                self._file = path.open("a", encoding="utf-8")
        if not self.lines:
            self._write("start", **_plan(event.training))
        checkpoint, step = event.resumed_from, event.training.step
        # Killed between a checkpoint and its line, a run would lack that line for ever.
        if checkpoint is not None and self._is_here(checkpoint):
            known = self._shown(checkpoint)
            if not any(line.get("path") == known and line["step"] == step for line in self.lines):
                self._save(Saved(step, "checkpoint", checkpoint))

    def _draws(self) -> None:
        steps = {task.name: task.step for task in self._training.tasks}
        last = next((line for line in reversed(self.lines) if line["event"] == "draws"), {})
        if last.get("step") != self._training.step:
            self._write("draws", step=self._training.step, steps=steps)

    def _save(self, event: Saved) -> None:
        task = {} if event.task is None else {"task": event.task}
        self._write("saved", step=event.step, kind=event.kind, **task, path=self._shown(event.path))

    def _is_here(self, path: Path) -> bool:
        return self.folder is not None and path.resolve().is_relative_to(self.folder.resolve())

    def _shown(self, path: Path) -> str:
        if self.folder is None or not self._is_here(path):
            return str(path)
        return path.resolve().relative_to(self.folder.resolve()).as_posix()

    def _write(self, event: str, **values: Any) -> None:
        line = {"event": event, "step": values["step"], **_json_ready(values)}
        self.lines.append(line)
        if self._file is None or self.folder is None:
            return
        # The last line must not hide why the run ended, which may be a full disk.
        with (
            suppress(StorageError) if event == "end" else nullcontext(),
            wrap_write_errors(self.folder / FILE),
        ):
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Write nothing more."""
        if self._file is not None:
            with suppress(OSError):  # what a full disk did not take
                self._file.close()
            self._file = None

    def state_dict(self) -> dict[str, Any]:
        """How many lines there are."""
        return {"lines": len(self.lines)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind as many lines, if the file has them."""
        self._kept = state["lines"]


def _plan(training: Training) -> Line:
    """The run as it was planned when it began."""
    tasks = {
        task.name: {
            "is_target": task.is_target,
            "expected_steps": task.expected_steps,
            "steps_per_epoch": task.steps_per_epoch,
            "rows": 0 if task.stream is None else len(task.stream.rows),
            "mix_ratio": task.mix_ratio,
        }
        for task in training.tasks
    }
    return {
        "version": VERSION,
        "palm": __version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "step": training.step,
        "total_steps": training.total_steps,
        "precision": training.model.precision,
        "device": training.recipe.device.type,
        "tasks": tasks,
    }


SHOWN = (
    *("step", "task", "task_step", "epoch", "loss", "mean_loss", "learning_rate", "grad_norm"),
    *("rows", "tokens"),
)
"""What a line tells of a step, beside its time."""


def _json_ready(value: Any) -> Any:
    """The value with None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {name: _json_ready(item) for name, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: Path) -> list[Line]:
    """The lines of a file, but for a last one that a killed run left unfinished; none without a file.

    Raises:
        StorageError: another line is no event.
    """
    if not path.is_file():
        return []
    lines: list[Line] = []
    written = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, text in enumerate(written, start=1):
        try:
            line = json.loads(text)
            lines.append({"event": line["event"], "step": line["step"], **line})
        except (ValueError, TypeError, KeyError) as error:
            if number < len(written):
                raise StorageError(
                    f"{path}:{number}: not an event of a run: {text[:60]!r}; restore the file, or remove it "
                    "to begin another"
                ) from error
    return lines
