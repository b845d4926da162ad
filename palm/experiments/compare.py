"""Compare ways to train."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from types import MappingProxyType
from typing import Any

from palm.config import read_config
from palm.config.run import Document, RunConfig, TaskConfig, with_tasks
from palm.config.settings import RunSettings
from palm.controller.resolve import edited_document, resolve
from palm.controller.stages import Stage, stages_of, steps_of
from palm.core.component import choice_problems, count_problems, raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.io import write_json, write_text
from palm.core.logging import logger, set_verbosity, show_on_console
from palm.experiments.grid import (
    ROWS,
    Grid,
    GridProgress,
    GridRun,
    Pool,
    Result,
    Source,
    best_of,
    data_checksums,
    devices_of,
    folder_of,
)
from palm.experiments.outcome import (
    ALONE,
    REFERENCE,
    STAGED,
    Length,
    Outcome,
    Scoring,
    Variant,
    controls_of,
    fitted,
    length_of,
    lengths_of,
    outcome_of,
    planned,
    read_rows,
    variants_of,
)
from palm.experiments.statistics import smallest_differences
from palm.experiments.sweep import grid_points, space_of
from palm.reader import READERS
from palm.reader.tables.files import is_data
from palm.train.build import build, open_data
from palm.train.folder import only_run_in
from palm.train.model_paths import BEST
from palm.train.planning import StepPlan

VARIANT_NAME = re.compile(r"\w[\w.-]{0,40}")
"""Valid names of variants in `also`, which are also names of folders."""


@dataclass(frozen=True)
class Setup:
    """The setup of a comparison.

    Args:
        run: the configuration.
        tests: target -> the file to compare it on.
        model: which model to score on it, `best` or `last`.
        stages: the planned stages of the configuration; empty if it has none.
        also: name -> the setup of another variant with all tasks.
    """

    run: RunConfig
    tests: Mapping[str, Path]
    model: str
    stages: Sequence[Stage] = ()
    also: Mapping[str, Setup] = field(default_factory=dict)

    @property
    def settings(self) -> RunSettings:
        """The settings of the whole run."""
        return self.run.settings

    def data(self) -> dict[str, str]:
        """Return file -> checksum of all data of its runs."""
        return data_checksums([self.run, *(other.run for other in self.also.values())], self.tests.values())

    def ways(self) -> list[tuple[Variant, Length]]:
        """Return the variants, first the one with all tasks, and their lengths.

        Training files are encoded for this, so the data is in the cache before the first run needs it.
        """
        whole = self._planned()
        names = [task.name for task in whole.tasks]
        variants = variants_of({task.name: task.is_target for task in whole.tasks})
        lengths = lengths_of(variants, whole, self.settings.num_epochs)
        ways = list(zip(variants, lengths, strict=True))
        for name, other in ({STAGED: self, **self.also} if self.stages else self.also).items():
            label = "in stages" if name == STAGED else name
            length, stages = self._length(other, whole)
            ways.append((Variant(name, label, names, {"stages": stages}, is_way=True), length))
        return [*ways, *controls_of(ways, whole)]

    def _planned(self) -> StepPlan:
        """Return the plan of all tasks with these settings; their data is in the cache afterwards."""
        return open_data(self.run, build(self.run), devices_of(self.settings))[1]

    def num_rows(self) -> dict[str, int]:
        """Return target -> the number of examples in its test file."""
        tasks = {task.name: task for task in self.run.tasks}
        return {name: num_examples(tasks[name], path) for name, path in self.tests.items()}

    def _length(self, other: Setup, whole: StepPlan) -> tuple[Length, list[dict[str, Any]] | None]:
        """Return the length of a run of all tasks with other settings, and its stages if it has some.

        Targets have the same steps as in the run of all tasks, unless the settings have another length.
        """
        epochs = other.settings.num_epochs
        as_given = (epochs, other.settings.max_steps) != (self.settings.num_epochs, self.settings.max_steps)
        if not other.stages:
            plan = other._planned()
            return length_of(plan, epochs) if as_given else fitted(plan, epochs, whole), None
        plans = list(steps_of(other.stages, devices_of(other.settings)).values())
        # All stages are scaled by the same factor, so they keep their proportions.
        factor = 1.0 if as_given else self._target_steps(whole) / sum(map(self._target_steps, plans))
        plans = [planned(plan, None, max(1, round(factor * plan.total_steps))) for plan in plans]
        stages = [
            {**stage, "num_epochs": None, "max_steps": plan.max_steps}
            for stage, plan in zip(other.given_stages, plans, strict=True)
        ]
        steps = sum((Counter(plan.expected_steps) for plan in plans), Counter[str]())
        total = sum(plan.total_steps for plan in plans)
        return Length(epochs, dict(steps), total, other.settings.max_steps), stages

    def _target_steps(self, plan: StepPlan) -> int:
        return sum(task.expected_steps for task in plan.tasks if task.name in self.tests)

    @property
    def given_stages(self) -> list[Mapping[str, Any]]:
        """The stages as given."""
        return [stage.given for stage in self.stages]

    def run_of(self, name: str, variant: Variant, length: Length, seed: int) -> GridRun:
        """Return a run of a variant."""
        source = self.also.get(variant.name, self)
        changes = {
            "num_epochs": length.num_epochs,
            "max_steps": length.max_steps,
            "random_seed": seed,
            "num_devices": devices_of(self.settings),
            "stages": None,
            "effort": None,
            **variant.changes,
        }
        settings = edited_document(with_tasks(source.run, variant.tasks), changes)
        balance = {} if source.run.balance is None else source.run.balance.settings
        for line in drop_missing(settings, ("balance", *balance)):
            if seed == self.settings.random_seed:
                logger.info("variant %s: %s", variant.name, line)
        tests = {task: str(self.tests[task].absolute()) for task in variant.tasks if task in self.tests}
        return GridRun(name, settings, length.total, tests, self.model)

    def equal(self, whole: Length) -> str:
        """Describe what is equal in all variants; `whole` is the length of the run of all tasks."""
        steps = ", ".join(f"{name} {whole.steps[name]}" for name in self.tests)
        return (
            f"Equal steps of targets: {steps}. Each way is judged against the better of two runs of the "
            "target alone: with these steps, and with as many updates as that way."
        )

    def is_dev(self, target: str) -> bool:
        """Check whether a target is compared on its dev_file."""
        return self.tests[target] == dev_file_of(self.run, target)


def check_runs(runs: Mapping[str, GridRun]) -> None:
    """Build the model of each variant once, and discard it, so that errors come before the first run.

    Args:
        runs: variant -> one of its runs.

    Raises:
        ConfigError: a variant has errors of its own, such as settings that need other tasks.
    """
    problems: list[str] = []
    for variant, run in runs.items():
        try:
            config = resolve(read_config(run.settings, argv=[]))
            build(config)
            stages_of(config)
        except ConfigError as error:
            problems += [f"variant {variant}: {line}" for line in error.problems]
    raise_any(problems)


def drop_missing(settings: Document, of_balance: Sequence[str]) -> Iterator[str]:
    """Drop settings that refer to tasks which a variant lacks; yield a message about each.

    Args:
        settings: of the variant; changed in place.
        of_balance: the names of `balance` and of its settings.
    """
    run = settings["global"]
    tasks = settings["tasks"]
    for name, own in tasks.items():
        if (primary := own.get("share_rows_with")) is not None and primary not in tasks:
            del own["share_rows_with"]
            yield f"task {name!r} reads its own rows: share_rows_with names {primary!r}, which is left out"
    drawn = sum("share_rows_with" not in own for own in tasks.values())
    count = run.get("tasks_per_step", 1)
    if count != "all" and count > drawn:
        run["tasks_per_step"] = drawn
        yield f"tasks_per_step is {drawn} instead of {count}: only {drawn} tasks are drawn"
    together = len(tasks) if count == "all" else min(count, drawn) + len(tasks) - drawn
    if "balance" in run and together < 2:
        yield f"balance {run['balance']} is left out: a step has one task"
        for name in of_balance:
            run.pop(name, None)


def setup_of(
    run: RunConfig,
    test: Mapping[str, str | Path],
    model: str | None,
    also: Mapping[str, RunConfig] = MappingProxyType({}),
) -> Setup:
    """Set up a comparison, and check everything that can be checked before training.

    Args:
        run: the configuration.
        test: target -> the file to compare it on.
        model: which model to score on it.
        also: name -> the configuration of another variant with all tasks.

    Raises:
        ConfigError: there are errors; all of them in one report.
    """
    raise_any(_name_problems(run, also))
    tests = _test_files(run, run.targets, test)
    is_apart = all(path != dev_file_of(run, name) for name, path in tests.items())
    return Setup(
        run,
        tests,
        model or ("best" if is_apart else "last"),
        stages_of(run),
        {name: setup_of(each, test, model) for name, each in also.items()},
    )


def _name_problems(run: RunConfig, also: Mapping[str, RunConfig]) -> Iterator[str]:
    names = [task.name for task in run.tasks]
    for name, other in also.items():
        is_taken = name in (REFERENCE, STAGED) or name.startswith((f"{ALONE}-", "without-"))
        if is_taken or not VARIANT_NAME.fullmatch(name):
            yield f"also: {name!r} cannot name a variant; use another word, such as 'each_step'"
        if [task.name for task in other.tasks] != names:
            yield f"also: {name} has other tasks; every variant in `also` needs all tasks"


def _test_files(plan: RunConfig, targets: Sequence[str], given: Mapping[str, str | Path]) -> dict[str, Path]:
    """Return target -> the file to compare it on.

    Raises:
        ConfigError: a target has no such file, or a file is given for a task that is not a target.
    """
    known = ", ".join(targets)
    problems = [f"test: {name!r} is not a target; known: {known}" for name in given if name not in targets]
    if len(plan.tasks) == 1:
        problems.append("task_instance names only one task; a comparison needs at least two")
    found = {}
    for name in targets:
        path = Path(given[name]) if name in given else dev_file_of(plan, name)
        if path is None:
            problems.append(
                f"task {name!r} has no test file and no dev_file; name one with --test {name}=FILE"
            )
        elif not is_data(path):
            problems.append(f"test: no such file: {path}, for task {name!r}")
        else:
            found[name] = path
    raise_any(problems)
    return found


def num_examples(task: TaskConfig, path: Path) -> int:
    """Count the examples of a file with labels."""
    reader = READERS[task.reader.name](**task.reader.settings)
    return sum(1 for _ in reader.read(path, with_targets=True))


def dev_file_of(run: RunConfig, task: str) -> Path | None:
    """Return the `dev_file` of a task."""
    return next(each.settings.dev_file for each in run.tasks if each.name == task)


COMPARE_JSON = "compare.json"
COMPARE_TEXT = "compare.txt"
COMPARE_TABLE = "compare.csv"

Ways = Sequence[tuple[Variant, Length]]
"""The variants, first the one with all tasks, and their lengths."""


def compare(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    seeds: int = 5,
    test: Mapping[str, str | Path] | None = None,
    model: str | None = None,
    workers: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    keep_models: bool = False,
    also: Mapping[str, Mapping[str, Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    argv: Sequence[str] = (),
) -> Outcome:
    """Train every target alone, all tasks together, and all but each auxiliary; find which tasks help.

    The same call resumes a killed comparison, and with more seeds adds the missing runs. The result is also
    written to `compare.json`, `compare.txt` and `compare.csv`.

    Args:
        config, task_dir, argv: as for `palm.Controller`.
        seeds: number of runs of every variant, at least 2; seeds count up from `random_seed`.
        test: target -> the file with labels to compare it on; by default its `dev_file`.
        model: the model to score, `best` on dev data or `last`. By default `best` if all targets have a test
            file other than their dev_file, else `last`: the best of many on the same rows looks too good.
        workers: runs at a time; by default one on every visible GPU, or one on a CPU.
        output: the folder; by default `<save_path>_compare`.
        overwrite: put the runs of another comparison in the folder aside.
        keep_models: keep the models and checkpoints of scored runs.
        also: name -> settings of another variant with all tasks.
        tune: setting -> values. Every way is trained with all combinations, and compared with the one that
            is best on its dev data.

    Raises:
        PalmError: the configuration has errors, the folder contains another comparison, or a run failed.
    """
    show_on_console()
    problems = count_problems(2, seeds=seeds)
    raise_any([*problems, *choice_problems(("best", "last"), model=model or "best")])
    source = Source(config, task_dir, argv)
    points = grid_points(space_of(tune)) if tune else []
    setup, *setups = [_setup_at(source, values, test, model, also) for values in ({}, *points)]
    raise_any(_tuning_problems(setup, tune) if tune else ())
    set_verbosity(setup.settings.quiet, setup.settings.verbose)
    with only_run_in(folder := folder_of(setup.run.folder, "compare", output)):
        grid = Grid(folder, setup.data(), keep_models)
        pool = source.pool(grid, "compare", workers, setup.settings)
        found = _compared(setup, setups or [setup], points, pool, seeds, overwrite)
        _write(folder, found)
        return found


def _setup_at(
    source: Source,
    values: Mapping[str, Any],
    test: Mapping[str, str | Path] | None,
    model: str | None,
    also: Mapping[str, Mapping[str, Any]] | None,
) -> Setup:
    """Return the setup with some settings changed."""
    # Stages of the configuration already are a variant.
    others = {
        name: source.edited({"stages": None, **changes, **values}) for name, changes in (also or {}).items()
    }
    return setup_of(source.edited(values), test or {}, model, others)


def _write(folder: Path, found: Outcome) -> None:
    write_json(folder / COMPARE_JSON, found.as_json())
    write_text(folder / COMPARE_TEXT, f"{found}\n")
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(found.rows())
    write_text(folder / COMPARE_TABLE, table.getvalue())


def _tuning_problems(setup: Setup, tune: Mapping[str, Any]) -> Iterator[str]:
    """List the reasons why settings cannot be chosen by dev data and then compared on other rows."""
    for target in setup.tests:
        if setup.is_dev(target):
            yield f"tune: dev data chooses the settings of {target!r}; name other rows: --test {target}=FILE"
        elif dev_file_of(setup.run, target) is None:
            yield f"tune: dev data chooses the settings, and task {target!r} has no dev_file"
    for stage in (stage for each in (setup, *setup.also.values()) for stage in each.given_stages):
        if own := tune.keys() & stage.keys():
            yield f"tune: a stage sets {', '.join(sorted(own))} itself; remove it there to have it tuned"


def _compared(
    setup: Setup,
    setups: Sequence[Setup],
    points: Sequence[Mapping[str, Any]],
    pool: Pool,
    number: int,
    overwrite: bool,
) -> Outcome:
    ways = setup.ways()
    equal = setup.equal(ways[0][1])
    logger.info("%s", equal)
    for target, rows in setup.num_rows().items():
        message = "%s: %d seeds and %d rows can show differences above %.0f to %.0f points"
        logger.info(message, target, number, rows, *smallest_differences(number, rows))
    seeds = range(setup.settings.random_seed, setup.settings.random_seed + number)
    chosen: dict[str, int] = {}
    if points:
        chosen = _tuned(ways, setups, pool, seeds[0], overwrite)
        shown = "; ".join(f"{variant} {json.dumps(points[k])}" for variant, k in chosen.items())
        equal += f" Each way has the settings with its best dev score, with the first seed: {shown}."
    runs = _runs(ways, setups, seeds, chosen)
    return _outcome(setup, ways, equal, _trained(pool, runs, overwrite), seeds, chosen, pool.grid)


def _tuned(ways: Ways, setups: Sequence[Setup], pool: Pool, seed: int, overwrite: bool) -> dict[str, int]:
    """Train every way with all settings and one seed; return variant -> the number of its best.

    The runs with the chosen settings are those of the comparison with this seed.
    """
    each = [{variant.name: k for variant, _ in ways} for k in range(len(setups))]
    results = _trained(
        pool,
        [run for chosen in each for run in _runs(ways, setups, [seed], chosen)],
        overwrite,
        may_fail=True,
    )
    best = {}
    for variant, _ in ways:
        scores = (best_of(results[_name(variant, seed, chosen)][1])[1] for chosen in each)
        known = {k: score for k, score in enumerate(scores) if score is not None}
        if not known:
            raise PalmError(
                f"tune: no run of {variant.name} finished with a dev score; try lower learning rates"
            )
        best[variant.name] = max(known, key=known.__getitem__)
    return best


def _name(variant: Variant, seed: int, chosen: Mapping[str, int]) -> str:
    return f"{variant.name}{f'-{chosen[variant.name]}' if chosen else ''}-seed{seed}"


def _runs(
    ways: Ways, setups: Sequence[Setup], seeds: Sequence[int], chosen: Mapping[str, int]
) -> list[GridRun]:
    """Return the runs of all ways; `chosen` is the number of each variant's setup if there are several."""
    return [
        setups[chosen.get(variant.name, 0)].run_of(_name(variant, seed, chosen), variant, length, seed)
        for seed in seeds
        for variant, length in ways
    ]


