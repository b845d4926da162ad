"""`palm compare --rows`: scores by number of training rows, to compare more labels with a helper task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palm.controller.plan import plan
from palm.controller.saved_model import targets_of
from palm.core.errors import ConfigError
from palm.core.files.fs import check_replaceable, write_json, write_text
from palm.core.shown import aligned
from palm.experiments.comparison.compare import compare
from palm.experiments.comparison.outcome import Outcome, SeedScores
from palm.experiments.comparison.statistics import LEVEL, t_quantile
from palm.experiments.comparison.variants import ALONE
from palm.experiments.grid.source import Source, folder_of
from palm.metrics import METRICS
from palm.report.charts import Chart, Line
from palm.report.curves import Curve
from palm.report.page import environment

ALL = "all"
CURVES_JSON = "curves.json"
CURVES_TABLE = "curves.txt"
CURVES_PAGE = "curves.html"

Points = Mapping[int, SeedScores]
"""Number of training rows -> scores."""


@dataclass(frozen=True)
class LearningCurves:
    """Scores by number of training rows; `print` shows them as tables.

    Args:
        metrics: target -> the name of its score.
        curves: target -> way to train -> its scores. `alone` is the better of two variants: the target alone
            with its own steps, and with as many updates as all tasks together.
        outcomes: number of rows as requested, such as `50` or `all` -> its comparison.
    """

    metrics: Mapping[str, str]
    curves: Mapping[str, Mapping[str, Points]]
    outcomes: Mapping[str, Outcome]

    def __str__(self) -> str:
        lines = [
            "Mean and 95 % interval over seeds; intervals do not account for the choice of training rows."
        ]
        for target, ways in self.curves.items():
            sizes = sorted({rows for points in ways.values() for rows in points})
            table = [[f"{target}: rows", *ways]]
            for rows in sizes:
                cells = (points.get(rows) for points in ways.values())
                table.append([str(rows), *("" if own is None else _shown(own) for own in cells)])
            lines += ["", *aligned(table), *self._advice(target, sizes)]
        for asked, outcome in self.outcomes.items():
            lines += ["", *(f"{asked} rows: {task}: {verdict}" for task, verdict in outcome.verdicts.items())]
        return "\n".join(lines)

    def _advice(self, target: str, sizes: Sequence[int]) -> Iterator[str]:
        """Yield what the last rows gained, and what the best way to train with other tasks gains."""
        ways = {way: points for way, points in self.curves[target].items() if way != ALONE}
        if len(sizes) < 2 or not ways:
            return
        few, many = sizes[-2:]
        alone = self.curves[target][ALONE]
        best = max(ways, key=lambda way: _goodness(self.metrics[target], ways[way][few]))
        yield (
            f"From {few} to {many} rows, {target} alone gains {alone[many].mean - alone[few].mean:+.4f} "
            f"{self.metrics[target]}; {best}, with {few} rows, {ways[best][few].mean - alone[few].mean:+.4f}."
        )

    def as_json(self) -> dict[str, Any]:
        """Return the scores, JSON-ready; those of each comparison are in its own folder."""
        found = asdict(self)
        return {"metrics": found["metrics"], "curves": found["curves"]}

    def charts(self) -> list[Chart]:
        """Return a chart for each target: the mean of every way, with the ends of its interval behind it."""
        found = []
        for target, ways in self.curves.items():
            lines = []
            for colour, (way, points) in enumerate(ways.items()):
                for sign in (-1, 1):
                    end = [(rows, own.mean + sign * _half(own)) for rows, own in sorted(points.items())]
                    lines.append(Line(Curve(f"{way}, 95 %", end), colour, faint=True, in_table=False))
                means = [(rows, own.mean) for rows, own in sorted(points.items())]
                lines.append(Line(Curve(way, means), colour, marks=True))
            found.append(Chart(target, self.metrics[target], lines, x_name="training rows"))
        return found


def learning_curves(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path = ".",
    *,
    rows: Sequence[int | str],
    output: str | Path | None = None,
    argv: Sequence[str] = (),
    **options: Any,
) -> LearningCurves:
    """Compare with several numbers of training rows of the targets; other tasks keep all of theirs.

    Args:
        config, task_dir, argv: as for `compare`.
        rows: numbers of rows, which replace the setting `sample` of every target; `all` for all.
        output: the folder, with a comparison for each number; by default `<save_path>_curves`.
        options: of `compare`.

    Raises:
        ConfigError: a number of rows is not one; and as for `compare`.
    """
    counts = list(dict.fromkeys(map(str, rows)))
    if wrong := [each for each in counts if each != ALL and not (each.isdecimal() and int(each) > 0)]:
        raise ConfigError(f"rows should be whole numbers above 0, or {ALL}, not {', '.join(wrong)}")
    planned = plan(Source(config, task_dir, argv).at({}), for_train=True)
    folder = folder_of(planned.settings["save_path"], "curves", output)
    for name in (CURVES_JSON, CURVES_TABLE, CURVES_PAGE):
        check_replaceable(folder / name)
    targets = targets_of(planned.settings)
    known = {
        task.name: sum(1 for _ in task.examples(task.task["train_file"]))
        for task in planned.tasks
        if task.name in targets
    }
    outcomes = {}
    for count in counts:
        sampled = [] if count == ALL else [f"--{target}.sample={count}" for target in targets]
        own = folder / f"rows-{count}"
        outcomes[count] = compare(config, task_dir, output=own, argv=[*argv, *sampled], **options)
    found = curves_of(outcomes, known)
    write_text(folder / CURVES_TABLE, f"{found}\n")
    write_json(folder / CURVES_JSON, found.as_json())
    if find_spec("jinja2") is not None:
        page = environment().get_template("curves.html").render(runs=[folder], charts=found.charts())
        write_text(folder / CURVES_PAGE, page, kind=CURVES_PAGE)
    return found


def curves_of(outcomes: Mapping[str, Outcome], known: Mapping[str, int]) -> LearningCurves:
    """Collect the scores of comparisons.

    Args:
        outcomes: number of rows, or `all` -> the comparison.
        known: target -> the number of all its training rows.
    """
    curves: dict[str, dict[str, dict[int, SeedScores]]] = {target: {} for target in known}
    metrics = {}
    for count, outcome in outcomes.items():
        for target, total in known.items():
            rows = total if count == ALL else min(int(count), total)
            metrics[target] = outcome.tests[target].metric
            for trained in outcome.variants:
                if (scores := trained.scores.get(target)) is None:
                    continue
                way = ALONE if trained.variant.is_alone else trained.variant.name
                points = curves[target].setdefault(way, {})
                # Two variants train a target alone; the better one is its curve.
                points[rows] = max(scores, points.get(rows, scores), key=partial(_goodness, metrics[target]))
    return LearningCurves(metrics, curves, outcomes)


def _goodness(metric: str, scores: SeedScores) -> float:
    return scores.mean if METRICS[metric].higher_is_better else -scores.mean


def _half(scores: SeedScores) -> float:
    """Return half the width of the 95 % interval of the mean over seeds."""
    return t_quantile(1 - LEVEL / 2, len(scores.per_seed) - 1) * scores.standard_error


def _shown(scores: SeedScores) -> str:
    return f"{scores.mean:.4f} ({scores.mean - _half(scores):.4f} to {scores.mean + _half(scores):.4f})"
