"""Importing palm is cheap and quiet."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import palm
from helpers import tiny
from palm.controller.controller import Controller

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
STEPS = """
import sys, torch
from palm.optimizer import OPTIMIZERS
for name in OPTIMIZERS:
    weight = torch.nn.Parameter(torch.zeros(2))
    settings = OPTIMIZERS[name](learning_rate=1.0)
    optimizer = settings.build([("weight", weight)], *[[["weight"]]] * settings.needs_layers)
    weight.grad = torch.ones(2)
    optimizer.step()
    optimizer.zero_grad()
    assert weight[0] and weight.grad is None
print("torch._dynamo" in sys.modules)
"""


def test_importing_palm_loads_nothing_that_only_tests_need_and_says_nothing() -> None:
    run = python(ALL)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


WITHOUT_TORCH = {
    "--help": "usage",
    "--version": "palm",
    "export --help": "usage",
    "init new --tasks cls,mlm": "config.yaml",
    "diff run run": "no differences",
    "inspect run": "palm run",
}
"""Commands that do not wait for torch -> a part of their output."""


def test_commands_that_read_no_declarations_of_components_do_not_import_torch(tmp_path: Path) -> None:
    tiny.write_files(tmp_path)
    Controller(tiny.config(tmp_path, "cls", save_path=str(tmp_path / "run"), max_steps=1), argv=[]).train()
    run = python(LIGHT.format(commands=[words.split() for words in WITHOUT_TORCH]), tmp_path)
    shown = run.stdout.split("LOADED")
    assert [part.strip().splitlines()[0] for part in shown[1:]] == ["[]"] * len(WITHOUT_TORCH), run.stderr
    assert all(text in part for text, part in zip(WITHOUT_TORCH.values(), shown, strict=False))


def test_an_optimizer_does_not_wait_for_the_compiler() -> None:
    run = python(STEPS)
    assert (run.stdout, run.stderr) == ("False\n", "")


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


def test_a_name_that_palm_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'palm' has no attribute 'Trainr'"):
        palm.Trainr  # noqa: B018


def python(program: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "2000 None"), ({"GOMP_SPINCOUNT": "7"}, "7 None"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None ACTIVE")],
)
def test_waiting_threads_sleep_soon_unless_the_environment_says_otherwise(
    given: dict[str, str], expected: str
) -> None:
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    others = {name: value for name, value in os.environ.items() if name not in names}
    program = f"import os, palm; print(*[os.environ.get(name) for name in {names}])"
    words = [sys.executable, "-c", program]
    found = subprocess.run(words, env={**others, **given}, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == expected
