"""What two runs do not have in common, in the words of whoever configured them."""

from __future__ import annotations

from typing import Any

PARTS = {"backbone": "of the backbone", "mixing": "of the mixing", "schedule": "of the lr_scheduler"}
"""Sections of an identity -> what a setting of it belongs to; others are global."""

DERIVED = ("rows", "expected_steps")
"""What follows from data and settings: told only where nothing else explains it."""


def differences(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line for everything in which the identity of a checkpoint and that of this run differ.

    Args:
        saved: what `Controller` or a trainer kept in the checkpoint.
        now: the same of this run.
    """
    lines: list[str] = []
    for key in sorted({*saved, *now} - {"tasks"}):
        lines += _of_setting(key, saved.get(key), now.get(key), "")
    before, after = saved.get("tasks", {}), now.get("tasks", {})
    for name in sorted({*before, *after}):
        if name not in after:
            lines.append(f"task {name!r} is in the checkpoint, not in this run")
        elif name not in before:
            lines.append(f"task {name!r} is in this run, not in the checkpoint")
        else:
            lines += _of_task(name, before[name], after[name])
    return lines or _derived(before, after)


def _of_task(name: str, saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    lines = []
    if saved.get("data") != now.get("data"):
        rows = f"{saved.get('rows')} rows in the checkpoint, {now.get('rows')} now"
        same = "as many rows, with other contents"
        lines.append(
            f"the training rows of task {name!r} have changed (its train_file, its vocabulary, or how they "
            f"are read): {same if saved.get('rows') == now.get('rows') else rows}"
        )
    for key in sorted({*saved, *now} - {"data", *DERIVED}):
        lines += _of_setting(key, saved.get(key), now.get(key), f"task {name!r}")
    return lines


def _of_setting(key: str, saved: Any, now: Any, owner: str) -> list[str]:
    """One setting, or a section of them."""
    if isinstance(saved, dict) and isinstance(now, dict):
        inner = owner or PARTS.get(key, "")
        lines = []
        for name in sorted({*saved, *now}):
            label = key if name == "name" else name
            lines += _of_setting(label, saved.get(name), now.get(name), inner)
        return lines
    if saved == now:
        return []
    place = f" {owner}" if owner.startswith("of ") else f" of {owner}" if owner else ""
    return [f"{key}{place}: {saved!r} in the checkpoint, {now!r} now"]


def _derived(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{key} of task {name!r}: {before[name].get(key)!r} in the checkpoint, {after[name].get(key)!r} now"
        for name in sorted(before.keys() & after.keys())
        for key in DERIVED
        if before[name].get(key) != after[name].get(key)
    ]
