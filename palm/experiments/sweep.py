"""Search for settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palm.config import yaml_text
from palm.config.files import guessed, parse_yaml, read_yaml
from palm.config.run import Document, RunConfig
from palm.controller.resolve import edited_document
from palm.core.component import count_problems, raise_any, type_problems
from palm.core.errors import ConfigError, PalmError
from palm.core.io import check_not_read, write_json, write_text
from palm.core.layers import generator
from palm.core.logging import Printed, collected_warnings, show_on_console, shown_score
from palm.experiments.grid import GridRun, Pool, Result, Source, devices_of

Values = dict[str, Any]
"""Setting -> its value; `intent.batch_size` is a setting of one task."""


@dataclass(frozen=True)
class Range:
    """A range of values, or of integers if both ends are integers.

    Args:
        low: the least value.
        high: the largest value.
        log: sample on a logarithmic scale.
    """

    low: float
    high: float
    log: bool = False

    def problem(self) -> str | None:
        """Describe what is wrong with the limits, if anything is."""
        numbers = [self.low, self.high]
        if not all(type(each) in (int, float) and math.isfinite(each) for each in numbers):
            return f"low and high should be numbers, not {numbers}"
        if self.low >= self.high or (self.log and self.low <= 0):
            return f"low should be below high, and with log above 0; not {numbers}"
        return None


Space = Mapping[str, Sequence[Any] | Range]
"""Setting -> its values, in the order in which a grid tries them, or a range."""


def space_of(given: Mapping[str, Any]) -> Space:
    """Check a search space: setting -> a list of values, or `{low: …, high: …, log: …}`.

    Raises:
        ConfigError: values are neither; all problems in one report.
    """
    raise_any(type_problems(Mapping, "a mapping from settings to values", space=given))
    found: dict[str, Sequence[Any] | Range] = {}
    problems = [] if given else ["sweep: nothing to vary; name settings with --grid or --space"]
    for name, value in given.items():
        if isinstance(value, (list, tuple)) and value:
            found[name] = [guessed(each) for each in value]
        elif isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
            limits = Range(**{key: guessed(each) for key, each in value.items()})
            found[name] = limits
            if (problem := limits.problem()) is not None:
                problems.append(f"sweep: {name}: {problem}")
        else:
            expected = "a list of values, or low and high (and log)"
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


def sampled_points(space: Space, count: int, seed: int) -> list[Values]:
    """Draw points at random; the first ones do not depend on `count`, so that a later call adds trials.

    Source: Bergstra and Bengio, 2012, "Random search for hyper-parameter optimization".
    """
    return [
        {name: _sampled(values, generator(seed, "sweep", number, name)) for name, values in space.items()}
        for number in range(count)
    ]


def _sampled(values: Sequence[Any] | Range, draws: np.random.Generator) -> Any:
    if not isinstance(values, Range):
        return values[int(draws.integers(len(values)))]
    if values.log:
        value = math.exp(draws.uniform(math.log(values.low), math.log(values.high)))
    else:
        value = draws.uniform(values.low, values.high)
    return round(value) if isinstance(values.low, int) and isinstance(values.high, int) else value


SWEEP_JSON = "sweep.json"
BEST_CONFIG = "best.yaml"


@dataclass(frozen=True)
class Trial:
    """A point and its result.

    Args:
        run: its folder under `runs`.
        values: setting -> value.
        result: its scores, or why it failed.
    """

    run: str
    values: Mapping[str, Any]
    result: Result

    @property
    def score(self) -> float:
        """The best mean dev score, at most 1; minus infinity if there is none."""
        score = self.result["score"]
        return -math.inf if score is None else score


@dataclass(frozen=True)
class Sweep(Printed):
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
        return [each.run for each in self.trials if each.score == self.best.score and each is not self.best]

    def parts(self) -> list[str | list[list[str]]]:
        """Return the table of the trials, and the best one."""
        names = list(self.best.values)
        rows = [["run", *names, "dev score", "at step", "state"]]
        for trial in sorted(self.trials, key=lambda each: -each.score):
            result = trial.result
            state = f"{result['state']}: {result['why']}" if result["why"] else result["state"]
            values = [str(trial.values[name]) for name in names]
            rows.append([trial.run, *values, shown_score(result["score"]), str(result["step"]), state])
        equal = f" (equal: {', '.join(self.ties)})" if self.ties else ""
        return [rows, f"best: {self.best.run}{equal}; train it: palm train {self.best_config}"]


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

    A run's score is the mean over targets of their first metric at its best evaluation. The
    same call resumes a killed sweep, and adds trials. The result is also written to the folder.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        space: setting -> a list of values, or `{"low": …, "high": …, "log": …}`; settings of one
            task are called `task.setting`.
        task_dir: the folder of the task files.
        trials: number of combinations that are drawn at random; by default all are tried.
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
    searched = _searched(space, trials)
    source = Source(config, task_dir, argv)
    first = source.edited(first_point(searched))
    raise_any(_problems(first))
    seed = first.settings.random_seed
    points = grid_points(searched) if trials is None else sampled_points(searched, trials, seed)
    with source.grid("sweep", [first], output, keep_models, workers, pool) as grid:
        check_not_read(grid.path / BEST_CONFIG, [source.config])
        # All configurations are made before the first run, so that all errors are reported.
        runs = [GridRun(f"{k:04d}", _document(source, point)) for k, point in enumerate(points)]
        grid.check(runs, overwrite)
        found = {run.name: result for run, result in grid.train(runs)}
        tried = zip(runs, points, strict=True)
        return _written(grid.path, [Trial(run.name, point, found[run.name]) for run, point in tried], source)


def _searched(space: Mapping[str, Any], trials: int | None) -> Space:
    searched = space_of(space)
    raise_any([] if trials is None else count_problems(trials=trials))
    if "save_path" in searched:
        raise ConfigError("sweep: save_path cannot vary; each run has its own folder under --output")
    return searched


def _problems(run: RunConfig) -> Iterator[str]:
    if run.settings.stages:
        yield (
            "stages: a sweep compares single runs by their best dev score, and stages are several runs; "
            "remove them, and search the settings of one stage: give its task_instance, and for a later "
            "stage start_from: <save_path>/stages/<the one before>/weights"
        )
    if not any(task.settings.is_evaluated for task in run.tasks):
        yield "a sweep needs dev scores, but no task has a dev_file; set dev_file for a target"


def _document(source: Source, point: Mapping[str, Any], **changes: Any) -> Document:
    """Return the configuration of the run with these settings."""
    with collected_warnings(shown=False):  # each run logs its own
        run = source.edited(point)
    more = {"num_devices": devices_of(run.settings), "effort": None, **changes}
    return edited_document(run, more)


def _written(folder: Path, trials: Sequence[Trial], source: Source) -> Sweep:
    best = max(trials, key=lambda trial: trial.score)
    step = best.result["step"]
    score = best.result["score"]
    if score is None:
        why = best.result["why"] or best.result["state"]
        raise PalmError(f"no run under {folder} has a dev score: {why}")
    settings = _document(source, best.values, save_path=str((folder / "best").absolute()))
    found = Sweep(trials, best, folder / BEST_CONFIG)
    equal = f"; equally good: {', '.join(found.ties)}" if found.ties else ""
    head = f"# The best of {len(trials)} runs of a sweep: dev score {score:.4f} at step {step}{equal}"
    write_text(found.best_config, f"{head}\n{yaml_text(settings)}")
    whole = {"best": best.run, "ties": found.ties, "trials": list(map(asdict, trials))}
    write_json(folder / SWEEP_JSON, whole)
    return found
