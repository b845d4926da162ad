"""How good is `effort` with few rows beside the methods that people choose for few rows?

    python benchmarks/rivals.py --model MINILM --data SETS --output FILE.jsonl --rows 50 100 --seeds 1 2 3

SETS is made by `rivals_data.py`. A seed draws the training rows and starts the training; all ways have the
same rows, encoder, precision (that of palm's `auto`), maximum length and test rows, and no dev rows:

- `quick`, `normal`, `best`: palm with this `effort` and no other setting;
- `setfit`: SetFit's own trainer with its defaults and 20 iterations (texts and sets of labels);
- `frozen`: vectors of the published encoder (means of texts, or the first piece of each word), and
  scikit-learn's logistic regression, whose C is the best of `--C` in cross-validation;
- `trainer`: transformers' Trainer with a head of its library, 5e-5, batches of 8, 3 epochs, as its defaults;
- `trainer_long`: the same with batches of 16, 10 % warm-up and at least 300 updates, as many as `normal`.

`setfit` and `trainer` need the packages setfit and accelerate. CPU seconds are of the process, from texts to
a trained model, without imports and scoring, with one thread. `--change NAME=YAML` trains palm's ways with
more settings, under another name (`normal+NAME`). One JSON line a score; the same command goes on where it
stopped, and starts nothing after `--seconds`; `--table` only prints what is in the file.
"""

from __future__ import annotations

import json
import math
import random
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from arguments import new_parser
from paired import mean_of

import palm
from palm.core.device import Precision, computing, resolved
from palm.metrics import METRICS, scores_of

Row = dict[str, Any]
Labels = list[Any]
"""The label of each row: a name, a list of names, or a name per word."""

KINDS = {
    "intents": "cls",
    "sst2": "cls",
    "slots": "seq_label",
    "snips": "cls",
    "snips_slots": "seq_label",
    "mixed": "multi_label",
}
"""Set -> its reader and head in palm."""
METRIC = {"cls": "accuracy", "seq_label": "entity_f1", "multi_label": "micro_f1"}
EFFORTS = ("quick", "normal", "best")
LONG_UPDATES = 300
IGNORED = -100
"""Label of pieces of words that transformers does not train."""


class Few:
    """Some training rows of a set, and its test rows.

    Args:
        args: the program's arguments.
        name: the set.
        count: number of training rows; 0 for all.
        seed: draws them.
    """

    def __init__(self, args: Namespace, name: str, count: int, seed: int) -> None:
        self.name = name
        self.kind = KINDS[name]
        self.seed = seed
        rows = read(args.data / name / "train.jsonl")
        random.Random(seed).shuffle(rows)
        self.train = rows[:count] if count else rows
        self.test = read(args.data / name / "test.jsonl")
        self.ids: dict[str, int] = json.loads((args.data / name / "labels.json").read_text("utf-8"))
        self.names = list(self.ids)
        self.model = str(args.model)
        self.max_seq_len: int = args.max_seq_len
        self.C: Sequence[float] = args.C

    def labels(self) -> Labels:
        return [row["label"] for row in self.train]

    def score(self, predicted: Labels) -> float:
        """Score predictions of the test rows by palm's metrics."""
        key = {"cls": "label", "seq_label": "labels", "multi_label": "labels"}[self.kind]
        gold = "label_set" if self.kind == "multi_label" else key
        pairs = [({key: own}, {gold: row["label"]}) for own, row in zip(predicted, self.test, strict=True)]
        metric = "label_f1" if self.kind == "multi_label" else METRIC[self.kind]
        return float(scores_of([METRICS[metric]], pairs)[METRIC[self.kind]])

    def as_targets(self) -> np.ndarray:
        """Several labels per text as zeros and ones."""
        found = np.zeros((len(self.train), len(self.ids)), dtype=int)
        for at, row in enumerate(self.train):
            found[at, [self.ids[label] for label in row["label"]]] = 1
        return found

    def from_targets(self, predicted: Any) -> Labels:
        return [[self.names[k] for k in np.flatnonzero(row)] for row in np.asarray(predicted)]


