"""Every command of the tutorial runs, in both languages, and prints what the page says.

Blocks of `console` hold commands (`$ …`) and their output. A line `...` stands for any lines, `...` in a line
for any text. Numbers with a decimal point may differ by a tenth, because other processors round otherwise.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.ports import free_port, wait_for

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"en": ROOT / "docs" / "tutorial.md", "zh": ROOT / "docs" / "zh" / "tutorial.md"}
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+")
NOT_RUN = ("pip install",)
SLOW = ("palm compare",)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the commands of a page with the lines that they print."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            while command.count('"') % 2:  # a quoted program goes on in the next lines
                line, _, shown = shown.partition("\n")
                command += f"\n{line}"
            yield command, shown.splitlines()


def pattern_of(part: str) -> str:
    if part == "...":
        return ".*"
    return rf"({NUMBER.pattern})" if NUMBER.fullmatch(part) else re.escape(part)


def find(shown: str, printed: list[str], start: int) -> int:
    """Return the number after the first printed line, from `start` on, that is as shown, or -1."""
    parts = re.split(rf"({NUMBER.pattern}|\.\.\.)", shown)
    pattern = re.compile("".join(map(pattern_of, parts)))
    expected = [float(number) for number in NUMBER.findall(shown)]
    for number, line in enumerate(printed[start:], start):
        found = pattern.fullmatch(line)
        if found and [float(each) for each in found.groups()] == pytest.approx(expected, abs=0.1):
            return number + 1
    return -1


def compare(command: str, shown: list[str], output: str) -> None:
    printed = [line.rstrip() for line in output.splitlines()]
    place, skips = 0, True
    for line in shown:
        if line == "...":
            skips = True
            continue
        found = find(line, printed, place)
        assert found > 0, f"{command}\n  does not print\n{line}\n  but\n{output}"
        assert skips or found == place + 1, f"{command}\n  prints other lines before\n{line}\n{output}"
        place, skips = found, False
    assert skips or place == len(printed), f"{command}\n  prints more after the shown lines:\n{output}"


@pytest.mark.slow  # a dozen processes and a training in each language, a minute
@pytest.mark.parametrize("language", PAGES)
def test_the_commands_of_the_tutorial_print_what_it_says(language: str, tmp_path: Path) -> None:
    follow(PAGES[language], tmp_path, (*NOT_RUN, *SLOW))


@pytest.mark.slow
def test_so_do_those_that_take_minutes(tmp_path: Path) -> None:
    follow(PAGES["en"], tmp_path, NOT_RUN)


def follow(page: Path, tmp_path: Path, left_out: tuple[str, ...]) -> None:
    """Run the commands of a page from top to bottom."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "palm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m palm "$@"\n', encoding="utf-8")
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    environment |= {"PALM": str(ROOT), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    folder = tmp_path
    server: subprocess.Popen[str] | None = None
    port = free_port()
    try:
        for command, shown in commands(page):
            command = command.replace("8000", str(port))
            if command.startswith(left_out):
                continue
            if command.startswith("palm serve"):
                pytest.importorskip("fastapi", reason="the extra serve is not installed")
                server = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=folder, env=environment)
                wait_for(port, lambda server=server: server.poll() is None)
                continue
            words = ["bash", "-c", f"set -e; {command}\npwd > {tmp_path}/cwd"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            done = subprocess.run(words, cwd=folder, env=environment, **pipes, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}"
            folder = Path((tmp_path / "cwd").read_text("utf-8").strip())
            compare(command, shown, done.stdout)
    finally:
        if server is not None:
            server.terminate()
            assert server.wait(30) == 0


def test_the_tutorials_have_the_same_commands() -> None:
    english, chinese = ([command.split()[0] for command, _ in commands(page)] for page in PAGES.values())
    assert english == chinese
