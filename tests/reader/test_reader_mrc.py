"""Windows cover every token, answers are pieces of the context, and files may be of any size."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.reader_files import (
    CONTEXT,
    asked,
    encoded,
    rng_of_row,
    write_squad,
    write_text,
    write_vocabulary,
)
from palm.core.errors import ConfigError, DataError
from palm.reader import MRCReader, Rows
from palm.reader.squad import Answer, SquadQuestion
from palm.reader.tokenizing import best_context, windows_of


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("vocab"))


@pytest.fixture(scope="module")
def reader(vocab: Path) -> MRCReader:
    """Windows of 20 - 3 - (length of the question) tokens, each 4 after the one before."""
    return MRCReader(vocab, 20, 8, 4, do_lower_case=True)


def tokens(reader: MRCReader, rows: Rows, row: int) -> str:
    return " ".join(reader.tokenizer.tokens(rows["token_ids"][row]))


def span_text(reader: MRCReader, rows: Rows, row: int) -> str:
    """The text between the target positions, as tokens."""
    batch = reader.collate(rows, [row], rng_of_row)
    start, end = int(batch["start_positions"][0]), int(batch["end_positions"][0])
    return " ".join(reader.tokenizer.tokens(batch["token_ids"][0, start : end + 1]))


# ---- windows ----


def test_windows_overlap_and_end_with_the_document() -> None:
    assert windows_of(10, 4, 3) == [range(0, 4), range(3, 7), range(6, 10)]
    assert windows_of(11, 4, 3) == [range(0, 4), range(3, 7), range(6, 10), range(9, 11)]
    assert windows_of(4, 4, 3) == [range(0, 4)]
    assert windows_of(0, 4, 3) == [range(0, 0)]


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 60))
def test_windows_cover_every_token_of_any_document(num_tokens: int, capacity: int, stride: int) -> None:
    windows = windows_of(num_tokens, capacity, stride)

    assert {token for window in windows for token in window} == set(range(num_tokens))
    assert max(map(len, windows)) <= capacity
    assert [w.start for w in windows] == [k * min(stride, capacity) for k in range(len(windows))]


@given(st.integers(1, 120), st.integers(1, 30), st.integers(1, 30))
def test_every_token_has_one_best_window_and_it_is_the_one_with_most_context(
    num_tokens: int, capacity: int, stride: int
) -> None:
    windows = windows_of(num_tokens, capacity, stride)
    best = best_context(windows)
    for token in range(num_tokens):
        scores = {
            number: min(token - window.start, window.stop - 1 - token) + 0.01 * len(window)
            for number, window in enumerate(windows)
            if token in window
        }
        owners = [number for number in scores if best[number][token - windows[number].start]]
        assert owners == [max(scores, key=lambda number: scores[number])]  # the first of equals


def test_a_row_is_question_and_window(reader: MRCReader, tmp_path: Path) -> None:
    path = write_squad(tmp_path, (CONTEXT, [asked("q1", "What is near the door?", ("boat", 15))]))
    rows = encoded(reader, path, with_targets=False)

    assert [tokens(reader, rows, row) for row in range(len(rows))] == [
        "[CLS] what is near the door ? [SEP] anna has a red boat . the boat is old , [SEP]",
        "[CLS] what is near the door ? [SEP] boat . the boat is old , near the green door [SEP]",
        "[CLS] what is near the door ? [SEP] is old , near the green door . [SEP]",
    ]
    batch = reader.collate(rows, [0, 2], rng_of_row)
    assert batch["segment_ids"].tolist() == [[0] * 8 + [1] * 12, [0] * 8 + [1] * 9 + [0] * 3]
    assert batch["unique_ids"].tolist() == [1000000000, 1000000002]


def test_a_long_question_is_cut(vocab: Path, tmp_path: Path) -> None:
    reader = MRCReader(vocab, 20, 3, 4, do_lower_case=True)
    rows = encoded(reader, write_squad(tmp_path, ("Old boat", [asked("q1", "what is the red door")])), False)

    assert tokens(reader, rows, 0) == "[CLS] what is the [SEP] old boat [SEP]"


def test_settings_out_of_range_are_refused_together_and_those_that_leave_no_room(vocab: Path) -> None:
    with pytest.raises(ConfigError) as error:
        MRCReader(vocab, 11, 0, 0)
    query, stride = error.value.problems
    assert query.startswith("max_query_len: 0 ")
    assert stride.startswith("doc_stride: 0 ")
    with pytest.raises(ConfigError) as error:
        MRCReader(vocab, 11, 8, 1)
    (length,) = error.value.problems
    assert length.startswith("max_seq_len 11 ")
    assert "at least 12" in length


# ---- targets ----


@pytest.mark.parametrize(
    ("context", "question", "answers", "targets"),
    [
        (CONTEXT, "What is near the door?", [("old, near", 33)], ["old , near"] * 2),
        ("中国的首都是北京。", "中国的首都在哪里", [("北京", 6)], ["北 京"]),
        ("a b12cd boat", "what", [("12", 3)], ["##1 ##2"]),
        (CONTEXT, "what", [("boat", 3), ("red", 11), ("boat", 15)], ["red"]),
    ],
    ids=["windows with the whole answer", "characters", "part of a word", "the first that stands there"],
)
def test_targets_are_the_tokens_of_the_answer(
    reader: MRCReader, tmp_path: Path, context: str, question: str, answers: Any, targets: list[str]
) -> None:
    path = write_squad(tmp_path, (context, [asked("q1", question, *answers)]))
    rows = encoded(reader, path, with_targets=True)
    assert [span_text(reader, rows, row) for row in range(len(rows))] == targets


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([], r"squad.json: question 'q1': no answers"),
        ([("boat", 11)], r"question 'q1': .*'boat' .* 11, .*'red '; .* 15$"),
        ([("ship", 11)], r"question 'q1': .*'ship' .* 11, .*'red '; "),
        ([("Anna", -58)], r"question 'q1': .*'Anna' .* -58, .*'Anna'; .* 0$"),
        ([("boat", 900)], r"question 'q1': .*'boat' .* 900, .*''; .* 15$"),
        ([("", 0)], r"question 'q1': .*empty"),
        ([(" ", 4)], r"question 'q1': .*' ' "),
    ],
)
def test_an_answer_that_does_not_stand_where_it_should_is_reported(
    reader: MRCReader, tmp_path: Path, answers: list[tuple[str, int]], message: str
) -> None:
    path = write_squad(tmp_path, (CONTEXT, [asked("q1", "what", *answers)]))
    with pytest.raises(DataError, match=message):
        encoded(reader, path, with_targets=True)


def test_an_answer_that_no_window_holds_is_counted_in_a_warning(
    reader: MRCReader, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("palm"), "propagate", True)
    question = "What is near the door?"  # 6 tokens leave 11 for the context, which has 16
    path = write_squad(
        tmp_path, (CONTEXT, [asked("q1", question, (CONTEXT, 0)), asked("q2", question, ("red", 11))])
    )

    rows = encoded(reader, path, with_targets=True)

    assert set(rows["example"].values.tolist()) == {1}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("1 of 2 ")
    assert "'q1'" in record.getMessage()
    assert "'q2'" not in record.getMessage()


# ---- answers ----


def answers_of(reader: MRCReader, context: str, spans: dict[int, list[Any]], question: str = "what") -> Any:
    """The record of one question, given the spans of some windows; columns count from the window's begin."""
    examples = list(reader.parse([{"question": question, "context": context, "id": "q"}]))
    rows = reader.encode(examples, with_targets=False)
    first = int(rows["first_segment"][0])
    decoded = [
        {
            "spans": [(first + s, first + e, *logits) for s, e, *logits in spans.get(row, [])],
            "null_score": 0.0,
        }
        for row in range(len(rows))
    ]
    [record] = reader.records(examples, rows, decoded, first=0)
    return record


