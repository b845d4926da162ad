"""Settings and values that palm no longer has, each with what to do instead."""

from __future__ import annotations

_MERGE = "train the stages one after the other, and take the mean of their models with `palm merge`"
_BALANCE = "set balance: uncertainty, which balances by losses, or upgrad, by gradients"

REMOVED: dict[str, str] = {
    "compile: graphs": "set compile: True, or leave it out",
    "balance: gradnorm": _BALANCE,
    "balance: nash_mtl": _BALANCE,
    "cagrad_radius": "leave it out; cagrad has a radius of 0.5",
    "dwa_steps": "leave it out; dwa takes means of 100 steps",
    "dwa_temperature": "leave it out; dwa has a temperature of 2",
    "famo_decay": "leave it out; famo has a decay of 0.001",
    "fork_merge": _MERGE,
    "gradient_exchange": "leave it out; gradients travel in fp32",
    "gradnorm_alpha": _BALANCE,
    "gradnorm_rate": _BALANCE,
    "lr_cut_fraction": "leave it out; slanted_triangular rises in a tenth of the steps",
    "lr_ratio": "leave it out; slanted_triangular begins and ends at a 32nd of learning_rate",
    "merge": _MERGE,
    "shares": _MERGE,
}
"""The setting (`fork_merge`), or the setting with one of its values (`compile: graphs`) -> the remedy.

To remove a setting, delete its declaration and enter it here; to remove a choice of a setting, delete it from
the annotation and enter both. The remedy is a clause that says what to do: "write stages with `merge`".
A configuration, task file or command line that still has it is refused with its place and this remedy.
"""


def removal(name: str, value: object = None) -> str | None:
    """Return the message about a removed setting, or about a removed value of one; None for others."""
    if name in REMOVED:
        return f"{name} was removed: {REMOVED[name]}"
    remedy = REMOVED.get(f"{name}: {value}")
    return f"{name}: {value} was removed: {remedy}" if remedy else None
