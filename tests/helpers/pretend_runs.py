"""A program that trains and evaluates tiny tasks on the CPU and on a pretend CUDA device.

`python pretend_runs.py FOLDER FILE` writes JSON: for each of `MODES` the losses, the waits of the host and
the operators of every step; for each task the scores of an evaluation, and its waits.
"""

# ruff: noqa: E402
from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from helpers import pretend_cuda

pretend_cuda.install()

import torch

from helpers import tiny
from helpers.pretend_modes import MODES
from palm.controller import Controller
from palm.engine.inference.inference import InferenceModel

STEPS = 6
SEQ_LABEL = {"reader": "seq_label", "paradigm": "seq_label", "n_classes": 2, "label_map": {"O": 0, "B": 1}}


def config(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Five tasks without dropout, whose draws would differ from a CPU's."""
    tasks = ("cls", "match", "mlm", "mrc")
    own = {"learning_rate": 5e-3, "dropout_prob": 0.0, "precision": "fp32", **settings}
    crf = own.pop("crf", False)
    made = tiny.config(
        folder, *tasks, **{**own, "device": device, "save_path": str(folder / f"out-{device}")}
    )
    made["tasks"]["tags"] = {**SEQ_LABEL, "train_file": str(folder / "tags.tsv"), "use_crf": crf}
    made["task_instance"] = [*tasks, "tags"]
    return made


def write_files(folder: Path) -> None:
    """Files of the tasks."""
    tiny.write_files(folder)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "backbone.json").write_text(json.dumps({**tiny.BACKBONE, **still}), encoding="utf-8")
    rows = [line.split("\t")[1].split() for line in (folder / "cls.tsv").read_text("utf-8").splitlines()[1:]]
    tagged = [(words, ["B" if word in tiny.COLOURS else "O" for word in words]) for words in rows]
    lines = ["\x02".join(words) + "\t" + "\x02".join(tags) for words, tags in tagged]
    (folder / "tags.tsv").write_text("\n".join(["text_a\tlabel", *lines]) + "\n", encoding="utf-8")


@contextlib.contextmanager
def on(device: str) -> Iterator[None]:
    """Run on the pretend device, or on the CPU."""
    pretend_cuda.WAITS.clear()
    with pretend_cuda.PretendDevice() if device == "cuda" else contextlib.nullcontext():
        yield


def train(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train some steps; the first ones warm up and do not count."""
    losses: list[torch.Tensor] = []
    waits: list[dict[str, int]] = []
    operators: list[int] = []
    with on(device):
        training = Controller(config(folder, device, settings), argv=[]).training()
        for step in islice(training.steps(), STEPS):
            losses += [part.loss for part in step.parts]
            waits.append(dict(pretend_cuda.WAITS))
            operators.append(pretend_cuda.OPERATORS[0])
            pretend_cuda.WAITS.clear()
            pretend_cuda.OPERATORS[0] = 0
        values = [float(loss) for loss in losses]
    return {"losses": values, "waits": waits[2:], "operators": operators[2:]}


def predict(folder: Path, task: str) -> dict[str, Any]:
    """Predict and evaluate a task's rows by a model that was trained for a step; return waits per batch."""
    seen = {}
    for device in ("cpu", "cuda"):
        with on(device):
            training = Controller(config(folder, device, {}), argv=[]).training()
            trained = next(one for one in training.tasks if one.name == task)
            model = InferenceModel(
                task, trained.reader, training.model.backbone, trained.head, batch_size=8, precision="fp32"
            )
            pretend_cuda.WAITS.clear()
            file = Path(config(folder, device, {})["tasks"][task]["train_file"])
            scores = model.evaluate(file)
            seen[device] = {"scores": scores, "waits": dict(pretend_cuda.WAITS)}
    return seen


def main() -> None:
    folder = Path(sys.argv[1])
    write_files(folder)
    modes = {
        name: {device: train(folder, device, settings) for device in ("cpu", "cuda")}
        for name, settings in MODES.items()
    }
    predictions = {task: predict(folder, task) for task in ("cls", "match", "mlm", "mrc", "tags")}
    Path(sys.argv[2]).write_text(json.dumps({"modes": modes, "predictions": predictions}), encoding="utf-8")


if __name__ == "__main__":
    main()
