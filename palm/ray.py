"""palm on Ray: training, prediction of datasets and pools of runs.

These are adapters. Processes, placement, restarts and scaling are Ray's; steps, checkpoints and records are
those of palm without Ray. Everything but `Predictor` needs the extra `ray`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import IO, Any

from palm.config.run import RunConfig
from palm.controller.controller import Controller, read_run
from palm.controller.resolve import edited
from palm.core.component import count_problems, raise_any, type_problems, unknown
from palm.core.errors import ConfigError, DataError, PalmError, TrainingError, WiringError
from palm.core.group import is_main_process, roll_call_group, world_size
from palm.core.logging import logger, show_on_console
from palm.experiments import grid
from palm.predict.inference import EncodedText
from palm.predict.loading import load_models
from palm.reader import Record
from palm.reader.predictions import free_name, task_cells
from palm.reader.tables.columns import TARGETS, Columns, TableRow
from palm.train.callbacks import Evaluated, Event
from palm.train.result import TrainingResult

OF_TRAINING = ("answer_start", "text_b_neg")
"""Columns that predictions do not use, beside the targets."""

MAX_ONGOING = 256
"""Requests that a replica takes at a time; with Ray's default, 5, no batch would have more."""

NOT_RETRIED = (ConfigError, DataError, WiringError)
"""Errors that a new worker would have, too."""


def _started() -> Any:
    """Return the module `ray`, connected to the cluster, or to one on this machine if there is none.

    Raises:
        PalmError: it is missing.
    """
    try:
        import ray
    except ImportError:
        raise PalmError("palm.ray needs Ray: pip install 'palm-torch[ray]'") from None
    if not ray.is_initialized():
        ray.init()
    return ray


def train(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    workers: int | tuple[int, int] = 1,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float = 1,
    max_failures: int = 3,
    argv: Sequence[str] = (),
) -> TrainingResult:
    """Train a configuration with the workers of a Ray cluster, as `torchrun` does with its processes.

    The configuration is read here. The workers must see its data and `save_path` under the same paths. If
    a worker or a node is lost, all workers start again and continue from the newest checkpoint
    (`resume: auto`), also when the call is repeated.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files.
        workers: the number of workers; or the smallest and the largest, between which Ray takes as many as
            the cluster has room for. A step has the rows of the largest number; fewer workers compute it
            in more parts.
        gpus_per_worker: 0 to train on CPUs; by default 1 if the cluster has GPUs and `use_gpu` is set.
        cpus_per_worker: also the number of threads of a worker.
        max_failures: restarts after failures before the run ends with an error; -1: no limit. Nodes that
            are taken away with notice (preempted) do not count.
        argv: command-line arguments that override settings.

    Returns:
        The result of the run, also if it was finished before.

    Raises:
        ConfigError: the configuration has problems, or its steps cannot be divided among the workers.
        DataError, WiringError: from a worker; there is no restart.
        TrainingError: more failures than `max_failures`.
    """
    show_on_console()
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    raise_any(count_problems(workers=least))
    run = read_run(config, task_dir, list(argv), for_train=True, needs_tasks=True, devices=most)
    _check_workers(run, least, most)
    ray = _started()
    if gpus_per_worker is None:
        gpus_per_worker = int(run.settings.use_gpu and ray.cluster_resources().get("GPU", 0) > 0)
    resources = {"CPU": cpus_per_worker, "GPU": gpus_per_worker}
    return _fitted(_trainer(run, workers, resources, max_failures))


def _check_workers(run: RunConfig, least: int, most: int) -> None:
    """Check that all numbers of workers from `least` to `most` can train a run; errors as for `train`."""
    if run.settings.resume not in (None, "auto"):
        raise ConfigError(f"{run.placed('resume')}: on Ray every run is resumed with 'auto'; remove it")
    if least < most and run.settings.stages:
        raise ConfigError(f"{run.placed('stages')}: needs one number of workers, not two")
    for size in range(least, most):  # now, not when a worker has been lost
        _divided(run, most, size)


