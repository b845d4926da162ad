"""Errors of a saved model on its dev data, computed once and kept in the run's folder."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

import numpy as np
import torch

from palm.core.errors import PalmError
from palm.core.files.checksum import checksum
from palm.core.files.fs import write_json
from palm.core.files.manifest import MANIFEST, verified_object
from palm.core.files.records import build, read_record
from palm.core.files.untrusted import wrap_read_errors
from palm.core.logging import logger
from palm.core.numerics.device import device_of
from palm.metrics import metrics_of, scores_of
from palm.metrics.resampling import Pair, score_intervals
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_model, models_in
from palm.reader.inspection import named_texts
from palm.reader.tables.files import files_of, is_data, missing_reason
from palm.reader.tables.selection import SUFFIX, chosen_of, data_checksum, is_remote, is_selection, table_of
from palm.reader.text.squad import SquadQuestion
from palm.report.counting import Counts, LabelScore, counts_of
from palm.report.data import DataFile, statistics
from palm.report.losses import example_losses, record_loss
from palm.report.run import Model, Run
from palm.train.model_paths import DESCRIPTION
from palm.train.run_names import STATE
from palm.train.task_model import encoded

ANALYSIS_FILE = "report_data.json"
ANALYSIS_VERSION = 4

MOST_ROWS = 25
"""Number of rows shown, those with the largest loss."""

MOST_RESAMPLED = 50_000
"""Number of examples above which scores have no intervals: they would be narrow, and slow to compute."""

MOST_CHARACTERS = 400
"""Number of characters shown of a text."""


@dataclass(frozen=True)
class Row:
    """One example of the dev data in readable form.

    Args:
        place: its file and line, or its id.
        texts: the names of the columns or fields, and their texts.
        gold: the true answer.
        predicted: the model's answer.
        is_right: whether they agree.
        loss: as training computes it; None if it is not defined for a single row.
    """

    place: str
    texts: Sequence[tuple[str, str]]
    gold: str
    predicted: str
    is_right: bool
    loss: float | None


@dataclass(frozen=True)
class Analysis:
    """The errors of one task's model.

    Args:
        task: its name.
        kind: the kind of the model (see `palm.report.run.Model`).
        model: its folder.
        data: statistics of the data files that still exist.
        examples: number of examples in the dev data.
        scores: names and values of the metrics that the run was configured with, or else the head's.
        intervals: 95 % intervals of the scores by name, for those that have one.
        baseline: the share of the most frequent true label, if an example has one label.
        hardest: the rows with the largest loss.
        label_scores: of every label, the most frequent first.
        matrix_labels: of the confusion matrix; empty if it would be too large.
        matrix: a row for each true label, a column for each predicted one.
        confused: the pairs confused most often: true label, predicted label, count.
        facts: further facts, as names and values.
        groups: titles, each with ranges, their number of examples and their mean score.
        reliability: names, each with probabilities of predictions and the share of them that is right.
        other_data: a warning if the data is not what the run was scored on, else empty.
        key: hashes of the model, the dev data and this format, on which the rest depends.
    """

    task: str
    kind: str
    model: str
    data: Sequence[DataFile] = ()
    examples: int = 0
    scores: Sequence[tuple[str, float]] = ()
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    baseline: float | None = None
    hardest: Sequence[Row] = ()
    label_scores: Sequence[LabelScore] = ()
    matrix_labels: Sequence[str] = ()
    matrix: Sequence[Sequence[int]] = ()
    confused: Sequence[tuple[str, str, int]] = ()
    facts: Sequence[tuple[str, str]] = ()
    groups: Sequence[tuple[str, Sequence[tuple[str, int, float]]]] = ()
    reliability: Sequence[tuple[str, Sequence[tuple[float, float]]]] = ()
    other_data: str = ""
    key: str = ""


class Analyses(TypedDict):
    """The content of `report_data.json`."""

    version: int
    tasks: Mapping[str, Mapping[str, Any]]


def analyses_of(
    run: Run,
    predict: bool = True,
    trust: str | Sequence[str] = (),
    dev_files: Mapping[str, str | Path] = MappingProxyType({}),
) -> dict[str, Analysis | str]:
    """Analyse the best or last saved model of every task on its dev data, or say why that is not possible.

    Earlier results for the same model and data are read from the run's folder.

    Args:
        run: the run; `report_data.json` is written to its folder.
        predict: load models and predict if there are no earlier results.
        trust: as for `palm.load_model`.
        dev_files: task -> the data to predict instead of the run's dev_file.

    Returns:
        Task -> its analysis, or the reason why there is none.

    Raises:
        PalmError: `dev_files` names a task or a file that does not exist.
    """
    for task, given in dev_files.items():
        if task not in run.history.tasks:
            raise PalmError(f"dev_file: no task is called {task!r}; known: {', '.join(run.history.tasks)}")
        if not is_data(Path(given)):
            raise PalmError(f"dev_file of {task}: {missing_reason(Path(given))}: {given}")
    file = run.folder / ANALYSIS_FILE
    known: dict[str, Analysis] = {}
    if file.exists() and (stored := read_record(file, Analyses))["version"] == ANALYSIS_VERSION:
        with wrap_read_errors(file):
            known = {task: build(Analysis, values) for task, values in stored["tasks"].items()}
    found: dict[str, Analysis | str] = {}
    for task in run.history.tasks:
        found[task] = _analysis(run, task, known.get(task), predict, trust, dev_files.get(task))
    fresh = {task: each for task, each in found.items() if isinstance(each, Analysis)}
    if any(each is not known.get(task) for task, each in fresh.items()):
        tasks = {task: asdict(each) for task, each in fresh.items()}
        write_json(file, {"version": ANALYSIS_VERSION, "tasks": tasks})
    return found


def _training_data(run: Run, model: Model) -> Path | None:
    """Return the file that a model was trained on; None if it has changed since."""
    path = Path(str(run.setting(model.task, "train_file")))
    if path.is_file() and _may_show(run, path, _recorded(model, "train_file")):
        return path
    logger.info("%s: no statistics of %s, which is not the file it was trained on", model.task, path)
    return None


def _analysis(
    run: Run,
    task: str,
    known: Analysis | None,
    predict: bool,
    trust: str | Sequence[str],
    given: str | Path | None,
) -> Analysis | str:
    model = run.source(task)
    if model is None:
        return "No model or checkpoint of this task was saved, so nothing was predicted."
    recorded = _recorded(model, "dev_file")
    path = _dev_data(run, task, recorded, given)
    if isinstance(path, str):
        return path
    metrics = run.setting(task, "metrics")
    metrics = metrics.split(",") if isinstance(metrics, str) else metrics
    digest = data_checksum(path)
    key = f"{ANALYSIS_VERSION}-{metrics}-{checksum(model.folder / MANIFEST)[:16]}-{digest[:16]}"
    if known is not None and known.key == key:
        return known
    if not predict:
        return "Nothing was predicted (--no_predict)."
    logger.info("%s: predicting %s with %s", task, path, model.folder)
    other_data = ""
    if recorded is not None and recorded != digest:
        other_data = f"{path} is not the data that the run was scored on, whose SHA-256 is {recorded[:12]}…"
        logger.warning("%s: %s", task, other_data)
    try:
        found = analyse(model, path, _training_data(run, model), trust, metrics)
    except PalmError as error:  # the rest of the page is still useful
        logger.warning("%s: nothing was predicted: %s", task, error)
        return f"Nothing was predicted: {error}"
    return replace(found, key=key, other_data=other_data)


def _dev_data(run: Run, task: str, recorded: str | None, given: str | Path | None) -> Path | str:
    """Return the data for a task's model to predict, or why nothing can be predicted."""
    chosen = run.folder / f"{task}.dev{SUFFIX}"
    dev_file = given or (str(chosen) if chosen.is_file() else run.setting(task, "dev_file"))
    if dev_file is None:
        why = "The task has no dev_file" if run.sections else "The run recorded no dev_file"
        return f"{why}, so nothing was predicted."
    path = Path(str(dev_file))
    if given is None and not _may_show(run, path, recorded):
        return (
            f"{path} names data outside the run's folder that is not, or no longer, what the run was "
            f"evaluated on, so nothing was predicted. To predict it anyway: --dev_file {task}={path}"
        )
    if not is_data(path):
        return f"The dev data is no longer at {path}, so nothing was predicted."
    return path


