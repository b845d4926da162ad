"""Tasks whose rows are several texts: multiple choice, ranking and embedding, from files to saved models."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import palm
from helpers import tiny
from helpers.components import same_with_gradient
from helpers.reader_files import encoded, rng_of_row, write_text
from palm.core.errors import DataError
from palm.metrics.ranking import RetrievalScores, ranking_scores
from palm.paradigm import Embedding, MultipleChoice, Ranking
from palm.reader import EmbeddingReader, MultipleChoiceReader, RankingReader, Reader
from palm.report.analysis import analyses_of
from palm.report.run import read_run

GROUPS = torch.tensor([[0, 1, 2], [3, 4, -1]])


CHOICES = {
    "list.jsonl": '{"text_a": "who", "choices": ["anna", "the boat"], "label": 1}\n',
    "json.tsv": 'text_a\tchoices\tlabel\nwho\t["anna", "the boat"]\t1\n',
    "columns.csv": "text_a,one,two,three,label\nwho,anna,the boat,,1\n",
}


@pytest.mark.parametrize("name", CHOICES)
def test_every_form_of_choices_gives_the_same_sequences(vocab: Path, tmp_path: Path, name: str) -> None:
    path = write_text(tmp_path, name, CHOICES[name])
    own: dict[str, Any] = {"list_columns": ["one", "two", "three"]} if "columns" in name else {}
    reader = MultipleChoiceReader(vocab, 16, **own)
    batch = reader.collate(encoded(reader, path, with_targets=True), [0], rng_of_row)
    texts = [
        reader.tokenizer.tokens(row[mask].tolist())
        for row, mask in zip(batch["token_ids"], batch["input_mask"], strict=True)
    ]
    expected = [["[CLS]", "who", "[SEP]", "anna", "[SEP]"], ["[CLS]", "who", "[SEP]", "the", "boat", "[SEP]"]]
    assert texts == expected
    assert batch["segment_ids"].tolist() == [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]]
    assert (batch["group_rows"].tolist(), batch["label_ids"].tolist()) == ([[0, 1]], [1])


BAD = [
    (MultipleChoiceReader, {"choices": ["a"], "label": 0}, "choices .* 1$"),
    (MultipleChoiceReader, {"choices": ["a", "b"], "label": 2}, "label 2 .* 1"),
    (MultipleChoiceReader, {"choices": "a, b", "label": 0}, "choices .*'a, b'"),
    (MultipleChoiceReader, {"choices": ["a", 3], "label": 0}, r"choices\[1\] .* 3"),
    (MultipleChoiceReader, {"choices": ["", "b"], "label": 0}, r"choices\[0\] is empty"),
    (RankingReader, {"candidates": ["a", "b"], "label": [1]}, "1 numbers for 2"),
    (RankingReader, {"candidates": ["a", "b"], "label": [1, -1]}, "relevance .*-1"),
    (RankingReader, {"candidates": ["a", "b"], "label": 1}, "label .* 1"),
    (RankingReader, {"candidates": [], "label": [1]}, "candidates is empty"),
    (EmbeddingReader, {"text_b": " "}, "text_b is empty"),
    (EmbeddingReader, {"negatives": ["a"]}, "text_b"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "row", "named"), BAD)
def test_a_bad_row_is_an_error_with_its_place(
    vocab: Path, tmp_path: Path, cls: type[Reader], row: dict[str, Any], named: str
) -> None:
    path = write_text(tmp_path, "bad.jsonl", json.dumps({"text_a": "who", **row}) + "\n")
    reader: Any = cls
    with pytest.raises(DataError, match=rf"bad\.jsonl(:1)?: .*({named})"):
        encoded(reader(vocab, 16), path, with_targets=True)


def test_a_batch_of_ranking_has_the_relevance_of_every_candidate(vocab: Path, tmp_path: Path) -> None:
    rows = [(["anna", "bert", "the boat"], [0, 2, 1]), (["a door", "near"], [1, 0])]
    text = "".join(json.dumps({"text_a": "who", "candidates": c, "label": r}) + "\n" for c, r in rows)
    reader = RankingReader(vocab, 16)
    batch = reader.collate(encoded(reader, write_text(tmp_path, "r.jsonl", text), True), [0, 1], rng_of_row)
    assert torch.equal(batch["group_rows"], GROUPS)
    assert batch["relevance"].tolist() == [[0, 2, 1], [1, 0, -100]]


def test_negatives_only_train(vocab: Path, tmp_path: Path) -> None:
    text = "text_a\ttext_b\tfirst\tsecond\nwho\tanna\tbert\tnear\nwhat\tboat\t\t\n"
    path = write_text(tmp_path, "pairs.tsv", text)
    reader = EmbeddingReader(vocab, 16, list_columns=["first", "second"])
    batch = reader.collate(encoded(reader, path, with_targets=True), [0, 1], rng_of_row)
    assert batch["group_rows"].tolist() == [[0, 1, 2, 3], [4, 5, -1, -1]]
    assert [len(rows) for rows in (encoded(reader, path, False)["sequence_lengths"][0],)] == [2]
    expected = [("who", "anna"), ("what", "boat")]
    assert [truth["pair"] for truth in map(reader.gold, reader.read_gold(path))] == expected


def scored_features(head: Any, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Sentence embeddings of five texts in two examples, and the scores that a loop gives them."""
    torch.manual_seed(seed)
    embeddings = torch.randn(5, 8, requires_grad=True)
    features = {"sentence_embedding": embeddings, "group_rows": GROUPS}
    return features, embeddings @ head.out.weight[0] + head.out.bias


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_of_choices_is_that_of_each_example(seed: int) -> None:
    head = MultipleChoice(8).eval()
    features, scores = scored_features(head, seed)
    labels = torch.tensor([seed % 3, seed % 2])
    outputs = head(features)
    ours = head.loss(outputs, {"label_ids": labels})
    theirs = (
        F.cross_entropy(scores[None, :3], labels[:1]) + F.cross_entropy(scores[None, 3:], labels[1:])
    ) / 2
    same_with_gradient(ours, theirs, features["sentence_embedding"])
    first, second = head.decode(outputs)
    assert (len(first["probs"]), len(second["logits"])) == (3, 2)
    assert second["probs"] == pytest.approx(scores[3:].softmax(0).tolist())


