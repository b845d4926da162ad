"""The report of a run: one HTML file that needs no network."""

from __future__ import annotations

import math
from collections import Counter
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
from palm.report.charts import Chart, interval_chart, line_chart, point_chart
from palm.report.curves import Curve, curve_of
from palm.report.history import History
from palm.report.rendering import rendered
from palm.report.run import Run, read_run
from palm.report.several import is_grid, page_of_several
from palm.train.callbacks import Ended
from palm.train.counting import NumberCounts
from palm.train.model_paths import CONFIGURATION
from palm.train.verdict import Verdict, higher_is_better, metric_of, verdict_of

REPORT_FILE = "report.html"

MOST_OPEN = 4
"""Maximum number of tasks whose sections are unfolded; with more, all are folded."""

MOST_POINTS = 1000
"""Number of residuals that are drawn."""

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
        PalmError: no run is named, or altair is missing.
        StorageError: a folder has no history, or `output` cannot be written.
    """
    folders = folders_of(run if isinstance(run, Sequence) and not isinstance(run, str) else [run])
    raise_any([] if output is None else path_problems(output=output))
    raise_any([f"predict should be true or false, not {predict!r}"] if not isinstance(predict, bool) else [])
    raise_any(type_problems(Mapping, "a mapping from tasks to files", dev_files=dev_files))
    file = folders[0] / REPORT_FILE if output is None else Path(output)
    if file.suffix != ".html":
        raise PalmError(f"{file}: a report is an HTML page; give a file name that ends in .html")
    if len(folders) > 1 or is_grid(folders[0]):
        text = page_of_several(folders)
    else:
        found = read_run(folders[0])
        text = page(found, analyses_of(found, predict, trust, dev_files))
    write_text(file, text)
    logger.info("report written to %s (%d kB)", file, len(text.encode()) // 1000)
    return file


def folders_of(runs: Sequence[str | Path]) -> list[Path]:
    """Return the folders of runs; an error if there are none."""
    raise_any(line for run in runs for line in path_problems(run=run))
    if not runs:
        raise PalmError("no run was named; name the folder of at least one run, its save_path")
    return [Path(run) for run in runs]


def page(run: Run, analyses: Mapping[str, Analysis | str], is_live: bool = False) -> str:
    """Return the HTML of a run's page; it loads itself again if the run goes on and `is_live`."""
    history = run.history
    goes_on = is_live and history.end is None
    advice = run_step(run)
    tasks = {task: verdict_of(task, history.best(task)) for task in history.tasks}
    verdicts = sorted(tasks.values(), key=lambda each: each.gain)
    known = [each for each in verdicts if metric_of(each.metric) is not None and math.isfinite(each.score)]
    return rendered(
        "page.html",
        run=run,
        configuration=str(run.folder / CONFIGURATION),
        title=page_title(history.tasks, run.name),
        headline=headline(history, verdicts, "running" if goes_on else "not finished"),
        history=history,
        refresh=REFRESH_SECONDS if goes_on else 0,
        now=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC"),
        is_folded=len(history.tasks) > MOST_OPEN,
        encoder=next((each.value for each in run.sections.get("global", ()) if each.name == "backbone"), ""),
        advice=advice,
        verdicts=[(each, *(("", "") if goes_on or advice[0] else next_step(run, each))) for each in verdicts],
        overview=_overview(known) if known[1:] else None,
        tasks=[_task(run, verdict, analyses[task]) for task, verdict in tasks.items()],
        loss_chart=_loss_chart(history),
        run_charts=list(_run_charts(history)),
        paces={each.name: curves.mean_of(each) for each in curves.paces(history)},
        memory=max((step.memory_bytes or 0 for step in history.steps), default=0),
    )


def headline(history: History, verdicts: Sequence[Verdict], state: str = "not finished") -> str:
    """Say how the run ended, how many tasks are better than their baselines, and which is weakest.

    `state` is that of a run without an end.
    """
    end = history.end or Ended(history.last_step, state)
    shown = f"Stopped by an error: {end.error or 'see its log'}" if end.reason == "stopped" else end.reason
    scored = [each for each in verdicts if each.metric]
    counted = Counter(each.beside for each in scored)
    names = {each.baseline_name for each in scored}
    baseline = "their baselines" if len(names) > 1 else "".join(names)
    hows = [how for how in ("better", "not clearly better", "not better") if counted[how]]
    parts = [f"{counted[how]} of {len(verdicts)} {how} than {baseline}" for how in hows[:1]]
    parts += [f"{counted[how]} {how}" for how in hows[1:]]
    parts += [f"{counted['']} without a baseline"] if counted[""] else []
    parts += [f"{len(verdicts) - len(scored)} not evaluated"] if len(scored) < len(verdicts) else []
    weakest = f"; weakest: {scored[0].task}" if scored[1:] else ""
    return f"{shown[0].upper()}{shown[1:].rstrip('.')}. Tasks: {', '.join(parts)}{weakest}."


