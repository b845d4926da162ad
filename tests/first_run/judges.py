"""Plain scikit-learn models on TF-IDF or words: what a first run should not be beaten by."""

from __future__ import annotations

import re
from itertools import permutations
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

from palm.metrics import METRICS, scores_of
from palm.metrics.ranking import ranking_scores
from palm.metrics.spans import entities

Rows = list[dict[str, Any]]


def score(metric: str, train: Rows, test: Rows, text: str, label: str) -> float:
    """Train a plain model on rows, and score it on others by a metric of palm.

    Args:
        metric: the metric; it decides what is predicted.
        train, test: the rows.
        text: the column of the text.
        label: the column of the label.
    """
    if metric == "mrr":
        return ranked(train, test, text)
    if metric in ("entity_f1", "span_f1"):
        return tagged(metric, train, test, text, label)
    if metric in OTHERS:
        return OTHERS[metric](train, test)
    true = [row[label] for row in test]
    if isinstance(train[0].get("choices"), list):
        return chosen(train, test, text)
    both = [[_text(row[text]) for row in each] for each in (train, test)]
    if "text_b" in train[0]:
        features = paired(both, [[row["text_b"] for row in each] for each in (train, test)])
    else:
        vectors = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\S+")
        features = [vectors.fit_transform(both[0]), vectors.transform(both[1])]
    labels = [row[label] for row in train]
    if metric == "micro_f1":
        sets = MultiLabelBinarizer()
        model = OneVsRestClassifier(LogisticRegression(C=10)).fit(features[0], sets.fit_transform(labels))
        predicted = sets.inverse_transform(model.predict(features[1]))
        pairs = [
            ({"labels": ours}, {"label_set": theirs}) for ours, theirs in zip(predicted, true, strict=True)
        ]
        return scores_of([METRICS["label_f1"]], pairs)[metric]
    is_number = metric in ("pearson", "spearman", "mse")
    key = "value" if is_number else "label"
    models = [Ridge()] if is_number else [LogisticRegression(C=10, max_iter=1000)]
    if all(type(value) is int and value >= 0 for value in labels) and is_number:
        models.append(PoissonRegressor(alpha=0.01, max_iter=1000))
    found = []
    for model in models:
        predicted = model.fit(features[0], labels).predict(features[1]).tolist()
        pairs = [({key: ours}, {key: theirs}) for ours, theirs in zip(predicted, true, strict=True)]
        found.append(scores_of([METRICS[metric]], pairs)[metric])
    return max(found)


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)


def paired(one: list[list[str]], other: list[list[str]]) -> list[csr_matrix]:
    """Features of pairs of texts: both, their product, and their cosine."""
    vectors = TfidfVectorizer(token_pattern=r"\S+").fit(one[0] + other[0])
    found = []
    for texts, others in zip(one, other, strict=True):
        a, b = vectors.transform(texts), vectors.transform(others)
        product = a.multiply(b)
        found.append(hstack([a, b, product, csr_matrix(product.sum(1))]).tocsr())
    return found


def chosen(train: Rows, test: Rows, text: str) -> float:
    """Accuracy of the choice with the highest probability of fitting its question."""
    pairs = [[[(row[text], choice) for row in rows for choice in row["choices"]] for rows in (train, test)]][
        0
    ]
    features = paired(*[[[pair[side] for pair in each] for each in pairs] for side in (0, 1)])
    labels = [k == row["label"] for row in train for k in range(len(row["choices"]))]
    model = LogisticRegression(C=10, max_iter=1000).fit(features[0], labels)
    probs = model.predict_proba(features[1])[:, 1].reshape(len(test), -1)
    return float((probs.argmax(1) == [row["label"] for row in test]).mean())


