"""Train heads of several kinds on the same rows of public data, beside other libraries, on the test rows.

    python benchmarks/heads.py --model DIR --data DATA --set atis --rows 1500 --epochs 4
    python benchmarks/heads.py --model DIR --data DATA --set rte --epochs 1

`atis`: slots as labels of words and as spans, kinds of slots, intents and numbers of slots, in one pass;
beside linear models on TF-IDF. `rte`: an entailed sentence finds its premise as a vector among all, and by
a score among four candidates or choices; beside cosines of TF-IDF, of sentence-transformers with the same
pairs, and transformers' head for multiple choice with the same choices. `--tasks` trains some of them only.
Prints one JSON line.
"""

from __future__ import annotations

import csv
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arguments import add_training, new_parser, run_settings

import palm
from palm.metrics import METRICS, entities, scores_of

Row = dict[str, Any]

CANDIDATES = 4
HEAD_RATE = 1e-3


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def write_rows(path: Path, rows: Iterable[Row]) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def atis_rows(data: Path, split: str) -> list[Row]:
    rows = []
    intents = table(data / "atis" / "intent" / f"{split}.tsv")
    for slot, intent in zip(table(data / "atis" / "slot" / f"{split}.tsv"), intents, strict=True):
        tags = slot["label"].split()
        spans = [{"start": e.first, "end": e.last + 1, "label": e.kind} for e in entities(tags)]
        kinds = sorted({span["label"] for span in spans})
        row = {"text_a": slot["text_a"].split(), "tags": tags, "spans": spans, "kinds": kinds}
        rows.append({**row, "intent": int(intent["label"]), "number": len(spans)})
    return rows


def atis_tasks(rows: dict[str, list[Row]]) -> dict[str, Row]:
    every = [row for split in rows.values() for row in split]
    tags = {tag: k for k, tag in enumerate(sorted({tag for row in every for tag in row["tags"]}))}
    kinds = {kind: k for k, kind in enumerate(sorted({kind for row in every for kind in row["kinds"]}))}
    intents = 1 + max(row["intent"] for row in every)
    tasks: dict[str, Row] = {
        "tags": {"reader": "seq_label", "label_map": tags},
        "spans": {"reader": "span", "label_map": kinds},
        "kinds": {"reader": "multi_label", "label_map": kinds},
        "intent": {"reader": "cls", "n_classes": intents},
        "number": {"reader": "cls", "paradigm": "count"},
    }
    for name, task in tasks.items():
        task |= {"columns": {"spans" if name == "spans" else "label": name}}
        task |= {} if name == "tags" else {"share_rows_with": "tags"}
    return tasks


def rte_rows(data: Path, split: str) -> list[Row]:
    pairs = [row for row in table(data / "rte" / f"{split}.tsv") if row["label"] == "1"]
    draws = random.Random(split)
    rows = []
    for pair in pairs:
        others = draws.sample(
            [each["text_a"] for each in pairs if each["text_a"] != pair["text_a"]], CANDIDATES
        )
        right = draws.randrange(CANDIDATES)
        others[right] = pair["text_a"]
        relevance = [int(k == right) for k in range(CANDIDATES)]
        row = {"text_a": pair["text_b"], "premise": pair["text_a"]}
        rows.append({**row, "texts": others, "relevance": relevance, "right": right})
    return rows


def rte_tasks(rows: dict[str, list[Row]]) -> dict[str, Row]:  # noqa: ARG001
    candidates = {"candidates": "texts", "label": "relevance"}
    return {
        "vectors": {"reader": "embedding", "columns": {"text_b": "premise"}},
        "ranks": {"reader": "ranking", "columns": candidates},
        "choices": {
            "reader": "multiple_choice",
            "columns": {"choices": "texts", "label": "right"},
            "share_rows_with": "ranks",
        },
    }


