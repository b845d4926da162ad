"""A pytest plugin that measures every comparison with recorded numbers: how far apart, and how far it may be.

`scripts/golden_report.py` runs the golden tests with it. It listens to `torch.testing.assert_close`,
`numpy.testing.assert_allclose` and `pytest.approx`, so the tests themselves are what is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

_TOLERANCES = {torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7)}
"""What `assert_close` takes where a test says nothing: rtol, atol."""


@dataclass
class Measured:
    """The comparisons of one test.

    Args:
        tensors: how many there were.
        numbers: how many numbers they had.
        absolute: the largest difference.
        relative: the largest one relative to the largest number of its tensor.
        used: the largest share of its tolerance that a difference took.
        tolerances: (atol, rtol) of the comparisons.
    """

    tensors: int = 0
    numbers: int = 0
    absolute: float = 0.0
    relative: float = 0.0
    used: float = 0.0
    tolerances: tuple[tuple[float, float], ...] = ()

    def take(self, ours: Any, theirs: Any, atol: float, rtol: float) -> None:
        """Count one comparison."""
        ours, theirs = (np.asarray(_plain(value), dtype=np.float64) for value in (ours, theirs))
        far, size = np.abs(ours - theirs), np.abs(theirs)
        self.tensors += 1
        self.numbers += far.size
        if (atol, rtol) not in self.tolerances:
            self.tolerances += ((atol, rtol),)
        if far.size:
            allowed = np.maximum(atol + rtol * size, np.finfo(np.float64).tiny)
            self.absolute = max(self.absolute, float(far.max()))
            self.relative = max(self.relative, float(far.max() / (size.max() or 1.0)))
            self.used = max(self.used, float((far / allowed).max()))


def _plain(value: Any) -> Any:
    return value.detach().double().cpu().numpy() if isinstance(value, torch.Tensor) else value


class GoldenReport:
    """Measures while tests run, and prints a table after them."""

    def __init__(self) -> None:
        self.measured: dict[str, Measured] = {}
        self.outcomes: dict[str, str] = {}
        self._current: Measured | None = None
        self._patched: list[tuple[Any, str, Any]] = []

    def listen(self) -> None:
        """Put ears on what tests compare with."""
        self._patch(torch.testing, "assert_close", self._close)
        self._patch(np.testing, "assert_allclose", self._allclose)
        self._patch(type(pytest.approx(1.0)), "__eq__", self._approx)

    def stop(self) -> None:
        """Take them off."""
        while self._patched:
            owner, name, original = self._patched.pop()
            setattr(owner, name, original)

    def _patch(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._patched.append((owner, name, original))
        setattr(owner, name, around(original))

    def _take(self, ours: Any, theirs: Any, atol: float, rtol: float) -> None:
        if self._current is not None:
            self._current.take(ours, theirs, atol, rtol)

    def _close(self, original: Any) -> Any:
        def assert_close(actual: Any, expected: Any, **options: Any) -> None:
            rtol, atol = _TOLERANCES.get(getattr(actual, "dtype", torch.float64), (0.0, 0.0))
            if options.get("rtol") is not None:
                rtol, atol = options["rtol"], options["atol"]
            self._take(actual, expected, atol, rtol)
            original(actual, expected, **options)

        return assert_close

    def _allclose(self, original: Any) -> Any:
        def assert_allclose(actual: Any, desired: Any, **options: Any) -> None:
            self._take(actual, desired, options.get("atol", 0.0), options.get("rtol", 1e-7))
            original(actual, desired, **options)

        return assert_allclose

    def _approx(self, original: Any) -> Any:
        def equals(approx: Any, actual: Any) -> bool:
            if all(isinstance(value, (int, float, np.number)) for value in (actual, approx.expected)):
                self._take(actual, approx.expected, float(approx.tolerance), 0.0)
            return bool(original(approx, actual))

        return equals

    # Hooks

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin a line."""
        self._current = self.measured.setdefault(item.nodeid, Measured())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        if report.skipped:
            self.outcomes[report.nodeid] = f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"  # type: ignore[index]
        elif report.failed or report.when == "call":
            self.outcomes[report.nodeid] = report.outcome

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the table."""
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """The table: a line a test."""
        head = ["comparison", "numbers", "absolute", "relative", "tolerance", "used", ""]
        rows = [head]
        for test, outcome in self.outcomes.items():
            found = self.measured.get(test, Measured())
            file, _, name = test.partition("::test_")
            name = f"{Path(file).stem.removeprefix('test_')}: {name}".replace("_", " ")
            shown = "" if outcome == "passed" else outcome
            if found.tensors:
                figures = [
                    f"{found.numbers:,}",
                    f"{found.absolute:.1e}",
                    f"{found.relative:.1e}",
                    ", ".join(_tolerance(*each) for each in found.tolerances[:3]),
                    f"{100 * found.used:.0f} %",
                ]
            else:
                figures = ["", "0", "0", "equal", ""] if outcome == "passed" else [""] * 5
            rows.append([name, *figures, shown])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]


def _tolerance(atol: float, rtol: float) -> str:
    return f"{atol:.1e}" if not rtol else f"{atol:.1e} + {rtol:.1e} x"


def pytest_configure(config: pytest.Config) -> None:
    """Listen before any test module is imported."""
    report = GoldenReport()
    report.listen()
    config.pluginmanager.register(report, "golden-report")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave everything as it was."""
    report = config.pluginmanager.get_plugin("golden-report")
    assert isinstance(report, GoldenReport)
    report.stop()
