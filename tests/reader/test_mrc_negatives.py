"""Questions without an answer: windows that point to `[CLS]`, a score of there being none, a threshold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import recorded_readers as golden
from helpers.reader_files import (
    CONTEXT,
    asked,
    encoded,
    rng_of_row,
    without_literal_sep,
    write_squad,
    write_vocabulary,
)
from helpers.shared import needs_shared
from palm.paradigm import MRC
from palm.reader import MRCReader


def test_windows_without_the_answer_point_to_cls_if_they_are_kept(tmp_path: Path) -> None:
    vocab = write_vocabulary(tmp_path)
    path = write_squad(
        tmp_path, (CONTEXT, [asked("q1", "What is near the door?", ("old, near", 33)), asked("q2", "who?")])
    )
    reader = MRCReader(vocab, 20, 8, 4, do_lower_case=True, remove_noanswer=False)
    rows = encoded(reader, path, with_targets=True)
    batch = reader.collate(rows, range(len(rows)), rng_of_row)
    near = (CONTEXT, [asked("q1", "What is near the door?", ("old, near", 33))])
    held = encoded(MRCReader(vocab, 20, 8, 4, do_lower_case=True), write_squad(tmp_path, near), True)
    starts = batch["start_positions"].tolist()
    assert sum(start > 0 for start in starts) == len(held) == 2
    assert [end > 0 for end in batch["end_positions"].tolist()] == [start > 0 for start in starts]
    assert rows["example"].values.tolist().count(1) >= 1
    assert all(
        start == 0 for start, example in zip(starts, rows["example"].values, strict=True) if example == 1
    )


def test_the_start_of_an_answer_is_that_of_the_occurrence_that_was_found(tmp_path: Path) -> None:
    path = write_squad(tmp_path, ("the boat the boat", [asked("q1", "who?")]))
    reader = MRCReader(write_vocabulary(tmp_path), 20, 8, 4, do_lower_case=True)
    examples = list(reader.read(path, with_targets=False))
    rows = reader.encode(examples, with_targets=False)
    logits = torch.full((1, rows.lengths[0]), -5.0)
    logits[0, -3] = 2.0  # the second "the", before "boat" and [SEP]
    outputs = {"start_logits": logits, "end_logits": logits}
    (record,) = reader.records(examples, rows, MRC(hidden_size=4).decode(outputs), 0)
    assert (record["text"], record["start"]) == ("the", 9)
    assert record["nbest"][0].keys() == {"text", "probability", "start_logit", "end_logit"}


def test_the_threshold_decides(tmp_path: Path) -> None:
    path = write_squad(tmp_path, ("the boat", [asked("q1", "who?")]))
    reader = MRCReader(write_vocabulary(tmp_path), 20, 8, 4, do_lower_case=True)
    examples = list(reader.read(path, with_targets=False))
    rows = reader.encode(examples, with_targets=False)
    start = torch.full((1, rows.lengths[0]), -5.0)
    start[0, 0], start[0, 4] = 3.0, 2.0  # [CLS], "the"
    outputs = {"start_logits": start, "end_logits": start}
    answers = {}
    for threshold in (1.0, 2.0, 3.0):
        head = MRC(hidden_size=4, with_negative=True, null_score_diff_threshold=threshold)
        (record,) = reader.records(examples, rows, head.decode(outputs), 0)
        assert record["null_odds"] == pytest.approx(6.0 - 4.0)
        answers[threshold] = record["text"]
    assert len(set(answers.values()) - {""}) == 1
    assert [answers[threshold] == "" for threshold in answers] == [True, False, False]


@needs_shared
def test_null_odds_equal_the_recorded_ones(tmp_path: Path) -> None:
    recorded = golden.recorded_json("en_lower_negative", "null_odds.json")
    ours = {record["id"]: record for record in records_of_the_recorded_case(tmp_path)}
    assert {name: ours[name]["null_odds"] for name in recorded} == pytest.approx(recorded, abs=1e-5)
    assert all(record["text"] for record in ours.values())


def records_of_the_recorded_case(folder: Path) -> list[dict[str, Any]]:
    config = golden.recorded_json("en_lower_negative", "config.json")
    lengths = (config["max_seq_len"], config["max_query_len"], config["doc_stride"])
    reader = MRCReader(golden.MRC_POST / "vocab.txt", *lengths, do_lower_case=True)
    path = without_literal_sep(golden.MRC_POST / config["pred_file"], folder)
    examples = list(reader.read(path, with_targets=False))
    rows = reader.encode(examples, with_targets=False)
    head = MRC(hidden_size=4, max_answer_len=30, with_negative=True)
    decoded: list[Any] = [None] * len(rows)
    with np.load(golden.MRC_POST / "en_lower_negative" / "logits.npz") as arrays:
        for number in {key.split("/")[0] for key in arrays}:
            names = ("unique_ids", "start_logits", "end_logits")
            ids, start, end = (arrays[f"{number}/{name}"] for name in names)
            values = head.decode(
                {"start_logits": torch.from_numpy(start), "end_logits": torch.from_numpy(end)}
            )
            for unique_id, value in zip(ids.reshape(-1), values, strict=True):
                decoded[int(unique_id) - 1000000000] = value
    return list(reader.records(examples, rows, decoded, 0))
