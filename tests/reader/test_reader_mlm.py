"""Masking hides the right share of the right tokens, anew for every draw."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from helpers.reader_files import write_vocabulary
from palm.core.layers import generator
from palm.reader import MaskLMReader, Rows
from palm.reader.mask_lm import masked_rows


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> MaskLMReader:
    return MaskLMReader(write_vocabulary(tmp_path_factory.mktemp("vocab")), 128)


@pytest.fixture(scope="module")
def rows(reader: MaskLMReader) -> Rows:
    """200 rows of 128 tokens, 126 of them words: 25,200 words."""
    text = "the old boat has a red door and the new boat is near . " * 20
    return reader.encode(list(reader.parse([text] * 200)), with_targets=True)


def close_to(count: int, trials: int, share: float) -> bool:
    """Within four standard deviations of a binomial count."""
    return abs(count - trials * share) < 4 * math.sqrt(trials * share * (1 - share))


def test_15_percent_of_the_words_are_drawn_and_replaced_80_10_10(reader: MaskLMReader, rows: Rows) -> None:
    batch = reader.collate(rows, range(200), lambda row: generator(1, "mask", "mlm", 0, row))

    seen = batch["token_ids"].flatten()[batch["mask_pos"]]
    drawn = len(seen)
    masked = int((seen == reader.tokenizer.mask_id).sum())
    kept = int((seen == batch["mask_label"]).sum())
    words = 200 * 126
    vocab_size = reader.tokenizer.vocab_size
    assert close_to(drawn, words, 0.15)
    assert close_to(masked, drawn, 0.8 + 0.1 / (vocab_size - 1))  # the random word may be [MASK],
    assert close_to(kept, drawn, 0.1 + 0.1 / (vocab_size - 1))  # or the word itself
    assert close_to(drawn - masked - kept, drawn, 0.1 * (vocab_size - 3) / (vocab_size - 1))


def test_masks_never_hit_special_tokens_or_padding(reader: MaskLMReader) -> None:
    texts = ["the boat", "a", {"text_a": "the old boat", "text_b": "a new door ."}, "[SEP] [CLS]"]
    rows = reader.encode(list(reader.parse(texts)), with_targets=False)
    for attempt in range(200):
        batch = reader.collate(rows, [3, 2, 1, 0], lambda row: generator(attempt, "mask", "mlm", 0, row))  # noqa: B023
        width = batch["token_ids"].shape[1]
        drawn_rows = (batch["mask_pos"] // width).tolist()
        assert sorted(set(drawn_rows)) == [0, 1, 2, 3]
        assert not {2, 3, 0} & set(batch["mask_label"].tolist())
        assert batch["mask_pos"].tolist() == sorted(set(batch["mask_pos"].tolist()))


def masked_row(
    row: np.ndarray, words: np.ndarray, mask_id: int, vocab_size: int, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """One row after masking, and which were masked, one number after another."""
    positions = words[rng.random(len(words)) < 0.15]
    fate = rng.random(len(positions))
    if len(words) and not len(positions):
        positions, fate = rng.choice(words, size=1), np.zeros(1)
    seen = row.copy()
    seen[positions[fate < 0.8]] = mask_id
    replaced = positions[(fate >= 0.8) & (fate < 0.9)]
    seen[replaced] = rng.integers(1, vocab_size, size=len(replaced))
    return seen.tolist(), positions.tolist()


@pytest.mark.parametrize(
    "vocab_size", [2, 1000, 30522, 3 * 2**29]
)  # of the last, a quarter of draws is refused
@pytest.mark.parametrize("longest", [1, 14, 120])
def test_all_rows_together_are_masked_as_one_by_one(vocab_size: int, longest: int) -> None:
    draws = np.random.default_rng(longest)
    lengths = draws.integers(0, longest + 1, size=300)
    token_ids = draws.integers(1000, 2000, size=(300, longest + 2))
    columns = np.arange(longest + 2)
    maskable = (columns > 0) & (columns <= lengths[:, None])

    together, places = masked_rows(
        token_ids, maskable, 3, vocab_size, lambda row: generator(7, "mask", "t", 0, row)
    )

    alone = [
        masked_row(row, columns[words], 3, vocab_size, generator(7, "mask", "t", 0, number))
        for number, (row, words) in enumerate(zip(token_ids, maskable, strict=True))
    ]
    assert together.tolist() == [seen for seen, _ in alone]
    assert places.tolist() == [
        row * (longest + 2) + place for row, (_, places) in enumerate(alone) for place in places
    ]


def test_a_decisions_generator_is_philox_with_the_hash_of_its_name_as_key() -> None:
    digest = hashlib.blake2b(b"(1, 'mask', 'mlm', 0, 5)", digest_size=16).digest()
    keyed = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))

    assert generator(1, "mask", "mlm", 0, 5).random(9).tolist() == keyed.random(9).tolist()


def test_a_record_says_what_stood_where_and_what_was_guessed(reader: MaskLMReader) -> None:
    examples = list(reader.parse(["the old boat"]))
    rows = reader.encode(examples, with_targets=False)
    red = reader.tokenizer.encode(["red"])[0][0]

    decoded = [{"positions": [2, 3], "predicted": [red, 10**6], "probs": [0.5, 0.25]}]

    assert list(reader.records(examples, rows, decoded, first=4)) == [
        {
            "index": 4,
            "words": [
                {"position": 2, "word": "old", "predicted": "red", "prob": 0.5},
                {"position": 3, "word": "boat", "predicted": "[UNK]", "prob": 0.25},
            ],
        }
    ]
