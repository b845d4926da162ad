"""Progress on a terminal or in a notebook: a bar for all steps, and a line below it for every task."""

from __future__ import annotations

import os
import sys
from typing import Any

from palm.core.logging import Progress, logger, shows_colour
from palm.train.callbacks import Callback
from palm.train.events import Ended, Evaluated, Event, Logged, Started
from palm.train.logs import Heading, StepLog, log_first_rows, palm_heading
from palm.train.loop import Step

OVERALL_FORMAT = "{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def progress_callbacks(progress: Progress, heading: Heading = palm_heading) -> list[Callback]:
    """Return the callbacks that display a run's progress."""
    if progress == "auto":
        shown = logger.isEnabledFor(20)  # INFO
        can_move = sys.stderr.isatty() or "ipykernel" in sys.modules  # a terminal, or a notebook
        progress = ("bar" if can_move else "lines") if shown else "none"
    if progress == "none":
        return []
    return [ProgressBars() if progress == "bar" else StepLog(heading), log_first_rows]


class ProgressBars:
    """A callback that shows all steps with the remaining time, and each task's steps, mean loss and scores.

    The bar moves with every step; the values beside it change with logged steps and evaluations.
    """

    def __init__(self) -> None:
        self._bars: dict[str, Any] = {}
        self._losses: dict[str, str] = {}
        self._scores: dict[str, str] = {}
        self._best: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._open(event)
        elif isinstance(event, Step):
            # A finished target is still drawn until the last one is finished, and scores may change the plan.
            for part in event.parts:
                own = self._bars[part.task.name]
                own.bar_format = _task_format(part.task)
                own.update()
            overall = self._bars[""]
            overall.total = max(overall.total, event.number)
            overall.update()
        elif isinstance(event, Logged):
            self._losses[event.task] = f"loss {event.mean_loss:.3f}"
            self._show(event.task)
            overall = self._bars[""]
            counts = 2 * len(str(overall.total)) + len("100% |..........| / [0:00:00<0:00:00, ]")
            overall.set_postfix_str(_rates(event, counts), refresh=False)
        elif isinstance(event, Evaluated):
            for task in event.scores:
                name, value = next(iter(event.scores[task].items()))
                shown = f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"
                if task in event.best:
                    self._best[task] = shown
                self._scores[task] = f"{name} {shown} (best {self._best.get(task, shown)})"
                self._show(task)
        elif isinstance(event, Ended):
            for bar in self._bars.values():
                bar.close()

    def _open(self, event: Started) -> None:
        from tqdm.auto import tqdm  # slow, because it detects the kind of notebook

        training = event.training
        width = max(len(task.name) for task in training.tasks)
        common: dict[str, Any] = {"file": sys.stderr, "dynamic_ncols": True}
        self._bars[""] = tqdm(
            total=training.total_steps,
            initial=training.step,
            bar_format=OVERALL_FORMAT,
            colour="green" if shows_colour(sys.stderr) else None,
            position=0,
            **common,
        )
        for place, task in enumerate(training.tasks, start=1):
            self._bars[task.name] = tqdm(
                desc=f"  {task.name:<{width}}",
                initial=task.step,
                bar_format=_task_format(task),
                position=place,
                **common,
            )

    def _show(self, task: str) -> None:
        found = [texts[task] for texts in (self._losses, self._scores) if task in texts]
        self._bars[task].set_postfix_str(", ".join(found), refresh=False)


def _task_format(task: Any) -> str:
    """Return tqdm's format of a task, which may have more steps than planned."""
    return f"{{desc}} {{n_fmt}}/{task.expected_steps}{{postfix}}"


def _rates(logged: Logged, taken: int) -> str:
    """Return the rates of the whole run, as many as fit next to `taken` columns."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (AttributeError, OSError, ValueError):
        columns = 1000  # notebooks and terminals of unknown size wrap long lines
    rates = [f"lr {logged.learning_rate:.1e}", f"{logged.rows_per_second:.0f} examples/s"]
    rates.append(f"{logged.tokens_per_second:.0f} tokens/s")
    if logged.memory_bytes is not None:
        rates.append(f"{logged.memory_bytes / 2**30:.1f} GiB")
    while rates and len(", ".join(rates)) > columns - taken:
        rates.pop()
    return ", ".join(rates)
