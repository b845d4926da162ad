"""Which settings that are reported to help with few rows do so here? One JSON line a score.

    python benchmarks/few_rows.py --model MINILM --data DATA --output FILE.jsonl

Each way is a change of `base`, which is `effort: normal` with frozen embeddings, on the same rows with the
same seed, which draws the rows and starts the training; the last model is scored on test rows. Some ways are
no settings of palm and are only made here: `reinit_*` (the topmost layers and the pooler start anew), `fgm`
(a second pass per step with each token's embedding moved against the loss by the share `--epsilon` of its
norm), `contrast` (a first stage on supervised contrastive loss), `pseudo` (the model labels `--unlabelled`
other rows, and a new one is trained on both). `ema` (as `use_ema` with `ema_decay` 0.99) and `late_mean` (the
mean of the weights after 70, 80, 90 and 100 % of the updates) are averages of the run `base`. The same
command goes on where it stopped; `--table` only prints what is in the file.
"""

from __future__ import annotations

import json
import math
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from arguments import add_training, new_parser
from effort import CASES, file_of, settings_of
from paired import corrected, mean_of
from torch import Tensor, nn

import palm
from palm.core.saved import Tensors
from palm.train import train_step as steps
from palm.train.train_step import ExponentialMovingAverage

ROWS = {"slots": 100, "intents": 100, "sst2": 300, "pairs": 300}
TEST_ROWS = {"slots": 893, "intents": 893, "sst2": 1000, "pairs": 600}
ALL = tuple(ROWS)
TEXTS = ("intents", "sst2", "pairs")
THREE = ("slots", "intents", "sst2")

WAYS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "base": (ALL, {}),
    "label_smoothing": (THREE, {"label_smoothing": 0.1}),
    "layerwise_decay": (THREE, {"optimizer": "adamwdl", "layerwise_decay": 0.8}),
    "head_rate": (THREE, {"head_learning_rate": 2e-3}),
    "pooling_mean": (TEXTS, {"pooling": "mean"}),
    "frozen": (TEXTS, {"freeze": "backbone"}),
    "frozen_mean": (TEXTS, {"freeze": "backbone", "pooling": "mean"}),
    "reinit_1": (THREE, {}),
    "reinit_2": (THREE, {}),
    "fgm": (THREE, {}),
    "contrast": (TEXTS, {}),
    "pseudo": (THREE, {}),
}
"""Way -> the cases that it is for, and settings."""
NEVER = 10**6
LATE = (0.7, 0.8, 0.9, 1.0)


class Contrast(palm.paradigm.Classify):
    """Supervised contrastive loss of sentence embeddings (Khosla et al., 2020, equation 2)."""

    def forward(self, features: Tensors) -> Tensors:
        return {**super().forward(features), "vectors": features["sentence_embedding"]}

    def loss(self, outputs: Tensors, targets: Tensors) -> Tensor:
        return contrastive_loss(outputs["vectors"], targets["label_ids"])


