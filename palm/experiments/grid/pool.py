"""The processes of a grid: one for every run, some at a time, stopped together and cleanly."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from palm.core.checks import count_problems, raise_any
from palm.core.durations import duration
from palm.core.errors import PalmError
from palm.core.files.door import open_to_append
from palm.core.files.fs import check_replaceable, write_text
from palm.core.invocation import START, command_of_program
from palm.core.logging import logger
from palm.core.signals import Stopped
from palm.engine.training.events import Logged
from palm.engine.watching.history import HISTORY_FILE, read_lines
from palm.experiments.grid.folder import CONFIGURATION, LOG, OUT, Grid, GridRun, Result

POLL_SECONDS = 0.1
REPORT_SECONDS = 60.0
"""Time between two lines about the progress of the runs."""

KILL_SECONDS = 120.0
"""Time that a run which is to end has for the step at hand and its checkpoint."""


@dataclass(frozen=True)
class Pool:
    """The processes that train the runs of a grid.

    Args:
        grid: their folder.
        command: the words after `palm` with which a process is one of them, after the configuration's name.
        slots: environment variables of the runs that are trained at a time, one mapping for each.
        keep_models: whether models and checkpoints of a run stay when it is scored.
    """

    grid: Grid
    command: Sequence[str]
    slots: Sequence[Mapping[str, str]]
    keep_models: bool = False

    def train(self, runs: Iterable[GridRun], done: Callable[[GridRun, Result, bool], None]) -> None:
        """Train all runs that are not done, in order, as many at a time as there are slots.

        Args:
            runs: the next is asked for when a slot is free.
            done: called with every run and its result, and whether it was there before.

        Raises:
            PalmError: a run failed; those beside it end with a checkpoint, and what is done stays done.
            KeyboardInterrupt, Stopped: as asked by the user; the same.
        """
        waiting = iter(runs)
        free = list(self.slots)
        active: list[tuple[GridRun, subprocess.Popen[bytes], Mapping[str, str]]] = []
        reported = time.monotonic()
        try:
            while True:
                while free and (run := next(waiting, None)) is not None:
                    if (result := self.grid.result(run.name)) is not None:
                        done(run, result, True)
                        continue
                    active.append((run, self._started(run, free[-1]), free.pop()))
                if not active:
                    return
                time.sleep(POLL_SECONDS)  # there is no call that waits for the first of several processes
                if time.monotonic() - reported > REPORT_SECONDS:
                    reported = time.monotonic()
                    logger.info("%s", "; ".join(self._how_far(run) for run, _, _ in active))
                # A list of its own, because those that have ended leave `active`.
                for each in [each for each in active if each[1].poll() is not None]:
                    active.remove(each)
                    free.append(each[2])
                    done(each[0], self._result(each[0], each[1]), False)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._how_to_go_on()) from None
        except Stopped:
            logger.warning("%s", self._how_to_go_on())
            raise
        finally:
            _end([process for _, process, _ in active])

    def _started(self, run: GridRun, slot: Mapping[str, str]) -> subprocess.Popen[bytes]:
        folder = self.grid.prepare(run, self.keep_models)
        first, *rest = self.command
        words = [*START, first, str(folder / CONFIGURATION), *rest]
        logger.info("%s: training; its log is %s", run.name, folder / LOG)
        if not (folder / LOG).exists():
            write_text(folder / LOG, f"{shlex.join(words)}\n", grows=True)
        # Lines are appended to it, so it must be palm's own file still.
        check_replaceable(folder / LOG)
        with open_to_append(folder / LOG) as log:
            # A session of its own: Ctrl-C reaches this process alone, which tells the others.
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,  # its end tells the process that this one has died (see `work`)
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot},
                start_new_session=True,
            )

    def _result(self, run: GridRun, process: subprocess.Popen[bytes]) -> Result:
        assert process.stdin is not None
        process.stdin.close()
        if (result := self.grid.result(run.name)) is not None:
            return result
        log = self.grid.folder(run.name) / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        output = "\n".join(lines[errors[-1] :] if errors else lines[-5:])
        raise PalmError(
            f"the run {run.name} ended with exit code {process.returncode}:\n{output}\n"
            f"Its log is {log}; what is done stays done, and the same command goes on from there"
        )

    def _how_far(self, run: GridRun) -> str:
        """The last step that a run has written down."""
        lines = read_lines(self.grid.folder(run.name) / OUT / HISTORY_FILE)
        steps = [line["step"] for line in lines if line["event"] == Logged.recorded_as]
        of = f" of {run.steps}" if run.steps else ""
        return f"{run.name}: step {steps[-1] if steps else 0}{of}"

    def _how_to_go_on(self) -> str:
        done = sum(self.grid.result(folder.name) is not None for folder in self.grid.folders())
        command = command_of_program() or "the same once more"
        return f"{done} runs are done, others go on from their checkpoints: {command}"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let runs finish the step at hand and save a checkpoint; kill those that do not."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + KILL_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            process.kill()
            process.wait()


def slots_of(workers: int | None, use_gpu: bool) -> list[dict[str, str]]:
    """The environment of every process that trains at the same time.

    Args:
        workers: how many; None for one on every visible GPU, or one on a CPU.
        use_gpu: whether the runs would use GPUs.

    Raises:
        ConfigError: fewer than 1.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = torch.cuda.device_count() if use_gpu else 0
    devices = visible.split(",")[:number] if visible else [str(k) for k in range(number)]
    if workers is None:
        workers = max(1, len(devices))
    raise_any(count_problems(workers=workers))
    if devices:
        return [{"CUDA_VISIBLE_DEVICES": devices[k % len(devices)]} for k in range(workers)]
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{} for _ in range(workers)]
    # Each would take all cores for itself, and they would wait for each other.
    return [{"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers))} for _ in range(workers)]


class GridProgress:
    """Logs every run that ends, its scores, and the time that is left.

    Args:
        runs: name -> its planned steps; 1 each where they are not known.
    """

    def __init__(self, runs: Mapping[str, int]) -> None:
        self._left = dict(runs)
        self._total = len(runs)
        self._made = 0
        self._began = time.monotonic()

    def tell(self, run: str, result: Result, is_old: bool, shown: str) -> None:
        """Log a run that is done.

        Args:
            run: its name.
            result: what it wrote.
            is_old: whether it was done before.
            shown: its scores.
        """
        steps = self._left.pop(run, 0)
        number = self._total - len(self._left)
        if is_old:
            logger.info("run %d of %d, %s: done before; %s", number, self._total, run, shown)
            return
        self._made += steps
        seconds = (time.monotonic() - self._began) / max(1, self._made) * sum(self._left.values())
        left = f"; about {duration(seconds)} left" if self._left else ""
        state = "" if result["state"] == "done" else f" {result['state']}:"
        logger.info("run %d of %d, %s:%s %s%s", number, self._total, run, state, shown, left)
