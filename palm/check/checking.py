"""The dry run: all that can be found out about a run without training it."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES
from palm.check.data import TaskData, data_of
from palm.check.measuring import measured
from palm.check.planning import RunPlan, plan_of
from palm.check.problems import Problem
from palm.check.result import Check, Computing, Wiring
from palm.check.saving import saving_of, saving_problems
from palm.controller.controller import Controller
from palm.controller.plan import TaskPlan, place_of
from palm.controller.settings import RunSettings
from palm.controller.stage_planning import steps_of
from palm.controller.startup import read_program_config
from palm.core.checks import raise_any, type_problems
from palm.core.errors import ConfigError, DataError, PalmError, ResourceError
from palm.core.limits import explain_limits
from palm.core.logging import only_collected
from palm.core.numerics.device import device_of
from palm.paradigm import HEADS
from palm.parallel.launch import count_devices
from palm.reader import READERS
from palm.train.loop import Training
from palm.train.run_directory import RunDirectory
from palm.train.task import Task

MUCH_PADDING = 0.3
"""Fraction of padding from which there is a note, if the encoder computes padding."""


def check(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    argv: Sequence[str] = (),
    *,
    tasks: Sequence[Task] = (),
    measure: bool = True,
    find_batch_size: bool = False,
) -> Check:
    """Check the data, wiring, plan and cost of a run, and the files that it would write.

    Encoded training rows are written to the data cache, for use by the run, and nothing else. A few steps are
    trained on a model that is then discarded.

    Args:
        config: as in `palm.Controller`.
        task_dir: as in `palm.Controller`.
        argv: settings from a command line, as in `palm.Controller`.
        tasks: tasks built in Python, as in `palm.Controller`.
        measure: measure time and memory.
        find_batch_size: halve all batches until the fullest ones fit into memory, and report the settings.
    """
    raise_any(type_problems((str, Path, Mapping), "a file or a mapping", config=config))
    began = time.perf_counter()
    name = str(config) if isinstance(config, (str, Path)) else "configuration"
    with only_collected() as warned:
        try:
            devices = _num_devices(config, task_dir, argv, needs_tasks=not tasks)
            # With several devices, a Controller would start this program again for each of them.
            words = [*argv, "--num_devices", "1"]
            controller = Controller(config, task_dir, argv=words, tasks=tasks)
        except PalmError as error:
            lines = error.problems if isinstance(error, ConfigError) else [str(error)]
            problems = [Problem("error", "configuration", "", line) for line in lines]
            return Check(name, problems, seconds=time.perf_counter() - began)
        # Before the data is checked, because memory for that is not part of the run.
        parts, of_run = _check_run(controller, devices, measure)
        smaller: list[str] = []
        while find_batch_size and _is_too_large(of_run) and (smaller := _halve_batches(controller)):
            gc.collect()  # frees the model of the previous attempt
            torch.cuda.empty_cache()
            controller = Controller(config, task_dir, argv=[*words, *smaller], tasks=tasks)
            parts, of_run = _check_run(controller, devices, measure=True)
        if smaller and not _is_too_large(of_run):
            finding = "the fullest batches do not fit into the memory of the device; smaller ones do"
            of_run.append(Problem("error", "memory", "", finding, f"set {' '.join(smaller)}"))
        plans = [*controller.plan.tasks, *map(TaskPlan.of, controller.plan.given)]
        data = [data_of(plan) for plan in plans]
    problems = _merge_problems(data, of_run, warned, plans)
    return Check(name, problems, data, **parts, seconds=time.perf_counter() - began)


def _merge_problems(
    data: Sequence[TaskData], of_run: Sequence[Problem], warned: Sequence[str], plans: Sequence[TaskPlan]
) -> list[Problem]:
    """Merge the problems of data and run with logged warnings, each once."""
    problems = [problem for task in data for problem in task.problems]
    # The run stops at the first task with unusable data; here, all are reported.
    codes = {problem.code for problem in problems if problem.severity == "error"}
    problems += [problem for problem in of_run if problem.code not in codes]
    files = tuple(f"{plan.task.get('train_file')}: " for plan in plans)  # already among the data's problems
    rest = (line for line in dict.fromkeys(warned) if not line.startswith(files))
    problems += [Problem("warning", "warning", "", line) for line in rest]
    return problems


def _num_devices(
    config: str | Path | Mapping[str, Any], task_dir: str | Path, argv: Sequence[str], needs_tasks: bool
) -> int:
    """Return the number of devices that the run would use."""
    given = read_program_config(config, task_dir, argv, for_train=True, needs_tasks=needs_tasks)
    settings = given.arguments(RunSettings, None, required=False)
    device = device_of(settings.get("use_gpu", True), settings.get("device", "auto"))
    return count_devices(device, settings.get("num_devices", "auto"))


def _check_run(controller: Controller, devices: int, measure: bool) -> tuple[dict[str, Any], list[Problem]]:
    """Build and plan the run, check its folder, perhaps measure it; return fields of `Check` and problems."""
    settings = RunSettings(**controller.plan.settings)
    parts: dict[str, Any] = {}
    problems: list[Problem] = []
    try:
        training = controller.training(devices)
        stages = steps_of(controller.stages, devices, place_of(controller.config, "stages"))
        plan = plan_of(training)
        targets = [task.name for task in training.tasks if task.is_target]
        names = [task.name for task in training.tasks]
        directory = RunDirectory(settings.save_path, names, targets, settings.resume, settings.overwrite)
        saving = saving_of(training, plan, settings, directory, controller.plan.chosen)
        problems += [*_plan_problems(plan, settings), *saving_problems(saving, directory)]
        if stages:
            steps = (
                f"{stage}: {', '.join(f'{task} {count}' for task, count in own.expected_steps.items())}"
                for stage, own in stages.items()
            )
            remedy = "the rest of this check is about the settings outside of stages, as a single run"
            problems.append(Problem("note", "stages", "", f"steps: {'; '.join(steps)}", remedy))
        parts |= {"plan": plan, "wiring": list(_wiring(training)), "saving": saving}
        parts["computing"] = _computing(training, settings, devices)
        if measure:
            every = settings.eval_every_n_steps
            with explain_limits():
                parts["cost"] = measured(training, plan, saving, every, settings.eval_every_epoch)
    except PalmError as error:
        code = {DataError: "data", ResourceError: "memory"}.get(type(error), "run")
        problems.append(Problem("error", code, "", str(error)))
    return parts, problems


def _is_too_large(problems: Sequence[Problem]) -> bool:
    return any(problem.code == "memory" for problem in problems)


def _halve_batches(controller: Controller) -> list[str]:
    """Return command-line settings for batches of half the size, and twice as many in a step."""
    words = []
    for plan in controller.plan.tasks:
        for name in ("batch_size", "max_tokens_per_batch"):
            size = plan.task.get(name) or 1
            if size > 1:
                batches = 2 * plan.task.get("gradient_accumulation_steps", 1)
                words += [f"--{plan.name}.{name}", str(size // 2)]
                words += [f"--{plan.name}.gradient_accumulation_steps", str(batches)]
    return words


def _computing(training: Training, settings: RunSettings, devices: int) -> Computing:
    device = training.recipe.device
    parameters = list(training.model.parameters())
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        why = "a GPU is visible"
    else:
        name = f"CPU ({platform.machine()}, threads: {torch.get_num_threads()})"
        why = "no GPU is visible" if settings.use_gpu else "use_gpu is off"
        why = "device: cpu" if settings.device == "cpu" else why
    chosen = training.recipe.chosen
    return Computing(
        device=name,
        why=why,
        devices=devices,
        precision=training.model.precision,
        why_precision=f"auto: {chosen.reason}"
        if chosen is not None and settings.precision == "auto"
        else f"precision: {settings.precision}",
        parameters=sum(each.numel() for each in parameters),
        trained=sum(each.numel() for each in parameters if each.requires_grad),
    )


def _wiring(training: Training) -> Iterator[Wiring]:
    for task in training.tasks:
        yield Wiring(
            task=task.name,
            reader=READERS.name_of(type(task.reader)),
            backbone=BACKBONES.name_of(type(training.model.backbone)) + _describe_adapters(task),
            paradigm=HEADS.name_of(type(task.head)),
            reads={name: str(spec) for name, spec in task.head.inputs_attr.items()},
            targets={name: str(spec) for name, spec in task.head.targets_attr.items()},
            shares_head_with=[t.name for t in training.tasks if t is not task and t.head is task.head],
            metrics=list(task.metric_names) if task.dev_file is not None else [],
        )


def _describe_adapters(task: Task) -> str:
    if task.adapters is None:
        return ""
    count = sum(each.numel() for each in task.adapters.parameters())
    return f" with lora on {len(task.adapters.names)} layers ({count:,} parameters)"


def _plan_problems(plan: RunPlan, settings: RunSettings) -> Iterator[Problem]:
    """Yield notes about the plan."""
    for task in plan.tasks:
        if task.epochs < 1:
            seen = f"{100 * task.epochs:.0f} % of its {task.rows} rows are seen"
            yield Problem("note", "coverage", task.task, seen, "raise num_epochs or its mix_ratio for more")
        if not plan.packs and task.batches.padding > MUCH_PADDING:
            finding = f"{100 * task.batches.padding:.0f} % of the positions in its batches are padding"
            remedy = "the encoder computes padding: use one of palm's encoders, or lower max_seq_len"
            yield Problem("note", "padding", task.task, finding, remedy)
    if settings.early_stopping_patience > 0:
        yield Problem("note", "early_stopping", "", "the run may stop before its last step (early stopping)")
    if plan.total_drawn is None:
        finding = "draws depend on dev scores, or are many: the steps of auxiliary tasks are expected values"
        yield Problem("note", "draws", "", finding)
