"""The figures of a tiny package, counted by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "structure.py"

# Units: cli, engine, core, errors (4). Arrows: cli -> engine, cli -> errors (in a function), engine -> core,
# core -> errors, engine -> errors; not engine -> cli, which only a type checker imports. Floors:
# cli > engine > core > errors. Rooms: engine, engine/parts, core.
FILES = {
    "__init__.py": '"""The package."""\n\nfrom palm.cli import main\n',
    "cli.py": '''"""The door."""

from palm.engine import run


def main() -> None:
    """Run."""
    from palm import errors

    run()
    errors.complain()
''',
    "engine/__init__.py": '"""The engine."""\n\nfrom palm.engine.parts.loop import run\n',
    "engine/parts/__init__.py": "",
    "engine/parts/loop.py": '''"""The loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from palm.core.base import Base, _shared
from palm.errors import complain  # noqa: F401

if TYPE_CHECKING:
    from palm.cli import main


class Loop(Base):
    """A loop.

    It goes round.
    """

    def run(self) -> int:
        # Two lines of
        # one comment.
        return self._twice() + self._twice() + self._once()

    def _twice(self) -> int:
        return 2

    def _once(self) -> int:
        return _shared()

    def _hook(self) -> int:
        return 1


def run() -> int:
    return Loop().run()
''',
    "core/__init__.py": "",
    "core/base.py": '''"""The base."""

from ..errors import complain


class Base:
    """What has a hook."""

    def start(self) -> int:
        return self._hook()

    def _hook(self) -> int:
        raise complain()


def _shared() -> int:
    return 3  # a remark


def _never() -> int:
    return _never()
''',
    "errors.py": '"""Errors."""\n\n\ndef complain() -> Exception:\n    return ValueError()\n',
}
LINTER = """
[[tool.importlinter.contracts]]
name = "down"
type = "layers"
layers = ["cli", "engine", "core", "errors"]
containers = ["palm"]
"""


def figures(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        path = folder / "palm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "pyproject.toml").write_text(LINTER, encoding="utf-8")
    printed = subprocess.run(
        [sys.executable, SCRIPT, folder, "--json"], capture_output=True, encoding="utf-8", check=True
    ).stdout
    return dict(json.loads(printed))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return figures(tmp_path_factory.mktemp("checkout"), FILES)


def test_units_arrows_and_floors_are_those_of_the_imports_that_run(counted: dict[str, Any]) -> None:
    assert counted["top-level units"] == 4
    assert counted["arrows between units"] == 5
    assert counted["arrows only inside functions"] == 1
    assert counted["floors of units"] == 4
    assert counted["cycles of units"] == []
    assert counted["linter's layers"] == {"down": 4}


def test_rooms_are_folders(counted: dict[str, Any]) -> None:
    # cli -> engine, cli -> errors, engine -> engine.parts, engine.parts -> core, engine.parts -> errors,
    # core -> errors
    assert counted["rooms (folders)"] == 3
    assert counted["arrows between rooms"] == 6
    assert counted["floors of rooms"] == 5


def test_imports_are_counted_once_for_each_pair_of_modules(counted: dict[str, Any]) -> None:
    # palm -> cli, cli -> engine, engine -> loop, loop -> base, loop -> errors, base -> errors
    assert counted["module-level imports between modules"] == 6
    assert counted["imports inside functions"] == 1


def test_private_functions_are_single_use_unless_they_are_hooks(counted: dict[str, Any]) -> None:
    # _twice (two uses), _once (one), _hook twice (a hook), _shared (one), _never (only itself)
    assert counted["private functions"] == 6
    assert counted["single-use private functions"] == 2
    assert counted["single-use share of private, %"] == 33.3
    assert counted["private functions nobody names"] == ["palm.core.base:_never"]
    assert counted["functions"] == 11
    assert counted["single-use share of all functions, %"] == 18.2


def test_lines_and_comments_are_counted(counted: dict[str, Any]) -> None:
    assert counted["files"] == 8
    assert counted["lines"] == 3 + 11 + 3 + 0 + 36 + 0 + 21 + 5
    assert counted["code lines"] == 1 + 5 + 1 + 0 + 17 + 0 + 10 + 2
    assert counted["comments"] == 2
    assert counted["directives to tools"] == 1
    assert counted["lines per comment"] == 40  # 79 / 2 = 39.5
    assert counted["lines per comment or directive"] == 26  # 79 / 3 = 26.3


def test_the_longest_ones_are_named(counted: dict[str, Any]) -> None:
    assert counted["longest function"] == "6 palm.cli:main"
    assert counted["longest class"] == "19 palm.engine.parts.loop:Loop"
    assert counted["longest file"] == "36 palm.engine.parts.loop"
    # Lengths: ten functions of 2 lines but `run`, which has 4, and `main`, which has 6.
    assert counted["median function, lines"] == 2
    assert counted["90th percentile of functions, lines"] == 4


def test_a_cycle_is_named_and_is_one_floor(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "a.py": "import palm.b\n",
        "b.py": "import palm.c\nimport palm.d\n",
        "c.py": "import palm.b\n",
        "d.py": "",
    }
    counted = figures(tmp_path, files)
    assert counted["cycles of units"] == [["b", "c"]]
    assert counted["cycles of modules"] == [["palm.b", "palm.c"]]
    assert counted["arrows between units"] == 4
    assert counted["floors of units"] == 3
