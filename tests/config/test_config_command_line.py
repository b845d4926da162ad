"""The program's arguments as settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.messages import facts
from palm.config.files import Flag, guessed, read_arguments, split_arguments


def read(*words: str) -> tuple[dict[str, Any], list[str]]:
    problems: list[str] = []
    found = read_arguments(words, problems)
    return {name: guessed(setting.value) for name, setting in found.items()}, problems


def test_values_follow_as_next_word_or_after_an_equals_sign() -> None:
    expected = {"learning_rate": 1e-4, "save_path": "a=b", "empty": ""}
    assert read("--learning_rate", "1e-4", "--save_path=a=b", "--empty=") == (expected, [])


def test_hyphens_are_underscores_in_names_but_not_in_tasks_or_values() -> None:
    settings, _ = read("--learning-rate", "1", "--my-task.max-seq-len", "64", "--save-path", "my-out")
    assert settings == {"learning_rate": 1, "my-task.max_seq_len": 64, "save_path": "my-out"}


def test_an_option_without_a_value_is_a_flag() -> None:
    found = read_arguments(["--use_ema", "--batch_size", "8", "--use_gpu"], [])
    assert isinstance(found["use_ema"].value, Flag)
    assert isinstance(found["use_gpu"].value, Flag)
    assert found["batch_size"].value == "8"


def test_words_of_no_option_are_reported() -> None:
    problems = read("train", "--a", "1", "2", "-x", "--")[1]
    assert [facts(line).split()[1] for line in problems] == ["'train'", "'2'", "'-x'", "'--'"]


def test_a_setting_given_twice_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    split_arguments(
        ["--num_epochs", "2", "--task", "a", "--num_epochs=3", "--task", "b", "--x", "1", "--x", "1"],
        ["task"],
    )
    (line,) = caplog.messages
    assert line.startswith("--num_epochs ")
    assert "3 overrides 2" in line


SCRIPT = """
import sys
from palm.config.files import program_arguments
print(program_arguments())
sys.modules["ipykernel"] = sys
print(program_arguments())
"""


def ran(*command: str) -> str:
    return subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout


def test_a_script_has_its_arguments_even_when_a_test_starts_it_but_not_in_a_notebook(tmp_path: Path) -> None:
    script = tmp_path / "demo.py"
    script.write_text(SCRIPT, encoding="utf-8")
    assert ran(str(script), "--batch_size", "8") == "['--batch_size', '8']\n[]\n"
