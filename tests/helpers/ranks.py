"""A program for several processes: it trains and predicts through both doors and records what came out.

`torchrun --nproc-per-node PROCESSES ranks.py FOLDER PROCESSES`; `run` with one process is the reference.
With `resume` as third word it only goes on from what it finds in FOLDER/others.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import palm.compat as palm
from helpers import tiny
from palm.controller.controller import Controller
from palm.core.group import GradientExchange, gather_objects, is_main_process, rank, world_size
from palm.train.evaluation import Evaluator
from palm.train.loop import Training
from palm.train.task_model import Losses, encoded, mean_loss

TASKS = ("cls", "mlm", "mrc")
ROWS = 41  # no multiple of any batch
SAVED = 9  # a checkpoint every so many steps


def write_files(folder: Path) -> None:
    """What the runs read; without dropout, whose draws differ between ranks."""
    tiny.write_files(folder, ROWS, **tiny.STILL)
    modernbert = json.loads(Path(__file__).with_name("tiny_modernbert.json").read_text("utf-8"))
    sizes = {"vocab_size": tiny.BACKBONE["vocab_size"], "max_position_embeddings": 40}
    (folder / "modernbert.json").write_text(json.dumps({**modernbert, **sizes}), encoding="utf-8")
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    texts = [line.split("\t")[1] for line in lines[1:]]
    others = [
        json.dumps(texts[: k % 3]) for k in range(len(texts))
    ]  # ranks have different counts of negatives
    pairs = [f"{text}\t{text[: len(text) // 2]}\t{own}" for text, own in zip(texts, others, strict=True)]
    (folder / "pairs.tsv").write_text(
        "\n".join(["text_a\ttext_b\tnegatives", *pairs]) + "\n", encoding="utf-8"
    )
    (folder / "one.tsv").write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    (folder / "seven.tsv").write_text("\n".join(lines[:8]) + "\n", encoding="utf-8")


def config(folder: Path, out: str, processes: int, **settings: Any) -> dict[str, Any]:
    """Three tasks with 8 rows a step on all devices together; mlm has unequal counts of masks on them."""
    made = tiny.config(
        folder,
        *TASKS,
        save_path=str(folder / out),
        pred_batch_size=3,
        num_devices=processes,
        dropout_prob=0.0,
        **{"precision": "fp32", "num_epochs": 2, "batch_size": 8 // processes, **settings},
    )
    made["tasks"]["cls"]["dev_file"] = str(folder / "cls.tsv")
    return made


def record(path: Path, training: Training) -> None:
    """Train to the end and keep what came out: losses, scores, weights and averages."""
    evaluator = Evaluator(training, every=4)
    losses, norms = [], []
    for step in training.steps():
        norms.append(step.grad_norm.item())
        losses += [(part.task.name, part.loss.item()) for part in step.parts]
        evaluator(step)
    weights = training.model.state_dict()
    averages = {} if training.ema is None else training.ema.average
    if is_main_process():
        found = {
            "losses": losses,
            "norms": norms,
            "weights": weights,
            "averages": averages,
            **evaluator.state_dict(),
        }
        torch.save(found, path)


def exchanges_of_a_step(training: Training) -> int:
    """How often the ranks sum something up in the next step."""
    with torch.autograd.profiler.profile() as profile:
        training.next_step()
    return sum(event.count for event in profile.key_averages() if event.key == "c10d::allreduce_")


def exchanged() -> list[list[float | None]]:
    """The gradients of steps in which ranks use other parameters, or the same ones as in no step before."""
    model = torch.nn.ParameterList(torch.tensor(1.0) for _ in range(4))
    exchange = GradientExchange(model)
    found = []
    for mine in ([0, 1], [0, 2], [1, 0], [3, 0], [0, 0]):
        with exchange.during(("a task",)):
            (model[mine[rank() % 2]] * (rank() + 1)).backward()
        found.append([None if each.grad is None else each.grad.item() for each in model])
        model.zero_grad()
    return found


def resume_all(folder: Path, processes: int) -> None:
    """Go on from what another number of processes, or other ones, left in `folder / "others"`."""
    for checkpoint in sorted((folder / "others").glob("*")):
        settings = config(folder, f"resumed_{checkpoint.name}", processes, resume=str(checkpoint))
        Controller(settings, argv=[]).train()


def predict_all(controller: Controller, folder: Path) -> list[int]:
    """Predict every task's file, and one of a single row; how many predictions this rank can read."""
    counts = [len(controller.pred(task)) for task in TASKS]
    one = palm.load_model(folder / "out" / "cls" / "infer_model", precision="fp32")
    return [*counts, len(one.predict_file(folder / "one.tsv", folder / "out" / "one"))]


