"""Text of others in a terminal: what is escaped, and what stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from palm.core.errors import ConfigError, Problem
from palm.core.logging import collected_warnings, logger, printable, shown_url


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
