"""A tiny but real run: four tasks on a two-layer encoder, with data that can be learned."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

COLOURS = ["red", "green", "blue", "grey"]
THINGS = ["door", "boat", "lamp", "coat", "ball", "wall"]
NAMES = ["anna", "bert", "carl", "dora", "emil", "fred"]
FILLERS = ["the", "a", "is", "has", "of", "near", "what", "colour", "who", "owns", "and", "old", "new", "."]
SPANS = {"owner": 0, "thing": 1, "colour": 2}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

BACKBONE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "vocab_size": 40,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


def sizes(hidden_size: int, num_hidden_layers: int, num_attention_heads: int, **more: Any) -> dict[str, Any]:
    """The sizes of another encoder, as a configuration has them."""
    first = {"hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers}
    return {**first, "num_attention_heads": num_attention_heads, **more}


STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""Sizes of an encoder without dropout, whose draws differ between devices and kinds of steps."""


def write_files(folder: Path, rows: int = 40, **backbone: Any) -> Path:
    """Vocabulary, backbone JSON and data of four tasks in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = SPECIAL + COLOURS + THINGS + NAMES + FILLERS
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (folder / "backbone.json").write_text(json.dumps({**BACKBONE, **backbone}), encoding="utf-8")
    facts = [
        (rng.choice(NAMES), rng.choice(["old", "new"]), rng.choice(COLOURS), rng.choice(THINGS))
        for _ in range(rows)
    ]
    texts = [f"{name} has a {age} {colour} {thing} ." for name, age, colour, thing in facts]
    _write(
        folder / "cls.tsv",
        ["label\ttext_a"],
        [f"{COLOURS.index(f[2])}\t{t}" for f, t in zip(facts, texts, strict=True)],
    )
    pairs = [
        f"{k % 2}\twho owns the {fact[3] if k % 2 else 'sun'}\t{text}"
        for k, (fact, text) in enumerate(zip(facts, texts, strict=True))
    ]
    _write(folder / "match.tsv", ["label\ttext_a\ttext_b"], pairs)
    _write(folder / "mlm.tsv", ["text_a"], texts)
    spans = [(0, 1, "owner"), (3, 6, "thing"), (4, 5, "colour")]
    named = [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]
    pairs = [{"head": 0, "tail": 1, "label": "owns"}, {"head": 1, "tail": 2, "label": "is"}]
    rows_of_spans = ({"text_a": text.split(), "spans": named, "relations": pairs} for text in texts)
    _write(folder / "span.jsonl", [], list(map(json.dumps, rows_of_spans)))
    (folder / "mrc.json").write_text(json.dumps(squad(facts, texts)), encoding="utf-8")
    return folder


def squad(facts: list[tuple[str, str, str, str]], texts: list[str]) -> dict[str, Any]:
    """One question per text: what colour is the thing."""
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": f"q{k}",
                    "question": f"what colour is the {thing}",
                    "answers": [{"text": colour, "answer_start": text.index(colour)}],
                }
            ],
        }
        for k, ((_, _, colour, thing), text) in enumerate(zip(facts, texts, strict=True))
    ]
    return {"version": "1.0", "data": [{"title": "things", "paragraphs": paragraphs}]}


def controller(folder: Path, *tasks: str, for_train: bool = True, **settings: Any) -> Any:
    """The controller of a configuration of some tasks."""
    from palm.controller.controller import Controller  # PyTorch, which not every user of this file needs

    return Controller(config(folder, *tasks, **settings), for_train=for_train, argv=[])


def config(folder: Path, *tasks: str, with_dev: bool = False, **settings: Any) -> dict[str, Any]:
    """A configuration of some tasks (cls, match, mlm and mrc by default), as a dict.

    Args:
        with_dev: evaluate every task on the data that it is trained on.
    """
    tasks = tasks or ("cls", "match", "mlm", "mrc")
    files = {task: f"{task}.tsv" for task in ("cls", "match", "mlm")}
    files |= {"mrc": "mrc.json", "span": "span.jsonl", "relation": "span.jsonl"}
    special: dict[str, dict[str, Any]] = {
        "cls": {"n_classes": 4},
        "span": {"label_map": SPANS},
        "relation": {"label_map": {"owns": 0, "is": 1}, "span_label_map": SPANS},
        "mrc": {"max_query_len": 8, "doc_stride": 8, "max_answer_len": 4, "n_best_size": 5},
    }
    given = {
        "task_instance": list(tasks),
        "backbone": "bert",
        "backbone_config_path": str(folder / "backbone.json"),
        "vocab_path": str(folder / "vocab.txt"),
        "save_path": str(folder / "out"),
        "max_seq_len": 24,
        "batch_size": 4,
        "num_epochs": 2,
        "optimizer": "adam",
        "learning_rate": 1e-3,
        "warmup_proportion": 0.1,
        "precision": "fp32",
        "overwrite": True,
        "weight_decay": 0.01,
        "tasks": {
            task: {
                "train_file": str(folder / files[task]),
                "pred_file": str(folder / files[task]),
                "reader": task,
                "paradigm": task,
                **special.get(task, {}),
            }
            for task in tasks
        },
        **settings,
    }
    for task in given["tasks"].values() if with_dev else ():
        task["dev_file"] = task["train_file"]
    # Last, because tests name lines.
    return {**given, "save_every_n_steps": given.get("save_every_n_steps", -1)}


def write_config(folder: Path, given: dict[str, Any], task_dir: str = ".") -> Path:
    """Write a configuration with a file for each of its tasks, as people have it."""
    import yaml  # not every program that has this file has it

    whole = {name: value for name, value in given.items() if name != "tasks"}
    (folder / task_dir).mkdir(exist_ok=True)
    for name, task in given["tasks"].items():
        (folder / task_dir / f"{name}.yaml").write_text(yaml.safe_dump(task, sort_keys=False), "utf-8")
    # A line a setting, because tests name lines.
    text = yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=1000)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    return folder / "config.yaml"


def _write(path: Path, head: list[str], lines: list[str]) -> None:
    path.write_text("\n".join(head + lines) + "\n", encoding="utf-8")
