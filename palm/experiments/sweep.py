"""Search for settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palm.config import yaml_text
from palm.config.files import guessed, parse_yaml, read_yaml
from palm.config.run import Document, RunConfig
from palm.config.settings import RunSettings
from palm.controller.resolve import edited_document
from palm.core.component import count_problems, raise_any, type_problems
from palm.core.errors import ConfigError, PalmError
from palm.core.io import check_not_read, write_json, write_text
from palm.core.logging import aligned, set_verbosity, show_on_console
from palm.experiments.grid import (
    Grid,
    GridRun,
    Pool,
    Result,
    Source,
    best_of,
    data_checksums,
    devices_of,
    folder_of,
    word_of,
)
from palm.train.folder import only_run_in

Values = dict[str, Any]
"""Setting -> its value; `intent.batch_size` is a setting of one task."""


@dataclass(frozen=True)
class Range:
    """A range of values, or of integers if both ends are integers.

    Args:
        low: the least value.
        high: the largest value.
        log: sample on a logarithmic scale.
        step: between values; None for a continuous range.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def problem(self) -> str | None:
        """Describe what is wrong with the limits, if anything is."""
        numbers = [self.low, self.high] if self.step is None else [self.low, self.high, self.step]
        if not all(type(each) in (int, float) and math.isfinite(each) for each in numbers):
            return f"low, high and step should be numbers, not {numbers}"
        if self.low >= self.high or (self.step is not None and self.step <= 0):
            return f"low should be below high, and step above 0; not {numbers}"
        if self.log and (self.low <= 0 or self.step is not None):
            return "log needs low above 0 and no step"
        return None


Space = Mapping[str, Sequence[Any] | Range]
"""Setting -> its values, in the order in which a grid tries them, or a range."""


def space_of(given: Mapping[str, Any]) -> Space:
    """Check a search space: setting -> a list of values, or `{low: …, high: …, log: …, step: …}`.

    Raises:
        ConfigError: values are neither; all problems in one report.
    """
    raise_any(type_problems(Mapping, "a mapping from settings to values", space=given))
    found: dict[str, Sequence[Any] | Range] = {}
    problems = [] if given else ["sweep: nothing to vary; name settings with --grid or --space"]
    for name, value in given.items():
        if isinstance(value, (list, tuple)) and value:
            found[name] = [guessed(each) for each in value]
        elif isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= {"low", "high", "log", "step"}:
            limits = Range(**{key: guessed(each) for key, each in value.items()})
            found[name] = limits
            if (problem := limits.problem()) is not None:
                problems.append(f"sweep: {name}: {problem}")
        else:
            expected = "a list of values, or low and high (and log, step)"
            problems.append(f"sweep: {name} should be {expected}, not {value!r}")
    raise_any(problems)
    return found


def read_space(path: Path) -> dict[str, Any]:
    """Read a search space from a YAML file.

    Raises:
        ConfigError: it cannot be read.
    """
    problems: list[str] = []
    content = read_yaml(path, problems)
    raise_any(problems)
    return dict(content)


def grid_words(words: Iterable[str], option: str = "--grid") -> dict[str, Any]:
    """Parse `NAME=V1,V2`, the values of a command-line option.

    Raises:
        ConfigError: a word has another form.
    """
    found = {}
    for word in words:
        name, _, rest = word.partition("=")
        found[name] = parse_yaml(f"[{rest}]") if name and rest else None
        if not found[name]:
            raise ConfigError(f"{option} should be NAME=VALUE,VALUE..., not {word!r}")
    return found


def grid_points(space: Space) -> list[Values]:
    """List all combinations of values; the last setting changes fastest.

    Raises:
        ConfigError: the space has a range.
    """
    lists = []
    for name, values in space.items():
        if isinstance(values, Range):
            raise ConfigError(
                f"sweep: {name} is a range, which needs --trials N; a grid needs a list of values"
            )
        lists.append(values)
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*lists)]


def first_point(space: Space) -> Values:
    """Return the first value of every setting."""
    return {name: each.low if isinstance(each, Range) else each[0] for name, each in space.items()}


class Study:
    """The trials of a sweep, chosen in memory by Optuna's tree-structured Parzen estimator.

    Args:
        space: the search space.
        seed: of the choices; every trial has its own, so a resumed study makes the same choices as an
            uninterrupted one.

    Raises:
        PalmError: optuna is missing.
    """

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise PalmError("a sweep with --trials needs optuna: pip install 'palm-torch[sweep]'") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._space = space
        self._seed = seed
        self._study = optuna.create_study(direction="maximize")

    def next_point(self, known: Values | None) -> Values:
        """Return the point of the next trial: the known one, if the trial was begun before."""
        if known is not None:
            self._study.enqueue_trial(known)
        # Every trial has its own sampler, seeded by its number: the state of a shared one would depend on
        # the number of calls, which is different after a kill.
        self._study.sampler = self._optuna.samplers.TPESampler(seed=self._seed + len(self._study.trials))
        trial = self._study.ask()
        return {name: _suggested(trial, name, values) for name, values in self._space.items()}

    def tell(self, number: int, score: float | None) -> None:
        """Report the score of a trial; None if it failed."""
        self._study.tell(number, score, state=self._optuna.trial.TrialState.FAIL if score is None else None)


