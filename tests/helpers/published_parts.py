"""A reader, an encoder, a head, an optimizer and a schedule, written as PaddlePALM 2.x's pages show them.

What Paddle's operators did inside `build`, torch's modules do: they are made in the constructor. A schedule
gives a function of the step in the place of a variable, an optimizer a torch optimizer of `self._prog`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import palm.compat as palm


class Reader(palm.reader.base_reader.Reader):
    def __init__(self, vocab_path: str, max_len: int, seed: int | None = None, phase: str = "train") -> None:
        palm.reader.base_reader.Reader.__init__(self, phase)
        lines = Path(vocab_path).read_text(encoding="utf-8").splitlines()
        self._words = {word: number for number, word in enumerate(lines)}
        self._max_len = max_len
        self._register.add("token_ids")
        if phase == "train":
            self._register.add("label_ids")

    @property
    def outputs_attr(self) -> Any:
        attrs = {
            "token_ids": [[-1, -1], "int64"],
            "input_mask": [[-1, -1, 1], "float32"],
            "label_ids": [[-1], "int64"],
        }
        return self._get_registed_attrs(attrs)

    def load_data(
        self,
        input_file: str,
        batch_size: int,
        num_epochs: int | None = None,
        file_format: str = "tsv",
        shuffle_train: bool = True,
    ) -> None:
        self._batch_size, self._num_epochs = batch_size, num_epochs
        lines = Path(input_file).read_text(encoding="utf-8").splitlines()
        self._rows = [line.split("\t") for line in lines[1:]]

    def _iterator(self) -> Iterator[dict[str, Any]]:
        while True:
            for start in range(0, len(self._rows), self._batch_size or 1):
                rows = self._rows[start : start + (self._batch_size or 1)]
                ids = [[self._words.get(w, 1) for w in row[1].split()][: self._max_len] for row in rows]
                width = max(map(len, ids))
                batch = {
                    "token_ids": np.array([row + [0] * (width - len(row)) for row in ids]),
                    "input_mask": np.array([[[float(k < len(row))] for k in range(width)] for row in ids]),
                    "label_ids": np.array([int(row[0]) for row in rows]),
                }
                yield {name: value for name, value in batch.items() if name in self._register}
            if self._phase == "predict" or self._num_epochs:
                return

    @property
    def num_examples(self) -> int:
        return len(self._rows)


class BOW(palm.backbone.base_backbone.Backbone):
    def __init__(self, vocab_size: int, hidden_size: int, phase: str = "train") -> None:
        super().__init__(phase)
        self._emb_size = hidden_size
        self.words = nn.Embedding(vocab_size, hidden_size)

    @property
    def inputs_attr(self) -> Any:
        return {"token_ids": [[None, None], "int64"], "input_mask": [[None, None, 1], "float32"]}

    @property
    def outputs_attr(self) -> Any:
        return {"sentence_embedding": [[None, self._emb_size], "float32"]}

    def build(self, inputs: dict[str, torch.Tensor], scope_name: str = "") -> dict[str, torch.Tensor]:
        mask = inputs["input_mask"]  # [batch, seq, 1], float32, as declared
        vectors = self.words(inputs["token_ids"]) * mask
        return {"sentence_embedding": vectors.sum(1) / mask.sum(1)}


class Head(palm.head.base_head.Head):
    def __init__(self, num_classes: int, input_dim: int, phase: str = "train") -> None:
        super().__init__(phase)
        self.num_classes, self.input_dim = num_classes, input_dim
        self.fc = nn.Linear(input_dim, num_classes)
        self._is_training = phase == "train"

    @property
    def inputs_attrs(self) -> Any:
        reader = {"label_ids": [[-1], "int64"]} if self._is_training else {}
        return {"reader": reader, "backbone": {"sentence_embedding": [[-1, self.input_dim], "float32"]}}

    @property
    def outputs_attr(self) -> Any:
        if self._is_training:
            return {"loss": [[1], "float32"]}
        return {"logits": [[-1, self.num_classes], "float32"]}

    def build(
        self, inputs: dict[str, dict[str, torch.Tensor]], scope_name: str = ""
    ) -> dict[str, torch.Tensor]:
        logits = self.fc(inputs["backbone"]["sentence_embedding"])
        if self._is_training:
            labels = inputs["reader"]["label_ids"]
            return {"loss": nn.functional.cross_entropy(logits, labels, reduction="none")}
        return {"logits": logits}


class HeadWithFiles(Head):
    def batch_postprocess(self, rt_outputs: dict[str, Any]) -> Any:
        self._results_buffer.extend(int(row.argmax()) for row in rt_outputs["logits"])

    def epoch_postprocess(self, post_inputs: Any = None, output_dir: str | None = None) -> Any:
        if output_dir is not None:
            Path(output_dir).mkdir(exist_ok=True)
            text = json.dumps(self._results_buffer)
            (Path(output_dir) / "labels.json").write_text(text, encoding="utf-8")
        return self._results_buffer


class Momentum(palm.optimizer.base_optimizer.Optimizer):
    def __init__(self, loss_var: Any, lr: float, lr_schedualer: Any = None) -> None:
        super().__init__(loss_var, lr, lr_schedualer)

    def _build(self, grad_clip: float | None = None) -> torch.optim.Optimizer:
        return torch.optim.SGD([value for _, value in self._prog], lr=self._lr, momentum=0.9)


class Halving(palm.lr_sched.base_schedualer.Schedualer):
    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every

    def _build(self, learning_rate: float) -> Callable[[int], float]:
        return lambda step: learning_rate * 0.5 ** (step // self.every)


def write_data(folder: Any) -> None:
    """A vocabulary, and texts whose label is their second word."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "door", "old", "lamp"]
    (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    rng = random.Random(0)
    rows = [(rng.randrange(2), rng.choice(["door", "old door", "lamp"])) for _ in range(41)]
    lines = [f"{label}\ta {['red', 'blue'][label]} {thing}" for label, thing in rows]
    (folder / "texts.tsv").write_text("label\ttext_a\n" + "\n".join(lines) + "\n", encoding="utf-8")
