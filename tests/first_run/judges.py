"""Plain scikit-learn models on TF-IDF or words: what a first run should not be beaten by."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import MultiLabelBinarizer

from palm.metrics import METRICS, scores_of
from palm.metrics.ranking import ranking_scores

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
    model = Ridge() if is_number else LogisticRegression(C=10, max_iter=1000)
    predicted = model.fit(features[0], labels).predict(features[1]).tolist()
    key = "value" if is_number else "label"
    pairs = [({key: ours}, {key: theirs}) for ours, theirs in zip(predicted, true, strict=True)]
    return scores_of([METRICS[metric]], pairs)[metric]


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


def _words(text: str | list[str]) -> list[dict[str, str]]:
    words = text.split() if isinstance(text, str) else text
    around = ["", *words, ""]
    return [{"word": word, "before": around[k], "after": around[k + 2]} for k, word in enumerate(words)]
