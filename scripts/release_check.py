"""Whether this version could be released: `python scripts/release_check.py [--tag v0.1.0]`.

The version must be that of the changelog's top heading, and of the tag where there is one. Wheel and source
distribution are built from the files that git knows and must have them all; then each is installed in an
environment of its own, away from the sources, and trains and answers with demo 2. It takes a few minutes, and
what `pip install palm-torch` downloads, twice.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<state>unreleased|\d{4}-\d{2}-\d{2})\)$")
LOOK = (
    "import importlib.metadata, palm; print(palm.__file__, palm.__version__, "
    "importlib.metadata.version('palm-torch'), sep='\\n')"
)


def version_problems(version: str, changelog: str, tag: str | None) -> list[str]:
    """What keeps `version` from being released; empty where all is well.

    Args:
        version: that of the package.
        changelog: the text of CHANGELOG.md.
        tag: the git tag that would release it; None before there is one, when the top heading may still say
            "unreleased".
    """
    top = next((line for line in changelog.splitlines() if line.startswith("## ")), "nothing")
    heading = HEADING.match(top)
    if heading is None:
        return [
            f"CHANGELOG.md: the top heading should be '## <version> (unreleased)' or with a date, not {top!r}"
        ]
    problems = []
    if heading["version"] != version:
        problems.append(f"CHANGELOG.md: the top heading is of {heading['version']}, the package of {version}")
    if tag is not None and tag != f"v{version}":
        problems.append(f"the tag should be 'v{version}', not {tag!r}")
    if tag is not None and heading["state"] == "unreleased":
        problems.append(f"CHANGELOG.md: {version} should have a date in place of 'unreleased'")
    return problems


def left_out(tracked: Iterable[str], packed: Iterable[str]) -> list[str]:
    """The files that git knows and a distribution lacks, in order."""
    return sorted(set(tracked) - set(packed))


def run(*command: str | Path, cwd: Path) -> str:
    """What a program prints, when it is run without this program's import paths; it must end well."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    print("$", *command, flush=True)
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**environment, "PYTHONUTF8": "1", "PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nit ended with {done.returncode}")
    return done.stdout


def build(tracked: list[str], folder: Path) -> tuple[Path, Path]:
    """The wheel and the source distribution of the tracked files alone; the wheel is made from the latter."""
    sources = folder / "sources"
    for name in tracked:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, sources / name)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", sources, cwd=folder)
    shutil.rmtree(sources)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def content_problems(tracked: list[str], wheel: Path, sdist: Path) -> list[str]:
    """Which files the distributions lack."""
    with tarfile.open(sdist) as archive:
        packed = [name.partition("/")[2] for name in archive.getnames()]
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        modules = archive_of_wheel.namelist()
    of_palm = [name for name in tracked if name.startswith("palm/")]
    return [
        *(f"{sdist.name} lacks {name}" for name in left_out(tracked, packed)),
        *(f"{wheel.name} lacks {name}" for name in left_out(of_palm, modules)),
    ]


def install_problems(artifact: Path, demos: Path, version: str, folder: Path) -> list[str]:
    """What is wrong where `artifact` is installed in a fresh environment and demo 2 of `demos` is run."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=folder)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(python, "-m", "pip", "install", "-q", "-c", demos / "constraints.txt", artifact, cwd=folder)
    place, *versions = run(python, "-c", LOOK, cwd=folder).splitlines()
    problems = []
    if not Path(place).resolve().is_relative_to(environment.resolve()):
        problems.append(f"{artifact.name}: palm is imported from {place}, not from the environment")
    if versions != [version, version]:
        problems.append(f"{artifact.name}: it says it is {' and '.join(versions)}, not {version}")
    demo = demos / "demos" / "demo2" / "demo.py"
    output = run(python, demo, "--num_epochs", "0.05", "--save_path", folder / "out", cwd=folder)
    print(output.splitlines()[-1])
    if "exact match" not in output:
        problems.append(f"{artifact.name}: demo 2 did not print its exact match")
    shutil.rmtree(environment)
    return problems


def main(arguments: list[str] | None = None) -> int:
    """0 if the version could be released, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Whether this version could be released.")
    parser.add_argument("--tag", help="the tag that releases it, v<version>; the changelog needs a date then")
    tag = parser.parse_args(arguments).tag
    version = runpy.run_path(str(ROOT / "palm" / "core" / "version.py"))["__version__"]
    problems = version_problems(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag)
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        wheel, sdist = build(tracked, folder)
        problems += content_problems(tracked, wheel, sdist)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        demos = folder / sdist.name.removesuffix(".tar.gz")
        shutil.rmtree(demos / "palm")  # what runs is what was installed
        for artifact in (wheel, sdist):
            problems += install_problems(artifact, demos, version, folder)
    print("\n".join(problems) if problems else f"{version} is fit for release")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
