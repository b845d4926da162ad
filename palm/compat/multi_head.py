"""`MultiHeadTrainer`: several tasks on one encoder, with the names of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from palm.backbone import Backbone
from palm.compat.base import Forward, TrainerBase, own_steps, seed_of
from palm.compat.conventions import checked_phase
from palm.compat.reader.base_reader import LoadingReader
from palm.compat.trainer import Trainer, logged_work, results_of
from palm.core.component import raise_any, type_problems, unknown
from palm.core.errors import ConfigError, PalmError, WiringError
from palm.core.group import broadcast
from palm.core.logging import logger
from palm.core.saved import Tensors, TensorSpec
from palm.mixing import MixRatio
from palm.predict.inference import JointModel
from palm.reader import Record
from palm.train.callbacks import Event, Logged
from palm.train.loop import Step, Training
from palm.train.task import StepPlan, TaskState, expect

TASK_ID = "__task_id"
"""Key in a batch: the number of its trainer, int64[1]."""

Readers = Sequence[LoadingReader] | Mapping[str, LoadingReader]


class MultiHeadTrainer(TrainerBase):
    """Trains several tasks together and predicts them together.

    Args:
        trainers: one per task; at every step one of them is drawn.
        precision: compute in 'fp32' or 'bf16'; 'auto' is bf16 on devices with fast bfloat16.

    Raises:
        ConfigError: there are no trainers, two have the same name, or `precision` is unknown.
    """

    fitting_call = "fit_readers_with_mixratio(readers, sampling_reference, num_epochs)"

    def __init__(
        self,
        trainers: Sequence[Trainer],
        *,
        precision: str = "auto",
    ) -> None:
        raise_any(type_problems((list, tuple), "a list of palm.Trainer", trainers=trainers))
        raise_any(
            problem
            for each in trainers
            for problem in type_problems(Trainer, "a palm.Trainer", trainers=each)
        )
        super().__init__(" + ".join(trainer.name for trainer in trainers), precision)
        self.trainers = {trainer.name: trainer for trainer in trainers}
        if not trainers or len({name.casefold() for name in self.trainers}) < len(trainers):
            raise ConfigError(
                f"MultiHeadTrainer needs trainers with different names (case is ignored), not {self.name!r}"
            )

    # Before training

    def build_forward(self) -> str:
        """Combine the trainers' encoder and heads; heads to be shared become one object.

        Returns:
            The name of the loss, an argument of an optimizer's constructor.

        Raises:
            PalmError: a trainer's `build_forward` was not called.
            WiringError: the trainers have different backbones, or heads that cannot be shared.
        """
        forwards = self._forwards("build_forward")
        _one_backbone(forwards)
        for trainer in self.trainers.values():
            if trainer.reuse_head_with is not None:
                # Tasks share a head by using the same object, and so the same parameters.
                owner = self._owner(trainer, forwards)
                trainer.build_forward(forwards[owner].backbone, forwards[owner].head)
        self._reset_run()
        return f"{self.name}.loss"

    def build_predict_forward(self) -> dict[str, dict[str, TensorSpec]]:
        """Combine the trainers' encoder and heads for prediction.

        Returns:
            Task -> the specs of the outputs of `predict_one_batch`.

        Raises:
            PalmError: a trainer's `build_predict_forward` was not called.
            WiringError: the trainers have different backbones.
        """
        forwards = self._predict_forwards("build_predict_forward")
        _one_backbone(forwards)
        return {name: dict(forward.head.outputs_attr) for name, forward in forwards.items()}

    def fit_readers(self, readers: Readers, phase: str = "train") -> None:
        """Set the data of every task; each target is trained for the `num_epochs` of its own reader.

        Args:
            readers: in the order of the trainers, or by their names.
            phase: 'train' or 'predict'.
        """
        if checked_phase(phase) == "predict":
            self.merge_inference_readers(readers)
            return
        tasks = self._fitted(readers)
        progress = [replace(task.progress(0), expected_steps=own_steps(task)) for task in tasks]
        expect(tasks, StepPlan(tasks=progress, mixing=MixRatio()))

    def fit_readers_with_mixratio(
        self, readers: Readers, sampling_reference: str, num_epochs: float, phase: str = "train"
    ) -> None:
        """Set the data of every task and its share of the steps.

        The expected steps of a task are `int(num_epochs * its mix_ratio * steps per epoch of the reference)`.

        Args:
            readers: in the order of the trainers, or by their names; loaded with `num_epochs=None`.
            sampling_reference: the name of the trainer whose data `num_epochs` refers to.
            num_epochs: passes over that data.
            phase: 'train' or 'predict'.

        Raises:
            PalmError: an earlier call is missing; with the call.
            ConfigError: a reader has its own `num_epochs`, or a trainer is unknown.
            TrainingError: a target would get no steps.
        """
        if checked_phase(phase) == "predict":
            self.merge_inference_readers(readers)
            return
        self._trainer(sampling_reference)
        for name, reader in self._by_name(readers).items():
            if reader.num_epochs is not None:
                raise ConfigError(
                    f"the reader of {name!r} was loaded with num_epochs {reader.num_epochs}; give None"
                )
        tasks = self._fitted(readers)
        plan = StepPlan(tasks=[task.progress(0) for task in tasks], mixing=MixRatio())
        expect(tasks, plan.over_epochs(num_epochs, sampling_reference))

    # Training

    def get_one_batch(self, phase: str = "train") -> Tensors:
        """Return the next training batch, of the task that is drawn; its number is in `__task_id`.

        Raises:
            PalmError: an earlier call is missing; with the call. For prediction, batches come from
                `merge_inference_readers`.
        """
        checked_phase(phase)
        if phase == "predict":
            raise PalmError(
                "get_one_batch: there are several files to predict; get batches from "
                "merge_inference_readers(readers)(task_name)"
            )
        number, batch = self._next_draw()
        return {**batch, TASK_ID: torch.tensor([number])}

    def train_one_step(self, batch: Tensors) -> tuple[Tensors, int]:
        """Update the encoder and one head on a batch from `get_one_batch`.

        Returns:
            `{"<task>.loss": float32[1]}` and the number of the task.

        Raises:
            PalmError: an earlier call is missing; with the call.
            TrainingError: the loss is not a number.
        """
        if TASK_ID not in batch:
            raise PalmError(f"train_one_step: the batch has no {TASK_ID!r}; use one from get_one_batch()")
        number = int(batch[TASK_ID])
        self._training("train_one_step")
        task = self._tasks("train_one_step")[number]
        return self._train_on(task, {name: value for name, value in batch.items() if name != TASK_ID}), number

    @property
    def overall_train_steps(self) -> int:
        """The sum of the expected steps of all tasks.

        Training continues until every target has had its steps.
        """
        return sum(task.expected_steps for task in self._tasks("overall_train_steps"))

    # Prediction

    def merge_inference_readers(self, readers: Readers) -> Callable[[str], Iterator[Tensors]]:
        """Set the file to predict for every task.

        Args:
            readers: in the order of the trainers, or by their names.

        Returns:
            A function from a task's name to the batches of its file, in order, each with `__task_id`.
        """
        for name, reader in self._by_name(readers).items():
            self.trainers[name].fit_reader(reader, phase="predict")

        def batches(task_name: str) -> Iterator[Tensors]:
            trainer = self._trainer(task_name)
            number = torch.tensor([list(self.trainers).index(task_name)])
            return ({**batch, TASK_ID: number} for batch in trainer.predict_batches())

        return batches

    def predict_one_batch(self, task_name: str, batch: Tensors) -> Tensors:
        """Return the outputs of one task's head for a batch, on the CPU.

        Raises:
            PalmError: its `build_predict_forward` was not called, or the task is unknown.
        """
        return self._trainer(task_name).predict_one_batch(batch)

    def predict(self, output_dir: str | Path | None = None, print_steps: int = 1000) -> dict[str, Any]:
        """Predict the files of all tasks.

        Args:
            output_dir: each task's files are written to `<output_dir>/<task>`; None to write no files.
            print_steps: number of batches of a task between log lines.

        Returns:
            Task -> the result of `Trainer.predict`.
        """
        models = {name: trainer.predictor("predict") for name, trainer in self.trainers.items()}
        _one_backbone(self._predict_forwards("predict"))
        found: dict[str, list[Record]] = {name: [] for name in models}
        with self.averaged():
            for model in models.values():
                model.precision = self._precision
            work = {name: logged_work(model, print_steps, f"{name}: ") for name, model in models.items()}
            for name, predictions in JointModel(models).steps(work):
                found[name] += [each.record for each in predictions]
        folders = {name: None if output_dir is None else Path(output_dir) / name for name in models}
        return broadcast(
            lambda: {
                name: results_of(model.reader, found[name], folders[name]) for name, model in models.items()
            }
        )

    # The trainers

    def _members(self) -> list[Trainer]:
        return list(self.trainers.values())

    def _training(self, caller: str) -> Training:
        run = super()._training(caller)
        for trainer in self.trainers.values():
            trainer.joint_run = run
        return run

    def _heading(self, logged: Logged) -> str:
        width = max(map(len, self.trainers))
        return f"global step: {logged.step}, {logged.task:>{width}}: "

    def _log_finish(self, event: Event) -> None:
        for part in event.parts if isinstance(event, Step) else ():
            if part.finished and part.task.is_target:
                logger.info("%s train finish!", part.task.name)

    def _trainer(self, name: str) -> Trainer:
        if name not in self.trainers:
            raise ConfigError(unknown("trainer", name, self.trainers))
        return self.trainers[name]

    def _owner(self, trainer: Trainer, forwards: Mapping[str, Forward]) -> str:
        """Return the name of the trainer whose head this one shares."""
        owner = self._trainer(trainer.reuse_head_with or trainer.name)
        if owner.reuse_head_with is not None:
            raise ConfigError(
                f"{trainer.name!r} reuses the head of {owner.name!r}, which reuses that of "
                f"{owner.reuse_head_with!r}; name {owner.reuse_head_with!r} instead"
            )
        mine = forwards[trainer.name].head
        theirs = forwards[owner.name].head
        if (type(mine), mine.settings) != (type(theirs), theirs.settings):
            raise WiringError(
                f"{trainer.name!r} cannot reuse the head of {owner.name!r}: "
                f"{type(mine).__name__} {mine.settings} is not {type(theirs).__name__} {theirs.settings}"
            )
        return owner.name

    def _by_name(self, readers: Readers) -> dict[str, LoadingReader]:
        raise_any(type_problems((list, tuple, Mapping), "a list of readers", readers=readers))
        if isinstance(readers, Mapping):
            for name in readers:
                self._trainer(name)
            named = dict(readers)
        else:
            # Not strict: a wrong number of readers is reported below, with the trainers' names.
            named = dict(zip(self.trainers, readers, strict=False))
        if len(named) != len(self.trainers) or len(readers) != len(named):
            trainers = ", ".join(self.trainers)
            raise ConfigError(f"{len(readers)} readers for {len(self.trainers)} trainers ({trainers})")
        return {name: named[name] for name in self.trainers}

    def _fitted(self, readers: Readers) -> list[TaskState]:
        named = self._by_name(readers)
        self._forwards("fit_readers")
        seed = seed_of(named.values())
        tasks = [self.trainers[name].fit(reader, seed) for name, reader in named.items()]
        if not any(task.is_target for task in tasks):
            raise ConfigError("all tasks are auxiliary; a run needs at least one target")
        self._reset_run()
        return tasks


def _one_backbone(forwards: Mapping[str, Forward]) -> Backbone:
    (first, forward), *others = forwards.items()
    for name, other in others:
        if other.backbone is not forward.backbone:
            raise WiringError(
                f"trainers {first!r} and {name!r} were built with different backbone objects; "
                "use the same object for both"
            )
    return forward.backbone
