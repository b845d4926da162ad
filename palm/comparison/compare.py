"""`palm compare`: the tasks of a configuration alone, together, and without each auxiliary, over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from palm.comparison.outcome import Outcome, Scoring, outcome_of, read_rows
from palm.comparison.variants import Budget, Length, Variant, lengths_of, variants_of
from palm.config import Config
from palm.controller.build import build
from palm.controller.plan import Plan, plan
from palm.controller.program import configured
from palm.controller.settings import RunSettings
from palm.core.checks import choice_problems, count_problems, raise_any
from palm.core.checksum import checksum
from palm.core.errors import ConfigError, PalmError
from palm.core.logging import logger, set_verbosity, show_on_console
from palm.core.storage import write_json, write_text
from palm.engine.run_lock import only_run_in
from palm.grid.document import Document, document
from palm.grid.folder import ROWS, Grid, GridRun
from palm.grid.pool import Pool, Progress, Result, slots_of
from palm.mixing import TaskProgress
from palm.reader.rows.cache import DataCache

OUTCOME, TABLE, PICTURE = "compare.json", "compare.txt", "compare.png"

NO_RESULT = (
    *("save_path", "resume", "overwrite", "progress", "quiet", "verbose", "print_every_n_steps", "trackers"),
    *("data_cache", "use_data_cache", "save_every_n_steps", "save_infermodel_every_n_steps", "keep_last_n"),
)
"""Settings that change nothing in what a run learns; others begin another grid."""


def compare(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    seeds: int = 5,
    budget: Budget = "target",
    test: Mapping[str, str | Path] | None = None,
    model: str | None = None,
    workers: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    keep_models: bool = False,
    argv: Sequence[str] = (),
) -> Outcome:
    """Train every target alone, all tasks together, and without each auxiliary, and say what helps what.

    Every run is a process of its own with a folder of its own. Started again after a kill, it goes on; with
    more seeds, it trains what is missing.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files.
        seeds: runs of every variant; 2 or more, seeds count up from `random_seed`.
        budget: what is equal in all variants: `target`, the steps of each target, or `total`, the steps of
            all tasks together.
        test: target -> the file with labels that it is compared on; its `dev_file` where absent.
        model: which model is scored: `best` on dev data, or `last`; where absent, `best` if all targets have
            a test file beside their dev_file, else `last`, since the best of many looks at the same
            rows would flatter whoever looked more often.
        workers: runs at a time; one on every visible GPU, or one on a CPU, where absent.
        output: the folder; `<save_path>_compare` where absent.
        overwrite: remove the runs of another comparison there.
        keep_models: keep the models and checkpoints of scored runs.
        argv: command-line arguments that override settings.

    Returns:
        What was found; also in `compare.json` and `compare.txt` of the folder, and as a picture in
        `compare.png` where matplotlib is installed.

    Raises:
        ConfigError: everything that is wrong with the configuration, in one report.
        StorageError: the folder holds another comparison; says what differs.
        PalmError: a run failed; what is done stays done.
    """
    show_on_console()
    raise_any([*count_problems(2, seeds=seeds), *choice_problems(get_args(Budget), budget=budget)])
    given = configured(config, task_dir, list(argv), for_train=True, needs_tasks=True)
    planned = plan(given, for_train=True)
    settings = RunSettings(**planned.settings)
    set_verbosity(settings.quiet, settings.verbose)
    targets = dict(zip(given.tasks, settings.target_tag or [1] * len(given.tasks), strict=True))
    tests = _test_files(planned, [name for name, tag in targets.items() if tag], test or {})
    is_apart = all(path != _dev_file(planned, name) for name, path in tests.items())
    model = model or ("best" if is_apart else "last")
    raise_any(choice_problems(("best", "last"), model=model))
    if len(given.tasks) == 1:
        raise ConfigError(["task_instance names one task; a comparison needs a second one to train it with"])
    folder = (
        Path(output)
        if output is not None
        else settings.save_path.with_name(f"{settings.save_path.name}_compare")
    )
    grid = Grid(folder)
    with only_run_in(folder):
        about = {
            "budget": budget,
            "model": model,
            "test": {name: str(path.absolute()) for name, path in tests.items()},
            "settings": _that_count(document(given, planned, given.tasks)),
            "data": {str(path): checksum(path)[:32] for path in _files(planned, tests)},
        }
        grid.open("compare", about, overwrite)
        variants = variants_of({name: bool(tag) for name, tag in targets.items()})
        tasks, mixing = _progress(planned, given, settings)
        lengths = lengths_of(variants, mixing, tasks, settings.num_epochs, budget)
        equal = _equal(budget, variants, lengths, list(tests), settings.early_stopping_patience > 0)
        logger.info("%s", equal)
        chosen = range(settings.random_seed, settings.random_seed + seeds)
        alike = {"num_devices": 1} if settings.num_devices == "auto" else {}
        runs = [
            GridRun(
                f"{variant.name}-seed{seed}",
                document(
                    *(given, planned, variant.tasks),
                    **{"num_epochs": length.num_epochs, "random_seed": seed, **alike, **variant.changes},
                ),
                length.total,
                {name: str(path.absolute()) for name, path in tests.items() if name in variant.tasks},
                model,
            )
            for seed in chosen
            for variant, length in zip(variants, lengths, strict=True)
        ]
        results = _trained(grid, runs, config, slots_of(workers, settings.use_gpu), keep_models)
        found = _outcome(
            grid, list(zip(variants, lengths, strict=True)), results, tests, chosen, planned, budget, equal
        )
        _write(folder, found)
    return found


def _test_files(plan: Plan, targets: Sequence[str], given: Mapping[str, str | Path]) -> dict[str, Path]:
    """Target -> the file that it is compared on.

    Raises:
        ConfigError: a target has none, or one is named for what is no target.
    """
    problems = [
        f"test: {name!r} is no target; there are {', '.join(targets)}"
        for name in given
        if name not in targets
    ]
    found = {}
    for name in targets:
        path = Path(given[name]) if name in given else _dev_file(plan, name)
        if path is None:
            problems.append(
                f"task {name!r} has no test file and no dev_file; name one with --test {name}=FILE"
            )
        elif not path.is_file():
            problems.append(f"test: no such file: {path}, for task {name!r}")
        else:
            found[name] = path
    raise_any(problems)
    return found


def _dev_file(plan: Plan, task: str) -> Path | None:
    return next(each.task.get("dev_file") for each in plan.tasks if each.name == task)


def _files(plan: Plan, tests: Mapping[str, Path]) -> list[Path]:
    """Every data file that the runs read."""
    named = (each.task.get(name) for each in plan.tasks for name in ("train_file", "dev_file"))
    return sorted({path.absolute() for path in (*named, *tests.values()) if path is not None})


def _that_count(settings: Document) -> dict[str, Any]:
    kept = {name: value for name, value in settings["global"].items() if name not in NO_RESULT}
    unread = ("pred_file", "pred_output_path", "pred_batch_size", "print_first_n")
    tasks = {
        task: {name: value for name, value in own.items() if name not in unread}
        for task, own in settings["tasks"].items()
    }
    return {**kept, "tasks": tasks, "backbone": settings["backbone"]}


def _progress(plan: Plan, config: Config, settings: RunSettings) -> tuple[list[TaskProgress], Any]:
    """Where all tasks stand before the first step, once their data is encoded, and how they take turns.

    So the data is in the cache before the first run asks for it.
    """
    parts = build(plan, config.place)
    cache = None
    if settings.use_data_cache:
        cache = DataCache(settings.data_cache) if settings.data_cache else DataCache.of_user()
    for task in parts.tasks:
        task.open_stream(settings.random_seed, cache=cache)
    return [task.progress() for task in parts.tasks], parts.mixing


def _equal(
    budget: Budget,
    variants: Sequence[Variant],
    lengths: Sequence[Length],
    targets: Sequence[str],
    stops: bool,
) -> str:
    """What is equal in all variants, in words and numbers."""
    each = ", ".join(f"{name} {lengths[0].steps[name]}" for name in targets)
    totals = ", ".join(
        f"{variant.name} {length.total}" for variant, length in zip(variants, lengths, strict=True)
    )
    late = "; early stopping is on, so these are the most that a run has" if stops else ""
    if budget == "target":
        return f"Equal target steps: {each} in every variant; in total: {totals}{late}."
    own = "; ".join(
        f"{variant.name}: {', '.join(f'{name} {steps}' for name, steps in length.steps.items())}"
        for variant, length in zip(variants, lengths, strict=True)
    )
    return f"Equal total steps, but for rounding: {totals}. Of tasks: {own}{late}."


def _trained(
    grid: Grid,
    runs: Sequence[GridRun],
    config: str | Path | Mapping[str, Any],
    slots: Sequence[Mapping[str, str]],
    keep_models: bool,
) -> dict[str, Result]:
    """Run -> its result, of all runs."""
    results: dict[str, Result] = {}
    progress = Progress({run.name: run.steps for run in runs})

    def done(run: GridRun, result: Result, is_old: bool) -> None:
        if result["state"] != "done":
            raise PalmError(f"the run {run.name} has no result to compare: {result.get('why')}")
        shown = ", ".join(f"{task} {_score(each)}" for task, each in result["test"].items())
        progress.tell(run.name, result, is_old, shown)
        results[run.name] = result

    home = [] if isinstance(config, Mapping) else ["--of", str(config)]
    Pool(grid, ["compare", "--one_run", *home], slots, keep_models).train(runs, done)
    return results


def _score(scored: Mapping[str, Any]) -> str:
    name, value = next(iter(scored["scores"].items()))
    return f"{name} {'–' if value is None else f'{value:.4f}'}"


def _outcome(
    grid: Grid,
    variants: Sequence[tuple[Variant, Length]],
    results: Mapping[str, Result],
    tests: Mapping[str, Path],
    seeds: Sequence[int],
    plan: Plan,
    budget: Budget,
    equal: str,
) -> Outcome:
    rows = {
        target: {
            variant.name: [
                read_rows(grid.folder(f"{variant.name}-seed{seed}") / ROWS / f"{target}.jsonl")
                for seed in seeds
            ]
            for variant, _ in variants
            if target in variant.tasks
        }
        for target in tests
    }
    described = {}
    for target, path in tests.items():
        first = results[f"{variants[0][0].name}-seed{seeds[0]}"]["test"][target]
        number = len(rows[target][variants[0][0].name][0])
        kind = "best" if first["model"].startswith("best") else "last"
        described[target] = Scoring(str(path), first["metric"], number, kind, path == _dev_file(plan, target))
    seconds = {
        variant.name: float(np.mean([results[f"{variant.name}-seed{seed}"]["seconds"] for seed in seeds]))
        for variant, _ in variants
    }
    timed = [(variant, length, seconds[variant.name]) for variant, length in variants]
    return outcome_of(timed, rows, described, list(seeds), budget, equal)


def _write(folder: Path, found: Outcome) -> None:
    """The outcome as JSON, as text, and as a picture if there is matplotlib."""
    write_json(folder / OUTCOME, found.as_json())
    write_text(folder / TABLE, f"{found}\n")
    from palm.report.comparison_plot import plot_comparison

    try:
        plot_comparison(found.as_json()).savefig(folder / PICTURE, dpi=150)
    except PalmError as error:
        logger.info("no picture: %s", error)
