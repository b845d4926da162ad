"""The command: train, predict, help; exit codes as a shell expects them."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import palm
from helpers import tiny
from palm.cli import COMMANDS, main
from palm.cli.command import write_json
from palm.cli.runs import GROUPS
from palm.core.errors import EXIT_CODES
from palm.core.logging import aligned, fitted
from palm.core.process import START


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_files(tmp_path)
    settings = tiny.config(tmp_path, "cls", "mrc", num_epochs=1, save_path="out")
    return tiny.write_config(tmp_path, settings, "tasks").parent


def test_train_then_predict_all_tasks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = [str(folder / "config.yaml"), "--task_dir", "tasks"]
    assert main(["train", *config, "--batch-size=5", "--cls.n_classes", "4"]) == 0
    assert main(["predict", *config]) == 0
    assert main(["predict", *config, "--task", "cls", "--output", str(folder / "cls.csv")]) == 0
    assert len((folder / "cls.csv").read_text(encoding="utf-8").splitlines()) == 41
    assert len((folder / "out" / "cls" / "predictions.json").read_text(encoding="utf-8").splitlines()) == 40
    assert len(json.loads((folder / "out" / "mrc" / "predictions.json").read_text(encoding="utf-8"))) == 40
    assert capsys.readouterr().err == ""


def test_settings_may_stand_before_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--batch_size", "50", str(folder / "config.yaml"), "--task-dir=tasks", "--task", "x"]
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err.startswith("error: --task: ")
    assert main(["train", *words[:-2], "--num_epochs", "1"]) == 2
    error = capsys.readouterr().err
    assert all(part in error for part in ("task 'cls'", " 40 ", "batch_size", " 50"))


def test_predict_with_a_model_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["train", str(folder / "config.yaml"), "--task_dir", "tasks"]) == 0
    arguments = ["--model", str(folder / "out" / "cls" / "infer_model"), "--input", str(folder / "cls.tsv")]
    with caplog.at_level("INFO", "palm"):
        assert main(["predict", *arguments, "--output", str(folder / "answers")]) == 0
    assert str(folder / "answers") in caplog.messages[-1]
    assert len((folder / "answers" / "predictions.json").read_text(encoding="utf-8").splitlines()) == 40


@pytest.mark.parametrize("words", [["--help"], ["train", "--help_all"], ["predict", "--help"], ["--version"]])
def test_help_and_version_end_with_0(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert "palm" in output
    if words[0] == "train":
        assert "--learning_rate  (number, required)" in output
        assert "--mix_ratio  (" in output
        assert "--reader  (string, required)" in output


def test_the_help_of_train_is_one_screen_and_all_settings_are_one_option_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 45
    assert max(map(len, short.splitlines())) <= 80
    with pytest.raises(SystemExit):
        main(["train", "--help_all"])
    explained = re.findall(r"^  --(\w+)  \(", capsys.readouterr().out, re.MULTILINE)
    assert len(explained) > 100
    assert {name for names in GROUPS.values() for name in names.split()} <= {*explained}


def test_tables_fit_a_terminal_and_are_as_wide_as_they_need_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [["task", "saved at"], ["任务", "/a/very/long/path" * 12], ["b", "c"]]
    lines = aligned(rows)
    assert lines == ["task  saved at", f"任务  {'/a/very/long/path' * 12}", "b     c"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    folded = aligned(rows)
    assert max(map(len, folded)) <= 80
    assert "".join(line[6:].strip() for line in folded[1:-1]).endswith("/a/very/long/path")
    monkeypatch.setenv("COLUMNS", "45")
    narrow = aligned(
        [["task", "saved at", "best score"], ["页面问答", "页面问答/best_model", "entity_f1 1.0000"]]
    )
    expected = [["页面问答", "页面问答/best_model", "entity_f1"], ["1.0000"]]
    assert [line.split() for line in narrow[1:]] == expected
    assert narrow[0] == f"{'task':8}  {'saved at':19}  best score"


def test_cells_that_have_no_room_are_folded_below_their_own_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "36")
    lines = aligned([["Settings", "a"], ["  task seq: hidden_size", "/a/long/path/of/a/file"]])
    assert lines == [
        "Settings          a",
        "  task seq:       /a/long/path/of/",
        "    hidden_size   a/file",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_without_room_are_broken_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    finding = "warning  cls: 139 of 141 rows are cut\n         -> raise max_seq_len (now 9)"
    assert fitted(finding, io.StringIO()) == finding
    assert fitted(finding, Terminal()).splitlines() == [
        "warning  cls: 139 of 141 rows",
        "         are cut",
        "         -> raise max_seq_len",
        "           (now 9)",
    ]
    scores = "step 1: 任务: entity_f1 0.2, token_accuracy 0.7"
    assert fitted(scores, Terminal()) == "step 1: 任务: entity_f1 0.2,\n  token_accuracy 0.7"
    # A command stays whole, and can be copied.
    command = "palm report /a/long/path/of/a/run"
    assert fitted(f"next: {command}", Terminal()) == f"next:\n  {command}"
    assert fitted(short := "next: palm report run", Terminal()) == short


def test_json_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("COLUMNS", "30")
    write_json({"a label with spaces": "and a value with more of them"}, indent=None)
    assert terminal.getvalue() == '{"a label with spaces": "and a value with more of them"}\n'


def test_the_documented_exit_codes_are_those_of_the_code() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference_commands.md"
    rows = re.findall(r"^\| ([0-2]) \| (.+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    sources = [path.read_text(encoding="utf-8") for path in Path(palm.__file__).parent.rglob("*.py")]
    assert not [source for source in sources if re.search(r"SystemExit\([12]\)|sys\.exit\([0-9]", source)]


FINDS = {"check", "train", "diff"}
"""Commands that end with 1 if they find something."""


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refused_command_ends_with_2_and_only_some_may_end_with_1(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = main([command, "nowhere", "--no_such_option", "1"])
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    finds = "ExitCode.FOUND" in inspect.getsource(COMMANDS[command].run)
    assert (code, finds or command == "train") == (
        1 if command == "check" else 2,  # a check of a configuration that is wrong is done, and found it
        command in FINDS,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="the words are those of a POSIX shell")
@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        ("| true", 128 + signal.SIGPIPE, ""),
        ("> /dev/full", 2, "error: cannot write the output: the disk is full; free some space"),
    ],
)
def test_output_that_nobody_takes_is_no_crash(redirection: str, status: int, said: str) -> None:
    words = shlex.join([*START, "ls"])
    line = f"{words} {redirection}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.strip()) == (status, said)
