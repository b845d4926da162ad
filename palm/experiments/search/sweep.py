"""`palm sweep`: one run for every point of a grid or trial of Optuna, and the best settings as YAML."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palm.config import Config, yaml_text
from palm.controller.document import data_checksums, document, result_settings
from palm.controller.plan import plan
from palm.controller.settings import RunSettings
from palm.core.checks import count_problems, raise_any
from palm.core.errors import ConfigError, PalmError
from palm.core.files.fs import check_not_read, check_replaceable, remove_written, write_json, write_text
from palm.core.logging import set_verbosity, show_on_console
from palm.core.shown import aligned
from palm.experiments.grid.folder import Grid, GridRun, Result, best_of
from palm.experiments.grid.pool import GridProgress, Pool
from palm.experiments.grid.source import Source, folder_of
from palm.experiments.search.space import Space, first_point, grid_points, json_of_space, space_of
from palm.experiments.search.study import Study
from palm.train.run_lock import only_run_in

SWEEP_JSON = "sweep.json"
BEST_CONFIG = "best.yaml"


@dataclass(frozen=True)
class Trial:
    """A point and its result.

    Args:
        run: its folder under `runs`.
        values: setting -> value.
        state: `done` or `failed`.
        score: the best mean dev score, at most 1; None if there is none.
        step: the global step of that score.
        seconds: duration; None if it failed.
        why: the reason for a failure; empty otherwise.
    """

    run: str
    values: Mapping[str, Any]
    state: str
    score: float | None
    step: int
    seconds: float | None
    why: str = ""


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep; `print` shows it as a table, the best first.

    Args:
        trials: in the order in which they were begun.
        best: the trial with the highest score.
        best_config: a configuration for `palm train` with the best settings.
    """

    trials: Sequence[Trial]
    best: Trial
    best_config: Path

    def __str__(self) -> str:
        names = list(self.best.values)
        rows = [["run", *names, "dev score", "at step", "state"]]
        for trial in sorted(self.trials, key=lambda each: math.inf if each.score is None else -each.score):
            score = "" if trial.score is None else f"{trial.score:.4f}"
            state = f"{trial.state}: {trial.why}" if trial.why else trial.state
            values = [str(trial.values[name]) for name in names]
            rows.append([trial.run, *values, score, str(trial.step), state])
        return "\n".join([*aligned(rows), f"best: {self.best.run}; train it: palm train {self.best_config}"])


def sweep(
    config: str | Path | Mapping[str, Any],
    space: Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    trials: int | None = None,
    workers: int | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    keep_models: bool = False,
    argv: Sequence[str] = (),
) -> Sweep:
    """Train with different settings, and find those with the best dev scores.

    A run's score is the mean over targets (or `best_by`) of their first metric at its best evaluation. The
    same call resumes a killed sweep, and adds trials. The result is also written to the folder.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        space: setting -> a list of values, or `{"low": …, "high": …, "log": …, "step": …}`; settings of one
            task are called `task.setting`.
        task_dir: the folder of the task files.
        trials: number of trials chosen by Optuna; by default all combinations are tried.
        workers: runs at a time; by default one on every visible GPU, or one on a CPU.
        output: the folder; by default `<save_path>_sweep`.
        overwrite: remove the runs of another sweep from the folder.
        keep_models: keep the models and checkpoints of finished runs.
        argv: command-line arguments that override settings.

    Raises:
        ConfigError: the configuration or the space has errors; all of them in one report.
        PalmError: the folder contains another sweep, a run ended with an error, or none has a score.
    """
    show_on_console()
    found = space_of(space)
    raise_any([] if trials is None else count_problems(trials=trials))
    if "save_path" in found:
        raise ConfigError("sweep: save_path cannot vary; each run has its own folder under --output")
    source = Source(config, task_dir, argv)
    settings = _checked(source.at(first_point(found)))
    with only_run_in(folder := folder_of(settings.save_path, "sweep", output)):
        study = _opened(folder, found, source, trials, overwrite)
        pool = source.pool(Grid(folder), "sweep", workers, settings, keep_models)
        return _written(folder, _trained(pool, source, found, study, trials or 0), source)


