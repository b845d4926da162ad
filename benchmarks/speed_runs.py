"""palm's and Hugging Face's side of the speed benchmarks: a few steps on given batches, timed one by one."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from speed_cases import VOCABULARY, Case, Shape
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone import BERT
from palm.core.numerics.precision import Precision
from palm.core.numerics.weight_cache import WeightCache
from palm.core.tensor_specs import Tensors
from palm.engine.training.build import start
from palm.engine.training.model import outputs_of
from palm.engine.training.recipe import Recipe
from palm.engine.training.task import Task
from palm.optimizer import AdamW
from palm.paradigm import MRC, Head, MaskLM, Match, SequenceLabel
from palm.pretrained import from_ours

LEARNING_RATE, WEIGHT_DECAY = 3e-5, 0.01


def clock(device: torch.device) -> float:
    """Seconds: of this process on one thread of a CPU, which others hardly disturb; otherwise of the wall."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (
        time.process_time() if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter()
    )


def peak_memory(device: torch.device) -> float:
    """MiB at most: of tensors on a GPU; on a CPU, of the process, where Linux tells it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    return next((int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM")), float("nan"))


def gemm_rate(shape: Shape, device: torch.device, dtype: torch.dtype, tokens: int = 2560) -> float:
    """FLOP/s of the best of the encoder's own matrix products, alone and forward."""
    best = 0.0
    for wide, narrow in ((4, 1), (1, 4), (1, 1)):
        tokens_in = torch.randn(tokens, narrow * shape.hidden_size, device=device, dtype=dtype)
        weight = torch.randn(wide * shape.hidden_size, narrow * shape.hidden_size, device=device, dtype=dtype)
        for _ in range(5):
            started = clock(device)
            for _ in range(10):
                F.linear(tokens_in, weight)
            best = max(best, 20 * tokens * weight.numel() / (clock(device) - started))
    return best


def backbone_of(shape: Shape) -> BERT:
    """The encoder that everybody starts from."""
    torch.manual_seed(0)
    return BERT(**shape.settings)


def head_of(case: Case, width: int) -> Head:
    """palm's head of a case."""
    heads: dict[str, Callable[[], Head]] = {
        "match": lambda: Match(2, hidden_size=width),
        "mrc": lambda: MRC(hidden_size=width),
        "mlm": lambda: MaskLM(width, VOCABULARY),
        "seq_label": lambda: SequenceLabel(case.n_classes, width),
    }
    return heads[case.kind]()


class Ready:
    """The batches of a case again and again, in place of a task's stream."""

    def __init__(self, case: Case) -> None:
        self._batches, self.steps_per_epoch = case.batches, len(case.batches)
        self.rows = range(case.rows * len(case.batches))

    def batch(self, step: int) -> Tensors:
        """The batch at `step`, counted from 0."""
        return self._batches[step % self.steps_per_epoch]


def task_of(name: str, case: Case, shape: Shape, mix_ratio: float = 1.0) -> Task:
    """A task without a reader, on the batches of a case."""
    head = head_of(case, shape.hidden_size)
    task = Task(name, None, head, batch_size=case.rows, mix_ratio=mix_ratio)  # type: ignore[arg-type]
    task.stream = Ready(case)  # type: ignore[assignment]
    return task


class Palm:
    """palm.

    Args:
        case: what to train on.
        shape: of the encoder.
        device: where.
        precision: fp32 or bf16.
    """

    def __init__(
        self,
        case: Case,
        shape: Shape,
        device: torch.device,
        precision: Precision,
    ) -> None:
        self.case, self.device, self.precision = case, device, precision
        self.cache = WeightCache()
        self.task = task_of("task", case, shape)
        self.training = start(
            Recipe(
                backbone=backbone_of(shape),
                tasks=[self.task],
                optimizer=AdamW(LEARNING_RATE, WEIGHT_DECAY),
                schedule=lambda _: 1.0,
                device=device,
                precision=precision,
            )
        )

    def train(self, first: int, count: int) -> list[float]:
        """Seconds of each of `count` training steps, from batch `first` on."""
        seconds = []
        for k in range(first, first + count):
            started = clock(self.device)
            self.training.step_on([(self.task, [self.case.batches[k % len(self.case.batches)]])])
            seconds.append(clock(self.device) - started)
        return seconds

    @torch.inference_mode()
    def predict(self, first: int, count: int) -> list[float]:
        """Seconds of predicting each of `count` batches' rows, sorted by length as palm predicts files."""
        rows = [row for k in range(first, first + count) for row in rows_of(self.case, k)]
        rows.sort(key=lambda row: len(row["input_ids"]))
        model = self.training.model.eval()
        started = clock(self.device)
        for first_row in range(0, len(rows), self.case.rows):
            some = rows[first_row : first_row + self.case.rows]
            batch = {name: value.to(self.device) for name, value in padded(some).items()}
            batch = {ours: batch[theirs] for ours, theirs in NAMES.items()}
            batch["position_ids"] = torch.arange(batch["input_mask"].shape[1], device=self.device).expand_as(
                batch["input_mask"]
            )
            batch["input_mask"] = batch["input_mask"].bool()
            with self.cache.active():  # as a loaded model does
                outputs = outputs_of(model.backbone, self.task.head, batch, self.precision)
            self.task.head.decode(outputs)
        return [(clock(self.device) - started) / count] * count


