"""Tokenizers that put tokens of their own around texts: rows are as their own post-processor makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from helpers.messages import raises
from helpers.reader_files import asked, encoded, rng_of_row, write_squad
from palm.core.errors import DataError
from palm.reader import (
    ClassifyReader,
    EmbeddingReader,
    MaskLMReader,
    MatchReader,
    MRCReader,
    MultiLabelReader,
    MultipleChoiceReader,
    RankingReader,
    RelationReader,
    SequenceLabelReader,
)
from palm.reader.groups import GroupReader
from palm.reader.tokenizer import Tokenizer, load_tokenizer

CORPUS = ["the red door is open", "a blue door, and the red one", "où est la porte ?", "Tür ist offen"] * 5


def byte_level(special: list[str], single: str, pair: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    return around(made, special, single, pair)


def sentence_pieces(special: list[str], single: str, pair: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token=special[1])
    )
    return around(made, special, single, pair)


def spaces_as_text(special: list[str], single: str, pair: str) -> tokenizers.Tokenizer:
    """As Gemma's: a blank is a character of the word behind it, and nothing is put before a text."""
    made = tokenizers.Tokenizer(models.BPE(unk_token=special[1], byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    fallback = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=[*special, *fallback])
    made.train_from_iterator(CORPUS, trainer)
    return around(made, special, single, pair)


def word_pieces(special: list[str], single: str, pair: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token=special[1]))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=70, special_tokens=special))
    return around(made, special, single, pair)


def around(made: tokenizers.Tokenizer, special: list[str], single: str, pair: str) -> tokenizers.Tokenizer:
    known = [(token, made.token_to_id(token)) for token in special if token in f"{single} {pair}".split()]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
    return made


BERT_LIKE = (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
GEMMA_LIKE = (["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"], "<bos> $A <eos>", "<bos> $A <eos> $B:1 <eos>:1")
LLAMA_LIKE = (
    ["<|pad|>", "<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"],
    "<|begin_of_text|> $A <|end_of_text|>",
    "<|begin_of_text|> $A <|end_of_text|> <|begin_of_text|> $B:1 <|end_of_text|>:1",
)
KINDS = {
    "modernbert": (byte_level, BERT_LIKE),
    "eurobert": (byte_level, LLAMA_LIKE),
    "deberta-v3": (sentence_pieces, BERT_LIKE),
    "mmbert": (spaces_as_text, GEMMA_LIKE),
    "bert": (word_pieces, BERT_LIKE),
}


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build: Callable[[list[str], str, str], tokenizers.Tokenizer]
    build, (special, single, pair) = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    build(special, single, pair).save(str(folder / "tokenizer.json"))
    roles = {"pad_token": special[0], "mask_token": {"content": special[-1]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles), encoding="utf-8")
    return folder / "tokenizer.json"


def test_rows_have_the_tokens_of_the_files_own_rules(written: Path) -> None:
    library, ours = tokenizers.Tokenizer.from_file(str(written)), load_tokenizer(written)
    for a, b in (("the red door", "a blue one"), ("où est la porte ?", "offen"), ("a", "b")):
        ids_a, ids_b = ours.encode([a, b])
        assert ours.row(ids_a) == library.encode(a).ids
        assert ours.row(ids_a, ids_b) == library.encode(a, b).ids
        assert ours.mask_id == library.token_to_id(ours.tokens([ours.mask_id])[0])
        assert ours.pad_id == library.token_to_id(KINDS[written.parent.name[:-1]][1][0][0])


@settings(deadline=None, max_examples=60)
@given(words=st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8), min_size=2))
def test_words_are_cut_as_in_a_text_and_have_a_piece_at_least(written: Path, words: list[str]) -> None:
    ours = load_tokenizer(written)
    assert all(ours.encode_words(words))
    # Behind another word, a word by itself has the tokens that it has in the text.
    first, second = words[0], "door"
    (text,) = ours.encode([f"{first} {second}"])
    (alone,) = ours.encode_words([second])
    assert text[-len(alone) :] == alone


def test_offsets_are_those_of_the_words_without_the_blank_before_them(written: Path) -> None:
    text = "the red door is open"
    (pieces,) = load_tokenizer(written).encode_with_offsets([text])
    spans = zip(pieces.starts.tolist(), pieces.ends.tolist(), strict=True)
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered == {place for place, character in enumerate(text) if character != " "}


def texts_in(tokenizer: Tokenizer, ids: list[int]) -> str:
    return re.sub("##|[▁Ġ ]", "", "".join(tokenizer.tokens(ids)))


def test_readers_of_texts_have_the_files_ids_and_types(written: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(written))
    single = ClassifyReader(written, 40)
    batch = single.collate(single.encode([*single.parse(["the red door"])], False), [0], rng_of_row)
    assert batch["token_ids"][0].tolist() == library.encode("the red door").ids
    both = MatchReader(written, 40)
    batch = both.collate(both.encode([*both.parse([("the red door", "a blue one")])], False), [0], rng_of_row)
    expected = library.encode("the red door", "a blue one")
    assert batch["token_ids"][0].tolist() == expected.ids
    assert batch["segment_ids"][0].tolist() == expected.type_ids


def test_windows_of_a_context_contain_the_answers_own_tokens(written: Path, tmp_path: Path) -> None:
    context = "the red door is open and " * 6 + "a blue door"
    answer = ("blue door", context.index("blue door"))
    reader = MRCReader(written, 40, 16, 8)
    file = write_squad(tmp_path, (context, [asked("q", "is the door open", answer)]))
    all_windows = MRCReader(written, 40, 16, 8, remove_noanswer=False)
    assert len(encoded(all_windows, file, True)) > 1
    rows = encoded(reader, file, True)
    for row in range(len(rows)):
        batch = reader.collate(rows, [row], rng_of_row)
        place = slice(int(batch["start_positions"][0]), int(batch["end_positions"][0]) + 1)
        assert texts_in(reader.tokenizer, batch["token_ids"][0, place].tolist()) == "bluedoor"


