"""Trained tasks as one ONNX graph: an encoder, their heads, any batch and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from palm.core.errors import PalmError
from palm.core.files.atomic_dir import check_target, new_directory
from palm.core.logging import logger
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.onnx.writing import check_sizes, require_onnx, session_of, write_graph
from palm.export.checking import Check, check_graph
from palm.export.description import describe_export
from palm.export.graph import Graph
from palm.export.sources import Trained, saved_model, tasks_of_run
from palm.export.tokenizer_files import save_reader

FILE = "model.onnx"


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
    require_onnx("an export to ONNX")
    folder = Path(folder)
    check_target(folder, overwrite)
    tasks = tasks_of_run(Path(source), trust) if all_heads else [saved_model(Path(source), trust)]
    tasks = _with_rows(tasks, rows)
    models = [trained.model for trained in tasks]
    heads = {model.task: model.head for model in models}
    graph = Graph(models[0].backbone, heads, models[0].reader.settings.get("task_id", 0)).eval()
    parts = ", ".join(dict.fromkeys(type(part).__name__ for part in (graph.backbone, *graph.heads)))
    with new_directory(folder, overwrite) as part:
        shapes = {name: ("masks",) if name == "mask_pos" else ("batch", "seq") for name in graph.input_names}
        write_graph(graph, shapes, graph.output_names, part / FILE, parts)
        session = session_of(part / FILE)
        check_sizes(session, parts)
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
