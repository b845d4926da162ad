"""A dry run: its data, its wiring, its plan, its cost, and the files that it would write."""

from __future__ import annotations

from palm.check.checking import check
from palm.check.problems import Problem
from palm.check.result import Check

__all__ = ["Check", "Problem", "check"]
