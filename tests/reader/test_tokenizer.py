"""WordPiece equals the original, knows where its tokens stand, and refuses broken vocabularies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from helpers.reader_files import SPECIAL, write_text, write_vocabulary
from helpers.shared import RECORDED_0, needs_shared
from palm.core.errors import DataError
from palm.reader import ClassifyReader
from palm.reader.tokenizer import SPECIAL_TOKENS, Tokenizer, load_tokenizer, load_vocabulary

RECORDED = RECORDED_0 / "tokenization"

# The original takes a special token in a text for that token. Ours takes it for text, on purpose.
WITH_SPECIAL_TOKENS = ["[CLS] hello [SEP]", "[MASK] the [MASK].", "[UNK] [PAD]", "[MASK]"]


@pytest.fixture
def vocab_path(tmp_path: Path) -> Path:
    return write_vocabulary(tmp_path)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_vocabulary(tmp_path_factory.mktemp("vocab")), do_lower_case=True)


@needs_shared
@pytest.mark.parametrize("do_lower_case", [False, True])
@pytest.mark.parametrize("kind", ["bert", "ernie"])
def test_tokens_equal_the_recorded_ones(kind: str, do_lower_case: bool) -> None:
    recorded = json.loads((RECORDED / "tokenization_py3.11.json").read_text(encoding="utf-8"))
    results = recorded["results"][f"{kind}_tokenizer/do_lower_case={do_lower_case}"]
    tokenizer = load_tokenizer(RECORDED / recorded["vocab"], do_lower_case)

    ids = tokenizer.encode(recorded["texts"])

    different = [
        text
        for text, mine, theirs in zip(recorded["texts"], ids, results, strict=True)
        if mine != theirs["ids"]
    ]
    assert len(ids) == 122
    assert different == WITH_SPECIAL_TOKENS
    compared = [k for k, text in enumerate(recorded["texts"]) if text not in WITH_SPECIAL_TOKENS]
    assert [tokenizer.tokens(ids[k]) for k in compared] == [results[k]["tokens"] for k in compared]


@needs_shared
def test_a_vocabulary_file_is_read_as_the_original_reads_it(tmp_path: Path) -> None:
    recorded = json.loads((RECORDED / "vocab_loader.json").read_text(encoding="utf-8"))
    # The recorded file has "foo" twice, which palm refuses, and lacks two special tokens.
    content = recorded["file"].replace("\n foo \n", "\n fie \n") + "\n[SEP]\n[MASK]"

    vocabulary = load_vocabulary(write_text(tmp_path, "vocab.txt", content))

    expected = dict(recorded["bert_tokenizer"]) | {"fie": 3, "[SEP]": 11, "[MASK]": 12}
    assert vocabulary == {token: number for token, number in expected.items() if token}


def test_white_space_of_any_kind_around_an_id_does_not_count(tmp_path: Path) -> None:
    lines = [f"{token}\t\x1f{number} " for number, token in enumerate([*SPECIAL_TOKENS, "red"])]
    vocabulary = load_vocabulary(write_text(tmp_path, "vocab.txt", "\n".join(lines)))
    assert vocabulary["red"] == 5


def test_special_tokens_inside_a_text_are_text(vocab_path: Path) -> None:
    tokenizer = load_tokenizer(vocab_path, do_lower_case=True)

    [ids] = tokenizer.encode(["the [SEP] boat[MASK]"])

    assert tokenizer.tokens(ids) == [
        "the", "[UNK]", "s", "##e", "##p", "[UNK]", "boat", "[UNK]", "m", "##a", "##s", "##k", "[UNK]",
    ]  # fmt: skip
    assert not {tokenizer.sep_id, tokenizer.mask_id} & set(ids)


def test_offsets_are_characters_of_the_original_text(vocab_path: Path) -> None:
    text = "  The\x07 ÉTÉ, 中国😀 boat\u200bs"
    [pieces] = load_tokenizer(vocab_path, do_lower_case=True).encode_with_offsets([text])

    spans = [text[start:end] for start, end in zip(pieces.starts, pieces.ends, strict=True)]

    assert spans == ["The", "É", "T", "É", ",", "中", "国", "😀", "boat", "s"]


@given(st.text(max_size=60))
def test_offsets_of_any_text_point_at_what_the_token_says(letters: Tokenizer, text: str) -> None:
    [pieces] = letters.encode_with_offsets([text])

    assert pieces.ids.tolist() == letters.encode([text])[0]
    assert (pieces.starts < pieces.ends).all()
    assert (pieces.ends <= len(text)).all()
    for token, start, end in zip(letters.tokens(pieces.ids), pieces.starts, pieces.ends, strict=True):
        piece = token.removeprefix("##")
        if piece.isascii() and piece.isalnum():
            assert text[start:end].isascii() is False or text[start:end].lower() == piece


@given(st.text(alphabet="ΣσΑα.,' \u0301\u00ad1b", max_size=12))
def test_a_final_sigma_is_lowered_as_python_lowers_it(letters: Tokenizer, text: str) -> None:
    normalized = letters._library.normalizer.normalize_str(text)

    assert normalized.count("ς") == text.lower().count("ς")


def test_plain_text_is_cut_as_the_tokenizers_library_itself_cuts_it(vocab_path: Path) -> None:
    texts = ["The old BOAT, near Anna's door!", "what is 中国的首都?", "red-green(boat) naïve café"]
    reference = BertWordPieceTokenizer(str(vocab_path), lowercase=True)

    ids = load_tokenizer(vocab_path, do_lower_case=True).encode(texts)

    assert ids == [reference.encode(text, add_special_tokens=False).ids for text in texts]


def test_half_a_surrogate_pair_is_an_unknown_character(letters: Tokenizer) -> None:
    [pieces] = letters.encode_with_offsets(["a \ud83d b"])

    assert letters.tokens(pieces.ids) == ["a", "b"]
    assert pieces.starts.tolist() == [0, 4]


def test_the_size_of_a_vocabulary_is_its_largest_id_and_one(tmp_path: Path) -> None:
    lines = [f"{token}\t{number}" for number, token in enumerate(SPECIAL)] + ["boat\t90", "door\t40"]
    tokenizer = load_tokenizer(write_text(tmp_path, "vocab.txt", "\n".join(lines) + "\n"))

    assert tokenizer.vocab_size == 91
    assert tokenizer.encode(["boat door"]) == [[90, 40]]
    assert tokenizer.tokens([40, 41]) == ["door", "[UNK]"]
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id] == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["boat", "door", "boat"], r"vocab.txt:8: .*'boat' .*line 6"),
        (["boat\t7", "door", "red"], r"vocab.txt:8: id 7 .*line 6"),
        (["boat\t7\t1"], r"vocab.txt:6: expected 'token' or 'token<TAB>id', not 'boat\\t7\\t1'"),
        (["boat\tx"], r"vocab.txt:6: expected 'token' or 'token<TAB>id'"),
    ],
)
def test_a_broken_vocabulary_names_the_line(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write_text(tmp_path, "vocab.txt", "\n".join(SPECIAL + lines))
    with pytest.raises(DataError, match=message):
        load_tokenizer(path)


def test_missing_special_tokens_are_named_together(tmp_path: Path) -> None:
    path = write_text(tmp_path, "vocab.txt", "[PAD]\n[UNK]\n[CLS]\nboat\n")
    with pytest.raises(DataError, match=r"vocab.txt: .*\[SEP\], \[MASK\]"):
        load_tokenizer(path)


def test_a_vocabulary_that_is_not_text_or_not_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"[PAD]\n\xff\xfe")
    with pytest.raises(DataError, match=r"binary: cannot read.*UTF-8"):
        load_tokenizer(tmp_path / "binary")
    with pytest.raises(DataError, match="nowhere: cannot read"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_tokenizes_without_a_warning_or_a_hang(vocab_path: Path) -> None:
    program = f"""
