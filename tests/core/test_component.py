"""What components remember of their making, and what they accept."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest

from palm.config.conversion import convert_value, settings_of
from palm.config.files import Plain, Setting
from palm.core.component import Component, Registry
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


def test_a_text_is_recorded_as_a_path_where_a_path_is_declared() -> None:
    assert Lamp(3, "how/to.txt").settings["manual"] == Path("how/to.txt")  # type: ignore[arg-type]


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
