"""Errors of a saved model on its dev data."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.metrics import metrics_of, scores_of
from palm.metrics.resampling import Pair
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_models
from palm.reader.inspection import FileStatistics, named_texts
from palm.reader.squad import SquadQuestion
from palm.reader.tables.files import (
    SUFFIX,
    chosen_of,
    data_checksum,
    files_of,
    is_data,
    is_remote,
    is_selection,
    missing_reason,
    table_of,
)
from palm.report.run import Model, Run, training_of
from palm.train.callbacks import ScoredRows
from palm.train.counting import Counts, Judged, Mark, counts_of, scored_rows
from palm.train.task_model import encoded

MOST_ROWS = 25
"""Number of rows shown, those with the largest error."""

MOST_OF_CELL = 5
"""Number of rows shown of a true and a predicted label."""

MOST_OF_CELLS = 250
"""Number of rows shown of all true and predicted labels."""

MOST_CHARACTERS = 400
"""Number of characters shown of a text."""


class Part(NamedTuple):
    """A part of a text; kind and label as in `Mark`, or empty."""

    text: str
    kind: str = ""
    label: str = ""


@dataclass(frozen=True)
class Row:
    """One example of the dev data in readable form.

    Args:
        place: its file and line, or its id.
        texts: the names of the columns or fields, and their texts, in parts.
        judged: the model's answer beside the gold value.
    """

    place: str
    texts: Sequence[tuple[str, Sequence[Part]]]
    judged: Judged


@dataclass(frozen=True)
class Analysis:
    """The errors of one task's model.

    Args:
        model: the model.
        data: statistics of the dev data, see `FileStatistics.summary`.
        scores: values by name of the metrics that the run was configured with, or else the head's.
        rows: the dev rows, and what the scores stand beside.
        counts: of the predictions against the gold values.
        hardest: the rows with the largest error.
        other_data: a warning if the data is not what the run was scored on, else empty.
    """

    model: Model
    data: Mapping[str, Any]
    scores: Mapping[str, float]
    rows: ScoredRows
    counts: Counts
    hardest: Sequence[Row] = ()
    other_data: str = ""


def analyses_of(
    run: Run,
    predict: bool = True,
    trust: str | Sequence[str] = (),
    dev_files: Mapping[str, str | Path] = MappingProxyType({}),
) -> dict[str, Analysis | str]:
    """Analyse the best or last saved model of every task on its dev data, or say why that is not possible.

    Args:
        run: the run.
        predict: load models and predict.
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
    if not predict:
        return dict.fromkeys(run.history.tasks, "Nothing was predicted (--no_predict).")
    return {task: _analysis(run, task, trust, dev_files.get(task)) for task in run.history.tasks}


def _analysis(run: Run, task: str, trust: str | Sequence[str], given: str | Path | None) -> Analysis | str:
    model = run.source(task)
    if model is None:
        return "No model or checkpoint of this task was saved, so nothing was predicted."
    try:
        recorded = _recorded(model)
        path = _dev_data(run, task, recorded, given)
        if isinstance(path, str):
            return path
        other_data = ""
        if recorded not in (None, data_checksum(path)):
            other_data = (
                f"{path} is not the data that the run was scored on, whose SHA-256 is {recorded:.12}…"
            )
            logger.warning("%s: %s", task, other_data)
        logger.info("%s: predicting %s with %s", task, path, model.folder)
        return _predicted(run, model, path, trust, other_data)
    except PalmError as error:  # the rest of the page is still useful; a run that goes on replaces its models
        logger.warning("%s: nothing was predicted: %s", task, error)
        return f"Nothing was predicted: {error}"


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


def _recorded(model: Model) -> str | None:
    """Return the SHA-256 of the dev_file as recorded when a model was trained."""
    sha256 = ((training_of(model).get("data") or {}).get("dev_file") or {}).get("sha256")
    return None if sha256 is None else str(sha256)