def linear_models(rows: dict[str, list[Row]]) -> Row:
    """Scores of scikit-learn's models on TF-IDF of words and pairs of words, on the test rows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, PoissonRegressor
    from sklearn.multiclass import OneVsRestClassifier

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    texts = {split: [" ".join(row["text_a"]) for row in rows[split]] for split in rows}
    train = words.fit_transform(texts["train"])
    test = words.transform(texts["test"])

    def predicted(model: Any, column: str) -> Any:
        return model.fit(train, [row[column] for row in rows["train"]]).predict(test)

    names = sorted({kind for split in rows.values() for row in split for kind in row["kinds"]})
    sets = np.array([[name in row["kinds"] for name in names] for row in rows["train"]], dtype=int)
    seen = np.flatnonzero(sets.any(0))
    several = OneVsRestClassifier(LogisticRegression(C=100, max_iter=1000)).fit(train, sets[:, seen])
    probs = np.zeros((len(texts["test"]), len(names)))
    probs[:, seen] = several.predict_proba(test)
    kinds = [
        (
            {"labels": np.flatnonzero(own >= 0.5), "probs": own.tolist()},
            {"label_set": [names.index(k) for k in row["kinds"]]},
        )
        for own, row in zip(probs, rows["test"], strict=True)
    ]
    intents = predicted(LogisticRegression(C=100, max_iter=1000), "intent")
    numbers = predicted(PoissonRegressor(alpha=1e-4, max_iter=1000), "number")
    return {
        "kinds": scores_of([METRICS["label_f1"], METRICS["exact_match"], METRICS["lrap"]], kinds),
        "intent": {"accuracy": float(np.mean(intents == [row["intent"] for row in rows["test"]]))},
        "number": scores_of(
            [METRICS["poisson_deviance"]],
            [({"value": v}, {"value": row["number"]}) for v, row in zip(numbers, rows["test"], strict=True)],
        ),
    }


def scores_of_vectors(rows: list[Row], encode: Callable[[list[str]], Any]) -> Row:
    """Scores of the cosines of vectors of length 1: of each text among all others, and of its candidates."""
    first, second = (encode([row[name] for row in rows]) for name in ("text_a", "premise"))
    listed = encode([text for row in rows for text in row["texts"]]).reshape(len(rows), CANDIDATES, -1)
    pairs = [
        ({"embedding": a, "embedding_b": b}, {"pair": (row["text_a"], row["premise"])})
        for a, b, row in zip(first, second, rows, strict=True)
    ]
    ranked = [({"scores": own @ a}, row) for a, own, row in zip(first, listed, rows, strict=True)]
    return {
        "all": scores_of([METRICS["retrieval"]], pairs),
        "candidates": scores_of([METRICS["ranking"]], ranked),
    }


def other_vectors(rows: dict[str, list[Row]], args: Any) -> Row:
    """Scores of TF-IDF, and of sentence-transformers before and after training with the same pairs."""
    from sentence_transformers import InputExample, SentenceTransformer, losses, models
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(sublinear_tf=True).fit(
        row[name] for row in rows["train"] for name in ("text_a", "premise")
    )
    found = {"tfidf": scores_of_vectors(rows["test"], lambda texts: words.transform(texts).toarray())}
    word = models.Transformer(str(args.model), max_seq_length=args.max_seq_len)
    model = SentenceTransformer(
        modules=[word, models.Pooling(word.get_word_embedding_dimension())], device="cpu"
    )

    def encode(texts: list[str]) -> Any:
        return model.encode(texts, normalize_embeddings=True, show_progress_bar=False)

    found["untrained"] = scores_of_vectors(rows["test"], encode)
    in_batch = losses.MultipleNegativesRankingLoss(model)

    def loss_of(some: list[Row]) -> torch.Tensor:
        examples = [InputExample(texts=[row["text_a"], row["premise"]]) for row in some]
        loss: torch.Tensor = in_batch(*model.smart_batching_collate(examples))
        return loss

    train(model, loss_of, rows["train"], args)
    found["trained"] = scores_of_vectors(rows["test"], encode)
    found["choices"] = other_choices(rows, args)
    return found


def other_choices(rows: dict[str, list[Row]], args: Any) -> Row:
    """Scores of the candidates by transformers' head for multiple choice, after the last step."""
    from transformers import AutoTokenizer, BertForMultipleChoice

    torch.manual_seed(1)
    model = BertForMultipleChoice.from_pretrained(args.model)
    words = AutoTokenizer.from_pretrained(args.model)

    def logits_of(some: list[Row]) -> torch.Tensor:
        first = [row["text_a"] for row in some for _ in row["texts"]]
        second = [text for row in some for text in row["texts"]]
        size = {"truncation": "longest_first", "max_length": args.max_seq_len}
        encoded = words(first, second, padding=True, return_tensors="pt", **size)
        shaped = {name: each.view(len(some), CANDIDATES, -1) for name, each in encoded.items()}
        logits: torch.Tensor = model(**shaped).logits
        return logits

    def loss_of(some: list[Row]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            logits_of(some), torch.tensor([row["right"] for row in some])
        )

    train(model, loss_of, rows["train"], args)
    model.eval()
    with torch.no_grad():
        parts = [logits_of(rows["test"][k : k + 32]) for k in range(0, len(rows["test"]), 32)]
    return scores_of(
        [METRICS["ranking"]],
        [({"scores": own}, row) for own, row in zip(torch.cat(parts).numpy(), rows["test"], strict=True)],
    )


