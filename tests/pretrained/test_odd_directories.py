"""Directories whose files are odd, damaged or hostile: refused by name, without a traceback."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import palm
from helpers import tiny
from helpers.messages import raises
from helpers.reader_files import write_vocabulary
from palm.backbone import BERT
from palm.core.errors import DataError, StorageError
from palm.paradigm import Classify
from palm.pretrained.directory import read_weights
from palm.pretrained.loading import load_backbone, load_pretrain
from palm.pretrained.names import from_ours
from palm.pretrained.peft import read_adapters
from palm.reader.tokenizer import SPECIAL_TOKENS, load_tokenizer

SIZES = tiny.sizes(8, 1, 2, intermediate_size=16, vocab_size=120, max_position_embeddings=16)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A plain BERT of transformers."""
    torch.manual_seed(0)
    weights = from_ours(BERT(**SIZES).state_dict(), "huggingface")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    write_vocabulary(tmp_path)
    write(tmp_path / "config.json", **SIZES, model_type="bert", type_vocab_size=2)
    return tmp_path


def write(file: Path, **content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def refused(folder: Path) -> str:
    with pytest.raises(palm.PalmError) as caught:
        load_backbone(folder)
    return str(caught.value)


def test_a_module_with_a_name_that_is_too_long_is_refused(folder: Path) -> None:
    kinds = {"": "Transformer", "x" * 5000: "Pooling"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    assert "modules.json" in refused(folder)


@pytest.mark.parametrize("value", [5, [5], [None], {"a": 1}, "BertModel", [["BertModel"]], True])
def test_architectures_of_any_type_are_read_or_refused(folder: Path, value: Any) -> None:
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del content["model_type"]
    write(folder / "config.json", **content, architectures=value)
    with suppress(palm.PalmError):
        assert isinstance(load_backbone(folder), BERT)
    with suppress(palm.PalmError):
        load_pretrain(BERT(**SIZES), folder, [("t", Classify(2, 8), ["a", "b"])])


@pytest.mark.parametrize("value", [5, ["a"], {"x": "a"}, {"0": ["a"]}, {"0": None, "1": 2}])
def test_labels_of_any_type_are_read_or_refused(folder: Path, value: Any) -> None:
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = "BertForSequenceClassification"
    write(folder / "config.json", **content, architectures=[name], id2label=value)
    weights = load_file(folder / "model.safetensors")
    head = {"classifier.weight": torch.ones(2, 8), "classifier.bias": torch.ones(2)}
    save_file({**weights, **head}, folder / "model.safetensors", {"format": "pt"})
    with suppress(palm.PalmError):
        load_pretrain(BERT(**SIZES), folder, [("t", Classify(2, 8), ["a", "b"])])


@pytest.mark.parametrize(
    "pooling",
    [
        {"pooling_mode": 5}, {"pooling_mode": ["cls", "mean"]}, {"pooling_mode": None}, {},
        {"pooling_mode": {"a": 1}}, {"pooling_mode_mean_tokens": "yes"}, {"pooling_mode": [["cls"]]},
        {"pooling_mode": "weightedmean"},
    ],
)  # fmt: skip
def test_a_pooling_of_another_type_or_kind_is_refused_by_name(folder: Path, pooling: Any) -> None:
    write(folder / "1_Pooling" / "config.json", **pooling)
    assert "1_Pooling" in refused(folder)


@pytest.mark.parametrize(
    "modules",
    ["{}", "[]", "[5]", '[{"type": 5, "path": ""}]', '[{"type": "x.Transformer", "path": "../up"}]', "5"],
)
def test_a_list_of_modules_of_another_form_is_refused(folder: Path, modules: str) -> None:
    (folder / "modules.json").write_text(modules, encoding="utf-8")
    assert "modules.json" in refused(folder)


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (["Pooling", "Normalize", "Dense"], "Normalize"),
        (["Pooling", "Dense", "Dense"], "Dense"),
        (["Pooling", "LayerNorm"], "LayerNorm"),
        (["WeightedLayerPooling", "Pooling"], "WeightedLayerPooling"),
        (["Pooling", "Pooling"], "Pooling"),
    ],
)
def test_modules_that_palm_does_not_compute_are_refused_by_name(
    folder: Path, kinds: list[str], named: str
) -> None:
    listed = [
        {"path": "" if k == 0 else str(k), "type": f"x.{kind}"}
        for k, kind in enumerate(["Transformer", *kinds])
    ]
    (folder / "modules.json").write_text(json.dumps(listed), encoding="utf-8")
    plain = {"pooling_mode": "cls", "in_features": 8, "out_features": 8, "activation_function": "x.Tanh"}
    for number in range(1, len(listed)):
        write(folder / str(number) / "config.json", **plain)
    assert named in refused(folder)


