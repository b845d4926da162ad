"""Numbers that a page shows, computed again from predictions by other libraries, or by their definition.

At least 64 in all: 40 of one classifier, 16 of another, and 8 scores, baselines and ends of an interval.
"""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import palm
from helpers import runs
from palm.report.run import read_run

pytest.importorskip("altair", reason="the extra report is not installed")
sklearn = pytest.importorskip("sklearn.metrics", reason="the extra judges is not installed")


class Tables(HTMLParser):
    """The tables of a part of a page: rows of cells, by the `aria-label` of what is around them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self._rows: list[list[str]] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "div" and found.get("role") == "region":
            self._rows = self.tables.setdefault(found["aria-label"] or "", [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append("")
            self._inside = True

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._rows[-1][-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")


def numbers(cells: list[str]) -> list[float]:
    return [float(cell) for cell in cells if re.fullmatch(r"\s*[\d.]+\s*", cell)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train(tmp_path_factory.mktemp("recomputed"), "cls", "match", "mrc", learning_rate=3e-3)


@pytest.mark.parametrize(("task", "least"), [("cls", 40), ("match", 16)])
def test_the_numbers_of_a_classifier_are_those_of_scikit_learn(run: Path, task: str, least: int) -> None:
    text = palm.write_report(run).read_text(encoding="utf-8")
    shown = read_run(run)
    part = re.split(r'<details class="fold" id="task-\d"', text)[1 + shown.history.tasks.index(task)]
    source = shown.source(task)
    dev = Path(str(shown.setting(task, "dev_file")))
    assert source is not None
    true = [int(line.split("\t")[0]) for line in dev.read_text(encoding="utf-8").splitlines()[1:]]
    model = palm.load_model(source.folder, precision=shown.history.start.precision)
    given = [record["label"] for record in model.records(iter(list(model.reader.read_gold(dev))))]
    tables = Tables(part).tables
    seen = sorted({*true, *given})
    checked = 0

    matrix = [
        list(map(int, (cell.replace("·", "0") for cell in row[1:]))) for row in tables["confusion matrix"][1:]
    ]
    assert matrix == sklearn.confusion_matrix(true, given, labels=seen).tolist()
    checked += len(seen) ** 2

    precision, recall, f1, support = sklearn.precision_recall_fscore_support(
        true, given, labels=seen, zero_division=0
    )
    expected = {
        str(label): [f1[k], precision[k], recall[k], support[k], given.count(label)]
        for k, label in enumerate(seen)
    }
    report = sklearn.classification_report(true, given, labels=seen, zero_division=0, output_dict=True)
    report["micro avg"] = report.get("micro avg") or dict.fromkeys(report["macro avg"], report["accuracy"])
    for name in ("micro", "macro", "weighted"):
        mean = [report[f"{name} avg"][number] for number in ("f1-score", "precision", "recall")]
        expected[f"{name} average"] = [*mean, len(true), len(true)]
    assert len(tables["scores by label"]) == 1 + len(expected)
    for row in tables["scores by label"][1:]:
        assert numbers(row[1:]) == pytest.approx(expected[row[0]], abs=5.1e-4)
        checked += 5

    assert {row[0]: int(row[1]) for row in tables["Labels of dev data"][1:]} == Counter(map(str, true))
    checked += len(set(true))
    confused = Counter((t, g) for t, g in zip(true, given, strict=True) if t != g)
    for row in tables.get("most confused pairs", [[]])[1:]:
        assert confused[int(row[0]), int(row[1])] == int(row[2])
        checked += 1
    assert checked >= least


def test_scores_intervals_baselines_and_answers_are_those_of_their_definitions(run: Path) -> None:
    text = palm.write_report(run).read_text(encoding="utf-8")
    shown = read_run(run)
    rows: dict[str, list[str]] = {}
    task = ""
    for row in Tables(text).tables["results"][1:]:
        task = re.split("target|auxiliary", row[0])[0].strip() if len(row) > 6 else task
        metric, *values = row[1:] if len(row) > 6 else row
        rows[f"{task} {metric.split()[0]}"] = values
    dev = Path(str(shown.setting("cls", "dev_file")))
    true = [int(line.split("\t")[0]) for line in dev.read_text(encoding="utf-8").splitlines()[1:]]
    model = palm.load_model(run / "cls" / "best_model", precision=shown.history.start.precision)
    given = [record["label"] for record in model.records(iter(list(model.reader.read_gold(dev))))]
    accuracy = sklearn.accuracy_score(true, given)
    common = [Counter(true).most_common(1)[0][0]] * len(true)
    score, interval, constant = rows["cls accuracy"][:3]
    assert (score, constant) == (f"{accuracy:.2f}", f"{sklearn.accuracy_score(true, common):.2f}")
    # Wilson's interval: the shares that are 1.96 standard errors of their own from the observed one.
    grid = np.linspace(0, 1, 200_001)
    inside = grid[np.abs(accuracy - grid) <= 1.96 * np.sqrt(grid * (1 - grid) / len(true))]
    assert interval == f"{inside[0]:.2f} to {inside[-1]:.2f}"
    macro = sklearn.f1_score(true, given, average="macro", zero_division=0)
    score, _, constant = rows["cls macro_f1"][:3]
    expected = sklearn.f1_score(true, common, average="macro", zero_division=0)
    assert (score, constant) == (f"{macro:.2f}", f"{expected:.2f}")

    reader = palm.load_model(run / "mrc" / "best_model", precision=shown.history.start.precision)
    questions = list(reader.reader.read_gold(Path(str(shown.setting("mrc", "dev_file")))))
    answers = [record["text"] for record in reader.records(iter(questions))]
    exact = [answer == question.answers[0].text for answer, question in zip(answers, questions, strict=True)]
    assert float(rows["mrc exact_match"][0]) == pytest.approx(100 * np.mean(exact), abs=0.06)
    common_words = [
        sum((Counter(a.split()) & Counter(q.answers[0].text.split())).values())
        for a, q in zip(answers, questions, strict=True)
    ]
    f1 = [
        2 * n / (len(a.split()) + len(q.answers[0].text.split()))
        for n, a, q in zip(common_words, answers, questions, strict=True)
    ]
    assert float(rows["mrc f1"][0]) == pytest.approx(100 * np.mean(f1), abs=0.06)