def _suggested(trial: Any, name: str, values: Sequence[Any] | Range) -> Any:
    if not isinstance(values, Range):
        # Optuna does not accept lists; as words of the command line they mean the same.
        return trial.suggest_categorical(
            name, [word_of(value) if isinstance(value, list) else value for value in values]
        )
    if isinstance(values.low, int) and isinstance(values.high, int):
        step = int(values.step or 1)
        return trial.suggest_int(name, values.low, values.high, step=step, log=values.log)
    return trial.suggest_float(name, values.low, values.high, step=values.step, log=values.log)


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

    @classmethod
    def of(cls, run: GridRun, result: Result) -> Trial:
        """Create it from a finished run."""
        step, score = best_of(result)
        seconds = result["seconds"] or None
        return cls(run.name, run.point, result["state"], score, step, seconds, result["why"])

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        score = "no dev score" if self.score is None else f"dev score {self.score:.4f}"
        return f"{values}: {self.why or score}"


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

    @property
    def ties(self) -> list[str]:
        """The other runs with the score of the best one, which is the first of them."""
        return [
            trial.run for trial in self.trials if trial.score == self.best.score and trial is not self.best
        ]

    def __str__(self) -> str:
        names = list(self.best.values)
        rows = [["run", *names, "dev score", "at step", "state"]]
        for trial in sorted(self.trials, key=lambda each: math.inf if each.score is None else -each.score):
            score = "" if trial.score is None else f"{trial.score:.4f}"
            state = f"{trial.state}: {trial.why}" if trial.why else trial.state
            values = [str(trial.values[name]) for name in names]
            rows.append([trial.run, *values, score, str(trial.step), state])
        best = f"{self.best.run} (equal: {', '.join(self.ties)})" if self.ties else self.best.run
        return "\n".join([*aligned(rows), f"best: {best}; train it: palm train {self.best_config}"])


def sweep(
    config: str | Path | Mapping[str, Any],
    space: Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    trials: int | None = None,
    workers: int | None = None,
    pool: Pool | None = None,
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
        pool: where the runs are trained: this machine, or a Ray cluster (`palm.ray.Pool()`).
        output: the folder; by default `<save_path>_sweep`.
        overwrite: put the runs of another sweep in the folder aside.
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
    first = source.edited(first_point(found))
    settings = _checked(first)
    with only_run_in(folder := folder_of(first.folder, "sweep", output)):
        check_not_read(folder / BEST_CONFIG, [source.config])
        pool = pool or Pool()
        slots = pool.slots(workers, settings.use_gpu, devices_of(settings))
        grid = Grid(folder, data_checksums([first]), keep_models, source.command("sweep"), slots, pool)
        if trials is None:
            tried = _all_tried(grid, source, found, overwrite)
        else:
            tried = _chosen(grid, source, Study(found, settings.random_seed), trials, overwrite)
        return _written(folder, tried, source)


def _checked(run: RunConfig) -> RunSettings:
    found = run.settings
    set_verbosity(found.quiet, found.verbose)
    if found.stages:
        raise ConfigError(
            "stages: a sweep compares single runs by their best dev score, and stages are several runs; "
            "remove them, and search the settings of one stage: give its task_instance, and for a later "
            "stage start_from: <save_path>/stages/<the one before>/weights"
        )
    if not any(task.settings.is_evaluated for task in run.tasks):
        raise ConfigError("a sweep needs dev scores, but no task has a dev_file; set dev_file for a target")
    return found


def _document(source: Source, point: Mapping[str, Any], **changes: Any) -> Document:
    """Return the configuration of the run with these settings."""
    run = source.edited(point)
    more = {"num_devices": devices_of(run.settings), "effort": None, **changes}
    return edited_document(run, more)


def _all_tried(grid: Grid, source: Source, space: Space, overwrite: bool) -> list[Trial]:
    """Train a run for every point of a grid."""
    # All configurations are made before the first run, so that all errors are reported.
    runs = [_run(source, _name(number), point) for number, point in enumerate(grid_points(space))]
    grid.check(runs, overwrite)
    trials = {run.name: Trial.of(run, result) for run, result in grid.train(runs, len(runs))}
    return [trials[name] for name in sorted(trials)]


def _chosen(grid: Grid, source: Source, study: Study, trials: int, overwrite: bool) -> list[Trial]:
    """Train runs whose points a study chooses by the scores of earlier ones."""
    jobs = {name: job for name in map(_name, range(trials)) if (job := grid.job(name)) is not None}
    grid.check((_run(source, name, dict(job["point"])) for name, job in jobs.items()), overwrite)

    def runs() -> Iterator[GridRun]:
        for name in map(_name, range(trials)):
            # A trial that was begun has its point on disk; it is passed to Optuna before the next choice.
            job = grid.job(name)
            yield _run(source, name, study.next_point(None if job is None else dict(job["point"])))

    found = {}
    for run, result in grid.train(runs(), trials):
        trial = found[run.name] = Trial.of(run, result)
        study.tell(int(run.name), trial.score if trial.state == "done" else None)
    return [found[name] for name in sorted(found)]


def _run(source: Source, name: str, point: Values) -> GridRun:
    return GridRun(name, _document(source, point), point=point)


def _name(number: int) -> str:
    return f"{number:04d}"


def _written(folder: Path, trials: Sequence[Trial], source: Source) -> Sweep:
    whole = [trial for trial in trials if trial.state == "done" and trial.score is not None]
    if not whole:
        raise PalmError(f"no run under {folder} has a dev score: {trials[0].why or trials[0].state}")
    best = max(whole, key=lambda trial: trial.score or 0.0)
    settings = _document(source, best.values, save_path=str((folder / "best").absolute()))
    found = Sweep(trials, best, folder / BEST_CONFIG)
    ties = f"; equally good: {', '.join(found.ties)}" if found.ties else ""
    head = f"# The best of {len(trials)} runs of a sweep: {best} at step {best.step}{ties}"
    write_text(folder / BEST_CONFIG, f"{head}\n{yaml_text(settings)}")
    write_json(
        folder / SWEEP_JSON, {"best": best.run, "ties": found.ties, "trials": list(map(asdict, trials))}
    )
    return found
