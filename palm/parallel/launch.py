"""Restarting the program as one process per device, with `torchrun`."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from typing import Literal

import torch
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from palm.core.errors import ConfigError
from palm.core.logging import logger
from palm.core.process import is_program, program
from palm.parallel.group import is_launched

LAUNCHER = "PALM_LAUNCHER"
"""The environment variable with the PID of the process in which `launch` waits."""

SAVE_SECONDS = 30
"""Time between SIGTERM and the end of a process, the same as that of `torchrun`."""


def launch(device: torch.device, num_devices: int | Literal["auto"]) -> None:
    """Restart the running program as one process per device, wait for them, and exit with their status.

    Does nothing if one device is used, or if a launcher has started this process.

    Args:
        device: the kind of device.
        num_devices: number of devices; 'auto': all visible GPUs, or one CPU.

    Raises:
        ConfigError: fewer GPUs are visible, or this is not a program that can be restarted.
        SystemExit: the processes have ended.
    """
    if is_launched():
        if LAUNCHER in os.environ and sys.platform != "win32":  # whose `getppid` names dead processes too
            _end_with(int(os.environ[LAUNCHER]))
        return
    count = count_devices(device, num_devices)
    if count == 1:
        return
    if not is_program():
        if num_devices == "auto":
            logger.info("%d GPUs are visible; using one, because the program is not in a file", count)
            return
        raise ConfigError(
            f"num_devices: {count} processes need a program in a file; save it and run "
            f"`python program.py`, or `torchrun --nproc-per-node {count} program.py`"
        )
    logger.info("%d devices: starting one process for each", count)
    if device.type == "cpu":
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count)))
    # Signals, including Slurm's, are passed on to the processes, which have half a minute to save.
    handled = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", handled)
    os.environ[LAUNCHER] = str(os.getpid())
    from torch.distributed.run import main as torchrun

    try:
        torchrun(["--standalone", f"--nproc-per-node={count}", *program(), *sys.argv[1:]])
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        raise SystemExit(first.exitcode if first.exitcode > 0 else 1) from None
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from None
    raise SystemExit(0)


@functools.cache
def _end_with(launcher: int) -> None:
    """End this process if its launcher dies without ending it, as the launcher would have done."""

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SAVE_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def count_devices(device: torch.device, num_devices: int | Literal["auto"]) -> int:
    """Return the number of processes, each with its own device; see `launch` for arguments and errors."""
    visible = torch.cuda.device_count()
    if num_devices == "auto":
        return visible if device.type == "cuda" else 1
    if num_devices < 1:
        raise ConfigError(f"num_devices should be 1 or more, or auto, not {num_devices!r}")
    if device.type == "cuda" and num_devices > visible:
        raise ConfigError(f"num_devices is {num_devices}, but only {visible} GPUs are visible")
    return num_devices
