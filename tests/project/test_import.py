"""Importing palm is cheap and quiet."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import palm

HEAVY = {"pandas", "scipy", "sentence_transformers", "sklearn", "transformers"}
ALL = f"""
import sys, palm
for name in palm.__all__:
    getattr(palm, name)
print(sorted(sys.modules.keys() & {HEAVY!r}))
"""
LIGHT = """
import sys, palm
from palm.cli import main
try:
    main({words!r})
finally:
    print("torch" in sys.modules)
"""


def test_importing_palm_loads_nothing_that_only_tests_need_and_says_nothing() -> None:
    run = python(ALL)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["inspect", "--help"], ["download", "--list"], ["export", "--help"]]
)
def test_help_does_not_wait_for_torch(words: list[str]) -> None:
    run = python(LIGHT.format(words=words))
    assert (run.returncode, run.stdout.splitlines()[-1], run.stderr) == (0, "False", "")


def test_the_names_that_are_imported_late_are_those_that_a_type_checker_reads() -> None:
    tree = ast.parse(Path(palm.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imports for alias in node.names if node.module != "palm"}
    packages = [alias.name for node in imports for alias in node.names if node.module == "palm"]
    assert homes == palm._HOMES
    assert sorted({*homes, *packages} - {*palm.__all__}) == []
    assert set(palm.__all__) <= set(dir(palm))
    assert [name for name in packages if getattr(palm, name).__name__ != f"palm.{name}"] == []


def test_a_name_that_palm_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'palm' has no attribute 'Trainr'"):
        palm.Trainr  # noqa: B018


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
