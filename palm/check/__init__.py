"""Dry run: data, wiring, plan and cost of a run, and the files that it would write."""

from __future__ import annotations

from palm.check.checking import check
from palm.check.problems import Problem
from palm.check.result import Check

__all__ = ["Check", "Problem", "check"]
