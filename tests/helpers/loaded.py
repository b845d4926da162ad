"""Scripts in processes of their own that begin with PyTorch and palm loaded, two CPU seconds earlier each."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

LOADED = ["torch._dynamo", "palm.controller", "palm.trainer", "palm.cli.command"]


def run_script(script: Path, folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Run a script in a folder, on one thread, as `python SCRIPT ARGUMENTS` does.

    Returns:
        Its exit status, and what it wrote on both outputs.
    """
    output = folder / "output.txt"
    how = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(how)
    if how == "forkserver":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the server's, which its scripts inherit
        context.set_forkserver_preload(LOADED)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    process = context.Process(target=_run, args=([str(script), *arguments], folder, output, environment))
    process.start()
    process.join(300)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")


def _run(words: list[str], folder: Path, output: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment | {"OMP_NUM_THREADS": "1"})
    os.chdir(folder)
    written = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(written, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
