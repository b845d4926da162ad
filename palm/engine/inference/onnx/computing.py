"""onnxruntime in the place of torch: a model's graph, made once and kept, and what computes it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from palm.backbone import Backbone
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.files.atomic_dir import new_directory
from palm.core.files.checksum import checksum
from palm.core.files.locking import locked
from palm.core.files.manifest import tensor_digests, verify
from palm.core.logging import logger
from palm.core.tensor_specs import Tensors
from palm.engine.inference.onnx.graph import BatchGraph, made_up_batch
from palm.engine.inference.onnx.writing import (
    NEEDED,
    check_sizes,
    quiet,
    require_onnx,
    session_of,
    write_graph,
)
from palm.engine.training.model import outputs_of
from palm.paradigm import Head
from palm.reader import Reader
from palm.reader.rows.cache import DataCache, forget_unused

FILE = "model.onnx"

PRECISIONS = {"auto": "fp32", "fp32": "fp32", "int8": "int8"}
"""What a user may ask for -> what is computed with."""

TOLERANCE = 1e-4
"""The largest difference of an output from torch's, before weights are rounded."""


class OnnxEngine:
    """Gives a head's outputs for a batch, computed by onnxruntime on the CPU, without Python in between.

    Args:
        reader: of the batches.
        backbone: the encoder.
        head: on the encoder.
        precision: 'fp32' ('auto' is the same), or 'int8' for products of 8-bit weights with activations that
            are rounded to 8 bits for each batch.
        cache: where the graph is kept for later loads; made anew for each where it is None.

    Attributes:
        about: what computes, in words.

    Raises:
        ConfigError: another precision.
        PalmError: the extra `onnx` is not installed, or backbone or head cannot be a graph.
    """

    def __init__(
        self, reader: Reader, backbone: Backbone, head: Head, precision: str, cache: DataCache | None
    ) -> None:
        if precision not in PRECISIONS:
            raise ConfigError(
                [f"precision with engine 'onnx' should be one of {', '.join(PRECISIONS)}, not {precision!r}"]
            )
        require_onnx("engine 'onnx'")
        rows = made_up_batch(reader, num_rows=8)
        given = {name: spec for name, spec in reader.outputs_attr.items() if name in rows}
        graph = BatchGraph(backbone.eval(), head.eval(), given).eval()
        self.inputs, self.outputs = list(graph.inputs), graph.outputs
        version = importlib.metadata.version("onnxruntime")
        self.about = f"{PRECISIONS[precision]} by onnxruntime {version} on cpu"
        with tempfile.TemporaryDirectory() as folder:
            file = graph_file(graph, rows, PRECISIONS[precision], cache, Path(folder) / FILE)
            self.session = session_of(file, torch.get_num_threads())

    def __call__(self, batch: Tensors) -> Tensors:
        """The outputs that `palm.engine.training.model.outputs_of` gives, within rounding."""
        arrays = self.session.run(
            list(self.outputs), {name: batch[name].long().numpy() for name in self.inputs}
        )
        names = self.outputs.values()
        return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def graph_file(
    graph: BatchGraph, rows: Tensors, precision: str, cache: DataCache | None, otherwise: Path
) -> Path:
    """The file of a graph: kept from an earlier load, or made now.

    Args:
        graph: in evaluation mode.
        rows: a batch to compare it on.
        precision: fp32 or int8.
        cache: where it is kept.
        otherwise: the file to make where it cannot be kept.

    Raises:
        PalmError: it cannot be a graph, or the graph computes something else.
    """
    if cache is not None:
        entry = cache.folder / key_of_graph(graph, precision)
        try:
            cache.folder.mkdir(parents=True, exist_ok=True)
            with locked(cache.folder / f"{entry.name}.lock", "making an ONNX graph"):
                if not _is_whole(entry):
                    forget_unused(cache.folder)
                    with new_directory(entry) as part:
                        _make(graph, rows, precision, part / FILE)
            with suppress(OSError):  # an entry of somebody else
                os.utime(entry)
            return entry / FILE
        except (OSError, StorageError) as error:
            logger.warning(
                "the ONNX graph cannot be kept in %s (%s), it is made anew at every load; set "
                "PALM_DATA_CACHE to a folder that can be written",
                *(cache.folder, error),
            )
    _make(graph, rows, precision, otherwise)
    return otherwise


def key_of_graph(graph: BatchGraph, precision: str) -> str:
    """What a graph depends on as 32 hexadecimal digits: weights, settings, code and versions."""
    parts = (graph.backbone, graph.head)
    package = Path(__file__).parents[2]
    places = ("backbone", "paradigm", "engine/onnx", "core")
    sources = {file for place in places for file in (package / place).glob("*.py")}
    # A class of the user's own has its code elsewhere.
    for part in parts:
        with suppress(OSError, TypeError):
            sources |= {Path(inspect.getfile(kind)) for kind in type(part).__mro__[:-1]}
    about = {
        "weights": [tensor_digests(part.state_dict()) for part in parts],
        "components": [f"{type(part).__module__}.{type(part).__qualname__}" for part in parts],
        "settings": [part.settings for part in parts],
        "precision": precision,
        "code": [checksum(file, "blake2b") for file in sorted(sources)],
        "versions": [importlib.metadata.version(name) for name in ("torch", *NEEDED)],
    }
    return hashlib.blake2b(json.dumps(about, default=str).encode(), digest_size=16).hexdigest()


def _is_whole(entry: Path) -> bool:
    try:
        verify(entry, (FILE,))
    except StorageError:
        shutil.rmtree(entry, ignore_errors=True)
        return False
    return True


def _make(graph: BatchGraph, rows: Tensors, precision: str, file: Path) -> None:
    """Write a graph that was compared with torch on `rows`, and then perhaps rounded."""
    name = f"{type(graph.backbone).__name__}, {type(graph.head).__name__}"
    logger.info("making an ONNX graph of %s", name)
    exact = file if precision == "fp32" else file.with_name("exact.onnx")
    shapes = {field: spec.shape for field, spec in graph.inputs.items()}
    write_graph(graph, shapes, list(graph.outputs), exact, name)
    session = session_of(exact, torch.get_num_threads())
    check_sizes(session, name)
    given = session.run(list(graph.outputs), {field: rows[field].long().numpy() for field in graph.inputs})
    with torch.no_grad():
        expected = outputs_of(graph.backbone, graph.head, rows)
    apart = max(
        _difference(expected[field], torch.from_numpy(array), rows["input_mask"])
        for field, array in zip(graph.outputs.values(), given, strict=True)
    )
    if not apart <= TOLERANCE:
        raise PalmError(
            f"the ONNX graph of {name} differs from PyTorch by {apart:.1e} on made-up tokens; more than "
            f"{TOLERANCE:.0e} is not equal: leave out engine 'onnx'"
        )
    if precision == "int8":
        from onnxruntime.quantization import quantize_dynamic

        # Tables of embeddings stay exact: rounding them saves no time.
        with quiet():
            quantize_dynamic(exact, file, op_types_to_quantize=["MatMul", "Gemm"], per_channel=True)
        exact.unlink()


def _difference(ours: Tensor, theirs: Tensor, mask: Tensor) -> float:
    """The largest difference; outputs of single tokens count where there is no padding."""
    if ours.shape != theirs.shape:
        return float("inf")
    apart = (ours.double() - theirs.double()).abs()
    return float((apart[mask] if apart.shape[:2] == mask.shape else apart).max())
