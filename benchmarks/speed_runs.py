"""palm's and Hugging Face's side of the speed benchmarks: a few steps on given batches, timed together."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from speed_cases import DATA, VOCABULARY, Case, Shape
from torch import Tensor, nn
from torch.nn import functional as F

from palm.backbone import BERT
from palm.compat.base import run_config
from palm.config.settings import RunSettings
from palm.core.device import Precision
from palm.core.layers import WeightCache
from palm.core.saved import Tensors
from palm.mixing import MixRatio
from palm.optimizer import AdamW, ParameterGroups
from palm.optimizer.lr_sched import WarmupScheduler
from palm.paradigm import MRC, Head, MaskLM, Match, SequenceLabel
from palm.pretrained.names import from_ours
from palm.reader import ClassifyReader
from palm.train.build import start
from palm.train.loop import Components, fetched, placed
from palm.train.model import outputs_of
from palm.train.task import StepPlan, Task, TaskState, expect

LEARNING_RATE, WEIGHT_DECAY = 3e-5, 0.01


def now(device: torch.device) -> float:
    """Seconds: of this process on one thread of a CPU, which others hardly disturb; otherwise of the wall."""
    one_thread = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time() if one_thread else time.perf_counter()


def clock(device: torch.device) -> float:
    """The same, when the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return now(device)


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


def backbone_of(shape: Shape, dropout: float = 0.1) -> BERT:
    """The encoder that everybody starts from."""
    torch.manual_seed(0)
    return BERT(**shape.settings, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)


