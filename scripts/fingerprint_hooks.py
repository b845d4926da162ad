"""What `scripts/fingerprints.py` runs inside the measured process: a watched demo, and a pytest plugin.

Both take hold of torch, numpy and pytest only, so that they measure any layout of palm.
"""

from __future__ import annotations

import builtins
import hashlib
import json
import os
import random
import re
import runpy
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch


def bits(value: Any) -> str:
    """A hash of a value: of arrays and tensors dtype, shape and bytes; of numbers all digits."""
    return hashlib.sha256(_bytes(value)).hexdigest()[:16]


def _bytes(value: Any) -> bytes:
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)} ".encode() + raw
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes()
    if isinstance(value, Mapping):
        return b"{" + b",".join(_bytes(key) + b":" + _bytes(item) for key, item in value.items()) + b"}"
    if isinstance(value, (list, tuple)):
        return b"[" + b",".join(map(_bytes, value)) + b"]"
    if isinstance(value, (str, int, float, complex, bool, type(None))):
        return repr(value).encode()
    return type(value).__name__.encode()


def _watch_backward(receive: Callable[[torch.Tensor], None]) -> None:
    """Hand over whatever gradients are computed of; `Tensor.backward` comes through here too."""
    original = torch.autograd.backward

    def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
        for tensor in (tensors,) if isinstance(tensors, torch.Tensor) else tensors:
            receive(tensor.detach())
        return original(tensors, *arguments, **named)

    torch.autograd.backward = backward


def _check_origin() -> None:
    """The palm of the copy is measured, and not one that is installed."""
    import palm

    wanted, root = Path(os.environ["FINGERPRINT_ROOT"]).resolve(), Path(palm.__file__).resolve()
    if wanted not in root.parents:
        sys.exit(f"palm came from {root}, not from {wanted}")


def watch(record: Path, demo: str, arguments: list[str]) -> None:
    """Run a demo as a program and write what it printed itself and the loss of every backward pass."""
    losses: list[str] = []
    printed: list[str] = []
    original = builtins.print

    def tee(*values: Any, **named: Any) -> None:
        printed.extend(" ".join(map(str, values)).splitlines())
        original(*values, **named)

    _check_origin()
    _watch_backward(lambda loss: losses.append(" ".join(x.hex() for x in loss.double().reshape(-1).tolist())))
    builtins.print = tee
    sys.argv = [demo, *arguments]
    sys.path[0] = str(Path(demo).parent)
    try:
        runpy.run_path(demo, run_name="__main__")
    finally:
        record.write_text(json.dumps({"losses": losses, "printed": printed}), encoding="utf-8")


def name_of(nodeid: str) -> str:
    """The name of a test without its file and class, and without addresses in the names of its parameters."""
    head, bracket, rest = nodeid.partition("[")
    return head.split("::")[-1] + bracket + re.sub(r" at 0x[0-9a-f]+", "", rest)


class Recorder:
    """Per test: what was compared with expected numbers, in order, as `kind hash`."""

    def __init__(self, tests: Path) -> None:
        self.tests = f"{tests.resolve()}{os.sep}"
        self.found: dict[str, list[list[str]]] = {}
        self.current: list[str] | None = None

    def add(self, kind: str, *values: Any) -> None:
        if self.current is not None:
            self.current.append(f"{kind} {' '.join(map(bits, values))}")

    def begin(self, test: str) -> None:
        self.current = []
        self.found.setdefault(name_of(test), []).append(self.current)

    def is_test(self, frame: Any) -> bool:
        return bool(frame.f_code.co_filename.startswith(self.tests))

    def wrap(self, owner: Any, name: str, count: int = 1) -> None:
        """Record the first `count` arguments of a function that tests call."""
        original = getattr(owner, name)

        def recording(*arguments: Any, **named: Any) -> Any:
            if self.is_test(sys._getframe(1)):
                given = arguments[:count] or (named.get("actual"),)
                self.add(name, *given)
            return original(*arguments, **named)

        setattr(owner, name, recording)


def _wrap_approx(recorder: Recorder) -> None:
    """Record what tests compare with `pytest.approx`, wherever this pytest has the classes of its results."""
    home = vars(sys.modules[type(pytest.approx(1.0)).__module__])
    kinds = [value for name, value in home.items() if name.startswith("Approx") and isinstance(value, type)]
    for kind in kinds:
        if "__eq__" not in vars(kind):
            continue

        def equals(self: Any, actual: Any, original: Any = kind.__eq__) -> Any:
            if recorder.is_test(sys._getframe(1)):
                recorder.add("approx", actual)
            return original(self, actual)

        kind.__eq__ = equals


def _install() -> Recorder:
    recorder = Recorder(Path(os.environ["FINGERPRINT_ROOT"]) / "tests")
    recorder.wrap(torch.testing, "assert_close")
    for name in ("assert_allclose", "assert_array_equal", "assert_equal", "assert_array_almost_equal"):
        recorder.wrap(np.testing, name)
    for owner, name in ((torch, "equal"), (torch, "allclose"), (np, "array_equal"), (np, "allclose")):
        recorder.wrap(owner, name, 2)
    recorder.wrap(torch.Tensor, "item")
    _wrap_approx(recorder)
    _watch_backward(lambda loss: recorder.add("backward", loss))
    return recorder


def pytest_configure(config: Any) -> None:
    """Called by pytest (`-p fingerprint_hooks`) before any test file is imported."""
    _check_origin()
    config.fingerprints = _install()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Independent of where a test file lies."""
    items.sort(key=lambda item: (item.path.name, item.location[1]))


def pytest_runtest_setup(item: Any) -> None:
    """One seed for every test, so that what it draws does not depend on the tests before it."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    item.config.fingerprints.begin(item.name)


def pytest_runtest_teardown(item: Any) -> None:
    """What a fixture does while it is taken down is no measurement."""
    item.config.fingerprints.current = None


def pytest_runtest_logreport(report: Any) -> None:
    """Keep what became of each test."""
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES.setdefault(name_of(report.nodeid), []).append(report.outcome)


OUTCOMES: dict[str, list[str]] = {}


def pytest_sessionfinish(session: Any) -> None:
    """Write `test name -> outcomes and records`; tests of one name in several files stand together."""
    contents = {
        name: {"outcomes": sorted(OUTCOMES.get(name, [])), "records": sorted(records)}
        for name, records in sorted(session.config.fingerprints.found.items())
    }
    Path(os.environ["FINGERPRINT_RECORD"]).write_text(json.dumps(contents), encoding="utf-8")


if __name__ == "__main__":
    watch(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