def ranked(train: Rows, test: Rows, text: str) -> float:
    """Reciprocal rank of the candidates, or of all answers, by the cosine of TF-IDF."""
    if "candidates" in train[0]:
        known = [t for row in train for t in (row[text], *row["candidates"])]
        vectors = TfidfVectorizer(token_pattern=r"\S+").fit(known)
        found = []
        for row in test:
            scores = (vectors.transform([row[text]]) @ vectors.transform(row["candidates"]).T).toarray()[0]
            found.append(ranking_scores(row["label"], scores)["mrr"])
        return float(np.mean(found))
    vectors = TfidfVectorizer(token_pattern=r"\S+").fit([t for row in train for t in row.values()])
    one, other = (vectors.transform([row[name] for row in test]) for name in test[0])
    scores = (one @ other.T).toarray()
    return float(np.mean([ranking_scores(np.eye(len(test))[k], scores[k])["mrr"] for k in range(len(test))]))


def tagged(metric: str, train: Rows, test: Rows, text: str, label: str) -> float:
    """F1 of entities, or of spans of characters, of a model of each word and its neighbours."""
    has_spans = metric == "span_f1"
    tags = [_tags(row[text], row[label]) if has_spans else row[label] for row in train]
    vectors = DictVectorizer()
    features = vectors.fit_transform([each for row in train for each in _words(row[text])])
    model = LogisticRegression(C=10, max_iter=1000).fit(features, [tag for row in tags for tag in row])
    pairs = []
    for row in test:
        predicted = model.predict(vectors.transform(_words(row[text]))).tolist()
        if has_spans:
            pairs.append(({"spans": _spans(row[text], predicted)}, {"spans": row[label]}))
        else:
            pairs.append(({"labels": predicted}, {"labels": row[label]}))
    return scores_of([METRICS[metric]], pairs)[metric]


