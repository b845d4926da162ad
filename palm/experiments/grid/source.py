"""The configuration that the runs of a grid are edits of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palm.config.run import RunConfig
from palm.config.settings import RunSettings
from palm.controller.rows import choose_rows
from palm.controller.startup import read_run
from palm.core.errors import ConfigError
from palm.experiments.grid.folder import Grid, word_of
from palm.experiments.grid.pool import Pool, slots_of


@dataclass(frozen=True)
class Source:
    """A configuration as given.

    Args:
        config: the global YAML file, or the same settings as a mapping.
        task_dir: the folder of the task files.
        argv: command-line arguments that override settings.
    """

    config: str | Path | Mapping[str, Any]
    task_dir: str | Path
    argv: Sequence[str]

    def edited(self, changes: Mapping[str, Any]) -> RunConfig:
        """Return it with some settings changed; `task.setting` is a setting of one task."""
        words = [*self.argv, *(f"--{name}={word_of(value)}" for name, value in changes.items())]
        run = read_run(self.config, self.task_dir, words, for_train=True, needs_tasks=True)
        return choose_rows(run, for_train=True)

    def pool(self, grid: Grid, command: str, workers: int | None, settings: RunSettings) -> Pool:
        """Return the process pool of a grid; its processes can import the user's own components."""
        home = [] if isinstance(self.config, Mapping) else ["--of", str(self.config)]
        slots = slots_of(workers, settings.use_gpu, settings.num_devices)
        return Pool(grid, [command, "--one_run", *home], slots)


def folder_of(save_path: Path, kind: str, output: str | Path | None) -> Path:
    """Return the folder of a grid: `output` if given, otherwise `<save_path>_<kind>`."""
    if output is not None:
        return Path(output)
    if not save_path.name:
        raise ConfigError(f"save_path: {save_path} has no folder beside it for the runs; set --output")
    return save_path.with_name(f"{save_path.name}_{kind}")


def devices_of(settings: RunSettings) -> int:
    """Return the number of devices of a run: by default one, because its steps depend on the number."""
    return 1 if settings.num_devices == "auto" else settings.num_devices
