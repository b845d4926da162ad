"""Text of others in a terminal: what is escaped, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from palm.core.errors import ABSENT, Change, ConfigError, Problem, changes, shortened
from palm.core.logging import collected_warnings, logger, printable, shown_url
from palm.core.process import duration


def test_what_controls_a_terminal_is_escaped_and_every_kind_of_space_stays() -> None:
    spaces = "准确率\u3000高\u00a0a\tb\n"
    assert printable(f"{spaces}\x1b[31m\u202e\r") == spaces + "\\x1b[31m\\u202e\\r"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("https://me:p@ss@host/a.csv?token=s3cret&x=1: no such file", "https://host/a.csv?…: no such file"),
        ("s3://key:secret@bucket/a.csv", "s3://bucket/a.csv"),
        (Path("https://me:secret@host/a.csv?sig=s3cret"), "https:/host/a.csv?…"),
        ("a https://x/y?a=1,https://z/w?b=2", "a https://x/y?…"),
        ("me@host: C:\\a@b?c, data/part-?.csv, https://host/a@b.csv", None),
    ],
)
def test_a_url_shows_neither_a_user_nor_a_password_nor_a_query(given: object, shown: str | None) -> None:
    assert shown_url(given) == (shown or given)


def test_errors_and_log_lines_show_no_secret_and_no_escape_sequence(caplog: pytest.LogCaptureFixture) -> None:
    url = "https://me:secret@host/a.csv?token=secret"
    logger.warning("cannot read %s: \x1b[2J", url)
    assert caplog.messages == ["cannot read https://host/a.csv?…: \\x1b[2J"]
    error = ConfigError([f"a: {url}", Problem(f"b: {url}", "train_file")])
    assert error.problems == ["a: https://host/a.csv?…", "b: https://host/a.csv?…"]
    assert str(error) == "\n".join(error.problems)


def test_a_block_that_shows_nothing_collects_what_a_block_in_it_collects_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collected_warnings(shown=False) as outer, collected_warnings() as inner:
        logger.warning("a\x1b")
        logger.info("b")
    logger.warning("c")
    assert (outer, inner, caplog.messages) == (["a\\x1b"], ["a\\x1b"], ["c"])


# One differ of nested mappings, which every message about two runs or models uses.


def test_values_that_differ_have_the_keys_that_lead_to_them() -> None:
    old = {"a": {"b": 1, "c": [1, 2], "d": {"e": 1}}, "x": 1, "gone": None}
    new = {"a": {"b": 2, "c": (1, 2), "d": 5}, "x": 1, "come": {"y": 1}}
    assert list(changes(old, new)) == [
        Change(("a", "b"), 1, 2),
        Change(("a", "d"), {"e": 1}, 5),
        Change(("gone",), None, ABSENT),
        Change(("come",), ABSENT, {"y": 1}),
    ]


def test_below_a_depth_mappings_are_compared_as_a_whole() -> None:
    old = {"a": {"b": {"c": 1}}}
    new = {"a": {"b": {"c": 2}}}
    paths = {depth: [change.path for change in changes(old, new, depth)] for depth in (1, 2, None)}
    assert paths == {1: [("a",)], 2: [("a", "b")], None: [("a", "b", "c")]}


def test_of_many_lines_the_first_are_shown_and_the_others_counted() -> None:
    assert shortened(["a", "b"], 2) == ["a", "b"]
    assert shortened(["a", "b", "c", "d"], 2) == ["a", "b", "and 2 more"]


# Durations in words.


def test_says_durations_as_people_do() -> None:
    said = [duration(seconds) for seconds in (0.04, 2.54, 12.5, 89, 101, 3570, 5400, 7260)]
    assert said == ["40 ms", "2.5 s", "12 s", "89 s", "2 min", "1 h 0 min", "1 h 30 min", "2 h 1 min"]
