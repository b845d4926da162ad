"""Vocabularies of RoBERTa's kind cut texts as transformers does, and know where their tokens stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import models

from helpers.reader_files import write_text, write_vocabulary
from helpers.subword_files import (
    write_byte_level,
    write_byte_level_json,
    write_unigram_json,
    write_wordpiece_json,
)
from palm.core.errors import ConfigError, DataError, StorageError
from palm.reader import ClassifyReader, MatchReader
from palm.reader.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "Anna owns the old boat.",
    " two  blanks  and a\ttab ",
    "naïve café 北京 🙂!",
    "unseen Wörter, x<s>y</s> <mask>",
    "don't stop",
]
KINDS = {"byte level": write_byte_level, "json": write_byte_level_json, "unigram": write_unigram_json}

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: write(tmp_path_factory.mktemp("vocab")) for kind, write in KINDS.items()}


@pytest.fixture(scope="module")
def byte_level(vocabularies: dict[str, Path]) -> Tokenizer:
    return load_tokenizer(vocabularies["byte level"])


def fast(vocab: Path) -> Any:
    """transformers' own RoBERTa tokenizer of the same files; texts' special tokens are text."""
    transformers = pytest.importorskip("transformers")
    if vocab.name == "tokenizer.json":
        kind = transformers.PreTrainedTokenizerFast
        names = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
        return kind(tokenizer_file=str(vocab), **names, split_special_tokens=True)
    return transformers.RobertaTokenizer.from_pretrained(vocab.parent, split_special_tokens=True)


def test_byte_pairs_are_those_of_transformers(vocabularies: dict[str, Path]) -> None:
    vocab = vocabularies["byte level"]
    theirs = fast(vocab)(TEXTS, add_special_tokens=False, return_offsets_mapping=True)
    ours = load_tokenizer(vocab)
    assert ours.encode(TEXTS) == theirs["input_ids"]
    for pieces, offsets in zip(ours.encode_with_offsets(TEXTS), theirs["offset_mapping"], strict=True):
        assert list(zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True)) == offsets


def test_both_forms_of_a_byte_level_vocabulary_cut_alike(vocabularies: dict[str, Path]) -> None:
    parts, whole = load_tokenizer(vocabularies["byte level"]), load_tokenizer(vocabularies["json"])
    assert parts.encode(TEXTS) == whole.encode(TEXTS)
    words = ["Anna", "owns", "boat."]
    assert parts.encode_words(words) == whole.encode_words(words)
    assert parts.vocab_size == whole.vocab_size
    for one, other in zip(parts.encode_with_offsets(TEXTS), whole.encode_with_offsets(TEXTS), strict=True):
        assert one.starts.tolist() == other.starts.tolist()
        assert one.ends.tolist() == other.ends.tolist()


def test_words_are_cut_as_transformers_cuts_words(vocabularies: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    vocab = vocabularies["byte level"]
    words = ["Anna", "owns", "a", "naïve", "boat."]
    theirs = transformers.RobertaTokenizer.from_pretrained(vocab.parent, add_prefix_space=True)
    encoded = theirs(words, is_split_into_words=True, add_special_tokens=False)["input_ids"]
    assert [number for ids in load_tokenizer(vocab).encode_words(words) for number in ids] == encoded


@every_kind
def test_special_tokens_inside_a_text_are_text(vocabularies: dict[str, Path], kind: str) -> None:
    tokenizer = load_tokenizer(vocabularies[kind])
    special = {tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id}
    for ids in tokenizer.encode(["<s> a </s>", "<mask>", "x<pad>y"]):
        assert ids
        assert not special & set(ids)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30))
def test_offsets_of_byte_level_tokens_cover_every_visible_character(byte_level: Tokenizer, text: str) -> None:
    [pieces] = byte_level.encode_with_offsets([text])
    covered = {k for s, e in zip(pieces.starts, pieces.ends, strict=True) for k in range(int(s), int(e))}
    assert {k for k, character in enumerate(text) if not character.isspace()} <= covered
    assert pieces.starts.tolist() == sorted(pieces.starts.tolist())
    assert pieces.ends.tolist() == sorted(pieces.ends.tolist())


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_wordpiece_json_cuts_as_its_text_file_does(tmp_path: Path, lowercase: bool) -> None:
    vocab = write_vocabulary(tmp_path)
    texts = ["The old BOAT, near Anna's door!", "what is 中国?", "[CLS] red [SEP]"]
    ours = load_tokenizer(write_wordpiece_json(tmp_path, vocab, lowercase))
    assert ours.encode(texts) == load_tokenizer(vocab, do_lower_case=lowercase).encode(texts)
    assert ours.separators == 1


def test_a_blank_before_every_text_is_as_the_settings_beside_the_vocabulary_say(tmp_path: Path) -> None:
    vocab = write_byte_level(tmp_path)
    without = load_tokenizer(vocab)
    assert [file.name for file in without.companions] == ["merges.txt"]
    write_text(tmp_path, "tokenizer_config.json", json.dumps({"add_prefix_space": True}))
    tokenizer = load_tokenizer(vocab)
    assert tokenizer.encode(["Anna owns"]) == without.encode([" Anna owns"])
    assert [file.name for file in tokenizer.companions] == ["merges.txt", "tokenizer_config.json"]


def test_a_tokenizer_in_one_file_is_the_same_tokenizer(vocabularies: dict[str, Path], tmp_path: Path) -> None:
    reader = ClassifyReader(vocabularies["byte level"], 20)
    reader.write_file("vocab_path", tmp_path / "vocab.json")
    with pytest.raises(StorageError, match=r"absent/vocab\.json: "):
        reader.write_file("vocab_path", tmp_path / "absent" / "vocab.json")
    again = load_tokenizer(tmp_path / "vocab.json")
    assert again.companions == ()
    assert again.encode(TEXTS) == reader.tokenizer.encode(TEXTS)
    assert again.encode_words(["Anna"]) == reader.tokenizer.encode_words(["Anna"])
    assert again.tokens([again.cls_id, again.sep_id, again.mask_id]) == ["<s>", "</s>", "<mask>"]


def test_lower_case_for_a_vocabulary_with_capitals_is_refused(vocabularies: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"do_lower_case: .*vocab\.json'"):
        load_tokenizer(vocabularies["byte level"], do_lower_case=True)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.json": "{}"}, r"vocab\.json: .*merges\.txt"),
        ({"vocab.json": "[]"}, "JSON object, not list"),
        ({"vocab.json": "{"}, r"vocab\.json: .*line 1 column 2"),
        ({"vocab.json": '{"a": 0}', "merges.txt": ""}, r"\[PAD\], \[UNK\]"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "x y\n"}, r"vocab\.json: cannot read .*merges"),
        ({"vocab.json": '{"model": {"type": "None"}}'}, r"vocab\.json: cannot read"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_named(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    for name, text in files.items():
        write_text(tmp_path, name, text)
    with pytest.raises(DataError, match=message):
        load_tokenizer(tmp_path / "vocab.json")


# ---- readers ----


def test_a_pair_has_two_separators_between_its_texts(vocabularies: dict[str, Path]) -> None:
    reader = MatchReader(vocabularies["byte level"], 64)
    rows = reader.encode(list(reader.parse([("Anna owns", "the door")])), with_targets=False)
    tokens = reader.tokenizer.tokens(rows["token_ids"][0])
    expected = [int(rows["first_segment"][0]) - 2, int(rows["first_segment"][0]) - 1]
    assert [k for k, token in enumerate(tokens) if token == "</s>"][:2] == expected
    with pytest.raises(ConfigError, match=r"max_seq_len .*at least 6, not 5"):
        MatchReader(vocabularies["byte level"], 5)


def test_a_row_that_is_too_long_is_cut_to_fit_with_all_its_separators(vocabularies: dict[str, Path]) -> None:
    reader = ClassifyReader(vocabularies["byte level"], 12)
    long = {"text_a": "Anna owns the old red boat " * 3, "text_b": "what colour is the boat " * 3}
    rows = reader.encode(list(reader.parse([long])), with_targets=False)
    assert rows.lengths.tolist() == [12]
    assert reader.tokenizer.tokens(rows["token_ids"][0]).count("</s>") == 3


def test_a_vocabulary_that_fails_on_a_text_is_an_error_of_palm(tmp_path: Path) -> None:
    """Which no look at the file finds: the token for unknown words is missing, and one text needs it."""
    write_text(tmp_path, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    tokenizer = load_tokenizer(tmp_path / "vocab.txt")
    tokenizer._pipeline.model = models.WordPiece({"a": 5}, unk_token="[UNK]")
    assert tokenizer.encode(["a"]) == [[5]]
    with pytest.raises(DataError, match=r"a text: .*vocabulary.*Missing \[UNK\]"):
        tokenizer.encode(["b"])


def test_one_content_and_setting_has_one_tokenizer_wherever_the_file_is(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    one, other = (write_vocabulary(tmp_path / name) for name in ("a", "b"))
    tokenizer = load_tokenizer(one)
    assert load_tokenizer(other) is tokenizer
    assert load_tokenizer(one, do_lower_case=True) is not tokenizer
    write_text(other.parent, "vocab.txt", one.read_text("utf-8") + "\nsurplus\n")
    assert load_tokenizer(other).vocab_size == tokenizer.vocab_size + 1


def test_byte_level_vocabularies_with_other_merges_have_other_tokenizers(tmp_path: Path) -> None:
    one, other = (write_byte_level(tmp_path / name) for name in ("a", "b"))
    assert load_tokenizer(one).companions[0].parent == one.parent
    assert load_tokenizer(other).companions[0].parent == other.parent
