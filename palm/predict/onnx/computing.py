"""The inference engine `onnx`: a model's ONNX graph, made once and cached, and its onnxruntime session."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from palm.backbone import Backbone
from palm.core.cache import Cache
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.io import checksum, remove
from palm.core.logging import logger
from palm.core.saved import tensor_digests
from palm.core.tensor_specs import Tensors
from palm.core.version import __version__
from palm.paradigm import Head
from palm.predict.onnx.graph import Graph, batch_specs, random_batch
from palm.predict.onnx.writing import (
    NEEDED,
    quiet,
    require_onnx,
    session_of,
    write_graph,
)
from palm.reader import Reader

FILE = "model.onnx"

PRECISIONS = {"auto": "fp32", "fp32": "fp32", "int8": "int8"}
"""Value of `precision` -> the precision of the computation."""

TOLERANCE = 1e-4
"""Maximum difference between an output and torch's, before weights are quantized."""


class OnnxEngine:
    """An engine that computes a head's outputs with onnxruntime on the CPU.

    Args:
        reader: the reader of the batches.
        backbone: the encoder.
        head: the head.
        precision: 'fp32' (the same as 'auto'), or 'int8' for 8-bit weights and activations that are quantized
            to 8 bits per batch.
        cache: stores the graph for later loads; None: it is made at every load.

    Attributes:
        about: a description of precision, version and device.

    Raises:
        ConfigError: an unknown precision.
        PalmError: the extra `onnx` is not installed, or backbone or head cannot be exported.
    """

    def __init__(
        self, reader: Reader, backbone: Backbone, head: Head, precision: str, cache: Cache | None
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(
                f"precision with engine 'onnx' should be one of {', '.join(PRECISIONS)}, not {precision!r}"
            )
        require_onnx("engine 'onnx'")
        outputs = {f"output.{name}": ("", name) for name in head.outputs_attr}
        self.graph = Graph(backbone, {"": head}, batch_specs(reader), outputs).eval()
        version = importlib.metadata.version("onnxruntime")
        self.about = f"{PRECISIONS[precision]} by onnxruntime {version} on cpu"
        # Eight rows of different lengths, so a graph with a wrong constant size computes another result.
        rows = random_batch(reader, num_rows=8)
        with tempfile.TemporaryDirectory() as folder:
            file = graph_file(self.graph, rows, PRECISIONS[precision], cache, Path(folder) / FILE)
            self.session = session_of(file, torch.get_num_threads())

    def __call__(self, batch: Tensors) -> Tensors:
        """Compute the outputs of `palm.train.model.outputs_of`, within rounding."""
        arrays = self.session.run(list(self.graph.outputs), self.graph.arrays(batch))
        names = [name for _, name in self.graph.outputs.values()]
        return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def graph_file(graph: Graph, rows: Tensors, precision: str, cache: Cache | None, fallback: Path) -> Path:
    """Return the file of a graph, from the cache or newly made.

    Args:
        graph: the graph, in evaluation mode.
        rows: a batch on which it is compared with torch.
        precision: fp32 or int8.
        cache: the cache of graphs.
        fallback: the file to write without a usable cache.

    Raises:
        PalmError: the graph cannot be exported, or its outputs differ from torch's.
    """
    if cache is not None:
        try:
            make = partial(_make, graph, rows, precision)
            return cache.file(key_of_graph(graph, precision), FILE, "an ONNX graph", make)
        except (OSError, StorageError) as error:
            logger.warning(
                "cannot cache the ONNX graph in %s (%s), so it is made at every load; set PALM_DATA_CACHE to "
                "a writable folder",
                cache.folder,
                error,
            )
    _make(graph, rows, precision, fallback)
    return fallback


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
    session = write_graph(graph, exact, torch.get_num_threads())
    difference = graph.difference(session, next(iter(graph.by_task)), rows)
    if not difference <= TOLERANCE:
        raise PalmError(
            f"the ONNX graph of {graph.title} differs from PyTorch by {difference:.1e} on made-up "
            f"tokens, more than the {TOLERANCE:.0e} of rounding; load the model without engine 'onnx'"
        )
    if precision == "int8":
        from onnxruntime.quantization import quantize_dynamic

        # Embedding tables are not quantized, since that saves no time.
        with quiet():
            quantize_dynamic(exact, file, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True)
        remove(exact)
