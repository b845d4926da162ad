"""The readers' batches and MRC answers equal those that PaddlePALM 2.0.2 made of the same files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from helpers import recorded_readers as golden
from helpers.reader_files import encoded, rng_of_row
from helpers.shared import needs_shared
from palm.paradigm import MRC
from palm.reader import ClassifyReader, MaskLMReader, MatchReader, MRCReader, Reader

pytestmark = needs_shared


def recording() -> Any:
    return json.loads((golden.LATER / "readers.json").read_text(encoding="utf-8"))


def arrays_of(batch: dict[str, Any]) -> dict[str, Any]:
    arrays = {name: np.asarray(values) for name, values in batch.items()}
    return {**arrays, "input_mask": arrays["input_mask"][..., 0]}


def mrc_reader(**settings: Any) -> MRCReader:
    return MRCReader(golden.VOCAB, 40, 10, 16, do_lower_case=True, **settings)


@pytest.mark.parametrize(
    ("name", "reader", "file"),
    [
        ("classify en noshuffle", ClassifyReader, "cls.tsv"),
        ("match pointwise max_len14", MatchReader, "match.tsv"),
        ("mlm np seed 3 noshuffle", MaskLMReader, "mlm.tsv"),
    ],
)
def test_batches_of_text_equal_the_recorded_ones(name: str, reader: type[Reader], file: str) -> None:
    mine = reader(golden.VOCAB, 14 if "14" in name else 16, do_lower_case=True)  # type: ignore[call-arg]
    rows = encoded(mine, golden.LATER / file, with_targets=True)
    first = 0
    for batch in recording()[name]:
        size = len(batch["token_ids"])
        golden.assert_equal_batches(mine, rows, list(range(first, first + size)), arrays_of(batch))
        first += size
    assert first == len(rows) - (2 if "match" in name else 1)  # the original loses the last batch


@pytest.mark.parametrize(
    ("name", "settings", "with_targets", "count"),
    [
        ("mrc train remove_noanswer=True", {}, True, 14),
        ("mrc train remove_noanswer=False", {"remove_noanswer": False}, True, 27),
        ("mrc predict remove_noanswer=True", {}, False, 27),
    ],
)
def test_windows_equal_the_recorded_features(
    name: str, settings: dict[str, Any], with_targets: bool, count: int
) -> None:
    mine = mrc_reader(**settings)
    rows = encoded(mine, golden.LATER / "mrc.json", with_targets)
    recorded = recording()[name]
    batch = mine.collate(rows, range(len(rows)), rng_of_row)

    assert len(rows) == len(recorded["features"]) == count
    first = 0
    for theirs in map(arrays_of, recorded["batches"]):
        size, width = theirs["token_ids"].shape
        for field in ("token_ids", "segment_ids", "input_mask"):
            ours = batch[field][first : first + size, :width].numpy()
            assert (ours == theirs[field]).all(), field
        first += size
    if with_targets:
        for field, told in (("start_positions", "start_position"), ("end_positions", "end_position")):
            assert batch[field].tolist() == [feature[told] for feature in recorded["features"]]


@pytest.mark.parametrize("with_negative", [False, True])
def test_mrc_answers_equal_the_recorded_ones(with_negative: bool) -> None:
    logits = recording()["mrc_post_logits"]
    folder = golden.LATER / ("mrc_post_neg" if with_negative else "mrc_post")
    theirs = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    nbest = json.loads((folder / "nbest_predictions.json").read_text(encoding="utf-8"))
    mine = mrc_reader()
    head = MRC(hidden_size=4, max_answer_len=10, n_best_size=5, with_negative=with_negative)
    examples = list(mine.read(golden.LATER / "mrc.json", with_targets=False))
    rows = mine.encode(examples, with_targets=False)
    decoded = [
        head.decode({"start_logits": torch.tensor([start]), "end_logits": torch.tensor([end])})[0]
        for start, end in logits.values()
    ]
    records = {record["id"]: record for record in mine.records(examples, rows, decoded, 0)}
    odds = json.loads((golden.LATER / "mrc_post_neg" / "null_odds.json").read_text(encoding="utf-8"))
    assert records.keys() == theirs.keys() == nbest.keys() == odds.keys()
    for name, record in records.items():
        assert golden.bare(record["nbest"][0]["text"]) == golden.bare(theirs[name])
        assert [scored(answer) for answer in record["nbest"]] == [scored(answer) for answer in nbest[name]]
        probabilities = [answer["probability"] for answer in nbest[name]]
        assert [answer["probability"] for answer in record["nbest"]] == pytest.approx(probabilities, rel=1e-6)
        if with_negative:
            assert record["null_odds"] == pytest.approx(odds[name], rel=1e-6)


def scored(answer: dict[str, Any]) -> tuple[Any, ...]:
    """An n-best entry to compare; the recorded logits have more digits than float32 keeps."""
    return golden.bare(answer["text"]), round(answer["start_logit"], 5), round(answer["end_logit"], 5)
