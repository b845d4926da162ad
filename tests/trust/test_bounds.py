"""Small files that would cost gigabytes or hours are refused, and malformed ones named, in every format."""

from __future__ import annotations

import gzip
import json
import resource
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import palm
from helpers import saved, tiny
from helpers.bag import with_bag
from helpers.foreign_files import SIZES, known, paddlenlp, write_variables
from palm.config import yaml_text
from palm.config.files import read_json as read_backbone_json
from palm.config.files import read_yaml
from palm.core.device import within_weights
from palm.core.errors import ConfigError, DataError, PalmError, StorageError
from palm.core.io import read_json
from palm.paradigm import Classify
from palm.pretrained.directory import read_directory, read_weights
from palm.reader.labels import Labels
from palm.reader.tables.files import SUFFIX, Selection, data_checksum
from palm.reader.tables.reading import raw_rows, usable
from palm.reader.tokenizer import load_tokenizer


@contextmanager
def within(megabytes: int) -> Iterator[None]:
    """No more memory is taken by Python and numpy."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes << 20


def refused(file: Path, message: str) -> None:
    with within(64), pytest.raises(StorageError, match=message) as found:
        read_weights(file)
    assert str(file.parent) in str(found.value)


# ---- JSON ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
        (b"9" * 5000, "5000 digits; .* 400"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'{"a": "caf\xe9"}', "it is not UTF-8 text: byte 10, in line 1, is 0xe9"),
        (b"{", "it is not JSON: .*line 1 column 2"),
        (b"", "it is not JSON"),
        (b"[" + b"{}," * (6 << 20) + b"{}]", "it is larger than 16 MiB"),
    ],
)
def test_json_that_is_too_much_or_nothing_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    with within(64), pytest.raises(StorageError, match=rf"cannot read .*config\.json: .*{message}"):
        read_json(file)
    (tmp_path / "vocab.json").write_bytes(text)
    (tmp_path / "vocab.json").write_bytes(text)
    if b"{}" not in text:  # vocabularies may be twice as large
        with pytest.raises(DataError, match=rf"vocab\.json: .*{message}"):
            load_tokenizer(tmp_path / "vocab.json")
        label_map = tmp_path / "labels.json"
        label_map.write_bytes(text)
        with pytest.raises(DataError, match=r"^.*labels\.json:"):
            Labels(None, label_map)
        with pytest.raises(ConfigError, match=r"config\.json:"):
            read_backbone_json(file)


def test_a_label_with_an_id_that_no_tensor_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'a' .* 2147483647"):
        Labels(None, {"a": 10**30})


# ---- YAML ----

LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}, *a{k - 1}]\n" for k in range(1, 30)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{k}: &a{k}\n  <<: [*a{k - 1}, *a{k - 1}, *a{k - 1}]\n" for k in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"c\.yaml: not YAML: more than 100000 values"),
        (MERGES, r"c\.yaml: not YAML: more than 100000 values"),
        ("a: &a\n  <<: *a\n", r"c\.yaml: not YAML: nested too deeply"),
        ("[" * 100_000, "c.yaml: not YAML: nested too deeply"),
        ("- " * 100_000, "c.yaml: not YAML: nested too deeply"),
        ("#" * (5 << 20), "c.yaml: cannot be read: it is larger than 4 MiB"),
    ],
)
def test_yaml_that_is_too_much_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_yaml(tmp_path / "c.yaml", [])


def test_a_number_of_5000_digits_in_a_configuration_is_a_value_that_does_not_fit(folder: Path) -> None:
    config = {name: value for name, value in tiny.config(folder, "cls").items() if name != "batch_size"}
    text = f"batch_size: {'9' * 5000}\n{yaml_text(config)}"
    (folder / "c.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c\.yaml:1: batch_size should be .*, not 9999"):
        palm.Controller(folder / "c.yaml", argv=[])
    with pytest.raises(ConfigError, match=r"--batch_size should be .*, not "):
        palm.Controller(tiny.config(folder, "cls"), argv=["--batch_size", "9" * 5000])


# ---- Pickles ----


@pytest.mark.parametrize(
    "program",
    [
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x0f.",  # an array of 2**60 bytes
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x0f.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x0f.",
        b"\x80\x02]r\xff\xff\xff\x7f.",  # remembers an empty list under the number 2**31 - 1
        b"I" + b"9" * 100_000 + b"\n.",
    ],
    ids=["bytearray", "bytes", "frame", "memo", "digits"],
)
def test_sizes_in_a_pickle_are_not_allocated(tmp_path: Path, program: bytes) -> None:
    (tmp_path / "model_state.pdparams").write_bytes(program)
    refused(tmp_path / "model_state.pdparams", "cannot read .* as Paddle's arrays: ")


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_bin_of_torch_reads_as_torch_reads_it(tmp_path: Path, is_zip: bool) -> None:
    linear = torch.nn.Linear(3, 4)
    state = linear.state_dict()
    state |= {
        "tied": state["weight"],
        "turned": torch.arange(12).reshape(3, 4).t(),
        "none": torch.empty(0, 3),
    }
    state |= {"half": torch.randn(3).half(), "brain": torch.randn(3).bfloat16(), "one": torch.tensor(3.0)}
    state |= {"parameter": linear.weight, "part": torch.arange(9)[3:5], "truth": torch.tensor([True, False])}
    file = tmp_path / "pytorch_model.bin"
    torch.save(state, file, _use_new_zipfile_serialization=is_zip)
    read, heads = read_weights(file), read_weights(file, headers=True)
    assert list(read) == list(heads) == list(state)
    for name, value in state.items():
        assert torch.equal(read[name], value), name
        assert read[name].dtype == heads[name].dtype == value.dtype
        assert heads[name].shape == value.shape
        assert heads[name].device.type == "meta"


def test_a_bin_with_compressed_entries_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1 << 20)}, tmp_path / "whole.bin")
    with (
        zipfile.ZipFile(tmp_path / "whole.bin") as whole,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for entry in whole.infolist():
            small.writestr(entry.filename, whole.read(entry))
    refused(tmp_path / "pytorch_model.bin", "compressed")


# ---- tar, Fluid ----


def test_a_member_that_claims_more_than_gzip_can_hold_is_refused(tmp_path: Path) -> None:
    header = struct.pack("<IQIi", 0, 0, 0, 9) + b"\x08\x05\x10" + b"\x80\x80\x80\x80\x80\x01"
    member = tarfile.TarInfo("zeros.w_0")
    member.size = len(header) + 4 * (1 << 35)
    (tmp_path / "__palmmodel__").write_bytes(gzip.compress(member.tobuf() + header))
    refused(tmp_path / "__palmmodel__", r"zeros\.w_0 .*more than the archive can hold")


def test_a_packed_model_that_is_cut_short_is_named(tmp_path: Path) -> None:
    write_variables(tmp_path / "params", {"word_embedding": torch.randn(400)})
    with tarfile.open(tmp_path / "__palmmodel__", "w:gz") as tar:
        tar.add(tmp_path / "params" / "word_embedding", "word_embedding")
    whole = (tmp_path / "__palmmodel__").read_bytes()
    assert read_weights(tmp_path, headers=True)["word_embedding"].shape == (400,)
    for end in (0, 1, 20, 200, len(whole) - 1):
        (tmp_path / "__palmmodel__").write_bytes(whole[:end])
        refused(tmp_path / "__palmmodel__", "cannot read ")
    (tmp_path / "__palmmodel__").write_bytes(gzip.compress(b"x" * 4096))
    refused(tmp_path / "__palmmodel__", "cannot read ")


# ---- safetensors and shards ----


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    for size in (2**27, 2**63):
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", size) + b"{}")
        refused(tmp_path / "model.safetensors", "its header")


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/model.safetensors", 7, None, "x.safetensors", "x.index"]
)
def test_an_index_of_shards_names_files_beside_it(tmp_path: Path, name: Any) -> None:
    save_file(known(), tmp_path / "model.safetensors")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.index").touch()
    index = tmp_path / "in" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}), encoding="utf-8")
    for headers in (False, True):
        with pytest.raises(
            StorageError, match=r"outside of it|x\.safetensors is missing|x\.index is not a file of weights"
        ):
            read_weights(tmp_path / "in", headers=headers)


# ---- What describes weights ----


@pytest.mark.parametrize(
    "config",
    [
        {**SIZES, "num_hidden_layers": 10**9},
        {**SIZES, "vocab_size": 10**12},
        {**SIZES, "hidden_act": ["gelu"]},
        {**SIZES, "architectures": 5},
        {**SIZES, "model_type": {}},
        {**SIZES, "hidden_size": None},
        {"backbone": {"name": "bert"}},
        {"backbone": {"name": ["bert"], "settings": {}}},
        [],
    ],
)
def test_sizes_of_foreign_weights_are_checked_against_them(tmp_path: Path, config: Any) -> None:
    save_file(known(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with within(64), pytest.raises(PalmError, match=r"config\.json") as found:
        palm.load_backbone(tmp_path)
    assert isinstance(found.value, StorageError | ConfigError)


def test_weights_of_an_odd_shape_are_an_error_with_their_place(tmp_path: Path) -> None:
    name = "bert.encoder.layers.0.self_attn.q_proj.weight"  # one that is transposed
    save_file({**paddlenlp(), name: torch.zeros(2, 2, 2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(SIZES), encoding="utf-8")
    with pytest.raises(StorageError, match=str(tmp_path)):
        read_directory(tmp_path)
    with pytest.raises(StorageError, match=str(tmp_path)):
        palm.pretrained.loading.load_pretrain(palm.backbone.BERT(**SIZES), tmp_path)


# ---- Vocabularies ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\n" * (2 << 20), "2097152 lines; a vocabulary has at most 1048576"),
        (b"a\t999999999\n", r"vocab\.txt:1: the id 999999999 should be below 16777216"),
        (b"\xff", "it is not UTF-8 text"),
        (b"", r"lacks \[PAD\]"),
    ],
)
def test_a_vocabulary_has_bounds(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "vocab.txt").write_bytes(text)
    with within(400), pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path / "vocab.txt")


SPECIAL_IDS = {token: number for number, token in enumerate(tiny.SPECIAL)}


def tokenizer(**parts: Any) -> dict[str, Any]:
    model = {"type": "WordLevel", "vocab": SPECIAL_IDS, "unk_token": "[UNK]"}
    return {"version": "1.0", "added_tokens": [], "model": model, **parts}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            tokenizer(
                normalizer={
                    "type": "Sequence",
                    "normalizers": [{"type": "Replace", "pattern": {"String": "A"}, "content": "AA"}] * 40,
                }
            ),
            "1099511627776 times as long.*1000",
        ),
        (tokenizer(added_tokens=5), "cannot read the tokenizer"),
        (tokenizer(normalizer={"type": "Sequence", "normalizers": 5}), "cannot read the tokenizer"),
        (tokenizer(model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7}), "cannot read|lacks"),
        (tokenizer(model={"type": "WordLevel", "vocab": {"a": 2**31}, "unk_token": "a"}), "16777216|lacks"),
        (tokenizer(model={"type": "WordLevel", "vocab": SPECIAL_IDS, "unk_token": "?"}), "cannot read the"),
        ({"model": None}, "cannot read the tokenizer"),
        ({"model": {"type": "Unigram", "vocab": None}}, "cannot read the tokenizer"),
    ],
)
def test_a_tokenizer_of_any_content_is_an_error_with_its_place(
    tmp_path: Path, content: Any, message: str
) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with within(64), pytest.raises(DataError, match=rf"tokenizer\.json: .*({message})"):
        load_tokenizer(tmp_path / "tokenizer.json")


# ---- One boundary ----


@pytest.mark.parametrize("name", ["config.json", "vocab.txt", "model.safetensors"])
def test_what_is_not_a_plain_file_does_not_hang(tmp_path: Path, name: str) -> None:
    import os

    folder = saved.model(tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(StorageError):
        palm.load_model(folder)
    with pytest.raises(PalmError):
        palm.load_backbone(folder)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (10**7, "task 'cls': Classify cannot be built with these sizes: .*memory"),
        (10**12, "n_classes: 1000000000000 should be a whole number, 2 or more, at most 2147483647"),
        (10**30, "n_classes: 1.* should be a whole number, 2 or more, at most 2147483647"),
    ],
)
def test_a_size_that_no_machine_has_is_a_mistake_in_a_configuration(
    folder: Path, size: int, message: str
) -> None:
    config = with_bag(tiny.config(folder, "cls"))
    config["tasks"]["cls"]["n_classes"] = size
    config |= {"hidden_size": 1 << 28} if size == 10**7 else {}  # 10 PB
    with pytest.raises(ConfigError, match=message):
        palm.Controller(config, argv=[])


def test_a_wrong_number_of_classes_in_a_model_costs_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StorageError), within_weights({"out.weight": torch.empty(2, 1)}, "here"):
        Classify(300_000_000, 1)  # a count of each would take 1.2 GB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # KiB


@pytest.mark.parametrize(("row", "is_refused"), [(1 << 40, False), (1 << 80, True)])
def test_a_selection_of_rows_that_do_not_exist_takes_no_memory(
    tmp_path: Path, row: int, is_refused: bool
) -> None:
    table = tmp_path / "table.tsv"
    table.write_text("label\ttext_a\n0\ta door\n1\ta boat\n", encoding="utf-8")
    selection = Selection(table, data_checksum(table), [1, row], {})
    file = tmp_path / f"dev{SUFFIX}"
    file.write_text(selection.text, encoding="utf-8")
    with pytest.raises(DataError) if is_refused else nullcontext():
        assert [each.cells["text_a"] for each in map(usable, raw_rows(file))] == ["a boat"]
