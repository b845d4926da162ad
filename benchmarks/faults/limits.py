"""Give every command few descriptors, little memory, or another user than root, and see how it ends.

    python benchmarks/faults/limits.py [--descriptors 8] [--memory 600 1200 1500] [--user nobody]

A trial is good if the command ends with success or with an error of palm, every file that was there is as
it was, and the same command without the limit succeeds afterwards, with nothing half-written left. Memory is
the address space in MB, of which Python with PyTorch takes most. The user gets a folder of their own, in
which every command has to succeed, and one that belongs to root; the interpreter must be one that they may
read. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.faults import tiny_run
from benchmarks.faults.kills import MINE, Trials

ROOT = Path(__file__).parents[2]
Limit = Callable[[], object]


def commands(data: Path, place: Path) -> dict[str, list[str]]:
    """The commands; what they write lies in a place, and what they read in the folder of the data."""
    model = str(data / "run" / "colour" / "infer_model")
    config, alone, many = (str(data / name) for name in ("config.yaml", "alone.yaml", "many.tsv"))
    return {
        "check": ["check", config, "--save_path", str(place / "new"), "--output", str(place / "check.json")],
        "train": ["train", config, "--save_path", str(place / "new")],
        "resume": ["train", config, "--save_path", str(place / "stopped"), "--resume", "auto"],
        "predict": ["predict", "--model", model, "--input", many, "--output", str(place / "predicted")],
        "evaluate": ["evaluate", "--model", model, "--input", str(data / "colour.tsv")],
        "report": ["report", str(data / "run"), "--output", str(place / "run.html"), "--no-predict"],
        "export": ["export", model, "--output", str(place / "exported"), "--to", "hf"],
        "convert": ["convert", model, "--output", str(place / "converted")],
        "compare": ["compare", alone, "--seeds", "2", "--output", str(place / "compared")],
    }


def prepare(data: Path) -> None:
    """Data, configurations, and a run."""
    tiny_run.write_files(data)
    tiny_run.write_many(data, 40)
    short = tiny_run.settings(data, data / "run", num_epochs=1)
    (data / "config.yaml").write_text(json.dumps(short), encoding="utf-8")
    (data / "alone.yaml").write_text(json.dumps({**short, "target_tag": [1, 0]}), encoding="utf-8")
    tiny_run.palm.Controller(data / "config.yaml", argv=[]).train()
    tiny_run.palm.write_report(data / "run")


def fresh(data: Path, place: Path) -> dict[Path, bytes]:
    """Make a place with a file of the user's and a run that was stopped; what nobody may change."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(data / "run", place / "stopped")
    for name in ("colour", "words", "best", "step_10"):
        shutil.rmtree(place / "stopped" / name, ignore_errors=True)
    (place / "notes.txt").write_text(MINE, encoding="utf-8")
    files = [place / "notes.txt", *(file for file in data.rglob("*") if file.is_file())]
    return {file: file.read_bytes() for file in files}


def run(words: list[str], python: str, limit: Limit | None = None) -> subprocess.CompletedProcess[str]:
    """Run `palm` under a limit."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    return subprocess.run(
        [python, "-m", "palm", *words],
        env={**environment, "PALM_DATA_CACHE": "", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        errors="replace",
        preexec_fn=limit,
        timeout=600,
        check=False,
    )


def trial(
    name: str, data: Path, place: Path, python: str, limit: Limit, owner: tuple[int, int] | None
) -> list[str]:
    """What is wrong after a command under a limit, in a folder of an owner, and after the same without."""
    before = fresh(data, place)
    if owner is not None:
        for each in (place, *place.rglob("*")):
            os.chown(each, *owner)
    words = commands(data, place)[name]
    ended = run(words, python, limit)
    last = ended.stderr.strip().splitlines()[-1:] or [""]
    is_error = ended.returncode == 2 and "error: " in ended.stderr and "Traceback" not in ended.stderr
    wrong = [] if ended.returncode == 0 or is_error else [f"exit code {ended.returncode}: {last[0][:300]}"]
    print(f"{name}: {ended.returncode} {last[0][:160]}", flush=True)
    if owner is not None and ended.returncode:
        wrong.append(f"refused: {last[0][:300]}")
    wrong += [f"changed: {file}" for file, content in before.items() if file.read_bytes() != content]
    if ended.returncode:
        again = run(words, python)
        wrong += [] if again.returncode == 0 else [f"afterwards: {again.stderr.strip()[-300:]}"]
    return wrong + [f"left over: {left}" for left in tiny_run.temporaries(place)]


def limits(options: argparse.Namespace) -> Iterator[tuple[str, Limit, tuple[int, int] | None]]:
    """Kind of trial, the limit, and whose the place is if not root's."""
    for number in options.descriptors:
        limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (number, number))
        yield f"{number} descriptors", limit, None
    for size in options.memory:
        limit = partial(resource.setrlimit, resource.RLIMIT_AS, (size << 20, size << 20))
        yield f"{size} MB of address space", limit, None
    if options.user:
        about = pwd.getpwnam(options.user)
        become = partial(_become, about.pw_uid, about.pw_gid)
        yield "another user, in their folder", become, (about.pw_uid, about.pw_gid)
        yield "another user, in root's folder", become, None


def _become(user: int, group: int) -> None:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)


def main() -> int:
    """Run the trials; 1 if one went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--descriptors", type=int, nargs="*", default=[8])
    parser.add_argument("--memory", type=int, nargs="*", default=[600, 1200, 1500])
    parser.add_argument("--user")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that the user may read")
    parser.add_argument("--only", nargs="*", help="these commands")
    options = parser.parse_args()
    trials = Trials()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder).resolve() / "data"
        data.parent.chmod(0o755)
        prepare(data)
        for kind, limit, owner in limits(options):
            for name in options.only or commands(data, data):
                wrong = trial(name, data, data.parent / "place", options.python, limit, owner)
                trials.add(kind, [f"{name}: {line}" for line in wrong])
    return trials.report()


if __name__ == "__main__":
    sys.exit(main())
