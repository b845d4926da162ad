"""Programs in `scripts/`: when a version is fit for release, and the packages of a machine with a GPU."""

from __future__ import annotations

import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import palm

ROOT = Path(__file__).resolve().parents[2]
DATED = "# Changelog\n\nAbout it.\n\n## 1.2.0 (2026-12-01)\n\n## 1.1.0 (2026-11-01)\n"
OPEN = DATED.replace("2026-12-01", "unreleased")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "release_check.py"))


@pytest.mark.parametrize(
    ("version", "changelog", "tag", "problems"),
    [
        ("1.2.0", OPEN, None, []),
        ("1.2.0", DATED, None, []),
        ("1.2.0", DATED, "v1.2.0", []),
        ("1.2.0", OPEN, "v1.2.0", [("CHANGELOG.md", "1.2.0", "a date", "'unreleased'")]),
        ("1.2.0", DATED, "1.2.0", [("tag", "'v1.2.0'", "'1.2.0'")]),
        ("1.1.0", OPEN, None, [("CHANGELOG.md", "1.2.0", "1.1.0")]),
        ("1.2.0", "## Unreleased\n", None, [("CHANGELOG.md", "'## <version> (unreleased)'")]),
    ],
)
def test_version_changelog_and_tag_agree(
    script: dict[str, Any], version: str, changelog: str, tag: str | None, problems: list[tuple[str, ...]]
) -> None:
    found = script["version_problems"](version, changelog, tag)
    for line, values in zip(found, problems, strict=True):
        assert all(value in line for value in values)


def test_the_changelog_is_of_this_version(script: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert script["version_problems"](palm.__version__, changelog, None) == []


# The packages of a machine: what is missing is unpacked from wheels, what is there stays.


PROGRAM = ROOT / "scripts" / "gpu_day_packages.py"
WITHOUT_SITE = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


def packages(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [str(PROGRAM), str(folder / "wheels"), str(folder / "packages")]
    return subprocess.run(
        [sys.executable, *options, "-c", WITHOUT_SITE, *words], cwd=ROOT, capture_output=True, text=True
    )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the program reads pyproject.toml with tomllib")
def test_missing_packages_come_from_wheels(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "pytest-99.1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pytest/__init__.py", "marker = 99")
    # -S: no installed packages are seen, as on a bare machine.
    done = packages(tmp_path, "-S")
    assert "pytest missing, now 99.1 from pytest-99.1-py3-none-any.whl" in done.stdout.splitlines()
    assert (tmp_path / "packages" / "pytest" / "__init__.py").read_text(encoding="utf-8") == "marker = 99"
    assert "torch missing; palm needs 2.6 or later" in done.stdout.splitlines()
    assert done.returncode == 1
    assert done.stderr.startswith("torch, numpy, pyyaml, safetensors, tokenizers missing or too old")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the program reads pyproject.toml with tomllib")
def test_what_is_there_stays(tmp_path: Path) -> None:
    done = packages(tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"python {sys.version.split()[0]}" in done.stdout
    assert not (tmp_path / "packages").exists()