def _may_show(run: Run, path: Path, recorded: str | None) -> bool:
    """Check whether a file may be shown: it is in the run's folder, or a model recorded its SHA-256.

    Whoever made the folder knows what they put into it, and can know the digest only of a file they had. A
    URL would have to be opened first. The answer must not depend on whether a file outside exists.
    """
    root = run.folder.resolve()
    try:
        if is_remote(path):
            return False
        if is_selection(path):
            chosen_of(path, files_of(table_of(path)))  # raises an error if the table is another
        else:
            # Each file, because a list, a pattern or a folder of tables may lead elsewhere in part.
            files = files_of(path) if is_data(path) else [path]
            if all(each.resolve().is_relative_to(root) for each in files):
                return True
        return recorded == data_checksum(path)
    except (PalmError, OSError):
        return False


def _recorded(model: Model, setting: str) -> str | None:
    """Return the SHA-256 of a data file as recorded when a model was trained."""
    file = DESCRIPTION if (model.folder / DESCRIPTION).is_file() else STATE
    description = verified_object(model.folder, file)
    with wrap_read_errors(model.folder / file):
        of_model = (description.get("training") or {}).get("data") or {}
        data = description.get("data", {}).get(model.task, {}) if file == STATE else of_model
        sha256 = (data.get(setting) or {}).get("sha256")
        return None if sha256 is None else str(sha256)


