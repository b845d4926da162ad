"""The report of a run: one HTML file that needs no network and runs no script."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from palm.core.component import path_problems, raise_any, type_problems
from palm.core.errors import PalmError, StorageError
from palm.core.io import read_object, wrap_read_errors, write_text
from palm.core.logging import logger, printable, shown_score, shown_value
from palm.core.process import duration
from palm.core.version import __version__
from palm.metrics import METRICS
from palm.report import curves
from palm.report.analysis import Analysis, analyses_of
from palm.report.charts import MOST_PLAIN, Chart, Line, labels, minus, shown_number, task_charts
from palm.report.curves import Curve
from palm.report.history import History
from palm.report.run import Run, read_run
from palm.train.model_paths import CONFIGURATION

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT_FILE = "report.html"
COMPARISON = "compare.json"

DIVERGED = 3.0
"""Ratio of the last to the first running mean of a loss above which it has diverged."""

MOST_OPEN = 4
"""Maximum number of tasks whose details are unfolded; with more, all are folded."""


def write_report(
    run: str | Path,
    output: str | Path | None = None,
    predict: bool = True,
    *,
    dev_files: Mapping[str, str | Path] = MappingProxyType({}),
    trust: str | Sequence[str] = (),
) -> Path:
    """Write a page that shows what a run was trained on, how it went, and where its models are wrong.

    For the folder of a comparison (see `palm.compare`), the page shows its results and predicts nothing.

    Args:
        run: the run's folder, its `save_path`; or the folder of a comparison.
        output: the HTML file; None means `report.html` in the run's folder.
        predict: load the best model of every task (or its last) and predict its `dev_file`; if False, the
            page does not show single rows. If a task cannot be predicted, the page says why.
        dev_files: task -> the data to predict. By default it is the run's `dev_file`, if that is in the run's
            folder or is still what the run was evaluated on: a folder from somebody else may name any file.
        trust: as for `palm.load_model`.

    Returns:
        The path of the page.

    Raises:
        PalmError: jinja2 is missing.
        StorageError: the folder has no history, or `output` cannot be written.
    """
    raise_any(path_problems(run=run))
    raise_any([f"predict should be true or false, not {predict!r}"] if not isinstance(predict, bool) else [])
    raise_any(type_problems(Mapping, "a mapping from tasks to files", dev_files=dev_files))
    folder = Path(run)
    file = folder / REPORT_FILE if output is None else Path(output)
    if (folder / COMPARISON).is_file():
        text = comparison_page(folder)
    else:
        found = read_run(folder)
        text = page(found, analyses_of(found, predict, trust, dev_files))
    write_text(file, text)
    logger.info("report written to %s (%d kB)", file, len(text.encode()) // 1000)
    return file


def comparison_page(folder: Path) -> str:
    """Return the page of a comparison: verdicts, scores of all ways, differences with their intervals."""
    file = folder / COMPARISON
    found = read_object(file)
    if (found.get("format"), found.get("version")) != ("palm-comparison", 3):
        raise StorageError(f"{file} is not a comparison of this version of palm; run palm compare again")
    template = environment().get_template("comparison.html")
    with wrap_read_errors(file):
        # Differences in points have one scale, whatever their metric.
        widest: dict[str, float] = {}
        for answer in found["answers"]:
            unit = answer["unit"].split()[0]
            ends = (answer["difference"]["low"], answer["difference"]["high"])
            widest[unit] = max(widest.get(unit, 0.0), *map(abs, ends))
        return template.render(
            name=folder.resolve().name, folder=folder, found=found, widest=widest, version=__version__
        )


def environment(*packages: str) -> Environment:
    """Return the Jinja environment of the report; templates of `packages` come first, and text is escaped.

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
        finalize=_shown,  # a page has no use for control characters of the data
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
        "labels": labels,
    }
    return made


