"""Importing palm is cheap and quiet."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import palm
from helpers import tiny

HEAVY = {"pandas", "scipy", "sentence_transformers", "sklearn", "transformers"}
ALL = f"""
import sys, palm
for name in palm.__all__:
    getattr(palm, name)
print(sorted(sys.modules.keys() & {HEAVY!r}))
"""
LIGHT = """
import sys
from palm.cli import main
for words in {commands!r}:
    try:
        main(words)
    except SystemExit:
        pass
    print("LOADED", sorted(sys.modules.keys() & {{"torch", "transformers", "jinja2"}}))
"""


def test_importing_palm_loads_nothing_that_only_tests_need_and_says_nothing() -> None:
    run = python(ALL)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


WITHOUT_TORCH = {
    "--help": "usage",
    "--version": "palm",
    "export --help": "usage",
    "train --help": "--help_all",
    "init new --tasks cls,mlm": "config.yaml",
    "diff run run": "no differences",
    "inspect run": "palm run",
}
"""Commands that do not wait for torch -> a part of their output."""


def test_commands_that_read_no_declarations_of_components_do_not_import_torch(folder: Path) -> None:
    tiny.controller(folder, "cls", save_path=str(folder / "run"), max_steps=1).train()
    run = python(LIGHT.format(commands=[words.split() for words in WITHOUT_TORCH]), folder)
    shown = run.stdout.split("LOADED")
    assert [part.strip().splitlines()[0] for part in shown[1:]] == ["[]"] * len(WITHOUT_TORCH), run.stderr
    assert all(text in part for text, part in zip(WITHOUT_TORCH.values(), shown, strict=False))


def test_the_names_that_are_imported_late_are_those_that_a_type_checker_reads() -> None:
    tree = ast.parse(Path(palm.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names if node.module != "palm"}
    packages = [alias.name for node in imports for alias in node.names if node.module == "palm"]
    assert homes == palm._HOMES
    assert sorted({*homes, *packages} - {*palm.__all__}) == []
    assert set(palm.__all__) <= set(dir(palm))
    assert [name for name in packages if getattr(palm, name).__name__ != f"palm.{name}"] == []


def python(program: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
