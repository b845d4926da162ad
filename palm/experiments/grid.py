"""A grid of runs: its folder, its processes and their results."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, TypedDict

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
)
from palm.core.group import broadcast, is_launched, is_main_process
from palm.core.io import (
    is_sealed,
    locked,
    make_folder,
    remove_directory,
    wrap_read_errors,
    write_json,
    write_text,
)
from palm.core.logging import logger, set_verbosity, shown_score
from palm.core.process import START, Stopped, duration
from palm.core.records import read_record
from palm.metrics.resampling import Pair
from palm.predict.loading import load_models
from palm.reader.tables.files import data_checksum
from palm.train.callbacks import Evaluated, Planned, Recorded
from palm.train.evaluation import json_ready
from palm.train.folder import only_run_in, read_run_record, saved_in
from palm.train.model_paths import BEST, LAST
from palm.train.task_model import encoded


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
        """Return it with some settings changed; `task.setting` is a setting of one task.

        The configuration is read again, because what `effort` chooses may depend on the changes.
        """
        words = [*self.argv, *(f"--{name}={word_of(value)}" for name, value in changes.items())]
        run = read_run(self.config, self.task_dir, words, for_train=True, needs_tasks=True)
        return choose_rows(run, for_train=True)

    @contextmanager
    def grid(
        self,
        kind: str,
        run: RunConfig,
        output: str | Path | None,
        workers: int | None,
        pool: Pool | None,
    ) -> Iterator[Grid]:
        """Lock the folder of a grid: `output` if given, otherwise `<save_path>_<kind>`.

        Args:
            kind: `compare` or `sweep`.
            run: the configuration.
            output, workers, pool: as for `compare`.
        """
        set_verbosity(run.settings.quiet, run.settings.verbose)
        if output is None and not run.folder.name:
            raise ConfigError(f"save_path: {run.folder} has no folder beside it for the runs; set --output")
        folder = run.folder.with_name(f"{run.folder.name}_{kind}") if output is None else Path(output)
        if read_run_record(folder) is not None:
            raise StorageError(f"{folder} is the folder of a run; give the {kind} another one (--output)")
        pool = pool or Pool()
        slots = pool.slots(workers, run.settings.use_gpu, devices_of(run.settings))
        with only_run_in(folder):
            yield Grid(folder, self.config, slots, pool)


def devices_of(settings: RunSettings) -> int:
    """Return the number of devices of a run: by default one, because its steps depend on the number."""
    return 1 if settings.num_devices == "auto" else settings.num_devices


CONFIGURATION = "config.yaml"
JOB = "job.json"
RESULT = "result.json"
LOG = "log.txt"
OUT = "out"
ROWS = "rows"

POLL_SECONDS = 0.1

KILL_SECONDS = 120.0
"""Time that a run has to finish its current step and save a checkpoint before it is killed."""


class Job(TypedDict):
    """The content of `job.json`: everything that the result of a run depends on.

    Attributes:
        settings: its configuration, without settings that do not affect training.
        test, model: as in `GridRun`.
        data: file -> half of its SHA-256, for all of its data.
    """

    settings: Mapping[str, Any]
    test: Mapping[str, str]
    model: str
    data: Mapping[str, str]


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
        step: the global step of its best evaluation; 0 if there is none.
        score: the mean dev score of that evaluation; None if there is none.
        seconds: duration of a finished run; 0 for a failed one.
        test: task -> its scores.
    """

    state: str
    why: str
    step: int
    score: float | None
    steps: Mapping[str, int]
    seconds: float
    test: Mapping[str, Tested]


@dataclass(frozen=True)
class GridRun:
    """One run of a grid.

    Args:
        label: the beginning of the name of its folder; may be empty.
        settings: its configuration, without `save_path`.
        test: task -> a file with labels to score its model on after training.
        model: which model to score: `best`, if there is one, or `last`.
    """

    label: str
    settings: Document
    test: Mapping[str, str] = field(default_factory=dict)
    model: str = "best"


Slot = Mapping[str, Any]
"""What one of the runs that are trained at the same time gets: environment variables, or resources of Ray."""


class Process(Protocol):
    """A process that trains a run, as `subprocess.Popen`."""

    stdin: IO[bytes] | None
    returncode: int | Any

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Pool:
    """The processes that train the runs of a grid: here, of this machine."""

    def slots(self, workers: int | None, use_gpu: bool, size: int) -> Sequence[Slot]:
        """Return a slot for each of the runs that are trained at the same time; see `slots_of`."""
        return slots_of(workers, use_gpu, size)

    def start(self, words: Sequence[str], log: Path, slot: Slot) -> Process:
        """Start a `palm` command, whose output is appended to `log`."""
        return start_process(words, log, slot)


