"""Weights of TensorFlow and Paddle are read without them, and nothing of what their files ask for is run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from helpers.foreign_files import SIZES, known, paddlenlp, write_variables
from helpers.shared import GOLDEN, RECORDED_0, minilm, needs_shared
from palm.backbone import BERT, ERNIE, RoBERTa
from palm.core.errors import StorageError
from palm.pretrained.directory import read_directory, read_weights, settings_of_directory
from palm.pretrained.loading import load_backbone, load_pretrain
from palm.pretrained.names import from_ours, to_ours

RUN = RECORDED_0 / "formats" / "run"


def assert_known(path: Path) -> None:
    given = to_ours(read_weights(path))
    assert given.unused == []
    assert given.weights.keys() == known().keys()
    assert all(torch.equal(given.weights[name], value) for name, value in known().items())


def config(folder: Path, name: str = "bert_config.json", **settings: Any) -> Path:
    (folder / name).write_text(json.dumps({**SIZES, **settings}), encoding="utf-8")
    return folder


# ---- Paddle ----


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_that_paddle_wrote_loads(tmp_path: Path, protocol: int) -> None:
    file = GOLDEN / "paddle" / f"protocol{protocol}.pdparams"
    assert_known(file)
    shutil.copy(file, tmp_path / "model_state.pdparams")
    config(tmp_path, "model_config.json", init_class="BertForSequenceClassification")
    backbone = load_backbone(tmp_path)
    assert isinstance(backbone, BERT)
    assert load_pretrain(backbone, tmp_path).left_out == ("classifier.weight", "classifier.bias")


def pickled(folder: Path, content: Any, protocol: int = 4) -> Path:
    """Arrays as Paddle pickles them."""
    file = folder / "model_state.pdparams"
    file.write_bytes(pickle.dumps(content, protocol=protocol))
    return file


def arrays() -> dict[str, Any]:
    return {name: value.numpy() for name, value in paddlenlp().items()}


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("module", [b"numpy.core", b"numpy._core"])
def test_every_protocol_and_either_home_of_numpys_arrays_is_understood(
    tmp_path: Path, protocol: int, module: bytes
) -> None:
    content = {**arrays(), "StructuredToParameterName@@": {name: f"linear_{name}" for name in arrays()}}
    file = pickled(tmp_path, content, protocol)
    data = file.read_bytes()
    here = next(name for name in (b"numpy._core", b"numpy.core") if name in data)
    if protocol < 4:  # later ones tell the length of a name before it
        file.write_bytes(data.replace(here, module))
    assert_known(file)


def test_pairs_of_name_and_array_and_arrays_by_columns_are_understood(tmp_path: Path) -> None:
    pairs = {name: ("linear_0.w_0", np.asfortranarray(value)) for name, value in arrays().items()}
    assert_known(pickled(tmp_path, pairs))


def test_arrays_that_paddle_cut_into_parts_are_put_together(tmp_path: Path) -> None:
    content, name = arrays(), "bert.embeddings.word_embeddings.weight"
    flat = content.pop(name).flatten()
    parts = {f"{name}@@.0": flat[:10], f"{name}@@.1": flat[10:20], f"{name}@@.2": flat[20:]}
    told = {name: {"OriginShape": (6, 4), "slices": list(parts)}}
    assert_known(pickled(tmp_path, {**content, **parts, "UnpackBigParamInfor@@": told}, 2))


def test_bfloat16_is_what_paddle_keeps_as_whole_numbers(tmp_path: Path) -> None:
    bits = torch.tensor([1.5, -2.0]).bfloat16().view(torch.int16).numpy().view(np.uint16)
    read = read_weights(pickled(tmp_path, {"a": bits, "b": np.arange(3, dtype=">f4")}))
    assert read["a"].tolist() == [1.5, -2.0]
    assert read["a"].dtype == torch.bfloat16
    assert read["b"].tolist() == [0, 1, 2]


class Harmful:
    """An object whose pickle runs a command."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "value",
    [
        Harmful(os.system, "touch evil"),
        Harmful(eval, "open('evil', 'w')"),
        Harmful(exec, "open('evil', 'w')"),
        Harmful(__import__, "antigravity"),
        Harmful(getattr, "", "format"),
        Harmful(os.mkdir, "evil"),
        Harmful(np.load, "evil.npy"),
        [Harmful(os.mkdir, "evil")],
        ("name", Harmful(os.mkdir, "evil")),
        np.array([Harmful(os.mkdir, "evil")], dtype=object),
        Path("evil"),
    ],
    ids=["system", "eval", "exec", "import", "getattr", "mkdir", "load", "list", "tuple", "array", "path"],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_asks_for_anything_but_arrays_is_refused_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = pickled(tmp_path, {**arrays(), "evil": value}, protocol)
    with pytest.raises(StorageError, match=r"model_state\.pdparams.* (asks for|'O8')"):
        read_weights(file)
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\ndtype\n(dS'__call__'\nI1\nsb.",  # a state for what stands for numpy.dtype
        b"ccollections\nOrderedDict\n(dS'x'\nI1\nsb.",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(dS'values'\nI1\nsb.",
        b"cnumpy.core.multiarray\n_reconstruct.__init__\n.",
        b"cnumpy\ndtype.__init__.__globals__\n.",
        b"Pid\n.",
        b"cbuiltins\ntuple\n.",
        b"(lp0\n.",
        b"\x80\x04" + b"(" * 9,
        b"",
    ],
    ids=range(10),
)
def test_a_pickle_cannot_change_what_it_may_use(tmp_path: Path, program: bytes) -> None:
    file = tmp_path / "model_state.pdparams"
    file.write_bytes(program)
    with pytest.raises(StorageError, match=r"model_state\.pdparams"):
        read_weights(file)
    assert_known(GOLDEN / "paddle" / "protocol2.pdparams")


