"""Prediction with ONNX Runtime."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from palm.backbone import Backbone
from palm.backbone.base import TokenEncoder
from palm.backbone.packing import Padded
from palm.core.cache import Cache
from palm.core.errors import ConfigError, PalmError
from palm.core.io import checksum, remove, wrap_write_errors
from palm.core.layers import generator
from palm.core.logging import logger
from palm.core.saved import Specs, Tensors, as_declared, tensor_digests
from palm.core.version import __version__
from palm.paradigm import Head
from palm.reader import Reader
from palm.train.model import outputs_of

INPUTS = {"token_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}
"""Our name -> the input's name in the graph, as in Hugging Face models; other inputs keep our name."""

COMPUTED = ("position_ids", "task_ids", "word_mask")
"""Inputs that a graph can compute by itself, so callers need not provide them."""


class Graph(nn.Module):
    """An encoder with heads, from a reader's batch to the outputs of the heads.

    Args:
        backbone: the encoder that all heads share.
        heads: task -> its head.
        specs: the tensors in batches (see `batch_specs`).
        outputs: name in the graph -> task and output of its head.
        task_id: id for ERNIE's task embedding; the graph then computes all of `COMPUTED`. None for a graph
            that reads them.

    Attributes:
        inputs: name in a batch -> spec, of all inputs; all of them are int64 in the graph.

    Raises:
        PalmError: the backbone or a head reads an input that is not in `specs` or not of integers.
    """

    def __init__(
        self,
        backbone: Backbone,
        heads: Mapping[str, Head],
        specs: Specs,
        outputs: Mapping[str, tuple[str, str]],
        task_id: int | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = nn.ModuleList(heads.values())
        self.by_task = dict(heads)
        self.outputs = outputs
        self.task_id = task_id
        read = [name for head in heads.values() for name in head.inputs_attr]
        self._features = [name for name in backbone.outputs_attr if name in read]
        others = [name for name in read if name not in self._features]
        needed = dict.fromkeys([*backbone.inputs_attr, *others])
        if task_id is not None:
            needed = dict.fromkeys(["token_ids", "input_mask", *(n for n in needed if n not in COMPUTED)])
        for name in needed:
            if name not in specs or specs[name].dtype not in (torch.long, torch.bool):
                raise PalmError(f"{self.title}: the input {name!r} is not supported in an ONNX graph")
        self.inputs = {name: specs[name] for name in needed}

    @property
    def title(self) -> str:
        """Class names of the encoder and the heads, for messages."""
        return ", ".join(dict.fromkeys(type(part).__name__ for part in (self.backbone, *self.heads)))

    @property
    def shapes(self) -> dict[str, tuple[str | int, ...]]:
        """Shapes of all inputs by their names in the graph."""
        return {INPUTS.get(name, name): spec.shape for name, spec in self.inputs.items()}

    def forward(self, inputs: Tensors) -> tuple[Tensor, ...]:
        """Compute the outputs in the order of `outputs`.

        Args:
            inputs: tensors with the names and shapes of `shapes`, int64.
        """
        batch = {name: inputs[INPUTS.get(name, name)].to(spec.dtype) for name, spec in self.inputs.items()}
        if self.task_id is not None:
            ids = batch["token_ids"]
            mask = batch["input_mask"]
            batch["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand_as(ids) * mask
            batch["task_ids"] = torch.full_like(ids, self.task_id)
            batch["word_mask"] = mask  # its values only matter for decoding
        features = batch | padded_features(self.backbone, batch, self._features)
        outputs = {}
        for task, head in self.by_task.items():
            read = {name: features[name] for name in head.inputs_attr}
            outputs[task] = head(as_declared(read, head.inputs_attr))
        return tuple(outputs[task][name] for task, name in self.outputs.values())

    def arrays(self, batch: Tensors) -> dict[str, npt.NDArray[np.int64]]:
        """Return the graph's inputs for a batch; inputs that only other tasks have are empty or zero."""
        given = [(spec.shape, batch[name].shape) for name, spec in self.inputs.items() if name in batch]
        # The graph may read a size that inputs share, such as the length of rows, from any of them.
        sizes = {size: number for shape, own in given for size, number in zip(shape, own, strict=True)}
        missing = {
            name: torch.zeros([sizes.get(size, len(spec.shape) - 1) for size in spec.shape])
            for name, spec in self.inputs.items()
        }
        return {INPUTS.get(name, name): (missing | batch)[name].long().numpy() for name in self.inputs}

    @torch.no_grad()
    def difference(self, session: Any, task: str, batch: Tensors) -> float:
        """Return the largest absolute difference between a session's outputs and PyTorch's, without padding.

        Args:
            session: a session of onnxruntime for this graph.
            task: the task whose outputs are compared.
            batch: a batch of the task's reader.
        """
        head = self.by_task[task]
        expected = outputs_of(self.backbone.eval(), head.eval(), batch)
        names = {theirs: ours for theirs, (owner, ours) in self.outputs.items() if owner == task}
        arrays = session.run(list(names), self.arrays(batch))
        mask = batch["input_mask"]
        largest = 0.0
        for ours, array in zip(names.values(), arrays, strict=True):
            if array.shape != expected[ours].shape:
                return float("inf")
            errors = (expected[ours].double() - torch.from_numpy(array).double()).abs()
            largest = max(largest, float((errors[mask] if errors.shape[:2] == mask.shape else errors).max()))
        return largest


def padded_features(backbone: Backbone, batch: Tensors, wanted: Sequence[str]) -> Tensors:
    """Compute `backbone(batch, wanted)` without packing, which depends on values."""
    if isinstance(backbone, TokenEncoder):
        return backbone.features(batch, Padded.of(batch["input_mask"]), wanted)
    features: Tensors = backbone(as_declared(batch, backbone.inputs_attr), wanted)
    return features


def batch_specs(*readers: Reader) -> Specs:
    """Return the specs of these readers' tensors, except those that `random_batch` does not have."""
    known = random_batch(readers[0], 1)
    return {name: spec for reader in readers for name, spec in reader.outputs_attr.items() if name in known}


def random_batch(reader: Reader, num_rows: int) -> Tensors:
    """Make a batch of random tokens and lengths, with every tensor that palm's readers produce."""
    draw = generator(0, "export")
    shape = (num_rows, reader.settings["max_seq_len"])
    lengths = draw.integers(1, shape[1] + 1, (num_rows, 1))
    mask = torch.from_numpy(np.arange(shape[1]) < lengths)
    return {
        "token_ids": torch.from_numpy(draw.integers(reader.vocab_size, size=shape)),
        "position_ids": torch.arange(shape[1]) * mask,
        "segment_ids": torch.from_numpy(np.arange(shape[1]) * 2 > lengths) * mask.long(),
        "task_ids": reader.settings.get("task_id", 0) * mask.long(),
        "input_mask": mask,
        "word_mask": mask,
        "word_starts": torch.arange(1, shape[1] // 2 + 1) * mask[:, 1 : shape[1] // 2 + 1],
        "mask_pos": torch.arange(num_rows) * shape[1],
        "group_rows": torch.arange(num_rows)[:, None],
    }


FILE = "model.onnx"

PRECISIONS = {"auto": "fp32", "fp32": "fp32", "int8": "int8"}
"""Value of `precision` -> the precision of the computation."""

TOLERANCE = 1e-4
"""Maximum difference between an output and torch's, before weights are quantized."""


class OnnxEngine:
    """An engine that computes the outputs of heads on one encoder with onnxruntime on the CPU.

    Args:
        backbone: the encoder.
        tasks: task -> the reader of its batches, and its head.
        precision: 'fp32' (the same as 'auto'), or 'int8' for 8-bit weights and activations that are quantized
            to 8 bits per batch.

    Attributes:
        about: a description of precision, version and device.

    Raises:
        ConfigError: an unknown precision.
        PalmError: the extra `onnx` is not installed, or backbone or head cannot be exported.
    """

    def __init__(
        self,
        backbone: Backbone,
        tasks: Mapping[str, tuple[Reader, Head]],
        precision: str,
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(
                f"precision with engine 'onnx' should be one of {', '.join(PRECISIONS)}, not {precision!r}"
            )
        require_onnx("engine 'onnx'")
        heads = {task: head for task, (_, head) in tasks.items()}
        readers = [reader for reader, _ in tasks.values()]
        # Numbers, because names of tasks may have any characters.
        outputs = {
            f"{number}.{name}": (task, name)
            for number, (task, head) in enumerate(heads.items())
            for name in head.outputs_attr
        }
        self.graph = Graph(backbone, heads, batch_specs(*readers), outputs).eval()
        version = importlib.metadata.version("onnxruntime")
        self.about = f"{PRECISIONS[precision]} by onnxruntime {version} on cpu"
        # Eight rows of different lengths, so a graph with a wrong constant size computes another result.
        rows = random_batch(readers[0], num_rows=8)
        make = partial(_make, self.graph, rows, PRECISIONS[precision])
        key = key_of_graph(self.graph, precision)
        file = Cache.of_anyone().file(key, FILE, "an ONNX graph", make)
        self.session = session_of(file, torch.get_num_threads())

    def shares(self, batch: Tensors, other: Tensors) -> bool:
        """Check whether the batches of two tasks have equal inputs of the graph, so one run computes both."""
        return all(torch.equal(batch[n], other[n]) for n in self.graph.inputs if n in batch and n in other)

    def __call__(self, batches: Mapping[str, Tensors]) -> dict[str, Tensors]:
        """Compute the outputs of tasks, as `palm.train.model.outputs_of` within rounding, from their batches,
        which are equal where several have the same input."""
        names = {name: place for name, place in self.graph.outputs.items() if place[0] in batches}
        batch = {name: value for each in batches.values() for name, value in each.items()}
        arrays = self.session.run(list(names), self.graph.arrays(batch))
        found: dict[str, Tensors] = {task: {} for task in batches}
        for (task, name), array in zip(names.values(), arrays, strict=True):
            found[task][name] = torch.from_numpy(array)
        return found


def key_of_graph(graph: Graph, precision: str) -> str:
    """Return a digest (32 hexadecimal digits) of weights, settings, code and versions of a graph."""
    parts = (graph.backbone, *graph.heads)
    about = {
        "weights": [tensor_digests(part.state_dict()) for part in parts],
        "components": [f"{type(part).__module__}.{type(part).__qualname__}" for part in parts],
        "settings": [part.settings for part in parts],
        "precision": precision,
        "code": sorted(checksum(file, "blake2b") for file in _own_files(parts)),
        "versions": [__version__, *(importlib.metadata.version(name) for name in ("torch", *NEEDED))],
    }
    return hashlib.blake2b(json.dumps(about, default=str).encode(), digest_size=16).hexdigest()


def _own_files(parts: Iterable[object]) -> set[Path]:
    """Return the source files of classes that no version covers: those of the user's program."""
    files = set()
    for kind in {kind for part in parts for kind in type(part).__mro__}:
        if kind.__module__.partition(".")[0] not in ("palm", "torch", "abc", "builtins"):
            with suppress(OSError, TypeError):  # a class of a notebook has no file
                files.add(Path(inspect.getfile(kind)))
    return files


def _make(graph: Graph, rows: Tensors, precision: str, file: Path) -> None:
    """Write a graph, compare it with torch on `rows`, and quantize it for int8."""
    logger.info("making an ONNX graph of %s", graph.title)
    exact = file if precision == "fp32" else file.with_name("exact.onnx")
    write_graph(graph, exact, dict.fromkeys(graph.by_task, rows))
    if precision == "int8":
        from onnxruntime.quantization import quantize_dynamic

        # Embedding tables are not quantized, since that saves no time.
        with quiet():
            quantize_dynamic(exact, file, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True)
        remove(exact)


OPSET = 20
"""The first opset (2023) with GELU as one operator; onnxruntime supports it since 1.17."""

NEEDED = ("onnx", "onnxscript", "onnxruntime")


def require_onnx(what: str) -> None:
    """Check that the extra `onnx` is installed.

    Args:
        what: subject of the error message.

    Raises:
        PalmError: it is not installed.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise PalmError(f"{what} needs {', '.join(missing)}; install them: pip install 'palm-torch[onnx]'")


def write_graph(
    graph: Graph, file: Path, batches: Mapping[str, Tensors], tolerance: float = TOLERANCE
) -> dict[str, float]:
    """Write a graph for batches of any size and length, and compare it with PyTorch.

    Args:
        graph: the graph, in evaluation mode.
        file: the file to write.
        batches: for each task a batch of its reader, on which it is compared.
        tolerance: the largest accepted absolute difference of any output at a real token.

    Returns:
        Task -> the largest difference.

    Raises:
        PalmError: the graph cannot be exported, or a difference is above the tolerance.
        StorageError: the file cannot be written.
    """
    try:
        program = _exported(graph)
    except torch.onnx.OnnxExporterError as error:
        raise PalmError(f"cannot export {graph.title} to ONNX: {error.__cause__ or error}") from error
    assert program is not None
    model = program.model_proto
    # The exporter stores the shapes of weights twice, as weights and as values. Programs that transpose a
    # weight, such as onnxruntime's quantize_dynamic, change only one of them and then report a conflict.
    weights = {weight.name for weight in model.graph.initializer}
    values = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(values)
    with wrap_write_errors(file), file.open("xb") as opened:
        opened.write(model.SerializeToString())
    session = session_of(file, torch.get_num_threads())
    fixed = [f"{one.name} {one.shape}" for one in session.get_inputs() if set(map(type, one.shape)) != {str}]
    if fixed:
        raise PalmError(
            f"cannot export {graph.title} to ONNX for any batch and length: {', '.join(fixed)} is fixed; "
            "the code must read sizes from `.shape`, not `len`"
        )
    return differences(graph, session, batches, tolerance)


def differences(
    graph: Graph, session: Any, batches: Mapping[str, Tensors], tolerance: float
) -> dict[str, float]:
    """Compare a session of onnxruntime with PyTorch; arguments, result and errors as for `write_graph`."""
    found = {task: graph.difference(session, task, batch) for task, batch in batches.items()}
    for task, difference in found.items():
        if not difference <= tolerance:  # also true for NaN
            raise PalmError(
                f"task {task!r}: the ONNX graph of {graph.title} differs from PyTorch by {difference:.1e} on "
                f"{len(batches[task]['token_ids'])} synthetic rows, more than the tolerance of "
                f"{tolerance:.1e}; use the model without ONNX"
            )
    return found


def _exported(graph: Graph) -> torch.onnx.ONNXProgram | None:
    from torch.export import Dim  # slow to import

    # The exporter treats sizes of 1 as constants, and equal sizes as the same dimension.
    free = dict.fromkeys(size for shape in graph.shapes.values() for size in shape if isinstance(size, str))
    sizes = {size: number for number, size in enumerate(free, start=2)}
    dimensions = {size: Dim(size) for size in sizes}
    example = {}
    dynamic = {}
    for name, shape in graph.shapes.items():
        numbers = [sizes[size] if isinstance(size, str) else size for size in shape]
        example[name] = torch.ones(numbers, dtype=torch.long)
        dynamic[name] = {place: dimensions[size] for place, size in enumerate(shape) if size in dimensions}
    if "mask_pos" in example:
        example["mask_pos"] = torch.arange(len(example["mask_pos"]))
    names = {"input_names": list(graph.shapes), "output_names": list(graph.outputs)}
    options: dict[str, Any] = {"dynamo": True, "opset_version": OPSET, "verbose": False, **names}
    inputs: dict[str, Any] = {"kwargs": {"inputs": example}, "dynamic_shapes": {"inputs": dynamic}}
    with quiet(), torch.no_grad():
        return torch.onnx.export(graph, (), **inputs, **options)


def session_of(file: Path, threads: int = 0) -> Any:
    """Open a session of onnxruntime on the CPU; 0 threads stands for one per core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of the exporter and the quantizer about their own internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "root")]
    before = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
