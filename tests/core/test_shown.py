"""Text of others in a terminal: what is escaped, and what stays."""

from __future__ import annotations

from palm.cli.command import json_text
from palm.core.logging import printable


def test_what_controls_a_terminal_is_escaped_and_every_kind_of_space_stays() -> None:
    spaces = "准确率\u3000高\u00a0a\tb\n"
    assert printable(f"{spaces}\x1b[31m\u202e\r") == spaces + "\\x1b[31m\\u202e\\r"


def test_json_stays_json() -> None:
    assert json_text({"任务": 1}, indent=None) == '{"任务": 1}'
    assert json_text({"\x9b任务": 1}, indent=None) == '{"\\u009b\\u4efb\\u52a1": 1}'