def test_every_word_has_one_place_for_its_label(written: Path, tmp_path: Path) -> None:
    file = tmp_path / "tags.tsv"
    file.write_text("label\ttext_a\nO B O O\tthe red, door open\n", encoding="utf-8")
    reader = SequenceLabelReader(written, 40, label_map={"O": 0, "B": 1})
    batch = reader.collate(encoded(reader, file, True), [0], rng_of_row)
    places = batch["word_mask"][0].nonzero()[:, 0].tolist()
    assert batch["label_ids"][0, places].tolist() == [0, 1, 0, 0]
    ids = batch["token_ids"][0].tolist()
    words = [texts_in(reader.tokenizer, ids[a:b]) for a, b in pairwise([*places, len(ids) - 1])]
    assert words == ["the", "red,", "door", "open"]


def test_masked_words_are_hidden_by_the_models_own_mask_token(written: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(written))
    reader = MaskLMReader(written, 60)
    text = "the red door is open and the blue one"
    rows = reader.encode([*reader.parse([text] * 40)], True)
    batch = reader.collate(rows, range(40), rng_of_row)
    mask_id = library.token_to_id(KINDS[written.parent.name[:-1]][1][0][-1])
    hidden = batch["token_ids"].flatten()[batch["mask_pos"]]
    assert 0.6 < (hidden == mask_id).float().mean() < 0.95  # 80 %
    restored = batch["token_ids"].flatten().scatter(0, batch["mask_pos"], batch["mask_label"])
    expected = library.encode(text).ids
    for row in restored.view(40, -1).tolist():
        assert row[: len(expected)] == expected


def test_a_vocabulary_without_a_mask_token_serves_all_but_masked_words(tmp_path: Path) -> None:
    special, single, pair = ["<pad>", "<unk>", "<bos>", "<eos>"], "<bos> $A <eos>", "<bos> $A <eos> $B <eos>"
    sentence_pieces(special, single, pair).save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.cls_id == 2
    with raises(DataError, "mask"):
        _ = tokenizer.mask_id


GROUPS: dict[str, tuple[type[GroupReader], dict[str, object], list[tuple[str, ...]]]] = {
    "multiple_choice": (
        MultipleChoiceReader,
        {"label": "1", "text_a": "the red door", "choices": ["is open", "a blue one"]},
        [("the red door", "is open"), ("the red door", "a blue one")],
    ),
    "ranking": (
        RankingReader,
        {"label": [0, 2], "text_a": "the red door", "candidates": ["a blue one", "où est la porte ?"]},
        [("the red door", "a blue one"), ("the red door", "où est la porte ?")],
    ),
    "embedding": (
        EmbeddingReader,
        {"text_a": "the red door", "text_b": "Tür ist offen"},
        [("the red door",), ("Tür ist offen",)],
    ),
}


@pytest.mark.parametrize("task", GROUPS)
def test_every_text_of_a_group_has_the_files_ids(task: str, written: Path, tmp_path: Path) -> None:
    kind, row, texts = GROUPS[task]
    library = tokenizers.Tokenizer.from_file(str(written))
    reader = kind(written, 40)
    rows = encoded(reader, write_row(tmp_path, row), True)
    batch = reader.collate(rows, [0], rng_of_row)
    found = [ids[mask].tolist() for ids, mask in zip(batch["token_ids"], batch["input_mask"], strict=True)]
    assert found == [library.encode(*text).ids for text in texts]


def test_several_labels_of_a_text_have_the_files_ids(written: Path, tmp_path: Path) -> None:
    reader = MultiLabelReader(written, 40, n_classes=3)
    file = write_row(tmp_path, {"label": [0, 2], "text_a": "the red door"})
    batch = reader.collate(encoded(reader, file, True), [0], rng_of_row)
    expected = tokenizers.Tokenizer.from_file(str(written)).encode("the red door").ids
    assert batch["token_ids"][0].tolist() == expected
    assert batch["label_set"][0].tolist() == [1, 0, 1]


def test_spans_and_relations_begin_at_the_first_pieces_of_their_words(written: Path, tmp_path: Path) -> None:
    row = {
        "text_a": "the red door , is open",
        "spans": [{"start": 4, "end": 12, "label": "thing"}, {"start": 18, "end": 22, "label": "state"}],
        "relations": [{"head": 0, "tail": 1, "label": "is"}],
    }
    names = {"span_label_map": {"thing": 0, "state": 1}, "n_span_classes": 2}
    reader = RelationReader(written, 40, label_map={"is": 0}, **names)
    batch = reader.collate(encoded(reader, write_row(tmp_path, row), True), [0], rng_of_row)
    ids = batch["token_ids"][0].tolist()
    places = batch["word_starts"][0].tolist()
    words = [texts_in(reader.tokenizer, ids[a:b]) for a, b in pairwise([*places, len(ids) - 1])]
    assert words == ["the", "red", "door", ",", "is", "open"]
    # 0 is no span, so that labels begin at 1; words are counted, and an end is the word after the last.
    assert (batch["span_labels"][0] > 0).nonzero().tolist() == [[1, 2], [5, 5]]
    assert [int(batch["span_labels"][0, a, b]) for a, b in ((1, 2), (5, 5))] == [1, 2]
    assert (batch["relation_labels"][0, :, :, 0] == 1).nonzero().tolist() == [[0, 1]]


def write_row(folder: Path, row: dict[str, object]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return file