def _predicted(
    run: Run, model: Model, dev_file: Path, trust: str | Sequence[str], other_data: str
) -> Analysis:
    """Predict a file with labels, and find where the predictions are wrong."""
    # In the precision of the run, whose scores are shown beside these.
    loaded = _loaded(model, trust, run.history.start.precision or "auto")
    names = run.setting(model.task, "metrics") or loaded.head.metrics
    metrics = metrics_of(names.split(",") if isinstance(names, str) else names)
    counts = counts_of(loaded.reader)
    statistics = FileStatistics(loaded.reader)
    pairs: list[Pair] = []
    hardest = _hardest(_judged_rows(loaded, dev_file, counts, statistics, pairs))
    return Analysis(
        model,
        statistics.summary(),
        scores_of(metrics, pairs) if pairs else {},
        scored_rows(metrics, counts, pairs, is_quick=False),
        counts,
        hardest,
        other_data,
    )


def _hardest(rows: Iterable[Row]) -> list[Row]:
    """Return the rows with the largest errors, and those of every true and predicted label."""
    kept: dict[tuple[str, str] | None, list[tuple[float, int, Row]]] = {}
    for number, row in enumerate(rows):
        # Of equal errors the first rows are kept.
        ranked = (row.judged.error, -number, row)
        for cell, most in ((None, MOST_ROWS), (row.judged.cell, MOST_OF_CELL)):
            heap = kept.setdefault(cell, [])
            heapq.heappush(heap, ranked)
            if len(heap) > most:
                heapq.heappop(heap)
    found = {-number: (error, number, row) for heap in kept.values() for error, number, row in heap}
    return [row for *_, row in sorted(found.values(), reverse=True)[:MOST_OF_CELLS]]


def _loaded(model: Model, trust: str | Sequence[str], precision: str) -> InferenceModel:
    return load_models(model.folder, trust=trust, precision=precision).tasks[model.task]


def _judged_rows(
    model: InferenceModel, path: Path, counts: Counts, statistics: FileStatistics, pairs: list[Pair]
) -> Iterator[Row]:
    """Predict a file and yield its examples; update `counts` and `statistics`, and append to `pairs`."""
    for chunk in encoded(model.reader, model.reader.read_gold(path)):
        for each in model.predictions([chunk], with_gold=True):
            assert each.gold is not None
            pairs.append((each.record, each.gold))
            place = str(getattr(each.example, "place", ""))
            judged = counts.judge(each.example, each.record, each.gold)
            yield Row(place, _texts(each.example, judged.marks), judged)
        statistics.add(chunk.rows, [gold for _, gold in pairs[-len(chunk.examples) :]])


def _texts(example: Any, marks: Sequence[Mark]) -> list[tuple[str, list[Part]]]:
    """Return the names and texts of an example; of a long one, the part around its first mark."""
    texts = named_texts(example)
    marked = "context" if isinstance(example, SquadQuestion) else texts[0][0]
    return [(name, parts_of(text, marks if name == marked else ())) for name, text in texts]


def parts_of(text: str, marks: Sequence[Mark] = ()) -> list[Part]:
    """Divide a text where marks begin or end; what two marks of one label share is right."""
    middle = min((mark.start for mark in marks), default=0)
    start = max(0, min(middle - MOST_CHARACTERS // 2, len(text) - MOST_CHARACTERS))
    end = min(len(text), start + MOST_CHARACTERS)
    inside = {place for mark in marks for place in mark[:2] if start < place < end}
    found = [Part("…")] if start else []
    for first, last in pairwise(sorted({start, end, *inside})):
        own = [mark for mark in marks if mark.start <= first and last <= mark.end]
        kinds = {mark.kind for mark in own}
        kind = next((kind for kind in ("wrong label", "missed", "extra", "right") if kind in kinds), "")
        labelled = {each: {mark.label for mark in own if mark.kind == each} for each in ("missed", "extra")}
        if all(labelled.values()):
            kind = "right" if labelled["missed"] & labelled["extra"] else "wrong label"
        labels = dict.fromkeys(mark.label for mark in own if mark.start == first)
        found.append(Part(text[first:last], kind, ", ".join(labels)))
    return [*found, *([Part("…")] if end < len(text) else [])]
