"""`palm compare`: train tasks alone, together, and without each auxiliary, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from palm.core.checks import choice_problems, count_problems, raise_any
from palm.core.errors import PalmError
from palm.core.files.fs import check_replaceable, write_json, write_text
from palm.core.files.untrusted import read_object
from palm.core.logging import logger, set_verbosity, show_on_console
from palm.experiments.comparison.outcome import Outcome, Scoring, outcome_of, read_rows
from palm.experiments.comparison.setup import Setup, setup_of
from palm.experiments.comparison.statistics import smallest_differences
from palm.experiments.comparison.tuning import UPDATES, Point, describe_tuning, tuned, tuning_problems
from palm.experiments.comparison.variants import REFERENCE, Budget, Length, Variant
from palm.experiments.grid.folder import ROWS, Grid, GridRun, Result
from palm.experiments.grid.pool import GridProgress, Pool
from palm.experiments.grid.source import Source, folder_of
from palm.experiments.search.space import grid_points, space_of
from palm.train.model_paths import BEST
from palm.train.run_lock import only_run_in

COMPARE_JSON = "compare.json"
COMPARE_TABLE = "compare.txt"


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
    also: Mapping[str, Mapping[str, Any]] | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    argv: Sequence[str] = (),
) -> Outcome:
    """Train every target alone, all tasks together, and all but each auxiliary; find which tasks help.

    Every run is a process with its own folder. The same call resumes a killed comparison, and with more seeds
    adds the missing runs. The result is also written to `compare.json` and `compare.txt`.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files.
        seeds: number of runs of every variant, at least 2; seeds count up from `random_seed`.
        budget: what is equal in all variants: `target`, the steps of each target, or `total`, the steps of
            all tasks together.
        test: target -> the file with labels to compare it on; by default its `dev_file`.
        model: the model to score, `best` on dev data or `last`. By default `best` if all targets have a test
            file other than their dev_file, else `last`: the best of many on the same rows looks too good.
        workers: runs at a time; by default one on every visible GPU, or one on a CPU.
        output: the folder; by default `<save_path>_compare`.
        overwrite: remove the runs of another comparison from the folder.
        keep_models: keep the models and checkpoints of scored runs.
        also: name -> settings of another variant with all tasks.
        tune: setting -> values. Every way is trained with all combinations, and compared with the one that
            is best on its dev data. `updates` is a factor of the updates of each way.
        argv: command-line arguments that override settings.

    Raises:
        ConfigError: the configuration has errors; all of them in one report.
        StorageError: the folder contains another comparison; with the differences.
        PalmError: a run failed; finished runs are kept.
    """
    show_on_console()
    source = Source(config, task_dir, argv)
    setup, points = _checked(source, seeds, budget, test or {}, model, also or {}, tune or {})
    with only_run_in(folder := folder_of(setup.settings.save_path, "compare", output)):
        pool = source.pool(Grid(folder), "compare", workers, setup.settings, keep_models)
        return _compared(setup, points, pool, seeds, overwrite)


def _checked(
    source: Source,
    seeds: int,
    budget: Budget,
    test: Mapping[str, str | Path],
    model: str | None,
    also: Mapping[str, Mapping[str, Any]],
    tune: Mapping[str, Sequence[Any]],
) -> tuple[Setup, list[Point]]:
    raise_any(
        [
            *count_problems(2, seeds=seeds),
            *choice_problems(get_args(Budget), budget=budget),
            *choice_problems(("best", "last"), model=model or "best"),
        ]
    )

    def at(values: Mapping[str, Any]) -> Setup:
        own = {name: value for name, value in values.items() if name != UPDATES}
        # Stages of the configuration already are a variant.
        others = {name: source.at({"stages": None, **changes, **own}) for name, changes in also.items()}
        found = setup_of(source.at(own), budget, test, model, others)
        return replace(found, updates=values.get(UPDATES, 1.0))

    setup = at({})
    points = [Point(values, at(values)) for values in (grid_points(space_of(tune)) if tune else ())]
    raise_any(tuning_problems(setup, points) if points else ())
    set_verbosity(setup.settings.quiet, setup.settings.verbose)
    return setup, points


def _compared(
    setup: Setup,
    points: Sequence[Point],
    pool: Pool,
    seeds: int,
    overwrite: bool,
) -> Outcome:
    grid = pool.grid
    for name in (COMPARE_JSON, COMPARE_TABLE):
        check_replaceable(grid.path / name)
    # The seeds are left out, so a comparison with more seeds continues in the same folder.
    tried = {"tune": [dict(point.values) for point in points]} if points else {}
    grid.open("compare", {**setup.about(), **tried}, overwrite, grows=("also", "data"))
    ways = setup.ways()
    logger.info("%s", setup.equal(ways))
    for target, rows in setup.num_rows().items():
        message = "%s: %d seeds and %d rows can show differences above %.0f to %.0f points"
        logger.info(message, target, seeds, rows, *smallest_differences(seeds, rows))
    settings = setup.settings
    chosen = range(settings.random_seed, settings.random_seed + seeds)
    runs = setup.runs(ways, chosen)  # report all errors before the first run
    best = tuned(setup, points, ways, lambda trials: _trained(pool, trials)) if points else {}
    if best:
        runs = setup.runs(ways, chosen, {variant: point.setup for variant, point in best.items()})
    return _outcome(grid, setup, ways, _trained(pool, runs), chosen, describe_tuning(points, best))


def _keep_earlier(folder: Path, found: Outcome) -> None:
    """Copy an earlier result, if it differs from this one, to the first free `compare-N.json`."""
    file = folder / COMPARE_JSON
    if file.is_file() and (earlier := read_object(file)) != found.as_json():
        names = (folder / f"compare-{number}.json" for number in count(1))
        kept = next(name for name in names if not name.exists())
        write_json(kept, earlier)
        logger.info("the earlier result is kept as %s", kept)


def _trained(pool: Pool, runs: Sequence[GridRun]) -> dict[str, Result]:
    """Train all runs; return run -> its result."""
    results: dict[str, Result] = {}
    progress = GridProgress({run.name: run.steps for run in runs})

    def done(run: GridRun, result: Result, is_old: bool) -> None:
        if result["state"] != "done" and run.test:
            raise PalmError(f"run {run.name} has no result to compare: {result['why']}")
        shown = []
        for task, scored in result["test"].items():
            name, value = next(iter(scored["scores"].items()))
            shown.append(f"{task} {name} {'–' if value is None else f'{value:.4f}'}")
        progress.report(run.name, result, is_old, ", ".join(shown))
        results[run.name] = result

    pool.train(runs, done)
    return results


def _outcome(
    grid: Grid,
    setup: Setup,
    ways: Sequence[tuple[Variant, Length]],
    results: Mapping[str, Result],
    seeds: Sequence[int],
    tuning: str,
) -> Outcome:
    """Compare the runs' results; write the outcome as JSON and as text."""
    rows = {}
    described = {}
    for target, path in setup.tests.items():
        rows[target] = {
            variant.name: [
                read_rows(grid.folder(f"{variant.name}-seed{seed}") / ROWS / f"{target}.jsonl")
                for seed in seeds
            ]
            for variant, _ in ways
            if target in variant.tasks
        }
        first = results[f"{REFERENCE}-seed{seeds[0]}"]["test"][target]
        kind = "best" if first["model"] == BEST else "last"
        number = len(rows[target][REFERENCE][0])
        described[target] = Scoring(str(path), first["metric"], number, kind, setup.is_dev(target))
    timed = [
        (variant, length, mean(results[f"{variant.name}-seed{seed}"]["seconds"] for seed in seeds))
        for variant, length in ways
    ]
    found = outcome_of(timed, rows, described, list(seeds), setup.budget, setup.equal(ways) + tuning)
    if tuning:
        verdicts = {
            task: f"{verdict} (each way with its best settings by dev data)"
            for task, verdict in found.verdicts.items()
        }
        found = replace(found, verdicts=verdicts)
    _keep_earlier(grid.path, found)
    write_json(grid.path / COMPARE_JSON, found.as_json())
    write_text(grid.path / COMPARE_TABLE, f"{found}\n")
    return found