def page_title(tasks: Sequence[str], folder: str) -> str:
    """Return the names of the first tasks, and the number of the others."""
    shown = ", ".join(tasks[:MOST_OPEN])
    return f"{shown} and {len(tasks) - MOST_OPEN} more" if len(tasks) > MOST_OPEN else shown or folder


def _overview(verdicts: Sequence[Verdict]) -> Chart:
    """Draw the scores of tasks with intervals and baselines, from 0 to 1."""
    rows = []
    for each in verdicts:
        kind = metric_of(each.metric)
        assert kind is not None
        low = [] if each.baseline is None else [kind.normalized_score(each.baseline)]
        ends = sorted(map(kind.normalized_score, each.interval))
        rows.append((f"{each.task}: {each.metric}", each.normalized, ends, low))
    least = min(0.0, *(score for _, score, *_ in rows))
    note = "Lines are 95 % intervals, orange marks the baselines: always the same answer, or a random order."
    return interval_chart("Scores of all tasks", "1 is perfect", rows, "baseline", note, (least, 1))


def run_step(run: Run) -> tuple[str, str]:
    """Return what to do next if a run did not finish, and the command for it; else empty texts."""
    is_stopped = run.history.end is not None and run.history.end.reason == "stopped"
    if not (is_stopped or run.can_resume):
        return "", ""
    command = f"palm train {_configuration(run)} {'--resume auto' if run.can_resume else '--overwrite true'}"
    what = "finish it" if run.can_resume else "start it again"
    what = f"Mend what stopped the run, then {what}." if is_stopped else "Finish the run."
    return what, command if run.is_configured else ""


def _configuration(run: Run) -> str:
    return quote(str(run.folder / CONFIGURATION))


def next_step(run: Run, verdict: Verdict) -> tuple[str, str]:
    """Return what to do next for a task of a run that finished, and the command for it."""
    if not verdict.metric:
        return "It was not evaluated; give it a dev_file.", ""
    if run.is_configured and verdict.beside.startswith("not"):
        return "Look for faults in its data and settings.", f"palm check {_configuration(run)}"
    last = max((each.step for each in run.history.evaluations if each.scores.get(verdict.task)), default=0)
    epochs = run.setting(verdict.task, "num_epochs")
    if run.is_configured and verdict.step == last and isinstance(epochs, int | float) and verdict.gain < 0.99:
        longer = f"palm train {_configuration(run)} --num_epochs {2 * epochs:g} --save_path NEW_FOLDER"
        return "Its last evaluation was the best: train longer.", longer
    model = run.model(verdict.task)
    score = f"palm evaluate --model {quote(str(model.folder))} --input TEST_FILE" if model else ""
    return ("Score it on test rows.", score) if model else ("", "")


def _task(run: Run, verdict: Verdict, analysis: Analysis | str) -> dict[str, Any]:
    """Return the values of a task for the template."""
    best = run.history.best(verdict.task)
    found = analysis if isinstance(analysis, Analysis) else None
    own: Mapping[str, Sequence[float]] = {}
    if found is not None and found.model.kind == "best" and not found.other_data:
        # An interval belongs to its score. In training, thresholds of labels are fitted to other rows.
        recorded = best.scores[verdict.task] if best is not None else {}
        own = {
            name: verdict.rows.intervals.get(name, ends)
            for name, ends in found.rows.intervals.items()
            if math.isclose(found.scores[name], recorded.get(name, math.nan), rel_tol=0.01)
        }
        found = replace(found, rows=replace(found.rows, intervals={**found.rows.intervals, **own}))
    evaluated = [each for each in run.history.evaluations if each.scores.get(verdict.task)]
    return {
        "name": verdict.task,
        "verdict": verdict,
        "best": best,
        "last": evaluated[-1] if evaluated else None,
        "intervals": {**own, **verdict.rows.intervals},
        "analysis": found,
        "missing": analysis,
        "charts": [*_score_charts(run.history, verdict.task), *(_analysis_charts(found) if found else ())],
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
    counts = analysis.counts
    if counts.calibration is not None and (reliability := counts.calibration.curves()):
        ideal = Curve("ideal", [(0.0, 0.0), (1.0, 1.0)], is_dashed=True)
        lines = [Curve(name, [point[:2] for point in points]) for name, points in reliability]
        note = "above the dashed line, predictions are right more often than their probabilities say"
        made = line_chart(
            "Reliability of probabilities", "share correct", [*lines, ideal], note, "probability"
        )
        head = ["curve", "mean probability", "share correct", "predictions"]
        yield replace(
            made, head=head, rows=[(name, *point) for name, points in reliability for point in points]
        )
    if isinstance(counts, NumberCounts) and counts.values:
        yield point_chart("Residuals", ("true number", "predicted − true"), counts.values[:MOST_POINTS])


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
