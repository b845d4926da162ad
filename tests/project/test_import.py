"""Importing palm is cheap and quiet."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import palm
from helpers import tiny
from palm.cli import COMMANDS
from palm.cli.starter.catalogue import entries
from palm.cli.starter.catalogue_text import description, listing
from palm.controller.controller import Controller

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
asked = set()
sys.addaudithook(lambda event, values: asked.add(values[0]) if event == "import" else None)
for words in {commands!r}:
    asked.clear()
    try:
        main(words)
    except SystemExit:
        pass
    stay = sys.modules.keys() & {stay!r}
    print("LOADED", *sorted(stay | asked & {late!r}))
"""
STAY = {"huggingface_hub", "jinja2", "numpy", "tokenizers", "torch", "tqdm", "transformers"}
"""Modules of others; one that a command has imported stays for those after it."""

LATE = {
    "palm.predict.inference",
    "palm.train.checkpoint",
    "palm.train.loop",
    "palm.paradigm",
    "palm.pretrained",
    "palm.reader",
    "palm.report.page",
}
"""Modules that are imported where they are used."""
SHOWN = """
from palm.cli.without_torch import run_without_torch

def show():
    from palm.cli import COMMANDS
    from palm.cli.starter.catalogue import entries
    from palm.cli.starter.catalogue_text import description, listing
    print(listing(entries()), *map(description, entries()), COMMANDS["train"].epilog(), sep="\\n")

run_without_torch(show)
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
OWN = """
import torch
from palm.paradigm import Classify

class Mine(Classify):
    \"\"\"Three rows.\"\"\"
    rows = len(torch.zeros(3))
"""


def test_importing_palm_loads_nothing_that_only_tests_need_and_says_nothing() -> None:
    run = python(ALL)
    assert (run.returncode, run.stdout, run.stderr) == (0, "[]\n", "")


READERS = "palm.reader tokenizers"
COMPONENTS = "palm.paradigm palm.reader tokenizers"
LIGHT_COMMANDS = {
    "--help": ("usage", ""),
    "--version": ("palm", ""),
    "export --help": ("usage", ""),
    "init new --tasks cls,mlm": ("config.yaml", ""),
    "inspect run": ("palm run", ""),
    "diff run run": ("no differences", ""),
    "diff run nowhere": ("", ""),
    "inspect run/cls/infer_model": ("float32", READERS),
    "inspect run/step_1": ("resumable", READERS),
    "train --help": ("layerwise_decay", COMPONENTS),
    "ls": ("seq_label", COMPONENTS),
    "ls temperature": ("mixing_temperature", COMPONENTS),
    "download --list": ("BERT", f"huggingface_hub {COMPONENTS}"),
}
"""What reads declarations and records only -> a part of what it shows, and what of `LATE` it imports."""


def test_commands_that_read_declarations_and_records_import_what_they_use(folder: Path) -> None:
    last = "ls paradigm --config config.yaml"  # whose module is the user's
    commands = [words.split() for words in (*LIGHT_COMMANDS, last)]
    run = python(LIGHT.format(commands=commands, stay=STAY, late=LATE), folder)
    parts = re.findall(r"(.*?)^LOADED ?(.*?)$", run.stdout, re.DOTALL | re.MULTILINE)
    *shown, (own, own_loaded) = parts
    assert (own.split()[-3:], "torch" in own_loaded.split()) == (["own.Mine", "Three", "rows"], True)
    assert [line.partition(":")[0] for line in run.stderr.splitlines()] == ["error"]
    assert [loaded for _, loaded in shown] == [loaded for _, loaded in LIGHT_COMMANDS.values()]
    missing = [
        text for (text, _), (part, _) in zip(LIGHT_COMMANDS.values(), shown, strict=True) if text not in part
    ]
    assert missing == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny.write_files(tmp_path_factory.mktemp("light"))
    config = tiny.config(path, "cls") | {"save_path": str(path / "run"), "max_steps": 1}
    Controller(config | {"save_every_n_steps": 1}, argv=[]).train()
    (path / "own.py").write_text(OWN, encoding="utf-8")
    (path / "config.yaml").write_text("task_instance: cls\n", encoding="utf-8")
    (path / "cls.yaml").write_text("paradigm: own.Mine\n", encoding="utf-8")
    return path


def test_what_is_shown_without_torch_is_what_torch_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    run = python(SHOWN)
    texts = [listing(entries()), *map(description, entries()), COMMANDS["train"].epilog()]
    assert (run.stdout, run.stderr) == ("".join(f"{text}\n" for text in texts), "")


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
