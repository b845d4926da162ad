"""Scripts in processes of their own that begin with PyTorch and palm loaded, two CPU seconds earlier each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any

LOADED = [
    *("torch._dynamo", "torch.distributed.fsdp", "transformers.models.bert.modeling_bert"),
    *("palm.controller", "palm.trainer", "palm.cli.command"),
]
"""Modules that scripts begin with; those that are not installed are left out."""


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
    how = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(how)
    if how == "forkserver":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # the server's, which its scripts inherit
        context.set_forkserver_preload(LOADED)
    usual = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {**usual, **variables}
    process = context.Process(
        target=_run, args=([str(script), *arguments], folder, output, errors, environment)
    )
    process.start()
    process.join(300)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")


def _run(
    words: list[str], folder: Path, output: Path, errors: Path | None, environment: dict[str, str]
) -> None:
    gc.freeze()  # collections would copy the pages of what all scripts have in common
    os.environ.clear()
    os.environ.update(environment | {"OMP_NUM_THREADS": "1"})
    os.chdir(folder)
    os.dup2(_opened(output), 1)
    os.dup2(_opened(errors) if errors else 1, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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


def _opened(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
