"""`palm check`: what is wrong with data is found, what is right is not; the plan is the run's."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import tiny
from helpers.shared import SHARED, needs_shared
from palm.check import Check, check
from palm.check.data import Problem, TaskData, data_of
from palm.cli import main
from palm.reader import READERS
from palm.reader.inspection import Role

ROOT = Path(__file__).resolve().parents[2]

SUBJECTS = ["red door", "blue boat", "green lamp", "grey coat", "old ball", "new wall"]
ROLES: dict[Role, str] = {"train": "train", "dev": "dev", "pred": "test"}
OWNERS = ["anna", "bert", "carl", "dora", "emil", "fred"]


def rows(first: int, last: int) -> list[tuple[str, str]]:
    """Rows `first` to `last` of 216 that all differ, labelled with four colours in turn."""
    texts = [
        f"{owner} has the {subject} of {other}"
        for owner in OWNERS
        for subject in SUBJECTS
        for other in OWNERS
    ]
    return [(str(number % 4), texts[number]) for number in range(first, last)]


def data(
    folder: Path,
    train: list[tuple[str, str]],
    dev: list[tuple[str, str]],
    *,
    max_seq_len: int = 24,
    **settings: Any,
) -> TaskData:
    """What a check finds in these rows of a task `cls` with a label_map a, b, c, d unless told otherwise."""
    tiny.write_files(folder)
    for name, found in (("train.tsv", train), ("dev.tsv", dev)):
        lines = "".join(f"{label}\t{text}\n" for label, text in found)
        (folder / name).write_text(f"label\ttext_a\n{lines}", encoding="utf-8")
    arguments = {"vocab_path": folder / "vocab.txt", "max_seq_len": max_seq_len, "n_classes": 4, **settings}
    return data_of("cls", READERS["cls"](**arguments), files_in(folder))


def files_in(folder: Path) -> dict[Role, Path | None]:
    return {"train": folder / "train.tsv", "dev": folder / "dev.tsv"}


def codes(found: TaskData) -> list[tuple[str, str]]:
    return [(problem.severity, problem.code) for problem in found.problems]


def test_nothing_is_found_in_clean_data(tmp_path: Path) -> None:
    found = data(tmp_path, rows(0, 160), rows(160, 200))
    assert found.problems == []
    expected = [("train", 160, 0), ("dev", 40, 0)]
    assert [(file.role, file.counts.examples, file.repeated) for file in found.files] == expected
    assert found.files[0].counts.labels == {str(k): 40 for k in range(4)}
    assert found.files[0].first_row == "train.tsv:2 [CLS] anna has the red door of anna [SEP] | label: 0"
    tokens = dict.fromkeys(("least", "median", "95 %", "99 %", "most", "mean"), 9)
    assert found.files[0].counts.summary()["tokens"] == tokens


def leak(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:
    dev[7:10] = [train[3], train[100], (train[50][0], train[50][1] + " .")]


def duplicates(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:  # noqa: ARG001
    train += train[:8]


def contradiction(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:  # noqa: ARG001
    train[10:12] = [("1", "anna has a lamp"), ("2", "anna has a lamp")]


def capitals(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:  # noqa: ARG001
    train[:] = [(label, text.title()) for label, text in train]


def once(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:  # noqa: ARG001
    train[:] = [row for row in train if row[0] != "3"] + [("3", "carl has an old old lamp")]


def long_rows(train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:  # noqa: ARG001
    train[:40] = [(label, f"{text} and {text}") for label, text in train[:40]]


FAULTS: dict[Callable[..., None], tuple[str, tuple[str, ...]]] = {
    leak: ("leak", ("dev.tsv (dev)", "3 of 40 (7.5 %)", "train.tsv")),
    duplicates: ("duplicates", ("train.tsv", "8 of 168 (4.8 %)")),
    contradiction: ("contradictions", ("train.tsv", "1 of 160 (0.6 %)")),
    capitals: ("case", ("train.tsv", "160 of 160 (100.0 %)")),
    once: ("rare_label", ("train.tsv", "'3'", "121")),
    long_rows: ("truncation", ("train.tsv", "40 of 160 (25.0 %)")),
}


@pytest.mark.parametrize("seed", FAULTS, ids=lambda fault: fault.__name__)
def test_a_seeded_fault_is_found_and_nothing_else(seed: Callable[..., None], tmp_path: Path) -> None:
    train, dev = rows(0, 160), rows(160, 200)
    seed(train, dev)
    found = data(tmp_path, train, dev, max_seq_len=16)
    code, named = FAULTS[seed]
    # Other findings follow from the fault itself: repeated contradictions, and what capitals do to a dev set.
    first = [problem for problem in found.problems if problem.code == code]
    assert [problem.severity for problem in first] == ["warning"]
    assert [value for value in named if value not in first[0].message] == []
    assert first[0].remedy != ""
    follows = {contradiction: {"duplicates"}, once: {"imbalance"}, capitals: {"leak"}}.get(seed, set())
    assert {problem.code for problem in found.problems} - {code} <= follows


def test_rows_that_cannot_be_used_are_all_reported_and_the_others_are_read(tmp_path: Path) -> None:
    train = [*rows(0, 10), ("9", "carl has a lamp"), ("x", "emil has a lamp"), *rows(10, 18)]
    found = data(tmp_path, train, rows(20, 30))
    assert codes(found) == [("error", "data")]
    file = tmp_path / "train.tsv"
    assert found.problems[0].message.startswith(f"{file}: 2 rows ")
    places = [(f"{file}:12: ", "'9'"), (f"{file}:13: ", "'x'")]
    for line, (place, value) in zip(found.problems[0].examples, places, strict=True):
        assert line.startswith(place)
        assert value in line
    assert [(file.role, file.counts.examples) for file in found.files] == [("train", 18), ("dev", 10)]
    found = data(tmp_path, train, rows(20, 30), on_bad_row="skip")
    assert codes(found) == [("warning", "bad_rows")]
    assert [line.startswith(f"{file}:") for line in found.problems[0].examples] == [True, True]
    found = data(tmp_path, [*train, *train[-3:]], rows(20, 30))
    assert codes(found) == [("error", "data"), ("warning", "duplicates")]
    assert found.problems[1].examples[0].startswith("train.tsv:22 ")


def test_time_and_memory_are_measured_and_nothing_is_written(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", eval_every_n_steps=7)
    config["tasks"]["cls"]["dev_file"] = config["tasks"]["cls"]["train_file"]
    found = check(config)
    assert not (folder / "out").exists()
    assert found.plan is not None
    assert found.cost is not None
    assert found.cost.step > 0
    assert found.cost.training == pytest.approx(found.plan.steps * found.cost.step)
    assert found.cost.fullest.keys() == {"cls", "match"}


def test_an_earlier_run_in_save_path_is_an_error_before_the_run(folder: Path) -> None:
    config = tiny.config(folder, "cls", overwrite=False)
    palm.Controller(config, argv=[]).train()
    before = sorted(path.as_posix() for path in (folder / "out").rglob("*"))
    finished = check(config, measure=False)
    assert [each.severity for each in finished.problems if each.code == "save_path"] == ["note"]
    found = check({**config, "learning_rate": 0.5}, measure=False)
    assert [
        (problem.severity, problem.code) for problem in found.problems if problem.severity == "error"
    ] == [("error", "save_path")]
    assert sorted(path.as_posix() for path in (folder / "out").rglob("*")) == before


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    tiny.write_files(tmp_path)
    config = tiny.config(tmp_path, "cls")
    config["tasks"]["cls"].pop("pred_file")
    lines = "".join(f"{label}\t{text}\n" for label, text in rows(0, 40))
    (tmp_path / "cls.tsv").write_text(f"label\ttext_a\n{lines}", encoding="utf-8")
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return file


def test_the_command_prints_the_values_and_writes_them(
    config_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = config_file.with_name("check.txt")
    words = ["--strict", str(config_file), "--no_measure", "--output", str(file), "--batch_size", "8"]
    assert main(["check", *words]) == 0
    text = file.read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    (line,) = (line for line in text.splitlines() if line.startswith("  cls   target"))
    values = ["cls", "target", "5", "10", "10", "2", "8", "72", "0 %"]
    assert line.split() == " ".join(values).split()
    assert main(["check", str(config_file), "--no_measure", "--output", "check.html"]) == 2
    assert "'check.txt'" in capsys.readouterr().err


def test_findings_are_written_for_programs(config_file: Path) -> None:
    table = config_file.with_name("cls.tsv")
    table.write_text(table.read_text(encoding="utf-8") + "7\ta label that is none\n", encoding="utf-8")
    file = config_file.with_name("check.json")
    with pytest.raises(SystemExit) as ended:
        main(["check", str(config_file), "--no_measure", "--output", str(file)])
    assert ended.value.code == 1
    found = json.loads(file.read_text(encoding="utf-8"))
    (error,) = (each for each in found["problems"] if each["severity"] == "error")
    assert (error["code"], error["task"]) == ("data", "cls")
    assert "cls.tsv:" in error["message"]
    (of_task,) = found["data"]
    assert [(each["role"], each["file"]) for each in of_task["files"]] == [("train", "cls.tsv")]
    assert of_task["files"][0]["first_rows"][0].startswith("cls.tsv:2 [CLS] ")


def test_a_finding_of_several_lines_is_below_its_severity_and_a_notebook_shows_all_as_text() -> None:
    found = Check("a.yaml", [Problem("error", "run", "cls", "a <b>:\n  c", "d")], seconds=1.0)
    lines = ["error    cls: a <b>:", "           c", "         -> d", "", "a.yaml: 1 error (1.0 s)"]
    assert str(found).splitlines() == lines
    shown = "\n".join(lines).replace("<", "&lt;").replace(">", "&gt;")
    assert found._repr_html_() == f"<pre>{shown}</pre>"


def test_exit_codes(config_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = config_file.with_name("cls.tsv").read_text(encoding="utf-8").splitlines()
    config_file.with_name("cls.tsv").write_text("\n".join([*lines, *lines[1:9]]) + "\n", encoding="utf-8")
    assert main(["check", str(config_file), "--no_measure"]) == 0
    with pytest.raises(SystemExit) as strict:
        main(["check", str(config_file), "--no_measure", "--strict"])
    assert strict.value.code == 1
    with pytest.raises(SystemExit) as wrong:
        main(["check", str(config_file), "--batch_size", "fast"])
    assert wrong.value.code == 1
    assert not config_file.with_name("out").exists()
    assert main(["train", str(config_file), "--dry_run"]) == 2
    assert "palm check" in capsys.readouterr().err


@needs_shared
def test_what_is_really_wrong_with_published_data_is_found() -> None:
    vocabulary = ROOT / "data" / "vocab.txt"
    settings = {"vocab_path": vocabulary, "max_seq_len": 128, "do_lower_case": True}
    mrqa, slot = SHARED / "data" / "palm_demo" / "mrqa", SHARED / "data" / "atis" / "slot"
    reader = READERS["mrc"](**settings, max_query_len=64, doc_stride=64)
    found = data_of("mrqa", reader, {"train": mrqa / "train.json", "dev": mrqa / "dev.json"})
    assert found.leaks == {"dev": 28}
    reader = READERS["seq_label"](**settings, label_map=slot / "label_map.json")
    found = data_of("slot", reader, {role: slot / f"{name}.tsv" for role, name in ROLES.items()})
    assert found.leaks == {"dev": 52, "pred": 13}
    assert found.files[0].repeated == 289
    (missing,) = (problem for problem in found.problems if problem.code == "missing_label")
    assert "'UNK'" in missing.message


def test_the_steps_of_every_stage_are_reported(folder: Path) -> None:
    stages = [{"name": "joint"}, {"tasks": ["cls"], "num_epochs": 0.5}]
    found = check(tiny.config(folder, "cls", "match", num_epochs=1, stages=stages), measure=False)
    notes = [problem.message for problem in found.problems if problem.code == "stages"]
    assert len(notes) == 1
    assert "1-joint: cls 10, match 10; 2-cls: cls 5" in notes[0]
    wrong = check(tiny.config(folder, "cls", stages=[{"freeze": 9}]), measure=False)
    (problem,) = wrong.problems
    assert "stages: stage 1-all: freeze: " in problem.message
    assert "9" in problem.message


@pytest.mark.parametrize(
    ("tags", "scheme"), [("B-LOC I-LOC O", "IOB2"), ("B-LOC L-LOC O", "BILOU"), ("LOC LOC O", "plain")]
)
def test_the_scheme_of_tags_is_told(folder: Path, tags: str, scheme: str) -> None:
    (folder / "train.tsv").write_text(f"label\ttext_a\n{tags}\tred old lamp\n" * 1, encoding="utf-8")
    names = {tag: number for number, tag in enumerate(dict.fromkeys(tags.split()))}
    reader = READERS["seq_label"](vocab_path=folder / "vocab.txt", max_seq_len=16, label_map=names)
    found = data_of("tags", reader, {"train": folder / "train.tsv"})
    assert found.files[0].scheme == scheme
    assert f"tags train: tags in {scheme}: " in str(Check("c", [], [found]))


def test_a_task_that_another_one_drowns_is_named(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", max_steps=4)
    config["tasks"]["cls"]["loss_weight"] = 1e-4
    found = check(config)
    assert found.cost is not None
    assert 0 < found.cost.starts["cls"][1] < found.cost.starts["match"][1] / 100
    assert found.cost.starts["cls"][0] == pytest.approx(math.log(4), abs=0.5)
    (problem,) = (each for each in found.problems if each.code == "drowned")
    assert (problem.task, problem.severity) == ("cls", "warning")
    assert "match" in problem.message
    assert "cls.loss_weight" in problem.remedy
    assert "drowned" not in [each.code for each in check(tiny.config(folder, "cls", "match")).problems]
