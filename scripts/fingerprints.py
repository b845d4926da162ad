"""Fingerprints of what palm computes, to show that a change of the code changes no result.

    python scripts/fingerprints.py CHECKOUT OUT.json [--demos 1,2] [--no-golden]
    python scripts/fingerprints.py --compare BEFORE.json AFTER.json

The first form runs the demos and the golden tests of a checkout, from a copy, each in one process with one
thread, and writes what they gave: the loss of every backward pass with all digits, the SHA-256 of every saved
tensor, prediction files, evaluations, configurations, exit codes. The second lists what differs, and ends
with 1 if anything does; what only one file holds by choice is named and not compared. Demos and tests are
run from the outside; no module of palm is named here.

Left out, because it may differ between two equal runs or is meant to: speeds and times, `manifest.json`
(checksums of the files that are compared themselves), of a checkpoint's `state.json` the identity (`run`)
and `launch`, and what is told to people: model cards, what the `config.json` of a saved model says of its
training, and the origins in a configuration.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

HOOKS = Path(__file__).with_name("fingerprint_hooks.py")
NEEDED = ("palm", "configs", "demos", "data", "tests", "scripts", "docs", "benchmarks", "pyproject.toml")
NEEDED += ("README.md", "CHANGELOG.md", "LICENSE", "constraints.txt", "download_models.py")

CONTROLLER = ("--save_every_n_steps", "100")
DEMOS: dict[str, tuple[str, tuple[str, ...]]] = {
    "demo1": ("demo1", (*CONTROLLER, "--dev_file", "data/mrqa/dev.json")),
    "demo2": ("demo2", CONTROLLER),
    "demo3": ("demo3", CONTROLLER),
    "demo4": ("demo4", ()),
    "demo5": ("demo5", ()),
    "demo6": ("demo6", ()),
    "demo7": (
        "demo7",
        (*CONTROLLER, "--dev_file", "data/tagging/dev.tsv", "--use_ema", "--ema_decay", "0.99"),
    ),
    "demo8": ("demo8", ()),
    "demo1 with a wrong setting": ("demo1", ("--learning_rate", "fast")),
    "demo1 with an unknown setting": ("demo1", ("--learning_rat", "1e-4")),
    "demo1 --help": ("demo1", ("--help",)),
}
"""What is run -> the demo and its arguments; paths count from the copy."""

SHOWN = 8
SKIPPED_STATE = ("run", "launch")


def copy_of(checkout: Path, root: Path) -> None:
    """Copy what demos and tests need, and put the recorded material beside it."""
    for name in NEEDED:
        source = checkout / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "output_model", "*_output", "*.egg-info")
            shutil.copytree(source, root / name, ignore=ignored)
        elif source.is_file():
            shutil.copy(source, root / name)
    shared = checkout.resolve().parent / "shared"
    if shared.exists():
        (root.parent / "shared").symlink_to(shared.resolve())


def environment(root: Path, temporary: Path) -> dict[str, str]:
    """One thread, no cache of earlier runs, and the palm of the copy."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PALM_", "PYTEST"))}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join((str(root), str(HOOKS.parent)))
    cache = tempfile.mkdtemp(prefix="cache", dir=temporary)
    own = {
        "PYTHONPATH": paths,
        "PALM_DATA_CACHE": cache,
        "FINGERPRINT_ROOT": str(root),
        "PYTHONHASHSEED": "0",
    }
    return {**kept, **threads, **own, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}


