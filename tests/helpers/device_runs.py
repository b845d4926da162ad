"""A program that trains, evaluates and predicts tiny tasks on the CPU and on a CUDA device.

`python device_runs.py FOLDER FILE pretend` takes a pretend device, with `gpu` the machine's own. It writes
JSON: for each of `MODES` the losses, the waits of the host and the operators of every step; for each task the
scores of an evaluation, and its waits; and what whole runs give, of configurations and of components.
"""

# ruff: noqa: E402
from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

WAITS: collections.Counter[str] = collections.Counter()
"""Waits of the host, by place, since somebody cleared it."""

OPERATORS = [0]
"""Number of operators that were sent to the device; only the pretend one counts them."""

IS_PRETEND = sys.argv[3] == "pretend"
if IS_PRETEND:
    from helpers import pretend_cuda

    pretend_cuda.install()
    WAITS = pretend_cuda.WAITS
    OPERATORS = pretend_cuda.OPERATORS

import torch

import palm.compat as palm
from helpers import tiny
from helpers.device_modes import FILES, FIRST, MODES, OTHERS, RUNS, SEQ_LABEL
from palm.controller.controller import Controller
from palm.predict.inference import InferenceModel

STEPS = 4


def config(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Tasks without dropout, whose draws would differ from a CPU's."""
    own = {"learning_rate": 5e-3, "dropout_prob": 0.0, "precision": "fp32", **settings}
    crf = own.pop("crf", False)
    shared_rows = own.pop("shared_rows", False)
    heads = own.pop("heads", "first")
    if own.get("backbone") == "transformers":
        own["backbone_config_path"] = str(folder / "modernbert.json")
    made = tiny.config(
        folder, *FIRST[:-1], **{**own, "device": device, "save_path": str(folder / f"out-{device}")}
    )
    made["tasks"]["tags"] = {**SEQ_LABEL, "train_file": str(folder / "tags.tsv"), "use_crf": crf}
    if heads == "other":
        made["tasks"] = {
            name: {**task, "train_file": str(folder / FILES.get(name, "cls.tsv"))}
            for name, task in OTHERS.items()
        }
        made["tasks"]["labels"]["train_file"] = str(folder / "labels.tsv")
    if shared_rows:
        made["tasks"]["again"] = {**made["tasks"]["cls"], "share_rows_with": "cls"}
    made["task_instance"] = list(made["tasks"])
    return made


def write_files(folder: Path, rows: int = 40) -> None:
    """Files of the tasks."""
    tiny.write_files(folder, rows, **tiny.STILL)
    modernbert = json.loads(Path(__file__).with_name("tiny_modernbert.json").read_text("utf-8"))
    sizes = {"vocab_size": tiny.BACKBONE["vocab_size"], "max_position_embeddings": 40}
    (folder / "modernbert.json").write_text(json.dumps({**modernbert, **sizes}), encoding="utf-8")
    cells = [line.split("\t") for line in (folder / "cls.tsv").read_text("utf-8").splitlines()[1:]]
    rows = [text.split() for _, text in cells]
    tagged = [(words, ["B" if word in tiny.COLOURS else "O" for word in words]) for words in rows]
    lines = ["\x02".join(words) + "\t" + "\x02".join(tags) for words, tags in tagged]
    (folder / "tags.tsv").write_text("\n".join(["text_a\tlabel", *lines]) + "\n", encoding="utf-8")
    some = [f"{text}\t{', '.join(tiny.COLOURS[: int(label)]) or '[]'}" for label, text in cells]
    (folder / "labels.tsv").write_text("\n".join(["text_a\tlabel", *some]) + "\n", encoding="utf-8")
    numbers = [(int(label), text) for label, text in cells]
    several = {
        "choices": [
            {"text_a": t, "choices": tiny.COLOURS[: 2 + k % 3], "label": min(n, 1)}
            for k, (n, t) in enumerate(numbers)
        ],
        "ranks": [
            {"text_a": t, "candidates": tiny.COLOURS, "label": [abs(n - k) for k in range(4)]}
            for n, t in numbers
        ],
        "pairs": [
            {"text_a": t, "text_b": tiny.COLOURS[n], "negatives": tiny.THINGS[: n % 3]} for n, t in numbers
        ],
    }
    for name, records in several.items():
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def counting_waits() -> Iterator[None]:
    """Count what torch calls a synchronizing operation of a real device."""

    def count(message: Warning | str, _: type[Warning], file: str, line: int, *__: Any) -> None:
        if "synchronizing" in str(message):
            WAITS[f"{Path(file).name}:{line}"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count
        torch.cuda.set_sync_debug_mode("warn")
        yield
        torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def on(device: str) -> Iterator[None]:
    """Run on the CUDA device, or on the CPU."""
    WAITS.clear()
    # A trainer takes a GPU where there is one.
    has_gpu = device == "cuda"
    there = pretend_cuda.PretendDevice if IS_PRETEND else counting_waits
    place = there() if has_gpu else contextlib.nullcontext()
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
            waits.append(dict(WAITS))
            operators.append(OPERATORS[0])
            WAITS.clear()
            OPERATORS[0] = 0
        values = [float(loss) for loss in losses]
    return {"losses": values, "waits": waits[2:], "operators": operators[2:]}


def layer_operators(folder: Path) -> float:
    """The operators of a step for a layer more, in bf16, with dropout."""
    counts = []
    for layers in (2, 4):
        file = folder / f"backbone-{layers}.json"
        file.write_text(json.dumps({**tiny.BACKBONE, "num_hidden_layers": layers}), encoding="utf-8")
        settings = {"precision": "bf16", "backbone_config_path": str(file)}
        counts.append(train(folder, "cuda", settings)["operators"])
    return (sum(counts[1]) - sum(counts[0])) / 2 / len(counts[0])


def logged_waits(folder: Path) -> float:
    """The waits of a step of a whole run whose every second step is logged."""
    counts = []
    for steps in (8, 16):
        with on("cuda"):
            given = config(folder, "cuda", {"max_steps": steps, "print_every_n_steps": 2})
            Controller(given, argv=[]).train()
            counts.append(sum(WAITS.values()))
    return (counts[1] - counts[0]) / 8


def evaluate(folder: Path, device: str, heads: str) -> dict[str, Any]:
    """Evaluate the tasks' rows by a model that was not trained: the scores of each, and the waits."""
    given = config(folder, device, {"heads": heads})
    seen = {}
    with on(device):
        training = Controller(given, argv=[]).training()
        for task in training.tasks:
            model = InferenceModel(
                task.name, task.reader, training.model.backbone, task.head, batch_size=8, precision="fp32"
            )
            WAITS.clear()
            scores = model.evaluate(Path(given["tasks"][task.name]["train_file"]))
            seen[task.name] = {"scores": scores, "waits": dict(WAITS)}
    return seen


def losses_of(folder: Path) -> list[float]:
    """The losses of a run's history."""
    lines = map(json.loads, (folder / "history.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if line["event"] == "step"]


def lines_of(folder: Path) -> list[tuple[str, int]]:
    """The events of a run's history, in order, each with its step."""
    lines = map(json.loads, (folder / "history.jsonl").read_text("utf-8").splitlines())
    return [(line["event"], line["step"]) for line in lines]


def whole_config(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose tasks also have dev and prediction data, and whose run keeps checkpoints."""
    # A resumed run repeats a straight one's bits where kernels add in a fixed order.
    usual = {"num_epochs": 0.1, "print_every_n_steps": 1, "save_every_n_steps": 4, "deterministic": True}
    given = config(folder, device, {**usual, **settings})
    for task in given["tasks"].values():
        few = str(folder / "few" / Path(task["train_file"]).name)
        task |= {"dev_file": few, "pred_file": few}
    return given


def run(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A run with checkpoints, evaluations and predictions of all tasks, resumed from its fourth step."""
    given = whole_config(folder, device, settings)
    out = Path(given["save_path"])
    with on(device):
        controller = Controller(given, argv=[])
        result = controller.train()
        records = {task: list(controller.pred(task)) for task in given["tasks"]}
        again = {**given, "save_path": str(folder / f"resumed-{device}"), "resume": str(out / "step_4")}
        Controller(again, argv=[]).train()
    return {
        "losses": losses_of(out),
        "resumed": losses_of(folder / f"resumed-{device}"),
        "lines": [lines_of(folder / name) for name in (out.name, f"resumed-{device}")],
        "scores": {task: dict(best.scores) for task, best in result.best.items()},
        "records": records,
    }


def components(folder: Path, device: str) -> dict[str, Any]:
    """A `MultiHeadTrainer` of two heads that read the same rows: losses, predictions, and their waits."""
    settings = {**tiny.BACKBONE, **tiny.STILL}
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
        passes: list[None] = []
        other.register_forward_hook(lambda *_: passes.append(None))
        WAITS.clear()
        found = both.predict()
        probs = {task: [each["probs"] for each in records] for task, records in found.items()}
        waits = sum(WAITS.values())
        return {
            "losses": losses,
            "probs": probs,
            "waits": waits,
            "passes": len(passes),
            "batches": 2 * math.ceil(len(found["one"]) / 8),
        }


def try_all() -> None:
    os.fsync = lambda _: None  # nor does pytest's process wait for the disk
    folder = Path(sys.argv[1])
    write_files(folder)
    write_files(folder / "few", rows=8)
    devices = ("cpu", "cuda")
    found: dict[str, Any] = {
        "modes": {
            name: {device: train(folder, device, settings) for device in devices}
            for name, settings in MODES.items()
        },
        "evaluations": {
            device: {**evaluate(folder, device, "first"), **evaluate(folder, device, "other")}
            for device in devices
        },
        "runs": {
            name: {device: run(folder, device, settings) for device in devices}
            for name, settings in RUNS.items()
        },
    }
    found["layer operators"] = layer_operators(folder)
    found["logged waits"] = logged_waits(folder)
    found["components"] = {device: components(folder, device) for device in devices}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    try_all()