@pytest.mark.parametrize(
    "content", [{"a": 1}, {"a": "text"}, {1: np.zeros(2)}, {"a": {"b": np.zeros(2)}}, [1]]
)
def test_what_is_not_an_array_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(StorageError, match=r"not an array|a list|a key has"):
        read_weights(pickled(tmp_path, content))


FILES = [GOLDEN / "paddle" / "protocol2.pdparams", GOLDEN / "paddle" / "protocol4.pdparams"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(st.sampled_from(FILES), st.data())
def test_a_damaged_file_is_an_error_or_other_numbers(tmp_path: Path, whole: Path, data: Any) -> None:
    content = bytearray(whole.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path / "model_state.pdparams"
    file.write_bytes(content)
    with suppress(StorageError):
        assert all(isinstance(value, Tensor) for value in read_weights(file).values())


@pytest.mark.parametrize(
    ("told", "encoder"),
    [
        ({"init_class": "BertModel"}, BERT),
        ({"init_args": [{"init_class": "ErnieModel"}], "init_class": "ErnieForTokenClassification"}, ERNIE),
        ({"model_type": "ernie"}, ERNIE),
        ({"init_class": "RobertaModel", "pad_token_id": 1}, RoBERTa),
        ({"init_class": "RobertaModel", "pad_token_id": 0}, BERT),
        ({"architectures": ["ErnieForMaskedLM"]}, ERNIE),
    ],
)
def test_paddlenlps_configurations_tell_the_encoder(
    tmp_path: Path, told: dict[str, Any], encoder: type[BERT]
) -> None:
    pickled(tmp_path, arrays())
    assert type(load_backbone(config(tmp_path, "model_config.json", **told))) is encoder


def test_sizes_in_the_inner_arguments_of_paddlenlp_count(tmp_path: Path) -> None:
    pickled(tmp_path, arrays())
    content = {
        "init_args": [{**SIZES, "init_class": "BertModel"}, 2],
        "init_class": "BertForTokenClassification",
    }
    (tmp_path / "model_config.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_directory(tmp_path).settings == {**SIZES, "type_vocab_size": 2}


def test_an_encoder_of_paddles_own_layers_computes_the_same_here(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle", reason="paddlepaddle is not installed")
    nn = paddle.nn
    paddle.seed(1)
    model = nn.Layer()
    embeddings, pooler = nn.Layer(), nn.Layer()
    for name, rows in (("word", 30), ("position", 12), ("token_type", 2)):
        setattr(embeddings, f"{name}_embeddings", nn.Embedding(rows, 16))
    embeddings.layer_norm, pooler.dense = nn.LayerNorm(16), nn.Linear(16, 16)
    model.embeddings, model.pooler = embeddings, pooler
    model.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, 0.0, "gelu"), 2)
    model.eval()
    paddle.save(model.state_dict(), str(tmp_path / "model_state.pdparams"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 30}
    told = {**sizes, "max_position_embeddings": 12, "layer_norm_eps": 1e-5, "init_class": "BertModel"}
    backbone = load_backbone(config(tmp_path, "model_config.json", **told))

    ids, positions, segments = [[3, 7, 29, 1]], [[0, 1, 2, 3]], [[0, 0, 1, 1]]
    all_reduce_sum = embeddings.word_embeddings(paddle.to_tensor(ids))
    all_reduce_sum = all_reduce_sum + embeddings.position_embeddings(paddle.to_tensor(positions))
    all_reduce_sum = all_reduce_sum + embeddings.token_type_embeddings(paddle.to_tensor(segments))
    theirs = model.encoder(embeddings.layer_norm(all_reduce_sum))
    pooled = paddle.tanh(pooler.dense(theirs[:, 0]))
    inputs = {"token_ids": ids, "position_ids": positions, "segment_ids": segments}
    tensors = {name: torch.tensor(value) for name, value in inputs.items()}
    with torch.no_grad():
        outputs = backbone({**tensors, "input_mask": torch.ones(1, 4, dtype=torch.bool)})
    np.testing.assert_allclose(outputs["encoder_outputs"], theirs.numpy(), atol=1e-5)
    np.testing.assert_allclose(outputs["sentence_embedding"], pooled.numpy(), atol=1e-5)


# ---- PaddlePALM ----


@needs_shared
def test_a_checkpoint_of_fluid_loads_without_its_optimizer(caplog: pytest.LogCaptureFixture) -> None:
    with np.load(RUN / "values_step_30.npz") as file:
        values = {name: torch.from_numpy(file[name]) for name in file.files}
    sizes = json.loads((RUN.parent / "pretrain_bert" / "bert_config.json").read_text(encoding="utf-8"))
    backbone = BERT.from_config({**sizes, "intermediate_size": None})
    with caplog.at_level("INFO", "palm"):
        report = load_pretrain(backbone, RUN / "out" / "step_30")
    assert len(report.loaded) == 39
    assert any(record.args[:1] == (RUN / "out" / "step_30",) for record in caplog.records)
    assert not [name for name in (*report.unused, *report.left_out) if "moment" in name]
    for name, value in from_ours(backbone.state_dict(), "paddlepalm").items():
        assert torch.equal(value, values[f"__paddlepalm_{name}"]), name


def test_a_real_bert_in_paddlepalms_format_computes_the_same(tmp_path: Path) -> None:
    told = settings_of_directory(minilm())
    assert (told["backbone"], Path(told["vocab_path"]).name) == ("bert", "tokenizer.json")
    source = BERT.from_config(json.loads((minilm() / "config.json").read_text(encoding="utf-8"))).eval()
    load_pretrain(source, minilm())
    write_variables(tmp_path / "params", from_ours(source.state_dict(), "paddlepalm"))
    shutil.copy(minilm() / "config.json", tmp_path / "bert_config.json")
    shutil.copy(minilm() / "vocab.txt", tmp_path)
    directory = read_directory(tmp_path / "params")
    assert (directory.backbone, directory.given.layout) == ("bert", "paddlepalm")
    assert directory.vocab_path == tmp_path / "vocab.txt"
    backbone = load_backbone(tmp_path)
    ids = torch.tensor([[101, 7592, 1010, 2088, 999, 102]])
    inputs = {"token_ids": ids, "position_ids": torch.arange(6)[None], "segment_ids": torch.zeros_like(ids)}
    inputs["input_mask"] = torch.ones(1, 6, dtype=torch.bool)
    with torch.no_grad():
        theirs, ours = source(inputs), backbone(inputs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
