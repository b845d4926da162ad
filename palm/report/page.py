"""The report of a run: one HTML file that needs no network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any

from palm.core.component import path_problems, raise_any, type_problems
from palm.core.errors import PalmError
from palm.core.io import write_text
from palm.core.logging import logger
from palm.report import curves
from palm.report.analysis import Analysis, analyses_of
from palm.report.charts import Chart, line_chart, point_chart, score_chart
from palm.report.curves import Curve, curve_of
from palm.report.history import History
from palm.report.rendering import rendered
from palm.report.run import Run, read_run
from palm.report.several import is_grid, page_of_several
from palm.report.verdict import Verdict, higher_is_better, metric_of, scored_rows, verdicts_of
from palm.train.model_paths import CONFIGURATION

REPORT_FILE = "report.html"

MOST_OPEN = 4
"""Maximum number of tasks whose sections are unfolded; with more, all are folded."""

REFRESH_SECONDS = 10
"""How often the page of a run that goes on loads itself again."""


def write_report(
    run: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    predict: bool = True,
    *,
    dev_files: Mapping[str, str | Path] = MappingProxyType({}),
    trust: str | Sequence[str] = (),
) -> Path:
    """Write a page that shows what a run was trained on, how it went, and where its models are wrong.

    For several runs, or the folder of a comparison or a sweep (see `palm.compare`, `palm.sweep`), the page
    shows their results side by side, and predicts nothing.

    Args:
        run: the folder of a run, its `save_path`; several of them; or the folder of a comparison or sweep.
        output: the HTML file; None means `report.html` in the first folder.
        predict: load the best model of every task (or its last) and predict its `dev_file`; if False, the
            page does not show single rows. If a task cannot be predicted, the page says why.
        dev_files: task -> the data to predict. By default it is the run's `dev_file`, if that is in the run's
            folder or is still what the run was evaluated on: a folder from somebody else may name any file.
        trust: as for `palm.load_model`.

    Returns:
        The path of the page.

    Raises:
        PalmError: no run is named, or jinja2 or altair is missing.
        StorageError: a folder has no history, or `output` cannot be written.
    """
    runs = [run] if isinstance(run, str | Path) else list(run)
    raise_any(line for each in runs for line in path_problems(run=each))
    raise_any([f"predict should be true or false, not {predict!r}"] if not isinstance(predict, bool) else [])
    raise_any(type_problems(Mapping, "a mapping from tasks to files", dev_files=dev_files))
    if not runs:
        raise PalmError("no run was named; name the folder of at least one run, its save_path")
    folder = Path(runs[0])
    file = folder / REPORT_FILE if output is None else Path(output)
    if len(runs) > 1 or is_grid(folder):
        text = page_of_several([Path(each) for each in runs])
    else:
        found = read_run(folder)
        text = page(found, analyses_of(found, predict, trust, dev_files))
    write_text(file, text)
    logger.info("report written to %s (%d kB)", file, len(text.encode()) // 1000)
    return file


def page(run: Run, analyses: Mapping[str, Analysis | str], is_live: bool = False) -> str:
    """Return the HTML of a run's page; it loads itself again if the run goes on and `is_live`."""
    history = run.history
    goes_on = is_live and history.end is None
    verdicts = verdicts_of(run, analyses)
    if goes_on:
        verdicts = [replace(each, advice="", command="") for each in verdicts]
    encoder = (each.value for each in run.sections.get("global", ()) if each.name == "backbone")
    known = [each for each in verdicts if metric_of(each.metric) is not None and math.isfinite(each.score)]
    return rendered(
        "page.html",
        run=run,
        title=page_title(history.tasks, run.name),
        history=history,
        ending=_ending(history),
        refresh=REFRESH_SECONDS if goes_on else 0,
        now=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        left=_seconds_left(history),
        is_folded=len(history.tasks) > MOST_OPEN,
        encoder=next(encoder, ""),
        verdicts=verdicts,
        overview=score_chart("Scores of all tasks", [_of_overview(each) for each in known])
        if known[1:]
        else None,
        tasks=[_task(run, task, analyses[task]) for task in history.tasks],
        loss_chart=_loss_chart(history),
        run_charts=list(_run_charts(history)),
        paces={each.name: curves.mean_of(each) for each in curves.paces(history)},
        memory=max((step.memory_bytes or 0 for step in history.steps), default=0),
        commands=list(_commands(run)),
        versions=run.versions,
    )


def _ending(history: History) -> str:
    if history.end is None:
        planned = history.start.total_steps
        return f"not finished; last recorded at global step {history.last_step:,} of {planned:,}"
    how = {"stopped": "stopped by an error"}.get(history.end.reason, history.end.reason)
    return f"{how} after {history.end.step:,} steps ({history.start.total_steps:,} planned)"


def _seconds_left(history: History) -> float:
    """Return the time until the planned end at the speed so far; 0 if nothing is known."""
    step = history.steps[-1] if history.steps else None
    if step is None or not step.step:
        return 0.0
    return max(history.start.total_steps - step.step, 0) * step.seconds / step.step