def test_answers_are_ranked_and_written_as_in_the_context(reader: MRCReader) -> None:
    record = answers_of(
        reader, "The  OLD,red boat", {0: [(1, 3, 1.0, 2.0), (4, 4, 3.0, 1.0), (3, 3, 0.0, 0.0)]}
    )

    total = np.exp([0.0, -1.0, -4.0]).sum()
    assert record["id"] == "q"
    assert record["text"] == "boat"
    expected = [("boat", 3.0, 1.0), ("OLD,red", 1.0, 2.0), ("red", 0.0, 0.0)]
    assert [(x["text"], x["start_logit"], x["end_logit"]) for x in record["nbest"]] == expected
    assert [x["probability"] for x in record["nbest"]] == pytest.approx(
        [1 / total, np.exp(-1) / total, np.exp(-4) / total]
    )


def test_equal_scores_keep_the_order_of_windows_and_equal_texts_count_once(reader: MRCReader) -> None:
    record = answers_of(
        reader, "the boat the boat a", {0: [(3, 3, 1.0, 1.0), (4, 4, 1.0, 1.0), (1, 1, 1.0, 0.5)]}
    )

    expected = [("boat", 1.0, 1.0), ("a", 1.0, 1.0)]
    assert [(x["text"], x["start_logit"], x["end_logit"]) for x in record["nbest"]] == expected


