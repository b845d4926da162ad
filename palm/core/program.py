"""Whether palm runs in a program of its own, or as a guest in a notebook or a test."""

from __future__ import annotations

import os
import sys


def is_program() -> bool:
    """Whether this is a script or module: not a notebook, an interactive session or a test."""
    in_test = "pytest" in sys.modules and bool({"PYTEST_VERSION", "PYTEST_CURRENT_TEST"} & os.environ.keys())
    is_script = hasattr(sys.modules["__main__"], "__file__")
    return is_script and not in_test and "ipykernel" not in sys.modules
