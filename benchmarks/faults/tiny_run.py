"""A run of a second: two tasks on one small encoder, with dev data, checkpoints and best models."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

# Trials are forks of one process, so what training imports late is imported once, here.
import torch._dynamo
import torch.distributed.tensor  # noqa: F401

import palm
import palm.controller.controller
from palm.core.errors import StorageError
from palm.core.io import numbered, verify

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "red",
    "blue",
    "grey",
    "door",
    "boat",
    "lamp",
    "a",
    "old",
]
STEPS_OF_A_CHECKPOINT = 5
STAGES = [
    {"name": "joint", "tasks_per_step": 2},
    {"tasks": ["colour"]},
    {"name": "again", "tasks_per_step": 2},
]
"""Of ten steps each; the first and the last train both tasks in every step."""


def write_files(folder: Path, rows: int = 40) -> None:
    """Vocabulary and data of the tasks `colour` and `words`."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    lines = []
    for _ in range(rows):
        label = draw.randrange(3)
        lines.append(f"{label}\ta {WORDS[5 + label]} {draw.choice(WORDS[8:11])}")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (folder / "colour.tsv").write_text("label\ttext_a\n" + "\n".join(lines) + "\n", encoding="utf-8")
    texts = [line.partition("\t")[2] for line in lines]
    (folder / "words.tsv").write_text("text_a\n" + "\n".join(texts) + "\n", encoding="utf-8")


def settings(data: Path, out: Path, **more: Any) -> dict[str, Any]:
    """The configuration: 2 x 10 steps, evaluated and saved every 5."""
    colour = {
        "train_file": str(data / "colour.tsv"),
        "dev_file": str(data / "colour.tsv"),
        "pred_file": str(data / "colour.tsv"),
        "reader": "cls",
        "paradigm": "cls",
        "n_classes": 3,
    }
    words = {"train_file": str(data / "words.tsv"), "reader": "mlm", "paradigm": "mlm"}
    return {
        "task_instance": "colour, words",
        "tasks": {"colour": colour, "words": words},
        "backbone": "bert",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 16,
        "vocab_path": str(data / "vocab.txt"),
        "max_seq_len": 8,
        "batch_size": 8,
        "num_epochs": 2,
        "learning_rate": 0.01,
        "save_path": str(out),
        "save_every_n_steps": STEPS_OF_A_CHECKPOINT,
        "eval_every_n_steps": STEPS_OF_A_CHECKPOINT,
        "keep_last_n": 2,
        "use_data_cache": False,
        "device": "cpu",
        "precision": "fp32",  # runs are compared bit by bit, and `auto` depends on the machine
        **more,
    }


def train(data: Path, out: Path, **more: Any) -> str:
    """Train to the end; "trained"."""
    palm.Controller(settings(data, out, **more), argv=[]).train()
    return "trained"


def fingerprint(out: Path) -> str:
    """A digest of the models that a run has saved."""
    found = hashlib.sha256()
    stages = out.glob("stages/*/weights/model.safetensors")
    for file in sorted([*out.glob("*/infer_model/model.safetensors"), *stages]):
        found.update(file.read_bytes())
    return found.hexdigest()


def history(out: Path) -> list[dict[str, Any]]:
    """The lines of a run's history without what differs between equal runs.

    That is times, memory, and the warning that a run which was killed early has no checkpoint.
    """
    differing = {"seconds", "time", "memory_bytes"}
    files = [*out.glob("history.jsonl"), *sorted(out.glob("stages/*/history.jsonl"))]
    found = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    lines = (line for line in found if line["event"] != "warning")
    return [{name: value for name, value in line.items() if name not in differing} for line in lines]


def problems(out: Path) -> list[str]:
    """What is wrong with a folder in which a run died: anything half-written under its proper name."""
    wrong = [line for stage in out.glob("stages/*") for line in problems(stage)]
    models = (place for kind in ("*/infer_model", "*/best_model", "weights") for place in out.glob(kind))
    for folder in [*numbered(out, "step_").values(), *models]:
        try:
            verify(folder)
        except StorageError as error:
            wrong.append(str(error))
    for file in (*out.glob("run.json"), *out.glob("history.jsonl"), *out.glob("*/predictions.json")):
        text = file.read_text(encoding="utf-8")
        try:
            for line in [text] if file.name == "run.json" else text.splitlines():
                json.loads(line)
        except ValueError as error:
            wrong.append(f"{file}: {error}")
    return wrong


def temporaries(out: Path) -> list[str]:
    """What is left over of work that was not finished."""
    return [path.name for path in out.rglob(".*") if path.name.endswith((".part", ".old"))]


def predict(data: Path, out: Path, resume: bool = False) -> str:
    """Predict with the trained model `colour`; "predicted"."""
    model = palm.load_model(out / "colour" / "infer_model")
    model.predict_file(data / "many.tsv", out / "predicted", resume=resume)
    return "predicted"


def write_many(data: Path, rows: int = 5000) -> None:
    """A file to predict that takes several chunks of examples."""
    draw = random.Random(2)
    texts = [f"a {draw.choice(WORDS[5:8])} {draw.choice(WORDS[8:11])}" for _ in range(rows)]
    (data / "many.tsv").write_text("text_a\n" + "\n".join(texts) + "\n", encoding="utf-8")