def train(
    model: torch.nn.Module, loss_of: Callable[[list[Row]], torch.Tensor], rows: list[Row], args: Any
) -> None:
    """Train with as many updates as palm, the same rise and fall of the rate, and heads at their own rate."""
    per_epoch = len(rows) // args.batch_size
    total = per_epoch * int(args.epochs)
    heads = [each for name, each in model.named_parameters() if name.startswith("classifier")]
    others = [each for name, each in model.named_parameters() if not name.startswith("classifier")]
    groups = [{"params": others}] + [{"params": heads, "lr": HEAD_RATE}] * bool(heads)
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate, weight_decay=args.weight_decay)
    rise = max(1, total // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, (total - step) / max(1, total - rise))
    )
    torch.manual_seed(1)
    for _ in range(int(args.epochs)):
        order = torch.randperm(len(rows)).tolist()
        model.train()
        for start in range(0, per_epoch * args.batch_size, args.batch_size):
            optimizer.zero_grad()
            loss_of([rows[k] for k in order[start : start + args.batch_size]]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, epochs=5.0, learning_rate=1e-4, max_seq_len=64, precision="fp32")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=("atis", "rte"), required=True)
    parser.add_argument("--rows", type=int, help="train on the first ones only")
    parser.add_argument("--test_rows", type=int, help="of dev and test data")
    parser.add_argument("--tasks", nargs="+", help="train these only; by default all of the set")
    parser.add_argument(
        "--part", choices=("palm", "peers"), help="one side only, for runs beside one another"
    )
    args = parser.parse_args()
    read, tasks_of, peer = {
        "atis": (atis_rows, atis_tasks, lambda rows: linear_models(rows)),
        "rte": (rte_rows, rte_tasks, lambda rows: other_vectors(rows, args)),
    }[args.set]
    splits = {"train": "train", "dev": "dev", "test": "val" if args.set == "rte" else "test"}
    rows = {name: read(args.data, split) for name, split in splits.items()}
    rows = {name: each[: args.rows if name == "train" else args.test_rows] for name, each in rows.items()}
    found: Row = {"set": args.set, "rows": {name: len(each) for name, each in rows.items()}}
    if args.part != "palm":
        found["peer"] = peer(rows)
    if args.part != "peers":
        found |= train_palm(rows, tasks_of(rows), args)
    print(json.dumps(found))


def train_palm(rows: dict[str, list[Row]], every: dict[str, Row], args: Any) -> Row:
    """Scores of palm's heads on the test rows, by the best step on the dev rows."""
    found: Row = {}
    with tempfile.TemporaryDirectory() as folder:
        files = {name: write_rows(Path(folder) / f"{name}.jsonl", each) for name, each in rows.items()}
        tasks = {name: task for name, task in every.items() if name in (args.tasks or [name])}
        for task in tasks.values():
            if task.get("share_rows_with", "") not in ("", *tasks):
                del task["share_rows_with"]
            task |= {"paradigm": task.get("paradigm", task["reader"]), "head_learning_rate": HEAD_RATE}
            task |= {"train_file": files["train"], "dev_file": files["dev"]}
        settings = {"optimizer": "adam", "save_path": f"{folder}/out", "random_seed": 1}
        settings |= {
            "task_instance": [*tasks],
            "tasks": tasks,
            "pooling": "mean" if args.set == "rte" else "cls",
        }
        started = time.process_time()
        palm.Controller({**run_settings(args), **settings}, argv=[]).train()
        found["cpu_seconds"] = time.process_time() - started
        for name in tasks:
            model = palm.load_model(f"{folder}/out/{name}/best_model")
            found[name] = model.evaluate(files["test"])
    return found


if __name__ == "__main__":
    main()