def head_of(case: Case, width: int, dropout: float = 0.1) -> Head:
    """palm's head of a case."""
    heads: dict[str, Callable[[], Head]] = {
        "match": lambda: Match(2, hidden_size=width, dropout_prob=dropout),
        "mrc": lambda: MRC(hidden_size=width),
        "mlm": lambda: MaskLM(width, VOCABULARY),
        "seq_label": lambda: SequenceLabel(case.n_classes, width, dropout),
        "crf": lambda: SequenceLabel(case.n_classes, width, dropout, use_crf=True),
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


class ReadyTask(TaskState):
    """A task on the batches of a case, without files."""

    def __init__(self, task: Task, case: Case) -> None:
        self.task = task
        self.name, self.reader, self.head = task.name, task.reader, task.head
        self.stream = Ready(case)  # type: ignore[assignment]
        self.expected_steps = self.step = 0
        self.stopped_at: int | None = None


def task_of(name: str, case: Case, shape: Shape, mix_ratio: float = 1.0, dropout: float = 0.1) -> TaskState:
    """A task on the batches of a case; its reader reads nothing."""
    head = head_of(case, shape.hidden_size, dropout)
    reader = ClassifyReader(DATA / "vocab.txt", 16, n_classes=2)
    return ReadyTask(Task(name, reader, head, batch_size=case.rows, mix_ratio=mix_ratio), case)


class Palm:
    """palm.

    Args:
        case: what to train on.
        shape: of the encoder.
        device: where.
        precision: fp32 or bf16.
        tasks: on one encoder; one by default, on all batches of the case.
        dropout: of the encoder, and of that one task's head.
        settings: further ones of the run, as `ema_decay`.
    """

    def __init__(
        self,
        case: Case,
        shape: Shape,
        device: torch.device,
        precision: Precision,
        tasks: Sequence[TaskState] = (),
        dropout: float = 0.1,
        **settings: Any,
    ) -> None:
        self.case, self.device, self.precision = case, device, precision
        self.cache = WeightCache()
        self._next = 0
        torch.manual_seed(0)
        every = list(tasks) or [task_of("task", case, shape, dropout=dropout)]
        self.task = every[0]
        parts = Components(
            backbone=backbone_of(shape, dropout),
            optimizer=AdamW(LEARNING_RATE, WEIGHT_DECAY),
            tasks=[task.task for task in every],
            groups=ParameterGroups(),
            mixing=MixRatio(),
        )
        run = RunSettings(task_instance=[task.name for task in every], precision=precision, **settings)
        expect(every, StepPlan.of(every, parts.mixing, run).over_epochs(9))
        schedule = WarmupScheduler(0)
        self.training = start(run_config(run, parts, schedule), parts, every, schedule, device)

    def train(self, count: int) -> float:
        """Seconds of a step: of `count` after one that is not counted, with one wait at their end."""
        self.training.next_step()
        started = clock(self.device)
        for _ in range(count):
            self.training.next_step()
        return (clock(self.device) - started) / count

    def host(self, count: int) -> float:
        """Seconds that the host takes to enqueue a step, for a device that has nothing else to do."""
        seconds = []
        for _ in range(count):
            started = clock(self.device)
            self.training.next_step()
            seconds.append(now(self.device) - started)
        return median(seconds)

    @torch.inference_mode()
    def predict(self, count: int) -> float:
        """Seconds of a batch: of the next `count`, whose rows are sorted by length as palm predicts files."""
        rows = [row for k in range(self._next, self._next + count) for row in rows_of(self.case, k)]
        self._next += count
        rows.sort(key=lambda row: len(row["input_ids"]))
        model = self.training.model.eval()
        unread: list[Callable[[], Tensors]] = []
        started = clock(self.device)
        for first_row in range(0, len(rows), self.case.rows):
            given = padded(rows[first_row : first_row + self.case.rows])
            batch = {ours: given[theirs] for ours, theirs in NAMES.items()}
            batch["position_ids"] = torch.arange(batch["input_mask"].shape[1]).expand_as(batch["input_mask"])
            batch["input_mask"] = batch["input_mask"].bool()
            batch = placed(batch, self.device, model.backbone)
            with self.cache.active():  # as a loaded model does
                unread.append(fetched(outputs_of(model.backbone, self.task.head, batch, self.precision)))
            if len(unread) > 1:
                self.task.head.decode(unread.pop(0)())
        self.task.head.decode(unread.pop()())
        return (clock(self.device) - started) / count


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
        workers: processes that collate batches.
        compiled: its `torch_compile_backend`, if it compiles.
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
        workers: int = 0,
        compiled: str | None = None,
    ) -> None:
        import transformers

        self.case, self.device, self.is_bf16 = case, device, precision == "bf16"
        self.grouped, self.workers, self.compiled = grouped, workers, compiled
        self._next = 0
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

    def _rows(self, count: int) -> list[dict[str, Any]]:
        """The rows of the next batches, which are then over."""
        first = self._next
        self._next += count
        rows = [row for k in range(first, first + count) for row in rows_of(self.case, k)]
        if self.grouped:
            rows.sort(key=lambda row: len(row["input_ids"]), reverse=True)
        return rows

    def train(self, count: int) -> float:
        """Seconds of a step: of `count` after one that is not counted, with one wait at their end."""
        timer = _timer(self.device, {1, count + 1})
        self._trainer([*self._rows(1), *self._rows(count)], [timer], count + 1).train()
        return (timer.begins[-1] - timer.begins[0]) / count

    def host(self, count: int) -> float:
        """Seconds that the host takes to enqueue a step, for a device that has nothing else to do."""
        timer = _timer(self.device, set(range(1, count + 2)))
        self._trainer(self._rows(count + 1), [timer], count + 1).train()
        return median(end - begin for begin, end in zip(timer.begins, timer.ends[1:], strict=False))

    def predict(self, count: int) -> float:
        """Seconds of a batch among the next `count`."""
        names = NAMES.values()
        rows = [{name: row[name] for name in names} for row in self._rows(count)]
        trainer = self._trainer(rows, [], 1)
        started = clock(self.device)
        trainer.predict(rows)
        return (clock(self.device) - started) / count

    def _trainer(self, rows: list[dict[str, Any]], timers: list[Any], steps: int) -> Any:
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
            torch_compile_backend=self.compiled,
            use_cpu=self.device.type == "cpu",
            dataloader_pin_memory=self.device.type == "cuda",
            dataloader_num_workers=self.workers,
            logging_nan_inf_filter=False,  # it waits for the device in every step
            save_strategy="no",
            logging_strategy="no",
            log_level="error",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        )
        trainer = InOrder(self.model, arguments, padded, rows, callbacks=timers)
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer


def _timer(device: torch.device, waits_after: set[int]) -> Any:
    """A callback that waits for the device after some of a Trainer's steps, counted from 1.

    It keeps the seconds at the steps' ends, before and after such a wait: from wait to end, rows are collated
    and sent, and a step is enqueued.
    """
    import transformers

    class Timer(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.ends: list[float] = []
            self.begins: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(now(device))
            if len(self.ends) in waits_after:
                self.begins.append(clock(device))

    return Timer()


def free() -> None:
    """Give memory back before the next case."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
