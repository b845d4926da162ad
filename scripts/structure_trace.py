"""Which files of the package run while a configuration is read, and which of them a setting passes.

    python scripts/structure_trace.py PACKAGE_FOLDER CONFIG [NAME[=VALUE]]

prints a line of JSON: `run`, files with a function that is called between the call of
`palm.Controller(CONFIG, task_dir="tasks", argv=[])` and its return; `named`, those where such a call has the
setting's value, at its beginning or end, in a local variable of that name or under that name in a dict or
dataclass that a local variable holds; `held`, those where the value is there under any name. What is looked
into are dicts, lists, tuples and dataclasses, four deep; other objects, `self` of a class for one, are not.
VALUE replaces the setting's value in CONFIG; `held` means something where the value occurs nowhere else.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

DEPTH, MOST = 4, 200


def parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Key or field name, and value, of what can be looked into; nothing of anything else or too long."""
    if isinstance(value, Mapping):
        yield from value.items() if len(value) <= MOST else ()
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", [None] * len(value))
        yield from zip(names, value, strict=True) if len(value) <= MOST else ()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value))


class Marker:
    """Finds one value under one name, as a number or as text.

    Args:
        name: of the setting.
        value: as it stands in the YAML file.
    """

    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value

    def is_held(self, value: Any, depth: int = DEPTH) -> bool:
        """Whether the value is there under any name."""
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value) == self.value
        return depth > 0 and any(self.is_held(item, depth - 1) for _, item in parts(value))

    def is_named(self, value: Any, depth: int = DEPTH) -> bool:
        """Whether the value is there under the setting's name."""
        return depth > 0 and any(
            (key == self.name and self.is_held(item)) or self.is_named(item, depth - 1)
            for key, item in parts(value)
        )


class Trace:
    """Notes the files of a folder whose functions are called.

    Args:
        folder: the package.
        marker: what to look for in their variables.
    """

    def __init__(self, folder: Path, marker: Marker | None) -> None:
        self.start, self.marker = f"{folder.resolve()}/", marker
        self.run: set[str] = set()
        self.named: set[str] = set()
        self.held: set[str] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # bodies of modules and classes are not
        if event not in ("call", "return") or not is_function or not code.co_filename.startswith(self.start):
            return
        file = code.co_filename.removeprefix(self.start)
        self.run.add(file)
        if self.marker and not {file} <= self.named & self.held:
            self._look(file, dict(frame.f_locals), self.marker)

    def _look(self, file: str, variables: dict[str, Any], marker: Marker) -> None:
        if marker.is_held(variables, DEPTH + 1):
            self.held.add(file)
            if marker.is_named(variables, DEPTH + 1):
                self.named.add(file)

    def found(self) -> dict[str, list[str]]:
        return {"run": sorted(self.run), "named": sorted(self.named), "held": sorted(self.held)}


def marker_of(config: Path, setting: str) -> Marker:
    """The setting to look for; writes its value into the configuration where one is given."""
    name, _, value = setting.partition("=")
    text = config.read_text(encoding="utf-8")
    line = re.compile(rf"^{re.escape(name)}:\s*(\S+)", re.M)
    if value:
        text = line.sub(f"{name}: {value}", text)
        config.write_text(text, encoding="utf-8")
    match = line.search(text)
    if match is None:
        sys.exit(f"{config} has no setting {name!r}")
    return Marker(name, match[1].strip("\"'"))


def main() -> None:
    """Trace one reading of a configuration."""
    package, config = Path(sys.argv[1]), Path(sys.argv[2])
    setting = sys.argv[3] if len(sys.argv) > 3 else ""
    marker = marker_of(config, setting) if setting else None
    sys.path.insert(0, str(package.parent))

    import palm

    controller = palm.Controller  # may be imported at first use
    trace = Trace(package, marker)
    sys.setprofile(trace)
    try:
        controller(config, task_dir="tasks", argv=[])
    finally:
        sys.setprofile(None)
    print(json.dumps(trace.found()))


if __name__ == "__main__":
    main()
