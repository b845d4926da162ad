"""A program that trains, evaluates and predicts tiny tasks on the CPU and on a CUDA device.

`python device_runs.py FOLDER FILE pretend` takes a pretend device, with `gpu` the machine's own. It writes
JSON: for each of `MODES` the losses, the waits of the host and the operators of every step; for each task the
scores of an evaluation, and its waits; and what whole runs give, of a configuration and of components.
"""

# ruff: noqa: E402
from __future__ import annotations

import collections
import contextlib
import json
import math
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
from safetensors.torch import load_file

import palm
from helpers import tiny
from helpers.device_modes import MODES
from palm.backbone import layer
from palm.cli import main
from palm.controller.controller import Controller
from palm.engine.inference.inference import InferenceModel

STEPS = 6
SEQ_LABEL = {"reader": "seq_label", "paradigm": "seq_label", "n_classes": 2, "label_map": {"O": 0, "B": 1}}


def config(folder: Path, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Seven tasks without dropout, whose draws would differ from a CPU's."""
    tasks = ("cls", "match", "mlm", "mrc", "span", "relation")
    own = {"learning_rate": 5e-3, "dropout_prob": 0.0, "precision": "fp32", **settings}
    crf = own.pop("crf", False)
    shared_rows = own.pop("shared_rows", False)
    made = tiny.config(
        folder, *tasks, **{**own, "device": device, "save_path": str(folder / f"out-{device}")}
    )
    made["tasks"]["tags"] = {**SEQ_LABEL, "train_file": str(folder / "tags.tsv"), "use_crf": crf}
    if shared_rows:
        made["tasks"]["again"] = {**made["tasks"]["cls"], "share_rows_with": "cls"}
    made["task_instance"] = list(made["tasks"])
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


def layer_operators(folder: Path) -> dict[str, float]:
    """The operators of a step for a layer more, in bf16, with dropout: of one device, as of several ranks."""
    found = {}
    for name, ranks in (("one device", 1), ("several ranks", 2)):
        counts = []
        for layers in (2, 4):
            file = folder / f"backbone-{layers}.json"
            file.write_text(json.dumps({**tiny.BACKBONE, "num_hidden_layers": layers}), encoding="utf-8")
            settings = {"precision": "bf16", "backbone_config_path": str(file)}
            with patch.object(layer, "num_ranks", lambda ranks=ranks: ranks):
                counts.append(train(folder, "cuda", settings)["operators"])
        found[name] = (sum(counts[1]) - sum(counts[0])) / 2 / len(counts[0])
    return found


def logged_waits(folder: Path) -> float:
    """The waits of a step of a whole run whose every second step is logged."""
    counts = []
    for steps in (8, 16):
        with on("cuda"):
            given = config(folder, "cuda", {"max_steps": steps, "print_every_n_steps": 2})
            Controller(given, argv=[]).train()
            counts.append(sum(WAITS.values()))
    return (counts[1] - counts[0]) / 8


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
            WAITS.clear()
            file = Path(config(folder, device, {})["tasks"][task]["train_file"])
            scores = model.evaluate(file)
            seen[device] = {"scores": scores, "waits": dict(WAITS)}
    return seen


def losses_of(folder: Path) -> list[float]:
    """The losses of a run's history."""
    lines = map(json.loads, (folder / "history.jsonl").read_text("utf-8").splitlines())
    return [line["loss"] for line in lines if line["event"] == "step"]


def lines_of(folder: Path) -> list[tuple[str, int]]:
    """The events of a run's history, in order, each with its step."""
    lines = map(json.loads, (folder / "history.jsonl").read_text("utf-8").splitlines())
    return [(line["event"], line["step"]) for line in lines]


def run(folder: Path, device: str) -> dict[str, Any]:
    """Everything that a configuration does: stages, checkpoints, resuming, evaluation, prediction, export."""
    settings = {"num_epochs": 0.2, "print_every_n_steps": 1, "save_every_n_steps": 4}
    # A resumed run repeats a straight one's bits where kernels add in a fixed order.
    given = config(folder, device, {**settings, "deterministic": True})
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
        assert (
            main(["export", str(out / "cls" / "infer_model"), "--output", str(exported), "--to", "hf"]) == 0
        )
        [weights] = exported.glob("*.safetensors")
    return {
        "losses": losses_of(out),
        "resumed": losses_of(folder / f"resumed-{device}"),
        "lines": [lines_of(folder / name) for name in (out.name, f"resumed-{device}")],
        "staged": losses_of(folder / f"staged-{device}"),
        "scores": {task: dict(best.scores) for task, best in result.best.items()},
        "records": records,
        "one": one["probs"],
        # The gradient of a key's bias is zero but for rounding, which Adam makes as large as any.
        "exported": {n: float(v.norm()) for n, v in load_file(weights).items() if "key.bias" not in n},
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
    folder = Path(sys.argv[1])
    write_files(folder)
    modes = {
        name: {device: train(folder, device, settings) for device in ("cpu", "cuda")}
        for name, settings in MODES.items()
    }
    predictions = {
        task: predict(folder, task) for task in ("cls", "match", "mlm", "mrc", "span", "relation", "tags")
    }
    found: dict[str, Any] = {"modes": modes, "predictions": predictions}
    found["layer operators"] = layer_operators(folder)
    found["logged waits"] = logged_waits(folder)
    for name, act in (("run", run), ("components", components)):
        found[name] = {device: act(folder, device) for device in ("cpu", "cuda")}
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    try_all()