NAMES = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "input_mask": "attention_mask"}


def rows_of(case: Case, k: int) -> list[dict[str, Any]]:
    """The rows of a batch as Hugging Face's collators take them, without padding."""
    batch = case.batches[k % len(case.batches)]
    labels = _LABELS[case.kind](batch)
    rows = []
    for row, length in enumerate(batch["input_mask"].sum(1).tolist()):
        inputs = {theirs: batch[ours][row, :length] for ours, theirs in NAMES.items()}
        inputs["attention_mask"] = inputs["attention_mask"].long()
        rows.append(inputs | {name: v[row, :length] if v.ndim > 1 else v[row] for name, v in labels.items()})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """The rows as one batch, padded to the longest; labels with -100."""
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        fill = -100 if name == "labels" else 0
        stack = values[0].ndim == 0
        batch[name] = torch.stack(values) if stack else nn.utils.rnn.pad_sequence(values, True, fill)
    return batch


def _of_masks(batch: Tensors) -> dict[str, Tensor]:
    labels = torch.full(batch["input_mask"].shape, -100)
    labels.view(-1)[batch["mask_pos"]] = batch["mask_label"]
    return {"labels": labels}


_LABELS: dict[str, Callable[[Tensors], dict[str, Tensor]]] = {
    "match": lambda batch: {"labels": batch["label_ids"]},
    "mrc": lambda batch: {name: batch[name] for name in ("start_positions", "end_positions")},
    "mlm": _of_masks,
    "seq_label": lambda batch: {"labels": batch["label_ids"].masked_fill(~batch["word_mask"], -100)},
}


class HuggingFace:
    """Hugging Face's Trainer, pads to the longest row of a batch, has its own AdamW.

    Args:
        case: what to train on.
        shape: of the encoder.
        device: where.
        precision: fp32 or bf16.
        attention: its `attn_implementation`.
        grouped: batches of rows of similar length, as its strategy `group_by_length` makes them; here of a
            turn's rows, so that everybody has the same ones.
        compiled: its `torch_compile`.
    """

    def __init__(
        self,
        case: Case,
        shape: Shape,
        device: torch.device,
        precision: Precision,
        attention: str,
        *,
        grouped: bool = False,
        compiled: bool = False,
    ) -> None:
        import transformers

        self.case, self.device, self.is_bf16 = case, device, precision == "bf16"
        self.grouped, self.compiled = grouped, compiled
        settings = shape.settings
        config = transformers.BertConfig(**settings, num_labels=case.n_classes, attn_implementation=attention)
        names = {
            "match": "BertForSequenceClassification",
            "mrc": "BertForQuestionAnswering",
            "mlm": "BertForMaskedLM",
            "seq_label": "BertForTokenClassification",
        }
        self.model = getattr(transformers, names[case.kind])(config)
        weights = from_ours(backbone_of(shape).state_dict(), "huggingface")
        strange = self.model.bert.load_state_dict(weights, strict=False).unexpected_keys
        assert not [name for name in strange if "pooler" not in name], strange

    def train(self, first: int, count: int) -> list[float]:
        """Seconds of each of `count` training steps, from batch `first` on, after one that is not counted."""
        timer = _timer(self.device)
        rows = [row for k in range(first + 1, first + count + 1) for row in rows_of(self.case, k)]
        if self.grouped:
            rows.sort(key=lambda row: len(row["input_ids"]), reverse=True)
        self._trainer([*rows_of(self.case, first), *rows], timer, count + 1).train()
        return [later - earlier for earlier, later in zip(timer.ends, timer.ends[1:], strict=False)]

    def predict(self, first: int, count: int) -> list[float]:
        """Seconds of predicting each of `count` batches, in their order."""
        rows = [
            {name: value for name, value in row.items() if name in NAMES.values()}
            for k in range(first, first + count)
            for row in rows_of(self.case, k)
        ]
        if self.grouped:
            rows.sort(key=lambda row: len(row["input_ids"]))
        trainer = self._trainer(rows, _timer(self.device), 1)
        started = clock(self.device)
        trainer.predict(rows)
        return [(clock(self.device) - started) / count] * count

    def _trainer(self, rows: list[dict[str, Any]], timer: Any, steps: int) -> Any:
        import transformers

        class InOrder(transformers.Trainer):  # type: ignore[misc]
            def _get_train_sampler(self, *_: Any) -> Any:
                return torch.utils.data.SequentialSampler(rows)

        arguments = transformers.TrainingArguments(
            output_dir=tempfile.gettempdir(),
            per_device_train_batch_size=self.case.rows,
            per_device_eval_batch_size=self.case.rows,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            bf16=self.is_bf16,
            bf16_full_eval=self.is_bf16,
            torch_compile=self.compiled,
            use_cpu=self.device.type == "cpu",
            dataloader_pin_memory=self.device.type == "cuda",
            save_strategy="no",
            logging_strategy="no",
            log_level="error",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        trainer = InOrder(self.model, arguments, padded, rows, callbacks=[timer])
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer


def _timer(device: torch.device) -> Any:
    """Notes when each step of a Trainer is over."""
    import transformers

    class Timer(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(clock(device))

    return Timer()


def free() -> None:
    """Give memory back before the next case."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
