"""`palm compare`: train tasks alone, together, and without each auxiliary, over several seeds."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from palm.core.checks import choice_problems, count_problems, raise_any
from palm.core.errors import PalmError
from palm.core.io import write_json, write_text
from palm.core.logging import logger, set_verbosity, show_on_console
from palm.experiments.comparison.outcome import Outcome, Scoring, outcome_of, read_rows
from palm.experiments.comparison.setup import Setup, check_runs, dev_file_of, setup_of
from palm.experiments.comparison.statistics import smallest_differences
from palm.experiments.comparison.variants import REFERENCE, Length, Variant
from palm.experiments.grid.folder import ROWS, Grid, GridRun, Result, best_of
from palm.experiments.grid.pool import GridProgress, Pool
from palm.experiments.grid.source import Source, folder_of
from palm.experiments.search.space import grid_points, space_of
from palm.train.folder import only_run_in
from palm.train.model_paths import BEST

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
