"""The readers' batches and answers equal those that PaddlePALM made of the same files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.reader_files import encoded, rng_of_row, without_literal_sep
from helpers.recorded_readers import (
    LATER,
    MRC_POST,
    READERS,
    VOCAB,
    Batch,
    assert_equal_batches,
    bare,
    recorded_json,
    unmasked,
)
from helpers.shared import needs_shared
from palm.reader import ClassifyReader, MaskLMReader, MatchReader, MRCReader, Reader

pytestmark = needs_shared


def reader(kind: str) -> Reader:
    if kind == "mrc":
        return MRCReader(VOCAB, 128, 32, 64, do_lower_case=True)
    if kind == "cls":
        return ClassifyReader(VOCAB, 128, do_lower_case=True, n_classes=4)
    return {"match": MatchReader, "mlm": MaskLMReader}[kind](VOCAB, 128, do_lower_case=True)


def recorded_batches(name: str) -> list[Batch]:
    with np.load(READERS / f"{name}.npz") as arrays:
        numbers = sorted({key.split("/")[0] for key in arrays})
        return [
            {key.split("/")[1]: arrays[key][..., 0] for key in arrays if key.startswith(f"{number}/")}
            for number in numbers
        ]


@pytest.mark.parametrize(
    ("kind", "file", "rows_of_epoch"),
    [
        ("cls", "cls.tsv", 36),
        ("match", "match.tsv", 36),
        ("mlm", "mlm.tsv", 36),
        ("mrc", "mrc_train.json", 56),
    ],
)
def test_training_batches_in_file_order_equal_the_recorded_ones(
    kind: str, file: str, rows_of_epoch: int, tmp_path: Path
) -> None:
    mine = reader(kind)
    rows = encoded(mine, without_literal_sep(READERS / "data" / file, tmp_path), with_targets=True)

    # The original loses the last batch of every epoch: the last 4 of 40 rows, the last of 57.
    assert len(rows) == {"mrc": 57}.get(kind, 40)
    for number, batch in enumerate(recorded_batches(f"{kind}_train")):
        first = 4 * number % rows_of_epoch
        assert_equal_batches(mine, rows, list(range(first, first + 4)), batch)


@pytest.mark.parametrize(
    ("kind", "file"),
    [("cls", "cls.tsv"), ("match", "match.tsv"), ("mlm", "mlm.tsv"), ("mrc", "mrc_train.json")],
)
def test_shuffled_training_batches_equal_the_recorded_ones_row_by_row(
    kind: str, file: str, tmp_path: Path
) -> None:
    mine = reader(kind)
    rows = encoded(mine, without_literal_sep(READERS / "data" / file, tmp_path), with_targets=True)
    row_with = {tuple(rows["token_ids"][row].tolist()): row for row in range(len(rows))}

    for batch in map(unmasked, recorded_batches(f"{kind}_train_shuffled")):
        tokens = [
            row[: int(mask.sum())] for row, mask in zip(batch["token_ids"], batch["input_mask"], strict=True)
        ]
        assert_equal_batches(mine, rows, [row_with[tuple(row.tolist())] for row in tokens], batch)


@pytest.mark.parametrize(
    ("kind", "file", "count"),
    [
        ("cls", "cls.tsv", 40),
        ("match", "match.tsv", 40),
        ("mlm", "mlm.tsv", 40),
        ("mrc", "mrc_dev.json", 374),
    ],
)
def test_prediction_batches_equal_the_recorded_ones(kind: str, file: str, count: int, tmp_path: Path) -> None:
    mine = reader(kind)
    rows = encoded(mine, without_literal_sep(READERS / "data" / file, tmp_path), with_targets=False)

    assert len(rows) == count
    first = 0
    for batch in recorded_batches(f"{kind}_pred"):
        size = len(batch["token_ids"])
        assert_equal_batches(mine, rows, list(range(first, first + size)), batch)
        first += size
    assert first == count


def test_windows_and_unique_ids_equal_the_recorded_features(tmp_path: Path) -> None:
    mine = reader("mrc")
    rows = encoded(mine, without_literal_sep(READERS / "data/mrc_dev.json", tmp_path), with_targets=False)
    features = json.loads((READERS / "mrc_pred_features.json").read_text(encoding="utf-8"))["features"]

    batch = mine.collate(rows, range(len(rows)), rng_of_row)

    assert batch["unique_ids"].tolist() == [int(feature["unique_id"]) for feature in features]
    assert rows["example"].values.tolist() == [int(feature["example_index"]) for feature in features]


def test_for_cn_takes_the_blanks_out_as_recorded() -> None:
    recorded = json.loads((LATER / "readers.json").read_text(encoding="utf-8"))
    mine = ClassifyReader(VOCAB, 16, for_cn=True, do_lower_case=True)
    rows = encoded(mine, LATER / "cls.tsv", with_targets=True)

    expected = [row for batch in recorded["classify cn noshuffle"] for row in batch["token_ids"]]

    compared = [rows["token_ids"][row].tolist() for row in range(len(expected))]
    assert compared == [[number for number in row if number] for row in expected]


# ---- answers ----


def spans_of(
    start: Any, end: Any, n_best_size: int, max_answer_len: int
) -> list[tuple[int, int, float, float]]:
    """The candidates of one window as the original chooses them."""
    starts = np.argsort(-start, kind="stable")[:n_best_size].tolist()
    ends = np.argsort(-end, kind="stable")[:n_best_size].tolist()
    return [
        (s, e, float(start[s]), float(end[e])) for s in starts for e in ends if 0 <= e - s < max_answer_len
    ]


def answers_of(case: str, folder: Path, kept: int) -> dict[str, list[dict[str, Any]]]:
    """Our n-best of a recorded case, from its recorded logits."""
    config = json.loads((MRC_POST / case / "config.json").read_text(encoding="utf-8"))
    lengths = (config[name] for name in ("max_seq_len", "max_query_len", "doc_stride"))
    options = {"do_lower_case": config["do_lower_case"], "for_cn": config.get("for_cn", False)}
    mine = MRCReader(MRC_POST / "vocab.txt", *lengths, **options)
    examples = list(
        mine.read(without_literal_sep(MRC_POST / config["pred_file"], folder), with_targets=False)
    )
    rows = mine.encode(examples, with_targets=False)
    decoded: list[dict[str, Any]] = [{} for _ in range(len(rows))]
    with np.load(MRC_POST / case / "logits.npz") as arrays:
        for batch in {key.split("/")[0] for key in arrays}:
            logits = zip(
                *(arrays[f"{batch}/{name}"] for name in ("unique_ids", "start_logits", "end_logits")),
                strict=True,
            )
            for unique_id, start, end in logits:
                spans = spans_of(start, end, config["n_best_size"], config["max_answer_len"])
                decoded[int(unique_id[0]) - 1000000000] = {"spans": spans, "n_best_size": kept}
    return {record["id"]: record["nbest"] for record in mine.records(examples, rows, decoded, 0)}


# Where a line break lies in an answer, or an unknown word, the original cannot find the tokens in the text
# and gives back the whole words around them ("a period." for "a period"). These best answers are such.
WHOLE_WORDS = {
    "en_lower": {"but   shorter   than   \n a   period."},
    "en_lower_negative": {"but   shorter   than   \n a   period."},
    "en_cased": {"...   First   they   eat   the   feed,", "...   \n Created", "MORNING   \n TRAIN   (Nine"},
    "cn_for_cn": set(),
    "cn_for_cn_cased": set(),
}


@pytest.mark.parametrize(
    ("case", "questions"),
    [("en_lower", 15), ("en_lower_negative", 15), ("en_cased", 15), ("cn_for_cn", 4), ("cn_for_cn_cased", 4)],
)
def test_best_answers_equal_the_recorded_ones(case: str, questions: int, tmp_path: Path) -> None:
    mine = answers_of(case, tmp_path, kept=20)
    predictions = recorded_json(case, "predictions.json")

    different = {text for name, text in predictions.items() if bare(mine[name][0]["text"]) != bare(text)}

    assert mine.keys() == predictions.keys()
    assert len(predictions) == questions
    assert different == WHOLE_WORDS[case]
    for name, text in predictions.items():
        assert bare(mine[name][0]["text"]) in bare(text)


@pytest.mark.parametrize(
    ("case", "equal", "recorded"),
    [
        ("en_lower", 245, 300),
        ("en_lower_negative", 245, 300),
        ("en_cased", 201, 300),
        ("cn_for_cn", 78, 80),
        ("cn_for_cn_cased", 77, 80),
    ],
)
def test_recorded_n_best_answers_are_ours_in_the_same_order(
    case: str, equal: int, recorded: int, tmp_path: Path
) -> None:
    everything = answers_of(case, tmp_path, kept=100_000)
    ranks: list[int] = []
    count = 0
    for name, nbest in recorded_json(case, "nbest_predictions.json").items():
        mine = {
            (bare(x["text"]), x["start_logit"], x["end_logit"]): k for k, x in enumerate(everything[name])
        }
        theirs = [(bare(x["text"]), x["start_logit"], x["end_logit"]) for x in nbest if x["text"]]
        shared = [mine[answer] for answer in theirs if answer in mine]
        assert shared == sorted(shared)
        for text, *logits in set(theirs) - mine.keys():  # the original gives whole words around the answer
            assert any(piece in text and rest == logits for piece, *rest in mine)
        ranks += shared
        count += len(theirs)
    assert (len(ranks), count) == (equal, recorded)


def test_where_a_recorded_lower_case_answer_differs_it_has_a_line_break(tmp_path: Path) -> None:
    mine = answers_of("en_lower", tmp_path, kept=100_000)
    for name, nbest in recorded_json("en_lower", "nbest_predictions.json").items():
        texts = {bare(answer["text"]) for answer in mine[name]}
        assert all("\n" in answer["text"] for answer in nbest if bare(answer["text"]) not in texts)


def test_probabilities_equal_the_recorded_ones(tmp_path: Path) -> None:
    mine = answers_of("cn_for_cn", tmp_path, kept=20)
    for name in ("cn0", "cn1"):  # where all twenty answers are those of the original
        theirs = recorded_json("cn_for_cn", "nbest_predictions.json")[name]
        assert [bare(answer["text"]) for answer in mine[name]] == [bare(answer["text"]) for answer in theirs]
        assert [answer["probability"] for answer in mine[name]] == pytest.approx(
            [answer["probability"] for answer in theirs], rel=1e-12
        )