def test_spans_outside_the_context_do_not_count(reader: MRCReader) -> None:
    outside = [(-1, 0, 9.0, 9.0), (-3, -3, 9.0, 9.0), (1, 2, 9.0, 9.0), (2, 2, 9.0, 9.0)]
    record = answers_of(reader, "red boat", {0: [*outside, (1, 1, 0.0, 0.0)]})

    assert [answer["text"] for answer in record["nbest"]] == ["boat"]


def test_without_a_span_the_answer_is_empty(reader: MRCReader) -> None:
    record = answers_of(reader, "red boat", {})

    assert record["text"] == ""
    assert record["nbest"] == [{"text": "", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_an_answer_counts_in_the_window_with_most_context_for_its_begin(reader: MRCReader) -> None:
    # The windows hold tokens 0 to 15 and 4 to 17; token 4 has more context in the first.
    context = "a b c d e f g h i j k l m n o p q r"
    record = answers_of(reader, context, {0: [(4, 4, 1.0, 1.0)], 1: [(0, 0, 9.0, 9.0), (12, 13, 0.0, 0.0)]})

    assert [answer["text"] for answer in record["nbest"]] == ["e", "q r"]


@settings(max_examples=60)
@given(st.data())
def test_any_span_of_any_text_gives_a_piece_of_it(reader: MRCReader, data: st.DataObject) -> None:
    context = data.draw(
        st.text(alphabet="ab ,.中国É\n\u200b😀\u0301", min_size=1, max_size=60).filter(str.strip)
    )
    spans = st.tuples(st.integers(-3, 30), st.integers(-3, 30), st.just(0.0), st.just(0.0))
    record = answers_of(reader, context, {row: data.draw(st.lists(spans, max_size=5)) for row in range(3)})

    assert all(answer["text"] in context for answer in record["nbest"])


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["red", "boat,", "中国", "Anna's", "É12", "的", "old"]), min_size=1, max_size=30
    ),
    st.data(),
)
def test_every_answer_maps_to_tokens_and_back_to_itself(
    reader: MRCReader, pieces: list[str], data: st.DataObject
) -> None:
    context = " ".join(pieces)
    first = data.draw(st.integers(0, len(pieces) - 1))
    last = data.draw(st.integers(first, min(first + 2, len(pieces) - 1)))
    start = len(" ".join(pieces[:first])) + (first > 0)
    answer = " ".join(pieces[first : last + 1])
    question = SquadQuestion("q", "what", context, (Answer(answer, start),), "here")
    rows = reader.encode([question], with_targets=True)

    assert len(rows) > 0
    for row in range(len(rows)):
        shift = int(rows["first_segment"][row])
        begin = rows["char_starts"][row][int(rows["start_positions"][row]) - shift]
        end = rows["char_ends"][row][int(rows["end_positions"][row]) - shift]
        assert context[begin:end] == answer


