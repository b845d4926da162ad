"""Several tasks on one encoder, under the names of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from palm.backbone import Backbone
from palm.balance import Balance
from palm.core.checks import raise_any, type_problems
from palm.core.component import checked_phase
from palm.core.errors import ConfigError, PalmError, WiringError
from palm.core.logging import logger
from palm.core.registry import did_you_mean
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.distributed.group import from_first
from palm.engine.training.events import Event, Logged
from palm.engine.training.loop import Step, Training
from palm.engine.training.planning import TasksPerStep, expect
from palm.engine.training.shared_rows import share_rows
from palm.engine.training.task import Task
from palm.mixing import Mixing, MixRatio
from palm.reader import Reader, Record
from palm.trainer.assembly import Forward, LossVariable, needed, seed_of
from palm.trainer.base import TrainerBase
from palm.trainer.predicting import delivered, logged_steps, predicted
from palm.trainer.shared_pass import SharedPass, versions
from palm.trainer.trainer import Trainer

TASK_ID = "__task_id"
"""In a batch, the number of the trainer it is for, int64[1]."""

Readers = Sequence[Reader] | Mapping[str, Reader]


class MultiHeadTrainer(TrainerBase):
    """Trains several tasks together and predicts them together.

    Args:
        trainers: one per task; at every step one of them is drawn.
        mixing: of `palm.mixing`, how they take turns; in proportion to their `mix_ratio` where None.
        tasks_per_step: how many distinct ones are drawn at a step, or 'all'.
        balance: of `palm.balance`, how the tasks of a step are weighed; None sums up their losses.
        precision: compute in 'fp32' or 'bf16', or in what is fast on the device ('auto').

    Raises:
        ConfigError: none, or two of the same name; another `precision`.
    """

    fitting_call = "fit_readers_with_mixratio(readers, sampling_reference, num_epochs)"

    def __init__(
        self,
        trainers: Sequence[Trainer],
        mixing: Mixing | None = None,
        *,
        tasks_per_step: TasksPerStep = 1,
        balance: Balance | None = None,
        precision: str = "auto",
    ) -> None:
        raise_any(type_problems((list, tuple), "a list of palm.Trainer", trainers=trainers))
        raise_any(
            problem
            for each in trainers
            for problem in type_problems(Trainer, "a palm.Trainer", trainers=each)
        )
        super().__init__(" + ".join(trainer.name for trainer in trainers), precision)
        self._planned |= {"mixing": mixing or MixRatio(), "tasks_per_step": tasks_per_step}
        self._chosen["balance"] = balance
        self.trainers = {trainer.name: trainer for trainer in trainers}
        if not trainers or len(self.trainers) < len(trainers):
            raise ConfigError(f"MultiHeadTrainer needs trainers of different names, not {self.name!r}")
        self._shared: SharedPass | None = None

    # Before training

    def build_forward(self) -> LossVariable:
        """Join what the trainers built, on one encoder; heads that are to be shared become one object.

        Raises:
            PalmError: a trainer's `build_forward` was not called.
            WiringError: the trainers have different backbones, or heads that cannot be shared.
        """
        forwards = self._forwards("build_forward")
        _one_backbone(forwards)
        for trainer in self.trainers.values():
            if trainer.reuse_head_with is not None:
                owner = self._owner(trainer)
                assert owner.forward is not None
                # The same object, and so the same parameters: that is how tasks share a head.
                trainer.build_forward(owner.forward.backbone, owner.forward.head)
        self._begin_anew()
        return LossVariable(f"{self.name}.loss")

    def build_predict_forward(self) -> dict[str, dict[str, TensorSpec]]:
        """Join what the trainers built to predict.

        Returns:
            Task -> what `predict_one_batch` will give, by name.

        Raises:
            PalmError: a trainer's `build_predict_forward` was not called.
            WiringError: the trainers have different backbones.
        """
        forwards = self._predict_forwards("build_predict_forward")
        heads = [each.head for name, each in forwards.items() if not self._has_own_layers(name)]
        self._shared = SharedPass(_one_backbone(forwards), heads)
        return {name: dict(forward.head.outputs_attr) for name, forward in forwards.items()}

    def fit_readers(self, readers: Readers, phase: str = "train", *, max_steps: int | None = None) -> None:
        """Give every task its data; each target gets its own reader's `num_epochs`.

        Args:
            readers: in the order of the trainers, or by their names.
            phase: 'train' or 'predict'.
            max_steps: the most global steps that the run may have; None for no limit.
        """
        checked_phase(phase)
        if phase == "predict":
            self.merge_inference_readers(readers)
            return
        tasks = self._fitted(readers, max_steps)
        epochs = {task.name: task.reader.num_epochs for task in tasks}
        expect(tasks, self._plan("fit_readers").over_own_epochs(epochs))

    def fit_readers_with_mixratio(
        self,
        readers: Readers,
        sampling_reference: str,
        num_epochs: float | None = None,
        phase: str = "train",
        *,
        max_steps: int | None = None,
    ) -> None:
        """Give every task its data, and its share of the steps.

        A task is expected to get `int(num_epochs * its mix_ratio * steps per epoch of the reference)`,
        if the mixing strategy does not say otherwise.

        Args:
            readers: in the order of the trainers, or by their names; loaded with `num_epochs=None`.
            sampling_reference: the name of the trainer whose data `num_epochs` counts.
            num_epochs: passes over that data; None for as many as `max_steps` allows.
            phase: 'train' or 'predict'.
            max_steps: the most global steps that the run may have; None for no limit.

        Raises:
            PalmError: a call is missing; names it.
            ConfigError: a reader with epochs of its own, or names that no trainer has.
            TrainingError: a target that would get no step.
        """
        checked_phase(phase)
        if phase == "predict":
            self.merge_inference_readers(readers)
            return
        self._trainer(sampling_reference)
        for name, reader in self._by_name(readers).items():
            if reader.num_epochs is not None:
                raise ConfigError(
                    f"the reader of {name!r} was loaded with num_epochs {reader.num_epochs}; give None"
                )
        if num_epochs is None and max_steps is None:
            raise ConfigError("fit_readers_with_mixratio needs num_epochs or max_steps")
        tasks = self._fitted(readers, max_steps)
        expect(tasks, self._plan("fit_readers").over_epochs(num_epochs, sampling_reference))

    # Training

    def get_one_batch(self, phase: str = "train") -> Tensors:
        """The next batch of training, of the task that is drawn; `__task_id` says which.

        Raises:
            PalmError: a call is missing; names it. To predict, `merge_inference_readers` gives batches.
        """
        checked_phase(phase)
        if phase == "predict":
            raise PalmError(
                "get_one_batch: there are several files to predict; take batches of "
                "merge_inference_readers(readers)(task_name)"
            )
        number, batch = self._next_draw()
        return {**batch, TASK_ID: torch.tensor([number])}

    def train_one_step(self, batch: Tensors) -> tuple[Tensors, int]:
        """One update of the encoder and one head on a batch of `get_one_batch`.

        Returns:
            `{"<task>.loss": float32[1]}` and the number of the task.

        Raises:
            PalmError: a call is missing; names it.
            TrainingError: the loss is not a number.
        """
        if TASK_ID not in batch:
            raise PalmError(f"train_one_step: the batch has no {TASK_ID!r}; take it from get_one_batch()")
        number = int(batch[TASK_ID])
        self._training("train_one_step")
        task = self._tasks("train_one_step")[number]
        return self._train_on(task, {name: value for name, value in batch.items() if name != TASK_ID}), number

    @property
    def overall_train_steps(self) -> int:
        """The planned global steps, with one task a step the expected ones of all tasks together.

        A run goes on until its last target has had its own.
        """
        return self._plan("overall_train_steps").total_steps

    # Prediction

    def merge_inference_readers(self, readers: Readers) -> Callable[[str], Iterator[Tensors]]:
        """Give every task the file to predict.

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
        """The outputs of one task's head for a batch, on the CPU.

        The encoder runs once for all tasks that are asked about the same inputs one after another, except for
        those that have layers of their own.

        Raises:
            PalmError: `build_predict_forward` was not called, or no task has this name.
        """
        forward = self._trainer(task_name).tied("predict_one_batch")
        with self.averaged():
            shared = self._shared_pass("predict_one_batch")
            if self._has_own_layers(task_name):
                return predicted(forward.backbone, forward.head, batch, self._precision)
            return predicted(shared, forward.head, batch, self._precision, shared.placed)

    def predict(self, output_dir: str | Path | None = None, print_steps: int = 1000) -> dict[str, Any]:
        """Predict the files of all tasks, batch by batch in turn; equal texts are encoded once.

        Args:
            output_dir: each task's files are written to `<output_dir>/<task>`; None for none.
            print_steps: a log line every so many batches of a task.

        Returns:
            Task -> what `Trainer.predict` gives.
        """
        models = {name: trainer.predictor("predict") for name, trainer in self.trainers.items()}
        found: dict[str, list[Record]] = {name: [] for name in models}
        with self.averaged():
            shared = self._shared_pass("predict")
            for name, model in models.items():
                if not self._has_own_layers(name):
                    model.backbone = shared
                    model.place = shared.placed
                model.precision = self._precision
            # In turns, because equal texts are encoded once only if they follow one another.
            steps = {name: logged_steps(model, print_steps, f"{name}: ") for name, model in models.items()}
            while steps:  # one batch of each task after another, until all are through
                for name in list(steps):
                    if (records := next(steps[name], None)) is None:
                        del steps[name]
                    else:
                        found[name] += records
        folders = {name: None if output_dir is None else Path(output_dir) / name for name in models}
        return from_first(
            lambda: {
                name: delivered(model.reader, found[name], folders[name]) for name, model in models.items()
            }
        )

    def evaluate(
        self,
        dev_files: Mapping[str, str | Path],
        metrics: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, dict[str, float]]:
        """Evaluate the predictions of files with labels; training is not affected.

        Args:
            dev_files: task -> a data file as for training; tasks may be missing.
            metrics: task -> names of metrics; those of its head where it is missing.

        Returns:
            Task -> what `Trainer.evaluate` gives.
        """
        chosen = metrics or {}
        return {
            name: self._trainer(name).evaluate(path, chosen.get(name)) for name, path in dev_files.items()
        }

    def _has_own_layers(self, name: str) -> bool:
        own = self.trainers[name].of_task
        return bool(own["private_layers"]) or own["lora"] is not None

    def _shared_pass(self, caller: str) -> SharedPass:
        shared = needed(self._shared, self.name, "build_predict_forward()", caller)
        run = self._run
        # A fused optimizer leaves no trace in parameters' versions; averages, put in and out, leave too many.
        loaded = versions(shared) if run is None or run.ema is None else None
        shared.at((id(run), self.cur_train_step, loaded))
        return shared

    # The trainers

    def _members(self) -> list[Trainer]:
        return list(self.trainers.values())

    def _training(self, caller: str) -> Training:
        run = super()._training(caller)
        for trainer in self.trainers.values():
            trainer.run_of_all = run
        return run

    def _heading(self, logged: Logged) -> str:
        width = max(map(len, self.trainers))
        return f"global step: {logged.step}, {logged.task:>{width}}: "

    def _tell_finish(self, event: Event) -> None:
        for part in event.parts if isinstance(event, Step) else ():
            if part.finished and part.task.is_target:
                logger.info("%s train finish!", part.task.name)

    def _trainer(self, name: str) -> Trainer:
        if name not in self.trainers:
            known = ", ".join(self.trainers)
            raise ConfigError(
                f"no trainer is called {name!r}; there are {known}{did_you_mean(name, self.trainers)}"
            )
        return self.trainers[name]

    def _owner(self, trainer: Trainer) -> Trainer:
        """The trainer whose head this one shares."""
        owner = self._trainer(trainer.reuse_head_with or trainer.name)
        if owner.reuse_head_with is not None:
            raise ConfigError(
                f"{trainer.name!r} reuses the head of {owner.name!r}, which has none of its own; "
                f"name {owner.reuse_head_with!r}"
            )
        assert owner.forward is not None
        assert trainer.forward is not None
        mine = trainer.forward.head
        theirs = owner.forward.head
        if (type(mine), mine.settings) != (type(theirs), theirs.settings):
            raise WiringError(
                f"{trainer.name!r} cannot reuse the head of {owner.name!r}: "
                f"{type(mine).__name__} {mine.settings} is not {type(theirs).__name__} {theirs.settings}"
            )
        return owner

    def _by_name(self, readers: Readers) -> dict[str, Reader]:
        raise_any(type_problems((list, tuple, Mapping), "a list of readers", readers=readers))
        if isinstance(readers, Mapping):
            for name in readers:
                self._trainer(name)
            named = dict(readers)
        else:
            # Not strict: a wrong number of readers is told below, with the trainers' names.
            named = dict(zip(self.trainers, readers, strict=False))
        if len(named) != len(self.trainers) or len(readers) != len(named):
            trainers = ", ".join(self.trainers)
            raise ConfigError(f"{len(readers)} readers for {len(self.trainers)} trainers ({trainers})")
        return {name: named[name] for name in self.trainers}

    def _fitted(self, readers: Readers, max_steps: int | None) -> list[Task]:
        self._limit_steps(max_steps)
        named = self._by_name(readers)
        self._forwards("fit_readers")
        seed = seed_of(named.values())
        tasks = [self.trainers[name].fit(reader, seed) for name, reader in named.items()]
        if not any(task.is_target for task in tasks):
            raise ConfigError("all tasks are auxiliary; a run needs at least one target")
        share_rows(tasks)
        self._begin_anew()
        return tasks


def _one_backbone(forwards: Mapping[str, Forward]) -> Backbone:
    (first, forward), *others = forwards.items()
    for name, other in others:
        if other.backbone is not forward.backbone:
            raise WiringError(
                f"trainers {first!r} and {name!r} were built with different backbone objects; "
                "give both the same one"
            )
    return forward.backbone
