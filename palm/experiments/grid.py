"""A grid of runs: its folder, its processes and their results."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch

from palm.config import yaml_text
from palm.config.run import Document, RunConfig, result_settings
from palm.config.settings import RunSettings
from palm.controller.controller import Controller, read_run, start_processes
from palm.controller.rows import choose_rows
from palm.core.component import count_problems, raise_any
from palm.core.device import device_of
from palm.core.errors import (
    ConfigError,
    DataError,
    PalmError,
    ResourceError,
    StorageError,
    TrainingError,
    changes,
    shortened,
)
from palm.core.io import (
    is_sealed,
    locked,
    make_folder,
    remove_directory,
    set_aside,
    wrap_read_errors,
    write_json,
    write_text,
)
from palm.core.logging import logger
from palm.core.process import START, Stopped, command_of_program, duration
from palm.core.records import read_record
from palm.metrics import metrics_of, scores_of
from palm.parallel.group import broadcast, is_launched, is_main_process
from palm.predict.loading import load_model
from palm.reader.tables.files import is_url
from palm.reader.tables.selection import data_checksum
from palm.train.callbacks import Evaluated, Logged, Planned, Recorded
from palm.train.evaluation import json_ready
from palm.train.folder import saved_in
from palm.train.history import HISTORY_FILE, read_events
from palm.train.model_paths import BEST, LAST
from palm.train.task_model import encoded


def data_checksums(runs: Iterable[RunConfig], more: Iterable[Path] = ()) -> dict[str, str]:
    """Return file -> half of its SHA-256 for every data file of runs.

    Args:
        runs: name the training and dev files; each file is read once.
        more: other files.
    """
    tasks = (task.settings for run in runs for task in run.tasks)
    named = (path for task in tasks for path in (task.train_file, task.dev_file))
    given = (path for path in (*named, *more) if path is not None)
    paths = {path if is_url(path) else path.absolute() for path in given}
    return {str(path): data_checksum(path)[:32] for path in sorted(paths)}


def changed_data(checksums: Mapping[str, str]) -> list[str]:
    """Return the files whose content is no longer that of `data_checksums`.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    found = []
    for name, known in checksums.items():
        with wrap_read_errors(name, error=DataError):
            if data_checksum(Path(name))[:32] != known:
                found.append(name)
    return found


@dataclass(frozen=True)
class Source:
    """A configuration as given.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files.
        argv: command-line arguments that override settings.
    """

    config: str | Path | Mapping[str, Any]
    task_dir: str | Path
    argv: Sequence[str]

    def edited(self, changes: Mapping[str, Any]) -> RunConfig:
        """Return it with some settings changed; `task.setting` is a setting of one task."""
        words = [*self.argv, *(f"--{name}={word_of(value)}" for name, value in changes.items())]
        run = read_run(self.config, self.task_dir, words, for_train=True, needs_tasks=True)
        return choose_rows(run, for_train=True)

    def pool(self, grid: Grid, command: str, workers: int | None, settings: RunSettings) -> Pool:
        """Return the process pool of a grid; its processes can import the user's own components."""
        home = [] if isinstance(self.config, Mapping) else ["--of", str(self.config)]
        slots = slots_of(workers, settings.use_gpu, settings.num_devices)
        return Pool(grid, [command, "--one_run", *home], slots)


def folder_of(save_path: Path, kind: str, output: str | Path | None) -> Path:
    """Return the folder of a grid: `output` if given, otherwise `<save_path>_<kind>`."""
    if output is not None:
        return Path(output)
    if not save_path.name:
        raise ConfigError(f"save_path: {save_path} has no folder beside it for the runs; set --output")
    return save_path.with_name(f"{save_path.name}_{kind}")


def devices_of(settings: RunSettings) -> int:
    """Return the number of devices of a run: by default one, because its steps depend on the number."""
    return 1 if settings.num_devices == "auto" else settings.num_devices


CONFIGURATION = "config.yaml"
JOB = "job.json"
RESULT = "result.json"
LOG = "log.txt"
OUT = "out"
ROWS = "rows"

MOST_DIFFERENCES = 8
"""Maximum differences in a message."""


class Job(TypedDict):
    """The content of `job.json`: what a run is, in addition to its configuration.

    Attributes:
        about: everything that its result depends on.
        data: file -> checksum of the data.
        test: task -> the file with labels to score its model on.
        model: which model to score, `best` or `last`.
        point: the settings that a search tries in this run.
        keep_models: whether to keep its models and checkpoints.
    """

    about: Mapping[str, Any]
    data: Mapping[str, str]
    test: Mapping[str, str]
    model: str
    point: Mapping[str, Any]
    keep_models: bool


class Tested(TypedDict):
    """The scores of a task's model on its test file, the main metric first."""

    metric: str
    model: str
    scores: Mapping[str, float | None]