def _trainer(
    run: RunConfig, workers: int | tuple[int, int], resources: Mapping[str, float], max_failures: int
) -> Any:
    """Return Ray's trainer of a run; arguments as for `train`, with the resources of a worker."""
    from ray.train import FailureConfig, ScalingConfig
    from ray.train import RunConfig as RayRunConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    most = workers[1] if isinstance(workers, tuple) else workers
    device: dict[str, Any] = {} if resources["GPU"] else {"device": "cpu"}
    run = run.with_settings(resume="auto", num_devices=1, **device)
    return TorchTrainer(
        _train_in_worker,
        train_loop_config={"run": run, "most": most},
        scaling_config=ScalingConfig(
            num_workers=workers, use_gpu=resources["GPU"] > 0, resources_per_worker=dict(resources)
        ),
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if resources["GPU"] else "gloo",
            timeout_s=math.ceil(run.settings.process_group_timeout),
        ),
        # Ray's own files must be where all workers see them, too.
        run_config=RayRunConfig(
            name=f"{run.folder.name}.ray",
            storage_path=str(run.folder.parent),
            failure_config=FailureConfig(max_failures=max_failures),
        ),
    )


def _fitted(trainer: Any) -> TrainingResult:
    """Train, and return the result of rank 0, or raise its error."""
    from ray.train.v2.api.exceptions import TrainingFailedError

    try:
        result: TrainingResult | PalmError = trainer.fit().return_value
    except TrainingFailedError as error:
        last = str(error).strip().splitlines()[-1]
        raise TrainingError(f"Ray gave up the run: {last}") from error
    if isinstance(result, PalmError):
        raise result
    return result


def _divided(run: RunConfig, most: int, size: int) -> RunConfig:
    """Return a run of `most` workers for `size` of them, with the same rows in a step.

    Raises:
        ConfigError: the rows of a step cannot be divided among them.
    """
    changes = {}
    for task in run.tasks:
        batch = task.settings.batch_size or 0
        rows = batch * task.settings.gradient_accumulation_steps * most
        if not rows or rows % size:
            place = run.placed("batch_size", task.name)
            raise ConfigError(
                f"{place}: a step of {task.name!r} cannot be divided among {size} workers; choose a "
                f"batch_size that, times {most}, is a multiple of every possible number of them"
            )
        own = rows // size
        parts = next(count for count in range(math.ceil(own / batch), own + 1) if own % count == 0)
        changes[f"{task.name}.gradient_accumulation_steps"] = parts
        changes[f"{task.name}.batch_size"] = own // parts
    return edited(run, changes)


def _train_in_worker(given: Mapping[str, Any]) -> TrainingResult | PalmError:
    """Train in one of the workers, which Ray has connected; rank 0's result is that of the run.

    An error that a restart would repeat is a result, because Ray starts a worker again that raises one.
    """
    roll_call_group()  # while all ranks respond
    if not is_main_process():
        logger.setLevel(logging.WARNING)  # Ray has configured logging, so palm does not
    run = given["run"]
    most = given["most"]
    if world_size() != most:
        run = _divided(run, most, world_size())
    try:
        return Controller(run).train([_report])
    except NOT_RETRIED as error:
        return error


def _report(event: Event) -> None:
    """Report the scores of an evaluation to Ray; all ranks do."""
    from ray.train import report

    if isinstance(event, Evaluated):
        scores = {f"{task}/{name}": v for task, own in event.scores.items() for name, v in own.items()}
        report({"step": event.step, "mean": event.mean, **scores})


