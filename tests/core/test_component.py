"""What components remember of their making, and what they accept."""

from __future__ import annotations

import functools
import inspect
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from palm.config.conversion import convert_value, settings_of
from palm.config.files import Plain, Setting
from palm.core.component import Component, PositiveFloat, PositiveInt, Probability, Registry
from palm.core.errors import ConfigError
from palm.core.saved import describe


class Lamp(Component):
    def __init__(self, watts: int, manual: Path | None = None, *, is_red: bool = False, **own: Any) -> None:
        self.watts, self.manual, self.is_red, self.own = watts, manual, is_red, own


class OldLamp(Lamp):
    stands_for = Lamp

    def __init__(self, power: int, phase: str = "train") -> None:
        super().__init__(power)
        self.phase = phase


class OldDesk(OldLamp):
    pass


def test_settings_are_complete() -> None:
    assert Lamp(3).settings == {"watts": 3, "manual": None, "is_red": False}
    assert Lamp(3, socket="b").settings == {"watts": 3, "manual": None, "is_red": False, "socket": "b"}


def test_a_class_that_stands_for_another_is_remembered_as_that_one() -> None:
    lamps: Registry[type[Lamp]] = Registry("lamp", Lamp)
    lamps.register("lamp")(Lamp)
    assert OldLamp(power=3, phase="predict").settings == Lamp(3).settings
    assert lamps.name_of(OldLamp) == "lamp"
    assert OldDesk(3).settings == {"power": 3, "phase": "train"}
    assert lamps.name_of(OldDesk) == f"{__name__}.OldDesk"


def test_the_signature_is_that_of_the_source_and_survives_a_decorator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(inspect.signature(Lamp).parameters) == ["watts", "manual", "is_red", "own"]
    original = Lamp.__init__

    @functools.wraps(original)
    def decorated(self: Lamp, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)

    monkeypatch.setattr(Lamp, "__init__", decorated)
    assert Lamp(3).settings["watts"] == 3


@dataclass(eq=False, repr=False)
class Torch(Component):
    """A lamp to carry.

    Args:
        watts: of its bulb.
    """

    watts: int
    manual: Path | None = None
    _: KW_ONLY
    is_red: bool = False


@dataclass(eq=False, repr=False)
class Beam(Torch):
    watts: int = 9
    _: KW_ONLY
    reach: float


class OldBeam(Beam):
    stands_for = Beam

    def __init__(self, power: int) -> None:
        super().__init__(power, reach=2.0)


class OwnBeam(Beam):
    def __init__(self, colour: str) -> None:
        super().__init__(1, reach=2.0)
        self.colour = colour


def test_the_fields_of_a_dataclass_are_settings() -> None:
    found = settings_of(Beam)
    expected = {**{"watts": 9, "manual": None, "is_red": False}, "reach": inspect.Parameter.empty}
    assert {name: each.default for name, each in found.items()} == expected
    assert list(found) == ["watts", "manual", "is_red", "reach"]
    assert (found["watts"].doc, found["reach"].annotation) == ("of its bulb.", float)
    beam = Beam(3, "a.txt", reach=1.0)  # type: ignore[arg-type]
    assert beam.settings == {"watts": 3, "manual": Path("a.txt"), "is_red": False, "reach": 1.0}
    assert OldBeam(3).settings == {"manual": None, "is_red": False, "watts": 3, "reach": 2.0}
    assert OwnBeam("red").settings == {"colour": "red"}
    with pytest.raises(ConfigError, match="is_red"):
        Torch(3, is_red="no")  # type: ignore[arg-type]


@dataclass(eq=False)
class Shelf(Component):
    boards: PositiveInt
    wood: Literal["oak", "pine"] = "oak"
    _: KW_ONLY
    slant: Probability = 0.0
    width: PositiveFloat | None = None
    load: int | Literal["any"] = "any"


class Bookcase(Shelf):
    def __init__(self, boards: Any, wood: Any = "oak") -> None:
        super().__init__(boards, wood)


def test_values_that_do_not_fit_their_annotations_are_refused_together() -> None:
    assert Shelf(2, "pine", slant=0.5, width=None, load=3).settings["width"] is None
    with pytest.raises(ConfigError) as caught:
        Shelf(0, "ash", slant=1.0, width=-1.0)  # type: ignore[arg-type]
    assert [line.split(":")[0] for line in caught.value.problems] == ["boards", "wood", "slant", "width"]
    for made in (Bookcase, Shelf):
        with pytest.raises(ConfigError, match="'ash' should be one of oak, pine"):
            made(1, "ash")  # type: ignore[arg-type]


@pytest.mark.parametrize("component", [Lamp, Torch])
def test_a_missing_setting_is_named_with_its_class(component: type[Component]) -> None:
    with pytest.raises(TypeError, match=rf"{component.__name__}\.__init__.*'watts'"):
        component(is_red=True)  # type: ignore[call-arg]


class Own(Component):
    def __init__(self, vocab_path: str, name_file: str | None = None, title: str = "") -> None:
        self.given = (vocab_path, name_file, title)


def test_a_text_that_names_a_file_is_copied_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\n", encoding="utf-8")
    words = str(tmp_path / "words.txt")
    own = Own(words, "bert-base-uncased", words)
    assert own.given == (words, "bert-base-uncased", words)
    assert own.settings == {"vocab_path": Path(words), "name_file": "bert-base-uncased", "title": words}
    described = describe(Registry("lamp", Own), own, tmp_path, "saved")
    assert described["settings"]["vocab_path"] == {"file": "saved/vocab.txt"}


def test_paths_of_a_component_count_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\n", encoding="utf-8")
    annotation = settings_of(Own)["vocab_path"].annotation
    for text, value in (("words.txt", tmp_path / "words.txt"), ("bert-base", "bert-base")):
        assert convert_value(Setting(Plain(text), "config.yaml:1", tmp_path), annotation) == value
