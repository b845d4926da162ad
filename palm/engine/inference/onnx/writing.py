"""Modules as ONNX files, and the sessions of onnxruntime that compute them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from palm.core.errors import PalmError
from palm.core.files.fs import writing

OPSET = 20
"""Of 2023, the first with GELU as one operator; onnxruntime reads it since 1.17."""

NEEDED = ("onnx", "onnxscript", "onnxruntime")


def require_onnx(what: str) -> None:
    """Nothing, where the extra `onnx` is installed.

    Args:
        what: needs it, as a sentence begins.

    Raises:
        PalmError: it is not.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise PalmError(f"{what} needs {', '.join(missing)}; install them: pip install 'palm-torch[onnx]'")


def write_graph(
    module: nn.Module,
    shapes: Mapping[str, Sequence[str | int]],
    output_names: Sequence[str],
    file: Path,
    name: str,
) -> None:
    """Write a module that takes a dictionary of int64 tensors as a graph of any sizes.

    Args:
        module: in evaluation mode.
        shapes: of its inputs; what is called alike in several shapes is one size.
        output_names: of the tensors that it gives.
        file: is written.
        name: of the module, for messages.

    Raises:
        PalmError: it cannot be a graph.
        StorageError: the file cannot be written.
    """
    from torch.export import Dim  # slow to import

    # Sizes of 1 would be taken for constants, equal ones for one and the same.
    free = dict.fromkeys(size for shape in shapes.values() for size in shape if isinstance(size, str))
    sizes = {size: number for number, size in enumerate(free, start=2)}
    dimensions = {size: Dim(size) for size in sizes}
    example = {
        field: torch.ones(
            [sizes[size] if isinstance(size, str) else size for size in shape], dtype=torch.long
        )
        for field, shape in shapes.items()
    }
    if "mask_pos" in example:
        example["mask_pos"] = torch.arange(len(example["mask_pos"]))
    dynamic = {
        field: {place: dimensions[size] for place, size in enumerate(shape) if size in dimensions}
        for field, shape in shapes.items()
    }
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (),
                kwargs={"inputs": example},
                dynamo=True,
                opset_version=OPSET,
                input_names=list(shapes),
                output_names=list(output_names),
                dynamic_shapes={"inputs": dynamic},
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise PalmError(f"{name} cannot become an ONNX graph: {error.__cause__ or error}") from error
    assert program is not None
    model = program.model_proto
    # The exporter tells the shapes of weights twice, as weights and as values. Programs that transpose a
    # weight, as onnxruntime's quantize_dynamic does, change the one and then find the other wrong.
    weights = {weight.name for weight in model.graph.initializer}
    told = [value for value in model.graph.value_info if value.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(told)
    with writing(file):
        file.write_bytes(model.SerializeToString())


def session_of(file: Path, threads: int = 0) -> Any:
    """A session of onnxruntime on the CPU.

    Args:
        file: the graph.
        threads: that compute; 0 for one a core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def check_sizes(session: Any, name: str) -> None:
    """Nothing, where no size of an input is fixed.

    Raises:
        PalmError: one is.
    """
    fixed = [f"{one.name} {one.shape}" for one in session.get_inputs() if set(map(type, one.shape)) != {str}]
    if fixed:
        raise PalmError(
            f"{name} cannot become an ONNX graph of any batch and length: {', '.join(fixed)} is "
            "fixed; sizes must be taken from `.shape`, not from `len`"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Without remarks of the exporter, and of what rounds weights, on their own insides."""
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
