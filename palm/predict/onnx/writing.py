"""Writing graphs as ONNX files, and opening sessions of onnxruntime for them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from palm.core.errors import PalmError
from palm.core.io import wrap_write_errors
from palm.predict.onnx.graph import Graph

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


def write_graph(graph: Graph, file: Path, threads: int = 0) -> Any:
    """Write a graph for batches of any size and length.

    Args:
        graph: the graph, in evaluation mode.
        file: the file to write.
        threads: threads of the session; 0 for one per core.

    Returns:
        A session of onnxruntime on the CPU.

    Raises:
        PalmError: the graph cannot be exported.
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
    session = session_of(file, threads)
    fixed = [f"{one.name} {one.shape}" for one in session.get_inputs() if set(map(type, one.shape)) != {str}]
    if fixed:
        raise PalmError(
            f"cannot export {graph.title} to ONNX for any batch and length: {', '.join(fixed)} is fixed; "
            "the code must read sizes from `.shape`, not `len`"
        )
    return session


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
