"""Start of a program: its arguments, its processes, and its error messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from palm.config import read_config
from palm.config.command_line import HelpRequested
from palm.config.printing import help_text
from palm.config.run import RunConfig
from palm.config.settings import RunSettings
from palm.controller.effort import choose_by_effort
from palm.controller.resolve import HELP, NO_SETTINGS, resolve
from palm.core.checks import raise_any, type_problems
from palm.core.errors import ExitCode, PalmError
from palm.core.numerics.device import device_of
from palm.parallel.failures import record_failure
from palm.parallel.group import join
from palm.parallel.launch import launch
from palm.pretrained.hub import settings_of_model


def read_run(
    config: str | Path | Mapping[str, Any],
    task_dir: str | Path,
    argv: Sequence[str] | None,
    for_train: bool,
    needs_tasks: bool,
) -> RunConfig:
    """Read and resolve a configuration with the arguments of `Controller`.

    `--help` prints all settings and exits. If `argv` is None, the program's own arguments are used, and a
    PalmError ends the program with exit code 2.
    """
    raise_any(_argument_problems(config, task_dir, argv))
    if argv is None:
        report_plainly()
    try:
        found = read_config(config, task_dir, argv, needs_tasks, settings_of_model, resolves_auto=for_train)
    except HelpRequested:
        print(help_text(HELP, NO_SETTINGS))  # noqa: T201
        raise SystemExit(0) from None
    if for_train:
        choose_by_effort(found)
    return resolve(found, for_train)


def _argument_problems(config: object, task_dir: object, argv: object) -> Iterator[str]:
    yield from type_problems((str, os.PathLike, Mapping), "a YAML file or a mapping", config=config)
    yield from type_problems((str, os.PathLike), "a folder", task_dir=task_dir)
    if argv is not None and (isinstance(argv, str) or not isinstance(argv, Sequence)):
        yield f"argv should be a list of words such as ['--batch_size', '8'], not {argv!r}"
    elif argv and (strange := [word for word in argv if not isinstance(word, str)]):
        yield f"argv should contain strings, not {strange[0]!r}; write {str(strange[0])!r}"


def start_processes(settings: RunSettings) -> None:
    """Start one process per device as configured, and join the others in this one."""
    device = device_of(settings.use_gpu, settings.device)
    launch(device, settings.num_devices)
    join(device, settings.process_group_timeout)


def report_plainly() -> None:
    """Replace `sys.excepthook`, so that a PalmError ends the program with its message and exit code 2."""
    before = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        record_failure(error)
        if not isinstance(error, PalmError):
            before(kind, error, trace)
            return
        sys.stdout.flush()
        # torch.distributed wraps this hook and captures what it writes to sys.stderr.
        stream = sys.__stderr__ or sys.stderr
        stream.write(f"error: {error}\n")
        sys.exit(ExitCode.REFUSED)

    sys.excepthook = report