def analyse(
    model: Model,
    dev_file: Path,
    train_file: Path | None = None,
    trust: str | Sequence[str] = (),
    metric_names: Sequence[str] | None = None,
) -> Analysis:
    """Predict a file with labels, and find where the predictions are wrong.

    Raises:
        StorageError: the model is damaged, or names code that is not trusted.
        DataError: a row cannot be used; with its file and line.
    """
    loaded = _loaded(model, trust).to(device_of(torch.cuda.is_available(), "auto"))
    reader = loaded.reader
    counts = counts_of(reader)
    metrics = metrics_of(metric_names or loaded.head.metrics)
    pairs: list[Pair] = []
    windows: list[int] = []
    rows = _judged_rows(loaded, dev_file, counts, pairs, windows)
    hardest = heapq.nlargest(MOST_ROWS, rows, key=lambda row: (row.loss or 0.0, not row.is_right))
    labels, matrix = counts.matrix()
    files = [(train_file, "train"), (dev_file, "dev")]
    intervals = (
        [score_intervals(metric, pairs) for metric in metrics] if 0 < len(pairs) <= MOST_RESAMPLED else []
    )
    return Analysis(
        model.task,
        model.kind,
        str(model.folder),
        [statistics(reader, path, role) for path, role in files if path is not None and is_data(path)],
        len(windows),
        list(scores_of(metrics, pairs).items()) if pairs else [],
        {name: list(ends) for each in intervals for name, ends in each.items()},
        counts.baseline(),
        hardest,
        counts.label_scores(),
        labels,
        matrix,
        counts.confused(),
        counts.facts(),
        counts.groups(windows),
        counts.reliability(),
    )


def _loaded(model: Model, trust: str | Sequence[str]) -> InferenceModel:
    if (model.folder / DESCRIPTION).is_file():
        return load_model(model.folder, trust=trust)
    return next(each for each in models_in(model.folder, trust) if each.task == model.task)


def _judged_rows(
    model: InferenceModel, path: Path, counts: Counts, pairs: list[Pair], windows: list[int]
) -> Iterator[Row]:
    """Predict a file and yield its examples; update `counts`, and append to `pairs` and `windows`."""
    reader = model.reader
    for chunk in encoded(reader, reader.read_gold(path)):
        windows += np.bincount(chunk.rows["example"].values, minlength=len(chunk.examples)).tolist()
        losses = example_losses(model, chunk.examples)
        for each, loss in zip(model.predictions([chunk], with_gold=True), losses, strict=True):
            assert each.gold is not None
            pairs.append((each.record, each.gold))
            yield Row(
                str(getattr(each.example, "place", "")),
                _texts(each.example),
                *counts.judge(each.example, each.record, each.gold),
                record_loss(each.record) if loss is None else loss,
            )


def _texts(example: Any) -> list[tuple[str, str]]:
    """Return the names and texts of an example; of a long context, the part around the first answer."""
    answers = example.answers if isinstance(example, SquadQuestion) else ()
    begin = next((answer.start for answer in answers if answer.start is not None), 0)
    return [(name, _window(text, begin if name == "context" else 0)) for name, text in named_texts(example)]


def _window(text: str, middle: int) -> str:
    start = max(0, min(middle - MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS))
    end = start + MOST_CHARACTERS
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
