"""The dry run: all that can be found out about a run without training it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import torch

from palm.backbone import BACKBONES
from palm.check.data import SEVERITIES, FileCheck, Files, Problem, Severity, TaskData, data_of
from palm.check.planning import Cost, RunPlan, measured, plan_of
from palm.config.run import TaskConfig
from palm.config.settings import RunSettings
from palm.controller.controller import Controller
from palm.controller.stages import steps_of
from palm.core.cache import explain_limits
from palm.core.component import raise_any, type_problems
from palm.core.device import device_of
from palm.core.errors import ConfigError, DataError, PalmError, ResourceError, StorageError
from palm.core.group import count_devices
from palm.core.logging import aligned, collected_warnings
from palm.core.process import duration
from palm.paradigm import HEADS
from palm.reader import READERS
from palm.reader.tables.files import shown_path
from palm.train.checkpoint import compared
from palm.train.loggers import logger_problems
from palm.train.loop import Training
from palm.train.task import Task

MUCH_PADDING = 0.3
"""Fraction of padding from which there is a note, if the encoder computes padding."""

DROWNED = 10
"""A task drowns beside another if its gradient on the encoder is so many times smaller at the start."""

CODES: dict[type[PalmError], str] = {DataError: "data", ResourceError: "memory"}
"""The code of an error that would stop the run; `run` for others."""


@dataclass(frozen=True)
class Check:
    """A dry run.

    Args:
        name: the configuration.
        problems: all findings, the worst first.
        data: the data of each task.
        wiring: lines about the components of each task, and one about the device; empty if the configuration
            has errors.
        plan: the steps of the run; None if the configuration has errors.
        cost: its time and memory; None if they were not measured.
        seconds: duration of the check.
    """

    name: str
    problems: Sequence[Problem]
    data: Sequence[TaskData] = ()
    wiring: Sequence[str] = ()
    plan: RunPlan | None = None
    cost: Cost | None = None
    seconds: float = 0.0

    @property
    def counts(self) -> Counter[Severity]:
        """The number of problems of each severity."""
        return Counter(problem.severity for problem in self.problems)

    def is_fine(self, strict: bool = False) -> bool:
        """Check that there are no errors; with `strict`, no warnings either."""
        return not (self.counts["error"] or (strict and self.counts["warning"]))

    def __str__(self) -> str:
        """Describe everything; problems and the number of each kind are the last lines."""
        files = [(task.task, file) for task in self.data for file in task.files]
        sections = {
            "Data": [
                *_data(self),
                *(line for task, file in files for line in _about(task, file)),
            ],
            "First rows, as the model sees them": [
                f"{task.task}: {file.first_row}"
                for task in self.data
                for file in task.files[:1]
                if file.first_row
            ],
            "Wiring": self.wiring,
            "Plan": [] if self.plan is None else _plan(self.plan),
            "Cost, measured on a few real steps": [] if self.cost is None else _cost(self.cost),
        }
        lines: list[str] = []
        for title, found in sections.items():
            if found:
                lines += [title, *(f"  {line}" for line in found), ""]
        problems = [*map(str, self.problems), ""] if self.problems else []
        return "\n".join([*lines, *problems, self.verdict])

    def as_json(self) -> dict[str, Any]:
        """Return the findings and the first row of every file, JSON-ready."""
        data = [
            {
                "task": task.task,
                "files": [
                    {"file": file.name, "role": file.role, "first_rows": [*filter(None, [file.first_row])]}
                    for file in task.files
                ],
            }
            for task in self.data
        ]
        return {"name": self.name, "problems": [asdict(each) for each in self.problems], "data": data}

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    @property
    def verdict(self) -> str:
        """One line with the number of problems and the duration of the check."""
        counted = [f"{count} {name}{'s' if count != 1 else ''}" for name, count in self.counts.items()]
        return f"{self.name}: {', '.join(counted) or 'no problems'} ({self.seconds:.1f} s)"


def check(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    argv: Sequence[str] = (),
    *,
    tasks: Sequence[Task] = (),
    measure: bool = True,
) -> Check:
    """Check the data, wiring, plan and cost of a run.

    Encoded training rows are written to the data cache, for use by the run, and nothing else. A few steps are
    trained on a model that is then discarded.

    Args:
        config: as in `palm.Controller`.
        task_dir: as in `palm.Controller`.
        argv: settings from a command line, as in `palm.Controller`.
        tasks: tasks built in Python, as in `palm.Controller`.
        measure: measure time and memory.
    """
    raise_any(type_problems((str, Path, Mapping), "a file or a mapping", config=config))
    began = time.perf_counter()
    name = str(config) if isinstance(config, (str, Path)) else "configuration"
    with collected_warnings(shown=False) as warned:
        try:
            controller = Controller(config, task_dir, argv=argv, tasks=tasks)
            chosen = controller.chosen.tasks
            readers = [READERS[task.reader.name](**task.reader.settings) for task in chosen]
        except PalmError as error:
            lines = error.problems if isinstance(error, ConfigError) else [str(error)]
            problems = [Problem("error", "configuration", "", line) for line in lines]
            return Check(name, problems, seconds=time.perf_counter() - began)
        # Before the data is checked, because memory for that is not part of the run.
        found = _check_run(name, controller, measure)
        data = [data_of(task.name, own, _files(task)) for task, own in zip(chosen, readers, strict=True)]
    paths = [path for task in chosen for path in _files(task).values()]
    problems = _merge_problems(data, found.problems, warned, paths)
    return replace(found, problems=problems, data=data, seconds=time.perf_counter() - began)


def _files(task: TaskConfig) -> Files:
    return {role: getattr(task.settings, f"{role}_file") for role in ("train", "dev", "pred")}


def _merge_problems(
    data: Sequence[TaskData], of_run: Sequence[Problem], warned: Sequence[str], files: Sequence[Path | None]
) -> list[Problem]:
    """Merge the problems of data and run with logged warnings, each once, the worst first."""
    problems = [problem for task in data for problem in task.problems]
    # The run stops at the first task with unusable data; here, all are reported.
    codes = {problem.code for problem in problems if problem.severity == "error"}
    problems += [problem for problem in of_run if problem.code not in codes]
    # Those of files are already among the data's problems.
    known = tuple(f"{shown_path(file)}: " for file in files if file is not None)
    rest = (line for line in dict.fromkeys(warned) if not line.startswith(known))
    problems += [Problem("warning", "warning", "", line) for line in rest]
    tasks: dict[Problem, list[str]] = {}  # tasks with the same rows have the same problems
    for problem in problems:
        tasks.setdefault(replace(problem, task=""), []).append(problem.task)
    problems = [replace(problem, task=", ".join(names)) for problem, names in tasks.items()]
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def _check_run(name: str, controller: Controller, measure: bool) -> Check:
    """Build and plan the run, check its folder, and perhaps measure it."""
    settings = controller.run.settings
    devices = count_devices(device_of(settings.use_gpu, settings.device), settings.num_devices)
    found = Check(name, [])
    try:
        training = controller.training(devices)
        plan = plan_of(training)
        found = Check(
            name,
            [*_refusals(controller, training), *_plan_problems(plan, settings)],
            wiring=_wiring(training, devices),
            plan=plan,
        )
        if stages := steps_of(controller.stages, devices, controller.run.placed("stages")):
            steps = (
                f"{stage}: {', '.join(f'{task} {count}' for task, count in own.expected_steps.items())}"
                for stage, own in stages.items()
            )
            remedy = "the rest of this check is about the settings outside of stages, as a single run"
            note = Problem("note", "stages", "", f"steps: {'; '.join(steps)}", remedy)
            found = replace(found, problems=[*found.problems, note])
        if measure:
            with explain_limits():
                cost = measured(training, plan)
            found = replace(found, cost=cost, problems=[*found.problems, *_drowned(cost)])
    except PalmError as error:
        problem = Problem("error", CODES.get(type(error), "run"), "", str(error))
        found = replace(found, problems=[*found.problems, problem])
    return found


def _wiring(training: Training, devices: int) -> list[str]:
    """Describe the components of each task, the device and the size of the model."""
    table: list[tuple[str, ...]] = [("task", "reader", "encoder", "head", "reads", "shares its head with")]
    for task in training.tasks:
        reads = ", ".join(f"{name} {spec}" for name, spec in task.head.inputs_attr.items())
        sharing = [t.name for t in training.tasks if t is not task and t.head is task.head]
        encoder = BACKBONES.name_of(type(training.model.backbone)) + (" with lora" if task.task.lora else "")
        names = READERS.name_of(type(task.reader)), encoder, HEADS.name_of(type(task.head))
        table.append((task.name, *names, reads, ", ".join(sharing)))
    if not any(row[-1] for row in table[1:]):
        table = [row[:-1] for row in table]
    device = training.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    sizes = [(each.numel(), each.requires_grad) for each in training.model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    total = sum(size for size, _ in sizes)
    line = f"{devices} × {name}, {training.model.precision}, {trained:,} of {total:,} parameters are trained"
    return [*aligned(table), line]


def _refusals(controller: Controller, training: Training) -> Iterator[Problem]:
    """Yield what else would end the run before its first step, or a note if it is finished."""
    run = controller.run
    for line in logger_problems(run.settings.loggers or ()):
        yield Problem("error", "configuration", "", f"{run.placed('loggers')}: {line}")
    try:
        folder = controller.directory()
        if folder.path.exists() and not folder.path.is_dir():
            raise StorageError(f"{folder.path} is a file; give another save_path")
        begin = folder.open()
        # The stages of a run have folders of their own.
        is_whole = run.settings.stages is None
        if is_whole and folder.finished(begin, compared(training), training.total_steps) is not None:
            yield Problem("note", "save_path", "", f"{folder.path}: this run is finished already")
    except StorageError as error:
        yield Problem("error", "save_path", "", str(error))


def _drowned(cost: Cost) -> Iterator[Problem]:
    """Yield the tasks whose gradients hardly move the encoder beside those of another task."""
    norms = {task: norm for task, (_, norm) in cost.starts.items() if norm > 0}
    most = max(norms, key=norms.__getitem__, default="")
    for task, norm in norms.items():
        if norms[most] > DROWNED * norm:
            ratio = f"{norms[most] / norm:.1g}"
            finding = f"its gradient on the encoder is {float(ratio):g} times smaller than that of {most}"
            remedy = f"it may learn little beside it: try {task}.loss_weight: {float(ratio):g}"
            yield Problem("warning", "drowned", task, finding, remedy)


def _plan_problems(plan: RunPlan, settings: RunSettings) -> Iterator[Problem]:
    """Yield notes about the plan."""
    for task in plan.tasks:
        if task.epochs < 1:
            seen = f"{100 * task.epochs:.0f} % of its {task.rows} rows are seen"
            yield Problem("note", "coverage", task.task, seen, "raise num_epochs or its mix_ratio for more")
        if not plan.packs and task.padding > MUCH_PADDING:
            finding = f"{100 * task.padding:.0f} % of the positions in its batches are padding"
            remedy = "the encoder computes padding: use one of palm's encoders, or lower max_seq_len"
            yield Problem("note", "padding", task.task, finding, remedy)
    if settings.early_stopping_patience > 0:
        yield Problem("note", "early_stopping", "", "the run may stop before its last step (early stopping)")


# The check as text

MOST_LABELS = 6
"""Maximum number of labels in a line."""


def _data(check: Check) -> list[str]:
    title = "tokens median / 95 % / most"
    table = [["task", "file", "examples", "rows", title, "cut", "[UNK]", "repeated", "in train"]]
    for task in check.data:
        for file in task.files:
            found = file.counts.summary()
            lengths = [str(int(found["tokens"][n])) for n in ("median", "95 %", "most") if found["tokens"]]
            most_cut = max((count for count, _, _ in file.facts.cut.values()), default=0)
            cut_share = f"{100 * most_cut / max(1, found['examples']):.1f} %"
            unknown = f"{100 * file.facts.unknown / max(1, file.facts.tokens):.1f} %"
            counts = [f"{found['examples']:,}", f"{found['rows']:,}", "/".join(lengths), cut_share, unknown]
            row = [task.task, file.role, *counts, str(file.repeated), str(task.leaks.get(file.role, ""))]
            table.append(row)
    return aligned(table) if table[1:] else []


def _about(task: str, file: FileCheck) -> Iterator[str]:
    """Describe the labels of a file."""
    place = f"{task} {file.role}: "
    found = file.counts.summary()
    if file.counts.values:
        least, total, largest = file.counts.values
        mean = total / file.counts.examples
        yield f"{place}labels from {least:g} to {largest:g}, {mean:.4g} on average"
    elif found["labels"]:
        kind = f"tags in {file.scheme}: " if file.scheme else ""
        more = len(file.counts.labels) - MOST_LABELS
        labels = [f"{name} {count:,}" for name, count in found["labels"][:MOST_LABELS]]
        yield place + kind + ", ".join([*labels, *([f"{more} more"] if more > 0 else [])])


def _plan(plan: RunPlan) -> list[str]:
    rates = [rate for _, rate in plan.rates]
    main = next(each for each in plan.tasks if each.task == plan.main)
    epochs = round(main.planned / main.steps_per_epoch, 2)
    columns = ["task", "", "steps per epoch", "planned", "drawn", "epochs"]
    table = [[*columns, "rows per step", "tokens per step", "padding"]]
    for each in plan.tasks:
        steps = [str(each.steps_per_epoch), str(each.planned), str(each.drawn), f"{each.epochs:g}"]
        sizes = [f"{each.rows_per_step:g}", f"{each.tokens_per_step:.0f}", f"{100 * each.padding:.0f} %"]
        table.append([each.task, "target" if each.is_target else "auxiliary", *steps, *sizes])
    return [
        *aligned(table),
        f"{plan.steps} steps, {epochs:g} epochs of {plan.main}",
        f"learning rate from {rates[0]:.3g} via {max(rates):.3g} to {rates[-1]:.3g}",
        f"padding is {'not computed: the encoder packs' if plan.packs else 'computed by the encoder'}",
    ]


def _cost(cost: Cost) -> list[str]:
    slowest = max(cost.fullest, key=cost.fullest.__getitem__)
    parts = [f"about {duration(cost.training)} of steps ({duration(cost.step)} each)"]
    parts.append(f"the fullest step takes {duration(cost.fullest[slowest])} ({slowest})")
    if cost.memory_bytes is not None:
        parts.append(f"at most {cost.memory_bytes / 2**30:.2f} GiB of memory")
    starts = [
        f"{task} begins with a loss of {loss:.3g}"
        + f", and a gradient of {norm:.3g} on the encoder" * (norm > 0)
        for task, (loss, norm) in cost.starts.items()
    ]
    return [", ".join(parts), *starts]
