"""A run before the run: what its data holds, how it is wired, what it will do, take and write."""

from __future__ import annotations

from palm.check.checking import check
from palm.check.problems import Problem
from palm.check.result import Check

__all__ = ["Check", "Problem", "check"]
