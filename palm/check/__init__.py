"""Dry run: data, wiring, plan and cost of a run."""

from __future__ import annotations

from palm.check.checking import Check, check
from palm.check.data import Problem

__all__ = ["Check", "Problem", "check"]
