"""Values become what an annotation declares."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from palm.config import FilePath, settings_of
from palm.config.conversion import REQUIRED, Mismatch, Parameter, convert_value, describe_mismatch
from palm.config.files import Flag, Plain, Setting
from palm.core.component import Component

BASE = Path("/project").absolute()


def converted(value: Any, annotation: Any, base: Path = BASE) -> Any:
    return convert_value(Setting(value, "config.yaml:7", base), annotation)


def told(value: Any, annotation: Any, base: Path = BASE) -> str:
    setting = Setting(value, "config.yaml:7", base)
    with pytest.raises(Mismatch) as caught:
        convert_value(setting, annotation)
    return describe_mismatch("x", setting, annotation, caught.value)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (Plain("3"), int, 3),
        ("3", int, 3),
        (Plain("1e5"), int, 100000),
        (10**400, int, 10**400),
        (Plain("3e-5"), float, 3e-5),
        (Plain(".inf"), float, math.inf),
        (2, float, 2.0),
        (Plain("True"), bool, True),
        (Plain("no"), bool, False),
        (Flag(), bool, True),
        (Plain("007"), str, "007"),
        (Plain("none"), str, "none"),
        (7, str, "7"),
        (Plain("none"), int | None, None),
        (Plain("null"), str | None, None),
        ("none", str | None, "none"),
        ("1,0,0", list[int], [1, 0, 0]),
        (Plain("1.0"), list[float], [1.0]),
        (["1", 2], list[int], [1, 2]),
        ("mrqa, mlm", list[str], ["mrqa", "mlm"]),
        ("", list[str], []),
        (Plain("[a, 'b,c']"), list[str], ["a", "b,c"]),
        ("1,2", tuple[int, ...], (1, 2)),
        ({"a": Plain("1")}, dict[str, int], {"a": 1}),
        (Plain("{neg: 0, pos: 1}"), dict[str, int], {"neg": 0, "pos": 1}),
        ("relu", Literal["gelu", "relu"], "relu"),
        (Plain("3"), int | str, 3),
        ("3", int | str, "3"),
        (Plain("auto"), int | str, "auto"),
        (Plain("2.5"), int | float, 2.5),
        (Plain("1e-3"), Any, 1e-3),
        (Plain("none"), Any, None),
        ([Plain("1"), {"a": Plain("yes")}], Any, [1, {"a": True}]),
        ("data/x.tsv", Path, BASE / "data" / "x.tsv"),
        ("data/x.tsv", str | Path, BASE / "data" / "x.tsv"),
        ("a, b", list[Path], [BASE / "a", BASE / "b"]),
    ],
)
def test_a_value_becomes_what_its_annotation_declares(value: Any, annotation: Any, expected: Any) -> None:
    result = converted(value, annotation)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (Plain("2.5"), int, "x should be a whole number, not 2.5"),
        ("fast", float, "x should be a number, not 'fast'"),
        (True, int, "x should be a whole number, not True"),
        (Plain("true"), float, "x should be a number, not true"),
        (10**400, float, f"x should be a number, not {'1' + '0' * 78}…"),
        (2, bool, "x should be true or false, not 2"),
        (True, str, "x should be a string, not True"),
        (None, float, "x should be a number, not null"),
        (Flag(), Path, "x should be a path, not an option without a value"),
        ("", Path, "x should be a path, not ''"),
        ("x", int | list[int], "x should be a whole number or list of whole numbers, not 'x'"),
        ("1,,2", list[int], "x should be a list of whole numbers, not '1,,2'"),
        ("1, x", list[float], "x should be a list of numbers, not '1, x'"),
        (
            {"a": Plain("b")},
            dict[str, int],
            "x should be a mapping from names to whole numbers, not {'a': 'b'}",
        ),
        ("{broken", dict[str, int], "x should be a mapping from names to whole numbers, not '{broken'"),
        ("tanh", Literal["gelu", "relu"], "x should be one of 'gelu', 'relu', not 'tanh'"),
        (np.zeros(2), Path | None, "x should be a path, not array([0., 0.])"),
        (1, BaseException, "x should be a value, not 1"),
    ],
)
def test_a_value_that_does_not_fit_is_reported_with_what_was_expected(
    value: Any, annotation: Any, expected: str
) -> None:
    assert told(value, annotation) == f"config.yaml:7: {expected}"


def test_a_file_must_exist_and_a_path_need_not(tmp_path: Path) -> None:
    (tmp_path / "here.txt").touch()
    assert converted("here.txt", FilePath, tmp_path) == tmp_path / "here.txt"
    assert converted("gone.txt", Path, tmp_path) == tmp_path / "gone.txt"
    missing = f"config.yaml:7: x: no such file: {tmp_path / 'gone.txt'} (written as 'gone.txt')"
    assert told("gone.txt", FilePath, tmp_path) == missing
    assert told("gone.txt", FilePath | dict[str, int] | None, tmp_path) == missing


# The signature is the schema.


class Encoder(Component):
    """An encoder.

    Longer text.

    Args:
        hidden_size: width of
            the output: `[batch, hidden_size]`.
        vocab_path (file): its words.
        dropout_prob, attention_dropout_prob: probability of zeroing.

    Returns:
        nothing: of interest.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_path: FilePath,
        *rest: int,
        dropout_prob: float = 0.1,
        attention_dropout_prob=0.2,
        **more: Any,
    ) -> None: ...


def test_a_constructors_parameters_are_its_settings() -> None:
    assert list(settings_of(Encoder).values()) == [
        Parameter("hidden_size", int, REQUIRED, "width of the output: `[batch, hidden_size]`."),
        Parameter("vocab_path", FilePath, REQUIRED, "its words."),
        Parameter("dropout_prob", float, 0.1, "probability of zeroing."),
        Parameter("attention_dropout_prob", Any, 0.2, "probability of zeroing."),
    ]


def test_a_subclass_inherits_descriptions() -> None:
    class Wider(Encoder):
        """A wider one.

        Args:
            factor: how much wider.
        """

        def __init__(self, hidden_size: int, factor: int = 2) -> None: ...

    assert [(p.name, p.doc) for p in settings_of(Wider).values()] == [
        ("hidden_size", "width of the output: `[batch, hidden_size]`."),
        ("factor", "how much wider."),
    ]


def test_a_dataclass_has_the_settings_of_its_fields() -> None:
    @dataclass(kw_only=True)
    class Settings:
        """Settings.

        Attributes:
            tags: one per task.
        """

        tags: list[int] = field(default_factory=lambda: [1])
        name: str

    expected = [Parameter("tags", list[int], [1], "one per task."), Parameter("name", str, REQUIRED, "")]
    assert list(settings_of(Settings).values()) == expected
