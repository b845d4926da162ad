"""Values become what an annotation declares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from palm.config import FilePath
from palm.config.conversion import Mismatch, convert_value, describe_mismatch, type_name
from palm.config.files import Flag, Plain, Setting

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
        (Plain("3.0"), int, 3),
        (Plain("1e5"), int, 100000),
        (3.0, int, 3),
        (Plain("-1"), int, -1),
        (10**400, int, 10**400),
        (Plain("3e-5"), float, 3e-5),
        ("3e-5", float, 3e-5),
        (Plain(".5"), float, 0.5),
        (Plain(".inf"), float, math.inf),
        (Plain("-.inf"), float, -math.inf),
        (2, float, 2.0),
        (Plain("True"), bool, True),
        (Plain("no"), bool, False),
        (Plain("1"), bool, True),
        (Plain("0"), bool, False),
        (False, bool, False),
        (Flag(), bool, True),
        (Plain("007"), str, "007"),
        (Plain("1e-5"), str, "1e-5"),
        (Plain("none"), str, "none"),
        (7, str, "7"),
        ("数据", str, "数据"),
        (Plain("none"), int | None, None),
        (None, str | None, None),
        (Plain("null"), str | None, None),
        ("none", str | None, "none"),
        ("1,0,0", list[int], [1, 0, 0]),
        ("1.0, 0.5", list[float], [1.0, 0.5]),
        (Plain("1.0"), list[float], [1.0]),
        (1.0, list[float], [1.0]),
        (["1", 2], list[int], [1, 2]),
        ("mrqa, mlm", list[str], ["mrqa", "mlm"]),
        ("0, 0, 1", list[str], ["0", "0", "1"]),
        ("", list[str], []),
        (Plain("[a, 'b,c']"), list[str], ["a", "b,c"]),
        ("1,2", tuple[int, ...], (1, 2)),
        ("a,b", Sequence[str], ["a", "b"]),
        ({"a": Plain("1")}, dict[str, int], {"a": 1}),
        ({"1": "a"}, dict[int, str], {1: "a"}),
        (Plain("{neg: 0, pos: 1}"), dict[str, int], {"neg": 0, "pos": 1}),
        ("relu", Literal["gelu", "relu"], "relu"),
        (Plain("2"), Literal[1, 2], 2),
        (Plain("3"), int | str, 3),
        ("3", int | str, "3"),
        (Plain("auto"), int | str, "auto"),
        (Plain("3"), str | int, 3),
        (Plain("2.5"), int | float, 2.5),
        (Plain("12"), Any, 12),
        (Plain("1e-3"), Any, 1e-3),
        (Plain("off"), Any, False),
        (Plain("none"), Any, None),
        ([Plain("1"), {"a": Plain("yes")}], Any, [1, {"a": True}]),
        ("data/x.tsv", Path, BASE / "data" / "x.tsv"),
        ("../x.tsv", Path, BASE.parent / "x.tsv"),
        ("data/x.tsv", str | Path, BASE / "data" / "x.tsv"),
        (Path("x"), Path, BASE / "x"),
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
        ("1,5", float, "x should be a number, not '1,5'"),
        (True, int, "x should be a whole number, not True"),
        (Plain("True"), int, "x should be a whole number, not True"),
        (Plain("true"), float, "x should be a number, not true"),
        (math.inf, int, "x should be a whole number, not inf"),
        (10**400, float, f"x should be a number, not {'1' + '0' * 78}…"),
        (2, bool, "x should be true or false, not 2"),
        ("maybe", bool, "x should be true or false, not 'maybe'"),
        (True, str, "x should be a string, not True"),
        (None, float, "x should be a number, not null"),
        (Flag(), Path, "x should be a path, not an option without a value"),
        (Flag(), str | None, "x should be a string, not an option without a value"),
        ("", Path, "x should be a path, not ''"),
        ("x", int | None, "x should be a whole number, not 'x'"),
        ("x", int | list[int], "x should be a whole number or list of whole numbers, not 'x'"),
        ("1,,2", list[int], "x should be a list of whole numbers, not '1,,2'"),
        ("1, x", list[float], "x should be a list of numbers, not '1, x'"),
        ({"a": "b"}, list[str], "x should be a list of strings, not {'a': 'b'}"),
        (
            {"a": Plain("b")},
            dict[str, int],
            "x should be a mapping from names to whole numbers, not {'a': 'b'}",
        ),
        ("{broken", dict[str, int], "x should be a mapping from names to whole numbers, not '{broken'"),
        ("tanh", Literal["gelu", "relu"], "x should be one of 'gelu', 'relu', not 'tanh'"),
        ([1], int, "x should be a whole number, not [1]"),
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


def test_a_file_or_mapping_takes_either(tmp_path: Path) -> None:
    (tmp_path / "map.json").touch()
    kind = FilePath | dict[str, int] | None
    assert converted("map.json", kind, tmp_path) == tmp_path / "map.json"
    assert converted({"neg": Plain("0")}, kind, tmp_path) == {"neg": 0}
    assert converted(None, kind, tmp_path) is None


def test_an_object_of_the_declared_class_is_taken_as_it_is() -> None:
    error = ValueError("anything")
    assert converted(error, Exception) is error


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (int, "whole number"),
        (float | None, "number"),
        (bool, "true or false"),
        (FilePath | dict[str, int] | None, "file or mapping from names to whole numbers"),
        (list[Path], "list of paths"),
        (list[bool], "list of true or false"),
        (list[Any], "list of values"),
        (list, "list of values"),
        (Literal["a", 1], "one of 'a', 1"),
        (Any, "value"),
    ],
)
def test_types_have_names_for_users(annotation: Any, name: str) -> None:
    assert type_name(annotation) == name
