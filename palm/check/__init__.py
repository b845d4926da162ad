"""Dry run: data, wiring, plan and cost of a run."""

from __future__ import annotations

from palm.check.checking import check
from palm.check.result import Check, Problem

__all__ = ["Check", "Problem", "check"]
