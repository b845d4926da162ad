"""Scripts in processes of their own that begin with PyTorch and palm loaded, two CPU seconds earlier each."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LOADED = [
    *("torch._dynamo", "transformers.models.bert.modeling_bert"),
    *("palm.controller", "palm.compat", "palm.cli.command", "palm.experiments.grid"),
]
"""Modules that scripts begin with; those that are not installed are left out."""

HAS_FORKS = "forkserver" in multiprocessing.get_all_start_methods()

CLIENT = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    asked = [sys.argv[2:], os.getcwd(), dict(os.environ)]
    socket.send_fds(server, [json.dumps(asked).encode()], [0, 1, 2])
    server.shutdown(socket.SHUT_WR)
    status = int(server.recv(8))
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""Stands for a program: it gives its arguments and files to a loaded process, and ends with its status."""


def run_script(
    script: Path, folder: Path, *arguments: str, errors: Path | None = None, **variables: str
) -> tuple[int | None, str]:
    """Run a script in a folder, on one thread, as `python SCRIPT ARGUMENTS` does.

    Args:
        script: its file.
        folder: its working directory, in which `output.txt` is written.
        arguments: those of its command line.
        errors: a file for its standard error; otherwise that goes into its output.
        variables: what its environment has beside that of pytest.

    Returns:
        Its exit status and its output.
    """
    output = folder / "output.txt"
    environment = {**os.environ, **variables}
    process = _process(_run_to_files, [str(script), *arguments], folder, environment, (output, errors))
    process.join(300)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")


@contextmanager
def python_loaded() -> Iterator[list[str]]:
    """Give words that run a script as `python` does, in a process that begins with everything loaded."""
    if not HAS_FORKS:
        yield [sys.executable]
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(address := f"{folder}/socket")
        server.listen()
        threading.Thread(target=_serve, args=[server], daemon=True).start()
        yield [sys.executable, "-c", CLIENT, address]
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    """Run what clients ask for, one after the other, until the socket is shut down."""
    with suppress(OSError), server:
        while True:
            connection, _ = server.accept()
            _answer(connection)


def _answer(connection: socket.socket) -> None:
    with connection:
        start, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        files = [Connection(number) for number in descriptors]
        words, folder, environment = json.loads(start + connection.makefile("rb").read())
        process = _process(_run_on_files, words, Path(folder), environment, files)
        for file in files:
            file.close()
        process.join()
        connection.send(str(process.exitcode).encode())


def _process(target: Any, words: list[str], folder: Path, environment: dict[str, str], files: Any) -> Any:
    context: Any = multiprocessing.get_context("forkserver" if HAS_FORKS else "spawn")
    if HAS_FORKS:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the server's, which its scripts inherit
        context.set_forkserver_preload(LOADED)
    given = {name: value for name, value in environment.items() if not name.startswith("PYTEST")}
    process = context.Process(target=target, args=(words, folder, given, files))
    process.start()
    return process


def _run_to_files(
    words: list[str], folder: Path, environment: dict[str, str], files: tuple[Path, Path | None]
) -> None:
    output, errors = files
    written = _opened(output)
    nothing = os.open(os.devnull, os.O_RDONLY)
    _run(words, folder, environment, [nothing, written, _opened(errors) if errors else written])


def _opened(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def _run_on_files(
    words: list[str], folder: Path, environment: dict[str, str], files: list[Connection]
) -> None:
    _run(words, folder, environment, [file.fileno() for file in files])


def _run(words: list[str], folder: Path, environment: dict[str, str], files: list[int]) -> None:
    """Run a script on open files, which become the standard ones."""
    gc.freeze()  # collections would copy the pages of what all scripts have in common
    os.environ.clear()
    os.environ.update(environment | {"OMP_NUM_THREADS": "1"})
    os.chdir(folder)
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin = os.fdopen(0, closefd=False)
    os.fsync = lambda _: None  # nor does pytest's process wait for the disk
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())  # palm's may end with a status of its own
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
