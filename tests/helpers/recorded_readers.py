"""Batches and answers of PaddlePALM's readers, as recorded."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from helpers.reader_files import LITERAL_SEP, STAND_IN, rng_of_row
from helpers.shared import RECORDED_0, RECORDED_2
from palm.reader import Reader, Rows

READERS = RECORDED_0 / "readers"


VOCAB = READERS / "data/vocab.txt"


MRC_POST = RECORDED_0 / "mrc_post"


LATER = RECORDED_2 / "readers"


SEP_ID, HOUSE_ID = 102, 2160

Batch = dict[str, Any]


def unmasked(batch: Batch) -> Batch:
    """The batch with the words in place that mlm had hidden, and the stand-in for a text's own `[SEP]`."""
    token_ids = batch["token_ids"].copy()
    if "mask_pos" in batch:
        token_ids.reshape(-1)[batch["mask_pos"]] = batch["mask_label"]
    for row, tokens in enumerate(token_ids):
        length = int(batch["input_mask"][row].sum())
        second = batch["segment_ids"][row].argmax() or length
        words = [column for column in range(length) if column not in (second - 1, length - 1)]
        tokens[words] = np.where(tokens[words] == SEP_ID, HOUSE_ID, tokens[words])
    return batch | {"token_ids": token_ids}


def assert_equal_batches(reader: Reader, rows: Rows, indices: list[int], recorded: Batch) -> None:
    mine = {name: value.numpy() for name, value in reader.collate(rows, indices, rng_of_row).items()}
    assert recorded.keys() <= mine.keys()
    mine, recorded = unmasked(mine), unmasked(recorded)
    for name in recorded.keys() - {"mask_pos", "mask_label", "unique_ids"}:
        assert mine[name].tolist() == recorded[name].tolist(), name


def bare(text: str) -> str:
    return re.sub(r"\s", "", LITERAL_SEP.sub(STAND_IN, text))


def recorded_json(case: str, name: str) -> Any:
    return json.loads((MRC_POST / case / name).read_text(encoding="utf-8"))
