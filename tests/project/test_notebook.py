"""The notebook is that of the tutorial, and its cells run in order."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "make_notebook.py"


def test_the_notebook_is_current() -> None:
    module = runpy.run_path(str(SCRIPT))
    assert module["NOTEBOOK"].read_text("utf-8") == module["notebook"](), "run scripts/make_notebook.py"


@pytest.mark.slow  # a training, a comparison and a server: two minutes
def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    palm = tmp_path / "bin" / "palm"
    palm.parent.mkdir()
    palm.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m palm "$@"\n', encoding="utf-8")
    palm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{palm.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PALM", str(ROOT))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    answers, port = "", str(free_port())
    cells = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text("utf-8"))["cells"]
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        text = "".join(cell["source"]).replace("8000", port)
        if text.startswith("%cd "):
            os.chdir(text.removeprefix("%cd ").strip())
        elif text.startswith("%%bash\n"):
            shell = ["bash", "-e", "-c", text.removeprefix("%%bash\n")]
            answers = subprocess.run(shell, check=True, stdout=subprocess.PIPE, text=True).stdout or answers
        else:
            exec(compile(text, "cell", "exec"), names)
    assert sorted(json.loads(answers)["results"][0]) == ["stars", "tags", "topic"]
    assert names["server"].returncode == 0
