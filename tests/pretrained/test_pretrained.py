"""Weights of Hugging Face, PaddlePALM and our own models load whole, or an error says what is wrong."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers.components import encoder_inputs
from helpers.equal import differing
from helpers.golden_forward import FOLDER, arrays, backbone_of, batch_of, sampled
from helpers.shared import RECORDED_0, minilm, needs_shared
from helpers.tiny import sizes
from palm.backbone import BERT, ERNIE, Backbone
from palm.compat.paddle_files import read_variables
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.pretrained.directory import read_weights
from palm.pretrained.loading import load_backbone, load_pretrain
from palm.pretrained.names import from_ours, to_ours

SENTENCES = [
    "Yes.",
    "The quick brown fox jumps over the lazy dog, and nobody in the village can say why it does so.",
    "PaddlePALM is a multi-task learning framework.",
]


def tiny(**settings: Any) -> BERT:
    torch.manual_seed(5)
    return BERT(**{**SIZES, **settings})


SIZES = sizes(8, 2, 2, vocab_size=20, max_position_embeddings=10, intermediate_size=12)


def hugging_face(folder: Path, backbone: Backbone, prefix: str = "", **config: object) -> Path:
    """A directory as transformers writes it."""
    folder.mkdir(exist_ok=True)
    weights = from_ours(backbone.state_dict(), "huggingface")
    save_file(
        {prefix + name: value.contiguous() for name, value in weights.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps({**SIZES, **config}), encoding="utf-8")
    return folder


def real_batch(folder: Path) -> tuple[dict[str, Tensor], Any]:
    transformers = pytest.importorskip("transformers")
    encoded = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    mask = encoded["attention_mask"].bool()
    inputs = encoder_inputs(encoded["input_ids"], mask, segment_ids=encoded["token_type_ids"])
    return inputs, transformers.BertModel.from_pretrained(folder).eval()(**encoded)


def test_a_real_bert_equals_transformers_on_a_padded_batch_of_sentences() -> None:
    folder = minilm()
    inputs, theirs = real_batch(folder)
    encoder = BERT.from_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    load_pretrain(encoder, folder)
    outputs = encoder.eval()(inputs)
    real = inputs["input_mask"]
    assert real.sum(1).tolist() == [4, 24, 13]
    torch.testing.assert_close(
        outputs["encoder_outputs"][real], theirs.last_hidden_state[real], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(outputs["sentence_embedding"], theirs.pooler_output, atol=1e-5, rtol=0)
    means = (theirs.last_hidden_state * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    # The directory is a sentence encoder, which says that it takes the mean.
    torch.testing.assert_close(load_backbone(folder)(inputs)["sentence_embedding"], means, atol=1e-5, rtol=0)


@needs_shared
def test_a_real_bert_equals_what_paddlepalm_made_of_it() -> None:
    with np.load(RECORDED_0 / "minilm" / "minilm_forward.npz") as file:
        golden = {name: torch.from_numpy(file[name]) for name in file.files}
    inputs = {
        name: golden[f"in/{name}"].squeeze(-1)
        for name in ("token_ids", "position_ids", "segment_ids", "input_mask")
    }
    inputs["input_mask"] = real = inputs["input_mask"].bool()
    config = json.loads((minilm() / "config.json").read_text(encoding="utf-8"))
    backbone = BERT.from_config({**config, "layer_norm_eps": 1e-6}).eval()
    load_pretrain(backbone, minilm())
    with torch.no_grad():
        outputs = backbone(inputs)
    for name in ("word_embedding", "encoder_outputs"):
        torch.testing.assert_close(outputs[name][real], golden[f"bb/{name}"][real], atol=2e-5, rtol=0)
    for name in ("sentence_embedding", "sentence_pair_embedding"):
        torch.testing.assert_close(outputs[name], golden[f"bb/{name}"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "prefix",
    ["", "bert.", "_orig_mod.", "module.bert.", "model.bert.", "model._orig_mod.bert.", "0.auto_model."],
)
def test_a_hugging_face_directory_loads_completely(tmp_path: Path, prefix: str) -> None:
    saved = tiny()
    loaded = load_backbone(hugging_face(tmp_path, saved, prefix, model_type="bert"))
    assert isinstance(loaded, BERT)
    assert differing(loaded, saved) == []
    assert not loaded.training


@pytest.mark.parametrize("has_tasks", [True, False])
def test_a_hugging_face_ernie_loads_with_or_without_task_embeddings(tmp_path: Path, has_tasks: bool) -> None:
    saved = ERNIE(**SIZES, use_task_id=has_tasks)
    config = {"model_type": "ernie", "task_type_vocab_size": 3, "type_vocab_size": 2}
    for told in ({}, {"use_task_id": has_tasks}, {"use_task_emb": has_tasks}):
        loaded = load_backbone(hugging_face(tmp_path, saved, "ernie.", **config, **told))
        assert isinstance(loaded, ERNIE)
        assert ("task_ids" in loaded.inputs_attr) == has_tasks
        assert differing(loaded, saved) == []


def test_transformers_own_files_load_in_all_their_forms(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(transformers.BertConfig(**SIZES)).eval()
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    (tmp_path / "pickled").mkdir()
    shutil.copy(tmp_path / "one" / "config.json", tmp_path / "pickled")
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    assert (tmp_path / "shards" / "model.safetensors.index.json").is_file()
    inputs = encoder_inputs(torch.tensor([[1, 2, 3]]), segment_ids=torch.tensor([[0, 0, 1]]))
    theirs = model.bert(inputs["token_ids"], token_type_ids=inputs["segment_ids"])
    for form in ("one", "shards", "pickled"):
        outputs = load_backbone(tmp_path / form)(inputs)
        torch.testing.assert_close(outputs["encoder_outputs"], theirs.last_hidden_state, atol=1e-6, rtol=0)
        torch.testing.assert_close(outputs["sentence_embedding"], theirs.pooler_output, atol=1e-6, rtol=0)


def test_a_hugging_face_ernie_computes_the_same_here(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ErnieConfig(**SIZES, type_vocab_size=4, use_task_id=True, task_type_vocab_size=3)
    model = transformers.ErnieModel(config).eval()
    model.save_pretrained(tmp_path)
    inputs = encoder_inputs(
        torch.tensor([[1, 2, 3]]), segment_ids=torch.tensor([[0, 3, 1]]), task_ids=torch.tensor([[2, 2, 2]])
    )
    outputs = load_backbone(tmp_path)(inputs)
    theirs = model(
        inputs["token_ids"], token_type_ids=inputs["segment_ids"], task_type_ids=inputs["task_ids"]
    )
    torch.testing.assert_close(outputs["encoder_outputs"], theirs.last_hidden_state, atol=1e-6, rtol=0)


def test_the_report_shows_what_was_left_out_and_what_was_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = hugging_face(tmp_path, tiny(num_hidden_layers=3))
    weights = load_file(folder / "model.safetensors")
    extra = {"cls.predictions.bias": torch.zeros(20), "embeddings.position_ids": torch.arange(10)}
    save_file({**weights, **extra, "adapter.down": torch.zeros(2)}, folder / "model.safetensors")
    with caplog.at_level(logging.WARNING, "palm"):
        report = load_pretrain(tiny(), folder)
    assert len(report.loaded) == 39
    assert report.missing == ()
    assert set(report.left_out) == set(extra)
    assert report.unused[0] == "adapter.down"
    assert set(report.unused[1:]) == {
        name for name in tiny(num_hidden_layers=3).state_dict() if "layers.2" in name
    }
    assert str(report) in caplog.text
    assert str(report).startswith(f"39 of the backbone's 39 parameters loaded from {folder}\n  left out: ")
    assert "unused: adapter.down" in str(report)
    assert "and 11 more" in str(report)


def test_a_missing_pooler_is_reported_and_initialized(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved, loaded = tiny(), tiny(initializer_range=0.5)
    fresh = loaded.pooler.weight.detach().clone()
    weights = {name: value for name, value in saved.state_dict().items() if not name.startswith("pooler.")}
    save_file(from_ours(weights, "huggingface"), tmp_path / "model.safetensors")
    with caplog.at_level(logging.WARNING, "palm"):
        report = load_pretrain(loaded, tmp_path)
    assert report.missing == ("pooler.weight", "pooler.bias")
    assert "pooler.weight" in caplog.text
    assert torch.equal(loaded.pooler.weight, fresh)
    assert torch.equal(loaded.embeddings.word_table, saved.embeddings.word_table)


def test_missing_task_embeddings_become_zero_so_that_the_encoder_computes_the_same(tmp_path: Path) -> None:
    saved = ERNIE(**SIZES, use_task_id=False, initializer_range=0.3).eval()
    save_file(from_ours(saved.state_dict(), "huggingface"), tmp_path / "model.safetensors")
    loaded = ERNIE(**SIZES).eval()
    assert load_pretrain(loaded, tmp_path).missing == ("embeddings.task.weight",)
    inputs = {name: torch.tensor([[0, 1, 1]]) for name in loaded.inputs_attr}
    inputs["input_mask"] = torch.ones(1, 3, dtype=torch.bool)
    assert torch.equal(loaded(inputs)["sentence_embedding"], saved(inputs)["sentence_embedding"])


def test_a_missing_encoder_parameter_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    weights = from_ours(tiny().state_dict(), "huggingface")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file({**weights, "encoder.layer.1.output.bias": torch.zeros(8)}, tmp_path / "model.safetensors")
    backbone, before = tiny(initializer_range=0.5), tiny(initializer_range=0.5)
    message = r"missing, 1 of 39: layers\.1\.ffn\.outer\.bias\n.*unknown to the backbone: encoder\.layer\.1"
    with pytest.raises(StorageError, match=message):
        load_pretrain(backbone, tmp_path)
    assert differing(backbone, before) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 21}, r"embeddings\.word\.weight: \[20, 8\] .* \[21, 8\] "),
        ({"intermediate_size": None}, r"layers\.0\.ffn\.inner\.weight: \[12, 8\] .* \[32, 8\] "),
        ({"hidden_size": 4}, r"embeddings\.norm\.bias: \[8\] .* \[4\] .*(.*\n)*  and \d+ more"),
    ],
)
def test_weights_of_another_shape_are_named(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        load_pretrain(tiny(**settings), hugging_face(tmp_path, tiny()))


def test_half_precision_weights_load_as_single_precision(tmp_path: Path) -> None:
    saved = tiny().half()
    loaded = load_backbone(hugging_face(tmp_path, saved))
    assert loaded.get_parameter("pooler.weight").dtype == torch.float32
    assert differing(loaded, saved.float()) == []


def test_old_spellings_of_layer_norm_are_understood(tmp_path: Path) -> None:
    saved = tiny()
    weights = from_ours(saved.state_dict(), "huggingface")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    save_file(old, tmp_path / "model.safetensors")
    loaded = tiny(initializer_range=0.5)
    assert load_pretrain(loaded, tmp_path).unused == ()
    assert differing(loaded, saved) == []


def test_our_own_model_directory_gives_its_backbone(tmp_path: Path) -> None:
    saved = ERNIE(**SIZES, sent_type_vocab_size=4)
    weights = {f"backbone.{name}": value for name, value in saved.state_dict().items()}
    save_file({**weights, "paradigm.out.weight": torch.zeros(2, 8)}, tmp_path / "model.safetensors")
    description = {"format": "palm-model", "backbone": {"name": "ernie", "settings": saved.settings}}
    (tmp_path / "config.json").write_text(json.dumps(description), encoding="utf-8")
    loaded = load_backbone(tmp_path)
    assert differing(loaded, saved) == []
    assert load_pretrain(ERNIE(**SIZES, sent_type_vocab_size=4), tmp_path).left_out == (
        "paradigm.out.weight",
    )


@pytest.mark.parametrize("layout", ["huggingface", "paddlepalm"])
def test_renaming_there_and_back_changes_nothing(layout: Any) -> None:
    weights = ERNIE(**SIZES).state_dict()
    theirs = from_ours(weights, layout)
    assert not set(theirs) & set(weights)
    back = to_ours(theirs)
    assert back.left_out == back.unused == []
    assert back.weights.keys() == weights.keys()
    assert all(torch.equal(back.weights[name], weights[name]) for name in weights)


def unpacked(kind: str, folder: Path) -> Path:
    """The golden archive as PaddlePALM unpacks it: one file per variable."""
    with tarfile.open(FOLDER / f"pretrain_{kind}" / "params" / "__palmmodel__") as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            (folder / member.name).write_bytes(file.read())
    return folder


@pytest.mark.parametrize("kind", ["bert", "ernie"])
@pytest.mark.parametrize("form", ["archive", "model", "variables", "bare names"])
def test_paddlepalms_pretrained_weights_load_completely(tmp_path: Path, kind: str, form: str) -> None:
    model = FOLDER / f"pretrain_{kind}"
    if form in ("archive", "model"):
        path = model / "params" if form == "archive" else model
    else:
        shutil.copy(model / f"{kind}_config.json", tmp_path)
        path = tmp_path / "params"
        path.mkdir()
        unpacked(kind, path)
        if form == "bare names":
            for file in list(path.iterdir()):
                file.rename(path / file.name.removeprefix("__paddlepalm_"))
    backbone = load_backbone(path)
    assert type(backbone).__name__ == kind.upper()
    theirs = from_ours(backbone.state_dict(), "paddlepalm")
    values = arrays(f"pretrain_{kind}/values.npz")
    assert theirs.keys() == values.keys()
    for name, value in values.items():
        assert torch.equal(sampled(theirs[name].contiguous(), value).flatten(), value.flatten()), name


def test_what_is_beside_paddlepalms_weights_is_not_a_weight(tmp_path: Path) -> None:
    unpacked("bert", tmp_path)
    for name in ("__conf__", "__paddlepalm_word_embedding_moment1_0", "@LR_DECAY_COUNTER@", ".DS_Store"):
        (tmp_path / name).write_bytes(b"anything")
    shutil.copy(tmp_path / "__paddlepalm_pooled_fc.b_0", tmp_path / "mask_lm_trans_fc.b_0")
    report = load_pretrain(backbone_of("bert"), tmp_path)
    assert len(report.loaded) == 39
    assert report.left_out == ("mask_lm_trans_fc.b_0",)
    assert report.unused == ()


def test_the_recorded_bert_computes_the_same_from_its_params() -> None:
    config = json.loads((FOLDER / "pretrain_bert" / "bert_config.json").read_text(encoding="utf-8"))
    backbone = BERT.from_config({**config, "intermediate_size": None})
    load_pretrain(backbone, FOLDER / "pretrain_bert" / "params")
    inputs = batch_of("bert", "ragged", "cls")
    with torch.no_grad():
        again = load_backbone(FOLDER / "pretrain_bert")(inputs)["sentence_embedding"]
        assert torch.equal(backbone.eval()(inputs)["sentence_embedding"], again)


def variable(values: list[float], shape: list[int], dtype: int = 5) -> bytes:
    """A variable file, written from its description."""
    described = bytes([0x08, dtype]) + b"".join(bytes([0x10, size]) for size in shape)
    return (
        struct.pack("<IQIi", 0, 0, 0, len(described)) + described + struct.pack(f"<{len(values)}f", *values)
    )


def read_variable(folder: Path, data: bytes) -> list[Any]:
    (folder / "word_embedding").write_bytes(data)
    return read_variables(folder / "word_embedding")["word_embedding"].tolist()


def test_a_variable_is_read_byte_by_byte_as_its_format_says(tmp_path: Path) -> None:
    data = variable([1.5, -2.0, 0.25, 8.0, 0.0, 3.0], [2, 3])
    assert read_variable(tmp_path, data) == [[1.5, -2.0, 0.25], [8.0, 0.0, 3.0]]
    with_level = data[:4] + struct.pack("<QQQQ", 1, 16, 0, 6) + data[12:]
    assert read_variable(tmp_path, with_level) == [[1.5, -2.0, 0.25], [8.0, 0.0, 3.0]]
    wide = struct.pack("<IQIi", 0, 0, 0, 5) + b"\x08\x03\x10\xac\x02" + struct.pack("<300q", *range(300))
    assert read_variable(tmp_path, wide) == list(range(300))  # 0xac 0x02 is the varint of 300


def damaged(folder: Path, name: str, data: bytes) -> Path:
    (folder / name).write_bytes(data)
    return folder


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (Path("evil"),)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("model.safetensors", b"nothing", r"cannot read .*model\.safetensors"),
        ("pytorch_model.bin", b"nothing", r"cannot read .*pytorch_model\.bin"),
        ("pytorch_model.bin", pickle.dumps(Evil(), protocol=2), r"model\.bin as a dictionary of tensors"),
        ("model.safetensors.index.json", b"{}", r"index\.json.* 'weight_map'"),
        ("__palmmodel__", b"nothing", r"cannot read .*__palmmodel__"),
    ],
    ids=["safetensors", "not a pickle", "pickled code", "index", "archive"],
)
def test_a_damaged_or_unknown_file_is_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        read_weights(damaged(tmp_path, name, data))
    assert not Path("evil").exists()


def test_a_path_that_does_not_exist_or_is_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nowhere: .*model\.safetensors"):
        load_pretrain(tiny(), tmp_path / "nowhere")
    with pytest.raises(StorageError, match="it is empty; expected"):
        load_backbone(tmp_path)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, StorageError, r"config\.json, bert_config\.json"),
        ("{", StorageError, r"cannot read .*config\.json"),
        ("[]", StorageError, "JSON object"),
        ('{"model_type": "xlnet"}', StorageError, r"config\.json: .*'xlnet'.* distilbert"),
        ('{"position_embedding_type": "relative_key"}', StorageError, "_type is 'relative_key'"),
        ("{}", ConfigError, r"config\.json: hidden_size: .*BERT"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(
    tmp_path: Path, content: str | None, error: type[PalmError], message: str
) -> None:
    folder = hugging_face(tmp_path, tiny())
    (folder / "config.json").unlink()
    if content is not None:
        (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(error, match=message):
        load_backbone(folder)
