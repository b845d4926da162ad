"""What components remember of their making, and what they accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from palm.core.component import Component

if TYPE_CHECKING:
    from fractions import Fraction


class Lamp(Component):
    aliases: ClassVar[dict[str, str]] = {"w": "watts"}

    def __init__(self, watts: int, manual: Path | None = None, *, colour: str = "white") -> None:
        self.watts, self.manual, self.colour = watts, manual, colour


class Dimmer(Lamp):
    def __init__(self, level: float) -> None:
        super().__init__(w=40, colour="red")
        self.level = level


class Unreadable(Component):
    def __init__(self, share: Fraction, path: Any = "here") -> None:
        self.share, self.path = share, path


def test_settings_are_complete_and_under_their_own_names() -> None:
    assert Lamp(w=3).settings == {"watts": 3, "manual": None, "colour": "white"}


def test_a_subclass_is_remembered_by_its_own_arguments() -> None:
    dimmer = Dimmer(0.5)
    assert dimmer.settings == {"level": 0.5}
    assert (dimmer.watts, dimmer.colour) == (40, "red")


def test_text_becomes_a_path_where_a_path_is_declared() -> None:
    lamp = Lamp(3, "how/to.txt")  # type: ignore[arg-type]
    assert lamp.manual == Path("how/to.txt")
    assert lamp.settings["manual"] == Path("how/to.txt")


def test_one_parameter_under_two_spellings_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Lamp\(\).*'watts' twice"):
        Lamp(w=3, watts=4)  # type: ignore[call-arg]


def test_annotations_for_type_checkers_only_do_no_harm() -> None:
    assert Unreadable("1/2").settings == {"share": "1/2", "path": "here"}  # type: ignore[arg-type]
