"""Ports of this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def wait_for(port: int, lives: Callable[[], bool] = lambda: True) -> None:
    """Wait, at most a minute, until somebody listens."""
    end = time.monotonic() + 60
    while time.monotonic() < end and lives():
        with socket.socket() as tried:
            if tried.connect_ex(("localhost", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port}")
