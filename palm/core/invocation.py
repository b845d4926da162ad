"""Start of the process: as a program, or inside a notebook or a test."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

START = [sys.executable, str(Path(__file__).resolve().parents[1] / "__main__.py")]
"""Command prefix that runs this palm; `-m` might run a `palm.py` in the working directory instead."""


def is_program() -> bool:
    """Check whether the process runs a script or module, not a notebook, an interactive session or a test."""
    in_test = "pytest" in sys.modules and bool({"PYTEST_VERSION", "PYTEST_CURRENT_TEST"} & os.environ.keys())
    is_script = hasattr(sys.modules["__main__"], "__file__")
    return is_script and not in_test and not is_notebook()


def is_notebook() -> bool:
    """Check whether the process is a Jupyter kernel."""
    return "ipykernel" in sys.modules


def command_of_program(*more: str) -> str:
    """Return the command that runs this program again with more arguments; "" if it is not a program.

    An added option replaces one of the same name.
    """
    if not is_program():
        return ""
    options = {word for word in more if word.startswith("--")}
    kept: list[str] = []
    is_value = False  # True if the next word may be the value of a replaced option
    for word in sys.argv[1:]:
        if word.partition("=")[0] in options:
            is_value = "=" not in word
        elif is_value and not word.startswith("--"):
            is_value = False
        else:
            kept.append(word)
            is_value = False
    start = program()
    is_script = start[0] != "-m" and not start[0].endswith(".py")  # such as bin/palm
    start = [Path(start[0]).name] if is_script else ["python", *start]
    return shlex.join([*start, *kept, *more])


def program() -> list[str]:
    """Return the arguments with which Python or `torchrun` run this program: its file, or `-m MODULE`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name == "__main__":
        return sys.argv[:1]
    return ["-m", spec.name.removesuffix(".__main__")]