def start_process(
    words: Sequence[str], log: Path, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a `palm` command on this machine, which ends when this process does.

    Args:
        words: the command's arguments.
        log: a file to which its output is appended.
        environment: environment variables to set.
        folder: its working directory; None for this one.
    """
    words = [*START, *words]
    with log.open("ab") as file:
        file.write(f"{shlex.join(words)}\n".encode())
        file.flush()
        # With a new session, Ctrl-C reaches only this process, which stops the others.
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,  # closed when this process dies, which ends the run (see `work`)
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
            start_new_session=True,
        )


@dataclass(frozen=True)
class Grid:
    """A folder of runs, and the processes that train them.

    A run is found by what its result depends on, so one with other settings or data is another one.

    Args:
        path: the folder.
        config: the configuration of all runs; where it is, there are the user's own components.
        slots: one for each of the runs that are trained at the same time.
        pool: starts their processes.
    """

    path: Path
    config: str | Path | Mapping[str, Any] = field(default_factory=dict)
    slots: Sequence[Slot] = ({},)
    pool: Pool = field(default_factory=Pool)
    _checksums: dict[str, str] = field(default_factory=dict)

    def job(self, run: GridRun) -> Job:
        """Return everything that the result of a run depends on; each file of data is read once."""
        tasks = run.settings["tasks"].values()
        named = (own.get(name) for own in tasks for name in ("train_file", "dev_file"))
        files = sorted({file for file in (*named, *run.test.values()) if file})
        for file in files:
            if file not in self._checksums:
                self._checksums[file] = data_checksum(Path(file))[:32]
        data = {file: self._checksums[file] for file in files}
        return Job(settings=result_settings(run.settings), test=run.test, model=run.model, data=data)

    def digest(self, run: GridRun) -> str:
        """Return the digest of the job of a run."""
        return hashlib.sha256(json.dumps(self.job(run), sort_keys=True).encode()).hexdigest()[:8]

    def folder(self, run: GridRun) -> Path:
        """Return the folder of a run."""
        return self.path / "runs" / "-".join(filter(None, (run.label, self.digest(run))))

    def different(self, runs: Iterable[GridRun]) -> list[GridRun]:
        """Return runs without those that are equal to an earlier one."""
        found: dict[str, GridRun] = {}
        for run in runs:
            found.setdefault(self.digest(run), run)
        return list(found.values())

    def prepare(self, run: GridRun) -> Path:
        """Write the files that the process of a run reads, and return its folder."""
        folder = self.folder(run)
        make_folder(folder)
        own = {"save_path": str((folder / OUT).absolute()), "resume": "auto", "overwrite": False}
        # Many runs with a checkpoint each would fill the disk; one that is stopped saves one.
        settings = {**run.settings, "global": {"save_every_n_steps": -1, **run.settings["global"], **own}}
        write_text(folder / CONFIGURATION, yaml_text(settings))
        write_json(folder / JOB, self.job(run))
        return folder

    def result(self, run: GridRun) -> Result | None:
        """Return the result of a run; None until it has finished."""
        file = self.folder(run) / RESULT
        return read_record(file, Result) if file.exists() else None

    def train(self, runs: Sequence[GridRun]) -> Iterator[tuple[GridRun, Result]]:
        """Train all unfinished runs in order, as many at a time as there are slots.

        Each is yielded with its result, also if it had one before; of equal ones only the first.

        Raises:
            PalmError: a run ended with an error; the others that are active end with a checkpoint, and
                results are kept.
            KeyboardInterrupt, Stopped: requested by the user; the same.
        """
        different = self.different(runs)
        waiting = iter(different)
        free = list(self.slots)
        active: list[tuple[GridRun, Process, Slot]] = []
        known = trained = 0
        began = time.monotonic()
        try:
            while True:
                while free and (run := next(waiting, None)) is not None:
                    if (result := self.result(run)) is not None:
                        known += 1
                        yield run, result
                        continue
                    active.append((run, self._started(run, free[-1]), free.pop()))
                if not active:
                    return
                time.sleep(POLL_SECONDS)  # subprocess cannot wait for the first of several processes
                # A copy, because processes that have ended are removed from `active`.
                for run, process, slot in [each for each in active if each[1].poll() is not None]:
                    active.remove((run, process, slot))
                    free.append(slot)
                    result = self._result(run, process)
                    trained += 1
                    left = len(different) - known - trained
                    seconds = (time.monotonic() - began) / trained * left
                    more = f"; about {duration(seconds)} left" if left else ""
                    place = f"run {known + trained} of {len(different)}, {self.folder(run).name}"
                    logger.info("%s: %s%s", place, told(result), more)
                    yield run, result
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._resume_hint()) from None
        except Stopped:
            logger.warning("%s", self._resume_hint())
            raise
        finally:
            _stop([process for _, process, _ in active])

    def _started(self, run: GridRun, slot: Slot) -> Process:
        folder = self.prepare(run)
        logger.info("%s: training; its log is %s", folder.name, folder / LOG)
        config = folder / CONFIGURATION if isinstance(self.config, Mapping) else self.config
        words = ["train", str(folder / CONFIGURATION), "--run_of", str(config)]
        return self.pool.start(words, folder / LOG, slot)

    def _result(self, run: GridRun, process: Process) -> Result:
        if process.stdin is not None:
            process.stdin.close()
        if (result := self.result(run)) is not None:
            return result
        if process.returncode == -signal.SIGKILL:
            # Not recorded: the next call tries again, perhaps with more memory.
            return _failed("killed by the system, usually because the machine is out of memory")
        log = self.folder(run) / LOG
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        output = "\n".join(lines[errors[-1] :] if errors else lines[-5:])
        raise PalmError(
            f"run {log.parent.name} ended with exit code {process.returncode}:\n{output}\n"
            f"Its log is {log}; finished runs are kept, and the same command continues from there"
        )

    def _resume_hint(self) -> str:
        done = len(list(self.path.glob(f"runs/*/{RESULT}")))
        return (
            f"{done} runs are done; to resume the others from their checkpoints, run the same command again"
        )


def told(result: Result) -> str:
    """Return why a run failed, or its scores on test rows, or else its best dev score."""
    if result["why"]:
        return f"{result['state']}: {result['why']}"
    firsts = {task: next(iter(scored["scores"].items())) for task, scored in result["test"].items()}
    found = [f"{task} {name} {shown_score(value) or '–'}" for task, (name, value) in firsts.items()]
    return ", ".join(found) or f"dev score {shown_score(result['score']) or '–'}"


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
            remove_models(folder)
            write_json(folder / RESULT, result)


def _check_data(job: Job) -> None:
    """Check that the data files are still those that the run was begun with.

    Raises:
        StorageError: some have changed; names them.
    """
    changed = []
    for name, known in job["data"].items():
        with wrap_read_errors(name, error=DataError):
            if data_checksum(Path(name))[:32] != known:
                changed.append(name)
    if changed:
        raise StorageError(
            f"the data changed after the run was begun: {', '.join(changed)}; run the same command again, "
            "which trains on the files as they are now"
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
        tested = {task: _scored(folder, controller, task, job) for task in job["test"]}
    except (ResourceError, TrainingError) as error:  # too little memory or a NaN loss is a result, too
        return _failed(str(error).splitlines()[0])
    step, score = best_evaluation(trained.history)
    seconds = round(trained.seconds, 3)
    return Result(
        state="done", why="", step=step, score=score, steps=trained.steps, seconds=seconds, test=tested
    )


def _failed(why: str) -> Result:
    return Result(state="failed", why=why, step=0, score=None, steps={}, seconds=0.0, test={})


def best_evaluation(history: Sequence[Recorded]) -> tuple[int, float | None]:
    """Return global step and score of a run's best evaluation, in its last stage if it has several."""
    found: dict[int, float] = {}
    for event in history:
        if isinstance(event, Planned):
            found = {}
        elif isinstance(event, Evaluated) and event.mean is not None and math.isfinite(event.mean):
            found[event.step] = event.mean
    # Of equal scores the first, which costs least.
    return max(found.items(), key=lambda each: each[1], default=(0, None))


def _scored(folder: Path, controller: Controller, task: str, job: Job) -> Tested:
    """Score a model on a file with labels; every prediction is written to the run's folder with its truth."""
    settings = controller.run.settings
    saved = folder / OUT / task
    which = BEST if job["model"] == "best" and is_sealed(saved / BEST) else LAST
    model = load_models(saved / which, device="cpu", precision=settings.precision).tasks[task]
    model.to(device_of(settings.use_gpu, settings.device))
    chosen = next(each for each in controller.run.tasks if each.name == task).settings.metrics
    names: Sequence[str] = chosen or model.head.metrics
    chunks = encoded(model.reader, model.reader.read_gold(Path(job["test"][task])))
    pairs: list[Pair] = []
    scores = model.score(chunks, names, pairs=pairs)
    if is_main_process():
        make_folder(folder / ROWS)
        lines = (
            json.dumps({"prediction": record, "truth": truth}, ensure_ascii=False) for record, truth in pairs
        )
        write_text(folder / ROWS / f"{task}.jsonl", "".join(f"{line}\n" for line in lines))
    return {"metric": names[0], "model": which, "scores": json_ready(scores)}


def _stop(processes: Sequence[Process]) -> None:
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


def slots_of(workers: int | None, use_gpu: bool, size: int = 1) -> list[dict[str, str]]:
    """Return the environment variables of the processes that train at the same time.

    Args:
        workers: number of runs; None for as many as the visible GPUs are enough for, or one on a CPU.
        use_gpu: whether the runs use GPUs if there are any.
        size: number of devices of a run.

    Raises:
        ConfigError: `workers` is below 1.
    """
    number = torch.cuda.device_count() if use_gpu else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",")[:number] if visible else [str(k) for k in range(number)]
    # Too few GPUs for one run are an error of that run.
    starts = range(0, max(1, number - size + 1), size) if number else ()
    groups = [",".join(devices[start : start + size]) for start in starts]
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
