"""Log lines below a cell of a notebook: one output for each cell."""

from __future__ import annotations

import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest

from palm.core import logging as palm_logging


def test_the_lines_of_a_cell_are_one_output(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[str]] = []

    def display(data: dict[str, str], **_: object) -> SimpleNamespace:
        output = [data["text/plain"]]
        shown.append(output)
        return SimpleNamespace(update=lambda data, **_: output.append(data["text/plain"]))

    shell = SimpleNamespace(execution_count=1)
    notebook = ModuleType("IPython")
    vars(notebook).update(get_ipython=lambda: shell, display=SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    console = palm_logging._Console()
    for cell, line in ((1, "a"), (1, "b"), (2, "c")):
        shell.execution_count = cell
        console.emit(logging.LogRecord("palm", logging.INFO, "", 0, line, (), None))
    assert shown == [["", "a", "a\nb"], ["", "c"]]