def run_demo(name: str, root: Path, temporary: Path) -> dict[str, Any]:
    """The fingerprints of one demo."""
    demo, arguments = DEMOS[name]
    output, record = root / "output" / name.replace(" ", "_"), temporary / "record.json"
    record.unlink(missing_ok=True)
    before = files(root)
    done = subprocess.run(
        [sys.executable, HOOKS, record, root / "demos" / demo / "demo.py", "--save_path", output, *arguments],
        cwd=root,
        env=environment(root, temporary),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode and name == demo:
        print(done.stderr, file=sys.stderr)
    watched = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    if name != demo:
        return {"exit": done.returncode, "losses": watched.get("losses")}  # messages may become better ones
    new = sorted(files(root) - before)
    return {
        "exit": done.returncode,
        "losses": watched.get("losses"),
        "printed": [without(root, line) for line in watched.get("printed", [])],
        "logged losses": logged(done.stdout + done.stderr),  # stderr since palm logs there
        "files": {
            path.relative_to(root).as_posix(): contents(path, root)
            for path in new
            if path.name != "README.md"
        },
    }


def files(root: Path) -> set[Path]:
    """All files but Python's own."""
    return {path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def without(root: Path, text: str) -> str:
    """A text in which the copy's place does not occur."""
    return text.replace(str(root.resolve()), "<copy>").replace(str(root), "<copy>")


def logged(output: str) -> list[str]:
    """The numbers of the lines about steps, without the speed: step, steps, epoch, loss."""
    lines = [line for line in output.splitlines() if re.search(r"step \d+/\d+ .*loss: ", line)]
    return [" ".join(re.findall(r"\d[\d.]*", line.split(", speed")[0])) for line in lines]


def contents(path: Path, root: Path) -> Any:
    """What of a file is compared."""
    if path.name == "manifest.json":
        return None
    if path.suffix == ".safetensors":
        return tensors(path)
    if path.suffix not in (".json", ".jsonl", ".yaml"):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    text = without(root, path.read_text(encoding="utf-8"))
    if path.name == "evaluation.jsonl":
        return [untimed(json.loads(line)) for line in text.splitlines()]
    if path.name == "state.json":
        return {key: value for key, value in json.loads(text).items() if key not in SKIPPED_STATE}
    if path.name == "config.json":
        told = ("training", "trained")  # the latter is an earlier palm's word for a part of the former
        return {key: value for key, value in json.loads(text).items() if key not in told}
    if path.suffix == ".yaml":
        return [line.partition("  # from ")[0] for line in text.splitlines()]
    return hashlib.sha256(text.encode()).hexdigest()


def untimed(value: Any) -> Any:
    """A JSON value without entries that hold a time."""
    if isinstance(value, dict):
        timed = re.compile(r"time|seconds|speed|per_second|duration|date")
        return {key: untimed(item) for key, item in value.items() if not timed.search(key)}
    return [untimed(item) for item in value] if isinstance(value, list) else value


def tensors(path: Path) -> dict[str, str]:
    """Name -> dtype, shape and SHA-256 of the bytes of every tensor in a safetensors file, sorted by name."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in sorted(header.items()):
        first, last = (8 + length + offset for offset in entry["data_offsets"])
        digest = hashlib.sha256(data[first:last]).hexdigest()
        found[name] = f"{entry['dtype']}{entry['shape']} {digest}"
    return found


def run_golden(root: Path, temporary: Path) -> dict[str, Any]:
    """What the tests that speak of golden files compare, by the name of the test: see `Recorder`."""
    tests = sorted(
        path for path in (root / "tests").rglob("test_*.py") if "golden" in path.read_text("utf-8").lower()
    )
    record = temporary / "golden.json"
    options = ["-p", "fingerprint_hooks", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--hypothesis-seed=0", *tests],
        cwd=root,
        env={**environment(root, temporary), "FINGERPRINT_RECORD": str(record)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        print(done.stdout[-5000:], done.stderr[-2000:], file=sys.stderr)
    last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1]
    print(f"golden: {len(tests)} test files: {last}", flush=True)
    return dict(json.loads(record.read_text(encoding="utf-8"))) if record.is_file() else {}


def measure(checkout: Path, names: list[str], golden: bool) -> dict[str, Any]:
    """All fingerprints of a checkout."""
    import torch

    machine = f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}"
    result: dict[str, Any] = {"machine": machine, "demos": {}}
    with tempfile.TemporaryDirectory(prefix="fingerprints") as folder:
        temporary = Path(folder)
        root = temporary / "copy"
        root.mkdir()
        copy_of(checkout, root)
        for name in names:
            since = time.perf_counter()
            result["demos"][name] = found = run_demo(name, root, temporary)
            seconds, steps = time.perf_counter() - since, len(found["losses"] or [])
            print(f"{name}: exit {found['exit']}, {steps} backward passes, {seconds:.0f} s", flush=True)
        if golden:
            since = time.perf_counter()
            result["golden"] = run_golden(root, temporary)
            print(f"golden: {len(result['golden'])} tests, {time.perf_counter() - since:.0f} s", flush=True)
    return result


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """Nested dicts and lists as `place -> leaf`."""
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in flat(item, f"{place} / {key}").items()}
    if isinstance(value, list) and value:
        return {k: v for i, item in enumerate(value) for k, v in flat(item, f"{place} [{i}]").items()}
    return {place.removeprefix(" / "): value}


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs, a few lines of every part; how many places do."""
    total, compared = 0, 0
    for part in ("machine", "demos", "golden"):
        if part in before and part in after:
            for name, old, new in _pairs(part, before[part], after[part]):
                compared += len(flat(old))
                total += _report(f"{part} / {name}", flat(old), flat(new))
        elif part in before or part in after:
            print(f"{part}: only in {'the first' if part in before else 'the second'} file, not compared")
    print(f"{total} differences in {compared} compared values")
    return total


def _pairs(part: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    """Both sides of every demo or test; what is not compared is named.

    A demo that one file lacks was not asked for. A test that the second file lacks is a difference, since
    nobody can choose tests; one that only the second has is new.
    """
    if part == "machine":
        return [("", before, after)]
    for name in sorted(after.keys() - before.keys()):
        print(f"{part} / {name}: only in the second file, not compared")
    if part == "golden":
        return [(name, counted(old), counted(after.get(name, "missing"))) for name, old in before.items()]
    for name in sorted(before.keys() - after.keys()):
        print(f"{part} / {name}: only in the first file, not compared")
    return [(name, before[name], after[name]) for name in before if name in after]


def counted(test: Any) -> Any:
    """A golden test with the number of each of its records in place of their order."""
    if not isinstance(test, dict):
        return test
    return {**test, "records": dict(Counter(record for run in test["records"] for record in run))}


def _report(title: str, before: dict[str, Any], after: dict[str, Any]) -> int:
    absent = "(absent)"
    places = [p for p in {**before, **after} if before.get(p, absent) != after.get(p, absent)]
    for place in places[:SHOWN]:
        print(f"{title} / {place}: {before.get(place, absent)!r} -> {after.get(place, absent)!r}")
    if len(places) > SHOWN:
        print(f"{title}: … and {len(places) - SHOWN} more places")
    return len(places)


def demo_names(text: str) -> list[str]:
    """`1,2` as names of what is run; everything where it is empty."""
    numbers = [number.strip() for number in text.split(",") if number.strip()]
    return [name for name in DEMOS if not numbers or any(name.split()[0] == f"demo{n}" for n in numbers)]


def main() -> int:
    """Measure or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkout", type=Path, nargs="?", help="the folder that holds palm, demos, data, tests"
    )
    parser.add_argument("out", type=Path, nargs="?", help="the JSON file to write")
    parser.add_argument("--demos", default="", help="numbers of the demos to run, by default all: 1,2,8")
    parser.add_argument("--only-golden", action="store_true", help="run no demos")
    parser.add_argument("--no-golden", action="store_true", help="leave the golden tests out")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    options = parser.parse_args()
    if options.compare:
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in options.compare)
        return 1 if compare(before, after) else 0
    if options.checkout is None or options.out is None:
        parser.error("give CHECKOUT and OUT.json, or --compare BEFORE.json AFTER.json")
    demos = [] if options.only_golden else demo_names(options.demos)
    result = measure(options.checkout, demos, not options.no_golden)
    options.out.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
