"""Tasks on every encoder of `transformers`, as its own models and as graphs: equal outputs, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.components import encoder_inputs
from helpers.library_encoders import write_config
from helpers.messages import raises
from palm.backbone.transformers import RUN, Transformers
from palm.core.errors import PalmError
from palm.export.hugging_face import library_model
from palm.export.onnx_model import graph_of
from palm.paradigm import MRC, Classify, Head, MaskLM, SequenceLabel
from palm.predict.inference import InferenceModel
from palm.predict.onnx import random_batch, write_graph
from palm.pretrained.loading import layout_of_head
from palm.reader import ClassifyReader, MaskLMReader
from palm.train.model import outputs_of

transformers = pytest.importorskip("transformers", minversion="5.9")

KINDS = ("cls", "mrc", "seq_label", "mlm")

REFUSED = {"mrc": {"big_bird", "esm", "esmc", "eurobert", "gte", "nomic_bert"}, "mlm": {"luke"}}
"""Head -> families that have no such model, or one that computes something else: see docs/encoders.md."""


def head_of(kind: str, backbone: Transformers) -> Head:
    sizes = backbone.sizes()
    width = sizes["hidden_size"]
    if kind == "mlm":
        return MaskLM(**sizes)
    if kind == "mrc":
        return MRC(hidden_size=width)
    return Classify(3, width) if kind == "cls" else SequenceLabel(3, width)


def batch_of(vocabulary: int) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([[9], [4], [7]])
    mask = torch.arange(9) < lengths
    ids = torch.randint(5, vocabulary, (3, 9), generator=torch.Generator().manual_seed(1))
    return encoder_inputs(ids.masked_fill(~mask, 1), mask, word_mask=mask, mask_pos=torch.tensor([2, 11, 20]))


def models_of(family: str, folder: Path, *kinds: str, layers: int = 3) -> list[InferenceModel]:
    """Tasks of these kinds on one random encoder of a family."""
    if family not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    torch.manual_seed(2)
    backbone = Transformers(write_config(folder, family, num_hidden_layers=layers)).eval()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]))
    models = []
    for kind in kinds:
        reader = (MaskLMReader if kind == "mlm" else ClassifyReader)(str(vocabulary), max_seq_len=16)
        models.append(
            InferenceModel(kind, reader, backbone, head_of(kind, backbone).eval(), precision="fp32")
        )
        with torch.no_grad():
            for parameter in models[-1].head.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return models


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", sorted(RUN))
def test_the_librarys_own_model_computes_the_same(family: str, kind: str, tmp_path: Path) -> None:
    (model,) = models_of(family, tmp_path, kind)
    backbone = model.backbone
    head = model.head
    if family in REFUSED.get(kind, ()):
        with raises(PalmError, "ONNX"):
            library_model(model, layout_of_head(head)[1])
        return
    built: Any = library_model(model, layout_of_head(head)[1]).eval()
    batch = batch_of(60)
    given = {"input_ids": batch["token_ids"], "attention_mask": batch["input_mask"].long()}
    with torch.no_grad():
        expected, found = outputs_of(backbone, head, batch), built(**given)
    if kind == "mrc":
        mask = batch["input_mask"]
        pairs = [(expected[n][mask], found[n][mask]) for n in ("start_logits", "end_logits")]
    elif kind == "mlm":
        pairs = [(expected["logits"], found.logits.flatten(0, 1)[batch["mask_pos"]])]
    else:
        mask = batch["input_mask"] if kind == "seq_label" else slice(None)
        pairs = [(expected["logits"][mask], found.logits[mask])]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(RUN))
def test_four_tasks_of_every_family_are_one_onnx_graph(family: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    models = models_of(family, tmp_path, *KINDS, layers=2)
    graph = graph_of(models)
    batches = {model.task: random_batch(model.reader, 32) for model in models}
    assert write_graph(graph, tmp_path / "model.onnx", batches, 1e-5).keys() == batches.keys()
