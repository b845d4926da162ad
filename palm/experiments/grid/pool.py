"""The processes of a grid: one for every run, several at a time, stopped together and cleanly."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from palm.core.checks import count_problems, raise_any
from palm.core.durations import duration
from palm.core.errors import PalmError
from palm.core.invocation import START, command_of_program
from palm.core.logging import logger
from palm.core.signals import Stopped
from palm.experiments.grid.folder import CONFIGURATION, LOG, OUT, RESULT, Grid, GridRun, Result
from palm.train.events import Logged
from palm.train.history import HISTORY_FILE, read_events

POLL_SECONDS = 0.1
REPORT_SECONDS = 60.0
"""Time between two log lines about the progress of the runs."""

KILL_SECONDS = 120.0
"""Time that a run has to finish its current step and save a checkpoint before it is killed."""


@dataclass(frozen=True)
class Pool:
    """The processes that train the runs of a grid.

    Args:
        grid: the folder of the runs.
        command: the `palm` command that trains one run, followed by its options; the path of the run's
            configuration is inserted after the first word.
        slots: environment variables of the runs that are trained at the same time, one mapping for each.
    """

    grid: Grid
    command: Sequence[str]
    slots: Sequence[Mapping[str, str]]

    def train(self, runs: Iterable[GridRun], done: Callable[[GridRun, Result, bool], None]) -> None:
        """Train all unfinished runs in order, as many at a time as there are slots.

        Args:
            runs: the next one is requested when a slot is free.
            done: called with every run, its result, and whether it had been finished before.

        Raises:
            PalmError: a run failed; the others that are active end with a checkpoint, and results are kept.
            KeyboardInterrupt, Stopped: requested by the user; the same.
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
                time.sleep(POLL_SECONDS)  # subprocess cannot wait for the first of several processes
                if time.monotonic() - reported > REPORT_SECONDS:
                    reported = time.monotonic()
                    logger.info("%s", "; ".join(self._describe_progress(run) for run, _, _ in active))
                # A copy, because processes that have ended are removed from `active`.
                for each in [each for each in active if each[1].poll() is not None]:
                    active.remove(each)
                    free.append(each[2])
                    done(each[0], self._result(each[0], each[1]), False)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._resume_hint()) from None
        except Stopped:
            logger.warning("%s", self._resume_hint())
            raise
        finally:
            _stop([process for _, process, _ in active])

    def _started(self, run: GridRun, slot: Mapping[str, str]) -> subprocess.Popen[bytes]:
        folder = self.grid.prepare(run)
        first, *rest = self.command
        words = [*START, first, str(folder / CONFIGURATION), *rest]
        logger.info("%s: training; its log is %s", run.name, folder / LOG)
        with (folder / LOG).open("ab") as log:
            log.write(f"{shlex.join(words)}\n".encode())
            log.flush()
            # With a new session, Ctrl-C reaches only this process, which stops the others.
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,  # closed when this process dies, which ends the run (see `work`)
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
            f"run {run.name} ended with exit code {process.returncode}:\n{output}\n"
            f"Its log is {log}; finished runs are kept, and the same command continues from there"
        )

    def _describe_progress(self, run: GridRun) -> str:
        """Describe the last step that a run has recorded."""
        history = self.grid.folder(run.name) / OUT / HISTORY_FILE
        events = read_events(history) if history.is_file() else []
        steps = [event.step for event in events if isinstance(event, Logged)]
        of = f" of {run.steps}" if run.steps else ""
        return f"{run.name}: step {steps[-1] if steps else 0}{of}"

    def _resume_hint(self) -> str:
        done = len(list(self.grid.folder("").glob(f"*/{RESULT}")))
        command = command_of_program() or "run the same command again"
        return f"{done} runs are done; to resume the others from their checkpoints: {command}"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let runs finish the current step and save a checkpoint; kill those that take too long."""
    for process in processes:
        process.terminate()
    until = time.monotonic() + KILL_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C does not wait
            process.kill()
            process.wait()


def slots_of(
    workers: int | None, use_gpu: bool, num_devices: int | Literal["auto"] = "auto"
) -> list[dict[str, str]]:
    """Return the environment variables of the processes that train at the same time.

    Args:
        workers: number of runs; None for as many as the visible GPUs are enough for, or one on a CPU.
        use_gpu: whether the runs use GPUs if there are any.
        num_devices: number of devices of a run; auto for one.

    Raises:
        ConfigError: `workers` is below 1.
    """
    size = 1 if num_devices == "auto" else num_devices
    groups = _groups_of_gpus(size) if use_gpu else []
    if workers is None:
        workers = max(1, len(groups))
    raise_any(count_problems(workers=workers))
    if groups:
        return [{"CUDA_VISIBLE_DEVICES": groups[k % len(groups)]} for k in range(workers)]
    if workers == 1 or "OMP_NUM_THREADS" in os.environ:
        return [{} for _ in range(workers)]
    # Without a limit, each process would use all cores, and they would wait for each other.
    threads = max(1, (os.cpu_count() or 1) // (workers * size))
    return [{"OMP_NUM_THREADS": str(threads)} for _ in range(workers)]


def _groups_of_gpus(size: int) -> list[str]:
    """Return the visible GPUs in groups, as in CUDA_VISIBLE_DEVICES; none, if there are no GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    number = torch.cuda.device_count()
    devices = visible.split(",")[:number] if visible else [str(k) for k in range(number)]
    # Too few GPUs for one run are an error of that run.
    starts = range(0, max(1, number - size + 1), size) if number else ()
    return [",".join(devices[start : start + size]) for start in starts]


class GridProgress:
    """Logs every run that ends, its scores, and the remaining time.

    Args:
        runs: name -> its planned steps; 1 for each if they are unknown.
    """

    def __init__(self, runs: Mapping[str, int]) -> None:
        self._left = dict(runs)
        self._total = len(runs)
        self._made = 0
        self._began = time.monotonic()

    def report(self, run: str, result: Result, is_old: bool, scores: str) -> None:
        """Log a finished run.

        Args:
            run: its name.
            result: its result.
            is_old: whether it had been finished before.
            scores: its scores as text.
        """
        steps = self._left.pop(run, 0)
        number = self._total - len(self._left)
        if is_old:
            logger.info("run %d of %d, %s: done before; %s", number, self._total, run, scores)
            return
        self._made += steps
        seconds = (time.monotonic() - self._began) / max(1, self._made) * sum(self._left.values())
        left = f"; about {duration(seconds)} left" if self._left else ""
        state = "" if result["state"] == "done" else f" {result['state']}:"
        logger.info("run %d of %d, %s:%s %s%s", number, self._total, run, state, scores, left)