def test_records_come_in_the_order_of_the_questions(reader: MRCReader) -> None:
    examples = list(reader.parse([("what", "red boat"), ("who", CONTEXT), ("what", "old door")]))
    rows = reader.encode(examples, with_targets=False)
    first = int(rows["first_segment"][0])
    decoded = [{"spans": [(first, first, 0.0, 0.0)], "null_score": 0.0} for _ in range(len(rows))]

    expected = [("0", "red"), ("1", "Anna"), ("2", "old")]
    assert [(r["id"], r["text"]) for r in reader.records(examples, rows, decoded, 0)] == expected


# ---- the file ----


def test_prediction_needs_no_answers(reader: MRCReader, tmp_path: Path) -> None:
    path = write_squad(tmp_path, (CONTEXT, [{"id": 7, "question": "who"}, asked("q2", "who", ("x", -1))]))

    assert [(q.id, q.answers) for q in reader.read(path, with_targets=False)] == [("7", ()), ("q2", ())]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [\n  {"paragraphs" []}]}', r"squad.json:2:17: "),
        ('{"data": [{"paragraphs": []}', r"squad.json:1:29: "),
        ("[]", r"squad.json: .*'data', not \[\]"),
        ("", r"squad.json:1:1: "),
        ('{"version": 1}', r"squad.json: no 'data'; found 'version'"),
        ('{"data": 5}', r"squad.json: 'data' should be a list, not 5"),
        ('{"data": []}\n{}', r"squad.json:2:1: .*jsonl"),
        ('{"data": ["\\ud83d"]}', r"squad.json: .*surrogate"),
        ('{"data": []}', r"squad.json: .*question \(data, paragraphs, qas\)"),
        ('{"data": [5]}', r"squad.json: article 1: expected .*'paragraphs', not 5"),
        ('{"data": [{"title": 1}]}', r"squad.json: article 1: no 'paragraphs'; found 'title'"),
        ('{"data": [{"paragraphs": [{"context": "a"}]}]}', r"paragraph 1: no 'qas'; found 'context'"),
        (
            '{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "x", "question": 5}]}]}]}',
            r"squad.json: question 'x': 'question' .*string, not 5",
        ),
    ],
)
def test_a_mistake_in_a_file_is_reported_with_its_place(
    reader: MRCReader, tmp_path: Path, content: str, message: str
) -> None:
    path = write_text(tmp_path, "squad.json", content)
    with pytest.raises(DataError, match=message):
        list(reader.read(path, with_targets=True))


def test_a_question_id_twice_is_reported(reader: MRCReader, tmp_path: Path) -> None:
    path = write_squad(tmp_path, ("a boat", [asked("q1", "what")]), ("a door", [asked("q1", "what")]))
    with pytest.raises(DataError, match=r"squad.json: question 'q1': .*id"):
        list(reader.read(path, with_targets=False))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", r"text 1: expected \(question, context\) or \{.*\} \(and 'id'\), not 'x'"),
        ({"question": "who"}, r"text 1: expected \(question, context\)"),
        (("who", ""), r"text 1: the context is empty"),
        ({"question": "who", "context": "a boat", "id": "0"}, r"text 1: .*'0'"),
    ],
)
def test_a_value_that_is_not_a_question_is_reported_with_its_number(
    reader: MRCReader, value: object, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        list(reader.parse([("who", "a boat"), value]))
