"""What a person sees of a run: log lines and progress."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from palm.core.group import is_main_process
from palm.core.logging import Progress, display_of, logger, shown_score, shows_colour
from palm.train.callbacks import Callback, Ended, Evaluated, Event, Logged, Losses, Started
from palm.train.loop import Step, Training

DIVERGED = 3.0
"""Ratio of a task's mean loss to its first one, if that is above 1, from which it has diverged."""


class Meter:
    """A callback that returns the values of every `every`-th step as events.

    Losses are summed on the device. A GPU is waited for only in steps that are logged.

    Args:
        training: the run; its checkpoints contain the sums of losses.
        every: interval in global steps; 0 or less: never.
        seconds: returns the time since the run began, including earlier parts of a resumed run.
    """

    def __init__(self, training: Training, every: int, seconds: Callable[[], float]) -> None:
        self.training = training
        self.every = every
        self.seconds = seconds
        self._sums: dict[str, tuple[Tensor, int]] = {}
        self._means: dict[str, float] = {}
        self._limits: dict[str, float] = {}
        self._last = self._first = (seconds(), training.step, training.rows, training.tokens)
        training.attach("meter", self)

    def __call__(self, event: Event) -> list[Losses | Logged]:
        if not isinstance(event, Step):
            return []
        for part in event.parts:
            total, count = self._sums.get(part.task.name, (part.loss.new_zeros(()), 0))
            self._sums[part.task.name] = total.to(part.loss.device) + part.loss, count + 1
        return self._logged(event) if self.every > 0 and event.number % self.every == 0 else []

    def _logged(self, step: Step) -> list[Losses | Logged]:
        """Read the values of a step; return the means of all tasks, and an event per drawn task."""
        training = self.training
        training.settle()
        means = [total / count for total, count in self._sums.values()]
        # One transfer for all values of a step, because every read waits for a GPU.
        values = torch.stack([step.grad_norm, *(part.loss for part in step.parts), *means])
        norm, *numbers = values.tolist()
        losses = Losses(step.number, dict(zip(self._sums, numbers[len(step.parts) :], strict=True)))
        self._sums = {}
        self._means |= losses.means
        self._warn_of_divergence(losses)
        now = self.seconds()
        since, number, rows, tokens = self._last
        self._last = (now, training.step, training.rows, training.tokens)
        pace = max(now - since, 1e-9)
        # The average over this process's whole run, since evaluation and saving will also take their time.
        per_step = (now - self._first[0]) / (training.step - self._first[1])
        logged = [
            Logged(
                step.number,
                task.name,
                task_step=task.step,
                step_of_epoch=(task.step - 1) % task.steps_per_epoch + 1,
                steps_per_epoch=task.steps_per_epoch,
                epoch=task.epoch,
                loss=loss,
                mean_loss=losses.means[task.name],
                learning_rate=step.learning_rate,
                grad_norm=norm,
                rows=training.rows,
                tokens=training.tokens,
                seconds=round(now, 3),
                remaining=max(training.total_steps - training.step, 0) * per_step,
                steps_per_second=(training.step - number) / pace,
                rows_per_second=(training.rows - rows) / pace,
                tokens_per_second=(training.tokens - tokens) / pace,
                memory_bytes=memory_bytes(training.device),
            )
            for task, loss in zip((part.task for part in step.parts), numbers, strict=False)
        ]
        return [losses, *logged]

    def _warn_of_divergence(self, losses: Losses) -> None:
        for task, mean in losses.means.items() if is_main_process() else ():
            if not mean <= self._limits.setdefault(task, DIVERGED * max(mean, 1.0)):
                self._limits[task] = sys.float_info.max  # once
                logger.warning(
                    "%s: the loss diverged to %.4g at step %d; use a lower learning_rate",
                    task,
                    mean,
                    losses.step,
                )

    def means(self) -> dict[str, float]:
        """Return each task's last logged mean loss, or the mean over all its steps if none was logged."""
        return {name: total.item() / count for name, (total, count) in self._sums.items()} | self._means

    def state_dict(self) -> dict[str, Any]:
        """Return sums and means of losses, JSON-ready."""
        sums = {name: [total.item(), count] for name, (total, count) in self._sums.items()}
        return {"sums": sums, "means": self._means, "limits": self._limits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        # The round trip from float32 to double and back is exact, so the sums continue bit for bit.
        sums = state.get("sums", {}).items()
        self._sums = {name: (torch.tensor(total), count) for name, (total, count) in sums}
        self._means = dict(state.get("means", {}))
        self._limits = dict(state.get("limits", {}))


def memory_bytes(device: torch.device) -> int | None:
    """Return the peak memory of tensors on a GPU, or of the process on a CPU; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.is_file():
        # Not `ru_maxrss`, which includes the peak of the parent process.
        line = next(line for line in status.read_text("utf-8").splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)  # macOS counts bytes, Linux KiB


Heading = Callable[[Logged], str]
"""Makes the beginning of a step's line, which differs between PaddlePALM 2.x and 0.2.1."""


def palm_heading(logged: Logged) -> str:
    """Return the heading of PaddlePALM 0.2.1."""
    return f"Global step: {logged.step}. Task: {logged.task}, "


class StepLog:
    """A callback that logs steps in PALM's format, followed by mean loss, learning rate and times."""

    def __init__(self, heading: Heading = palm_heading) -> None:
        self.heading = heading

    def __call__(self, event: Event) -> None:
        if isinstance(event, Logged):
            logger.info(
                "%sstep %d/%d (epoch %d), loss: %.3f, speed: %.2f steps/s, mean loss: %.3f, "
                "learning rate: %.2e, elapsed: %s, remaining: %s",
                self.heading(event),
                event.step_of_epoch,
                event.steps_per_epoch,
                event.epoch,
                event.loss,
                event.steps_per_second,
                event.mean_loss,
                event.learning_rate,
                clock(event.seconds),
                clock(event.remaining),
            )


def clock(seconds: float) -> str:
    """Format seconds as `0:01:15`, rounded."""
    return str(timedelta(seconds=round(seconds)))


def log_scores(event: Event) -> None:
    """Log the scores of an evaluation in one line."""
    if isinstance(event, Evaluated):
        of_tasks = []
        for task, scores in event.scores.items():
            shown = ", ".join(f"{name} {shown_score(value)}" for name, value in scores.items())
            of_tasks.append(f"{task}: {shown}{' (best)' if task in event.best else ''}")
        logger.info("step %d: %s", event.step, "; ".join(of_tasks))


def progress_callbacks(progress: Progress, heading: Heading = palm_heading) -> list[Callback]:
    """Return the callbacks that display a run's progress.

    Args:
        progress: the setting.
        heading: makes the beginning of a step's log line.
    """
    shown: dict[str, list[Callback]] = {"bar": [ProgressBar()], "lines": [StepLog(heading)]}
    return [*shown.get(display_of(progress), ()), log_scores]


class ProgressBar:
    """A callback that shows all steps with the remaining time, and the values of the last logged step."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # without ipywidgets, a notebook has the bar of a terminal
                from tqdm.auto import tqdm  # slow, because it detects the kind of notebook

            self._bar = tqdm(
                total=event.training.total_steps,
                initial=event.training.step,
                bar_format="{percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]",
                colour="green" if shows_colour(sys.stderr) else None,
                file=sys.stderr,
                dynamic_ncols=True,
            )
        elif isinstance(event, Step):
            self._bar.update()
        elif isinstance(event, Logged):
            values = f"{event.task} loss {event.mean_loss:.3f}, lr {event.learning_rate:.1e}"
            rate = f"{event.rows_per_second:.0f} examples/s"
            self._bar.set_postfix_str(f"{values}, {rate}", refresh=False)
        elif isinstance(event, Ended):
            self._bar.close()