def test_another_pooling_than_that_of_the_directory_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder / "1_Pooling" / "config.json", pooling_mode="mean")
    assert load_backbone(folder).settings["pooling"] == "mean"
    with caplog.at_level("INFO"):
        load_pretrain(BERT(**SIZES), folder)
    assert "itself is mean" in caplog.text


def test_eight_bit_floats_are_refused_by_name(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    message = refused(folder)
    assert "float8" in message
    assert "layers.0.ffn.outer.weight" in message


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "a.safetensors")
    save_file({"pooler.dense.bias": weights["pooler.dense.bias"] + 1}, folder / "b.safetensors")
    names = dict.fromkeys(weights, "a.safetensors") | {"pooler.dense.bias": "b.safetensors"}
    write(folder / "model.safetensors.index.json", weight_map=names)
    assert "pooler.dense.bias" in refused(folder)


# ---- tokenizers ----


@pytest.mark.parametrize(
    ("padding", "length"), [({"Fixed": 10**9}, None), ("BatchLongest", 10**9), ({"Fixed": 2**62}, 2**40)]
)
def test_padding_that_a_tokenizer_asks_for_takes_no_memory(folder: Path, padding: Any, length: Any) -> None:
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    stored = {
        "version": "1.0",
        "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": padding, "direction": "Right", "pad_to_multiple_of": length, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "[PAD]",
        },
        "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None, "decoder": None,
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {word: k for k, word in enumerate(words)},
        },
    }  # fmt: skip
    write(folder / "tokenizer.json", **stored)
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    assert [len(ids) for ids in tokenizer.encode(["the old boat"])] == [3]
    assert len(tokenizer.row([7], [8])) == 5


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
        {"tokenizer_class": "PhobertTokenizer"}, {"subword_tokenizer_type": "character"},
        {"do_basic_tokenize": False}, {"never_split": ["x"]}, {"tokenizer_class": 5},
    ],
)  # fmt: skip
def test_a_tokenizer_that_palm_does_not_compute_is_refused_by_name(
    folder: Path, settings: dict[str, Any]
) -> None:
    write(folder / "tokenizer_config.json", **settings)
    with raises(DataError, "tokenizer_config.json", str(next(iter(settings.values())))):
        load_tokenizer(folder / "vocab.txt")


def test_added_tokens_of_every_file_are_one_token(folder: Path) -> None:
    words = [*SPECIAL_TOKENS, "the", "e", "paris"]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    write(folder / "added_tokens.json", **{"[A]": 8})
    write(
        folder / "tokenizer_config.json",
        added_tokens_decoder={"9": {"content": "[B]", "special": True}, "3": {"content": "[SEP]"}},
    )
    write(folder / "special_tokens_map.json", additional_special_tokens=["[A]", {"content": "[C]"}])
    tokenizer = load_tokenizer(folder / "vocab.txt", do_lower_case=True)
    assert tokenizer.encode(["[A] the [B] [C] paris"]) == [[8, 5, 9, 10, 7]]
    assert tokenizer.sep_id not in tokenizer.encode(["[SEP]"])[0]


