"""Compare ways to train."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from palm.config import read_config
from palm.config.run import Document, RunConfig, with_tasks
from palm.controller.resolve import edited_document, resolve
from palm.controller.stages import Stage, stages_of, steps_of
from palm.core.component import choice_problems, count_problems, raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.io import write_json, write_text
from palm.core.logging import logger, show_on_console
from palm.experiments.grid import (
    ROWS,
    Grid,
    GridRun,
    Pool,
    Result,
    Source,
    Tested,
    devices_of,
)
from palm.experiments.outcome import (
    ALONE,
    REFERENCE,
    STAGED,
    Outcome,
    Scoring,
    Way,
    outcome_of,
    read_rows,
)
from palm.mixing import MixRatio
from palm.reader.tables.files import is_data, shown_path
from palm.train.build import build, open_data
from palm.train.model_paths import BEST
from palm.train.task import StepPlan

COMPARE_JSON = "compare.json"
COMPARE_TEXT = "compare.txt"
COMPARE_TABLE = "compare.csv"

WAY_NAME = re.compile(r"\w[\w.-]{0,40}")
"""Valid names of ways in `also`, which are also names of folders."""

ALIKE = 0.05
"""The share by which numbers of updates may differ and still count as equal."""

TABLES = (".csv", ".tex")
"""Suffixes of the table that `output` may name."""


def compare(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    seeds: int = 5,
    test: Mapping[str, str | Path] | None = None,
    model: str | None = None,
    workers: int | None = None,
    pool: Pool | None = None,
    output: str | Path | None = None,
    also: Mapping[str, Mapping[str, Any]] | None = None,
    argv: Sequence[str] = (),
) -> Outcome:
    """Train every target alone, all tasks together, and all but each auxiliary; find which tasks help.

    The same call resumes a killed comparison, and with more seeds adds the missing runs. The result is also
    written to `compare.json`, `compare.txt` and `compare.csv`.

    Args:
        config, task_dir, argv: as for `palm.Controller`.
        seeds: number of runs of every way, at least 2; seeds count up from `random_seed`.
        test: target -> the file with labels to compare it on; by default its `dev_file`.
        model: the model to score, `best` on dev data or `last`; by default `best` if all targets have a test
            file other than their dev_file.
        workers: runs at a time; by default one on every visible GPU, or one on a CPU.
        pool: where the runs are trained: this machine, or a Ray cluster (`palm.ray.Pool()`).
        output: the folder; by default `<save_path>_compare`. If it ends in .csv or .tex, the table is written
            there, and the runs to the default folder.
        also: name -> settings of another way to train all tasks.

    Raises:
        PalmError: the configuration has errors, or a run failed.
    """
    show_on_console()
    raise_any([*count_problems(2, seeds=seeds), *choice_problems(("best", "last"), model=model or "best")])
    source = Source(config, task_dir, argv)
    runs = _runs(source, also or {})
    run = runs[REFERENCE]
    tests = _test_files(run, test or {})
    table = Path(output) if output is not None and Path(output).suffix in TABLES else None
    output = None if table else output
    with source.grid("compare", run, output, workers, pool) as grid:
        scored = model or _scored_model(run, tests)
        return _written(_Comparison(runs, tests, scored, grid).outcome(seeds), grid.path, table)


def _runs(source: Source, also: Mapping[str, Mapping[str, Any]]) -> dict[str, RunConfig]:
    """Return `together` and the names in `also` -> their configurations."""
    run = source.edited({})
    # Stages of the configuration are a way already.
    runs = {REFERENCE: run, **{name: source.edited({"stages": None, **own}) for name, own in also.items()}}
    raise_any(_name_problems(run, runs))
    return runs


def _scored_model(run: RunConfig, tests: Mapping[str, Path]) -> str:
    """Return `best` if no target is tested on the data that its best model was chosen on, else `last`."""
    return "best" if all(path != _dev_file_of(run, name) for name, path in tests.items()) else "last"


def _written(found: Outcome, folder: Path, table: Path | None) -> Outcome:
    """Write the result to the folder, and its table also to `table`."""
    write_json(folder / COMPARE_JSON, found.as_json())
    write_text(folder / COMPARE_TEXT, f"{found}\n")
    for file in (folder / COMPARE_TABLE, *([] if table is None else [table])):
        write_text(file, table_text(found.rows(), file.suffix))
    return found


def table_text(rows: Sequence[Sequence[str]], suffix: str) -> str:
    """Return a table with a header as CSV, or for .tex as the body of a LaTeX document."""
    if suffix == ".csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()
    lines = [" & ".join(re.sub(r"([&%$#_{}])", r"\\\1", cell) for cell in row) + r" \\" for row in rows]
    lines = [re.sub("[±<]", lambda found: {"±": r"$\pm$", "<": "$<$"}[found[0]], line) for line in lines]
    begin = rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}"
    return "\n".join([begin, lines[0], r"\hline", *lines[1:], r"\end{tabular}", ""])


def _name_problems(run: RunConfig, runs: Mapping[str, RunConfig]) -> Iterator[str]:
    names = [task.name for task in run.tasks]
    for name, other in runs.items():
        if name != REFERENCE:
            is_taken = name == STAGED or name.startswith((f"{ALONE}-", "without-"))
            if is_taken or not WAY_NAME.fullmatch(name):
                yield f"also: {name!r} cannot name a way to train; use another word, such as 'each_step'"
            if [task.name for task in other.tasks] != names or other.settings.stages:
                yield f"also: {name} has other tasks or stages; a way in `also` is one run of all tasks"


def _test_files(run: RunConfig, given: Mapping[str, str | Path]) -> dict[str, Path]:
    """Return target -> the file to compare it on.

    Raises:
        ConfigError: a target has no such file, or a file is given for a task that is not a target.
    """
    known = ", ".join(run.targets)
    strange = [name for name in given if name not in run.targets]
    problems = [f"test: {name!r} is not a target; known: {known}" for name in strange]
    if len(run.tasks) == 1:
        problems.append("task_instance names only one task; a comparison needs at least two")
    found = {}
    for name in run.targets:
        path = Path(given[name]) if name in given else _dev_file_of(run, name)
        if path is None:
            problems.append(f"task {name!r} has no test file and no dev_file; name one: --test {name}=FILE")
        elif not is_data(path):
            problems.append(f"test: no such file: {path}, for task {name!r}")
        else:
            found[name] = path
    raise_any(problems)
    return found


def _dev_file_of(run: RunConfig, task: str) -> Path | None:
    return next(each.settings.dev_file for each in run.tasks if each.name == task)


def ways_of(whole: StepPlan, num_epochs: float | None) -> list[Way]:
    """Return the ways to train: all tasks together, each target alone, and without each auxiliary.

    Each target has the same steps in all of them. If two would train the same tasks, only the first is
    returned.

    Args:
        whole: the plan of the run of all tasks.
        num_epochs: of the main task in that run.
    """
    names = [task.name for task in whole.tasks]
    parts = {f"{ALONE}-{task.name}": [task.name] for task in whole.tasks if task.is_target}
    for task in whole.tasks:
        rest = [name for name in names if name != task.name]
        if not task.is_target and rest not in parts.values():
            parts[f"without-{task.name}"] = rest
    found = [Way(REFERENCE, names, whole.expected_steps, whole.total_steps, is_whole=True)]
    for name, tasks in parts.items():
        plan, changes = fitted(part_of(whole, tasks), num_epochs, whole)
        found.append(Way(name, tasks, plan.expected_steps, plan.total_steps, changes))
    return found


def controls_of(ways: Sequence[Way], whole: StepPlan) -> list[Way]:
    """Return ways of every target alone with as many updates as each way of all tasks, if missing."""
    found: list[Way] = []
    for way in ways:
        for target in (task.name for task in whole.tasks if task.is_target and way.is_whole):
            alone = [each for each in (*ways, *found) if each.is_alone and target in each.tasks]
            if all(abs(each.updates - way.updates) > ALIKE * way.updates for each in alone):
                plan = replace(part_of(whole, [target]), max_steps=way.updates).over_epochs(None)
                name = f"{ALONE}-{target}-{way.updates}-updates"
                changes = {"num_epochs": None, "max_steps": way.updates}
                found.append(Way(name, [target], plan.expected_steps, plan.total_steps, changes))
    return found


def fitted(plan: StepPlan, num_epochs: float | None, whole: StepPlan) -> tuple[StepPlan, dict[str, Any]]:
    """Choose the length of a run so that each target has the same steps as in the run of all tasks.

    Args:
        plan: of the run, with its expected steps.
        num_epochs: of its main task, used if that results in the same steps.
        whole: the plan of the run of all tasks.

    Returns:
        The plan with its new length, and the settings that give it.
    """
    wanted = {task.name: whole.expected_steps[task.name] for task in plan.tasks if task.is_target}
    per_epoch = plan.main.mix_ratio * plan.main.steps_per_epoch
    main = wanted[plan.main.name]
    # The quotient, multiplied and truncated again, may be a step short; with half a step more it is not.
    epochs = [main / per_epoch, (main + 0.5) / per_epoch]
    lengths: list[tuple[float | None, int | None]] = [(each, None) for each in epochs]
    lengths = [*([] if num_epochs is None else [(num_epochs, None)]), *lengths, (None, plan.total_steps)]
    plans = [replace(plan, max_steps=most).over_epochs(each) for each, most in lengths]
    off = [sum(abs(each.expected_steps[name] - n) for name, n in wanted.items()) for each in plans]
    best = off.index(min(off))
    return plans[best], {"num_epochs": lengths[best][0], "max_steps": lengths[best][1]}


def part_of(whole: StepPlan, names: Sequence[str]) -> StepPlan:
    """Return the plan of some of the tasks, with the same steps as among all, and without a step limit.

    Tasks that share the rows of one that is missing are drawn themselves. A task by itself has no mixing.
    """
    tasks = [
        replace(task, share_rows_with=task.share_rows_with if task.share_rows_with in names else None)
        for task in whole.tasks
        if task.name in names
    ]
    if len(tasks) == 1:
        return StepPlan(tasks=[replace(tasks[0], mix_ratio=1.0)], mixing=MixRatio())
    part = replace(whole, tasks=tasks, max_steps=None)
    return replace(part, tasks_per_step=min(whole.count, len(part.primary_tasks)))


def planned_ways(runs: Mapping[str, RunConfig]) -> list[Way]:
    """Return the ways to train configurations, and their lengths.

    Training files are encoded for this, so the data is in the cache before the first run needs it.

    Args:
        runs: `together` and the names in `also` -> their configurations.
    """
    run = runs[REFERENCE]
    length = (run.settings.num_epochs, run.settings.max_steps)
    whole = _planned(run)
    names = [task.name for task in run.tasks]
    ways = ways_of(whole, length[0])
    if run.settings.stages:
        ways.append(_staged_way(names, stages_of(run), devices_of(run.settings)))
    for name, other in runs.items():
        if name == REFERENCE:
            continue
        plan = _planned(other)
        changes: dict[str, Any] = {}
        is_as_long = (other.settings.num_epochs, other.settings.max_steps) == length
        if is_as_long and plan.expected_steps != whole.expected_steps:
            plan, changes = fitted(plan, length[0], whole)
        ways.append(Way(name, names, plan.expected_steps, plan.total_steps, changes, True))
    return [*ways, *controls_of(ways, whole)]


def _staged_way(tasks: Sequence[str], stages: Sequence[Stage], devices: int) -> Way:
    plans = list(steps_of(stages, devices).values())
    steps = sum((Counter(plan.expected_steps) for plan in plans), Counter[str]())
    changes = {"stages": [dict(stage.given) for stage in stages]}
    return Way(STAGED, tasks, steps, sum(plan.total_steps for plan in plans), changes, is_whole=True)


def _planned(run: RunConfig) -> StepPlan:
    return open_data(run, build(run), devices_of(run.settings))[1]


def document_of(runs: Mapping[str, RunConfig], way: Way, seed: int) -> Document:
    """Return the configuration of a way's run with a seed.

    Args:
        runs: `together` and the names in `also` -> their configurations.
        way: the way.
        seed: of the run.
    """
    source = runs.get(way.name, runs[REFERENCE])
    devices = devices_of(source.settings)
    changes = {"stages": None, "random_seed": seed, "num_devices": devices, "effort": None, **way.changes}
    settings = edited_document(with_tasks(source, way.tasks), changes)
    balance = {} if source.balance is None else source.balance.settings
    for line in drop_missing(settings, ("balance", *balance)):
        if seed == source.settings.random_seed:
            logger.info("%s: %s", way.name, line)
    return settings


def drop_missing(settings: Document, of_balance: Sequence[str]) -> Iterator[str]:
    """Drop settings that refer to tasks which a way lacks; yield a message about each.

    Args:
        settings: of the way; changed in place.
        of_balance: the names of `balance` and of its settings.
    """
    run = settings["global"]
    tasks = settings["tasks"]
    for name, own in tasks.items():
        if (primary := own.get("share_rows_with")) is not None and primary not in tasks:
            del own["share_rows_with"]
            yield f"task {name!r} reads its own rows: share_rows_with names {primary!r}, which is left out"
    drawn = sum("share_rows_with" not in own for own in tasks.values())
    if (count := run.get("tasks_per_step", 1)) != "all" and count > drawn:
        run["tasks_per_step"] = drawn
        yield f"tasks_per_step is {drawn} instead of {count}: only {drawn} tasks are drawn"
    together = len(tasks) if count == "all" else min(count, drawn) + len(tasks) - drawn
    if "balance" in run and together < 2:
        yield f"balance {run['balance']} is left out: a step has one task"
        for name in of_balance:
            run.pop(name, None)


Trained = tuple[Path, Result]
"""The folder and the result of a run."""


@dataclass(frozen=True)
class _Comparison:
    """The runs of a comparison.

    Args:
        runs: `together` and the names in `also` -> their configurations.
        tests: target -> the file to compare it on.
        model: which model to score on it, `best` or `last`.
        grid: trains the runs.
    """

    runs: Mapping[str, RunConfig]
    tests: Mapping[str, Path]
    model: str
    grid: Grid

    def outcome(self, number: int) -> Outcome:
        """Train all runs with this many seeds, and compare them."""
        run = self.runs[REFERENCE]
        ways = planned_ways(self.runs)
        seeds = range(run.settings.random_seed, run.settings.random_seed + number)
        steps = ", ".join(f"{name} {ways[0].steps[name]}" for name in self.tests)
        equal = f"Equal steps of targets: {steps}. Each way is judged against the better of two runs of the "
        equal += "target alone: with these steps, and with as many updates as that way."
        logger.info("%s", equal)
        own = self._trained(ways, seeds)
        rows = {
            target: {
                way.name: [read_rows(folder / ROWS / f"{target}.jsonl") for folder, _ in own[way.name]]
                for way in ways
                if target in way.tasks
            }
            for target in self.tests
        }
        _, result = own[REFERENCE][0]
        tests = {
            target: self._scoring(target, result["test"][target], len(of_target[REFERENCE][0]))
            for target, of_target in rows.items()
        }
        return outcome_of([_timed(way, own[way.name]) for way in ways], rows, tests, list(seeds), equal)

    def _scoring(self, target: str, scored: Tested, rows: int) -> Scoring:
        """Return what a target was compared on."""
        path = self.tests[target]
        kind = "best" if scored["model"] == BEST else "last"
        is_dev = path == _dev_file_of(self.runs[REFERENCE], target)
        return Scoring(shown_path(path), scored["metric"], rows, kind, is_dev)

    def _run(self, way: Way, seed: int) -> GridRun:
        tests = {task: str(self.tests[task].absolute()) for task in way.tasks if task in self.tests}
        return GridRun(f"{way.name}-seed{seed}", document_of(self.runs, way, seed), tests, self.model)

    def _trained(self, ways: Sequence[Way], seeds: Sequence[int]) -> dict[str, list[Trained]]:
        """Train all ways with all seeds; return way -> its runs.

        Raises:
            PalmError: a run failed.
        """
        runs = [(way.name, self._run(way, seed)) for seed in seeds for way in ways]
        # A seed cannot cause an error, so one run of each way is enough.
        _check_runs(dict(runs[: len(ways)]))
        found = {}
        for run, result in self.grid.train([run for _, run in runs]):
            if result["state"] != "done":
                raise PalmError(f"run {run.label} has no result to compare: {result['why']}")
            found[self.grid.digest(run)] = (self.grid.folder(run), result)
        own: dict[str, list[Trained]] = {way.name: [] for way in ways}
        for name, run in runs:
            own[name].append(found[self.grid.digest(run)])
        return own


def _timed(way: Way, trained: Sequence[Trained]) -> Way:
    """Return a way with the names and the mean duration of its runs."""
    seconds = mean(result["seconds"] for _, result in trained)
    return replace(way, seconds=seconds, runs=[folder.name for folder, _ in trained])


def _check_runs(runs: Mapping[str, GridRun]) -> None:
    """Build the model of each way once, and discard it, so that errors come before the first run.

    Raises:
        ConfigError: a way has errors of its own, such as settings that need other tasks.
    """
    problems: list[str] = []
    for name, run in runs.items():
        try:
            config = resolve(read_config(run.settings, argv=[]))
            build(config)
            stages_of(config)
        except ConfigError as error:
            problems += [f"{name}: {line}" for line in error.problems]
    raise_any(problems)
