"""Make a newcomer's mistakes, and show which of them palm does not tell.

    python benchmarks/mistakes.py [KIND ...] [--show]

Each mistake is made for real, in a copy of a small project of `palm init --from` that is trained, and must end in an
error or a warning that contains the words of its entry: the place, what came, or what to do. Prints every
mistake that is silent (it ends well without these words), unclear (an error without them) or raw (a
traceback), and the numbers of all outcomes. The exit code is 1 if there is one.
"""

# ruff: noqa: E501 - a mistake a line

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import logging
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from palm.cli import main as palm_command
from palm.core.errors import PalmError
from palm.core.logging import logger

QUICK = "max_steps: 4\noverwrite: True\n"


@dataclass(frozen=True)
class Mistake:
    """A mistake.

    Args:
        kind: the group that it belongs to.
        made: what is done.
        words: what the message must contain, in any case; each may give alternatives with `|`.
        do: makes it in the folder of a project.
    """

    kind: str
    made: str
    words: tuple[str, ...]
    do: Callable[[Path], object]


def run(*words: str) -> None:
    """Run palm's command; an exit code other than 0 is an error."""
    try:
        code = palm_command([*words])
    except SystemExit as error:
        code = int(error.code or 0)
    if code:
        raise PalmError(f"exit code {code}")


def edit(file: Path, lines: str) -> None:
    """Set lines of a YAML file; a line `name:` without a value removes it."""
    given = {line.partition(":")[0]: line for line in lines.split("\n")}
    kept = [line for line in file.read_text("utf-8").split("\n") if line.partition(":")[0] not in given]
    kept += [line for line in given.values() if not line.endswith("!")]
    file.write_text("\n".join([*filter(None, kept), ""]), encoding="utf-8")


def setting(file: str, lines: str, command: str = "train") -> Callable[[Path], None]:
    """Set lines of a file of the project, and train."""

    def do(folder: Path) -> None:
        edit(folder / file, lines)
        run(command, "config.yaml")

    return do


TASKS = {
    "cls": "reader: cls\nparadigm: cls\nn_classes: 2",
    "named": "reader: cls\nparadigm: cls\nlabel_map: {good: 0, bad: 1}",
    "regression": "reader: cls\nparadigm: regression",
    "count": "reader: cls\nparadigm: count",
    "ordinal": "reader: cls\nparadigm: ordinal\nn_classes: 3",
    "multi_label": "reader: multi_label\nparadigm: multi_label\nlabel_map: {a: 0, b: 1}",
    "seq_label": "reader: seq_label\nparadigm: seq_label\nlabel_map: {O: 0, B-PER: 1, I-PER: 2}",
    "span": "reader: span\nparadigm: span\nlabel_map: {who: 0}",
    "relation": "reader: relation\nparadigm: relation\nlabel_map: {owns: 0}\nspan_label_map: {who: 0, what: 1}",
    "match": "reader: match\nparadigm: match",
    "embedding": "reader: embedding\nparadigm: embedding",
    "multiple_choice": "reader: multiple_choice\nparadigm: multiple_choice",
    "ranking": "reader: ranking\nparadigm: ranking",
    "mlm": "reader: mlm\nparadigm: mlm",
    "mrc": "reader: mrc\nparadigm: mrc\nmax_query_len: 8\ndoc_stride: 8\nmax_answer_len: 4\nn_best_size: 5",
}