class Result(TypedDict):
    """The content of `result.json`.

    Attributes:
        state: `done` or `failed`.
        why: the reason for a failure; empty otherwise.
        dev: global step and score of every evaluation.
        seconds: duration of a finished run; 0 for a failed one.
        test: task -> its scores.
    """

    state: str
    why: str
    dev: Sequence[tuple[int, float]]
    steps: Mapping[str, int]
    seconds: float
    test: Mapping[str, Tested]


@dataclass(frozen=True)
class GridRun:
    """One run of a grid.

    Args:
        name: of its folder.
        settings: its configuration, without `save_path`.
        steps: planned steps, to estimate the remaining time; 0 if unknown.
        test: task -> a file with labels to score its model on after training.
        model: which model to score: `best`, if there is one, or `last`.
        point: the settings that a search tries in this run.
        basis: everything that its result depends on, if that is not its configuration.
    """

    name: str
    settings: Document
    steps: int = 0
    test: Mapping[str, str] = field(default_factory=dict)
    model: str = "best"
    point: Mapping[str, Any] = field(default_factory=dict)
    basis: Mapping[str, Any] = field(default_factory=dict)

    def about(self) -> Mapping[str, Any]:
        """Return everything that its result depends on except the data, JSON-ready."""
        tested = {"test": self.test, "model": self.model} if self.test else {}
        return self.basis or {**result_settings(self.settings), **tested}


@dataclass(frozen=True)
class Grid:
    """A folder of runs.

    Args:
        path: the folder.
        data: file -> checksum of the data of all runs.
        keep_models: whether to keep the models and checkpoints of finished runs.
    """

    path: Path
    data: Mapping[str, str] = field(default_factory=dict)
    keep_models: bool = False

    def check(self, runs: Iterable[GridRun], overwrite: bool = False) -> None:
        """Compare runs with those of the same names that were begun before.

        Args:
            runs: the runs that are to be in the folder.
            overwrite: set other runs aside, as `runs.previous`.

        Raises:
            StorageError: a run was begun with other settings or data; with the differences.
        """
        lines = dict.fromkeys(line for run in runs for line in self._differences(run))
        if not lines:
            return
        if not overwrite:
            changed = "\n  ".join(shortened(list(lines), MOST_DIFFERENCES))
            raise StorageError(
                f"{self.path} was begun with other settings:\n  {changed}\n"
                "Put its runs aside (--overwrite), or give another folder (--output)"
            )
        logger.info("the earlier runs are kept as %s", set_aside(self.path / "runs"))

    def _differences(self, run: GridRun) -> list[str]:
        job = self.job(run.name)
        if job is None:
            return []
        data = {name: self.data.get(name, known) for name, known in job["data"].items()}
        found = [*changes(job["about"], run.about()), *changes(job["data"], data)]
        return [f"{'.'.join(path)} was {before!r} and is now {now!r}" for path, before, now in found]

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.path / "runs" / name

    def prepare(self, run: GridRun) -> Path:
        """Write the files that the process of a run reads, and return its folder."""
        folder = self.folder(run.name)
        make_folder(folder)
        own = {"save_path": str((folder / OUT).absolute()), "resume": "auto", "overwrite": False}
        settings = {**run.settings, "global": {**run.settings["global"], **own}}
        write_text(folder / CONFIGURATION, yaml_text(settings))
        job: Job = {
            "about": run.about(),
            "data": self.data,
            "test": run.test,
            "model": run.model,
            "point": run.point,
            "keep_models": self.keep_models,
        }
        write_json(folder / JOB, job)
        return folder

    def job(self, name: str) -> Job | None:
        """Return the job of a run that was begun; None if it was not."""
        file = self.folder(name) / JOB
        return read_record(file, Job) if file.exists() else None

    def result(self, name: str) -> Result | None:
        """Return the result of a run; None until it has finished."""
        file = self.folder(name) / RESULT
        return read_record(file, Result) if file.exists() else None


def best_of(result: Result) -> tuple[int, float | None]:
    """Return the global step and the score of the best evaluation of a run."""
    if not result["dev"]:
        return 0, None
    # Of equal scores, the earliest costs least.
    step, score = max(result["dev"], key=lambda each: (each[1], -each[0]))
    return step, score


def word_of(value: Any) -> str:
    """Return a setting's value as a word of the command line."""
    return str(value) if isinstance(value, str | Path) else json.dumps(value)


def remove_models(folder: Path) -> None:
    """Remove the models and checkpoints that a run has written to its folder."""
    for saved in saved_in(folder / OUT):
        remove_directory(saved)


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
        "dev": dev_scores(trained.history),
        "steps": trained.steps,
        "seconds": round(trained.seconds, 3),
        "test": {task: _scored(folder, controller, task, job) for task in job["test"]},
    }


def dev_scores(history: Sequence[Recorded]) -> list[tuple[int, float]]:
    """Return global step and score of the evaluations of a run, in its last stage if it has several."""
    found: list[tuple[int, float]] = []
    for event in history:
        if isinstance(event, Planned):
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
