"""The run before the run: everything that can be known of it, with nothing trained and nothing written."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES
from palm.check.data import data_of
from palm.check.measuring import Cost, measured
from palm.check.planning import RunPlan, plan_of
from palm.check.problems import Problem
from palm.check.result import Check, Computing, TaskFiles, Wiring
from palm.check.saving import Saving, saving_of, saving_problems
from palm.controller import Controller
from palm.controller.plan import TaskPlan
from palm.controller.program import configured
from palm.controller.settings import RunSettings
from palm.controller.stages import steps_of
from palm.core.errors import ConfigError, DataError, PalmError
from palm.core.logging import only_collected
from palm.core.numerics.precision import choice
from palm.engine.run.run_directory import RunDirectory
from palm.engine.training.loop import Training
from palm.engine.training.task import Task
from palm.paradigm import HEADS
from palm.reader import READERS

MUCH_PADDING = 0.3
"""The share of places that hold padding which is worth a note, where the encoder computes it."""


def check(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    argv: Sequence[str] = (),
    *,
    tasks: Sequence[Task] = (),
    measure: bool = True,
) -> Check:
    """Check a run: its data, its wiring, its plan, its cost, and where it would write.

    Encoded training rows go to the data cache, where the run will find them; nothing else is written. A
    few steps are trained on a model that is thrown away.

    Args:
        config: as for `palm.Controller`.
        task_dir: likewise.
        argv: settings of a command line, likewise.
        tasks: likewise.
        measure: whether to measure time and memory.
    """
    began = time.perf_counter()
    name = str(config) if isinstance(config, (str, Path)) else "configuration"
    with only_collected() as warned:
        try:
            run = _RunCheck(config, task_dir, argv, tasks)
        except PalmError as error:
            lines = error.problems if isinstance(error, ConfigError) else [str(error)]
            problems = [Problem("error", "configuration", "", line) for line in lines]
            return Check(name, problems, seconds=time.perf_counter() - began)
        # Before the data is looked at: what that takes of memory is not the run's.
        run.look(measure)
        planned = run.controller.plan
        plans = [*planned.tasks, *map(TaskPlan.of, planned.given)]
        data = {plan.name: data_of(plan) for plan in plans}
    problems = [problem for found in data.values() for problem in found.problems]
    # The run stops at the first task whose data cannot be used; here, all of them are told.
    told = {problem.code for problem in problems if problem.severity == "error"}
    problems += [problem for problem in run.problems if problem.code not in told]
    files = [str(plan.task.get("train_file")) for plan in plans]
    problems += [
        Problem("warning", "warning", "", line)
        for line in dict.fromkeys(warned)
        if not any(line.startswith(f"{file}: ") for file in files)  # what is in the data is told above
    ]
    return Check(
        name,
        problems,
        [
            TaskFiles(task, found.files, found.leaks, found.missing_labels, found.unseen_labels)
            for task, found in data.items()
        ],
        run.wiring,
        run.computing,
        run.plan,
        run.cost,
        run.saving,
        time.perf_counter() - began,
    )


class _RunCheck:
    """Looks at the run that a Controller of these arguments would make.

    Attributes:
        controller: on one device.
        devices: how many the run would use.
        problems: found so far; the others are parts of `Check`.

    Raises:
        PalmError: the configuration is wrong.
    """

    def __init__(
        self,
        config: str | Path | Mapping[str, Any],
        task_dir: str | Path,
        argv: Sequence[str],
        tasks: Sequence[Task],
    ) -> None:
        given = configured(config, task_dir, argv, for_train=True, needs_tasks=not tasks)
        wanted = given.value("num_devices")
        # With several, a Controller would start this program again on each of them.
        self.controller = Controller(config, task_dir, argv=[*argv, "--num_devices", "1"], tasks=tasks)
        self.settings = RunSettings(**self.controller.plan.settings)
        if wanted is None or wanted.value == "auto":
            on_gpus = self.settings.use_gpu and self.settings.device != "cpu"
            self.devices = max(1, torch.cuda.device_count()) if on_gpus else 1
        else:
            self.devices = int(wanted.value)
        self.problems: list[Problem] = []
        self.wiring: list[Wiring] = []
        self.computing: Computing | None = None
        self.plan: RunPlan | None = None
        self.cost: Cost | None = None
        self.saving: Saving | None = None

    def look(self, measure: bool) -> None:
        """Build the run, plan it, look at where it writes, and perhaps measure it."""
        settings = self.settings
        try:
            if settings.pretrain_path is not None:
                self.controller.load_pretrain()
            training = self.controller.training(self.devices)
            stages = steps_of(self.controller.stages, self.devices)
        except PalmError as error:
            code = "data" if isinstance(error, DataError) else "run"
            self.problems.append(Problem("error", code, "", str(error)))
            return
        self.plan = plan_of(training, self.devices)
        self.wiring = list(_wiring(training))
        self.computing = self._computing(training)
        targets = [task.name for task in training.tasks if task.is_target]
        names = [task.name for task in training.tasks]
        directory = RunDirectory(settings.save_path, names, targets, settings.resume, settings.overwrite)
        self.saving = saving_of(training, self.plan, settings, directory)
        self.problems += [*_plan_problems(self.plan, settings), *saving_problems(self.saving, directory)]
        if stages:
            told = "; ".join(
                f"{stage}: {', '.join(f'{task} {steps}' for task, steps in own.expected_steps.items())}"
                for stage, own in stages.items()
            )
            remedy = "what else is told here is of the settings outside of stages, as one run"
            self.problems.append(Problem("note", "stages", "", f"steps: {told}", remedy))
        if not measure:
            return
        try:
            every, every_epoch = settings.eval_every_n_steps, settings.eval_every_epoch
            self.cost = measured(training, self.plan, self.saving, every, every_epoch)
        except torch.cuda.OutOfMemoryError:
            told = "the fullest batches do not fit into the memory of the device"
            remedy = "lower batch_size and set gradient_accumulation_steps, or set max_tokens_per_batch"
            self.problems.append(Problem("error", "memory", "", told, remedy))
        except PalmError as error:
            self.problems.append(Problem("error", "run", "", str(error)))

    def _computing(self, training: Training) -> Computing:
        settings, device = self.settings, training.recipe.device
        parameters = list(training.model.parameters())
        if device.type == "cuda":
            name, why = torch.cuda.get_device_name(device), "a GPU is visible"
        else:
            name = f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
            why = "no GPU is visible"
            why = "use_gpu is off" if not settings.use_gpu else why
            why = "device: cpu" if settings.device == "cpu" else why
        is_auto = settings.precision == "auto"
        return Computing(
            device=name,
            why=why,
            devices=self.devices,
            precision=training.model.precision,
            why_precision=f"auto: {choice('auto', device).reason}"
            if is_auto
            else f"precision: {settings.precision}",
            parameters=sum(each.numel() for each in parameters),
            trained=sum(each.numel() for each in parameters if each.requires_grad),
        )


def _wiring(training: Training) -> Iterator[Wiring]:
    for task in training.tasks:
        yield Wiring(
            task=task.name,
            reader=READERS.name_of(type(task.reader)),
            backbone=BACKBONES.name_of(type(training.model.backbone)),
            paradigm=HEADS.name_of(type(task.head)),
            reads={name: str(spec) for name, spec in task.head.inputs_attr.items()},
            targets={name: str(spec) for name, spec in task.head.targets_attr.items()},
            shares_head_with=[
                other.name for other in training.tasks if other is not task and other.head is task.head
            ],
            metrics=list(task.metrics) if task.dev_file is not None else [],
        )


def _plan_problems(plan: RunPlan, settings: RunSettings) -> Iterator[Problem]:
    """What is odd about the plan."""
    for task in plan.tasks:
        if task.epochs < 1:
            seen = f"{100 * task.epochs:.0f} % of its {task.rows} rows are seen"
            yield Problem("note", "coverage", task.task, seen, "raise num_epochs or its mix_ratio for more")
        if not plan.packs and task.batches.padding > MUCH_PADDING:
            told = f"{100 * task.batches.padding:.0f} % of the places of its batches hold padding"
            remedy = "the encoder computes it: use one of palm's, or lower max_seq_len"
            yield Problem("note", "padding", task.task, told, remedy)
    if settings.early_stopping_patience > 0:
        yield Problem("note", "early_stopping", "", "the run may end before its steps: early stopping is on")
    if plan.total_drawn is None:
        told = (
            "how often helpers are drawn depends on dev scores, or the run is long: expected draws are told"
        )
        yield Problem("note", "draws", "", told)
