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
from palm.config.files import guessed, parse_yaml
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


Space = Mapping[str, Sequence[Any]]
"""Setting -> its values, in the order in which they are tried."""

RANGE = frozenset(("low", "high", "log"))
STEPS = 20
"""Number of values of a range."""


def space_of(given: Mapping[str, Any]) -> Space:
    """Return a search space: setting -> its values, where `{low: …, high: …, log: …}` stands for several.

    Raises:
        ConfigError: there is nothing to vary, or values are none; all problems in one report.
    """
    raise_any(type_problems(Mapping, "a mapping from settings to values", space=given))
    problems = [] if given else ["sweep: nothing to vary; name settings with --grid"]
    found: dict[str, list[Any]] = {}
    for name, value in given.items():
        values = [value] if isinstance(value, Mapping) else value
        if name == "save_path":
            problems.append("sweep: save_path cannot vary; each run has its own folder under --output")
        elif not isinstance(values, (list, tuple)) or not values:
            problems.append(f"sweep: {name} should be a list of values, or low and high, not {value!r}")
        else:
            parts = [_values_of(guessed(each)) for each in values]
            if not all(parts):
                expected = "finite numbers with low below high, and with log above 0"
                problems.append(f"sweep: {name} should be {expected}, not {value!r}")
            found[name] = [each for part in parts for each in part]
    raise_any(problems)
    return found


def _values_of(value: Any) -> list[Any]:
    """Return a value by itself, or `STEPS` values at equal distances in a range; none if that is wrong."""
    if not (isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= RANGE):
        return [value]
    low, high = ends = (value["low"], value["high"])
    is_log = value.get("log", False)
    if not all(type(end) in (int, float) and math.isfinite(end) for end in ends):
        return []
    if low >= high or (is_log and low <= 0):
        return []
    values: list[float] = (np.geomspace if is_log else np.linspace)(low, high, STEPS).tolist()
    return sorted({*map(round, values)}) if {*map(type, ends)} == {int} else values


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


def points_of(space: Space, trials: int | None, seed: int) -> list[Values]:
    """Return all combinations of values, the last setting changing fastest; or some of them.

    Args:
        space: the values.
        trials: number of combinations, drawn at random; more continue the same draw. None for all.
        seed: of the draw.

    Source: Bergstra and Bengio, 2012, "Random search for hyper-parameter optimization".
    """
    if trials is None:
        return [dict(zip(space, point, strict=True)) for point in itertools.product(*space.values())]
    return [
        {
            name: values[int(generator(seed, "sweep", number, name).integers(len(values)))]
            for name, values in space.items()
        }
        for number in range(trials)
    ]


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
    argv: Sequence[str] = (),
) -> Sweep:
    """Train with different settings, and find those with the best dev scores.

    A run's score is the mean over targets of their first metric at its best evaluation. The
    same call resumes a killed sweep, and adds trials. The result is also written to the folder.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        space: setting -> a list of values, or `{"low": …, "high": …, "log": …}` for 20 values at equal
            distances; settings of one task are called `task.setting`.
        task_dir: the folder of the task files.
        trials: number of combinations that are drawn at random; by default all are tried.
        workers: runs at a time; by default one on every visible GPU, or one on a CPU.
        pool: where the runs are trained: this machine, or a Ray cluster (`palm.ray.Pool()`).
        output: the folder; by default `<save_path>_sweep`.
        argv: command-line arguments that override settings.

    Raises:
        ConfigError: the configuration or the space has errors; all of them in one report.
        PalmError: a run ended with an error, or none has a score.
    """
    show_on_console()
    searched = space_of(space)
    raise_any([] if trials is None else count_problems(trials=trials))
    source = Source(config, task_dir, argv)
    first = source.edited({name: values[0] for name, values in searched.items()})
    raise_any(_problems(first))
    points = points_of(searched, trials, first.settings.random_seed)
    with source.grid("sweep", first, output, workers, pool) as grid:
        check_not_read(grid.path / BEST_CONFIG, [source.config])
        # All configurations are made before the first run, so that all errors are reported.
        runs = [GridRun("", _document(source, point)) for point in points]
        found = {grid.folder(run).name: result for run, result in grid.train(runs)}
        names = [grid.folder(run).name for run in runs]
        tried = zip(names, points, strict=True)
        return _written(grid.path, [Trial(name, point, found[name]) for name, point in tried], source)


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