def table(
    kind: str, name: str, content: str | bytes | list[dict[str, Any]], more: str = "", command: str = "train"
) -> Callable[[Path], None]:
    """Train or check a task of one kind on a table; a list of rows becomes JSON lines."""

    def do(folder: Path) -> None:
        data = "".join(json.dumps(row) + "\n" for row in content) if isinstance(content, list) else content
        (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
        (folder / "t.yaml").write_text(f"{TASKS[kind]}\ntrain_file: {name}\n", encoding="utf-8")
        if more:
            edit(folder / "t.yaml", more)
        edit(
            folder / "config.yaml",
            "task_instance: t\ntarget_tag: !\nmix_ratio: !\nbatch_size: 2\nlearning_rate: 1e-3",
        )
        run(command, "config.yaml")

    return do


def command(*words: str) -> Callable[[Path], None]:
    """Run a command in the folder of the project."""
    return lambda _: run(*words)


def program(text: str) -> Callable[[Path], None]:
    """Run a program in the folder of the project; `m` is the model of a task, `c` the configuration."""

    def do(_: Path) -> None:
        import palm

        names = {"palm": palm, "c": "config.yaml", "json": json, "Path": Path}
        if "m." in text:
            names["m"] = palm.load_model("output/category/infer_model")
        exec(text, names)

    return do


def request(
    body: object, path: str = "/predict", method: str = "post", **keywords: Any
) -> Callable[[Path], None]:
    """Send a request to a server of the project's models."""

    def do(_: Path) -> None:
        from fastapi.testclient import TestClient

        from palm.serve.app import create_app
        from palm.serve.service import Settings

        with TestClient(create_app(Settings(folders=["output"]))) as client:
            given = {"content": body} if isinstance(body, str | bytes) else {"json": body}
            if method == "get":
                given = {}
            answer = getattr(client, method)(path, **given, **keywords)
        if answer.status_code == 500:
            raise RuntimeError(answer.text)
        print(answer.text, file=sys.stderr, flush=True)
        if answer.status_code >= 400:
            raise PalmError(answer.text)

    return do


def _texts(label: Callable[[int], object], name: str = "label") -> list[dict[str, Any]]:
    return [
        {name: label(k), "text_a": f"look at the {w} of my order {k}"}
        for k, w in enumerate(["phone", "team"] * 6)
    ]


def _csv(rows: list[dict[str, Any]], **how: Any) -> str:
    lines = [how.get("separator", ",").join(map(str, row.values())) for row in rows]
    return "\n".join([how.get("separator", ",").join(rows[0]), *lines, ""])


GOOD = _texts(lambda k: k % 2)
QA = {
    "question": "what is lost",
    "context": "the red boat is lost",
    "answers": [{"text": "red boat", "answer_start": 4}],
}
OWNS = {
    "text_a": "anna has boats",
    "spans": [{"start": 0, "end": 4, "label": "who"}, {"start": 9, "end": 14, "label": "what"}],
    "relations": [{"head": 0, "tail": 1, "label": "owns"}],
}


def _squad(**changes: object) -> str:
    qa = {"id": "q", "question": QA["question"], "answers": QA["answers"], **changes}
    return json.dumps({"data": [{"paragraphs": [{"context": QA["context"], "qas": [qa]}]}]})


YAML: list[tuple[str, tuple[str, ...], Callable[[Path], object]]] = [
    ("a variable of the shell in save_path", ("save_path", "$"), setting("config.yaml", "save_path: $NOWHERE/out")),
    ("~ in a train_file", ("train_file", "nothing.csv"), setting("category.yaml", "train_file: ~/nothing.csv")),
    ("a rate of 5 in place of 5e-5", ("learning_rate", "5"), setting("config.yaml", "learning_rate: 5")),
    ("a rate of 0.5", ("learning_rate", "0.5"), setting("config.yaml", "learning_rate: 0.5")),
    ("a negative rate", ("learning_rate",), setting("config.yaml", "learning_rate: -1e-5")),
    ("dropout in percent", ("dropout_prob", "10"), setting("category.yaml", "dropout_prob: 10")),
    ("dropout of everything", ("dropout_prob", "1"), setting("category.yaml", "dropout_prob: 1.0")),
    ("hidden dropout of everything", ("hidden_dropout_prob", "1"), setting("config.yaml", "hidden_dropout_prob: 1.0")),
    ("weight decay in percent", ("weight_decay",), setting("config.yaml", "weight_decay: 1000")),
    ("negative decay", ("weight_decay",), setting("config.yaml", "weight_decay: -0.1")),
    ("clipping at 0", ("grad_clip",), setting("config.yaml", "grad_clip: 0")),
    ("no epochs", ("num_epochs",), setting("config.yaml", "num_epochs: 0")),
    ("one token a row", ("max_seq_len",), setting("config.yaml", "max_seq_len: 1")),
    ("longest row in words of a page", ("max_seq_len", "128"), setting("config.yaml", "max_seq_len: 4096")),
    ("no target", ("target_tag",), setting("config.yaml", "target_tag: 0, 0, 0, 0")),
    ("a target tag of 2", ("target_tag",), setting("config.yaml", "target_tag: 2, 1, 1, 1")),
    ("tags of tasks for one task too few", ("target_tag", "4|3"), setting("config.yaml", "target_tag: 1, 1, 1")),
    ("a target with the ratio 0", ("mix_ratio",), setting("config.yaml", "mix_ratio: 1, 1, 1, 0")),
    ("a negative ratio", ("mix_ratio",), setting("config.yaml", "mix_ratio: 1, 1, 1, -1")),
    ("ratios that are all 0", ("mix_ratio",), setting("config.yaml", "mix_ratio: 0, 0, 0, 0")),
    ("one task twice", ("task_instance", "category"), setting("config.yaml", "task_instance: category, category, tags, price")),
    ("a task with its suffix", ("category.yaml",), setting("config.yaml", "task_instance: category.yaml, urgency, price, tags")),
    ("a task in capitals", ("Category",), setting("config.yaml", "task_instance: Category, urgency, price, tags")),
    ("the column in place of the task", ("message",), setting("config.yaml", "task_instance: message")),
    ("the table in place of the task", ("tickets",), setting("config.yaml", "task_instance: ../tickets.csv")),
    ("save_path in a task file", ("save_path",), setting("category.yaml", "save_path: other")),
    ("the length in a task file", ("num_epochs",), setting("category.yaml", "num_epochs: 2")),
    ("the rate in a task file", ("learning_rate",), setting("category.yaml", "learning_rate: 1e-3")),
    ("effort in a task file", ("effort",), setting("category.yaml", "effort: quick")),
    ("the encoder in a task file", ("backbone",), setting("category.yaml", "backbone: roberta")),
    ("the tasks in a task file", ("task_instance",), setting("category.yaml", "task_instance: category")),
    ("effort that is not known", ("effort", "quick"), setting("config.yaml", "effort: fast")),
    ("effort as a number", ("effort",), setting("config.yaml", "effort: 1")),
    ("a file of weights that is not there", ("pretrain_path", "encoder2"), setting("config.yaml", "pretrain_path: encoder2")),
    ("weights of an own model", ("start_from|pretrain_path",), setting("config.yaml", "pretrain_path: output/category/infer_model")),
    ("weights of all own models", ("start_from|pretrain_path",), setting("config.yaml", "pretrain_path: output")),
    ("the vocabulary as weights", ("encoder/vocab.txt",), setting("config.yaml", "pretrain_path: encoder/vocab.txt")),
    ("split as a number", ("split",), setting("category.yaml", "split: 0.1")),
    ("split in percent", ("split",), setting("category.yaml", "split: {dev: 10}")),
    ("split of more than all", ("split",), setting("category.yaml", "split: {dev: 0.6, test: 0.5}")),
    ("a share of training rows", ("split", "train"), setting("category.yaml", "split: {train: 0.8, dev: 0.2}")),
    ("a part of another name", ("split", "valid"), setting("category.yaml", "split: {valid: 0.1}")),
    ("split beside dev_file", ("dev_file", "split"), setting("category.yaml", "dev_file: ../tickets.csv")),
    ("columns as a name", ("columns",), setting("category.yaml", "columns: message")),
    ("columns as a list", ("columns",), setting("category.yaml", "columns: [message, category]")),
    ("columns that the reader lacks", ("columns", "text_a"), setting("category.yaml", "columns: {text: message, label: category}")),
    ("a column in another case", ("Message", "message"), setting("category.yaml", "columns: {text_a: Message, label: category}")),
    ("a column with a typing error", ("categroy", "category"), setting("category.yaml", "columns: {text_a: message, label: categroy}")),
    ("columns the other way round", ("columns",), setting("category.yaml", "columns: {message: text_a, category: label}")),
    ("text and label exchanged", ("label",), setting("category.yaml", "columns: {text_a: category, label: message}")),
    ("the label as text", ("category",), setting("category.yaml", "columns: {text_a: category, label: category}")),
    ("a label map that begins with 1", ("label_map",), setting("category.yaml", "label_map: {account: 1, billing: 2, bug: 3}")),
    ("one id for two names", ("label_map",), setting("category.yaml", "label_map: {account: 0, billing: 0, bug: 1}")),
    ("names in another case", ("label_map", "account"), setting("category.yaml", "label_map: {Account: 0, Billing: 1, Bug: 2}")),
    ("a name twice in a list", ("label_map", "bug"), setting("category.yaml", "label_map: [account, bug, bug]")),
    ("ids as keys", ("label_map",), setting("category.yaml", "label_map: {0: account, 1: billing, 2: bug}")),
    ("labels that the map lacks", ("label_map", "bug"), setting("category.yaml", "label_map: {account: 0, billing: 1}")),
    ("f1 as a metric", ("metrics", "f1"), setting("category.yaml", "metrics: f1")),
    ("accuracy of numbers", ("accuracy",), setting("price.yaml", "metrics: accuracy")),
    ("a metric of spans for classes", ("span_f1",), setting("category.yaml", "metrics: span_f1")),
    ("patience beyond all evaluations", ("patience",), setting("config.yaml", "early_stopping_patience: 1000")),
    ("a loss without weight", ("loss_weight",), setting("category.yaml", "loss_weight: 0")),
    ("a loss with a negative weight", ("loss_weight",), setting("category.yaml", "loss_weight: -1")),
    ("a weight of one class", ("class_weights",), setting("category.yaml", "class_weights: [2]")),
    ("weights of classes by name", ("class_weights",), setting("category.yaml", "class_weights: {bug: 2}")),
    ("where with a value that no row has", ("where", "bugs"), setting("category.yaml", "where: {category: bugs}")),
    ("where with a column that is not there", ("where", "kind"), setting("category.yaml", "where: {kind: bug}")),
    ("where as a sentence", ("where",), setting("category.yaml", "where: category == bug")),
    ("where that leaves one label", ("category", "nothing to learn"), setting("category.yaml", "where: {category: bug}", "check")),
    ("no sample", ("sample",), setting("category.yaml", "sample: 0")),
    ("sample as a share", ("sample",), setting("category.yaml", "sample: 0.5")),
    ("a task with itself", ("share_rows_with",), setting("category.yaml", "share_rows_with: category")),
    ("a task that is not there", ("share_rows_with", "kind"), setting("category.yaml", "share_rows_with: kind")),
    ("on_bad_row: True", ("on_bad_row",), setting("category.yaml", "on_bad_row: True")),
    ("BERT by its name at Hugging Face", ("backbone",), setting("config.yaml", "backbone: bert-base-uncased")),
    ("a CRF for classes", ("use_crf",), setting("category.yaml", "use_crf: True")),
    ("LoRA as a number", ("lora",), setting("config.yaml", "lora: 8")),
    ("LoRA with names of peft", ("lora",), setting("config.yaml", "lora: {r: 8, target_modules: [q_proj]}")),
    ("LoRA of rank 0", ("rank",), setting("config.yaml", "lora: {rank: 0}")),
    ("everything frozen", ("freeze",), setting("config.yaml", "freeze: True")),
    ("stages as a number", ("stages",), setting("config.yaml", "stages: 2")),
    ("stages of nothing", ("stages",), setting("config.yaml", "stages: []")),
    ("another reader than the head", ("task 'category'",), setting("category.yaml", "reader: multi_label")),
    ("a reader for the format", ("reader", "csv"), setting("category.yaml", "reader: csv")),
    ("classification by its name", ("paradigm", "cls"), setting("category.yaml", "paradigm: classification")),
    ("counts of prices with decimals", ("price|whole",), setting("price.yaml", "paradigm: count")),
    ("classes of a column of numbers", ("label",), setting("category.yaml", "columns: {text_a: message, label: price}\nlabel_map: !\nn_classes: 3")),
    ("numbers of a column of names", ("label", "number"), setting("category.yaml", "paradigm: regression\nmetrics: !\nlabel_map: !")),
    ("an id as a class", ("label",), setting("category.yaml", "columns: {text_a: message, label: id}\nlabel_map: !\nn_classes: 60", "check")),
    ("no number of classes", ("n_classes|label_map",), setting("category.yaml", "label_map: !")),
    ("one class", ("n_classes",), setting("category.yaml", "label_map: !\nn_classes: 1")),
    ("more classes than the map", ("n_classes", "label_map"), setting("category.yaml", "n_classes: 2")),
]  # fmt: skip
TABLES: list[tuple[str, tuple[str, ...], Callable[[Path], object]]] = [
    ("Excel's Unicode text", ("t.csv", "UTF-8"), table("cls", "t.csv", _csv(GOOD).encode("utf-16"))),
    ("Excel's ANSI", ("t.csv:2", "UTF-8"), table("cls", "t.csv", _csv(_texts(lambda k: k % 2)).replace("look", "schön").encode("cp1252"))),
    ("semicolons in a CSV", ("t.csv:1", ";|label"), table("cls", "t.csv", _csv(GOOD, separator=";"))),
    ("tabs in a CSV", ("t.csv:1", "label"), table("cls", "t.csv", _csv(GOOD, separator="\t"))),
    ("commas in a TSV", ("t.tsv:1", "label"), table("cls", "t.tsv", _csv(GOOD))),
    ("no header", ("t.csv:1", "label"), table("cls", "t.csv", _csv(GOOD).partition("\n")[2])),
    ("a header in capitals", ("t.csv:1", "Label|LABEL"), table("cls", "t.csv", _csv(GOOD).replace("label,text_a", "LABEL,TEXT_A"))),
    ("two columns of one name", ("t.csv:1", "label"), table("cls", "t.csv", "label,label,text_a\n0,1,a phone\n1,0,a team\n")),
    ("a line of only commas at the end", ("t.csv", "no label|without|empty"), table("cls", "t.csv", _csv(GOOD) + ",\n,\n")),
    ("a quote that is never closed", ("t.csv",), table("cls", "t.csv", _csv(GOOD).replace("0,look", '0,"look', 1))),
    ("a comma in a text without quotes", ("t.csv:2", "3|columns"), table("cls", "t.csv", _csv(GOOD).replace("look at", "look, at"))),
    ("thousands with commas", ("t.jsonl:1", "1,200"), table("regression", "t.jsonl", _texts(lambda _: "1,200"))),
    ("decimal commas", ("t.jsonl:1", "3,5"), table("regression", "t.jsonl", _texts(lambda _: "3,5"))),
    ("percents", ("t.jsonl:1", "45%"), table("regression", "t.jsonl", _texts(lambda _: "45%"))),
    ("a currency", ("t.jsonl:1", "12"), table("regression", "t.jsonl", _texts(lambda _: "$12"))),
    ("dates as numbers", ("t.jsonl:1", "2024-01-02"), table("regression", "t.jsonl", _texts(lambda _: "2024-01-02"))),
    ("one price for all", ("label 7.5",), table("regression", "t.jsonl", _texts(lambda _: 7.5))),
    ("a price that is infinite", ("t.jsonl:1", "inf"), table("regression", "t.jsonl", _texts(lambda k: k or "inf"))),
    ("negative counts", ("t.jsonl:1", "-1"), table("count", "t.jsonl", _texts(lambda _: -1))),
    ("n/a as a class", ("n/a",), table("named", "t.jsonl", _texts(lambda k: ["good", "bad", "n/a"][k % 3]))),
    ("a class with a blank behind it", ("t", "good |'good"), table("named", "t.jsonl", _texts(lambda k: ["good", "bad "][k % 2]))),
    ("a class in capitals", ("Good",), table("named", "t.jsonl", _texts(lambda k: ["Good", "bad"][k % 2]))),
    ("ids with decimals", ("1.5",), table("cls", "t.jsonl", _texts(lambda k: [0.0, 1.5][k % 2]))),
    ("classes from 1 to 2", ("t.jsonl:2", "2"), table("cls", "t.jsonl", _texts(lambda k: 1 + k % 2))),
    ("classes of -1 and 1", ("-1",), table("cls", "t.jsonl", _texts(lambda k: -1 + 2 * (k % 2)))),
    ("true and false as ids", ("t.jsonl:1", "True|true"), table("cls", "t.jsonl", _texts(lambda k: k % 2 == 0))),
    ("steps from 1 to 3", ("t.jsonl:3", "3"), table("ordinal", "t.jsonl", _texts(lambda k: 1 + k % 3))),
    ("Python's list in a CSV", ("t.csv:2", "['a'"), table("multi_label", "t.csv", "label,text_a\n" + "\"['a', 'b']\",the phone\n" * 4)),
    ("numpy's array in a CSV", ("t.csv:2", "[0 1]"), table("multi_label", "t.csv", "label,text_a\n" + "[0 1],the phone\n" * 4)),
    ("labels separated by |", ("t.csv:2", "a\\|b|a|b"), table("multi_label", "t.csv", "label,text_a\n" + "a|b,the phone\n" * 4)),
    ("an object of labels", ("t.jsonl:1",), table("multi_label", "t.jsonl", _texts(lambda _: {"a": 1, "b": 0}))),
    ("one label for several", ("t.jsonl:1", "c"), table("multi_label", "t.jsonl", _texts(lambda _: ["c"]))),
    ("fewer tags than words", ("t.jsonl:1", "3", "2"), table("seq_label", "t.jsonl", [{"text_a": ["anna", "is", "here"], "label": ["B-PER", "O"]}] * 4)),
    ("words as one text, tags as a list", ("t.jsonl:1",), table("seq_label", "t.jsonl", [{"text_a": "anna, is here", "label": ["B-PER", "O"]}] * 4)),
    ("Python's lists of tags in a CSV", ("t.csv:2",), table("seq_label", "t.csv", "label,text_a\n" + "\"['B-PER', 'O']\",\"['anna', 'is']\"\n" * 4)),
    ("a tag in another case", ("t.jsonl:1", "b-per"), table("seq_label", "t.jsonl", [{"text_a": ["anna"], "label": ["b-per"]}] * 4)),
    ("one tag for a text", ("t.jsonl:1",), table("seq_label", "t.jsonl", [{"text_a": ["anna", "is"], "label": "B-PER"}] * 4)),
    ("tags of ids in a map of names", ("t.jsonl:1",), table("seq_label", "t.jsonl", [{"text_a": ["anna", "is"], "label": [1, 9]}] * 4)),
    ("no words", ("t.jsonl:1",), table("seq_label", "t.jsonl", [{"text_a": [], "label": []}] * 4)),
    ("spans with the last character", ("t.jsonl:1", "'ann'"), table("span", "t.jsonl", [{"text_a": "anna came", "spans": [{"start": 0, "end": 3, "label": "who"}]}] * 4)),
    ("spans counted from 1", ("t.jsonl:1",), table("span", "t.jsonl", [{"text_a": "anna came", "spans": [{"start": 1, "end": 5, "label": "who"}]}] * 4)),
    ("spans beyond the text", ("t.jsonl:1", "99"), table("span", "t.jsonl", [{"text_a": "anna came", "spans": [{"start": 0, "end": 99, "label": "who"}]}] * 4)),
    ("entities in place of spans", ("spans",), table("span", "t.jsonl", [{"text_a": "anna came", "entities": [[0, 4, "who"]]}] * 4)),
    ("spans of a kind that the map lacks", ("t.jsonl:1", "PER"), table("span", "t.jsonl", [{"text_a": "anna came", "spans": [{"start": 0, "end": 4, "label": "PER"}]}] * 4)),
    ("spans with length", ("t.jsonl:1", "end"), table("span", "t.jsonl", [{"text_a": "anna came", "spans": [{"start": 0, "length": 4, "label": "who"}]}] * 4)),
    ("relations of spans that are not there", ("t.jsonl:1", "7"), table("relation", "t.jsonl", [{**OWNS, "relations": [{"head": 0, "tail": 7, "label": "owns"}]}] * 4)),
    ("relations by text", ("t.jsonl:1", "anna"), table("relation", "t.jsonl", [{**OWNS, "relations": [{"head": "anna", "tail": "boats", "label": "owns"}]}] * 4)),
    ("a relation of a span with itself", ("t.jsonl:1",), table("relation", "t.jsonl", [{**OWNS, "relations": [{"head": 0, "tail": 0, "label": "owns"}]}] * 4)),
    ("subject and object in place of head and tail", ("t.jsonl:1", "head"), table("relation", "t.jsonl", [{**OWNS, "relations": [{"subject": 0, "object": 1, "label": "owns"}]}] * 4)),
    ("entailment by name", ("t.jsonl:1", "entailment"), table("match", "t.jsonl", [{"text_a": "a boat", "text_b": "the boat", "label": "entailment"}] * 4)),
    ("a similarity of 0 to 5 as a match", ("t.jsonl:1", "4.2"), table("match", "t.jsonl", [{"text_a": "a boat", "text_b": "the boat", "label": 4.2}] * 4)),
    ("no second text", ("t.jsonl", "text_b"), table("match", "t.jsonl", GOOD)),
    ("an empty second text", ("t.jsonl:1", "text_b"), table("match", "t.jsonl", [{"text_a": "a boat", "text_b": "", "label": 1}] * 4)),
    ("pairs of one text", ("t.jsonl", "text_b"), table("embedding", "t.jsonl", [{"text_a": "a boat"}] * 4)),
    ("all pairs the same", ("repeat",), table("embedding", "t.jsonl", [{"text_a": "a boat", "text_b": "the boat"}] * 8, command="check")),
    ("the choice as a letter", ("t.jsonl:1", "B", "label_map"), table("multiple_choice", "t.jsonl", [{"text_a": "what", "choices": ["a boat", "a sun"], "label": "B"}] * 4)),
    ("the choice as its text", ("t.jsonl:1", "a sun"), table("multiple_choice", "t.jsonl", [{"text_a": "what", "choices": ["a boat", "a sun"], "label": "a sun"}] * 4)),
    ("choices counted from 1", ("t.jsonl:1", "2"), table("multiple_choice", "t.jsonl", [{"text_a": "what", "choices": ["a boat", "a sun"], "label": 2}] * 4)),
    ("one choice", ("t.jsonl:1", "choices"), table("multiple_choice", "t.jsonl", [{"text_a": "what", "choices": ["a boat"], "label": 0}] * 4)),
    ("choices in one text", ("t.jsonl:1", "choices"), table("multiple_choice", "t.jsonl", [{"text_a": "what", "choices": "a boat, a sun", "label": 0}] * 4)),
    ("one relevance for all candidates", ("t.jsonl:1", "label"), table("ranking", "t.jsonl", [{"text_a": "what", "candidates": ["a boat", "a sun"], "label": 0}] * 4)),
    ("a relevance too few", ("t.jsonl:1", "2"), table("ranking", "t.jsonl", [{"text_a": "what", "candidates": ["a boat", "a sun"], "label": [1]}] * 4)),
    ("no candidate is relevant", ("label 0",), table("ranking", "t.jsonl", [{"text_a": "what", "candidates": ["a boat", "a sun"], "label": [0, 0]}] * 4)),
    ("an answer one character off", ("t.json", "red boat"), table("mrc", "t.json", _squad(answers=[{"text": "red boat", "answer_start": 5}]))),
    ("an answer that the context lacks", ("t.json", "sun"), table("mrc", "t.json", _squad(answers=[{"text": "the sun", "answer_start": 0}]))),
    ("an answer as a text", ("t.json", "answer_start"), table("mrc", "t.json", _squad(answers="red boat"))),
    ("a question without answers", ("t.json|q",), table("mrc", "t.json", _squad(answers=[]))),
    ("a list in place of SQuAD's object", ("t.json", "data"), table("mrc", "t.json", json.dumps([QA]))),
    ("a file of questions as a table of classes", ("t.json",), table("cls", "t.json", _squad())),
    ("a JSON array in place of lines", ("t.jsonl:1", "object"), table("cls", "t.jsonl", json.dumps(GOOD))),
    ("JSON on several lines", ("t.jsonl:1", "object|line"), table("cls", "t.jsonl", json.dumps(GOOD[0], indent=1))),
    ("a comma at the end of JSON lines", ("t.jsonl:1",), table("cls", "t.jsonl", json.dumps(GOOD[0]) + ",\n")),
    ("single quotes in JSON lines", ("t.jsonl:1",), table("cls", "t.jsonl", str(GOOD[0]) + "\n")),
    ("a text in an object", ("t.jsonl:1", "text_a"), table("cls", "t.jsonl", [{"label": 0, "text_a": {"en": "a boat"}}] * 4)),
    ("numbers as texts", ("t.jsonl:1", "text_a"), table("cls", "t.jsonl", [{"label": 0, "text_a": 5}] * 4)),
    ("texts of blanks", ("t.jsonl:1", "text_a"), table("cls", "t.jsonl", [{"label": 0, "text_a": " \u00a0"}] * 4)),
    ("NaN as a label", ("t.jsonl:1", "nan"), table("cls", "t.jsonl", '{"label": NaN, "text_a": "a boat"}\n' * 4)),
    ("only a header", ("t.csv",), table("cls", "t.csv", "label,text_a\n")),
    ("an empty file", ("t.csv",), table("cls", "t.csv", "")),
    ("one row", ("batch_size|row",), table("cls", "t.csv", _csv(GOOD[:1]))),
    ("one class in all rows", ("label 0",), table("cls", "t.csv", _csv(_texts(lambda _: 0)))),
    ("a workbook", ("t.xlsx",), table("cls", "t.xlsx", b"PK\x03\x04" + bytes(100))),
    ("a page of the web", ("t.csv:1", "label"), table("cls", "t.csv", "<!DOCTYPE html>\n<html>404</html>\n")),
    ("a pointer of Git LFS", ("t.csv", "LFS"), table("cls", "t.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:1\n")),
    ("a Parquet file named .csv", ("t.csv",), table("cls", "t.csv", b"PAR1" + bytes(range(200)))),
    ("an archive", ("t.zip",), table("cls", "t.zip", b"PK\x03\x04" + bytes(100))),
    ("old line ends of a Mac", ("t.csv",), table("cls", "t.csv", _csv(GOOD).replace("\n", "\r"))),
    ("a dev file with other classes", ("d.csv:2", "2"), table("cls", "t.csv", _csv(GOOD), "dev_file: d.csv")),
    ("a dev file of the training rows", ("dev_file", "train_file"), table("cls", "t.csv", _csv(GOOD), "dev_file: t.csv")),
    ("a pattern without files", ("*.nothing",), table("cls", "t.csv", _csv(GOOD), "train_file: '*.nothing'")),
    ("one of two files is missing", ("b.csv",), table("cls", "t.csv", _csv(GOOD), "train_file: [t.csv, b.csv]")),
    ("two files with other columns", ("u.csv",), table("cls", "t.csv", _csv(GOOD), "train_file: [t.csv, u.csv]")),
    ("the folder of the files", (".",), table("cls", "t.csv", _csv(GOOD), "train_file: .")),
]  # fmt: skip

OLD = "output/category/infer_model"

COMMANDS: list[tuple[str, tuple[str, ...], Callable[[Path], object]]] = [
    ("palm trian", ("train",), command("trian", "config.yaml")),
    ("no configuration", ("config",), command("train")),
    ("the table", ("tickets.csv",), command("train", "../tickets.csv")),
    ("the folder", ("folder",), command("train", ".")),
    ("the run", ("output",), command("train", "output")),
    ("another suffix", ("config.yml",), command("train", "config.yml")),
    ("a task's file", ("category.yaml|task_instance",), command("train", "category.yaml")),
    ("--lr", ("--lr", "learning_rate"), command("train", "config.yaml", "--lr", "1e-4")),
    ("--epochs", ("--epochs", "num_epochs"), command("train", "config.yaml", "--epochs", "3")),
    ("--batch-size", ("batch",), command("train", "config.yaml", "--batch-size", "eight")),
    ("a setting without value", ("learning_rate",), command("train", "config.yaml", "--learning_rate")),
    ("a setting without dashes", ("learning_rate=1e-4",), command("train", "config.yaml", "learning_rate=1e-4")),
    ("a setting of a task that is not there", ("categry",), command("train", "config.yaml", "--categry.batch_size", "4")),
    ("a setting of a task with another name", ("batchsize",), command("train", "config.yaml", "--category.batchsize", "4")),
    ("-c config.yaml", ("-c",), command("train", "-c", "config.yaml")),
    ("two configurations", ("category.yaml",), command("train", "config.yaml", "category.yaml")),
    ("help as a command", ("help",), command("help")),
    ("a component in the plural", ("readerz", "reader"), command("ls", "readerz")),
    ("the same folder with other settings", ("output", "overwrite"), command("train", "config.yaml", "--overwrite", "False", "--random_seed", "9")),
    ("--resume without a value", ("resume",), command("train", "config.yaml", "--resume")),
    ("a checkpoint that is not there", ("nowhere",), command("train", "config.yaml", "--resume", "nowhere")),
    ("a text to predict", ("my phone is broken",), command("predict", "my phone is broken")),
    ("a table to predict as a configuration", ("tickets.csv",), command("predict", "../tickets.csv")),
    ("a model without input", ("--input",), command("predict", "--model", OLD)),
    ("no output", ("--output",), command("predict", "--model", OLD, "--input", "../tickets.csv")),
    ("the input as output", ("tickets.csv",), command("predict", "--model", OLD, "--input", "../tickets.csv", "--output", "../tickets.csv")),
    ("output in an unknown form", ("answers.xlsx",), command("predict", "--model", OLD, "--input", "../tickets.csv", "--output", "answers.xlsx")),
    ("output in a folder that is not there, below a file", ("config.yaml",), command("predict", "--model", OLD, "--input", "../tickets.csv", "--output", "config.yaml/answers.csv")),
    ("an input without the column", ("message",), command("predict", "--model", OLD, "--input", "other.csv", "--output", "answers.csv")),
    ("an input that is not there", ("no.csv",), command("predict", "--model", OLD, "--input", "no.csv", "--output", "answers.csv")),
    ("a model that is not there", ("output/kind",), command("predict", "--model", "output/kind", "--input", "../tickets.csv", "--output", "answers.csv")),
    ("the task's folder as the model", ("output/category",), command("predict", "--model", "output/category/nothing", "--input", "../tickets.csv", "--output", "answers.csv")),
    ("a task that the model lacks", ("kind", "category"), command("predict", "--model", "output", "--task", "kind", "--input", "../tickets.csv", "--output", "a.csv")),
    ("a GPU that is not there", ("cuda|gpu",), command("predict", "--model", OLD, "--device", "cuda", "--input", "../tickets.csv", "--output", "a.csv")),
    ("a device of another kind", ("--device", "tpu"), command("predict", "--model", OLD, "--device", "tpu", "--input", "../tickets.csv", "--output", "a.csv")),
    ("a task of the configuration that is not there", ("categry", "category"), command("predict", "config.yaml", "--task", "categry")),
    ("evaluation without labels", ("label|category",), command("evaluate", "--model", OLD, "--input", "unlabelled.csv")),
    ("evaluation of a run", ("output",), command("evaluate", "output")),
    ("a metric that is not there", ("f2",), command("evaluate", "--model", OLD, "--input", "../tickets.csv", "--metric", "f2")),
    ("a metric of another kind", ("pearson",), command("evaluate", "--model", OLD, "--input", "../tickets.csv", "--metric", "pearson")),
    ("a report of a configuration", ("config.yaml",), command("report", "config.yaml")),
    ("a report of nothing", ("nowhere",), command("report", "nowhere")),
    ("a report of a folder without a run", ("encoder",), command("report", "encoder")),
    ("a report of a table", ("tickets.csv",), command("report", "../tickets.csv")),
    ("a report into a folder", ("encoder",), command("report", "output", "--output", "encoder")),
    ("compare one task", ("task",), command("compare", "config.yaml", "--task_instance", "category", "--output", "cmp")),
    ("compare no seeds", ("seeds",), command("compare", "config.yaml", "--seeds", "0", "--output", "cmp")),
    ("compare for a setting that is not there", ("target",), command("compare", "config.yaml", "--target", "kind", "--output", "cmp")),
    ("sweep nothing", ("grid|sweep",), command("sweep", "config.yaml", "--output", "swp")),
    ("a grid without values", ("learning_rate",), command("sweep", "config.yaml", "--grid", "learning_rate", "--output", "swp")),
    ("a grid of another name", ("lr",), command("sweep", "config.yaml", "--grid", "lr=1e-3,1e-4", "--output", "swp")),
    ("a grid with one word", ("learning_rate", "fast"), command("sweep", "config.yaml", "--grid", "learning_rate=fast,slow", "--output", "swp")),
    ("a project in a folder with files", ("output|empty",), command("init", ".", "--from", "../tickets.csv")),
    ("a project without a folder", ("dir|folder|arguments",), command("init", "--from", "../tickets.csv")),
    ("a project of a table that is not there", ("no.csv",), command("init", "new", "--from", "no.csv")),
    ("a project of a workbook", ("other.xlsx",), command("init", "new", "--from", "other.xlsx")),
    ("a project of a table without texts", ("numbers.csv", "texts"), command("init", "new", "--from", "numbers.csv")),
    ("a project of an unknown kind", ("classification", "cls"), command("init", "new", "--tasks", "classification")),
    ("a project from the encoder of nobody", ("nobody",), lambda _: (run("init", "new", "--tasks", "cls", "--pretrain", "./nobody"), run("check", "new/config.yaml"))),
    ("an export without a folder", ("--output",), command("export", OLD, "--to", "hf")),
    ("an export for another library", ("tensorflow",), command("export", OLD, "--to", "tensorflow", "--output", "new")),
    ("an export of a configuration", ("config.yaml",), command("export", "config.yaml", "--to", "hf", "--output", "new")),
    ("an export of stars to transformers", ("ordinal",), command("export", "output/urgency/infer_model", "--to", "hf", "--output", "new")),
    ("a look into a table", ("tickets.csv",), command("inspect", "../tickets.csv")),
    ("an average of models, which palm makes no more", ("use_ema",), command("merge", OLD, "output/price/infer_model", "--output", "new")),
    ("the differences of one run", ("run|arguments",), command("diff", "output")),
    ("a plot of a configuration", ("plot", "palm report"), command("plot", "config.yaml")),
    ("a server of nothing", ("dir|arguments",), command("serve")),
    ("a server of a configuration", ("config.yaml",), command("serve", "config.yaml")),
    ("a port beyond all ports", ("80000",), command("serve", "output", "--port", "80000")),
    ("a port by name", ("http",), command("serve", "output", "--port", "http")),
    ("no workers", ("workers",), command("serve", "output", "--workers", "0")),
    ("a model of nobody to download", ("bert",), command("download", "bert")),
    ("completion for a shell, which palm writes no more", ("--help",), command("completion", "powershell")),
]  # fmt: skip

PYTHON: list[tuple[str, tuple[str, ...], Callable[[Path], object]]] = [
    ("the run in one call", ("module",), program("palm.train(c)")),
    ("Controller with a typing error", ("Controler",), program("palm.Controler(c)")),
    ("settings as keywords", ("learning_rate|epochs",), program("palm.Controller(c, num_epochs=3)")),
    ("settings of train", ("epochs",), program("palm.Controller(c, argv=[]).train(epochs=3)")),
    ("settings as a dict in argv", ("argv",), program("palm.Controller(c, argv={'num_epochs': 3})")),
    ("settings as one text", ("argv",), program("palm.Controller(c, argv='--num_epochs 3')")),
    ("no configuration", ("config",), program("palm.Controller()")),
    ("a configuration of None", ("config|none",), program("palm.Controller(None, argv=[])")),
    ("a number as a configuration", ("5",), program("palm.Controller(5, argv=[])")),
    ("an empty configuration", ("task_instance",), program("palm.Controller({}, argv=[])")),
    ("a file that is not there", ("no.yaml",), program("palm.Controller('no.yaml', argv=[])")),
    ("a callback that is not in a list", ("callbacks",), program("palm.Controller(c, argv=['--max_steps', '2', '--overwrite', 'True']).train(callbacks=print)")),
    ("a callback that is none", ("callbacks",), program("palm.Controller(c, argv=['--max_steps', '2', '--overwrite', 'True']).train(callbacks=[3])")),
    ("a prediction before training", ("nowhere", "category"), program("palm.Controller(c, argv=['--save_path', 'nowhere']).pred('category')")),
    ("a prediction of a task that is not there", ("categry",), program("palm.Controller(c, argv=[]).pred('categry')")),
    ("an evaluation of a task that is not there", ("categry",), program("palm.Controller(c, argv=[]).evaluate('categry')")),
    ("a model that is not there", ("nowhere",), program("palm.load_model('nowhere')")),
    ("the model of None", ("none",), program("palm.load_model(None)")),
    ("the folder of several models", ("category", "price"), program("palm.load_model('output').predict('a phone')")),
    ("one text that is no list", ("list",), program("m.predict('a phone')")),
    ("an empty text", ("text 0", "empty"), program("m.predict([''])")),
    ("no text", ("text 0",), program("m.predict([None])")),
    ("a number as a text", ("text 0", "5"), program("m.predict([5])")),
    ("columns of the table as fields", ("text 0", "text_a"), program("m.predict([{'message': 'a phone'}])")),
    ("a list of lists", ("text 0",), program("m.predict([['a phone', 'a team', 'a house']])")),
    ("a batch size of predict", ("batch_size",), program("m.predict(['a phone'], batch_size=3)")),
    ("a table to predict that is not there", ("no.csv",), program("m.predict_file('no.csv', 'answers')")),
    ("a table of pandas to predict", ("path|data frame|dataframe",), program("import pandas\nm.predict_file(pandas.DataFrame({'message': ['a']}), 'answers')")),
    ("a table of pandas to train on", ("train_file",), program("import pandas\npalm.Controller({'task_instance': 't', 'tasks': {'t': {'train_file': pandas.DataFrame({'a': [1]})}}}, argv=[])")),
    ("rows to train on", ("train_file",), program("palm.Controller({'task_instance': 't', 'tasks': {'t': {'train_file': [{'text_a': 'x', 'label': 0}]}}}, argv=[])")),
    ("rows to evaluate", ("path|file",), program("m.evaluate([{'message': 'x', 'category': 'bug'}])")),
    ("a metric of sklearn", ("metric|names",), program("from sklearn.metrics import f1_score\nm.evaluate('../tickets.csv', [f1_score])")),
    ("a metric as one text that is not there", ("f1",), program("m.evaluate('../tickets.csv', 'f1')")),
    ("a device by number", ("device",), program("palm.load_model('output/category/infer_model', device=0)")),
    ("a precision of torch", ("precision",), program("import torch\npalm.load_model('output/category/infer_model', precision=torch.float16)")),
    ("an engine that is not there", ("engine", "tensorrt"), program("palm.load_model('output/category/infer_model', engine='tensorrt')")),
    ("trust of everything", ("trust",), program("palm.load_model('output/category/infer_model', trust=True)")),
    ("a report of None", ("run|none",), program("palm.write_report(None)")),
    ("a comparison of a file that is not there", ("no.yaml",), program("palm.compare('no.yaml', output='cmp')")),
    ("a sweep without a grid", ("space",), program("palm.sweep(c)")),
    ("an encoder that is not there", ("nowhere",), program("palm.load_backbone('nowhere')")),
    ("a head with a typing error", ("n_clases",), program("from palm.paradigm import Classify\nClassify(n_clases=2, hidden_size=8)")),
    ("a head of no classes", ("n_classes",), program("from palm.paradigm import Classify\nClassify(n_classes=0, hidden_size=8)")),
    ("a reader without a vocabulary", ("no.txt",), program("from palm.reader import ClassifyReader\nClassifyReader('no.txt', 8)")),
    ("rows before targets", ("targets|label",), program("from palm.reader import ClassifyReader\nr = ClassifyReader('encoder/vocab.txt', 8)\nr.encode(list(r.parse(['a'])), with_targets=True)")),
]  # fmt: skip

SERVE: list[tuple[str, tuple[str, ...], Callable[[Path], object]]] = [
    ("Hugging Face's inputs", ("texts", "expected"), request({"inputs": "a phone"})),
    ("one text", ("texts", "array"), request({"texts": "a phone"})),
    ("text in place of texts", ("texts",), request({"text": ["a phone"]})),
    ("a list alone", ("texts",), request(["a phone"])),
    ("a form", ("json",), request("texts=a+phone")),
    ("single quotes", ("json",), request("{'texts': ['a phone']}")),
    ("a task that is not there", ("kind", "category"), request({"texts": ["a phone"], "tasks": ["kind"]})),
    ("a task as a text", ("tasks", "array"), request({"texts": ["a phone"], "tasks": "category"})),
    ("no tasks", ("tasks",), request({"texts": ["a phone"], "tasks": []})),
    ("an empty text", ("empty",), request({"texts": [""]})),
    ("a number as a text", ("5",), request({"texts": [5]})),
    ("an option of generation", ("max_tokens",), request({"texts": ["a phone"], "max_tokens": 5})),
    ("too many texts", ("64",), request({"texts": ["a phone"] * 65})),
    ("a path of another server", ("not found",), request({"texts": ["a phone"]}, "/v1/predict")),
    ("GET in place of POST", ("method",), request(None, "/predict", "get")),
]  # fmt: skip


def project(content: str | bytes, *more: str, name: str = "t.csv") -> Callable[[Path], None]:
    """Write a project of a table, check it, and train it."""

    def do(folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        run("init", "new", "--from", name, *more)
        run("check", "new/config.yaml")
        run("train", "new/config.yaml", "--max_steps", "2")

    return do


def written(
    file: str, change: Callable[[str], str | bytes], command: str = "check"
) -> Callable[[Path], None]:
    """Write a file of the project anew, as `change` returns it."""

    def do(folder: Path) -> None:
        content = change((folder / file).read_text("utf-8"))
        (folder / file).write_bytes(content.encode() if isinstance(content, str) else content)
        run(command, "config.yaml")

    return do


def _said(label: Callable[[int], object], rows: int = 40) -> list[dict[str, Any]]:
    """Rows of a table of messages, as a user exports it."""
    words = ["refund", "crash", "login", "screen"]
    return [
        {"message": f"please look at the {words[k % 4]} of order {k}", "kind": label(k)} for k in range(rows)
    ]


KIND = ["bug", "bill"]

THIRD: list[tuple[str, tuple[str, ...], Callable[[Path], object]]] = [
    ("a project of Excel's Unicode text", ("t.csv", "utf-8"), project(_csv(_said(lambda k: KIND[k % 2])).encode("utf-16"))),
    ("a project of Excel's ANSI", ("t.csv", "utf-8"), project(_csv(_said(lambda k: KIND[k % 2])).replace("look", "schön").encode("cp1252"))),
    ("a project of a CSV with semicolons", (";",), project(_csv(_said(lambda k: KIND[k % 2]), separator=";"))),
    ("a project of a CSV with tabs", ("tab|tsv",), project(_csv(_said(lambda k: KIND[k % 2]), separator="\t"))),
    ("a project of a CSV with bars", ("\\||separator|one column|texts",), project(_csv(_said(lambda k: KIND[k % 2]), separator="|"))),
    ("a project of a table with two columns of one name", ("kind", "twice"), project("kind," + _csv(_said(lambda k: KIND[k % 2])).replace("\n", "\n1,"))),
    ("a project of labels with blanks behind them", ("'bug '|\"bug \"",), project(_csv(_said(lambda k: ["bug", "bug ", "bill"][k % 3])))),
    ("a project of labels in two cases", ("Bug",), project(_csv(_said(lambda k: ["bug", "Bug", "bill"][k % 3])))),
    ("a project of labels with an invisible character", ("u200b|invisible|'bug",), project(_csv(_said(lambda k: ["bug", "bug\u200b", "bill"][k % 3])))),
    ("a project of dates as labels", ("labels",), project(_csv(_said(lambda k: f"2024-01-{k % 40 + 1:02}")))),
    ("a project of numbers with commas", ("labels",), project(_csv(_said(lambda k: f'"{k + 1},200"')))),
    ("a project of prices with a currency", ("labels",), project(_csv(_said(lambda k: f"${k}.50")))),
    ("a project without labels in the column", ("labels",), project(_csv(_said(lambda _: "")))),
    ("a project with labels in a few rows", ("no label|without",), project(_csv(_said(lambda k: KIND[k % 2] if k < 8 else "")))),
    ("a project of one label", ("labels",), project(_csv(_said(lambda _: "bug")))),
    ("a project of a huge cell", ("t.csv:2", "cell|large|long"), project("message,kind\n" + "a boat " * 3_000_000 + ",bug\n")),
    ("a project of a workbook", ("other.xlsx",), command("init", "new", "--from", "other.xlsx")),
    ("a project of a JSON array", ("t.json", "jsonl|one json object per line"), project(json.dumps(_said(lambda k: KIND[k % 2])), name="t.json")),
    ("a project of an empty file", ("t.csv",), project("")),
    ("a project of a header", ("t.csv",), project("message,kind\n")),
    ("a project of one row", ("labels",), project("message,kind\nlook at this,bug\n")),
    ("a project of six rows", ("dev|few|rows",), project(_csv(_said(lambda k: KIND[k % 2], 6)))),
    ("a project of numbers", ("texts",), project("a,b\n" + "1,2\n" * 20)),
    ("a project of a row with a comma too many", ("t.csv:2", "3"), project(_csv(_said(lambda k: KIND[k % 2])).replace("look", "look,", 1))),
    ("a project of a path of Windows", ("tickets.csv",), command("init", "new", "--from", r"C:\Users\me\tickets.csv")),
    ("a project of a folder", ("output|t.csv|texts",), command("init", "new", "--from", "output")),
    ("a project of a column that is not there", ("kid", "kind"), project(_csv(_said(lambda k: KIND[k % 2])), "--tasks", "kid=cls")),
    ("a project of a column of another kind", ("classes", "cls"), project(_csv(_said(lambda k: KIND[k % 2])), "--tasks", "kind=classes")),
    ("a project of the text as labels", ("message",), project(_csv(_said(lambda k: KIND[k % 2])), "--tasks", "message=cls")),
    ("a project of names as counts", ("bug|whole|number",), project(_csv(_said(lambda k: KIND[k % 2])), "--tasks", "kind=count")),
    ("a project with much effort", ("effort",), command("init", "new", "--tasks", "cls", "--effort", "high")),
    ("a project with weights that are not there", ("nobody",), command("init", "new", "--tasks", "cls", "--pretrain", "./nobody")),
    ("a project with weights of a name without owner", ("bert-base-uncased",), command("init", "new", "--tasks", "cls", "--pretrain", "bert-base-uncased")),
    ("a tab in the configuration", ("config.yaml:", "tab"), written("config.yaml", lambda text: text + "lora:\n\trank: 8\n")),
    ("an equals sign in the configuration", ("config.yaml:", "num_epochs"), written("config.yaml", lambda text: text + "num_epochs = 3\n")),
    ("no blank after a colon", ("config.yaml:", "num_epochs"), written("config.yaml", lambda text: text + "num_epochs:3\n")),
    ("a setting twice", ("config.yaml:", "twice"), written("config.yaml", lambda text: text + "max_steps: 4\n")),
    ("a path of Windows in double quotes", ("category.yaml:",), written("category.yaml", lambda text: text + 'pred_file: "C:\\new\\Users.csv"\n')),
    ("a quote that is not closed", ("category.yaml:",), written("category.yaml", lambda text: text + "pred_file: 'a.csv\n")),
    ("no blank before a comment", ("config.yaml:", "num_epochs"), written("config.yaml", lambda text: text + "num_epochs: 3#passes\n")),
    ("a thousand with a comma", ("num_epochs|config.yaml:",), written("config.yaml", lambda text: text + "num_epochs: 1,000\n")),
    ("a warm-up in percent", ("warmup_proportion", "10%"), written("config.yaml", lambda text: text + "warmup_proportion: 10%\n")),
    ("a warm-up of ten", ("warmup_proportion", "10"), written("config.yaml", lambda text: text + "warmup_proportion: 10\n")),
    ("a length with a decimal", ("max_seq_len", "64.5"), written("config.yaml", lambda text: text.replace("max_seq_len: 64 ", "max_seq_len: 64.5 "))),
    ("a seed by name", ("random_seed", "lucky"), written("config.yaml", lambda text: text.replace("random_seed: 1", "random_seed: lucky"))),
    ("a configuration in UTF-16", ("config.yaml", "utf-8"), written("config.yaml", lambda text: text.encode("utf-16"))),
    ("a label map as a file that is not there", ("labels.json",), table("cls", "t.csv", _csv(GOOD), "label_map: labels.json")),
    ("a label map as a list of lines", ("other.csv",), table("cls", "t.csv", _csv(GOOD), "label_map: other.csv")),
    ("a label with a hard blank", ("good",), table("named", "t.jsonl", _texts(lambda k: ["good\u00a0", "bad"][k % 2]))),
    ("ids with wide digits", ("t.jsonl:1|'０'",), table("cls", "t.jsonl", _texts(lambda k: ["０", "１"][k % 2]))),
    ("spans of JavaScript behind an emoji", ("t.jsonl:1", "nna"), table("span", "t.jsonl", [{"text_a": "😀 anna came", "spans": [{"start": 3, "end": 7, "label": "who"}]}] * 4)),
    ("several labels in one name", ("a, b",), table("multi_label", "t.jsonl", _texts(lambda _: ["a, b"]))),
    ("an order mark inside a file of two files", ("t.csv:14",), table("cls", "t.csv", _csv(GOOD) + "\ufeff" + _csv(GOOD))),
    ("a dev file with a header only", ("u2.csv|d.csv|header|no rows",), lambda folder: ((folder / "u2.csv").write_text("label,text_a\n"), table("cls", "t.csv", _csv(GOOD), "dev_file: u2.csv")(folder))),
    ("a dev file without labels", ("unlabelled.csv", "label"), table("cls", "t.csv", _csv(GOOD), "dev_file: unlabelled.csv")),
    ("rows that do not fit", ("max_seq_len|longer|truncated",), table("cls", "t.csv", _csv([{**row, "text_a": row["text_a"] + " boat" * 200} for row in GOOD]))),
    ("texts in a language that the vocabulary lacks", ("vocab|unknown|[unk]",), table("cls", "t.csv", _csv([{**row, "text_a": "这是一条消息"} for row in GOOD[:6]] + [{**row, "text_a": "那是订单" + "的" * k} for k, row in enumerate(GOOD[6:])]))),
    ("--learning_rate=5", ("learning_rate", "5"), command("train", "config.yaml", "--learning_rate=5")),
    ("a rate with a comma behind it", ("learning_rate",), command("train", "config.yaml", "--learning_rate", "5e-5,")),
    ("epochs as a word", ("num_epochs", "three"), command("train", "config.yaml", "--num_epochs", "three")),
    ("a dash of a word processor", ("num_epochs",), command("train", "config.yaml", "\u2013num_epochs", "3")),
    ("two files to predict", ("unlabelled.csv|arguments",), command("predict", "--model", OLD, "--input", "../tickets.csv", "unlabelled.csv", "--output", "a.csv")),
    ("a device called gpu", ("gpu",), command("predict", "--model", OLD, "--device", "gpu", "--input", "../tickets.csv", "--output", "a.csv")),
    ("half precision", ("precision",), command("train", "config.yaml", "--precision", "half")),
]  # fmt: skip

KINDS = {
    "YAML": YAML,
    "tables": TABLES,
    "commands": COMMANDS,
    "Python": PYTHON,
    "serve": SERVE,
    "third": THIRD,
}


def write_project(folder: Path) -> None:
    """Write a table and a project of it, and train it for a few steps."""
    rng = random.Random(1)
    words = {"billing": ["refund", "invoice"], "bug": ["crash", "error"], "account": ["login", "password"]}
    rows = []
    for number in range(60):
        category = [*words][number % 3]
        word = rng.choice(words[category])
        thing = rng.choice(["phone", "order", "team", "house"])
        text = f"please look at the {word} of my {thing} number {number}"
        price = round(10 + 50 * rng.random(), 1)
        rows.append({"id": number, "message": text, "category": category, "urgency": 1 + number % 5})
        rows[-1] |= {"price": price, "tags": json.dumps([word])}
    with (folder / "tickets.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    project = folder / "project"
    run("init", str(project), "--from", str(folder / "tickets.csv"))
    edit(project / "config.yaml", QUICK)
    files = {"other.csv": "a,b\n1,2\n", "other.xlsx": "PK", "numbers.csv": "a,b\n1,2\n3,4\n"}
    files |= {"unlabelled.csv": "message\na phone\n", "d.csv": "label,text_a\n2,a boat\n"}
    files |= {"u.csv": "kind,said\n1,a boat\n"}
    for name, text in files.items():
        (project / name).write_text(text, encoding="utf-8")
    run("train", str(project / "config.yaml"))


@contextmanager
def captured() -> Iterator[Callable[[], str]]:
    """Capture what is written to both streams; yields a function that returns it afterwards."""
    streams = (1, 2)
    kept = [os.dup(each) for each in streams]
    with tempfile.TemporaryFile() as file:
        for each in streams:
            os.dup2(file.fileno(), each)
        try:
            yield lambda: _content(file)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, each in zip(kept, streams, strict=True):
                os.dup2(number, each)
                os.close(number)


def _content(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode("utf-8", "replace"))


PYTHONS_OWN = (TypeError, AttributeError)
"""Errors of Python itself about an argument or a name that is not there."""


class Warnings(logging.Handler):
    """Keeps the warnings of palm."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def outcome(mistake: Mistake, base: Path) -> tuple[str, str]:
    """Make a mistake in a copy of the project; return its outcome, and what was said of it."""
    with tempfile.TemporaryDirectory() as name, captured() as said:
        folder = Path(name) / "all"
        shutil.copytree(base, folder)
        for file in (folder / "project").glob("*.yaml"):
            file.write_text(file.read_text("utf-8").replace(str(base), str(folder)), encoding="utf-8")
        os.chdir(folder / "project")
        warnings = Warnings()
        logger.addHandler(warnings)
        end, raised = "warned", ""
        try:
            mistake.do(folder / "project")
        except PalmError as error:
            end, raised = "refused", str(error)
        except BaseException as error:  # none should happen
            is_own = mistake.kind == "Python" and isinstance(error, PYTHONS_OWN)
            end, raised = ("Python's own" if is_own else "raw"), f"{type(error).__name__}: {error}"
        finally:
            logger.removeHandler(warnings)
            os.chdir("/")
        sys.stdout.flush()
        sys.stderr.flush()
        text = said()
    if end == "raw" or "Traceback" in text:
        return "raw", f"{text}\n{raised}"
    findings = re.findall(r"(?m)^warning  .*", text)  # of palm check
    shown = "\n".join([*warnings.messages, *findings]) if end == "warned" else f"{text}\n{raised}"
    found = shown.lower().replace(name.lower(), "")
    if all(any(each.lower() in found for each in words.split("|")) for words in mistake.words):
        return end, shown
    return ("silent" if end == "warned" else "unclear"), shown


def main(kinds: dict[str, list[tuple[str, tuple[str, ...], Callable[[Path], object]]]]) -> int:
    """Make the mistakes of the kinds on the command line, of these by name; 0 if all are told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[*kinds, []], help="default: all")
    parser.add_argument("--show", action="store_true", help="also what was said of the others")
    options = parser.parse_args()
    ends: Counter[tuple[str, str]] = Counter()
    bad = 0
    with tempfile.TemporaryDirectory() as name, contextlib.suppress(KeyboardInterrupt):
        base = Path(name) / "base"
        base.mkdir()
        os.environ["PALM_DATA_CACHE"] = str(Path(name) / "cache")
        with captured():
            write_project(base)
        for kind in options.kinds or kinds:
            for made, words, do in kinds[kind]:
                end, text = outcome(Mistake(kind, made, words, do), base)
                ends[kind, end] += 1
                is_bad = end in ("silent", "raw", "unclear")
                bad += is_bad
                if is_bad or options.show:
                    print(f"{end}: {kind}: {made}\n{text[-1500:].strip()}\n", flush=True)
    for (kind, end), number in sorted(ends.items()):
        print(f"{kind}: {end} {number}")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main(KINDS))
