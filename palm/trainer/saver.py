"""When and where a trainer saves, under the directory names of PaddlePALM 2.x."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from palm.core.errors import ConfigError
from palm.engine.loop import Step

FOLDERS = {"ckpt": "ckpt", "predict": "pred"}
"""Kind of what is saved -> the beginning of its directory's name."""


class Saver:
    """Saves every so many steps, and once more when a training ends in between.

    Args:
        save: writes one directory, given its path and kind.
        save_path: where directories go: `ckpt.step<N>` and `pred.step<N>`.
        save_steps: 0 or less: only at the end.
        save_type: 'ckpt', 'predict' or both, with a comma between them.

    Raises:
        ConfigError: another `save_type`.
    """

    def __init__(
        self, save: Callable[[Path, str], None], save_path: Path, save_steps: int, save_type: str
    ) -> None:
        self.save, self.save_path, self.save_steps = save, save_path, save_steps
        self.kinds = kinds_of(save_type)
        self._saved: int | None = None

    def __call__(self, step: Step) -> None:
        if self.save_steps > 0 and step.number % self.save_steps == 0:
            self._save(step.number)

    def finish(self, step: int) -> None:
        """Save the last step, unless that was done."""
        if self._saved != step:
            self._save(step)

    def _save(self, step: int) -> None:
        for kind in self.kinds:
            self.save(self.save_path / f"{FOLDERS[kind]}.step{step}", kind)
        self._saved = step


def kinds_of(save_type: str) -> list[str]:
    """The kinds that a `save_type` names.

    Raises:
        ConfigError: for an unknown one.
    """
    kinds = [kind.strip() for kind in save_type.split(",")]
    if not set(kinds) <= FOLDERS.keys():
        raise ConfigError([f"save_type should be 'ckpt', 'predict' or 'ckpt,predict', not {save_type!r}"])
    return kinds
