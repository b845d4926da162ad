"""Settings and values that palm no longer has are refused with the place and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import tiny
from palm.config.printing import listed
from palm.config.removed import REMOVED
from palm.controller.controller import Controller
from palm.controller.plan import HELP, NO_SETTINGS
from palm.core.errors import ConfigError


def test_a_removed_setting_is_refused_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REMOVED, "old_name", "write new_name")
    config = tiny.config(tiny.write_files(tmp_path), "cls")
    with pytest.raises(ConfigError) as caught:
        Controller(config, argv=["--old_name", "3"])
    (problem,) = caught.value.problems
    assert problem.startswith("--old_name: ")
    assert problem.endswith(": write new_name")
    config["tasks"]["cls"]["old_name"] = 3
    with pytest.raises(ConfigError) as caught:
        Controller(config, argv=[])
    (problem,) = caught.value.problems
    assert "cls" in problem
    assert problem.endswith(": write new_name")


def test_a_removed_value_is_refused_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED, "precision: sometimes", "use precision: fp32")
    config = tiny.config(tiny.write_files(tmp_path), "cls", precision="sometimes")
    with pytest.raises(ConfigError) as caught:
        Controller(config, argv=[])
    (problem,) = caught.value.problems
    assert problem.endswith(": use precision: fp32")


def test_no_setting_is_both_there_and_removed() -> None:
    there = {
        name for group in HELP.values() for each in listed(group, NO_SETTINGS) for name in each.spellings
    }
    assert there.isdisjoint(REMOVED)