class Predictor:
    """A saved model that predicts batches of rows, for `Dataset.map_batches`, which loads it once per worker.

    `rows.map_batches(palm.ray.Predictor, fn_constructor_args=["output"], concurrency=4)` adds the columns of
    the predictions, which are those of the tables of `palm predict`; with several tasks, `<task>.<column>`. A
    row that cannot be predicted has the reason as `error`. A dataset keeps no order, and may run a batch
    again, so rows should have an id. Also takes the batches of `mapInPandas` in Spark.

    Args:
        folder: a saved model, or a run, as for `palm.load_model`.
        tasks: the tasks to predict; None for all.
        options: those of `palm.load_model`, such as `device` and `reader={"columns": {…}}`.

    Raises:
        PalmError: the model cannot be loaded.
    """

    def __init__(self, folder: str | Path, tasks: Sequence[str] | None = None, **options: Any) -> None:
        self._model = load_models(folder, **options)
        known = self._model.tasks
        raise_any(unknown("task", task, known) for task in tasks or () if task not in known)
        self._tasks = list(known if tasks is None else tasks)
        readers = [self._model.tasks[task].reader for task in self._tasks]
        wanted = dict.fromkeys(name for reader in readers for name in _columns_to_predict(reader))
        named = {
            name: own for reader in readers for name, own in (getattr(reader, "columns", None) or {}).items()
        }
        self._columns = Columns((), list(wanted), named, logger.warning)

    def __call__(self, batch: Any) -> Any:
        """Return a batch with the columns of its predictions.

        Args:
            batch: columns by name as NumPy arrays, or a DataFrame of pandas; any number of rows. The model
                divides them into steps with similar numbers of tokens.
        """
        columns = {name: _plain(column) for name, column in batch.items()}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        names = list(columns)
        if names != self._columns.names:
            self._columns.find(names, "the batch")
        values = [self._columns.row(TableRow(row, "")).cells for row in rows]
        cells = [self._cells(records) for records in self._records(values)]
        added = dict.fromkeys(name for each in cells for name in each if name != "id" or name not in names)
        new = {free_name(name, names): [each.get(name) for each in cells] for name in added}
        return batch.assign(**new) if hasattr(batch, "assign") else {**batch, **new}

    def _records(self, values: Sequence[Any]) -> list[dict[str, Record]]:
        """Predict rows, in halves around one that cannot be read, which has an error for each task."""
        try:
            return self._model.predict(values, self._tasks)
        except DataError as error:
            if len(values) == 1:
                return [{task: {"error": str(error)} for task in self._tasks}]
        middle = len(values) // 2
        return self._records(values[:middle]) + self._records(values[middle:])

    def _cells(self, records: Mapping[str, Record]) -> Record:
        if len(self._tasks) == 1:
            return task_cells(records[self._tasks[0]])
        return {f"{task}.{n}": v for task, record in records.items() for n, v in task_cells(record).items()}


def _plain(value: Any) -> Any:
    """Convert arrays, also inside lists and arrays of objects, to lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _columns_to_predict(reader: Any) -> list[str]:
    """Return the columns that a reader uses for predictions; some need what is a target for others."""
    needed = reader.columns_of(with_targets=False) if hasattr(reader, "columns_of") else ()
    return [*needed, *(name for name in reader.known_columns if name not in (*TARGETS, *OF_TRAINING))]


def deployment(
    folder: str | Path,
    *,
    max_batch_tokens: int = 4096,
    load: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> Any:
    """Return a Ray Serve application of a saved model: `ray.serve.run(palm.ray.deployment("output"))`.

    It answers `POST {"texts": [...], "tasks": [...]}` as `palm serve` does, and a handle's
    `predict.remote(texts, tasks)`. Requests that wait while a batch is computed form the next one.

    Args:
        folder: a saved model, or a run, as for `palm.load_model`.
        max_batch_tokens: the tokens of a batch; a request with more is a batch of its own.
        load: options of `palm.load_model`, such as `{"device": "cuda"}`.
        options: those of Ray's `serve.deployment`, such as `num_replicas`, `autoscaling_config` and
            `ray_actor_options={"num_gpus": 1}`.
    """
    serve = _started().serve
    given = {"name": "palm", "max_ongoing_requests": MAX_ONGOING, **options}
    return serve.deployment(**given)(_Server).bind(folder, max_batch_tokens, dict(load))


class _Server:
    """A replica: a model, a thread that tokenizes, and Ray's queue of requests."""

    def __init__(self, folder: str | Path, max_batch_tokens: int, load: Mapping[str, Any]) -> None:
        from ray import serve

        self._model = load_models(folder, **load)
        self._encoder = ThreadPoolExecutor(1)

        def tokens(requests: Sequence[Sequence[EncodedText]]) -> int:
            # Ray refuses a request that is larger than a batch.
            sizes = (sum(text.num_tokens for text in texts) for texts in requests)
            return sum(min(size, max_batch_tokens) for size in sizes)

        async def answer(requests: Sequence[Sequence[EncodedText]]) -> list[list[dict[str, Record]]]:
            found = iter(await asyncio.to_thread(self._model.predict_rows, list(chain(*requests))))
            return [list(islice(found, len(texts))) for texts in requests]

        batched = serve.batch(max_batch_size=max_batch_tokens, batch_wait_timeout_s=0, batch_size_fn=tokens)
        self._answer: Any = batched(answer)

    async def predict(
        self, texts: Sequence[Any], tasks: Sequence[str] | None = None
    ) -> list[dict[str, Record]]:
        """Predict texts as `JointModel.predict` does; a text that was cut says so in its records."""
        raise_any(type_problems((list, NoneType), "a list of names", tasks=tasks))
        raise_any(problem for task in tasks or () for problem in type_problems(str, "a name", task=task))
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._encoder, self._model.encode, texts, tasks)
        found: list[dict[str, Record]] = await self._answer(rows) if rows else []
        return found

    async def __call__(self, request: Any) -> Any:
        """Answer a request over HTTP."""
        from starlette.responses import JSONResponse

        try:
            asked = await request.json()
        except ValueError:
            return JSONResponse({"detail": "the body is not JSON"}, 400)
        try:
            if not isinstance(asked, dict) or not {"texts"} <= asked.keys() <= {"texts", "tasks"}:
                raise DataError('expected {"texts": [...], "tasks": [...]}')
            return JSONResponse({"results": await self.predict(**asked)})
        except (ConfigError, DataError) as error:
            return JSONResponse({"detail": str(error)}, 422)


