"""Trained tasks as one ONNX graph: an encoder, their heads, any batch and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from palm.core.errors import PalmError
from palm.core.files.atomic_dir import check_target, new_directory
from palm.core.logging import logger
from palm.core.numerics.rng import generator
from palm.core.tensor_specs import Tensors
from palm.engine.inference.inference import InferenceModel
from palm.engine.inference.onnx.graph import Graph, batch_specs, made_up_batch
from palm.engine.inference.onnx.writing import require_onnx, write_graph
from palm.export.description import describe_export
from palm.export.sources import saved_model, tasks_of_run
from palm.export.tokenizer_files import save_reader

FILE = "model.onnx"

NUM_ROWS = 32
"""Rows that are compared."""


@dataclass(frozen=True)
class Check:
    """The comparison of a graph with PyTorch.

    Args:
        num_rows: how many rows were compared.
        rows_of: where they come from.
        difference: the largest absolute difference of any output at a real token.
    """

    num_rows: int
    rows_of: str
    difference: float

    def __str__(self) -> str:
        return (
            f"differs from PyTorch by at most {self.difference:.1e} on {self.num_rows} rows of {self.rows_of}"
        )


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
    """Write a trained task, or all tasks of a checkpoint, as one ONNX graph with its tokenizer.

    The graph is run on rows of every task and compared with PyTorch first; returns task -> comparison.

    Args:
        source: a saved model, `<save_path>/<task>/infer_model`; with `all_heads` a checkpoint.
        folder: a new folder; appears whole or not at all.
        all_heads: one graph with the heads of all tasks on one encoder.
        rows: the data file whose first rows are compared, or task -> file; made-up tokens where absent.
        tolerance: the largest absolute difference of any output.
        trust: as for `palm.load_model`.
        overwrite: replace a folder that palm wrote, and that holds nothing else.

    Raises:
        PalmError: onnx is not installed, or the model cannot be a graph that computes the same.
        StorageError: `source` holds something else, or `folder` cannot be written.
        DataError: a row that is to be compared cannot be read.
    """
    require_onnx("an export to ONNX")
    folder = Path(folder)
    check_target(folder, overwrite, [source])
    models = tasks_of_run(Path(source), trust) if all_heads else [saved_model(Path(source), trust)]
    files = _files_of_rows([model.task for model in models], rows)
    graph = graph_of(models)
    with new_directory(folder, overwrite) as part:
        session = write_graph(graph, part / FILE)
        checks = {
            model.task: check_graph(session, graph, model, files.get(model.task), tolerance)
            for model in models
        }
        _describe(part, graph, models, checks)
    for name, check in checks.items():
        logger.info("%s: the graph %s", name, check)
    logger.info("%s written to %s", FILE, folder)
    return checks


def graph_of(models: Sequence[InferenceModel]) -> Graph:
    """Make the graph of tasks on one encoder, from token ids to the heads' floating-point outputs.

    With several tasks, an output's name begins with `<task>.`.
    """
    first = models[0]
    outputs = {
        f"{model.task}.{name}" if len(models) > 1 else name: (model.task, name)
        for model in models
        for name, spec in model.head.outputs_attr.items()
        if spec.dtype.is_floating_point  # only decoding reads masks and counters
    }
    return Graph(
        first.backbone,
        {model.task: model.head for model in models},
        batch_specs(*(model.reader for model in models)),
        outputs,
        first.reader.settings.get("task_id", 0),
    ).eval()


def check_graph(
    session: Any, graph: Graph, model: InferenceModel, data: Path | None, tolerance: float
) -> Check:
    """Compare one task's outputs of an `onnxruntime` session with those of its PyTorch model.

    Raises:
        PalmError: some output differs by more than the tolerance.
        DataError: a row of the file cannot be read.
    """
    batch = made_up_batch(model.reader, NUM_ROWS) if data is None else _first_rows(model, data)
    check = Check(
        num_rows=len(batch["input_mask"]),
        rows_of="made-up tokens" if data is None else str(data),
        difference=graph.difference(session, model.task, batch),
    )
    if not check.difference <= tolerance:
        raise PalmError(
            f"task {model.task!r}: the ONNX graph {check}, more than the tolerance of {tolerance:.1e}. "
            "Nothing was written"
        )
    return check


def _first_rows(model: InferenceModel, data: Path) -> Tensors:
    examples = list(islice(model.reader.read(data, with_targets=False), NUM_ROWS))
    rows = model.reader.encode(examples, with_targets=False)
    indices = range(min(len(rows), NUM_ROWS))
    return model.reader.collate(rows, indices, lambda row: generator(0, "export", model.task, row))


def _files_of_rows(
    tasks: Sequence[str], rows: str | Path | Mapping[str, str | Path] | None
) -> dict[str, Path]:
    if isinstance(rows, str | Path):
        if len(tasks) > 1:
            raise PalmError(
                f"rows: files for {', '.join(tasks)} are given as task -> file, not {str(rows)!r}"
            )
        rows = {tasks[0]: rows}
    if unknown := sorted((rows or {}).keys() - set(tasks)):
        raise PalmError(f"rows: there is no task {', '.join(map(repr, unknown))}, but {', '.join(tasks)}")
    return {task: Path(file) for task, file in (rows or {}).items()}


def _describe(
    folder: Path, graph: Graph, models: Sequence[InferenceModel], checks: Mapping[str, Check]
) -> None:
    """Write the tokenizer, whose longest row is the longest of any task, and `palm_export.json`."""
    longest = max(models, key=lambda model: int(model.reader.settings["max_seq_len"]))
    save_reader(longest.reader, longest.backbone, folder, marks_text="mask_pos" in graph.inputs)
    describe_export(
        folder,
        "onnx",
        models,
        inputs=list(graph.shapes),
        outputs=list(graph.outputs),
        checks={task: asdict(check) for task, check in checks.items()},
    )
