"""One task from its parts to its predictions, under the names of PaddlePALM 2.x."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from torch import nn

from palm.backbone import Backbone
from palm.core.checks import number_problems, path_problems, raise_any, type_problems
from palm.core.component import checked_phase
from palm.core.files.manifest import is_sealed, verify
from palm.core.logging import logger
from palm.core.numerics.device import device_of
from palm.core.tensor_specs import Tensors, TensorSpec
from palm.distributed.group import exhaust, from_first, is_first
from palm.downloader import pretrained_directory
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.loading import load_weights
from palm.engine.inference.model_paths import WEIGHTS
from palm.engine.run.run_names import name_problem
from palm.engine.training.loop import Training
from palm.engine.training.model import adapters_of, share_parameters
from palm.engine.training.task import Task
from palm.paradigm import Head
from palm.paradigm.results import has_own_results
from palm.pretrained import load_pretrain
from palm.reader import Predictions, Reader
from palm.trainer.assembly import Forward, LossVariable, needed, seed_of
from palm.trainer.base import TrainerBase
from palm.trainer.fitting import task_of
from palm.trainer.predicting import delivered, logged_steps, predicted, prediction_batches


class Trainer(TrainerBase):
    """Trains one task, or is one of the tasks of a `MultiHeadTrainer`, and predicts it.

    Args:
        name: the task's name; it stands in logs and checkpoints.
        mix_ratio: how often the task is drawn among several, relative to the others.
        reuse_head_with: the name of the trainer whose head this one shares.
        loss_weight: as in `Task`.
        learning_rate_factor: as in `Task`.
        gradient_accumulation_steps: as in `Task`.
        head_learning_rate: as in `Task`.
        share_rows_with: as in `Task`.
        private_layers: as in `Task`.
        lora: as in `Task`.
        precision: compute in 'fp32' or 'bf16', or in what is fast on the device ('auto').

    Raises:
        ConfigError: another `precision`.
    """

    fitting_call = "fit_reader(reader)"

    def __init__(
        self,
        name: str,
        mix_ratio: float = 1.0,
        reuse_head_with: str | None = None,
        *,
        loss_weight: float = 1.0,
        learning_rate_factor: float = 1.0,
        gradient_accumulation_steps: int = 1,
        head_learning_rate: float | None = None,
        share_rows_with: str | None = None,
        private_layers: int = 0,
        lora: Mapping[str, Any] | None = None,
        precision: str = "auto",
    ) -> None:
        least = "a number, 0 or more"
        wrong = number_problems(least, lambda value: 0 <= value < math.inf, mix_ratio=mix_ratio)
        raise_any(problem for problem in (name_problem(name), *wrong) if problem)
        super().__init__(name, precision)
        self.of_task: dict[str, Any] = {
            "mix_ratio": mix_ratio,
            "is_target": True,
            "loss_weight": loss_weight,
            "learning_rate_factor": learning_rate_factor,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "head_learning_rate": head_learning_rate,
            "share_rows_with": share_rows_with,
            "private_layers": private_layers,
            "lora": lora,
        }
        self._is_loaded = False
        self.own_top: nn.ModuleDict | None = None
        self._own_encoder: Backbone | None = None
        self.reuse_head_with = reuse_head_with
        self.forward: Forward | None = None
        self.predict_forward: Forward | None = None
        self.task: Task | None = None
        self.run_of_all: Training | None = None
        self._predict_reader: Reader | None = None
        self._predict_batches: Iterator[Tensors] | None = None

    # Before training

    def build_forward(self, backbone: Backbone, task_head: Head) -> LossVariable:
        """Choose what is trained.

        Returns:
            What an optimizer's constructor takes.
        """
        self.forward = Forward(backbone, task_head)
        self.task = None
        self._begin_anew()
        return LossVariable(f"{self.name}.loss")

    def build_predict_forward(self, pred_backbone: Backbone, pred_head: Head) -> dict[str, TensorSpec]:
        """Choose what predicts; where there is something trained, its weights are taken, and stay shared.

        Returns:
            What `predict_one_batch` will give, by name.
        """
        self.predict_forward = Forward(pred_backbone, pred_head)
        self.own_top = None
        self._own_encoder = None
        return dict(pred_head.outputs_attr)

    def fit_reader(
        self, reader: Reader, phase: str = "train", *, max_steps: int | None = None
    ) -> Iterator[Tensors]:
        """Give the task its data.

        Args:
            reader: after `load_data` and `register_with`.
            phase: 'train' or 'predict'.
            max_steps: the most steps that the training may have; None for no limit.

        Returns:
            The batches: for training as many as `num_epochs` of `load_data` makes (without end where
            it is None), for prediction those of the file, in order.

        Raises:
            PalmError: a call is missing; names it.
            WiringError: reader, backbone and head do not fit together.
            TrainingError: fewer rows than one batch.
        """
        checked_phase(phase)
        raise_any(type_problems(Reader, "a reader of palm.reader", reader=reader))
        if phase == "predict":
            return self._fit_for_prediction(reader)
        self._limit_steps(max_steps)
        task = self.fit(reader, seed_of([reader]))
        plan = self._plan("fit_reader").over_own_epochs({task.name: reader.num_epochs})
        task.expected_steps = plan.total_steps
        batches = (batch for _, batch in self._batches([task]))
        is_endless = reader.num_epochs is None and max_steps is None
        return batches if is_endless else islice(batches, task.expected_steps)

    def fit(self, reader: Reader, seed: int) -> Task:
        """The task with its training data, for a run with this seed."""
        forward = self._forwards("fit_reader")[self.name]
        task = task_of(self.name, reader, forward, self.of_task)
        if self.task is not None:  # like the head, they go on where they are
            task.top = self.task.top
            task.adapters = self.task.adapters
        # Rows that `load_data` has encoded already: a file is read once.
        task.open_stream(seed, reader.loaded_rows)
        self.task = task
        self._begin_anew()
        logger.info("ok!")
        return task

    def set_as_aux(self) -> None:
        """Make the task an auxiliary one: it helps, and ends nothing."""
        self._set("is_target", False)

    # Training

    def get_one_batch(self, phase: str = "train") -> Tensors:
        """The next batch: of training, or of the file to predict.

        Raises:
            PalmError: a call is missing; names it.
            StopIteration: the file to predict has no more.
        """
        checked_phase(phase)
        if phase == "train":
            return self._next_draw()[1]
        call = "fit_reader(reader, phase='predict')"
        return next(needed(self._predict_batches, self.name, call, "get_one_batch"))

    def train_one_step(self, batch: Tensors) -> Tensors:
        """One update on a batch.

        Returns:
            `{"<name>.loss": float32[1]}`.

        Raises:
            PalmError: a call is missing; names it.
            TrainingError: the loss is not a number.
        """
        raise_any(type_problems(Mapping, "a batch of the reader", batch=batch or None))
        self._training("train_one_step")
        return self._train_on(self.fitted_task("train_one_step"), batch)

    # Prediction

    def load_predict_model(self, model_path: str | Path, convert: bool = False) -> None:  # noqa: ARG002
        """Predict with the weights of a saved model, or of pretrained ones.

        Args:
            model_path: a directory that `save_type` 'predict' or a `Controller` wrote; of pretrained
                weights, only the backbone is filled.
            convert: accepted; a packed model is recognised by itself.

        Raises:
            PalmError: `build_predict_forward` was not called.
            StorageError: no weights there, or weights of another shape.
        """
        path = Path(model_path)
        raise_any(path_problems(model_path=model_path))
        forward = self.tied("load_predict_model")
        self._is_loaded = True
        if is_sealed(path):
            verify(path, (WEIGHTS,))
            load_weights(forward.backbone, forward.head, path)
        else:
            load_pretrain(forward.backbone, pretrained_directory(path))
            logger.info("%s: the head keeps the weights it has", self.name)

    def predict(
        self, output_dir: str | Path | None = None, print_steps: int = 1000
    ) -> Sequence[Any] | Predictions:
        """Predict the file of the reader that was fitted with phase 'predict'.

        Args:
            output_dir: where prediction files are written; None for none.
            print_steps: a log line every so many batches.

        Returns:
            All results: a list, or, where they are written, what reads them from the files.

        Raises:
            PalmError: a call is missing; names it.
            DataError: a row that cannot be read, with its file and line.
            StorageError: `output_dir` cannot be written.
        """
        model = self.predictor("predict")
        if self._run is None and self.run_of_all is None and self._checkpoint is None and not self._is_loaded:
            logger.warning("%s: predicts with weights that were neither trained nor loaded here", self.name)
        if has_own_results(head := model.head):  # one that does as in PaddlePALM 2.x with what it gives
            head.reset()
            for batch in self.predict_batches():
                outputs = self.predict_one_batch(batch)
                head.batch_postprocess({name: value.numpy() for name, value in outputs.items()})
            wanted = head.epoch_inputs_attrs.get("reader")
            post_inputs = {"reader": model.reader.get_epoch_outputs()} if wanted else {}
            folder = output_dir if is_first() else None
            results: Sequence[Any] = head.epoch_postprocess(post_inputs, output_dir=folder)
            return results
        with self.averaged():
            # All ranks compute and the first one writes, for which the others keep step with it.
            records = chain.from_iterable(logged_steps(model, print_steps))
            return from_first(lambda: delivered(model.reader, records, output_dir), lambda: exhaust(records))

    def reset_buffer(self) -> None:
        """Make the head that predicts forget the results that it has kept.

        Raises:
            PalmError: `build_predict_forward` was not called.
        """
        self._predict_forwards("reset_buffer")[self.name].head.reset()

    def predict_one_batch(self, batch: Tensors) -> Tensors:
        """The outputs of the head for a batch, on the CPU.

        Raises:
            PalmError: `build_predict_forward` was not called.
        """
        forward = self.tied("predict_one_batch")
        with self.averaged():
            return predicted(forward.backbone, forward.head, batch, self._precision)

    def evaluate(self, dev_file: str | Path, metrics: Sequence[str] | None = None) -> dict[str, float]:
        """Evaluate the predictions of a file with labels; training is not affected.

        Takes and returns what `InferenceModel.evaluate` does.

        Raises:
            PalmError: `fit_reader` was not called, a metric does not fit, or a row cannot be used.
        """
        if self.task is None:
            model = self.predictor("evaluate")
        else:
            trained = Forward(self._trained_encoder(), self.task.head)
            model = self._model(self.task.reader, trained, self.task.rows_per_prediction)
        with self.averaged():
            return model.evaluate(dev_file, metrics)

    def tied(self, caller: str) -> Forward:
        """Return the encoder and head that predict: trained weights, evaluation mode, on the device."""
        forward = self._predict_forwards(caller)[self.name]
        encoder = forward.backbone
        if count := self.of_task["private_layers"]:
            self.own_top = self.own_top or encoder.copied_top(count)
            encoder = encoder.with_top(self.own_top)
        if (lora := self.of_task["lora"]) is not None:
            # Kept, since its changed layers take weights that are loaded.
            own = self._own_encoder or adapters_of(self.name, lora, encoder).merged_into(encoder)
            encoder = self._own_encoder = own
        if self.forward is not None:
            # At every call: since the last one, build_forward or a new run may have put others in place.
            share_parameters(self._trained_encoder(), encoder)
            share_parameters(self.forward.head, forward.head)
        for module in (encoder, forward.head):
            module.to(device_of(use_gpu=True)).eval()
        return Forward(encoder, forward.head)

    def _trained_encoder(self) -> Backbone:
        """Return the trained encoder below the head, with the task's own layers once there is a run."""
        backbone = self._forwards("evaluate")[self.name].backbone
        if self.task is None:
            return backbone
        if self.task.adapters is not None:
            with self.averaged():
                return self.task.adapters.merged_into(backbone)
        return backbone.with_top(self.task.top) if self.task.top else backbone

    def predictor(self, caller: str) -> InferenceModel:
        """The model that predicts."""
        forward = self.tied(caller)
        call = "fit_reader(reader, phase='predict')"
        reader = needed(self._predict_reader, self.name, call, caller)
        return self._model(reader, forward, reader.loaded.batch_size)

    def _model(self, reader: Reader, forward: Forward, batch_size: int) -> InferenceModel:
        return InferenceModel(
            self.name,
            reader,
            forward.backbone,
            forward.head,
            batch_size=batch_size,
            precision=self._precision,
        )

    def averaged(self) -> AbstractContextManager[Any]:
        return super().averaged() if self.run_of_all is None else self.run_of_all.averaged()

    def _fit_for_prediction(self, reader: Reader) -> Iterator[Tensors]:
        forward = self._predict_forwards("fit_reader")[self.name]
        task = task_of(self.name, reader, forward, self.of_task, for_train=False)
        self._predict_reader = reader
        self._predict_batches = prediction_batches(
            self.name, reader, reader.loaded.path, task.rows_per_prediction
        )
        return self._predict_batches

    def predict_batches(self) -> Iterator[Tensors]:
        """The batches of the file to predict, from its beginning."""
        call = "fit_reader(reader, phase='predict')"
        return self._fit_for_prediction(needed(self._predict_reader, self.name, call, "predict_batches"))

    # What it is and how far it has come

    @property
    def mix_ratio(self) -> float:
        """The relative frequency of the task among several; before `fit_reader`, the one that it will get."""
        ratio: float = self.of_task["mix_ratio"] if self.task is None else self.task.mix_ratio
        return ratio

    @mix_ratio.setter
    def mix_ratio(self, value: float) -> None:
        self._set("mix_ratio", value)

    def _set(self, setting: str, value: Any) -> None:
        """A setting of the task, and of the one that the next `fit_reader` makes."""
        self.of_task[setting] = value
        if self.task is not None:
            setattr(self.task, setting, value)

    @property
    def num_examples(self) -> int:
        """Rows of training data."""
        return self.fitted_task("num_examples").reader.num_examples

    @property
    def num_epochs(self) -> int | None:
        """Passes over the training data, as given to `load_data`."""
        return self.fitted_task("num_epochs").reader.num_epochs

    @property
    def steps_pur_epoch(self) -> int:
        """Full batches in one pass over the training data."""
        return self.fitted_task("steps_pur_epoch").steps_per_epoch

    @property
    def cur_train_step(self) -> int:
        """Steps of this task so far."""
        return 0 if self.task is None else self.task.step

    @property
    def cur_train_epoch(self) -> int:
        """The epoch, from 0, of its last step."""
        return self.fitted_task("cur_train_epoch").epoch

    def fitted_task(self, caller: str) -> Task:
        """The task with its training data.

        Raises:
            PalmError: `fit_reader` was not called.
        """
        return self._tasks(caller)[0]

    def _members(self) -> list[Trainer]:
        return [self]
