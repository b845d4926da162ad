"""onnxruntime behind `predict`: the answers of torch within rounding, from a graph that is made once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny
from helpers.bag import Bag
from helpers.messages import raises
from palm.backbone import BERT, ERNIE, Backbone
from palm.cli import main
from palm.core.errors import PalmError
from palm.core.logging import logger
from palm.paradigm import (
    MRC,
    Classify,
    Count,
    Embedding,
    Head,
    MaskLM,
    MultiLabel,
    MultipleChoice,
    Ordinal,
    Ranking,
    Regression,
    Relation,
    SequenceLabel,
    Span,
)
from palm.predict.inference import InferenceModel, JointModel
from palm.predict.loading import load_model, use_onnx
from palm.reader import (
    ClassifyReader,
    EmbeddingReader,
    MaskLMReader,
    MRCReader,
    MultiLabelReader,
    MultipleChoiceReader,
    RankingReader,
    Reader,
    RelationReader,
    SequenceLabelReader,
    SpanReader,
)
from palm.train.task_model import Losses, encoded, mean_loss

pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")

SIZES = tiny.sizes(
    *(16, 1, 2), intermediate_size=24, vocab_size=40, max_position_embeddings=40, initializer_range=0.3
)

ENDINGS = {"mrc": "json"} | dict.fromkeys(
    ("embedding", "multiple_choice", "ranking", "relation", "span"), "jsonl"
)
TAGS = {"O": 0, "B": 1, "I": 2}
START = {"initializer_range": 1.0}
KINDS: dict[str, tuple[Callable[[Path], Reader], Callable[[], Backbone], Callable[[], Head]]] = {
    "cls": (lambda vocab: ClassifyReader(vocab, 24), lambda: BERT(**SIZES), lambda: Classify(4, 16, **START)),
    "regression": (
        lambda vocab: ClassifyReader(vocab, 24, label_type="real", task_id=3),
        lambda: ERNIE(**SIZES, task_type_vocab_size=5),
        lambda: Regression(16, **START),
    ),
    "multi_label": (
        lambda vocab: MultiLabelReader(vocab, 24, n_classes=4),
        Bag,
        lambda: MultiLabel(4, 16, **START),
    ),
    "ordinal": (lambda vocab: ClassifyReader(vocab, 24, n_classes=4), Bag, lambda: Ordinal(4, 16, **START)),
    "count": (lambda vocab: ClassifyReader(vocab, 24, label_type="count"), Bag, lambda: Count(16)),
    "multiple_choice": (
        lambda vocab: MultipleChoiceReader(vocab, 24),
        Bag,
        lambda: MultipleChoice(16, **START),
    ),
    "ranking": (lambda vocab: RankingReader(vocab, 24), Bag, lambda: Ranking(16, **START)),
    "embedding": (lambda vocab: EmbeddingReader(vocab, 24), Bag, lambda: Embedding(16)),
    "mlm": (lambda vocab: MaskLMReader(vocab, 24), Bag, lambda: MaskLM(16, 40, initializer_range=0.5)),
    "mrc": (
        lambda vocab: MRCReader(vocab, 24, max_query_len=8, doc_stride=4),
        Bag,
        lambda: MRC(hidden_size=16, max_answer_len=4, n_best_size=5, **START),
    ),
    "span": (
        lambda vocab: SpanReader(vocab, 24, {"owner": 0, "thing": 1, "colour": 2}),
        Bag,
        lambda: Span(3, 16, initializer_range=0.3),
    ),
    "relation": (
        lambda vocab: RelationReader(vocab, 24, {"owns": 0, "is": 1}, span_label_map=tiny.SPANS),
        Bag,
        lambda: Relation(2, 16, initializer_range=0.3, n_span_classes=3),
    ),
    "seq_label": (
        lambda vocab: SequenceLabelReader(vocab, 24, TAGS),
        Bag,
        lambda: SequenceLabel(3, 16, use_crf=True, **START),
    ),
}


GROUPS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "multiple_choice": lambda others: {"choices": others, "label": 1},
    "ranking": lambda others: {"candidates": others, "label": [1] + [0] * (len(others) - 1)},
    "embedding": lambda others: {"text_b": others[0]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all tasks, and a model of each that nobody has trained."""
    folder = tiny.write_files(tmp_path_factory.mktemp("data"))
    rows = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [row.split("\t")[1] for row in rows]
    tagged = [f"{text}\t{' '.join(['O'] * len(text.split(' ')))}" for text in texts]
    (folder / "seq_label.tsv").write_text("\n".join(["text_a\tlabel", *tagged]) + "\n", encoding="utf-8")
    sets = [f"{k % 4},{(k % 4 + 1 + k % 3) % 4}\t{text}" for k, text in enumerate(texts)]
    (folder / "multi_label.tsv").write_text("\n".join(["label\ttext_a", *sets]) + "\n", encoding="utf-8")
    real = [f"{len(text)}.5\t{text}" for text in texts]
    (folder / "regression.tsv").write_text("\n".join(["label\ttext_a", *real]) + "\n", encoding="utf-8")
    (folder / "ordinal.tsv").write_bytes((folder / "cls.tsv").read_bytes())
    (folder / "count.tsv").write_bytes((folder / "cls.tsv").read_bytes())
    some = [texts[k : k + 2 + k % 2] for k in range(len(texts) - 2)] + [texts[:2]] * 2
    for kind, of_row in GROUPS.items():
        lines = [
            json.dumps({"text_a": text} | of_row(others)) for text, others in zip(texts, some, strict=True)
        ]
        (folder / f"{kind}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for kind in KINDS:
        saved(kind, folder)
    return folder


def saved(kind: str, folder: Path, **head: Any) -> Path:
    """A model of random weights, saved in `folder`."""
    torch.manual_seed(3)
    make_reader, make_backbone, make_head = KINDS[kind]
    backbone, layer = make_backbone(), head.get("head") or make_head()
    for name, parameter in (*backbone.named_parameters(), *layer.named_parameters()):
        if name.endswith(("bias", "crf.weight")) or "norm" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model = InferenceModel(kind, make_reader(folder / "vocab.txt"), backbone, layer, batch_size=8)
    model.save(folder / kind / "infer_model")
    return folder / kind / "infer_model"


def data_of(kind: str, folder: Path) -> Path:
    if kind == "relation":
        return folder / "span.jsonl"
    return folder / f"{kind}.{ENDINGS.get(kind, 'tsv')}"


def scored(model: InferenceModel, file: Path) -> tuple[dict[str, float], float | None]:
    """The scores of a file with labels, and its mean loss."""
    losses: Losses = {}
    chunks = encoded(model.reader, model.reader.read_gold(file), with_targets=True)
    return model.score(chunks, model.head.metrics, losses=losses), mean_loss([losses])


def numbers(value: Any) -> Any:
    """A record without rounding: numbers apart from everything else."""
    if isinstance(value, dict):
        return {name: numbers(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(part) for part in value]
    return pytest.approx(value, abs=2e-5, rel=2e-5) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def graphs(folder: Path) -> dict[str, InferenceModel]:
    """All models, computed by onnxruntime; those on the same encoder have one graph."""
    models = {kind: load_model(folder / kind / "infer_model", precision="fp32") for kind in KINDS}
    JointModel(models)  # lets encoders with the same bits become one
    use_onnx([*models.values()], "fp32")
    assert len({id(model.engine) for model in models.values()}) == 3
    return models


@pytest.mark.parametrize("kind", KINDS)
def test_records_and_scores_are_those_of_torch(
    kind: str, folder: Path, graphs: dict[str, InferenceModel]
) -> None:
    file = data_of(kind, folder)
    ours, theirs = load_model(folder / kind / "infer_model", precision="fp32"), graphs[kind]
    read = [list(model.records(model.reader.read(file, with_targets=False))) for model in (ours, theirs)]
    assert len(read[0]) == 40
    assert read[1] == numbers(read[0])
    (scores, loss), found = scored(ours, file), scored(theirs, file)
    assert found == (numbers(scores), pytest.approx(loss, rel=1e-5))


def made(caplog: pytest.LogCaptureFixture) -> int:
    """How many graphs were made since the last call."""
    count = sum("making an ONNX graph" in record.message for record in caplog.records)
    caplog.clear()
    return count


def test_a_graph_is_made_once(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("PALM_DATA_CACHE", str(cache))
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level("INFO", logger="palm")
    original = folder / "multi_label" / "infer_model"
    model = shutil.copytree(original, tmp_path / "copy")
    first = load_model(model, engine="onnx").predict(["a red door"])
    assert made(caplog) == 1
    assert load_model(original, engine="onnx").predict(["a red door"]) == first
    assert made(caplog) == 0
    (graph,) = cache.glob("*/model.onnx")
    graph.write_bytes(graph.read_bytes()[:-1])  # damaged
    assert load_model(model, engine="onnx").predict(["a red door"]) == first
    assert made(caplog) == 1
    other = load_model(model)
    with torch.no_grad():
        other.head.get_parameter("out.bias").add_(1)
    other.save(tmp_path / "other")
    logits = load_model(tmp_path / "other", engine="onnx").predict(["a red door"])[0]["logits"]
    assert logits == pytest.approx([value + 1 for value in first[0]["logits"]], abs=1e-5)
    assert made(caplog) == 1
    monkeypatch.setenv("PALM_DATA_CACHE", "")
    assert load_model(model, engine="onnx").predict(["a red door"]) == first
    assert made(caplog) == 1


def test_int8_rounds_products_and_keeps_tables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = folder / "int8"
    monkeypatch.setenv("PALM_DATA_CACHE", str(cache))
    model, file = folder / "cls" / "infer_model", folder / "cls.tsv"
    exact, rounded = load_model(model, precision="fp32"), load_model(model, precision="int8", engine="onnx")
    texts = [line.split("\t")[1] for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    probs = [np.array([record["probs"] for record in one.predict(texts)]) for one in (exact, rounded)]
    apart = np.abs(probs[0] - probs[1]).max()
    assert 1e-4 < apart < 0.15
    assert (probs[0].argmax(1) == probs[1].argmax(1)).mean() > 0.9
    onnx = pytest.importorskip("onnx")
    (graph,) = cache.glob("*/model.onnx")
    kinds = {weight.data_type for weight in onnx.load(graph).graph.initializer if len(weight.dims) == 2}
    assert kinds == {onnx.TensorProto.INT8, onnx.TensorProto.FLOAT}
    sizes = {
        tuple(w.dims) for w in onnx.load(graph).graph.initializer if w.data_type == onnx.TensorProto.FLOAT
    }
    assert {(40, 16)} == {size for size in sizes if len(size) == 2 and size[0] > 16}
    assert rounded.engine is not None
    assert rounded.engine.about == f"int8 by onnxruntime {onnxruntime.__version__} on cpu"


class DataDependentHead(Classify):
    """A head whose shapes depend on values."""

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        outputs = super().forward(features)
        return {name: value if bool(value.sum() > 0) else -value for name, value in outputs.items()}


def test_what_no_graph_computes_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "vocab.txt", tmp_path)
    model = saved("ordinal", tmp_path, head=DataDependentHead(4, 16))
    assert len(load_model(model).predict(["a red door"])) == 1
    with raises(PalmError, "Bag, DataDependentHead"):
        load_model(model, engine="onnx")


def test_the_commands_take_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ["--model", str(folder / "cls" / "infer_model"), "--input", str(folder / "cls.tsv")]
    for engine in ("torch", "onnx"):
        more = ["--output", str(tmp_path / engine), "--engine", engine, "--precision", "fp32"]
        assert main(["predict", *model, *more]) == 0
    lines = [
        [json.loads(line) for line in (tmp_path / engine / "predictions.json").open(encoding="utf-8")]
        for engine in ("torch", "onnx")
    ]
    assert lines[1] == numbers(lines[0])
    capsys.readouterr()
    monkeypatch.setenv("PALM_DATA_CACHE", str(folder / "int8"))  # with the graph of the test of int8
    assert main(["evaluate", *model, "--engine", "onnx", "--precision", "int8"]) == 0
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (
        scores["accuracy"]
        == load_model(model[1], engine="onnx", precision="int8").evaluate(model[3])["accuracy"]
    )
    assert main(["predict", "config.yaml", "--engine", "onnx"]) == 2
    error = capsys.readouterr().err
    assert "--engine" in error
