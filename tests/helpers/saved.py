"""Saved models and checkpoints that nobody has trained, small enough to be damaged bit by bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers import tiny
from palm.backbone import BERT
from palm.controller.controller import Controller
from palm.core.io import seal
from palm.paradigm import Classify
from palm.predict.inference import InferenceModel
from palm.reader import ClassifyReader
from palm.train.checkpoint import save_checkpoint

SIZES = tiny.sizes(4, 1, 1, intermediate_size=4, max_position_embeddings=8, type_vocab_size=1)


def model(folder: Path, **classes: Any) -> Path:
    """A saved model of task `colour`; `reader`, `backbone` and `head` may be of other classes."""
    tiny.write_files(folder)
    vocabulary = folder / "vocab.txt"
    torch.manual_seed(0)
    reader = classes.get("reader", ClassifyReader)(vocabulary, 8)
    backbone = classes.get("backbone", BERT)(vocab_size=reader.vocab_size, **SIZES)
    InferenceModel("colour", reader, backbone, classes.get("head", Classify)(2, 4)).save(folder / "model")
    return folder / "model"


def checkpoint(folder: Path) -> Path:
    """A checkpoint of a run of one task, after no step."""
    tiny.write_files(folder)
    settings = tiny.config(folder, "cls", num_hidden_layers=1, hidden_size=4, num_attention_heads=1)
    save_checkpoint(Controller(settings, argv=[]).training(), folder / "out" / "step_1")
    return folder / "out" / "step_1"


def forge(folder: Path, file: str, change: Callable[[Any], Any]) -> Path:
    """Change a JSON file of a sealed directory as somebody who writes one does, with matching checksums."""
    path = folder / file
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(change(content)), encoding="utf-8")
    (folder / "manifest.json").unlink()
    seal(folder)
    return folder


def in_task(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What changes the part of a model's description that is about its task."""
    return lambda saved: {**saved, "tasks": {task: change(own) for task, own in saved["tasks"].items()}}


def run_card_example(model: Path) -> None:
    """Run what the card of a saved model shows, with the model's place in it."""
    code = (model / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    task = code.partition('palm.load_model("')[2].partition('"')[0]
    exec(code.replace(f'"{task}"', repr(str(model))), {})
