"""A folder that somebody else made shows nothing of the reader's files; damage is said as damage."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import palm
import palm.cli
from helpers import tiny
from palm.controller.controller import Controller
from palm.core.errors import StorageError
from palm.core.io import seal
from palm.core.logging import _Console
from palm.export import to_hugging_face
from palm.export.onnx_model import to_onnx
from palm.report.difference import differences
from palm.report.inspection import inspect_directory
from palm.report.plot import terminal_plot

CANARY = "a red secret door"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with dev data beside its folder."""
    folder = tmp_path_factory.mktemp("trained")
    tiny.write_files(folder)
    given = tiny.config(folder, "cls", num_hidden_layers=1, num_epochs=0.2, print_every_n_steps=1)
    given["tasks"]["cls"]["dev_file"] = given["tasks"]["cls"]["train_file"]
    Controller(given, argv=[]).train()
    return folder


@pytest.fixture
def foreign(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of its folder, and a file of the reader's beside it."""
    lines = ["label\ttext_a", *(f"{k % 2}\t{CANARY}" for k in range(8))]
    (tmp_path / "mine.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    shutil.copytree(trained / "out", tmp_path / "out")
    yield tmp_path / "out"
    place = tmp_path / "out" / "report.html"
    assert not place.is_file() or place.is_symlink() or CANARY not in place.read_text(encoding="utf-8")


def names(run: Path, setting: str, file: str) -> None:
    """Let the configuration of a run name another file."""
    config = run / "resolved_config.yaml"
    text = config.read_text(encoding="utf-8")
    lines = [
        f"{line.partition(':')[0]}: {file}" if line.strip().startswith(f"{setting}:") else line
        for line in text.splitlines()
    ]
    config.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert file in config.read_text(encoding="utf-8")


@pytest.mark.parametrize("setting", ["dev_file", "train_file"])
def test_a_report_opens_no_file_that_a_foreign_configuration_names(foreign: Path, setting: str) -> None:
    mine = foreign.parent / "mine.tsv"
    names(foreign, setting, str(mine))
    text = palm.write_report(foreign).read_text(encoding="utf-8")
    assert ("--dev_file" in text) == (setting == "dev_file")


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize(
    "way", ["{0}/own.tsv,{1}/mine.tsv", "{0}/link*/mine.tsv", "{0}/data", "file://{1}/mine.tsv"]
)
def test_a_report_opens_no_table_that_lies_outside_in_part(
    foreign: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Several tables, a pattern, a folder of tables, and a URL, which would be copied to the cache."""
    monkeypatch.setenv("PALM_DATA_CACHE", str(foreign.parent / "cache"))
    mine = foreign.parent / "mine.tsv"
    (foreign / "own.tsv").write_text("label\ttext_a\n1\tred\n", encoding="utf-8")
    (foreign / "linked").symlink_to(foreign.parent)
    (foreign / "data").mkdir()
    (foreign / "data" / "own.tsv").symlink_to(mine)
    table = way.format(foreign, foreign.parent)
    for file in (table, f"{foreign}/own.tsv,{table}"):
        names(foreign, "dev_file", file)
        assert "--dev_file" in palm.write_report(foreign).read_text(encoding="utf-8")
    assert not (foreign.parent / "cache").exists()


def test_the_users_own_argument_names_any_file(foreign: Path) -> None:
    mine = foreign.parent / "mine.tsv"
    names(foreign, "dev_file", str(mine))
    text = palm.write_report(foreign, dev_files={"cls": mine}).read_text(encoding="utf-8")
    assert CANARY in text
    (foreign / "report.html").unlink()


HOSTILE = "\x1b[31m\x9b32m\u202e"


@pytest.mark.parametrize("words", [["plot", "--terminal"], ["diff"], ["inspect", "--json"]])
def test_names_of_a_foreign_folder_do_not_control_the_terminal(
    foreign: Path, words: list[str], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "plot":
        pytest.importorskip("plotext", reason="the extra plot is not installed")
    history = foreign / "history.jsonl"
    text = history.read_text(encoding="utf-8").replace('"cls"', json.dumps(f"cls{HOSTILE}"))
    history.write_text(text, encoding="utf-8")
    (foreign / "cls").rename(foreign / f"cls{HOSTILE}")
    command, *more = words
    with suppress(SystemExit):
        palm.cli.main([command, str(foreign), *[str(trained / "out")] * (command == "diff"), *more])
    said = capsys.readouterr().out
    assert "cls" in said
    assert said.replace("\n", "").isprintable()
    assert "--json" not in more or json.loads(said)


def test_log_lines_do_not_control_the_terminal() -> None:
    record = logging.LogRecord("palm", logging.INFO, "", 0, "%s: saved", (HOSTILE,), None)
    assert _Console().format(record) == "\\x1b[31m\\x9b32m\\u202e: saved"


def linked(run: Path, name: str) -> None:
    """Put a link to the reader's file in the place of one of the run's."""
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(run.parent / "mine.tsv")


DOORS: dict[str, Callable[[Path], object]] = {
    "report": palm.write_report,
    "plot": lambda run: terminal_plot(run),
    "diff": lambda run: differences(str(run), str(run)),
    "inspect": lambda run: inspect_directory(run),
    "load": lambda run: palm.load_model(run),
    "export": lambda run: to_hugging_face(run / "cls" / "infer_model", run.parent / "new"),
}


@pytest.mark.parametrize(
    ("door", "file"),
    [
        *(("report", name) for name in ("history.jsonl", "resolved_config.yaml")),
        ("report", "compare.json"),
        ("plot", "history.jsonl"),
        *(("diff", name) for name in ("history.jsonl", "resolved_config.yaml")),
        ("diff", "cls/infer_model/config.json"),
        ("inspect", "history.jsonl"),
        *(("export", f"cls/infer_model/{name}") for name in ("config.json", "vocab.txt")),
        *(("load", f"cls/best_model/{name}") for name in ("config.json", "vocab.txt")),
    ],
)
def test_a_link_in_a_foreign_folder_shows_nothing(foreign: Path, door: str, file: str) -> None:
    linked(foreign, file)
    with pytest.raises(StorageError) as caught:
        DOORS[door](foreign)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("link", ["cls/infer_model", "cls/best_model", "cls"])
def test_a_model_behind_a_link_is_none_of_the_run(foreign: Path, link: str) -> None:
    mine = foreign.parent / "mine"
    (foreign / "cls").rename(mine)
    (foreign / link).parent.mkdir(exist_ok=True)
    (foreign / link).symlink_to(mine / Path(link).name if "/" in link else mine)
    with pytest.raises(StorageError):
        palm.load_model(foreign)


USES: dict[str, Callable[[Path, Path], object]] = {
    "predict": lambda model, out: palm.load_model(model).predict_file(model.with_name("mine.tsv"), out),
    "evaluate": lambda model, _: palm.load_model(model).evaluate(model.with_name("mine.tsv")),
    "export": lambda model, out: to_hugging_face(model, out),
    "export as a graph": lambda model, out: to_onnx(model, out),
    "inspect": lambda model, _: inspect_directory(model),
    "convert": lambda model, out: palm.convert(model, out),
}


@pytest.mark.parametrize("use", USES)
def test_a_foreign_model_opens_nothing_that_its_description_names(foreign: Path, use: str) -> None:
    """Files that are named as training data, as save_path and as components' files: none is opened."""
    if use == "export as a graph":
        pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")
    model = foreign.parent / "given" / "model"
    shutil.copytree(foreign / "cls" / "infer_model", model)
    lines = ["label\ttext_a", *(f"{k % 2}\ta door" for k in range(4))]
    (foreign.parent / "given" / "mine.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (foreign.parent / "mine.tsv").rename(canary := foreign.parent / "canary.tsv")
    described = json.loads((model / "config.json").read_text(encoding="utf-8"))
    described["run"]["global"] |= {"save_path": "/", "dev_file": str(canary), "pred_file": str(canary)}
    for task in described["run"]["tasks"].values():
        task |= {"dev_file": str(canary), "train_file": str(canary), "pred_file": str(canary)}
    (model / "config.json").write_text(json.dumps(described), encoding="utf-8")
    (model / "manifest.json").unlink()
    seal(model)
    with opened() as names:
        USES[use](model, foreign.parent / "new")
    assert str(canary) not in names
    assert any(str(model) in name for name in names)


HEARD: list[set[str]] = []


@contextmanager
def opened() -> Iterator[set[str]]:
    """The names of all files that are opened within it."""

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and HEARD and isinstance(arguments[0], str | bytes | os.PathLike):
            HEARD[-1].add(os.fsdecode(arguments[0]))

    if not hasattr(sys, "_palm_tests_hear"):  # a hook stays as long as the process
        sys.addaudithook(hear)
        sys._palm_tests_hear = True  # type: ignore[attr-defined]
    HEARD.append(set())
    try:
        yield HEARD[-1]
    finally:
        HEARD.pop()