def contrastive_loss(vectors: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Return the mean over rows that have another row of their label."""
    vectors = F.normalize(vectors.float(), dim=-1)  # [batch, width]
    others = ~torch.eye(len(labels), dtype=torch.bool)
    likeness = (vectors @ vectors.T / temperature).masked_fill(~others, -math.inf)
    log_shares = (likeness - likeness.logsumexp(-1, keepdim=True)).masked_fill(~others, 0.0)
    alike = (labels[:, None] == labels) & others
    of_rows = -(log_shares * alike).sum(-1) / alike.sum(-1).clamp(min=1)
    return of_rows.sum() / alike.any(-1).sum().clamp(min=1)


def reinitialise(backbone: Any, count: int, seed: int) -> None:
    """Start the topmost layers and the pooler anew."""
    torch.manual_seed(seed)
    parts = [*backbone.layers[-count:], *([backbone.pooler] if hasattr(backbone, "pooler") else [])]
    for module in (each for part in parts for each in part.modules()):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


@contextmanager
def adversarial(training: Any, epsilon: float) -> Iterator[None]:
    """Add to each step the gradient with embeddings moved against the loss (Miyato et al., 2017)."""
    moves: list[Tensor | None] = [None]
    seen = [torch.empty(0)]
    plain = steps.sum_of_losses

    def moved(_: nn.Module, __: Any, output: Tensor) -> Tensor:
        if not training.model.backbone.training:
            return output
        if moves[0] is None:
            moves[0] = torch.zeros_like(output, requires_grad=True)
            seen[0] = output.detach()
        return output + moves[0]

    def both(*given: Any) -> Tensor:
        moves[0] = None
        losses = plain(*given)
        assert moves[0] is not None
        assert moves[0].grad is not None
        slope = moves[0].grad
        sizes = seen[0].norm(dim=-1, keepdim=True)
        moves[0] = epsilon * sizes * slope / slope.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        plain(*given)
        return losses

    hook = training.model.backbone.embeddings.register_forward_hook(moved)
    with mock.patch.object(steps, "sum_of_losses", both):
        yield
    hook.remove()


def lines_of(file: Path) -> tuple[str, list[str]]:
    head, *lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    return head, lines


def drawn(file: Path, rows: int, others: int, seed: int, folder: Path) -> tuple[Path, Path]:
    """Write some rows of a file, and others of it."""
    head, lines = lines_of(file)
    order = torch.randperm(len(lines), generator=torch.Generator().manual_seed(seed)).tolist()
    few, rest = folder / "few.tsv", folder / "rest.tsv"
    few.write_text(head + "".join(lines[at] for at in order[:rows]), encoding="utf-8")
    rest.write_text(head + "".join(lines[at] for at in order[rows : rows + others]), encoding="utf-8")
    return few, rest


def config_of(args: Namespace, name: str, train: Path, scored: Path, seed: int) -> dict[str, Any]:
    case = CASES[name]
    task = {"train_file": str(train), "dev_file": str(scored), **case.task}
    if name == "slots":
        labels = args.data / case.folder / "label_map.json"
        task |= {"label_map": str(labels), "n_classes": len(json.loads(labels.read_text("utf-8")))}
    own = {
        "task_instance": "task",
        "tasks": {"task": task},
        "save_path": str(train.parent / "out"),
        "random_seed": seed,
        "metrics": [case.metric],
        "eval_every_n_steps": NEVER,
        "freeze": "embeddings",
    }
    return settings_of(args, "normal") | own


def trained(config: dict[str, Any]) -> Any:
    return palm.Controller(config, argv=[]).training()


def run_to_end(training: Any) -> None:
    for _ in training.steps():
        pass


def scored(training: Any, metric: str) -> float:
    return float(palm.Evaluator(training).evaluate().scores["task"][metric])


def with_pseudo_labels(args: Namespace, config: dict[str, Any], few: Path, rest: Path) -> dict[str, Any]:
    """Train on some rows, label others with the model, and return a configuration for both."""
    task = {name: value for name, value in config["tasks"]["task"].items() if name != "dev_file"}
    palm.Controller(config | {"tasks": {"task": task}}, argv=[]).train()
    model = palm.load_model(few.parent / "out" / "task" / "infer_model", precision=args.precision)
    head, lines = lines_of(rest)
    columns = head.rstrip("\n").split("\t")
    rows = [line.rstrip("\n").split("\t") for line in lines]
    for row, record in zip(rows, model.predict_file(rest, few.parent / "labelled"), strict=True):
        found = record["labels"] if "labels" in record else [str(record["label"])]
        row[columns.index("label")] = " ".join(found)
    both = few.with_name("both.tsv")
    text = few.read_text(encoding="utf-8") + "".join("\t".join(row) + "\n" for row in rows)
    both.write_text(text, encoding="utf-8")
    task = {**config["tasks"]["task"], "train_file": str(both)}
    return config | {"tasks": {"task": task}, "save_path": str(few.parent / "second")}


def score(args: Namespace, name: str, way: str, seed: int) -> list[dict[str, Any]]:
    """Train one way, and score it on test rows."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as name_of_folder, ExitStack() as during:
        folder = Path(name_of_folder)
        head, lines = lines_of(file_of(args, case, "test", folder))
        test = folder / "scored.tsv"
        test.write_text(head + "".join(lines[: TEST_ROWS[name]]), encoding="utf-8")
        few, rest = drawn(file_of(args, case, "train", folder), ROWS[name], args.unlabelled, seed, folder)
        config = config_of(args, name, few, test, seed) | WAYS[way][1]
        if way == "pseudo":
            config = with_pseudo_labels(args, config, few, rest)
        training = trained(config)
        if way.startswith("reinit"):
            reinitialise(training.model.backbone, int(way[-1]), seed)
        if way == "fgm":
            during.enter_context(adversarial(training, args.epsilon))
        if way == "contrast":
            task = {**config["tasks"]["task"], "paradigm": "few_rows.Contrast", "n_classes": 2}
            if name == "intents":
                task["n_classes"] = 22
            first = trained(config | {"tasks": {"task": task}, "num_epochs": None, "max_steps": args.first})
            run_to_end(first)
            training.model.backbone.load_state_dict(first.model.backbone.state_dict())
        if way == "base":
            found = averaged(training, case.metric)
        else:
            run_to_end(training)
            found = {way: scored(training, case.metric)}
        return [{"way": own, "score": value, "updates": training.total_steps} for own, value in found.items()]


def averaged(training: Any, metric: str) -> dict[str, float]:
    """Train, and score the last weights and two averages of them."""
    averages = ExponentialMovingAverage(training.model.named_parameters(), decay=0.99)
    late = {round(training.total_steps * share) for share in LATE}
    states = []
    for step in training.steps():
        averages.update()
        if step.number in late:
            states.append({name: own.clone() for name, own in training.model.state_dict().items()})
    found = {"base": scored(training, metric)}
    with averages.applied():
        found["ema"] = scored(training, metric)
    mean = {name: sum(each[name] for each in states) / len(states) for name in states[0]}
    training.model.load_state_dict(mean)
    return found | {"late_mean": scored(training, metric)}


def tables(done: list[dict[str, Any]]) -> str:
    """Points of the base, and of each way beside it, paired by seed; intervals are corrected by case."""
    points = {(run["case"], run["way"], run["seed"]): 100 * run["score"] for run in done}
    base = {(case, seed): value for (case, way, seed), value in points.items() if way == "base"}
    cells: dict[str, dict[str, str]] = {"base": {}}
    for name in ALL:
        cells["base"][name] = mean_of([value for (case, _), value in base.items() if case == name])
        beside: dict[str, list[float]] = {}
        for (case, way, seed), value in points.items():
            if case == name and way != "base":
                beside.setdefault(way, []).append(value - base[case, seed])
        intervals = corrected(beside)
        for way, values in beside.items():
            interval = f" ({intervals[way]})" if way in intervals else ""
            cells.setdefault(way, {})[name] = f"{mean_of(values, '+')}{interval}"
    text = ["| | " + " | ".join(ALL) + " |", "|---" * (1 + len(ALL)) + "|"]
    text += [
        f"| {way} | " + " | ".join(own.get(name, "") for name in ALL) + " |" for way, own in cells.items()
    ]
    return "\n".join(text)


def main() -> None:
    parser = new_parser(__doc__)
    add_training(parser, batch_size=16, max_seq_len=64, precision="bf16")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", default=list(ALL), choices=list(ALL))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--epsilon", type=float, default=0.1, help="of fgm")
    parser.add_argument("--first", type=int, default=100, help="updates of the contrastive stage")
    parser.add_argument("--unlabelled", type=int, default=500, help="rows with pseudo-labels")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    done = [json.loads(line) for line in args.output.open(encoding="utf-8")] if args.output.exists() else []
    if not args.table:
        known = {(run["case"], run["way"], run["seed"]) for run in done}
        wanted = [
            (name, way, seed)
            for seed in args.seeds
            for name in args.cases
            for way in args.ways
            if name in WAYS[way][0]
        ]
        with args.output.open("a", encoding="utf-8") as file:
            for run in wanted:
                if run not in known:
                    for found in score(args, *run):
                        done.append({"case": run[0], "seed": run[2], **found})
                        print(json.dumps(done[-1]), file=file, flush=True)
    print(tables(done))


if __name__ == "__main__":
    main()
