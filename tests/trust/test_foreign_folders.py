"""A folder that somebody else made shows nothing of the reader's files; damage is said as damage."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import palm
import palm.cli
from helpers import tiny
from helpers.messages import raises
from palm.controller.controller import Controller
from palm.core.errors import StorageError
from palm.core.io import seal, write_json
from palm.core.logging import _Console
from palm.experiments.grid import RESULT, Grid, GridRun
from palm.export import to_hugging_face
from palm.export.onnx_model import to_onnx
from palm.reader.tables.files import Selection
from palm.report.difference import differences
from palm.report.inspection import inspect_directory

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


def test_a_run_of_ones_own_is_predicted_as_before(trained: Path) -> None:
    text = palm.write_report(trained / "out").read_text(encoding="utf-8")
    assert "confus" in text.lower()


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


@pytest.mark.parametrize("file", ["table", "selection", "selection outside"])
def test_a_report_tells_nothing_about_whether_a_file_outside_exists(foreign: Path, file: str) -> None:
    mine = foreign.parent / "mine.tsv"
    outside = mine.with_suffix(".rows.json")
    dev = {"table": mine, "selection": foreign / "x.rows.json", "selection outside": outside}[file]
    if file != "table":
        selection = Selection(mine, "0" * 64, [0], {})
        dev.write_text(selection.text, encoding="utf-8")
        for model in (foreign / "cls").glob("*_model"):  # says that it was evaluated on this selection
            described = json.loads((model / "config.json").read_text(encoding="utf-8"))
            described["tasks"]["cls"]["training"]["data"]["dev_file"] = {"sha256": selection.key}
            (model / "config.json").write_text(json.dumps(described), encoding="utf-8")
            (model / "manifest.json").unlink()
            seal(model)
    names(foreign, "dev_file", str(dev))
    with_file = palm.write_report(foreign).read_text(encoding="utf-8")
    mine.unlink()
    if file == "selection outside":
        dev.unlink()
    without = palm.write_report(foreign).read_text(encoding="utf-8")
    sentences = [re.search("[^<>]*--dev_file[^<>]*", page) for page in (with_file, without)]
    assert None not in sentences
    assert len({each[0] for each in sentences if each}) == 1


def test_a_name_that_is_too_long_for_the_system_is_that_of_no_file(foreign: Path) -> None:
    names(foreign, "dev_file", "x" * 5000)
    assert palm.write_report(foreign) == foreign / "report.html"


def test_the_users_own_argument_names_any_file(foreign: Path) -> None:
    mine = foreign.parent / "mine.tsv"
    names(foreign, "dev_file", str(mine))
    text = palm.write_report(foreign, dev_files={"cls": mine}).read_text(encoding="utf-8")
    assert CANARY in text
    (foreign / "report.html").unlink()


def spoilt(foreign: Path, damage: str | dict[str, object]) -> None:
    """Write another configuration, or other facts about the run into the first line of its history."""
    if isinstance(damage, str):
        (foreign / "resolved_config.yaml").write_text(f"{damage}\n", encoding="utf-8")
        return
    history = foreign / "history.jsonl"
    plan, *lines = history.read_text(encoding="utf-8").splitlines(keepends=True)
    history.write_text("".join([f"{json.dumps(json.loads(plan) | damage)}\n", *lines]), encoding="utf-8")


SECTIONS = ["tasks: cls", "tasks: {cls: x}", "global: 3", "backbone: {a: 1}", "- 1"]
TASK = {"is_target": True, "expected_steps": 2, "steps_per_epoch": 10, "rows": 40, "mix_ratio": 1.0}
PLANS = [{"tasks": {}}, {"event": "unknown"}, {"tasks": {"other": {}}}, {"tasks": {"x" * 5000: TASK}}]


@pytest.mark.parametrize("door", ["report", "plot", "diff"])
@pytest.mark.parametrize("damage", [*SECTIONS, *PLANS], ids=lambda damage: str(damage)[:30])
def test_odd_sections_and_plans_are_an_error_of_palm_or_show_less(
    foreign: Path, door: str, damage: str | dict[str, object]
) -> None:
    spoilt(foreign, damage)
    with suppress(palm.PalmError):
        DOORS[door](foreign)


HOSTILE = "\x1b[31m\x9b32m\u202e"


@pytest.mark.parametrize("words", [["diff"], ["inspect", "--json"]])
def test_names_of_a_foreign_folder_do_not_control_the_terminal(
    foreign: Path, words: list[str], trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    "plot": palm.plot,
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


ONE = GridRun("one", {"global": {}, "tasks": {}, "backbone": {}})


def grid_with(folder: Path, result: dict[str, object]) -> Grid:
    grid = Grid(folder)
    grid.folder(ONE).mkdir(parents=True)
    write_json(grid.folder(ONE) / RESULT, result)
    return grid


RIGHT = {"state": "done", "why": "", "step": 1, "score": 0.5, "steps": {"a": 1}, "seconds": 1.0, "test": {}}


@pytest.mark.parametrize("wrong", [{"score": [1]}, {"state": []}, {"test": {"a": 3}}, {"seconds": "x"}])
def test_a_result_of_another_form_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    grid = grid_with(tmp_path, {**RIGHT, **wrong})
    with raises(StorageError, next(iter(wrong))):
        grid.result(ONE)


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
