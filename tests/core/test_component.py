"""What components remember of their making, and what they accept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import palm
from palm.config.conversion import convert_value
from palm.config.schema import settings_of
from palm.config.values import Plain, Setting
from palm.core.component import Component
from palm.core.errors import ConfigError
from palm.core.files.serialization import describe
from palm.core.registry import Registry

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
    assert Own(**{**own.settings, "title": ""}).given[0] == words  # type: ignore[arg-type]


def test_paths_of_a_component_count_from_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\n", encoding="utf-8")
    annotation = settings_of(Own)["vocab_path"].annotation
    for text, value in (("words.txt", tmp_path / "words.txt"), ("bert-base", "bert-base")):
        assert convert_value(Setting(Plain(text), "config.yaml:1", tmp_path), annotation) == value


HOOKS = [
    (palm.optimizer.Adam, "_build"),
    (palm.lr_sched.TriangularSchedualer, "_build"),
    (palm.backbone.BERT, "build"),
    (palm.head.Classify, "build"),
    (palm.reader.ClassifyReader, "_iterator"),
]


@pytest.mark.parametrize(("base", "hook"), HOOKS, ids=[each.__name__ for each, _ in HOOKS])
def test_a_hook_of_2_x_below_a_class_of_palm_is_refused(base: type[Component], hook: str) -> None:
    with pytest.raises(ConfigError, match=rf"Own\.{hook} .*override"):
        type("Own", (base,), {hook: print})


def test_an_encoder_takes_the_positions_of_every_2_x() -> None:
    sizes = (8, 1, 2, 20, 16, 2, 3, "gelu", 0.1, 0.1, 0.02, False)
    for rest, used in ((("predict",), True), ((False, "predict"), False), ((False,), False)):
        encoder = palm.backbone.ERNIE(*sizes, *rest)
        assert encoder.settings["use_task_id"] is used
        assert encoder.phase == ("predict" if "predict" in rest else "train")


def test_one_parameter_under_two_spellings_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Lamp\(\).*'watts' twice"):
        Lamp(w=3, watts=4)  # type: ignore[call-arg]


def test_annotations_for_type_checkers_only_do_no_harm() -> None:
    assert Unreadable("1/2").settings == {"share": "1/2", "path": "here"}  # type: ignore[arg-type]
