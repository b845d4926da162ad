"""No file of the user is lost: whatever a folder holds, palm removes and replaces what it wrote itself."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import palm
from helpers import article, saved, tiny
from palm.controller.controller import Controller
from palm.core.errors import PalmError, StorageError
from palm.core.files.atomic_dir import linked_copy, new_directory
from palm.core.files.cache import KEPT_DAYS, Cache, forget_unused
from palm.core.files.door import make_folder, new_file, new_folder, remove, within
from palm.core.files.fs import (
    UNFINISHED,
    WRITTEN,
    _host,
    check_not_read,
    has_changed,
    is_written,
    write_atomically,
    write_text,
)
from palm.core.files.manifest import _manifest_text
from palm.core.invocation import START
from palm.export.convert import convert
from palm.predict.loading import load_model
from palm.reader.predictions import write_records
from palm.train.history import write_events
from palm.train.loop import Step
from palm.train.run_directory import RunDirectory
from palm.train.run_lock import only_run_in

MINE = "the user's own\n"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder of the user beside that of the run, with one file."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text(MINE, encoding="utf-8")
    return tmp_path / "mine" / "file"


def train(folder: Path, **changes: object) -> None:
    tiny.write_files(folder)
    Controller(tiny.config(folder, "cls", num_hidden_layers=1, **changes), argv=[]).train()


def forged(folder: Path, name: str, target: Path) -> Path:
    """A folder whose manifest, right by its own checksum, lists a file elsewhere with its size and hash."""

    folder.mkdir(parents=True)
    entry = {"size": target.stat().st_size, "sha256": hashlib.sha256(target.read_bytes()).hexdigest()}
    (folder / "manifest.json").write_text(_manifest_text({name: entry}), encoding="utf-8")
    return folder


def start_of_a_run(out: Path, **changes: object) -> None:
    run = RunDirectory(out, ["cls"], ["cls"], **changes)  # type: ignore[arg-type]
    run.begin(run.check(), {"tasks": {"cls": {}}})


DELETING = {
    "a start": (".step_7.host-99999999.part", start_of_a_run),
    "a start, of stages": (".stages.1.part", start_of_a_run),
    "a checkpoint": ("step_1", lambda out: start_of_a_run(out, overwrite=True)),
    "a model": ("cls/infer_model", lambda out: start_of_a_run(out, overwrite=True)),
    "a stage": ("stages/1-x/weights", lambda out: start_of_a_run(out, overwrite=True)),
    "convert": ("new", lambda out: convert(saved.model(out.parent), out / "new", overwrite=True)),
}
WAYS = ["absolute name", "..", "link to a file", "link to a folder"]


def name_of(way: str, folder: Path, target: Path) -> str:
    """What a manifest of `folder` would call the target."""
    names = (str(target), os.path.relpath(target, folder), "link", "linked/file")
    return dict(zip(WAYS, names, strict=True))[way]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("door", DELETING)
def test_a_forged_manifest_removes_nothing_outside(tmp_path: Path, mine: Path, door: str, way: str) -> None:
    place, command = DELETING[door]
    folder = tmp_path / "out" / place
    forged(folder, name_of(way, folder, mine), mine)
    (folder / "link").symlink_to(mine)
    (folder / "linked").symlink_to(mine.parent)
    with suppress(PalmError):
        command(tmp_path / "out")
    assert mine.read_text(encoding="utf-8") == MINE


@pytest.mark.parametrize("link", ["step_500", "stages", "stages/x", "best", "cls", "cls/infer_model"])
@pytest.mark.parametrize("setting", [{"overwrite": True}, {"resume": "auto"}, {}])
def test_a_link_in_the_folder_of_a_run_is_not_followed(
    tmp_path: Path, link: str, setting: dict[str, object]
) -> None:
    other = saved.model(tmp_path)
    linked_copy(other, tmp_path / "other" / "infer_model")
    before = sorted(file.relative_to(tmp_path) for file in (tmp_path / "other").rglob("*"))
    place = tmp_path / "out" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "other" / ("infer_model" if link in ("step_500", "cls/infer_model") else ""))
    with suppress(PalmError):
        start_of_a_run(tmp_path / "out", **setting)
    assert place.is_symlink()
    assert sorted(file.relative_to(tmp_path) for file in (tmp_path / "other").rglob("*")) == before
    assert palm.load_model(tmp_path / "other" / "infer_model").task == "colour"


HIDDEN = [
    *(
        ".colour.old",
        ".best.old",
        ".step_5.old",
        ".cls.old",
        ".tensorboard.old",
        ".stages.old",
        ".weights.old",
    ),
    *(".cls.20240101.part", ".history.jsonl.old", ".run.json.old", ".run.json.7.part"),
]


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("setting", [{"overwrite": True}, {"resume": "auto"}, {}])
def test_hidden_backups_of_the_user_stay(tmp_path: Path, setting: dict[str, object], is_folder: bool) -> None:
    out = tmp_path / "out"
    files = [out / name / "file" if is_folder else out / name for name in HIDDEN]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(MINE, encoding="utf-8")
    start_of_a_run(out, **setting)
    assert [file for file in files if not file.is_file() or file.read_text(encoding="utf-8") != MINE] == []


def test_a_changed_file_of_a_model_is_kept(tmp_path: Path) -> None:
    folder = saved.model(tmp_path)
    (folder / "README.md").write_text(MINE, encoding="utf-8")
    with pytest.raises(PalmError) as caught:
        convert(saved.model(tmp_path / "second"), folder, overwrite=True)
    assert "README.md" in str(caught.value)
    start_of_a_run(tmp_path, overwrite=True)
    assert (folder / "README.md").read_text(encoding="utf-8") == MINE


def entries(cache: Path) -> Iterator[Path]:
    for name, files in {
        "0" * 32: ["file"],
        "1" * 32: ["manifest.json", "rows.json"],
        "2" * 32: [],
        "3" * 32 + ".lock": None,
        f".{'4' * 32}.{_host()}-99999999.part": ["0.values"],
    }.items():
        place = cache / name
        if files is None:
            place.write_text(MINE, encoding="utf-8")
        else:
            place.mkdir(parents=True)
            for file in files:
                (place / file).write_text(MINE, encoding="utf-8")
        yield place


def test_a_line_of_the_record_that_a_full_disk_cut_off_spoils_no_other(tmp_path: Path) -> None:
    write_text(tmp_path / "run.json", "1")
    with (tmp_path / WRITTEN).open("ab") as record:
        record.write(b'{"name": "hist')
    write_text(tmp_path / "run.json", "2")
    assert is_written(tmp_path / "run.json")


def test_the_cache_keeps_what_others_put_there(tmp_path: Path) -> None:
    places = list(entries(tmp_path))
    with new_directory(tmp_path / ("f" * 32)) as palms:
        write_text(palms / "rows.json", "{}")
    palms = tmp_path / ("f" * 32)
    dead = tmp_path / f".{'e' * 32}.{_host()}-99999999.part"  # of a process that died
    dead.mkdir()
    for name in (UNFINISHED, "0.values"):
        (dead / name).touch()
    old = time.time() - (KEPT_DAYS + 1) * 24 * 3600
    for place in (*places, palms):
        os.utime(place, (old, old))
    forget_unused(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(places)


def test_a_cache_that_several_fill_at_once_has_every_entry(tmp_path: Path) -> None:
    """While one looks for what is old, others make and remove locks and stages."""
    keys = [f"{number:032x}" for number in range(120)]

    def fill(key: str) -> str:
        file = Cache(tmp_path).file(key, "name", "x", lambda place: write_text(place, key))
        return file.read_text(encoding="utf-8")

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(fill, keys)) == keys


def test_without_a_cache_that_can_be_written_a_file_is_for_this_process(mine: Path) -> None:
    """No folder of a known name, which another user may have filled before."""
    file = Cache(mine / "cache").file("0" * 32, "name", "x", lambda place: write_text(place, "new"))
    assert file.read_text(encoding="utf-8") == "new"
    assert file.parents[1].stat().st_mode & 0o777 == 0o700


def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("palm", "triton", "dill", "colorama", "tabulate", "yaml"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\nraise SystemExit(9)\n", encoding="utf-8")
    tiny.write_files(tmp_path)
    done = subprocess.run([*START, "check", "none.yaml"], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("python", sorted(Path(sys.base_prefix).parent.glob("3.1[0-9]*/bin/python")), ids=str)
def test_no_python_takes_modules_of_the_working_directory(tmp_path: Path, python: Path) -> None:
    """`-P` is new in 3.11; the start of a file puts the file's folder first, whatever the version."""
    for name in ("palm", "yaml", "colorama", "argparse"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')\nraise SystemExit(9)\n", encoding="utf-8")
    libraries = {"PYTHONPATH": str(Path(pytest.__file__).parents[1])}
    command = [str(python), *START[1:], "--version"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **libraries}, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"palm {palm.__version__}\n", done.stderr
    assert not (tmp_path / "ran").exists()


WRITING: dict[str, Callable[[Path], object]] = {
    "a text": lambda file: write_text(file, "new"),
    "a history": lambda file: write_events(file, []),
    "predictions": lambda file: write_records([{"label": 1}], file.parent),
}


@pytest.mark.parametrize(
    "way", ["a file", "a hard link", "a link", "a folder link", "a FIFO", "a changed file"]
)
@pytest.mark.parametrize("door", WRITING)
def test_what_palm_did_not_write_is_not_replaced(tmp_path: Path, mine: Path, door: str, way: str) -> None:
    file = tmp_path / "predictions.json"
    match way:
        case "a file":
            file.write_text(MINE, encoding="utf-8")
        case "a hard link":
            file.hardlink_to(mine)
        case "a link":
            file.symlink_to(mine)
        case "a folder link":
            file.symlink_to(mine.parent)
        case "a FIFO":
            os.mkfifo(file)
        case "a changed file":
            write_text(file, "palm's")
            file.write_text(MINE, encoding="utf-8")
    before = file.lstat()
    with pytest.raises(PalmError) as caught:
        WRITING[door](file)
    assert str(file) in str(caught.value)
    after = file.lstat()
    assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert mine.read_text(encoding="utf-8") == MINE


def test_a_file_that_palm_wrote_is_replaced(tmp_path: Path) -> None:
    for text in ("1", "2", "3"):
        write_text(tmp_path / "note", text)
    assert (tmp_path / "note").read_text(encoding="utf-8") == "3"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".palm-files.jsonl", "note"]


