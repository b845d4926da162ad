"""Runs to report on: really trained, tiny, with dev data and a history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import palm
from helpers import tiny

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
"""A row that would run if it were not escaped."""


def train(folder: Path, *tasks: str, rows: int = 40, **settings: Any) -> Path:
    """Train tiny tasks that are evaluated on their training data, and return the run's folder.

    The dev data of `cls` are its first twelve rows and a hostile one.
    """
    tiny.write_files(folder, rows)
    given = tiny.config(folder, *tasks, with_dev=True, **{"save_path": str(folder / "run"), **settings})
    if "cls" in given["tasks"]:
        lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[:13]
        (folder / "dev.tsv").write_text("\n".join([*lines, f"3\t{HOSTILE}"]) + "\n", encoding="utf-8")
        given["tasks"]["cls"]["dev_file"] = str(folder / "dev.tsv")
    palm.Controller({"print_every_n_steps": 1, **given}, argv=[]).train()
    return Path(given["save_path"])