class Pool(grid.Pool):
    """A Ray cluster that trains the runs of `palm.compare` or `palm.sweep`, which all its nodes can read.

    Every run is one Ray task on one node and asks for the CPUs and GPUs that it needs. If a node is lost, its
    runs are trained on another one.
    """

    def slots(self, workers: int | None, use_gpu: bool, size: int) -> Sequence[grid.Slot]:
        """Return the resources of the runs that are trained at the same time.

        Args:
            workers: their number; None for as many as the GPUs are enough for, or one on each node.
            use_gpu: whether the runs use GPUs if the cluster has any.
            size: number of devices of a run.
        """
        ray = _started()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        needed = size if use_gpu and gpus else 0
        if workers is None:
            workers = max(1, int(gpus // size)) if needed else len(nodes)
        raise_any(count_problems(workers=workers))
        # No more than a node has, where a run would wait for ever.
        most = max(node.get("CPU", 0) for node in nodes)
        return [{"num_cpus": max(1, min(most, cpus // workers)), "num_gpus": needed}] * workers

    def start(self, words: Sequence[str], log: Path, slot: grid.Slot) -> grid.Process:
        """Start a `palm` command on a node that has the resources of the slot."""
        return _Task(_started().remote(**slot)(_run).remote(words, log.absolute(), Path.cwd()))


class _Task:
    """A Ray task that runs a process, with the methods of `subprocess.Popen`."""

    stdin: IO[bytes] | None = None
    returncode: int | None = None

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def poll(self, timeout: float | None = 0) -> int | None:
        ray = _started()
        if self.returncode is None and ray.wait([self._reference], timeout=timeout)[0]:
            try:
                self.returncode = ray.get(self._reference)
            except ray.exceptions.RayError as error:  # the task was lost, also after Ray's own retries
                logger.warning("a run was lost on the cluster: %s", str(error).strip().splitlines()[0])
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if (code := self.poll(timeout)) is None:
            raise subprocess.TimeoutExpired("a Ray task", timeout or 0)
        return code

    def terminate(self) -> None:
        _started().cancel(self._reference)

    def kill(self) -> None:
        _started().cancel(self._reference, force=True)


def _run(words: Sequence[str], log: Path, folder: Path) -> int:
    """Run a `palm` command on the node of a task, and return its exit code."""
    process = grid.start_process(words, log, {}, folder if folder.is_dir() else None)
    try:
        return process.wait()
    except KeyboardInterrupt:  # the task was cancelled
        process.terminate()
        return process.wait()