def train_by_trainer(folder: Path) -> list[list[Any]]:
    """The losses and the predictions of a trainer; its readers' `batch_size` is that of all devices."""
    settings = {**tiny.BACKBONE, **tiny.STILL}
    train, predict = (
        palm.reader.ClassifyReader(str(folder / "vocab.txt"), 24, seed=3, phase=phase)
        for phase in ("train", "predict")
    )
    train.load_data(folder / "cls.tsv", 8, num_epochs=1)
    encoder = palm.backbone.BERT.from_config(settings)
    trainer = palm.Trainer("cls")
    train.register_with(encoder)
    trainer.build_forward(encoder, palm.head.Classify(4, 32, 0.0))
    trainer.build_backward(palm.optimizer.Adam(None, 1e-3))
    trainer.fit_reader(train)
    seen = [step.loss.item() for step in trainer._training("train").steps()]
    predict.load_data(folder / "cls.tsv", 3)
    other = palm.backbone.BERT.from_config(settings, phase="predict")
    predict.register_with(other)
    trainer.build_predict_forward(other, palm.head.Classify(4, 32, 0.0, phase="predict"))
    trainer.fit_reader(predict, phase="predict")
    return [seen, list(trainer.predict())]


def run(folder: Path, processes: int) -> dict[str, Any]:
    """Everything, and what this rank saw of it."""
    controller = Controller(config(folder, "out", processes, save_every_n_steps=SAVED), argv=[])
    controller.train()
    resume_all(folder, processes)
    seen: dict[str, Any] = {"rank": rank(), "ranks": world_size(), "counts": predict_all(controller, folder)}
    exchanges = {}
    for name, settings in VARIANTS.items():
        if settings.get("backbone") == "transformers":
            settings["backbone_config_path"] = str(folder / "modernbert.json")
        rows = 8 // processes // settings.get("gradient_accumulation_steps", 1)
        made = config(folder, name, processes, batch_size=rows, **settings)
        if name == "pairs":
            file = str(folder / "pairs.tsv")
            made["tasks"] = {"pairs": {"reader": "embedding", "paradigm": "embedding", "train_file": file}}
            made["tasks"]["pairs"]["dev_file"] = file
            del made["dropout_prob"]  # the head has none
        training = Controller(made, argv=[]).training()
        record(folder / f"{name}.pt", training)
        if name in ("ddp", "parts"):
            exchanges[name] = exchanges_of_a_step(training)
    Controller(config(folder, "staged", processes, stages=STAGES), argv=[]).train()
    # Three batches, of which two ranks have two each.
    model = palm.load_model(folder / "out" / "cls" / "infer_model", precision="fp32")
    losses: Losses = {}
    chunks = encoded(model.reader, model.reader.read_gold(folder / "seven.tsv"), with_targets=True)
    model.score(chunks, model.head.metrics, losses=losses)
    seen["dev_loss"] = mean_loss(gather_objects(losses))
    seen["exchanged"] = exchanged() if processes > 1 else []
    return {**seen, "exchanges": exchanges, "trainer": train_by_trainer(folder)}


STAGES: list[dict[str, Any]] = [
    {"name": "joint", "tasks_per_step": 2, "num_epochs": 1},
    {"tasks": ["cls"], "num_epochs": 1, "learning_rate": 5e-4, "freeze": 1},
    {"name": "last", "tasks": ["mrc", "mlm"], "start_from": "cls", "reset": ["mlm"], "num_epochs": 1},
]

EQUAL_LOSSES = "helpers.balances.EqualLosses"

VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "averaged": {"num_epochs": 1, "use_ema": True, "ema_decay": 0.9},
    "parts": {"gradient_accumulation_steps": 2, "num_epochs": 1},
    "together": {"tasks_per_step": "all", "num_epochs": 1},
    "lora": {"tasks_per_step": "all", "num_epochs": 1, "cls.lora": {"rank": 2}},
    "pairs": {"task_instance": ["pairs"], "num_epochs": 1, "epsilon": 1e-3},
    "balanced": {"tasks_per_step": "all", "num_epochs": 1, "balance": EQUAL_LOSSES},
}
if find_spec("transformers"):
    # Without an epsilon, Adam makes whole steps of gradients that are 0 but for rounding.
    LIBRARY = {"backbone": "transformers", "num_epochs": 1, "epsilon": 1e-3}
    VARIANTS["library"] = {**LIBRARY, "tasks_per_step": 2}
    VARIANTS["library_checkpointed"] = {**LIBRARY, "activation_checkpointing": True}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place, number = Path(sys.argv[1]), int(sys.argv[2])
    if sys.argv[3:] == ["resume"]:
        resume_all(place, number)
    else:
        result = run(place, number)
        (place / f"rank{rank()}.json").write_text(json.dumps(result), encoding="utf-8")
