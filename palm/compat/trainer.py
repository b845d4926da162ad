"""`Trainer`: one task from its parts to its predictions, with the names of PaddlePALM 2.x."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

from palm.backbone import Backbone
from palm.compat.base import Forward, TrainerBase, own_steps, require, seed_of
from palm.compat.conventions import Results, checked_phase, own_results
from palm.compat.reader import base_reader
from palm.compat.reader.base_reader import LoadingReader, loading
from palm.core.component import number_problems, path_problems, raise_any, type_problems
from palm.core.device import device_of
from palm.core.errors import ConfigError, PalmError, WiringError
from palm.core.group import broadcast, exhaust, is_main_process, world_size
from palm.core.io import is_sealed
from palm.core.logging import logger
from palm.core.saved import Tensors, TensorSpec
from palm.paradigm import Head
from palm.predict.inference import InferenceModel, JointModel
from palm.pretrained.loading import load_pretrain, pretrained_directory
from palm.reader import Predictions, Reader, Record
from palm.reader.cache import training_rows
from palm.train.loop import Training
from palm.train.model import share_parameters
from palm.train.model_paths import name_problem
from palm.train.task import Task, TaskState, wiring_problems
from palm.train.task_model import Work, encoded

FIT_TO_PREDICT = "fit_reader(reader, phase='predict')"
"""The call that sets the file to predict, for messages."""


class Trainer(TrainerBase):
    """Trains and predicts one task, by itself or in a `MultiHeadTrainer`.

    Args:
        name: the task's name, which is used in logs and checkpoints.
        mix_ratio: how often the task is drawn, relative to the others.
        reuse_head_with: the name of the trainer whose head this one shares.
        precision: compute in 'fp32' or 'bf16'; 'auto' is bf16 on devices with fast bfloat16.

    Raises:
        ConfigError: an argument is out of range.
    """

    fitting_call = "fit_reader(reader)"

    def __init__(
        self,
        name: str,
        mix_ratio: float = 1.0,
        reuse_head_with: str | None = None,
        *,
        precision: str = "auto",
    ) -> None:
        least = "a number, 0 or more"
        problems = number_problems(least, lambda value: 0 <= value < math.inf, mix_ratio=mix_ratio)
        problems += [problem for problem in [name_problem(name)] if problem]
        raise_any(problems)
        super().__init__(name, precision)
        self._task_settings: dict[str, Any] = {"mix_ratio": mix_ratio, "is_target": True}
        self._is_loaded = False
        self.reuse_head_with = reuse_head_with
        self.forward: Forward | None = None
        self.predict_forward: Forward | None = None
        self.task: TaskState | None = None
        self.joint_run: Training | None = None
        self._predict_reader: LoadingReader | None = None
        self._predict_batches: Iterator[Tensors] | None = None

    # Before training

    def build_forward(self, backbone: Backbone, task_head: Head) -> str:
        """Set the encoder and the head to train.

        Returns:
            The name of the loss, `<name>.loss`, an argument of an optimizer's constructor.
        """
        self.forward = Forward(backbone, task_head)
        self.task = None
        self._reset_run()
        return f"{self.name}.loss"

    def build_predict_forward(self, pred_backbone: Backbone, pred_head: Head) -> dict[str, TensorSpec]:
        """Set the encoder and the head to predict with; they share the weights of those that are trained.

        Returns:
            The specs of the outputs of `predict_one_batch`.
        """
        self.predict_forward = Forward(pred_backbone, pred_head)
        return dict(pred_head.outputs_attr)

    def fit_reader(self, reader: LoadingReader, phase: str = "train") -> Iterator[Tensors]:
        """Set the data of the task.

        Args:
            reader: after `load_data` and `register_with`.
            phase: 'train' or 'predict'.

        Returns:
            The batches: for training, `num_epochs` of `load_data` passes (endless if None); for prediction,
            those of the file, in order.

        Raises:
            PalmError: an earlier call is missing; with the call.
            WiringError: reader, backbone and head do not fit together.
            TrainingError: there are fewer rows than one batch needs.
        """
        checked_phase(phase)
        raise_any(type_problems(LoadingReader, "a reader of palm.compat.reader", reader=reader))
        if phase == "predict":
            return self._fit_for_prediction(reader)
        task = self.fit(reader, seed_of([reader]))
        task.expected_steps = own_steps(task)
        batches = (batch for _, batch in self._batches([task]))
        return batches if reader.num_epochs is None else islice(batches, task.expected_steps)

    def fit(self, reader: LoadingReader, seed: int) -> TaskState:
        """Create the task with its training data, for a run with this seed."""
        task = self._task(reader, self._forwards("fit_reader")[self.name])
        # Rows that `load_data` has encoded are reused, so a file is read only once.
        rows = reader.loaded_rows
        if rows is None:
            rows = training_rows(reader, reader.loaded.path, None)
        self.task = TaskState(task, rows, seed)
        self._reset_run()
        logger.info("ok!")
        return self.task

    def _task(self, reader: LoadingReader, forward: Forward, for_train: bool = True) -> Task:
        """Return the task of a reader, encoder and head, without its data.

        Raises:
            PalmError: `load_data` or `register_with` was not called.
            ConfigError: the batch size is not a multiple of the number of devices, or a setting is out of
                range.
            WiringError: reader, backbone and head do not fit together.
        """
        loaded = reader.loaded
        if reader.get_registered_backbone() is None:
            raise PalmError(f"trainer {self.name!r}: call register_with(backbone) on its reader first")
        batch_size = loaded.batch_size
        if for_train:
            # A reader's batch_size is the total of all devices, as in PaddlePALM 2.x.
            if batch_size % world_size():
                raise ConfigError(
                    f"load_data: batch_size {batch_size} should be a multiple of the {world_size()} devices"
                )
            batch_size //= world_size()
        if isinstance(reader, base_reader.Reader):
            # A reader of 2.x returns only requested tensors: here, those that the encoder does not compute.
            for tensor in {**forward.head.targets_attr, **forward.head.inputs_attr}:
                if tensor not in forward.backbone.outputs_attr:
                    reader.require_attr(tensor)
        task = Task(
            self.name,
            reader,
            forward.head,
            batch_size=batch_size,
            train_file=loaded.path,
            shuffle=loaded.shuffle,
            **self._task_settings,
        )
        if problems := wiring_problems(task, forward.backbone, for_train):
            raise WiringError("\n".join(problems))
        return task

    def set_as_aux(self) -> None:
        """Make the task an auxiliary, whose progress does not affect the end of training."""
        self._set("is_target", False)

    # Training

    def get_one_batch(self, phase: str = "train") -> Tensors:
        """Return the next batch for training, or of the file to predict.

        Raises:
            PalmError: an earlier call is missing; with the call.
            StopIteration: the file to predict has no more batches.
        """
        checked_phase(phase)
        if phase == "train":
            return self._next_draw()[1]
        return next(require(self._predict_batches, self.name, FIT_TO_PREDICT, "get_one_batch"))

    def train_one_step(self, batch: Tensors) -> Tensors:
        """Update the weights on a batch.

        Returns:
            `{"<name>.loss": float32[1]}`.

        Raises:
            PalmError: an earlier call is missing; with the call.
            TrainingError: the loss is not a number.
        """
        raise_any(type_problems(Mapping, "a batch of the reader", batch=batch or None))
        self._training("train_one_step")
        return self._train_on(self.fitted_task("train_one_step"), batch)

    # Prediction

    def load_predict_model(self, model_path: str | Path, convert: bool = False) -> None:  # noqa: ARG002
        """Load the weights to predict with, from a saved model or a pretrained encoder.

        Args:
            model_path: a directory written with `save_type` 'predict' or by a `Controller`; from pretrained
                weights, only the backbone is loaded.
            convert: accepted but ignored; packed models are detected automatically.

        Raises:
            PalmError: `build_predict_forward` was not called.
            StorageError: the directory has no weights, or weights of another shape.
        """
        path = Path(model_path)
        raise_any(path_problems(model_path=model_path))
        forward = self.tied("load_predict_model")
        self._is_loaded = True
        if is_sealed(path):
            self._load_trained({self.name: forward}, path)
        else:
            load_pretrain(forward.backbone, pretrained_directory(path))
            logger.info("%s: the head keeps its weights", self.name)

    def predict(
        self, output_dir: str | Path | None = None, print_steps: int = 1000
    ) -> Sequence[Any] | Predictions:
        """Predict the file of the reader that was fitted with phase 'predict'.

        Args:
            output_dir: where to write prediction files; None to write no files.
            print_steps: number of batches between log lines.

        Returns:
            All results: a list, or, if they are written, an object that reads them from the files.

        Raises:
            PalmError: an earlier call is missing; with the call.
            DataError: a row cannot be read; with its file and line.
            StorageError: `output_dir` cannot be written.
        """
        model = self.predictor("predict")
        if self._run is None and self.joint_run is None and self._checkpoint is None and not self._is_loaded:
            logger.warning("%s: predicting with weights that were neither trained nor loaded here", self.name)
        if (
            head := own_results(model.head)
        ) is not None:  # it processes its results itself, as in PaddlePALM 2.x
            head.reset()
            for batch in self.predict_batches():
                outputs = self.predict_one_batch(batch)
                head.batch_postprocess({name: value.numpy() for name, value in outputs.items()})
            wanted = head.epoch_inputs_attrs.get("reader")
            post_inputs = {"reader": loading(model.reader).get_epoch_outputs()} if wanted else {}
            folder = output_dir if is_main_process() else None
            results: Sequence[Any] = head.epoch_postprocess(post_inputs, output_dir=folder)
            return results
        with self.averaged():
            # All ranks compute, but only the first writes, so the others iterate along with it.
            steps = JointModel({self.name: model}).steps({self.name: logged_work(model, print_steps)})
            records = (each.record for _, predictions in steps for each in predictions)
            return broadcast(lambda: results_of(model.reader, records, output_dir), lambda: exhaust(records))

    def reset_buffer(self) -> None:
        """Clear the results that the prediction head has collected.

        Raises:
            PalmError: `build_predict_forward` was not called.
        """
        head = self._predict_forwards("reset_buffer")[self.name].head
        if isinstance(head, Results):
            head.reset()

    def predict_one_batch(self, batch: Tensors) -> Tensors:
        """Return the outputs of the head for a batch, on the CPU.

        Raises:
            PalmError: an earlier call is missing; with the call.
        """
        with self.averaged():
            return self.predictor("predict_one_batch").outputs(batch)

    def tied(self, caller: str) -> Forward:
        """Return the encoder and head to predict with, with trained weights, in evaluation mode."""
        forward = self._predict_forwards(caller)[self.name]
        if self.forward is not None:
            # Repeated at every call, because build_forward or a new run may have replaced the modules.
            share_parameters(self.forward.backbone, forward.backbone)
            share_parameters(self.forward.head, forward.head)
        for module in (forward.backbone, forward.head):
            module.to(device_of(use_gpu=True)).eval()
        return forward

    def predictor(self, caller: str) -> InferenceModel:
        """Return the model to predict with."""
        forward = self.tied(caller)
        reader = require(self._predict_reader, self.name, FIT_TO_PREDICT, caller)
        sizes = {"batch_size": reader.loaded.batch_size, "precision": self._precision}
        return InferenceModel(self.name, reader, forward.backbone, forward.head, **sizes)

    def averaged(self) -> AbstractContextManager[Any]:
        return super().averaged() if self.joint_run is None else self.joint_run.averaged()

    def _fit_for_prediction(self, reader: LoadingReader) -> Iterator[Tensors]:
        self._task(reader, self._predict_forwards("fit_reader")[self.name], for_train=False)
        self._predict_reader = reader
        self._predict_batches = self.predict_batches()
        return self._predict_batches

    def predict_batches(self) -> Iterator[Tensors]:
        """Yield the batches of the file to predict, in its order, with the masks that `predict` draws."""
        model = self.predictor("predict_batches")
        size = model.batch_size
        for chunk in encoded(model.reader, examples_of(model.reader)):
            for start in range(0, len(chunk.rows), size):
                yield model.batch(chunk, range(start, min(start + size, len(chunk.rows))))

    # Properties and progress

    @property
    def mix_ratio(self) -> float:
        """The relative frequency at which the task is drawn among several."""
        ratio: float = self._task_settings["mix_ratio"]
        return ratio

    @mix_ratio.setter
    def mix_ratio(self, value: float) -> None:
        self._set("mix_ratio", value)

    def _set(self, setting: str, value: Any) -> None:
        """Set a setting of the current task, and of tasks that later calls of `fit_reader` create."""
        self._task_settings[setting] = value
        if self.task is not None:
            setattr(self.task.task, setting, value)

    @property
    def num_examples(self) -> int:
        """Number of rows of training data."""
        return loading(self.fitted_task("num_examples").reader).num_examples

    @property
    def num_epochs(self) -> int | None:
        """Number of passes over the training data, as given to `load_data`."""
        return loading(self.fitted_task("num_epochs").reader).num_epochs

    @property
    def steps_pur_epoch(self) -> int:
        """Number of full batches in one pass over the training data."""
        return self.fitted_task("steps_pur_epoch").steps_per_epoch

    @property
    def cur_train_step(self) -> int:
        """Number of steps of this task so far."""
        return 0 if self.task is None else self.task.step

    @property
    def cur_train_epoch(self) -> int:
        """The epoch of its last step, from 0."""
        return self.fitted_task("cur_train_epoch").epoch

    def fitted_task(self, caller: str) -> TaskState:
        """Return the task with its training data.

        Raises:
            PalmError: `fit_reader` was not called.
        """
        return self._tasks(caller)[0]

    def _members(self) -> list[Trainer]:
        return [self]


# Prediction as in PaddlePALM 2.x: its log lines, its forms of results, its messages about files


def examples_of(reader: Reader) -> Iterator[Any]:
    """Read the examples of a reader's file without targets."""
    return reader.read(loading(reader).loaded.path, with_targets=False)


