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
from palm.cli.command import COMMANDS, Option
from palm.controller import Controller
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
    "--rows": "cls.tsv",
    "--test": "cls.tsv",
    "--pretrain": "model",
    "--of": "config.yaml",
    "--from": "cls.tsv",
    "--dev_file": "cls=cls.tsv",
}
"""Arguments that name something to read -> what there is of it."""

WRITE = {"--output", "folder", "--html", "--record", "--path"}
"""Arguments that name something to write."""

NEITHER = {
    *("--task", "--resume", "--engine", "--precision", "--trust", "--metric", "--overwrite", "--to"),
    *(
        "--all-heads",
        "-l",
        "names",
        "-d",
        "--no-convert",
        "--weights",
        "--strict",
        "--no_measure",
        "--dry_run",
    ),
    *("--steps", "--more", "--killed", "--seeds", "--budget", "--also", "--workers", "--keep_models"),
    *("--one_run", "--grid", "--trials", "--terminal", "--no-predict", "--tasks", "name"),
    *("--module", "shell"),
}

NEEDED: dict[str, list[str]] = {
    "init": ["--tasks", "cls"],
    "export": ["--to", "hf"],
    "predict": ["--model", "model", "--input", "cls.tsv"],
    "sweep": ["--grid", "learning_rate=0.1"],
    "download": [ENGLISH],
    "verify-resume": ["--steps", "1", "--more", "1"],
    "check": ["--no_measure"],
}
"""What a command needs beside its positional arguments."""

OWN_PLACES = {
    "train": ["out/" + name for name in ("history.jsonl", "run.json", "resolved_config.yaml", "stages.json")]
    + [
        "out/" + name
        for name in ("cls/infer_model", "best", ".run.lock", ".run.lock.json", "step_1", "stages")
    ],
    "verify-resume": [],
    "report": ["run/report.html", "run/report_data.json"],
    "plot": ["run/curves.html"],
}
"""Where a command writes that is not told where."""

INSIDE = {
    "predict": ["predictions.json", ".predictions.resume", ".predictions.lock"],
    "sweep": [
        "grid.json",
        "sweep.json",
        "sweep.txt",
        "best.yaml",
        ".run.lock",
        "runs/0000/config.yaml",
        "runs",
    ],
    "compare": ["grid.json", "compare.json", "compare.txt", ".run.lock", "runs"],
    "download": ["pretrain", *(f"pretrain/{ENGLISH}{end}" for end in ("", ".part", ".lock"))],
    "export": ["config.json"],
    "convert": ["config.json", "model.safetensors"],
    "merge": ["config.json"],
    "init": ["config.yaml"],
}
"""Names in the folder that a command is told to write."""


@dataclass(frozen=True)
class Door:
    """A place where a command writes.

    Args:
        command: its name.
        option: what names the place; None where the command chooses it.
        place: below the working directory.
    """

    command: str
    option: Option | None
    place: str

    def words(self) -> list[str]:
        """The arguments, with a value for every option that is needed."""
        options = COMMANDS[self.command].options
        found = [
            self.target if each is self.option else READ[each.names[0]]
            for each in options
            if not each.names[0].startswith("-")
            and (each is self.option or each.names[0] in READ)
            and each.keywords.get("nargs") != "?"
        ]
        if self.option is not None and self.option.names[0].startswith("-"):
            found += [self.option.names[0], self.target]
        required = [each for each in options if each.keywords.get("required") and each is not self.option]
        for each in required:
            if each.names[0] in WRITE:
                found += [each.names[0], "elsewhere"]
        overwrites = any(each.names[0] == "--overwrite" for each in options)
        return [self.command, *found, *NEEDED.get(self.command, []), *["--overwrite"] * overwrites]

    @property
    def target(self) -> str:
        return "target.html" if self.command == "plot" else "target"


def writes(option: Option) -> bool:
    """Whether an argument names something to write; `--json` does where it takes a value."""
    takes_value = option.keywords.get("action") is None
    return option.names[0] in WRITE or (option.names[0] == "--json" and takes_value)


def doors() -> Iterator[Door]:
    """Every place where a command writes."""
    for name, command in COMMANDS.items():
        options = [option for option in command.options if writes(option)]
        for option in options:
            target = Door(name, option, "").target
            yield from (
                Door(name, option, place)
                for place in (target, *(f"target/{each}" for each in INSIDE.get(name, ())))
            )
        for place in OWN_PLACES.get(name, ()):
            yield Door(name, None, place)


def test_every_argument_of_a_command_is_known_to_read_or_to_write() -> None:
    for name, command in COMMANDS.items():
        for option in command.options:
            first = option.names[0]
            known = [first in READ, writes(option), first in NEITHER or first == "--json"]
            assert any(known), f"{name}: say in this file what {first} does"


def test_every_command_that_writes_somewhere_of_its_own_is_named() -> None:
    reading = {"evaluate", "inspect", "diff", "ls", "completion"}
    assert {*(door.command for door in doors()), "verify-resume"} | reading == set(COMMANDS)


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
    (folder / "cls.yaml").write_text(json.dumps(task), encoding="utf-8")
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


STARTS_PROCESSES = ("compare", "sweep", "verify-resume", "download")


def cases() -> Iterator[object]:
    for door in doors():
        for way in WAYS:
            late = door.place.endswith(("target", "runs")) and way in (
                "link to a folder",
                "a folder of files",
            )
            if door.command in STARTS_PROCESSES and (late or way in ("hidden backup", "absolute name", "..")):
                continue  # nothing is refused before the processes start, or the network is asked
            option = "" if door.option is None else door.option.names[0]
            yield pytest.param(door, way, id=f"{door.command} {option} {door.place}: {way}")


@pytest.mark.parametrize(("door", "way"), [*cases()])
def test_what_is_not_palms_stays(
    door: Door, way: str, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    shutil.copytree(material, work)
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
    monkeypatch.chdir(work)
    command_said(door.words())
    lost = [path for path, was in users.items() if was not in [fingerprint(each) for each in kept(path)]]
    assert lost == [], door.words()
