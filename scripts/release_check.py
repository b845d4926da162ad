"""Check whether this version can be released: `python scripts/release_check.py [--tag v0.1.0]`.

The version must be that of the changelog's top heading, and of the tag if there is one. Wheel and source
distribution are built from the files tracked by git, and must contain all of them. Then each is installed in
a new environment, away from the sources, and demo 2 is run. This takes a few minutes, and downloads the
dependencies of `palm-torch` twice.
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
    """List the reasons why `version` cannot be released.

    Args:
        version: of the package.
        changelog: the text of CHANGELOG.md.
        tag: the git tag of the release; None if there is none yet, and then the top heading may say
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
        problems.append(f"CHANGELOG.md: the top heading says {heading['version']}, the package {version}")
    if tag is not None and tag != f"v{version}":
        problems.append(f"the tag should be 'v{version}', not {tag!r}")
    if tag is not None and heading["state"] == "unreleased":
        problems.append(f"CHANGELOG.md: {version} should have a date instead of 'unreleased'")
    return problems


def left_out(tracked: Iterable[str], packed: Iterable[str]) -> list[str]:
    """Return the tracked files that a distribution lacks, sorted."""
    return sorted(set(tracked) - set(packed))


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program without this program's import paths and return its output; exit if it fails."""
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
        sys.exit(f"{done.stdout}\nit ended with exit code {done.returncode}")
    return done.stdout


def build(tracked: list[str], folder: Path) -> tuple[Path, Path]:
    """Build the source distribution of only the tracked files, and the wheel from it; return both."""
    sources = folder / "sources"
    for name in tracked:
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, sources / name)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", sources, cwd=folder)
    shutil.rmtree(sources)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def content_problems(tracked: list[str], wheel: Path, sdist: Path) -> list[str]:
    """List the files that the distributions lack."""
    with tarfile.open(sdist) as archive:
        packed = [name.partition("/")[2] for name in archive.getnames()]
    with zipfile.ZipFile(wheel) as archive_of_wheel:
        modules = archive_of_wheel.namelist()
    of_palm = [name for name in tracked if name.startswith(("palm/", "paddlepalm/"))]
    return [
        *(f"{sdist.name} lacks {name}" for name in left_out(tracked, packed)),
        *(f"{wheel.name} lacks {name}" for name in left_out(of_palm, modules)),
    ]


def install_problems(artifact: Path, demos: Path, version: str, folder: Path) -> list[str]:
    """List the problems when `artifact` is installed in a new environment and demo 2 of `demos` is run."""
    environment = folder / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=folder)
    python = environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run(python, "-m", "pip", "install", "-q", "-c", demos / "constraints.txt", artifact, cwd=folder)
    place, *versions = run(python, "-c", LOOK, cwd=folder).splitlines()
    problems = []
    if not Path(place).resolve().is_relative_to(environment.resolve()):
        problems.append(f"{artifact.name}: palm is imported from {place}, not from the environment")
    if versions != [version, version]:
        problems.append(f"{artifact.name}: its version is {' and '.join(versions)}, not {version}")
    demo = demos / "demos" / "demo2" / "demo.py"
    output = run(python, demo, "--num_epochs", "0.05", "--save_path", folder / "out", cwd=folder)
    print(output.splitlines()[-1])
    if "exact match" not in output:
        problems.append(f"{artifact.name}: demo 2 did not print its exact match")
    shutil.rmtree(environment)
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if the version can be released, 1 otherwise."""
    parser = argparse.ArgumentParser(description="Check whether this version can be released.")
    parser.add_argument("--tag", help="the tag of the release, v<version>; the changelog then needs a date")
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
        shutil.rmtree(demos / "palm")  # so that the installed package is tested
        for artifact in (wheel, sdist):
            problems += install_problems(artifact, demos, version, folder)
    print("\n".join(problems) if problems else f"{version} can be released")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
