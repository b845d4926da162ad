"""Export of trained tasks to one ONNX graph: an encoder and heads, for any batch size and length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from palm.core.io import check_target, new_directory
from palm.core.logging import logger
from palm.export.hugging_face import describe_export
from palm.export.sources import check_alike, save_reader
from palm.predict.inference import InferenceModel
from palm.predict.loading import load_models
from palm.predict.onnx import Graph, batch_specs, random_batch, require_onnx, write_graph

FILE = "model.onnx"

NUM_ROWS = 32
"""Number of rows on which graph and model are compared."""


def to_onnx(
    source: str | Path,
    folder: str | Path,
    *,
    tolerance: float = 1e-4,
    trust: str | Sequence[str] = (),
    overwrite: bool = False,
) -> dict[str, float]:
    """Write a trained task, or several on one encoder, as one ONNX graph with its tokenizer.

    Before it is written, the graph is compared with PyTorch on synthetic rows of every task.

    Args:
        source: a saved model, of one task or of several, as for `palm.load_model`.
        folder: a new folder, which is created atomically.
        tolerance: the largest accepted absolute difference of any output.
        trust: as for `palm.load_model`.
        overwrite: replace a folder that palm wrote and that contains nothing else.

    Returns:
        Task -> the largest absolute difference.

    Raises:
        PalmError: onnx is not installed, or the graph does not compute the same as the model.
        StorageError: `source` contains something else, or `folder` cannot be written.
    """
    require_onnx("an export to ONNX")
    folder = Path(folder)
    check_target(folder, overwrite, [source])
    models = list(load_models(source, device="cpu", precision="fp32", trust=trust).tasks.values())
    graph = graph_of(models)
    with new_directory(folder, overwrite) as part:
        batches = {model.task: random_batch(model.reader, NUM_ROWS) for model in models}
        differences = write_graph(graph, part / FILE, batches, tolerance)
        _describe(part, graph, models, differences)
    for name, difference in differences.items():
        logger.info("%s: the graph differs from PyTorch by at most %.1e", name, difference)
    logger.info("%s written to %s", FILE, folder)
    return differences


def graph_of(models: Sequence[InferenceModel]) -> Graph:
    """Build the graph of tasks on one encoder, from token ids to the heads' floating-point outputs.

    With several tasks, names of outputs have the prefix `<task>.`.

    Raises:
        PalmError: the tasks have different encoders, vocabularies or task embeddings.
    """
    first = models[0]
    for other in models[1:]:
        check_alike(first, other)
    outputs = {
        f"{model.task}.{name}" if len(models) > 1 else name: (model.task, name)
        for model in models
        for name, spec in model.head.outputs_attr.items()
        if spec.dtype.is_floating_point  # masks and counters are only needed for decoding
    }
    return Graph(
        first.backbone,
        {model.task: model.head for model in models},
        batch_specs(*(model.reader for model in models)),
        outputs,
        first.reader.settings.get("task_id", 0),
    ).eval()


def _describe(
    folder: Path, graph: Graph, models: Sequence[InferenceModel], differences: Mapping[str, float]
) -> None:
    """Write the tokenizer, with the largest maximum length of all tasks, and `palm_export.json`."""
    longest = max(models, key=lambda model: int(model.reader.settings["max_seq_len"]))
    save_reader(longest.reader, longest.backbone, folder, marks_text="mask_pos" in graph.inputs)
    describe_export(
        folder,
        "onnx",
        models,
        inputs=list(graph.shapes),
        outputs=list(graph.outputs),
        differences=differences,
    )