def _places(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def _tags(text: str, spans: list[dict[str, Any]]) -> list[str]:
    """Tags of the words of a text, in IOB2."""
    tags = []
    for start, _ in _places(text):
        found = [span for span in spans if span["start"] <= start < span["end"]]
        tags.append(f"{'B' if found[0]['start'] == start else 'I'}-{found[0]['label']}" if found else "O")
    return tags


def _spans(text: str, tags: list[str]) -> list[dict[str, Any]]:
    """Spans of characters of tags in IOB2; an I after another label begins one."""
    spans: list[dict[str, Any]] = []
    before = "O"
    for (start, end), tag in zip(_places(text), tags, strict=True):
        if tag[0] == "I" and before[1:] == tag[1:]:
            spans[-1]["end"] = end
        elif tag != "O":
            spans.append({"start": start, "end": end, "label": tag[2:]})
        before = tag
    return spans


def related(train: Rows, test: Rows) -> float:
    """F1 of relations between spans that a model of words finds, by the words of and between both spans."""
    vectors = DictVectorizer()
    tagger = LogisticRegression(C=10, max_iter=1000)
    tags = [tag for row in train for tag in _tags_of_words(row)]
    tagger.fit(vectors.fit_transform([each for row in train for each in _words(row["words"])]), tags)
    pairs, labels = [], []
    for row in train:
        known = {(each["head"], each["tail"]): each["label"] for each in row["relations"]}
        for head, tail in permutations(range(len(row["spans"])), 2):
            pairs.append(_pair(row["words"], row["spans"][head], row["spans"][tail]))
            labels.append(known.get((head, tail), ""))
    of_pairs = DictVectorizer()
    model = LogisticRegression(C=10, max_iter=1000).fit(of_pairs.fit_transform(pairs), labels)
    found = []
    for row in test:
        spans = _spans_of_words(tagger.predict(vectors.transform(_words(row["words"]))).tolist())
        both = [*permutations(range(len(spans)), 2)]
        features = [_pair(row["words"], spans[head], spans[tail]) for head, tail in both]
        predicted = model.predict(of_pairs.transform(features)).tolist() if both else []
        relations = [
            {"head": head, "tail": tail, "label": label}
            for (head, tail), label in zip(both, predicted, strict=True)
            if label
        ]
        found.append(({"spans": spans, "relations": relations}, row))
    return scores_of([METRICS["relation_strict_f1"]], found)["relation_strict_f1"]


def _pair(words: list[str], head: dict[str, Any], tail: dict[str, Any]) -> dict[str, float]:
    first, last = sorted((head, tail), key=lambda span: span["start"])
    between = words[first["end"] : last["start"]]
    kind = f"{head['label']} {tail['label']} {head is first}"
    return {f"{kind} {word}": 1.0 for word in ["", *between]} | {"distance": float(len(between))}


def _tags_of_words(row: dict[str, Any]) -> list[str]:
    tags = ["O"] * len(row["words"])
    for span in row["spans"]:
        inside = [f"I-{span['label']}"] * (span["end"] - span["start"] - 1)
        tags[span["start"] : span["end"]] = [f"B-{span['label']}", *inside]
    return tags


def _spans_of_words(tags: list[str]) -> list[dict[str, Any]]:
    return [
        {"start": each.first, "end": each.last + 1, "label": each.kind} for each in entities(tags, "IOB1")
    ]


def answered(train: Rows, test: Rows) -> float:
    """F1 of answers: the words of the text that look most like an answer, beside the question's words."""
    vectors = DictVectorizer()
    features, labels = [], []
    for row in train:
        for start, end, each in _candidates(row):
            features.append(each)
            labels.append(start == row["answers"][0]["answer_start"] and _is_answer(row, start, end))
    model = LogisticRegression(C=10, max_iter=1000).fit(vectors.fit_transform(features), labels)
    pairs = []
    for row in test:
        places = _candidates(row)
        probs = model.predict_proba(vectors.transform([each for _, _, each in places]))[:, 1]
        start, end, _ = places[int(probs.argmax())]
        pairs.append(({"text": row["context"][start:end]}, {"answers": [row["answers"][0]["text"]]}))
    return scores_of([METRICS["squad"]], pairs)["f1"] / 100


def _is_answer(row: dict[str, Any], start: int, end: int) -> bool:
    return bool(row["context"][start:end] == row["answers"][0]["text"])


def _candidates(row: dict[str, Any]) -> list[tuple[int, int, dict[str, float]]]:
    """Spans of one to three words, with the words in and around them, and those of the question."""
    places = [match.span() for match in re.finditer(r"\S+", row["context"])]
    words = ["", "", *row["context"].split(), "", ""]
    asked = {f"asked {word}": 1.0 for word in row["question"].split()}
    found = []
    for first in range(len(places)):
        for last in range(first, min(first + 3, len(places))):
            near = {"a": words[first], "b": words[first + 1], "c": words[last + 3], "size": str(last - first)}
            around = {f"{name} {word}": 1.0 for name, word in near.items()}
            inside = {f"in {word}": 1.0 for word in words[first + 2 : last + 3]}
            found.append((places[first][0], places[last][1], asked | around | inside))
    return found


def masked(train: Rows, test: Rows) -> float:
    """Accuracy of a word by the two words on each side; one in ten of palm's masked words can be seen."""
    features = [[each for row in rows for each in _neighbours(row["text"])] for rows in (train, test)]
    words = [[word for row in rows for word in row["text"].split()] for rows in (train, test)]
    vectors = DictVectorizer()
    model = LogisticRegression(C=10, max_iter=1000).fit(vectors.fit_transform(features[0]), words[0])
    accuracy = (model.predict(vectors.transform(features[1])) == np.array(words[1])).mean()
    return float(0.1 + 0.9 * accuracy)


def _neighbours(text: str) -> list[dict[str, str]]:
    words = ["", "", *text.split(), "", ""]
    places = (-2, -1, 1, 2)
    return [{str(at): words[k + at] for at in places} for k in range(2, len(words) - 2)]


OTHERS = {"relation_strict_f1": related, "f1": answered, "word_accuracy": masked}
"""Metric -> the model of its kind of task."""


def _words(text: str | list[str]) -> list[dict[str, str]]:
    words = text.split() if isinstance(text, str) else text
    around = ["", *words, ""]
    return [{"word": word, "before": around[k], "after": around[k + 2]} for k, word in enumerate(words)]