@pytest.mark.parametrize("strategy", ["listwise", "pairwise"])
@pytest.mark.parametrize("seed", range(5))
def test_the_loss_of_a_ranking_is_that_of_the_papers(strategy: str, seed: int) -> None:
    head = Ranking(8, learning_strategy=strategy).eval()
    features, scores = scored_features(head, seed)
    relevance = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, -100.0]])
    groups = [(scores[:3], relevance[0]), (scores[3:], relevance[1, :2])]
    if strategy == "listwise":
        terms = [-(wanted / wanted.sum() * found.log_softmax(0)).sum() for found, wanted in groups]
    else:
        terms = [
            torch.log1p(torch.exp(found[j] - found[i]))
            for found, wanted in groups
            for i in range(len(wanted))
            for j in range(len(wanted))
            if wanted[i] > wanted[j]
        ]
    ours = head.loss(head(features), {"relevance": relevance})
    same_with_gradient(ours, torch.stack(terms).mean(), features["sentence_embedding"])
    assert head.num_terms({"relevance": relevance, "group_rows": GROUPS}) == len(terms)
    assert [record["ranking"][0] for record in head.decode(head(features))] == [
        int(found.argmax()) for found, _ in groups
    ]


@pytest.mark.parametrize("texts", [2, 3, 4])  # of an example: a text, its other, and negatives
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_pairs_is_that_of_sentence_transformers(seed: int, texts: int) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    torch.manual_seed(seed)
    embeddings = torch.randn(4 * texts, 8, requires_grad=True)
    head = Embedding(8).train()
    groups = torch.arange(4 * texts).view(4, texts)
    outputs = head({"sentence_embedding": embeddings, "group_rows": groups})
    theirs = losses.MultipleNegativesRankingLoss(model=None, scale=20.0)
    expected = theirs.compute_loss_from_embeddings([embeddings[k::texts] for k in range(texts)], None)
    same_with_gradient(head.loss(outputs, {}), expected, embeddings)


def test_the_loss_of_similarities_is_the_squared_error_of_cosines() -> None:
    embeddings = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    head = Embedding(8, learning_strategy="similarity")
    outputs = head({"sentence_embedding": embeddings, "group_rows": torch.arange(6).view(3, 2)})
    labels = torch.tensor([0.3, -0.5, 1.0])
    expected = ((F.cosine_similarity(embeddings[::2], embeddings[1::2]) - labels) ** 2).mean()
    same_with_gradient(head.loss(outputs, {"label_values": labels}), expected, embeddings)


def by_a_loop(relevance: list[int], scores: list[int]) -> dict[str, float]:
    """The metrics from their definitions; ties count as the last place, of gains the mean over all orders."""
    sklearn_metrics = pytest.importorskip("sklearn.metrics")
    if not any(relevance):
        return dict.fromkeys(("mrr", "ndcg_at_10", "recall_at_1", "recall_at_10"), 0.0)
    places = [sum(other >= score for other in scores) for score in scores]
    of_relevant = [place for place, gain in zip(places, relevance, strict=True) if gain]
    ndcg = 1.0 if len(scores) == 1 else sklearn_metrics.ndcg_score([relevance], [scores], k=10)
    return {
        "mrr": 1 / min(of_relevant),
        "ndcg_at_10": ndcg,
        "recall_at_1": sum(place <= 1 for place in of_relevant) / len(of_relevant),
        "recall_at_10": sum(place <= 10 for place in of_relevant) / len(of_relevant),
    }