def page_title(tasks: Sequence[str], folder: str) -> str:
    """Return the names of the first tasks, and the number of the others."""
    shown = ", ".join(tasks[:MOST_OPEN])
    return f"{shown} and {len(tasks) - MOST_OPEN} more" if len(tasks) > MOST_OPEN else shown or folder


def _of_overview(verdict: Verdict) -> tuple[str, float, Sequence[float], float | None]:
    """Return a task's name, score, interval and baseline, from 0 to 1."""
    kind = metric_of(verdict.metric)
    assert kind is not None
    low = None if verdict.baseline is None else kind.normalized_score(verdict.baseline)
    ends = sorted(map(kind.normalized_score, verdict.interval))
    return f"{verdict.task}: {verdict.metric}", verdict.normalized, ends, low


def _task(run: Run, task: str, analysis: Analysis | str) -> dict[str, Any]:
    """Return the values of a task for the template."""
    history = run.history
    plan = history.start.tasks[task]
    steps = history.task_steps[task]
    best = history.best(task)
    rows = scored_rows(run, task, analysis)
    found = analysis if isinstance(analysis, Analysis) else None
    is_same = found is not None and found.kind == "best" and not found.other_data
    last = next((each for each in reversed(history.evaluations) if each.scores.get(task)), None)
    return {
        "name": task,
        "colour": history.tasks.index(task),
        "plan": plan,
        "steps": steps,
        "epochs": steps / plan.steps_per_epoch if plan.steps_per_epoch else 0.0,
        "scores": [(name, last.scores[task].get(name), value) for name, value in best.scores[task].items()]
        if best and last
        else [],
        "best_step": best.step if best else 0,
        "last_step": last.step if last else 0,
        "rows": rows,
        "intervals": {**(found.intervals if found and is_same and rows.rows else {}), **rows.intervals},
        "analysis": found,
        "missing": analysis if isinstance(analysis, str) else "",
        "charts": [*_score_charts(history, task), *(_analysis_charts(found) if found else ())],
    }


def _score_charts(history: History, task: str) -> Iterator[Chart]:
    """Yield a chart for the scores of a task that should rise, and one for each of those that should fall."""
    scales: dict[str, list[Curve]] = {}
    for name in curves.metric_names(history, task):
        scale = "" if higher_is_better(name) else name
        scales.setdefault(scale, []).append(curve_of(name, curves.scores(history, task, name)))
    for found in scales.values():
        name = found[0].name
        note = "" if higher_is_better(name) else "lower is better"
        yield line_chart(f"{task}: {', '.join(each.name for each in found)}", "dev score", found, note)


def _analysis_charts(analysis: Analysis) -> Iterator[Chart]:
    if analysis.reliability:
        ideal = Curve("ideal", [(0.0, 0.0), (1.0, 1.0)], is_dashed=True)
        lines = [Curve(name, [point[:2] for point in points]) for name, points in analysis.reliability]
        counts = [(name, *point) for name, points in analysis.reliability for point in points]
        note = "above the dashed line, predictions are right more often than their probabilities say"
        made = line_chart(
            "Reliability of probabilities", "share correct", [*lines, ideal], note, "probability"
        )
        head = ["curve", "mean probability", "share correct", "predictions"]
        yield Chart(made.title, made.spec, head, counts, made.note)
    if analysis.values:
        yield point_chart("Residuals", ("true number", "predicted − true"), analysis.values)


def _loss_chart(history: History) -> Chart:
    found = [curve_of(task, curves.mean_losses(history, task)) for task in history.tasks]
    for task in history.tasks:
        found.append(curve_of(f"{task}, dev", curves.dev_losses(history, task), task, is_dashed=True))
    note = "Mean of all steps of a task between two logged steps; dashed: dev loss."
    return line_chart("Loss", "loss", found, note)


def _run_charts(history: History) -> Iterator[Chart]:
    """Yield the charts of the run as a whole."""
    for title, unit, kind in (
        ("Learning rate", "rate", "learning_rate"),
        ("Gradient norm before clipping", "norm", "grad_norm"),
    ):
        yield line_chart(title, unit, [curve_of(title, curves.of_steps(history, kind))])
    planned = [
        Curve(f"{task}, planned", [(0, 0), (history.start.total_steps, plan.expected_steps)], task, True)
        for task, plan in history.start.tasks.items()
    ]
    made = [Curve(task, curves.realised_steps(history, task)) for task in history.tasks]
    yield line_chart("Steps of every task", "steps of the task", [*made, *planned], "Dashed: planned.")
    for each in curves.paces(history):
        yield line_chart(each.name, each.name, [each], "Between evaluations.")


def _commands(run: Run) -> Iterator[tuple[str, str]]:
    """Yield what can be done with the run as a whole, with the command for it."""
    folder = quote(str(run.folder))
    if run.is_configured:
        again = quote(str(run.folder / CONFIGURATION))
        yield "Repeat the run", f"palm train {again} --save_path NEW_FOLDER"
        if run.checkpoints and (run.history.end is None or run.history.end.reason != "finished"):
            yield "Resume the run", f"palm train {again} --resume auto"
    yield "Make this page again", f"palm report {folder}"
