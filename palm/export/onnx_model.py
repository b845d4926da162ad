"""Trained tasks as one ONNX graph: an encoder, their heads, any batch and length."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from palm.core.directories import check_target, new_directory
from palm.core.disk import writing
from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.engine.inference import InferenceModel
from palm.export.checking import Check, check_graph
from palm.export.description import describe_export
from palm.export.graph import Graph
from palm.export.sources import Trained, saved_model, tasks_of_run
from palm.export.tokenizer_files import save_reader

FILE = "model.onnx"
OPSET = 18
"""Of 2022; every runtime since reads it."""

NEEDED = ("onnx", "onnxscript", "onnxruntime")


def to_onnx(
    source: str | Path,
    folder: str | Path,
    *,
    all_heads: bool = False,
    rows: str | Path | Mapping[str, str | Path] | None = None,
    tolerance: float = 1e-4,
    trust: str | Sequence[str] = (),
    overwrite: bool = False,
) -> dict[str, Check]:
    """Write a trained task, or all tasks of a run, as one ONNX graph with its tokenizer.

    The graph is run on rows of every task and compared with PyTorch before the folder appears.

    Args:
        source: a saved model, `<save_path>/<task>/infer_model`; with `all_heads` a checkpoint,
            `<save_path>/step_N`, or the `save_path` of a run whose models have equal encoders.
        folder: a new folder; appears whole or not at all.
        all_heads: one graph with the heads of all tasks on one encoder.
        rows: the data file whose first rows are compared, or task -> file; where absent, the file that
            the run had, if it and `source` are still where they were, else made-up tokens.
        tolerance: the largest absolute difference of any output.
        trust: as for `palm.load_model`.
        overwrite: replace a folder that palm wrote, and that holds nothing else.

    Returns:
        Task -> what was compared, and the largest difference.

    Raises:
        PalmError: the extra `onnx` is not installed, the model cannot be a graph, or the graph computes
            something else.
        StorageError: `source` holds something else, or `folder` is in use or cannot be written.
        DataError: a row that is to be compared cannot be read.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise PalmError(
            f"an export to ONNX needs {', '.join(missing)}; install them: pip install 'palm-torch[onnx]'"
        )
    folder = Path(folder)
    check_target(folder, overwrite)
    tasks = tasks_of_run(Path(source), trust) if all_heads else [saved_model(Path(source), trust)]
    tasks = _with_rows(tasks, rows)
    models = [trained.model for trained in tasks]
    heads = {model.task: model.head for model in models}
    graph = Graph(models[0].backbone, heads, models[0].reader.settings.get("task_id", 0)).eval()
    with new_directory(folder, overwrite) as part:
        _write(graph, part / FILE)
        session = _session(part / FILE, graph)
        checks = {trained.model.task: check_graph(session, graph, trained, tolerance) for trained in tasks}
        _describe(part, graph, models, checks)
    for name, check in checks.items():
        logger.info("%s: the graph %s", name, check)
    logger.info("%s written to %s", FILE, folder)
    return checks


def _with_rows(tasks: Sequence[Trained], rows: str | Path | Mapping[str, str | Path] | None) -> list[Trained]:
    """The tasks with the files of rows that were asked for."""
    names = [trained.model.task for trained in tasks]
    if isinstance(rows, str | Path) and len(names) > 1:
        raise PalmError(f"rows: files for {', '.join(names)} are given as task -> file, not {str(rows)!r}")
    files = dict.fromkeys(names[:1], rows) if isinstance(rows, str | Path) else dict(rows or {})
    if strange := sorted(files.keys() - set(names)):
        raise PalmError(f"rows: there is no task {', '.join(map(repr, strange))}, but {', '.join(names)}")
    return [
        replace(trained, data=Path(files[trained.model.task])) if trained.model.task in files else trained
        for trained in tasks
    ]


def _write(graph: Graph, file: Path) -> None:
    from torch.export import Dim  # slow to import

    batch, seq, masks = Dim("batch"), Dim("seq"), Dim("masks")
    # Sizes of 1 would be taken for constants, equal ones for one and the same.
    example = {name: torch.ones(2, 3, dtype=torch.long) for name in graph.input_names}
    shapes = {name: {0: batch, 1: seq} for name in graph.input_names}
    if "mask_pos" in example:
        example["mask_pos"], shapes["mask_pos"] = torch.arange(5), {0: masks}
    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                graph,
                (),
                kwargs={"inputs": example},
                dynamo=True,
                opset_version=OPSET,
                input_names=graph.input_names,
                output_names=graph.output_names,
                dynamic_shapes={"inputs": shapes},
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise PalmError(f"{_parts(graph)} cannot become an ONNX graph: {error.__cause__ or error}") from error
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


def _session(file: Path, graph: Graph) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    fixed = [f"{one.name} {one.shape}" for one in session.get_inputs() if set(map(type, one.shape)) != {str}]
    if fixed:
        raise PalmError(
            f"{_parts(graph)} cannot become an ONNX graph of any batch and length: {', '.join(fixed)} is "
            "fixed; sizes must be taken from `.shape`, not from `len`"
        )
    return session


def _parts(graph: Graph) -> str:
    """The classes of the graph's components."""
    return ", ".join(dict.fromkeys(type(part).__name__ for part in (graph.backbone, *graph.heads)))


def _describe(
    folder: Path, graph: Graph, models: Sequence[InferenceModel], checks: Mapping[str, Check]
) -> None:
    """The tokenizer and `palm_export.json`; the tokenizer's longest row is the longest of any task."""
    longest = max(models, key=lambda model: int(model.reader.settings["max_seq_len"]))
    save_reader(longest.reader, longest.backbone, folder, marks_text="mask_pos" in graph.input_names)
    describe_export(
        folder,
        "onnx",
        models,
        inputs=graph.input_names,
        outputs=graph.output_names,
        checks={task: asdict(check) for task, check in checks.items()},
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks on its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
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
