"""No command loses a file of the user that lies where it writes: ways x places, from the commands' table."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

import palm.cli
from helpers import saved, tiny
from palm.cli.command import COMMANDS, Command
from palm.controller.controller import Controller
from palm.core.files.fs import WRITTEN
from palm.core.files.manifest import _manifest_text

ENGLISH = "BERT-en-uncased-base"
MINE = "the user's own\n"

READ = {
    "config": "config.yaml",
    "--task_dir": ".",
    "--input": "cls.tsv",
    "--model": "model",
    "--inference_model_dir": "model",
    "source": "model",
    "models": "model",
    "run": "run",
    "runs": "run",
    "first": "run",
    "second": "run",
    "directory": "model",
    "--config": "config.yaml",
    "--space": "space.yaml",
    "--test": "cls.tsv",
    "--pretrain": "model",
    "--of": "config.yaml",
    "--from": "cls.tsv",
    "--dev_file": "cls=cls.tsv",
}
"""Arguments that name something to read -> what there is of it."""

WRITE = {"--output", "folder", "--record"}
"""Arguments that name something to write."""

NEITHER = {
    *(
        "--task",
        "--effort",
        "--tune",
        "--resume",
        "--engine",
        "--precision",
        "--trust",
        "--metric",
        "--overwrite",
        "--to",
    ),
    *(
        "--all_heads",
        "-l",
        "names",
        "-d",
        "--weights",
        "--strict",
        "--no_measure",
        "--find_batch_size",
        "--dry_run",
    ),
    *("--steps", "--more", "--killed", "--seeds", "--also", "--workers", "--keep_models"),
    *("--one_run", "--grid", "--trials", "--terminal", "--no_predict", "--tasks", "name"),
    *("--module", "shell", "--json"),
}

STAGES = ["--stages", "[{max_steps: 1}]"]
TWO_TASKS = ["--task_instance", "cls,more", "--max_steps", "2"]
NEEDED: dict[str, list[str]] = {
    "init": ["--tasks", "cls"],
    "export": ["--to", "hf"],
    "predict": ["--model", "model", "--input", "cls.tsv"],
    "evaluate": ["--model", "run/cls/infer_model", "--input", "cls.tsv"],
    "sweep": ["--grid", "learning_rate=0.1"],
    "download": [ENGLISH],
    "check": ["--no_measure"],
    "train --output": ["--dry_run", "--no_measure"],
    "init folder target/label.yaml": ["--from", "cls.tsv"],
    "train  out/step_1": ["--save_every_n_steps", "1"],
    "train  out/cls.train.rows.json": ["--split", "{dev: 0.2}"],
    "train  out/cls/best_model": ["--eval_every_n_steps", "1"],
    "train  out/bad_rows.jsonl": ["--train_file", "bad.tsv", "--on_bad_row", "skip"],
    "train  out/stages": STAGES,
    "train  out/stages.json": STAGES,
    "train  out/best": [*TWO_TASKS, "--eval_every_n_steps", "1"],
    "compare": TWO_TASKS,
    "train  out/cls/infer_model/lora": ["--cls.lora", "{rank: 2}"],
}
"""What a command, or an argument of it, or a place that it writes, needs beside the positional arguments."""

OWN_PLACES = {
    "train": ["out/" + name for name in ("history.jsonl", "run.json", "resolved_config.yaml", "stages.json")]
    + [
        "out/" + name
        for name in (
            *("cls/infer_model", "cls/infer_model/lora", "best", ".run.lock", ".run.lock.json", "step_1"),
            *("stages", "cls/best_model", "cls.train.rows.json", "bad_rows.jsonl"),
        )
    ],
    "report": ["run/report.html"],
    "plot": ["run/curves.html"],
}
"""Where a command writes that is not told where."""

INSIDE = {
    "predict": ["predictions.json", ".predictions.resume", ".predictions.lock"],
    "sweep": [
        "sweep.json",
        "best.yaml",
        ".run.lock",
        "runs/0000/config.yaml",
        "runs",
    ],
    "compare": [
        *("compare.json", "compare.txt", ".run.lock", "runs"),
    ],
    "download": ["pretrain", f"pretrain/{ENGLISH}"],
    "export": ["config.json"],
    "convert": ["config.json", "model.safetensors"],
    "merge": ["config.json"],
    "init": ["config.yaml", "label.yaml", "data"],
}
"""Names in the folder that a command writes."""

TABLES = {"predict": ["target.jsonl", "target.csv"], "evaluate": ["target.csv"]}
"""Files that a command may be told to write in the place of a folder, or of another file."""


@dataclass(frozen=True)
class Argument:
    """An argument of a command, as its parser has it.

    Args:
        name: its first name; a dash begins that of an option.
        is_needed: whether the command is refused without it.
    """

    name: str
    is_needed: bool


def arguments(command: Command) -> list[Argument]:
    actions = [each for each in command.parser()._actions if each.dest != "help"]
    return [
        Argument((*each.option_strings, each.dest)[0], each.required and each.nargs != "?")
        for each in actions
    ]


@dataclass(frozen=True)
class Door:
    """A place where a command writes.

    Args:
        command: its name.
        option: the name of the argument that names the place; empty where the command chooses it.
        place: below the working directory.
    """

    command: str
    option: str
    place: str

    def words(self, target: str = "") -> list[str]:
        """The arguments, with a value for every one that is needed, and another target perhaps."""
        target = target or self.target
        given = arguments(COMMANDS[self.command])
        found = [
            target if each.name == self.option else READ[each.name]
            for each in given
            if each.is_needed and not each.name.startswith("-") and each.name in {self.option, *READ}
        ]
        if self.option.startswith("-"):
            found += [self.option, target]
        for each in given:
            if each.is_needed and each.name.startswith("-") and each.name in WRITE - {self.option}:
                found += [each.name, "elsewhere"]
        overwrites = any(each.name == "--overwrite" for each in given)
        named = (self.command, self.option, self.place)
        keys = (" ".join(named[:count]) for count in (3, 2, 1))
        more = next((NEEDED[key] for key in keys if key in NEEDED), [])
        return [self.command, *found, *more, *["--overwrite"] * overwrites]

    @property
    def target(self) -> str:
        if self.place in TABLES.get(self.command, ()):
            return self.place
        of_command = {"plot": ".html", "evaluate": ".jsonl", "check": ".html", "train": ".html"}
        return f"target{of_command.get(self.command, '')}"


def doors() -> Iterator[Door]:
    """Every place where a command writes."""
    for name, command in COMMANDS.items():
        for option in [each.name for each in arguments(command) if each.name in WRITE]:
            target = Door(name, option, "").target
            yield from (
                Door(name, option, place)
                for place in (
                    target,
                    *(f"target/{each}" for each in INSIDE.get(name, ())),
                    *(TABLES.get(name, ()) if option == "--output" else ()),
                )
            )
        for place in OWN_PLACES.get(name, ()):
            yield Door(name, "", place)


def test_every_argument_of_a_command_is_known_to_read_or_to_write() -> None:
    for name, command in COMMANDS.items():
        for each in arguments(command):
            known = [each.name in READ, each.name in WRITE, each.name in NEITHER]
            assert any(known), f"{name}: say in this file what {each.name} does"


def test_every_command_that_writes_somewhere_of_its_own_is_named() -> None:
    reading = {"evaluate", "inspect", "diff", "ls", "completion"}
    assert {door.command for door in doors()} | reading == set(COMMANDS)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read: data, a configuration, a model, a run."""
    folder = tmp_path_factory.mktemp("material")
    saved.model(folder)
    sizes = {"num_hidden_layers": 1, "hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4}
    settings = tiny.config(folder, "cls", max_steps=1, save_path=str(folder / "run"), **sizes)
    Controller(settings, argv=[]).train()
    for path in folder.rglob("*"):  # no paths of this folder in the copies
        assert not path.is_symlink()
    task = {
        **settings.pop("tasks")["cls"],
        "train_file": "cls.tsv",
        "pred_file": "cls.tsv",
        "dev_file": "cls.tsv",
    }
    files = {"backbone_config_path": "backbone.json", "vocab_path": "vocab.txt", "save_path": "out"}
    (folder / "config.yaml").write_text(json.dumps({**settings, **files}), encoding="utf-8")
    for name in ("cls", "more"):
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")
    rows = (folder / "cls.tsv").read_text(encoding="utf-8")
    (folder / "test.tsv").write_text(rows, encoding="utf-8")
    (folder / "bad.tsv").write_text(f"{rows}strange\ta door\n", encoding="utf-8")
    (folder / "space.yaml").write_text("learning_rate: [0.1]\n", encoding="utf-8")
    return folder


def forged(folder: Path, name: str, target: Path) -> None:
    """A folder whose manifest, right by its own checksum, lists a file elsewhere."""
    folder.mkdir(parents=True)
    entry = {"size": target.stat().st_size, "sha256": sha256(target.read_bytes()).hexdigest()}
    (folder / "manifest.json").write_text(_manifest_text({name: entry}), encoding="utf-8")
    line = {"name": name, "kind": name, "grows": False, **entry}
    (folder.parent / WRITTEN).write_text(json.dumps(line) + "\n", encoding="utf-8")


def hide(place: Path) -> None:
    for name in (f".{place.name}.old", f".{place.name}.17.part", f".{place.name}.host-17.part"):
        place.with_name(name).write_text(MINE, encoding="utf-8")
    folder = place.with_name(f".{place.name}.18.part")
    folder.mkdir()
    (folder / "file").write_text(MINE, encoding="utf-8")


def device(place: Path) -> None:
    try:
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        os.mkfifo(place)


WAYS: dict[str, Callable[[Path, Path], object]] = {
    "absolute name": lambda place, mine: forged(place, str(mine), mine),
    "..": lambda place, mine: forged(place, os.path.relpath(mine, place), mine),
    "link to a file": lambda place, mine: place.symlink_to(mine),
    "link to a folder": lambda place, mine: place.symlink_to(mine.parent),
    "hard link": lambda place, mine: place.hardlink_to(mine),
    "device": lambda place, _: device(place),
    "FIFO": lambda place, _: os.mkfifo(place),
    "hidden backup": lambda place, _: hide(place),
    "foreign file": lambda place, _: place.write_text(MINE, encoding="utf-8"),
    "a folder of files": lambda place, mine: shutil.copytree(mine.parent, place),
}


def fingerprint(path: Path) -> tuple[object, ...]:
    about = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
    return about.st_ino, about.st_mode, content, path.readlink() if path.is_symlink() else ""


def kept(path: Path) -> Iterator[Path]:
    """A file, and where it is if palm said that it renamed it or a folder above it."""
    for place in (path, *path.parents[:-1]):
        for other in (place, place.with_name(f"{place.name}.kept")):
            if os.path.lexists(found := other / path.relative_to(place)):
                yield found


def command_said(words: list[str]) -> int:
    try:
        return palm.cli.main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def cases() -> Iterator[object]:
    for door in doors():
        for way in WAYS:
            yield pytest.param(door, way, id=f"{door.command} {door.option} {door.place}: {way}")


@pytest.fixture
def work(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Path:
    """A working directory, where runs in processes of their own and downloads end at once."""
    shutil.copytree(material, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONHOME", str(tmp_path / "none"))
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    caplog.set_level("INFO", "palm")
    return tmp_path / "work"


UNSEEN = {
    *("train  out/.run.lock.json", "predict --output target/.predictions.resume"),
    *(f"sweep --output target/{name}" for name in ("sweep.json", "best.yaml")),
    *(f"compare --output target/{name}" for name in ("compare.json", "compare.txt")),
    *(f"download --output target{name}" for name in ("", "/pretrain", f"/pretrain/{ENGLISH}")),
}
"""Places that are written for a moment, or after what `work` lets fail: runs in processes, and downloads."""


@pytest.mark.parametrize("door", [*doors()], ids=lambda door: f"{door.command} {door.option} {door.place}")
def test_every_place_is_one_that_its_command_writes(door: Door, work: Path) -> None:
    stood = os.path.lexists(work / door.place)
    command_said(door.words())
    is_written = os.path.lexists(work / door.place) and not stood
    assert is_written != (f"{door.command} {door.option} {door.place}" in UNSEEN), door.words()


@pytest.mark.parametrize(("door", "way"), [*cases()])
def test_what_is_not_palms_stays(door: Door, way: str, work: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    mine = tmp_path / "mine" / "file"
    mine.write_text(MINE, encoding="utf-8")
    place = work / door.place
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_file():
        place.unlink()
    WAYS[way](place, mine)
    forges = way in ("absolute name", "..")  # palm's by their own checksum
    theirs = [path for path in work.rglob("*") if not path.is_dir() and work / "run" not in path.parents]
    theirs += [place] if place.is_symlink() or not place.is_dir() else []
    theirs += [path for path in place.parent.glob(f".{place.name}.*") if path.is_file()]
    users = {path: fingerprint(path) for path in (mine, *([] if forges else filter(os.path.lexists, theirs)))}
    command_said(door.words())
    lost = [path for path, was in users.items() if was not in [fingerprint(each) for each in kept(path)]]
    assert lost == [], door.words()


def inputs() -> Iterator[object]:
    """Every command with an output, with each file and folder that it can read in its place."""
    for door in dict.fromkeys(Door(door.command, door.option, "") for door in doors() if door.option):
        for each in sorted({*READ.values(), "cls.yaml", "vocab.txt"} - {".", "cls=cls.tsv"}):
            yield pytest.param(door, each, id=f"{door.command} {door.option} {each}")


@pytest.mark.parametrize(("door", "source"), [*inputs()])
def test_an_output_that_is_an_input_is_refused(door: Door, source: str, work: Path) -> None:
    before = {path: fingerprint(path) for path in work.rglob("*") if path.is_file()}
    command_said(door.words(source))
    grows = {".palm-files.jsonl", "report.html"}
    lost = [
        path
        for path, was in before.items()
        if path.name not in grows and was not in [fingerprint(each) for each in kept(path)]
    ]
    assert lost == [], door.words(source)


def older(folder: Path) -> None:
    """Make the single files of palm in a folder those of an earlier run, with another content."""
    for record in folder.rglob(WRITTEN):
        lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            file = record.with_name(line["name"])
            if "sha256" in line and file.is_file():
                file.write_bytes(file.read_bytes() + b"\n")
                content = file.read_bytes()
                line |= {"size": len(content), "sha256": sha256(content).hexdigest()}
        record.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def replacing() -> list[Door]:
    """The commands with an output that succeed without starting processes."""
    starting = ("sweep", "compare", "download")
    told = (Door(door.command, door.option, "") for door in doors() if door.option)
    return [door for door in dict.fromkeys(told) if door.command not in starting]


@pytest.mark.parametrize("door", replacing(), ids=lambda door: f"{door.command} {door.option}")
def test_a_command_says_what_it_replaced(
    door: Door, work: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_said(door.words()) == 0
    target = work / door.target
    older(target if target.is_dir() else work)
    before = {path: path.read_bytes() for path in (target, *target.rglob("*")) if path.is_file()}
    inodes = {path: path.stat().st_ino for path in before}
    caplog.clear()
    monkeypatch.setattr(palm.core.files.fs, "_own", set())  # as in another process
    command_said(door.words())
    replaced = [path for path in before if path.stat().st_ino != inodes[path] and path.name[0] != "."]
    assert bool(replaced) == (door.command != "init")
    for path in replaced:
        places = [place.relative_to(work) for place in (path, path.parent)]
        assert any(str(place) in message for place in places for message in caplog.messages), path