def logged_work(model: InferenceModel, every: int, heading: str = "") -> Work:
    """Predict the file of the model's reader with outputs that the caller computes.

    A line is logged every `every` batches.
    """
    since = time.perf_counter()
    batches = 0
    reader = loading(model.reader)
    work = model.work(encoded(reader, examples_of(reader)), together=True)
    for made in work:
        while not isinstance(made, list):
            made = work.send((yield made))
            batches += 1
            if every > 0 and batches % every == 0:
                total = math.ceil(reader.num_examples / model.batch_size)
                now = time.perf_counter()
                speed = every / max(now - since, 1e-9)
                logger.info("%sbatch %d/%d, speed: %.2f steps/s", heading, batches, total, speed)
                since = now
        yield made


def results_of(
    reader: Reader, records: Iterable[Record], output_dir: str | Path | None
) -> Sequence[Any] | Predictions:
    """Return records in the form of 2.x, in memory or written to files."""
    results = loading(reader).results(records)
    if output_dir is None:
        return loading(reader).in_memory(results)
    folder = Path(output_dir)
    written = reader.write(results, folder)
    if isinstance(written, Mapping):
        logger.info("Writing predictions to: %s", folder / "predictions.json")
        logger.info("Writing nbest to: %s", folder / "nbest_predictions.json")
    else:
        logger.info("Predictions saved at %s", folder / "predictions.json")
    return written
