"""Write docs/tutorial.ipynb from docs/tutorial.md: `python scripts/make_notebook.py`.

Prose becomes cells of Markdown, commands cells of code. Outputs are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
NOTEBOOK = DOCS / "tutorial.ipynb"
BLOCK = re.compile(r"^```console\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
FIRST = """import os
from pathlib import Path

os.environ.setdefault("PALM", str(Path.cwd().parent))  # the folder that you cloned"""
SERVER = """import subprocess

server = subprocess.Popen({words})"""
LAST = "server.terminate()\nserver.wait()"


def commands(block: str) -> Iterator[str]:
    """Yield the commands of a block, without their outputs."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        while command.count('"') % 2:  # a quoted program goes on in the next lines
            command += f"\n{lines.pop(0)}"
        yield command


def code(command: str) -> Iterator[str]:
    """Yield the cells of a command; a change of the folder is one by itself, because it must last."""
    if command.startswith("python -c"):
        yield command.removeprefix('python -c "').strip('"\n')
    elif command.startswith("palm serve"):
        yield SERVER.format(words=json.dumps(command.split()))
    elif command.startswith("pip install"):
        yield f"%%bash\n# {command}"
    else:
        for part in re.split(r" && (?=cd )|(?<=cd \.\.) && ", command):
            part = part.replace("curl -s", "curl -s --retry 60 --retry-delay 1 --retry-connrefused")
            yield f"%{part}" if part.startswith("cd ") else f"%%bash\n{part}"


def cells(page: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each cell."""
    title, _, rest = page.partition("\n\n")
    yield (
        "markdown",
        f"{title}\n\nThis notebook is [the tutorial](tutorial.md); start it in the folder `docs`.",
    )
    yield "code", FIRST
    prose, *parts = BLOCK.split(rest)
    yield "markdown", prose.strip()
    for block, after in zip(parts[::2], parts[1::2], strict=True):
        yield from (("code", cell) for command in commands(block) for cell in code(command))
        if after.strip():
            yield "markdown", after.strip()
    yield "code", LAST


def notebook() -> str:
    """Return the notebook as JSON."""
    written: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells((DOCS / "tutorial.md").read_text("utf-8"))):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        written.append(cell | {"source": text.splitlines(keepends=True)})
        if kind == "code":
            written[-1] |= {"execution_count": None, "outputs": []}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": written, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
