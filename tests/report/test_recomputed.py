"""Numbers that a page shows, computed again from predictions by other libraries, or by their definition.

At least 110 in all: 50 of one classifier, 16 of another, and every score of every kind of task.
"""

from __future__ import annotations

import csv
import html
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palm
from palm.cli.starter.project import KINDS, write_project
from palm.report.analysis import Analysis, analyses_of
from palm.report.page import page as page_of
from palm.report.run import read_run
from palm.train.task_model import encoded

pytest.importorskip("altair", reason="the extra report is not installed")
sklearn = pytest.importorskip("sklearn.metrics", reason="the extra judges is not installed")
seqeval = pytest.importorskip("seqeval.metrics", reason="the extra judges is not installed")
scheme = pytest.importorskip("seqeval.scheme", reason="the extra judges is not installed")
stats = pytest.importorskip("scipy.stats", reason="the extra judges is not installed")


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


class Page:
    """The page of a run of all kinds of tasks, and what it was made of."""

    def __init__(self, folder: Path) -> None:
        self.run = read_run(folder)
        self.analyses = analyses_of(self.run)
        self.text = page_of(self.run, self.analyses)
        self.results: dict[str, dict[str, list[str]]] = {}
        task = ""
        for row in Tables(self.text).tables["results"][1:]:
            if len(row) > 6:
                task = re.split("target|auxiliary", row.pop(0))[0].strip()
            self.results.setdefault(task, {})[row[0].split()[0]] = row[1:]

    def part(self, task: str) -> str:
        """A task's section."""
        parts = re.split(r'<details class="fold" id="task-\d+"', self.text)
        return parts[1 + self.run.history.tasks.index(task)]

    def rows(self, task: str) -> list[Any]:
        """The rows of its dev file."""
        file = Path(str(self.run.setting(task, "dev_file")))
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".tsv":
            return list(csv.DictReader(text.splitlines(), delimiter="\t"))
        if file.suffix == ".jsonl":
            return list(map(json.loads, text.splitlines()))
        pages = (page for article in json.loads(text)["data"] for page in article["paragraphs"])
        return [question for page in pages for question in page["qas"]]

    def records(self, task: str) -> list[Mapping[str, Any]]:
        """What its best model predicts for them."""
        source = self.run.source(task)
        assert source is not None
        model = palm.load_model(source.folder, precision=self.run.history.start.precision)
        dev = Path(str(self.run.setting(task, "dev_file")))
        chunks = encoded(model.reader, model.reader.read_gold(dev))
        return [each.record for each in model.predictions(chunks, with_gold=True)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("recomputed")
    write_project(folder / "shop", {kind: kind for kind in KINDS})
    steps = 12 * len(KINDS)
    given = {
        "mixing": "round_robin",
        "max_steps": steps,
        "eval_every_n_steps": steps,
        "eval_every_epoch": False,
    }
    given |= {"learning_rate": 3e-3, "save_path": folder / "run", "target_tag": ", ".join("1" * len(KINDS))}
    argv = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    palm.Controller(str(folder / "shop" / "config.yaml"), argv=argv).train()
    return Page(folder / "run")


def labels_of(page: Page, task: str) -> tuple[list[str], list[str]]:
    """True and predicted labels by name."""
    given = [record["label"] for record in page.records(task)]
    file = page.run.setting(task, "label_map")
    ids = json.loads(Path(str(file)).read_text("utf-8")) if file else {str(n): n for n in range(9)}
    names = {number: name for name, number in ids.items()}
    return [row["label"] for row in page.rows(task)], [names[label] for label in given]


@pytest.mark.parametrize(("task", "least"), [("cls", 50), ("match", 16)])
def test_the_numbers_of_a_classifier_are_those_of_scikit_learn(page: Page, task: str, least: int) -> None:
    true, given = labels_of(page, task)
    tables = Tables(page.part(task)).tables
    shown = tables["confusion matrix"]
    seen = [re.sub(r" \d+$", "", row[0]) for row in shown[1:]]
    assert sorted(seen) == sorted({*true, *given})
    checked = 0

    matrix = [list(map(int, (cell.replace("·", "0") for cell in row[1:]))) for row in shown[1:]]
    assert matrix == sklearn.confusion_matrix(true, given, labels=seen).tolist()
    checked += len(seen) ** 2

    precision, recall, f1, support = sklearn.precision_recall_fscore_support(
        true, given, labels=seen, zero_division=0
    )
    expected = {
        label: [f1[k], precision[k], recall[k], support[k], given.count(label)]
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

    assert {row[0]: int(row[1]) for row in tables["Labels of dev data"][1:]} == Counter(true)
    checked += len(set(true))
    confused = Counter((t, g) for t, g in zip(true, given, strict=True) if t != g)
    for row in tables.get("most confused pairs", [[]])[1:]:
        assert confused[row[0], row[1]] == int(row[2])
        checked += 1
    assert checked >= least


def test_baselines_and_intervals_are_those_of_their_definitions(page: Page) -> None:
    true, given = labels_of(page, "cls")
    accuracy = sklearn.accuracy_score(true, given)
    common = [Counter(true).most_common(1)[0][0]] * len(true)
    score, interval, constant = page.results["cls"]["accuracy"][:3]
    assert (score, constant) == (f"{accuracy:.2f}", f"{sklearn.accuracy_score(true, common):.2f}")
    # Wilson's interval: the shares that are 1.96 standard errors of their own from the observed one.
    grid = np.linspace(0, 1, 200_001)
    inside = grid[np.abs(accuracy - grid) <= 1.96 * np.sqrt(grid * (1 - grid) / len(true))]
    assert interval == f"{inside[0]:.2f} to {inside[-1]:.2f}"
    expected = sklearn.f1_score(true, common, average="macro", zero_division=0)
    assert page.results["cls"]["macro_f1"][2] == f"{expected:.2f}"
    # A mean over labels: percentiles of resampled rows, less their bias.
    macro, shown = page.results["cls"]["macro_f1"][:2]
    rows = np.random.default_rng(5).integers(0, len(true), (1000, len(true)))
    of_labels = np.array([true, given])
    resampled = [sklearn.f1_score(*of_labels[:, drawn], average="macro", zero_division=0) for drawn in rows]
    ends = np.percentile(resampled, (2.5, 97.5)) + float(macro) - np.mean(resampled)
    assert list(map(float, shown.split(" to "))) == pytest.approx(ends.clip(0, 1), abs=0.04)
    assert f"macro_f1 {macro} ({shown})" in page.part("cls")  # the same beside its errors
    stars = [row["label"] for row in page.rows("ordinal")]  # a constant answer agrees as by chance
    share = Counter(stars).most_common(1)[0][1] / len(stars)
    baselines = {name: cells[2] for name, cells in page.results["ordinal"].items()}
    assert (baselines["qwk"], baselines["accuracy"]) == ("0.00", f"{share:.2f}")
    orders = page.results["ranking"]["mrr"][2]  # of one right candidate of three, in a random order
    assert orders == f"{(1 + 1 / 2 + 1 / 3) / 3:.2f}"


Scores = dict[str, float]

LABELS = {"order_status": 0, "return_item": 1, "opening_hours": 2, "book_repair": 3}


def rates(true: Sequence[Any], given: Sequence[Any], name: str) -> Scores:
    """F1, precision and recall of sets of things."""
    right = sum(len({*t} & {*g}) for t, g in zip(true, given, strict=True))
    precision = right / max(1, sum(map(len, given)))
    recall = right / max(1, sum(map(len, true)))
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {f"{name}_f1": f1, f"{name}_precision": precision, f"{name}_recall": recall}


def of_labels(rows: list[Any], records: list[Any]) -> Scores:
    right = [int(row["label"]) == record["label"] for row, record in zip(rows, records, strict=True)]
    return {"accuracy": float(np.mean(right))}


def of_classes(rows: list[Any], records: list[Any]) -> Scores:
    true = [LABELS[row["label"]] if row["label"] in LABELS else int(row["label"]) for row in rows]
    given = [record["label"] for record in records]
    macro = sklearn.f1_score(true, given, average="macro", zero_division=0)
    return {"accuracy": sklearn.accuracy_score(true, given), "macro_f1": macro}


def of_sets(rows: list[Any], records: list[Any]) -> Scores:
    true = np.array([[name in row["label"].split(", ") for name in LABELS] for row in rows])
    given = np.array([[number in record["labels"] for number in LABELS.values()] for record in records])
    probs = np.array([record["probs"] for record in records])
    return {
        "lrap": sklearn.label_ranking_average_precision_score(true, probs),
        "micro_f1": sklearn.f1_score(true, given, average="micro", zero_division=0),
        "macro_f1": sklearn.f1_score(true, given, average="macro", zero_division=0),
        "exact_match": sklearn.accuracy_score(true, given),
    }


def of_tags(rows: list[Any], records: list[Any]) -> Scores:
    true = [row["label"].split() for row in rows]
    given = [record["labels"] for record in records]
    strict = {"mode": "strict", "scheme": scheme.IOB2, "zero_division": 0}
    return {
        "entity_f1": seqeval.f1_score(true, given, **strict),
        "entity_precision": seqeval.precision_score(true, given, **strict),
        "entity_recall": seqeval.recall_score(true, given, **strict),
        "token_accuracy": seqeval.accuracy_score(true, given),
    }


def spans_of(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [(each["start"], each["end"], each["label"]) for each in record["spans"]]


def of_spans(rows: list[Any], records: list[Any]) -> Scores:
    return rates(list(map(spans_of, rows)), list(map(spans_of, records)), "span")


def of_relations(rows: list[Any], records: list[Any]) -> Scores:
    def relations(record: Mapping[str, Any], most: int) -> list[tuple[Any, ...]]:
        spans = [span[:most] for span in spans_of(record)]
        return [(each["label"], spans[each["head"]], spans[each["tail"]]) for each in record["relations"]]

    found: Scores = {}
    for name, most in (("relation_strict", 3), ("relation_boundary", 2)):
        true, given = ([relations(each, most) for each in side] for side in (rows, records))
        found |= rates(true, given, name)
    return found | of_spans(rows, records)


def of_answers(rows: list[Any], records: list[Any]) -> Scores:
    pairs = [
        (row["answers"][0]["text"].lower().split(), record["text"].lower().split())
        for row, record in zip(rows, records, strict=True)
    ]
    common = [2 * sum((Counter(t) & Counter(g)).values()) / (len(t) + len(g)) for t, g in pairs]
    return {
        "f1": 100 * float(np.mean(common)),
        "exact_match": 100 * float(np.mean([t == g for t, g in pairs])),
    }


def of_order(relevance: Any, scores: Any) -> Scores:
    """Scores of rankings with one relevant candidate each."""
    ranks = 1 + (scores > scores[relevance > 0][:, None]).sum(1)
    return {
        "mrr": float(np.mean(1 / ranks)),
        "ndcg_at_10": sklearn.ndcg_score(relevance, scores, k=10),
        "recall_at_1": float(np.mean(ranks <= 1)),
        "recall_at_10": float(np.mean(ranks <= 10)),
    }


def of_rankings(rows: list[Any], records: list[Any]) -> Scores:
    relevance = np.array([json.loads(row["label"]) for row in rows])
    return of_order(relevance, np.array([record["scores"] for record in records]))


def of_vectors(rows: list[Any], records: list[Any]) -> Scores:
    texts = list(dict.fromkeys(row["text_b"] for row in rows))
    vectors = {row["text_b"]: record["embedding_b"] for row, record in zip(rows, records, strict=True)}
    relevance = np.array([[text == row["text_b"] for text in texts] for row in rows], dtype=int)
    queries = np.array([record["embedding"] for record in records])
    return of_order(relevance, queries @ np.array([vectors[text] for text in texts]).T)


def of_stars(rows: list[Any], records: list[Any]) -> Scores:
    true = [int(row["label"]) for row in rows]
    given = [record["label"] for record in records]
    kappa = sklearn.cohen_kappa_score(true, given, weights="quadratic", labels=range(5))
    return {"qwk": kappa, **of_labels(rows, records)}


def of_numbers(rows: list[Any], records: list[Any]) -> Scores:
    true = [float(row["label"]) for row in rows]
    given = [record["value"] for record in records]
    return {
        "poisson_deviance": sklearn.mean_poisson_deviance(true, given),
        "spearman": stats.spearmanr(true, given).statistic,
        "mse": sklearn.mean_squared_error(true, given),
    }


def of_words(rows: list[Any], records: list[Any]) -> Scores:
    assert len(rows) == len(records)
    words = [word for record in records for word in record["words"]]
    right = np.mean([word["word"] == word["predicted"] for word in words])
    return {
        "perplexity": math.exp(-np.mean([word["log_prob"] for word in words])),
        "word_accuracy": float(right),
    }


SCORES: dict[str, Callable[[list[Any], list[Any]], Scores]] = {
    "cls": of_classes,
    "multi_label": of_sets,
    "seq_label": of_tags,
    "span": of_spans,
    "relation": of_relations,
    "mrc": of_answers,
    "match": of_classes,
    "multiple_choice": of_labels,
    "ranking": of_rankings,
    "embedding": of_vectors,
    "ordinal": of_stars,
    "count": of_numbers,
    "mlm": of_words,
}


@pytest.mark.parametrize("task", KINDS)
def test_every_score_of_every_kind_is_that_of_its_definition(page: Page, task: str) -> None:
    analysis = page.analyses[task]
    assert isinstance(analysis, Analysis), analysis
    assert analysis.data["examples"] == len(page.rows(task))
    assert analysis.hardest[0].place in html.unescape(page.part(task))
    expected = SCORES[task](page.rows(task), page.records(task))
    (said,) = re.findall(r"dev examples:(.*?)(?:;|, with)", page.part(task), re.DOTALL)
    shown = dict(re.findall(r"(\w+) ([\d.]+)", re.sub(r"\(.*?\)", "", said)))
    assert page.results[task].keys() == shown.keys() == expected.keys()
    for name, value in expected.items():
        digits = len(shown[name].partition(".")[2])
        assert float(shown[name]) == pytest.approx(value, abs=0.5001 * 10**-digits), name
        # In training, labels have thresholds that are fitted to other rows than they are scored on.
        if task != "multi_label" or name == "lrap":
            assert page.results[task][name][0] == shown[name]
        low, high = map(float, page.results[task][name][1].split(" to "))
        assert low <= float(page.results[task][name][0]) <= high
