"""Print the versions that palm finds, and unpack wheels of packages that are missing or too old.

    python scripts/gpu_day_packages.py build/wheels FOLDER/packages

Wheels are zip files, so neither pip nor a network is needed.
"""

from __future__ import annotations

import re
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tomllib

OTHERS = (
    "accelerate",
    "execnet",
    "iniconfig",
    "packaging",
    "pluggy",
    "psutil",
    "pygments",
    "sortedcontainers",
)
"""Packages that tests, benchmarks and their own dependencies import."""


ESSENTIAL = ("torch", "numpy", "pyyaml", "tokenizers", "safetensors", "pytest")
"""Packages without which nothing can be measured."""


def number(text: str) -> tuple[int, ...]:
    """Return a version as numbers that can be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def needed() -> dict[str, str]:
    """Return package -> the lowest version that palm accepts; "0" for any."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = dict.fromkeys(OTHERS, "0")
    extra = project["optional-dependencies"]
    for line in (*project["dependencies"], *extra["test"], *extra["hf"]):
        name, _, lowest = line.partition(">=")
        found[name.strip()] = lowest.partition(",")[0] or "0"
    return found


def installed(name: str) -> str | None:
    """Return the version of an installed package; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    """Print a line per package, and unpack what is missing."""
    wheels, target = map(Path, sys.argv[1:])
    print(f"python {sys.version.split()[0]}")
    lacking = []
    for name, lowest in needed().items():
        own = installed(name)
        is_good = own is not None and number(own) >= number(lowest)
        if not is_good:
            pattern = f"{name.replace('-', '_')}-*.whl"
            for wheel in sorted(wheels.glob(pattern))[-1:]:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(target)
                own = f"{own or 'missing'}, now {wheel.name.split('-')[1]} from {wheel.name}"
                is_good = True
        print(f"{name} {own}" if is_good else f"{name} {own or 'missing'}; palm needs {lowest} or later")
        if not is_good and name in ESSENTIAL:
            lacking.append(name)
    if lacking:
        sys.exit(f"{', '.join(lacking)} missing or too old; fetch wheels with scripts/gpu_day.sh --wheels")


if __name__ == "__main__":
    main()
