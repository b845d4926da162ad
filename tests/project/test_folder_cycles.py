"""No two folders of palm import each other, directly or through others."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

PALM = Path(__file__).resolve().parents[2] / "palm"


def folder_of(module: str) -> Path | None:
    path = PALM.parent / module.replace(".", "/")
    if path.is_dir():
        return path
    return path.parent if path.with_suffix(".py").exists() else None


def imported_folders(file: Path) -> set[Path]:
    folders = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "palm":
            for alias in node.names:
                folder = folder_of(f"{node.module}.{alias.name}") or folder_of(str(node.module))
                assert folder is not None, f"{file}: {node.module} is no module"
                folders.add(folder)
    return folders - {file.parent}


def test_no_folder_imports_one_that_imports_it() -> None:
    graph: dict[Path, set[Path]] = {}
    for file in PALM.rglob("*.py"):
        graph.setdefault(file.parent, set()).update(imported_folders(file))
    assert len(graph) > 20
    TopologicalSorter(graph).prepare()  # raises CycleError
