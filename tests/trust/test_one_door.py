"""Files are written, replaced, renamed, linked and removed through `palm.core.files`, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import palm

PACKAGE = Path(palm.__file__).parent

LIBRARIES = {
    *("quantize_dynamic", "SummaryWriter", "TemporaryDirectory", "NamedTemporaryFile", "mkdtemp", "mkstemp"),
    *("create_study", "snapshot_download", "hf_hub_download", "memmap", "save_file", "extractall", "savefig"),
    "save_pretrained",
}
METHODS = LIBRARIES | {
    *("touch", "mkdir", "rmdir", "unlink", "rename", "write_text", "write_bytes", "chmod", "hardlink_to"),
    "symlink_to",
}
"""Functions and methods that change the disk whatever they belong to."""

MODULES = {
    "os": {"replace", "rename", "remove", "unlink", "rmdir", "mkdir", "makedirs", "link", "symlink", "open"}
    | {"truncate", "mkfifo", "chmod", "removedirs", "renames"},
    "shutil": {"copy", "copy2", "copyfile", "copytree", "move", "rmtree", "copymode", "make_archive"},
    "torch": {"save"},
    "np": {"save", "savez", "savetxt", "memmap"},
}

REASONS = {
    ("cli/__init__.py", "open"): "the system's null device, for output that nobody takes",
    ("core/component.py", "copyfile"): "into a new folder of palm's, for core/files, which it cannot import",
    ("check/measuring.py", "TemporaryDirectory"): "a new folder of the system's",
    ("predict/onnx/computing.py", "TemporaryDirectory"): "a new folder of the system's",
    ("predict/onnx/computing.py", "quantize_dynamic"): "a library, into a new folder of palm's",
    ("pretrained/library.py", "save_pretrained"): "a library, into a new folder of palm's",
    ("experiments/search/study.py", "create_study"): "a study in memory",
    ("compat/downloader.py", "copyfile"): "beside the file of a download, under PaddlePALM's name",
    ("pretrained/hub.py", "snapshot_download"): "Hugging Face's own cache, or pretrain/NAME",
    ("train/trackers/tensorboard.py", "SummaryWriter"): "a tracker, in its own folder",
}
"""What stays outside, and why nothing of the user's is at risk there."""


def name_of(call: ast.Call) -> str:
    """The name of what is called where that changes the disk, else an empty text."""
    if isinstance(call.func, ast.Name):
        name = call.func.id
        return name if name in LIBRARIES or (name == "open" and writes(call, 1)) else ""
    if not isinstance(call.func, ast.Attribute):
        return ""
    name = call.func.attr
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if name == "memmap":  # its own default is a file that may be written
        return (
            ""
            if any(word.arg == "mode" and ast.unparse(word.value) == "'r'" for word in call.keywords)
            else name
        )
    if owner in MODULES:
        return name if name in MODULES[owner] else ""
    if name == "replace":  # of a path; a text's takes two, and what else has one takes names
        return name if len(call.args) == 1 and not call.keywords else ""
    if name == "open":
        return name if writes(call, 0) else ""
    return name if name in METHODS else ""


def writes(call: ast.Call, place: int) -> bool:
    """Whether a call of `open` has a mode for writing, which is its argument at a place."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    modes = [each.value for each in (*given, *call.args[place : place + 1]) if isinstance(each, ast.Constant)]
    return any(re.fullmatch(r"[rbt]*[wax+][rbt+]*", str(mode)) for mode in modes)


def changes(file: Path) -> Iterator[tuple[str, str, int]]:
    """The calls in a module that change the disk: module, name, line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and (name := name_of(node)):
            yield file.relative_to(PACKAGE).as_posix(), name, node.lineno


def test_the_disk_is_changed_in_one_place() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if "core/files" not in file.as_posix()]
    found = [change for file in sorted(files) for change in changes(file)]
    assert [change for change in found if change[:2] not in REASONS] == []
    assert sorted(REASONS) == sorted({change[:2] for change in found})


@pytest.mark.parametrize(
    "line",
    [
        *("path.unlink()", "Path('a').replace(b)", "os.replace(a, b)", "shutil.rmtree(a)", "open(a, 'w')"),
        *("path.open('ab')", "path.open(mode='x')", "path.write_text('')", "tempfile.mkdtemp()"),
        *("np.memmap(a, kind)", "np.memmap(a, kind, mode='r+')"),
    ],
)
def test_a_change_of_the_disk_is_found(line: str) -> None:
    [call] = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call) and name_of(node)]
    assert call.lineno == 1


@pytest.mark.parametrize(
    "line",
    [
        *("text.replace('a', 'b')", "path.open()", "open(a)", "path.open('rb')", "replace(a, b=1)"),
        "np.memmap(a, kind, mode='r')",
    ],
)
def test_reading_is_not_a_change(line: str) -> None:
    assert not any(name_of(node) for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call))
