"""A program that trains and evaluates tiny tasks on the CPU and on a pretend CUDA device.

`python pretend_runs.py FOLDER FILE` writes JSON: for each of `MODES` the losses, the waits of the host and
the operators of every step; for each task the scores of an evaluation, and its waits; and what whole runs
give, of a configuration and of components.
"""

# ruff: noqa: E402
from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

from helpers import pretend_cuda

pretend_cuda.install()

import torch

import palm
from helpers import tiny
from helpers.pretend_modes import MODES
from palm.cli import main
from palm.controller import Controller
from palm.engine.inference.inference import InferenceModel

STEPS = 6
SEQ_LABEL = {"reader": "seq_label", "paradigm": "seq_label", "n_classes": 2, "label_map": {"O": 0, "B": 1}}


def config(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Six tasks without dropout, whose draws would differ from a CPU's."""
    tasks = ("cls", "match", "mlm", "mrc", "span")
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
    # A trainer takes a GPU where there is one.
    has_gpu = device == "cuda"
    place = pretend_cuda.PretendDevice() if has_gpu else contextlib.nullcontext()
    with patch.object(torch.cuda, "is_available", lambda: has_gpu), place:
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


def losses_of(folder: Path) -> list[float]:
    """The losses of a run's history."""
    lines = map(json.loads, (folder / "history.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if line["event"] == "step"]


def run(folder: Path, device: str) -> dict[str, Any]:
    """Everything that a configuration does: stages, checkpoints, resuming, evaluation, prediction, export."""
    given = config(folder, device, {"num_epochs": 0.2, "print_every_n_steps": 1, "save_every_n_steps": 4})
    for task in given["tasks"].values():
        task |= {"dev_file": task["train_file"], "pred_file": task["train_file"]}
    out = Path(given["save_path"])
    with on(device):
        controller = Controller(given, argv=[])
        result = controller.train()
        records = {task: list(controller.pred(task)) for task in ("cls", "mlm", "tags")}
        again = {**given, "save_path": str(folder / f"resumed-{device}"), "resume": str(out / "step_4")}
        Controller(again, argv=[]).train()
        staged = {**given, "save_path": str(folder / f"staged-{device}")}
        stages = [
            {"tasks": ["mlm"], "num_epochs": 0.1},
            {"name": "all", "tasks_per_step": 2, "num_epochs": 0.1},
        ]
        Controller({**staged, "stages": stages}, argv=[]).train()
        model = palm.load_model(out / "cls" / "infer_model", precision="fp32").to(torch.device(device))
        [one] = model.predict(["anna has a red door ."])
        exported = folder / f"exported-{device}"
        assert main(["export", str(out / "cls" / "infer_model"), str(exported), "--to", "hf"]) == 0
    return {
        "losses": losses_of(out),
        "resumed": losses_of(folder / f"resumed-{device}"),
        "staged": losses_of(folder / f"staged-{device}"),
        "scores": {task: dict(best.scores) for task, best in result.best.items()},
        "records": records,
        "one": one["probs"],
    }


def components(folder: Path, device: str) -> dict[str, Any]:
    """A `MultiHeadTrainer` of two heads that read the same rows: losses, predictions, and their waits."""
    settings = {**tiny.BACKBONE, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    hidden = settings["hidden_size"]

    def loaded(phase: str) -> palm.reader.ClassifyReader:
        reader = palm.reader.ClassifyReader(folder / "vocab.txt", 24, seed=3, phase=phase)
        reader.load_data(folder / "cls.tsv", 8, num_epochs=None if phase == "train" else 1)
        return reader

    with on(device):
        torch.manual_seed(1)
        trainers = {name: palm.Trainer(name) for name in ("one", "other")}
        both = palm.MultiHeadTrainer(list(trainers.values()), precision="fp32")
        encoder = palm.backbone.BERT.from_config(settings)
        readers = [loaded("train") for _ in trainers]
        for trainer, reader in zip(trainers.values(), readers, strict=True):
            reader.register_with(encoder)
            trainer.build_forward(encoder, palm.head.Classify(4, hidden, 0.0))
        both.build_forward()
        both.build_backward(palm.optimizer.Adam(None, 1e-3))
        both.fit_readers_with_mixratio(readers, "one", 1)
        steps = [both.train_one_step(both.get_one_batch())[0] for _ in range(4)]
        losses = [float(loss) for step in steps for loss in step.values()]
        other = palm.backbone.BERT.from_config(settings, phase="predict")
        predicting = [loaded("predict") for _ in trainers]
        for trainer, reader in zip(trainers.values(), predicting, strict=True):
            reader.register_with(other)
            trainer.build_predict_forward(other, palm.head.Classify(4, hidden, 0.0, phase="predict"))
        both.build_predict_forward()
        both.merge_inference_readers(predicting)
        pretend_cuda.WAITS.clear()
        found = both.predict()
        probs = {task: [each["probs"] for each in records] for task, records in found.items()}
        waits = sum(pretend_cuda.WAITS.values())
        return {
            "losses": losses,
            "probs": probs,
            "waits": waits,
            "batches": 2 * math.ceil(len(found["one"]) / 8),
        }


def try_all() -> None:
    folder = Path(sys.argv[1])
    write_files(folder)
    modes = {
        name: {device: train(folder, device, settings) for device in ("cpu", "cuda")}
        for name, settings in MODES.items()
    }
    predictions = {task: predict(folder, task) for task in ("cls", "match", "mlm", "mrc", "span", "tags")}
    found = {"modes": modes, "predictions": predictions}
    for name, act in (("run", run), ("components", components)):
        found[name] = {device: act(folder, device) for device in ("cpu", "cuda")}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    try_all()