def test_a_link_that_is_put_there_meanwhile_is_not_followed(tmp_path: Path, mine: Path) -> None:
    folder = tmp_path / "out" / "task"
    folder.mkdir(parents=True)

    def write() -> None:
        with within(tmp_path / "out"), write_atomically(folder / "file") as file:
            file.write(b"palm's")
            folder.rename(tmp_path / "out" / "moved")
            folder.symlink_to(mine.parent)

    with pytest.raises(PalmError):
        write()
    assert mine.read_text(encoding="utf-8") == MINE
    assert [path.name for path in mine.parent.iterdir()] == ["file"]
    with within(tmp_path / "out"):
        remove(folder / "file")
    assert mine.read_text(encoding="utf-8") == MINE


@pytest.mark.parametrize("way", ["a link", "another run"])
def test_a_trainer_writes_through_no_link_and_beside_no_other_run(
    tmp_path: Path, mine: Path, way: str
) -> None:
    trainer = article.program(article.write_files(tmp_path / "data"), num_epochs=1)
    trainer.set_saver(tmp_path / "out", 5, "ckpt,predict")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "pred.step5").symlink_to(mine.parent)
    other = only_run_in(tmp_path / "out") if way == "another run" else nullcontext()
    with other, pytest.raises(StorageError) as caught:
        trainer.train(print_steps=1)
    assert str(tmp_path / "out") in str(caught.value)
    assert [path.name for path in mine.parent.iterdir()] == ["file"]
    assert (tmp_path / "out" / "history.jsonl").exists() == (way == "a link")


