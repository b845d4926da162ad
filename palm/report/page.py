"""The report: one HTML file about a run that needs no network and runs no script."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from palm.core.checks import path_problems, raise_any
from palm.core.durations import duration
from palm.core.errors import PalmError, StorageError
from palm.core.files.fs import write_text
from palm.core.files.manifest import verified_object
from palm.core.files.records import check_unchanged
from palm.core.files.untrusted import read_object, wrap_read_errors
from palm.core.logging import logger
from palm.core.version import __version__
from palm.engine.inference.inference import DESCRIPTION
from palm.engine.run.evaluation import shown_score
from palm.engine.run.run_directory import CONFIGURATION
from palm.engine.training.events import Evaluated
from palm.engine.watching.transfer_report import influences, matrix
from palm.report import curves
from palm.report.analysis import Analysis, analyses_of
from palm.report.charts import Chart, Line, minus, shown_number
from palm.report.curves import Curve
from palm.report.history import History
from palm.report.run import Run, read_run

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT_FILE = "report.html"
COMPARISON = "compare.json"

MOST_OPEN = 4
"""Tasks whose details are unfolded; of more, all are folded."""


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    predict: bool = True,
    *,
    dev_files: Mapping[str, str | Path] = MappingProxyType({}),
    trust: str | Sequence[str] = (),
) -> Path:
    """Write a page that shows what a run was trained on, how it went, and where its models are wrong.

    Of the folder of a comparison (see `palm.compare`) the page shows what was found, and predicts nothing.

    Args:
        run: the run's folder, its `save_path`; or that of a comparison.
        output: the HTML file; `report.html` in the run's folder where None.
        predict: load the best model of every task (or its last) and predict its `dev_file`, unless that
            was done before; without, the page says nothing of single rows. What cannot be predicted is told
            on the page.
        dev_files: task -> the data to predict. Without, it is the run's `dev_file`, if that lies in the run's
            folder or is still what the run was evaluated on: a folder of somebody else's may name any file.
        trust: as for `palm.load_model`.

    Returns:
        The file.

    Raises:
        PalmError: jinja2 is missing.
        StorageError: no history there, or `output` cannot be written.
    """
    raise_any(path_problems(run=run))
    folder = Path(run)
    file = folder / REPORT_FILE if output is None else Path(output)
    if (folder / COMPARISON).is_file():
        text = comparison_page(folder)
    else:
        found = read_run(folder)
        text = page(found, analyses_of(found, predict, trust, dev_files))
    write_text(file, text, kind=REPORT_FILE)
    logger.info("report written to %s (%d kB)", file, len(text.encode()) // 1000)
    return file


def comparison_page(folder: Path) -> str:
    """Return the page of a comparison: verdicts, scores of all variants, differences with their intervals."""
    file = folder / COMPARISON
    check_unchanged(file)
    found = read_object(file)
    if (found.get("format"), found.get("version")) != ("palm-comparison", 1):
        raise StorageError(f"{file} is no comparison of this palm; make it anew: palm compare")
    template = environment().get_template("comparison.html")
    with wrap_read_errors(file):
        return template.render(name=folder.resolve().name, folder=folder, found=found, version=__version__)


def environment(*packages: str) -> Environment:
    """The templates of the report, and before them those of other packages; all texts are escaped.

    Raises:
        PalmError: jinja2 is missing.
    """
    try:
        from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise PalmError("the report needs jinja2: pip install 'palm-torch[report]'") from None
    made = Environment(
        loader=ChoiceLoader([PackageLoader(name, "template") for name in (*packages, "palm.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "shown": shown_number,
        "score": _score,
        "value": shown_value,
        "duration": duration,
        "minus": minus,
    }
    return made


def page(run: Run, analyses: Mapping[str, Analysis | str]) -> str:
    """The page's HTML; every text of the run is escaped."""
    history = run.history
    end = run.history.end
    stages = [(stage.step, stage.stage) for stage in history.stages]

    def staged(charts: Iterator[Chart]) -> Iterator[Chart]:
        return (replace(chart, stages=stages) for chart in charts)

    ending = f"not finished: the last that is known is global step {history.last_step:,}"
    if end is not None:
        ending = f"{end.reason} after {end.step:,} steps ({history.start.total_steps:,} planned)"
    return (
        environment()
        .get_template("page.html")
        .render(
            run=run,
            title=page_title(history.tasks, run.name),
            is_folded=len(history.tasks) > MOST_OPEN,
            history=history,
            ending=ending,
            encoder=next(
                (each.value for each in run.sections.get("global", ()) if each.name == "backbone"), ""
            ),
            tasks=[_task(run, task, analyses[task]) for task in history.tasks],
            loss_charts=list(staged(_loss_charts(history))),
            score_charts=list(staged(_score_charts(history))),
            update_charts=list(staged(_update_charts(history))),
            mix_chart=next(staged(_mix_charts(history)), None),
            mix=list(_mix(history)),
            transfer=matrix(influences(history.transfers)),
            cosines=list(_cosines(history)),
            pace_charts=list(staged(_pace_charts(history))),
            memory=max((step.memory_bytes or 0 for step in history.steps), default=0),
            commands=list(_commands(run)),
            versions=versions_of(run),
            made_with={"palm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        )
    )


def page_title(tasks: Sequence[str], folder: str) -> str:
    """Return the names of the first tasks, and the number of the others."""
    shown = ", ".join(tasks[:MOST_OPEN])
    return f"{shown} and {len(tasks) - MOST_OPEN} more" if len(tasks) > MOST_OPEN else shown or folder


def _cosines(history: History) -> Iterator[tuple[str, str, list[tuple[str, float | None]]]]:
    """Two tasks, and the mean cosine of their gradients in the whole encoder and in each of its layers."""
    for number, task in enumerate(history.tasks):
        for other in history.tasks[number + 1 :]:
            found: dict[str, list[float]] = {}
            for each in history.transfers:
                for layer, pairs in {"whole": each.cosine, **each.layers}.items():
                    value = pairs.get(task, {}).get(other, math.nan)
                    found.setdefault(layer, []).extend([value] if math.isfinite(value) else [])
            if found:
                yield task, other, [(layer, fmean(own) if own else None) for layer, own in found.items()]


def _task(run: Run, task: str, analysis: Analysis | str) -> dict[str, Any]:
    """Return the values of a task for the template."""
    history = run.history
    plan = history.start.tasks[task]
    realised = curves.realised_steps(history)[task].points
    steps = int(realised[-1][1]) if len(realised) > 1 else _last_task_step(history, task)
    evaluated = [each for each in history.evaluations if each.scores.get(task)]
    best = _best(evaluated, task)
    last = {} if best is None else evaluated[-1].scores[task]
    found = analysis if isinstance(analysis, Analysis) else None
    return {
        "name": task,
        "colour": history.tasks.index(task),
        "is_target": plan.is_target,
        "rows": plan.rows,
        "steps": steps,
        "planned": plan.expected_steps,
        "epochs": steps / plan.steps_per_epoch if plan.steps_per_epoch else 0.0,
        "scores": [(name, value, best.scores[task].get(name)) for name, value in last.items() if best],
        "baseline": found and found.baseline,
        "intervals": found.intervals if found and found.kind == "best" else {},
        "best_step": 0 if best is None else best.step,
        "models": _models(run, task),
        "analysis": found,
        "missing": analysis if isinstance(analysis, str) else "",
        "reliability": _reliability(found),
    }


def _models(run: Run, task: str) -> list[tuple[str, str]]:
    """The kinds and places of a task's saved models."""
    own = [each for each in run.models if each.task == task]
    return [(each.kind, each.folder.relative_to(run.folder).as_posix()) for each in own]


def _reliability(analysis: Analysis | None) -> Chart | None:
    if analysis is None or not analysis.reliability:
        return None
    lines = [
        Line(Curve(name, points), k, marks=True) for k, (name, points) in enumerate(analysis.reliability)
    ]
    ideal = Line(Curve("ideal", [(0.0, 0.0), (1.0, 1.0)]), 7, faint=True, in_table=False)
    note = "above the diagonal, predictions are right more often than they say"
    return Chart("Reliability of probabilities", "share that is right", [ideal, *lines], note, "probability")


def _last_task_step(history: History, task: str) -> int:
    return max((step.task_step for step in history.steps if step.task == task), default=0)


def _best(evaluated: Sequence[Evaluated], task: str) -> Evaluated | None:
    """The best evaluation of a task, as the run itself decided."""
    best = [each for each in evaluated if task in each.best]
    return best[-1] if best else evaluated[-1] if evaluated else None


def _loss_charts(history: History) -> Iterator[Chart]:
    """Per task its loss, raw behind smoothed, and its dev loss."""
    dev = curves.dev_losses(history)
    smooth = curves.smooth_losses(history)
    for task, curve in curves.losses(history).items():
        colour = history.tasks.index(task)
        if not curve.points:
            continue
        lines = [
            Line(Curve("loss of the step", curve.points), colour, faint=True, marks=len(curve.points) <= 120),
            Line(Curve("smoothed", smooth[task].points), colour),
        ]
        if task in dev:
            lines.append(Line(Curve("dev loss", dev[task].points), colour, dash=1, marks=True))
        yield Chart(f"{task}: loss", "loss", lines)


def _score_charts(history: History) -> Iterator[Chart]:
    """Per task its metrics on dev data; those of another scale have a chart of their own."""
    for task, found in curves.scores(history).items():
        best = _best([each for each in history.evaluations if each.scores.get(task)], task)
        groups: dict[bool, list[Curve]] = {}
        for curve in found:
            groups.setdefault(max(abs(value) for _, value in curve.points) > 1.5, []).append(curve)
        for members in (members for members in groups.values() if members):
            lines = [
                Line(
                    curve,
                    history.tasks.index(task) + number,
                    dash=number % 4,
                    marks=True,
                    star=next((p for p in curve.points if best and p[0] == best.step), None),
                )
                for number, curve in enumerate(members)
            ]
            unit = members[0].name if len(members) == 1 else "score"
            by = next(iter(best.scores[task])) if best else unit
            yield Chart(
                f"{task}: dev scores",
                unit,
                lines,
                f"A ring marks the step that was best by {by}.",
            )


def _update_charts(history: History) -> Iterator[Chart]:
    rates = curves.of_steps(history, "learning_rate")
    norms = curves.of_steps(history, "grad_norm")
    if rates.points:
        yield Chart("Learning rate", "rate", [Line(rates, 7)])
    if norms.points:
        yield Chart("Norm of the gradient, before clipping", "norm", [Line(norms, 7)])


def _pace_charts(history: History) -> Iterator[Chart]:
    for number, curve in enumerate(curves.paces(history)):
        if any(value for _, value in curve.points):
            yield Chart(curve.name, curve.name, [Line(curve, number)])


def _mix_charts(history: History) -> Iterator[Chart]:
    realised = curves.realised_steps(history)
    planned = curves.planned_steps(history)
    lines = []
    for number, task in enumerate(history.tasks):
        if len(realised[task].points) > 1:
            lines.append(Line(realised[task], number, marks=True))
            plan = planned[task].points
            lines.append(Line(Curve(f"{task}, planned", plan), number, dash=2, faint=True, in_table=False))
    if lines:
        note = "Dotted lines lead to the steps that were planned."
        yield Chart("Steps that every task had", "steps of the task", lines, note)


def _mix(history: History) -> Iterator[tuple[str, int, int, float, float]]:
    """Task, steps, planned steps, and the shares of both, in percent."""
    steps = {task: _last_task_step(history, task) for task in history.tasks}
    if history.draws:
        steps |= dict(history.draws[-1].steps)
    total = max(1, sum(steps.values()))
    planned = max(1, history.start.total_steps)
    for task, plan in history.start.tasks.items():
        shares = (100 * steps[task] / total, 100 * plan.expected_steps / planned)
        yield task, steps[task], plan.expected_steps, *shares


def _commands(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what can be done with the run, and the command for it."""
    folder = quote(str(run.folder))
    if run.is_configured:
        again = quote(str(run.folder / CONFIGURATION))
        yield "Repeat the run", f"palm train {again} --save_path NEW_FOLDER"
        if run.checkpoints and (run.history.end is None or run.history.end.reason != "finished"):
            yield "Resume the run", f"palm train {again} --resume auto"
    for task in run.history.tasks:
        if (model := run.model(task)) is not None:
            place = quote(str(model.folder))
            yield f"Evaluate {task} on other data", f"palm evaluate --model {place} --input REPORT_FILE"
    yield "Make this page again", f"palm report {folder}"


def versions_of(run: Run) -> dict[str, str]:
    """Return the versions of the programs that made the run, as far as its history and its models tell."""
    by_program = {"palm": "unknown"}
    for model in run.models[:1]:
        description = verified_object(model.folder, DESCRIPTION)
        by_program |= (description.get("training") or {}).get("versions", {})
    return by_program | ({"palm": run.history.start.palm} if run.history.start.palm else {})


def _score(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else minus(shown_score(value))


def shown_value(value: Any) -> str:
    """A setting as its file would have it."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {each}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)