def test_added_tokens_are_found_as_transformers_finds_them(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    size = len((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))
    flags = {"normalized": False, "special": True, "lstrip": True, "rstrip": True, "single_word": False}
    word = {"content": "covid19", "normalized": True, "single_word": True}
    write(
        folder / "tokenizer_config.json",
        do_lower_case=True,
        tokenizer_class="BertTokenizer",
        added_tokens_decoder={
            str(size): {**flags, **word, "lstrip": False, "rstrip": False, "special": False},
            str(size + 1): {**flags, "content": "<V>"},
        },
    )
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_tokenizer(folder / "vocab.txt", do_lower_case=True)
    for text in ("the COVID19 boat", "xcovid19y", "[SEP] red  <V>  door <v>"):
        expected = theirs(text.replace("[SEP]", ""), add_special_tokens=False)["input_ids"]
        assert ours.encode([text.replace("[SEP]", "")])[0] == expected
    write(folder / "added_tokens.json", **{"[E1]": size + 2})
    again = load_tokenizer(folder / "vocab.txt", do_lower_case=True)
    assert again.encode(["[E1]"]) == again.encode(["[e1]"]) == [[size + 2]]


def test_texts_are_lower_cased_where_sentence_transformers_says_so(folder: Path) -> None:
    plain = load_tokenizer(folder / "vocab.txt").encode(["The BOAT"])
    write(folder / "sentence_bert_config.json", max_seq_length=16, do_lower_case=True)
    lowered = load_tokenizer(folder / "vocab.txt").encode(["The BOAT"])
    assert lowered == load_tokenizer(folder / "vocab.txt", do_lower_case=True).encode(["The BOAT"]) != plain


# ---- adapters ----


def factors(**changed: Any) -> dict[str, torch.Tensor]:
    start = "base_model.model.encoder.layer.0.attention.self.query"
    plain = {f"{start}.lora_A.weight": torch.ones(2, 8), f"{start}.lora_B.weight": torch.ones(8, 2)}
    return {**plain, **changed}


LORA = {"peft_type": "LORA", "r": 2, "lora_alpha": 4.0, "target_modules": ["query"]}
QUERY = "base_model.model.encoder.layer.0.attention.self.query"


@pytest.mark.parametrize(
    ("settings", "tensors", "named"),
    [
        ({"lora_alpha": 1e308}, {}, "alpha"),
        ({"lora_alpha": 0}, {}, "alpha"),
        ({"lora_alpha": "x"}, {}, "alpha"),
        (
            {"r": 0},
            {f"{QUERY}.lora_A.weight": torch.ones(0, 8), f"{QUERY}.lora_B.weight": torch.ones(8, 0)},
            "query",
        ),
        ({"r": 4}, {}, "query"),
        ({}, {f"{QUERY}.lora_A.weight": torch.ones(2, 8, dtype=torch.complex64)}, "query"),
        ({}, {f"{QUERY}.lora_A.weight": torch.full((2, 8), torch.inf)}, "query"),
        ({"use_rslora": True}, {}, "use_rslora"),
        ({"lora_bias": True}, {}, "lora_bias"),
        ({"layer_replication": [[0, 1]]}, {}, "layer_replication"),
        ({"a_new_method": {"x": 1}}, {}, "a_new_method"),
        ({}, {"base_model.model.embeddings.word_embeddings.weight": torch.ones(120, 8)}, "word_embeddings"),
        ({"peft_type": "IA3"}, {}, "IA3"),
        ({"rank_pattern": 5}, {}, "adapter_config.json"),
    ],
)
def test_adapters_that_palm_does_not_compute_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], named: str
) -> None:
    write(tmp_path / "adapter_config.json", **{**LORA, **settings})
    save_file({**factors(), **tensors}, tmp_path / "adapter_model.safetensors")
    with raises(StorageError, named):
        read_adapters(BERT(**SIZES), tmp_path)


def test_settings_of_adapters_that_only_matter_to_training_are_read(tmp_path: Path) -> None:
    write(
        tmp_path / "adapter_config.json", **LORA, lora_dropout=0.1, init_lora_weights=True, peft_version="1"
    )
    head = {"base_model.model.classifier.weight": torch.ones(2, 8)}
    save_file({**factors(), **head}, tmp_path / "adapter_model.safetensors")
    assert read_adapters(BERT(**SIZES), tmp_path).alpha == 4.0


def test_links_to_files_that_were_deleted_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").symlink_to("../../blobs/1")
    with raises(StorageError, "no weights at", "model.safetensors are links"):
        read_weights(tmp_path)