def _checked(config: Config) -> RunSettings:
    planned = plan(config, for_train=True)
    settings = RunSettings(**planned.settings)
    set_verbosity(settings.quiet, settings.verbose)
    if settings.stages:
        raise ConfigError(NO_STAGES)
    if all(task.task.get("dev_file") is None for task in planned.tasks):
        raise ConfigError("a sweep needs dev scores, but no task has a dev_file; set dev_file for a target")
    return settings


def _document(config: Config) -> dict[str, Any]:
    plan(config, for_train=True)  # records the resolved settings
    whole = config.resolved()
    alike = {"num_devices": 1} if whole["global"].get("num_devices", "auto") == "auto" else {}
    return {**whole, "global": {**whole["global"], **alike}}


NO_STAGES = (
    "stages: a sweep compares single runs by their best dev score, and stages are several runs; remove them, "
    "and search the settings of one stage: give its task_instance, and for a later stage start_from: "
    "<save_path>/stages/<the one before>/weights. Then write the best settings into the stage"
)


def _opened(folder: Path, space: Space, source: Source, trials: int | None, overwrite: bool) -> Study | None:
    """Open the folder; return its study, or None if all points are tried."""
    if trials is None:
        for point in grid_points(space):
            plan(source.at(point), for_train=True)  # report all errors before the first run
    for name in (SWEEP_JSON, BEST_CONFIG):
        check_replaceable(folder / name)
        check_not_read(folder / name, [source.config])
    given = source.at(first_point(space))
    planned = plan(given, for_train=True)
    about = {
        "space": json_of_space(space),
        "by": "grid" if trials is None else "optuna",
        "settings": result_settings(document(given, planned, given.tasks)),
        "data": data_checksums([planned]),
    }
    if Grid(folder).open("sweep", about, overwrite):
        for name in (SWEEP_JSON, BEST_CONFIG):
            remove_written(folder / name)
    return None if trials is None else Study(space, planned.settings.get("random_seed", 1))


def _trained(pool: Pool, source: Source, space: Space, study: Study | None, trials: int) -> list[Trial]:
    """Train a run for every point of a grid, or every trial of a study."""
    points = [] if study is not None else grid_points(space)
    names = [f"{k:04d}" for k in range(trials or len(points))]
    progress = GridProgress(dict.fromkeys(names, 1))
    found: dict[str, Trial] = {}

    def runs() -> Iterator[GridRun]:
        for number, name in enumerate(names):
            # A trial that was begun has its point on disk; it is passed to Optuna before the next choice.
            job = pool.grid.job(name)
            known = None if job is None else dict(job["point"])
            point = points[number] if study is None else study.next_point(known)
            yield GridRun(name, _document(source.at(point)), point=point)

    def done(run: GridRun, result: Result, is_old: bool) -> None:
        step, score = best_of(result)
        if study is not None:
            study.tell(int(run.name), score if result["state"] == "done" else None)
        label = _label(run.point)
        shown = result["why"] or ("no dev score" if score is None else f"dev score {score:.4f}")
        progress.report(run.name, result, is_old, f"{label}: {shown}")
        seconds = result["seconds"] or None
        found[run.name] = Trial(run.name, run.point, result["state"], score, step, seconds, result["why"])

    pool.train(runs(), done)
    return [found[name] for name in sorted(found)]


def _label(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in point.items())


def _written(folder: Path, trials: Sequence[Trial], source: Source) -> Sweep:
    whole = [trial for trial in trials if trial.state == "done" and trial.score is not None]
    if not whole:
        raise PalmError(f"no run under {folder} has a dev score: {trials[0].why or trials[0].state}")
    best = max(whole, key=lambda trial: trial.score or 0.0)
    document = _document(source.at(best.values))
    document["global"]["save_path"] = str((folder / "best").absolute())
    label = f"{_label(best.values)}; dev score {best.score:.4f} at step {best.step}"
    head = f"# The best of {len(trials)} runs of a sweep: {label}"
    write_text(folder / BEST_CONFIG, f"{head}\n{yaml_text(document)}")
    found = Sweep(trials, best, folder / BEST_CONFIG)
    write_json(folder / SWEEP_JSON, {"best": best.run, "trials": list(map(asdict, trials))})
    return found