def test_a_mounted_disk_below_a_run_is_not_entered(tmp_path: Path) -> None:
    place = tmp_path / "out" / "mounted"
    place.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        (place / "file").write_text(MINE, encoding="utf-8")
        with within(tmp_path / "out"):
            for change in (new_folder, new_file):
                with pytest.raises(OSError, match="mounted") as caught:
                    change(place / "new")
                assert caught.value.errno == errno.EXDEV
            remove(place / "file")
        remove(tmp_path / "out")
        assert [path.name for path in place.iterdir()] == ["file"]
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(
    ("name", "is_refused"),
    [
        *((name, True) for name in ("history.jsonl", "run.json", "bad_rows.jsonl", "step_5/a", "best/a")),
        *((name, True) for name in ("stages/a", "cls/infer_model/a", "cls/best_model/a", "tensorboard/a")),
        *(
            (name, False)
            for name in ("train.tsv", "cls/train.tsv", "data/history.jsonl", "cls/infer_model.tsv")
        ),
    ],
)
def test_a_file_that_a_run_reads_has_no_name_under_which_it_writes(
    tmp_path: Path, name: str, is_refused: bool
) -> None:
    file = tmp_path / "out" / name
    file.parent.mkdir(parents=True)
    file.write_text(MINE, encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for given in (file, tmp_path / "link" / name):
        with pytest.raises(PalmError) if is_refused else nullcontext() as caught:
            start_of_a_run(tmp_path / "out", inputs=[given], overwrite=True)
        assert caught is None or str(given) in str(caught.value)
    assert file.read_text(encoding="utf-8") == MINE


@pytest.mark.parametrize("named", ["history.jsonl,more.jsonl", "hist*.jsonl", "."])
def test_the_files_that_a_list_a_pattern_or_a_folder_stands_for_are_inputs_too(
    tmp_path: Path, named: str
) -> None:
    (tmp_path / "out").mkdir()
    mine = tmp_path / "out" / "history.jsonl"
    rows = "".join(json.dumps({"label": row % 4, "text_a": "a red door"}) + "\n" for row in range(8))
    for file in (mine, tmp_path / "out" / "more.jsonl"):
        file.write_text(rows, encoding="utf-8")
    data = ",".join(str(tmp_path / "out" / part) for part in named.split(","))
    settings = tiny.config(tiny.write_files(tmp_path), "cls", max_steps=1, num_hidden_layers=1)
    settings["tasks"]["cls"]["train_file"] = data
    controller = Controller(settings, argv=[])
    with pytest.raises(StorageError) as caught:
        controller.train()
    assert str(mine) in str(caught.value)
    assert mine.read_text(encoding="utf-8") == rows


def test_the_chosen_rows_of_an_earlier_run_are_inputs_too(tmp_path: Path) -> None:
    settings = tiny.config(tiny.write_files(tmp_path), "cls", max_steps=1, num_hidden_layers=1)
    settings["tasks"]["cls"]["split"] = {"dev": 0.25}
    Controller(settings, argv=[]).train()
    mine = tmp_path / "out" / "cls.train.rows.json"
    rows = mine.read_text(encoding="utf-8")
    settings["tasks"]["cls"]["train_file"] = str(mine)
    controller = Controller({**settings, "overwrite": True}, argv=[])
    with pytest.raises(StorageError) as caught:
        controller.train()
    assert str(mine) in str(caught.value)
    assert mine.read_text(encoding="utf-8") == rows


@pytest.mark.parametrize("named", ["table.jsonl,more.jsonl", "tab*.jsonl"])
def test_a_prediction_replaces_none_of_its_several_inputs(tmp_path: Path, named: str) -> None:
    model = load_model(saved.model(tmp_path))
    table = tmp_path / "table.jsonl"
    model.predict_file(tmp_path / "cls.tsv", table)
    shutil.copy(table, tmp_path / "more.jsonl")
    data = ",".join(str(tmp_path / part) for part in named.split(","))
    with pytest.raises(StorageError) as caught:
        model.predict_file(data, table)
    assert str(table) in str(caught.value)


def recorded_run(folder: Path) -> None:
    """A run of task `cls` with all of palm's folders, and a user's copies of models among them."""
    make_folder(folder)
    start_of_a_run(folder)
    source = saved.model(folder)
    for place in ("cls/infer_model", "cls/best_model", "best/cls", "step_5", *COPIES):
        linked_copy(source, folder / place)


COPIES = ["copy", "cls/copy", "best/cls_copy", "cls_copy/infer_model"]
"""Where a user may have copied a model or a task's folder, inside the folder of a run."""


def test_a_model_that_the_user_copied_into_a_run_or_stage_is_kept(tmp_path: Path) -> None:
    stages = tmp_path / "stages"
    recorded_run(tmp_path)
    recorded_run(stages / "1-one")
    for place in ("1-one/weights", "mine", "mine/weights"):
        linked_copy(tmp_path / "model", stages / place)
    start_of_a_run(tmp_path, overwrite=True)
    copies = [f"{place}{name}" for place in ("", "stages/1-one/") for name in (*COPIES, "model")]
    copies += ["stages/mine", "stages/mine/weights"]
    left = sorted(file.parent.relative_to(tmp_path) for file in tmp_path.rglob("manifest.json"))
    assert left == sorted(map(Path, copies))


def test_a_trainer_saves_over_no_folder_of_the_user(tmp_path: Path) -> None:
    trainer = article.program(article.write_files(tmp_path / "data"), num_epochs=1)
    trainer.train()
    for kind, place in (("ckpt", "notes"), ("predict", "notes/slot")):
        (tmp_path / place).mkdir()
        (tmp_path / place / "mine").write_text(MINE, encoding="utf-8")
        with pytest.raises(StorageError, match=f"{tmp_path / place} contains files that palm did not write"):
            trainer.save(tmp_path / "notes", kind)
        trainer.save(tmp_path / kind, kind)
        trainer.save(tmp_path / kind, kind)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "data", "notes", "predict"]