def _trained(
    pool: Pool, runs: Sequence[GridRun], overwrite: bool, may_fail: bool = False
) -> dict[str, tuple[str, Result]]:
    """Train runs, equal ones once; return run -> the one that was trained for it, and its result.

    Raises:
        PalmError: a run failed, unless it `may_fail`.
    """
    # A seed cannot cause an error, so one run of each variant is enough.
    check_runs({run.name.rpartition("-seed")[0]: run for run in runs})
    first: dict[str, GridRun] = {}
    same = {run.name: first.setdefault(json.dumps(run.about()), run).name for run in runs}
    pool.grid.check(first.values(), overwrite)
    results: dict[str, Result] = {}
    progress = GridProgress({run.name: run.steps for run in first.values()})

    def done(run: GridRun, result: Result, is_old: bool) -> None:
        if result["state"] != "done" and not may_fail:
            raise PalmError(f"run {run.name} has no result to compare: {result['why']}")
        shown = [result["why"]] if result["why"] else []
        for task, scored in result["test"].items():
            name, value = next(iter(scored["scores"].items()))
            shown.append(f"{task} {name} {'–' if value is None else f'{value:.4f}'}")
        progress.report(run.name, result, is_old, ", ".join(shown))
        results[run.name] = result

    pool.train(first.values(), done)
    return {name: (trained, results[trained]) for name, trained in same.items()}


def _outcome(
    setup: Setup,
    ways: Ways,
    equal: str,
    results: Mapping[str, tuple[str, Result]],
    seeds: Sequence[int],
    chosen: Mapping[str, int],
    grid: Grid,
) -> Outcome:
    """Compare the runs' results."""
    own = {variant.name: [results[_name(variant, seed, chosen)] for seed in seeds] for variant, _ in ways}
    rows = {}
    described = {}
    for target, path in setup.tests.items():
        rows[target] = {
            variant.name: [
                read_rows(grid.folder(run) / ROWS / f"{target}.jsonl") for run, _ in own[variant.name]
            ]
            for variant, _ in ways
            if target in variant.tasks
        }
        scored = own[REFERENCE][0][1]["test"][target]
        kind = "best" if scored["model"] == BEST else "last"
        count = len(rows[target][REFERENCE][0])
        described[target] = Scoring(str(path), scored["metric"], count, kind, setup.is_dev(target))
    timed = [
        (variant, length, mean(result["seconds"] for _, result in own[variant.name]))
        for variant, length in ways
    ]
    return outcome_of(timed, rows, described, list(seeds), equal)