def _shown(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def page(run: Run, analyses: Mapping[str, Analysis | str]) -> str:
    """Return the HTML of a run's page; all text from the run is escaped."""
    history = run.history
    encoder = (each.value for each in run.sections.get("global", ()) if each.name == "backbone")
    template = environment().get_template("page.html")
    return template.render(
        run=run,
        title=page_title(history.tasks, run.name),
        is_folded=len(history.tasks) > MOST_OPEN,
        history=history,
        ending=_ending(history),
        diverged=_diverged(history),
        lower={metric.main for metric in map(METRICS.__getitem__, METRICS) if not metric.higher_is_better},
        encoder=next(encoder, ""),
        tasks=[_task(run, task, analyses[task]) for task in history.tasks],
        task_charts=list(task_charts([(run.name, history)])),
        update_charts=list(_update_charts(history)),
        mix_chart=_mix_chart(history),
        pace_charts=[Chart(each.name, each.name, [Line(each)]) for each in curves.paces(history)],
        memory=max((step.memory_bytes or 0 for step in history.steps), default=0),
        commands=list(_commands(run)),
        versions=run.versions,
        made_with={"palm": __version__, "torch": torch.__version__, "python": platform.python_version()},
    )


def _diverged(history: History) -> list[str]:
    """Return the tasks whose loss is at its end far above its beginning, or not a number."""
    found = []
    for task in history.tasks:
        losses = [step.mean_loss for step in history.steps if step.task == task]
        if losses and not losses[-1] <= DIVERGED * max(losses[0], 1.0):
            found.append(task)
    return found


def _ending(history: History) -> str:
    if history.end is None:
        planned = history.start.total_steps
        return f"not finished; last recorded at global step {history.last_step:,} of {planned:,}"
    return f"{history.end.reason} after {history.end.step:,} steps ({history.start.total_steps:,} planned)"


def page_title(tasks: Sequence[str], folder: str) -> str:
    """Return the names of the first tasks, and the number of the others."""
    shown = ", ".join(tasks[:MOST_OPEN])
    return f"{shown} and {len(tasks) - MOST_OPEN} more" if len(tasks) > MOST_OPEN else shown or folder


def _task(run: Run, task: str, analysis: Analysis | str) -> dict[str, Any]:
    """Return the values of a task for the template."""
    history = run.history
    plan = history.start.tasks[task]
    steps = history.task_steps[task]
    best = history.best(task)
    found = analysis if isinstance(analysis, Analysis) else None
    is_scored = found is not None and found.kind == "best" and not found.other_data
    return {
        "name": task,
        "colour": history.tasks.index(task),
        "plan": plan,
        "steps": steps,
        "epochs": steps / plan.steps_per_epoch if plan.steps_per_epoch else 0.0,
        "scores": _scores(history, task, best.scores[task]) if best else [],
        "best_step": best.step if best else 0,
        # An interval belongs to a score only if both are of the same model.
        "intervals": {
            name: ends
            for name, ends in (found.intervals if found and best and is_scored else {}).items()
            if found
            and best
            and math.isclose(found.scores[name], best.scores[task].get(name, math.nan), rel_tol=1e-3)
        },
        "baseline": found.baseline if found and not found.other_data else {},
        "analysis": found,
        "missing": analysis if isinstance(analysis, str) else "",
        "reliability": found and _reliability(found),
    }


def _scores(history: History, task: str, best: Mapping[str, float]) -> list[tuple[str, float, float | None]]:
    """Return the name, last value and value at the best step of every score of a task."""
    last = next(each.scores[task] for each in reversed(history.evaluations) if each.scores.get(task))
    return [(name, value, best.get(name)) for name, value in last.items()]


def _reliability(analysis: Analysis) -> Chart:
    lines = [
        Line(Curve(name, points), k, marks=True) for k, (name, points) in enumerate(analysis.reliability)
    ]
    ideal = Line(Curve("ideal", [(0.0, 0.0), (1.0, 1.0)]), 7, faint=True, in_legend=False)
    note = "above the diagonal, predictions are right more often than their probabilities say"
    shown = [ideal, *lines] if lines else []
    return Chart("Reliability of probabilities", "share correct", shown, note, "probability")


def _update_charts(history: History) -> Iterator[Chart]:
    yield Chart("Learning rate", "rate", [Line(curves.of_steps(history, "learning_rate"), 7)])
    norms = curves.of_steps(history, "grad_norm")
    yield Chart("Gradient norm before clipping", "norm", [Line(norms, 7)])


def _mix_chart(history: History) -> Chart:
    lines = []
    for number, (task, plan) in enumerate(history.start.tasks.items()):
        planned = Curve(task, [(0, 0), (history.start.total_steps, plan.expected_steps)])
        lines.append(Line(curves.realised_steps(history, task), number, marks=True))
        lines.append(Line(planned, number, dash=2, faint=True, in_legend=False))
    note = "Dotted lines lead to the planned steps."
    return Chart("Steps of every task", "steps of the task", lines, note)


def _commands(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what can be done with the run, with the command for it."""
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


def _score(value: float | None) -> str:
    if value is not None and MOST_PLAIN <= abs(value) < math.inf:
        return minus(f"{value:.3g}")
    return "–" if value is None or math.isnan(value) else minus(shown_score(value))