@pytest.mark.parametrize("seed", range(50))
def test_metrics_of_a_ranking_are_those_of_their_definitions(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 14)
    relevance = [rng.choice([0, 0, 1, 3]) for _ in range(count)]
    scores = [rng.randint(0, 6) for _ in range(count)]
    assert ranking_scores(relevance, scores) == pytest.approx(by_a_loop(relevance, scores), abs=1e-9)


@pytest.mark.parametrize("seed", range(50))
def test_retrieval_ranks_all_texts_for_every_query(seed: int) -> None:
    rng = np.random.default_rng(seed)
    queries, texts = rng.normal(size=(5, 4)), rng.normal(size=(7, 4))
    pairs = [(int(rng.integers(5)), int(rng.integers(7))) for _ in range(12)]
    metric = RetrievalScores()
    for query, text in pairs:
        record = {"embedding": queries[query].tolist(), "embedding_b": texts[text].tolist()}
        metric.update(record, {"pair": (f"q{query}", f"t{text}")})
    used = sorted({text for _, text in pairs})
    each = [
        by_a_loop([(query, text) in pairs for text in used], [queries[query] @ texts[text] for text in used])
        for query in sorted({query for query, _ in pairs})
    ]
    expected = {name: np.mean([one[name] for one in each]) for name in each[0]}
    assert metric.compute() == pytest.approx(expected, abs=1e-6)


def rows_of(task: str, number: int, seed: int) -> list[dict[str, Any]]:
    """Rows about coloured things that can be learned."""
    rng = random.Random(seed)
    rows = []
    for _ in range(number):
        colours = rng.sample(tiny.COLOURS, 3)
        thing = rng.choice(tiny.THINGS)
        text = f"the {thing} is {colours[0]}"
        order = rng.sample(range(3), 3)
        others = [f"a {colours[k]} {thing}" for k in order]
        if task == "multiple_choice":
            rows.append({"text_a": text, "choices": others, "label": order.index(0)})
        elif task == "ranking":
            rows.append({"text_a": text, "candidates": others, "label": [int(k == 0) for k in order]})
        else:
            both = {"text_a": text, "text_b": f"a {colours[0]} {thing}"}
            rows.append(both | {"negatives": [f"a {colours[1]} {thing}"]})
    return rows


EXPECTED = {"multiple_choice": ("accuracy", 0.6), "ranking": ("mrr", 0.75), "embedding": ("mrr", 0.4)}


def test_one_run_trains_them_and_their_models_predict(folder: Path) -> None:
    tasks: dict[str, dict[str, str]] = {}
    for task in EXPECTED:
        tasks[task] = {"reader": task, "paradigm": task}
        for name, (number, seed) in {"train_file": (96, 1), "dev_file": (30, 2), "pred_file": (5, 3)}.items():
            lines = [json.dumps(row) for row in rows_of(task, number, seed)]
            tasks[task][name] = str(write_text(folder, f"{task}_{name}.jsonl", "\n".join(lines) + "\n"))
    settings = {"batch_size": 8, "num_epochs": 20, "learning_rate": 4e-3, "eval_every_epoch": False}
    settings |= {"tasks_per_step": "all", "pooling": "mean", "num_hidden_layers": 1}
    config = tiny.config(folder, "cls", **settings)
    palm.Controller(config | {"task_instance": [*tasks], "tasks": tasks}, argv=[]).train()
    found = analyses_of(read_run(folder / "out"))
    for task, (name, least) in EXPECTED.items():
        model = palm.load_model(folder / "out" / task / "best_model", precision="fp32")
        scores = model.evaluate(tasks[task]["dev_file"])
        assert scores[name] >= least
        assert model.trained["scores"] == pytest.approx(scores, abs=1e-6)
        table = model.predict_file(tasks[task]["pred_file"], folder / f"{task}.jsonl")
        field = {"multiple_choice": "label"}.get(task, task)
        texts = [{key: cell for key, cell in row.items() if key != "label"} for row in rows_of(task, 5, 3)]
        for alone, row in zip(model.predict(texts), table, strict=True):
            assert alone[field] == pytest.approx(row.get(f"predicted_{field}", row.get(field)), abs=1e-5)
        assert not isinstance(found[task], str), found[task]
        assert found[task].hardest