def test_two_threads_do_not_write_to_the_same_path(tmp_path: Path) -> None:
    with new_directory(tmp_path / "model") as part:
        (part / "weights").write_text("1", encoding="utf-8")
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(linked_copy, saved.model(tmp_path / "other"), tmp_path / "model")
            assert isinstance(error := second.exception(60), StorageError)
    assert "another thread" in str(error)
    assert str(tmp_path / "model") in str(error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other"]
    assert (tmp_path / "model" / "weights").read_text(encoding="utf-8") == "1"


def test_a_run_says_which_results_it_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "palm")
    linked_copy(saved.model(tmp_path), tmp_path / "out" / "cls" / "infer_model")
    names = [f"step_{number}" for number in range(8)]
    for name in names:
        with new_directory(tmp_path / "out" / name) as part:
            (part / "state.json").write_text("{}", encoding="utf-8")
    write_text(tmp_path / "out" / "bad_rows.jsonl", "")
    start_of_a_run(tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out" / "cls" / "infer_model").exists()
    said = "\n".join(caplog.messages)
    assert [name for name in (*names, "cls/infer_model", "bad_rows.jsonl") if name not in said] == []


@pytest.mark.parametrize(
    "change",
    [
        *({name: None} for name in ("kind", "grows", "size", "sha256")),
        *({name: [1]} for name in ("name", "kind", "grows", "size", "sha256")),
        {"size": True},
        {"size": -1, "grows": True},
        {"size": 0, "grows": True, "sha256": hashlib.sha256(b"").hexdigest()},
    ],
)
def test_a_damaged_line_of_the_record_makes_a_file_the_users(tmp_path: Path, change: dict[str, Any]) -> None:
    """None takes a field away; no traceback comes of it."""
    write_text(tmp_path / "history.jsonl", "{}", grows=True)
    record = tmp_path / WRITTEN
    line = json.loads(record.read_text(encoding="utf-8").splitlines()[-1])
    assert line["name"] == "history.jsonl"
    damaged = {name: value for name, value in {**line, **change}.items() if value is not None}
    record.write_text(f"{json.dumps(damaged)}\n[]\n5\n", encoding="utf-8")
    assert not is_written(tmp_path / "history.jsonl")
    assert not has_changed(tmp_path / "history.jsonl")


def test_an_input_under_another_name_is_an_input(tmp_path: Path, mine: Path) -> None:
    """Such as in a folder that is mounted twice, or in capitals where they do not count."""
    os.link(mine, tmp_path / "same")
    with pytest.raises(StorageError, match="would replace its source"):
        check_not_read(tmp_path / "same", [mine])
    check_not_read(tmp_path / "same", [tmp_path / "other"])


def test_a_file_that_changes_during_training_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tiny.write_files(tmp_path) / "cls.tsv"

    def change(event: object) -> None:
        if isinstance(event, Step) and event.number == 7:
            data.write_text("label\ttext_a\n1\tthe dog\n", encoding="utf-8")

    Controller(tiny.config(tmp_path, "cls"), argv=[]).train([change])
    told = [record.args for record in caplog.records if "changed during training" in record.msg]
    assert told == [(data,)]


def test_a_stage_with_a_note_of_the_user_is_not_taken_for_one_of_the_new_run(tmp_path: Path) -> None:
    weights = tmp_path / "out" / "stages" / "1-one" / "weights"
    linked_copy(saved.model(tmp_path), weights)
    (weights / "NOTE.txt").write_text(MINE, encoding="utf-8")
    start_of_a_run(tmp_path / "out", overwrite=True)
    assert not weights.exists()
    assert (weights.with_name("weights.kept") / "NOTE.txt").read_text(encoding="utf-8") == MINE