import multiprocessing
from palm.reader.tokenizer import load_tokenizer
tokenizer = load_tokenizer({str(vocab_path)!r})
texts = ["the old boat"] * 1000
here = tokenizer.encode(texts)
with multiprocessing.get_context("fork").Pool(1) as pool:
    assert pool.apply(tokenizer.encode, (texts,)) == here
"""
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


# ---- what lies beside a vocabulary ----


def test_accents_and_chinese_words_stay_whole_where_the_settings_beside_the_vocabulary_say_so(
    tmp_path: Path,
) -> None:
    words = [*SPECIAL_TOKENS, "müsste", "musste", "東京", "東", "京"]
    vocab = write_text(tmp_path, "vocab.txt", "\n".join(words))
    plain = load_tokenizer(vocab, do_lower_case=True)
    assert plain.tokens(plain.encode(["Müsste 東京"])[0]) == ["musste", "東", "京"]
    assert plain.companions == ()

    settings = {"strip_accents": False, "tokenize_chinese_chars": False}
    write_text(tmp_path, "tokenizer_config.json", json.dumps(settings))
    reader = ClassifyReader(vocab, 20, do_lower_case=True)
    reader.write_file("vocab_path", tmp_path / "saved.txt")
    for tokenizer in (reader.tokenizer, load_tokenizer(tmp_path / "saved.txt", do_lower_case=True)):
        assert tokenizer.tokens(tokenizer.encode(["Müsste 東京"])[0]) == ["müsste", "東京"]