def precision_here() -> Precision:
    return resolved("auto", torch.device("cpu"))


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def write(path: Path, rows: list[Row]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


Way = Callable[[Few, Path], Callable[[], Labels]]
"""Trains, and returns what predicts the test rows."""


def with_palm(effort: str, change: Row) -> Way:
    def train(few: Few, folder: Path) -> Callable[[], Labels]:
        task = {
            "reader": few.kind,
            "paradigm": few.kind,
            "label_map": dict(few.ids),
            "n_classes": len(few.ids),
        }
        task["train_file"] = write(folder / "train.jsonl", few.train)
        config = {
            "task_instance": "task",
            "tasks": {"task": task},
            "backbone": "auto",
            "pretrain_path": few.model,
            "save_path": str(folder / "out"),
            "max_seq_len": few.max_seq_len,
            "effort": effort,
            "random_seed": few.seed,
            "print_every_n_steps": 1000,
            **change,
        }
        palm.Controller(config, argv=[]).train()
        model = palm.load_model(folder / "out/task/infer_model")
        key = {"cls": "label_name", "seq_label": "labels", "multi_label": "label_names"}[few.kind]
        file = write(folder / "test.jsonl", few.test)
        return lambda: [record[key] for record in model.predict_file(file, folder / "predicted")]

    return train


def with_setfit(few: Few, folder: Path) -> Callable[[], Labels]:
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    several = {"multi_target_strategy": "one-vs-rest"} if few.kind == "multi_label" else {}
    model = SetFitModel.from_pretrained(few.model, **several)
    model.model_body.max_seq_length = few.max_seq_len
    # SetFit has no option for bf16 on a CPU. The context ends with each pass, as it keeps copies of weights.
    model.model_body.forward = computing(precision_here(), torch.device("cpu"))(model.model_body.forward)
    labels = few.as_targets().tolist() if several else [few.ids[label] for label in few.labels()]
    rows = Dataset.from_dict({"text": [row["text_a"] for row in few.train], "label": labels})
    given = TrainingArguments(
        output_dir=str(folder / "out"),
        num_iterations=20,
        num_epochs=1,
        seed=few.seed,
        save_strategy="no",
        report_to="none",
        show_progress_bar=False,
    )
    Trainer(model=model, args=given, train_dataset=rows).train()
    texts = [row["text_a"] for row in few.test]
    if several:
        return lambda: few.from_targets(model.predict(texts, as_numpy=True))
    return lambda: [few.names[int(k)] for k in model.predict(texts, as_numpy=True)]


def with_frozen_encoder(few: Few, folder: Path) -> Callable[[], Labels]:  # noqa: ARG001
    from sklearn.multiclass import OneVsRestClassifier

    if few.kind == "seq_label":
        rows = [row["label"] for row in few.train]
        vectors = of_words(few, few.train)
        model = tuned(few.C, np.concatenate(vectors), [tag for tags in rows for tag in tags])
        return lambda: [model.predict(own).tolist() for own in of_words(few, few.test)]
    vectors = of_texts(few, few.train)
    if few.kind == "cls":
        model = tuned(few.C, vectors, few.labels())
        return lambda: list(model.predict(of_texts(few, few.test)).tolist())
    several = tuned(few.C, vectors, few.as_targets(), OneVsRestClassifier)
    return lambda: few.from_targets(several.predict(of_texts(few, few.test)))


def tuned(grid: Sequence[float], vectors: np.ndarray, labels: Any, wrap: Any = None) -> Any:
    """Logistic regression with the C that is best in cross-validation of 5 parts."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, KFold

    model = LogisticRegression(max_iter=1000)
    names = {"C": list(grid)} if wrap is None else {"estimator__C": list(grid)}
    scoring = "accuracy" if wrap is None else "f1_micro"
    parts = KFold(5, shuffle=True, random_state=0)
    return GridSearchCV(wrap(model) if wrap else model, names, scoring=scoring, cv=parts).fit(vectors, labels)


def of_texts(few: Few, rows: list[Row]) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(few.model, device="cpu")
    model.max_seq_length = few.max_seq_len
    return np.asarray(model.encode([row["text_a"] for row in rows], show_progress_bar=False))


def of_words(few: Few, rows: list[Row]) -> list[np.ndarray]:
    """The last layer at the first piece of each word, [words, width] of each row."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(few.model)
    model = AutoModel.from_pretrained(few.model).eval()
    found = []
    for start in range(0, len(rows), 16):
        words = [row["text_a"] for row in rows[start : start + 16]]
        batch = tokenizer(
            words, is_split_into_words=True, padding=True, truncation=True,
            max_length=few.max_seq_len, return_tensors="pt",
        )  # fmt: skip
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state.float().numpy()
        found += [hidden[at, firsts(batch.word_ids(at), len(own))] for at, own in enumerate(words)]
    return found


def firsts(words: list[int | None], count: int) -> list[int]:
    """Place of the first piece of each word; of words that were cut off, that of the last one left."""
    place: dict[int, int] = {}
    for at, word in enumerate(words):
        if word is not None:
            place.setdefault(word, at)
    return [place.get(word, max(place.values())) for word in range(count)]


def with_trainer(is_long: bool) -> Way:
    def train(few: Few, folder: Path) -> Callable[[], Labels]:
        from transformers import (
            AutoTokenizer,
            DataCollatorForTokenClassification,
            DataCollatorWithPadding,
            Trainer,
            TrainingArguments,
        )

        tokenizer = AutoTokenizer.from_pretrained(few.model)
        torch.manual_seed(few.seed)
        model = peer_of(few)
        collate = DataCollatorForTokenClassification if few.kind == "seq_label" else DataCollatorWithPadding
        steps = math.ceil(len(few.train) / 16)
        length: Row = {"per_device_train_batch_size": 8, "num_train_epochs": 3}
        if is_long:
            length = {
                "per_device_train_batch_size": 16,
                "num_train_epochs": max(3, math.ceil(LONG_UPDATES / steps)),
                "warmup_steps": 0.1,
            }
        given = TrainingArguments(
            output_dir=str(folder / "out"),
            learning_rate=5e-5,
            seed=few.seed,
            use_cpu=True,
            bf16=precision_here() == "bf16",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **length,
        )
        rows = encoded(few, few.train, tokenizer)
        trainer = Trainer(model=model, args=given, train_dataset=rows, data_collator=collate(tokenizer))
        trainer.train()
        return lambda: predicted(few, trainer.model, tokenizer)

    return train


def peer_of(few: Few) -> Any:
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    kind = AutoModelForTokenClassification if few.kind == "seq_label" else AutoModelForSequenceClassification
    several = {"problem_type": "multi_label_classification"} if few.kind == "multi_label" else {}
    return kind.from_pretrained(few.model, num_labels=len(few.ids), **several)


def encoded(few: Few, rows: list[Row], tokenizer: Any, is_training: bool = True) -> list[Row]:
    """Tokens and labels of each row, as transformers' examples make them."""
    found = []
    for row in rows:
        is_split = few.kind == "seq_label"
        own = tokenizer(
            row["text_a"], truncation=True, max_length=few.max_seq_len, is_split_into_words=is_split
        )
        example = {name: own[name] for name in ("input_ids", "attention_mask")}
        if not is_training:
            example["words"] = own.word_ids()
        elif is_split:
            words = own.word_ids()
            starts = set(firsts(words, len(row["text_a"])))
            example["labels"] = [
                few.ids[row["label"][word]] if word is not None and at in starts else IGNORED
                for at, word in enumerate(words)
            ]
        elif few.kind == "cls":
            example["labels"] = few.ids[row["label"]]
        else:
            example["labels"] = [float(name in row["label"]) for name in few.names]
        found.append(example)
    return found


@torch.inference_mode()
def predicted(few: Few, model: Any, tokenizer: Any) -> Labels:
    model.eval()
    found: Labels = []
    for row, example in zip(few.test, encoded(few, few.test, tokenizer, is_training=False), strict=True):
        words = example.pop("words")
        logits = model(**{name: torch.tensor([own]) for name, own in example.items()}).logits[0]
        if few.kind == "seq_label":
            best = logits.argmax(-1)
            found.append([few.names[int(best[at])] for at in firsts(words, len(row["text_a"]))])
        elif few.kind == "cls":
            found.append(few.names[int(logits.argmax())])
        else:
            found.append([few.names[k] for k in torch.nonzero(logits > 0).flatten().tolist()])
    return found


WAYS: dict[str, Way] = {
    "setfit": with_setfit,
    "frozen": with_frozen_encoder,
    "trainer": with_trainer(is_long=False),
    "trainer_long": with_trainer(is_long=True),
    **{effort: with_palm(effort, {}) for effort in EFFORTS},
}


def run(args: Namespace, name: str, count: int, seed: int, way: str) -> Row:
    few = Few(args, name, count, seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        predict = args.ways_of[way](few, Path(folder))
        seconds = time.process_time() - start
        return {"score": few.score(predict()), "cpu": round(seconds, 1)}


def is_possible(name: str, way: str) -> bool:
    return way != "setfit" or KINDS[name] != "seq_label"


def tables(done: list[Row], ways: Sequence[str]) -> str:
    """Mean of the points and their standard error, and mean CPU seconds, for each number of rows and set."""
    text = ["| rows | set | seeds | " + " | ".join(ways) + " |", "|---" * (3 + len(ways)) + "|"]
    for count, name in product(sorted({line["rows"] for line in done}), KINDS):
        of_way: dict[str, dict[int, Row]] = {way: {} for way in ways}
        for line in done:
            if (line["rows"], line["set"]) == (count, name) and line["way"] in of_way:
                of_way[line["way"]][line["seed"]] = line
        there = [set(lines) for lines in of_way.values() if lines]
        seeds = set.intersection(*there) if there else set()
        cells = [cell([lines[seed] for seed in sorted(seeds)] if lines else []) for lines in of_way.values()]
        if seeds:
            text.append(f"| {count or 'all'} | {name} | {len(seeds)} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def cell(lines: list[Row]) -> str:
    if not lines:
        return ""
    seconds = sum(line["cpu"] for line in lines) / len(lines)
    return f"{mean_of([100 * line['score'] for line in lines])}, {seconds:.0f} s"


def beside_the_best(done: list[Row], ways: Sequence[str]) -> str:
    """Points of palm's ways beside the rival with the highest mean, paired by seed."""
    rivals = [way for way in ways if way.split("+")[0] not in EFFORTS]
    own = [way for way in ways if way not in rivals]
    text = ["| rows | set | best rival | " + " | ".join(own) + " |", "|---" * (3 + len(own)) + "|"]
    for count, name in product(sorted({line["rows"] for line in done}), KINDS):
        points: dict[str, dict[int, float]] = {}
        for line in done:
            if (line["rows"], line["set"]) == (count, name) and line["way"] in ways:
                points.setdefault(line["way"], {})[line["seed"]] = 100 * line["score"]
        there = [way for way in rivals if way in points]
        if not there:
            continue
        seeds = set.intersection(*(set(points[way]) for way in there))
        best = max(there, key=lambda way: sum(points[way][seed] for seed in seeds))
        cells = []
        for way in own:
            both = sorted(seeds & set(points.get(way, ())))
            cells.append(mean_of([points[way][seed] - points[best][seed] for seed in both], "+"))
        text.append(f"| {count or 'all'} | {name} | {best} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a directory of sentence-transformers")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--rows", type=int, nargs="+", default=[50], help="0 for all")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    parser.add_argument("--change", action="append", default=[], help="NAME=SETTINGS in YAML")
    parser.add_argument("--max_seq_len", type=int, default=64)
    parser.add_argument("--C", type=float, nargs="+", default=[0.1, 1, 10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    args.ways_of = dict(WAYS)
    for change in args.change:
        label, _, settings = change.partition("=")
        args.ways_of |= {f"{own}+{label}": with_palm(own, yaml.safe_load(settings) or {}) for own in EFFORTS}
    done = read(args.output) if args.output.exists() else []
    if args.table:
        print(tables(done, args.ways), beside_the_best(done, args.ways), sep="\n\n")
        return
    torch.set_num_threads(1)
    start = time.monotonic()
    known = {(line["set"], line["rows"], line["seed"], line["way"]) for line in done}
    for seed, count, name, way in product(args.seeds, args.rows, args.sets, args.ways):
        if (name, count, seed, way) in known or not is_possible(name, way):
            continue
        if time.monotonic() - start > args.seconds:
            raise SystemExit(3)
        line = {"set": name, "rows": count, "seed": seed, "way": way, **run(args, name, count, seed, way)}
        with args.output.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)


if __name__ == "__main__":
    main()
