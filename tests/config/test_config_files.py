"""YAML and JSON as a user writes them, and what is said where they are broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.messages import facts
from palm.config import yaml_text
from palm.config.files import Plain, guessed, parse_yaml, read_json, read_yaml
from palm.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def loaded(text: str) -> Any:
    Path("c.yaml").write_text(text, encoding="utf-8")
    problems: list[str] = []
    content = read_yaml(Path("c.yaml"), problems)
    return content, problems


def broken(text: str | bytes, name: str = "c.yaml") -> str:
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read_json(Path(name)) if name.endswith("json") else read_yaml(Path(name), [])
    return str(caught.value)


def test_every_name_has_its_line() -> None:
    content, _ = loaded("# run\na: 1\n\nb:\n  c: x\n  d: [1,\n   2]\ne: '1'\n")
    assert content == {"a": "1", "b": {"c": "x", "d": ["1", "2"]}, "e": "1"}
    assert content.lines == {"a": 2, "b": 4, "e": 8}
    assert content["b"].lines == {"c": 5, "d": 6}


def test_only_unquoted_words_may_stand_for_something_else() -> None:
    content, _ = loaded("a: 3e-5\nb: '3e-5'\nc: 2020-01-01\nd: 1:30\ne: ~\nf:\ng: off\nh: 1,0,0\ni: 0x10\n")
    expected = {"a": 3e-5, "b": "3e-5", "c": "2020-01-01", "d": "1:30", "e": None, "f": None}
    assert guessed(content) == expected | {"g": False, "h": "1,0,0", "i": "0x10"}
    assert [name for name, value in content.items() if isinstance(value, Plain)] == ["a", "g"]


def test_anchors_and_merges_work() -> None:
    content, problems = loaded("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n")
    assert guessed(content["use"]) == {"x": 1, "y": 3}
    assert problems == []


def test_a_name_that_occurs_twice_is_reported_at_any_depth() -> None:
    _, problems = loaded("a: 1\nb: {c: 1, c: 2}\na: 2\n")
    assert [facts(line) for line in problems] == ["c.yaml:2 'c' 2", "c.yaml:3 'a' 1"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: c: d\n", "c.yaml:2 'b: c: d'"),
        ("a:\n\tb: 1\n", "c.yaml:2 '\\t' 'b: 1'"),
        ("a: [1\n", "c.yaml:1 ',' ']' '<stream end>' 'a: [1'"),
        ("- a\n- b\n", "c.yaml 'name: value'"),
        ("word\n", "c.yaml 'name: value'"),
        ("a: 1\nb: !python/object:os.system x\n", "c.yaml:2 '!python/object:os.system'"),
        ("[a, b]: 1\n", "c.yaml:1"),
        (b"a: 1\nb: \xff\n", "c.yaml:2"),
    ],
)
def test_a_broken_yaml_file_is_reported_with_its_line(text: str | bytes, told: str) -> None:
    assert facts(broken(text)) == told


def test_odd_characters_and_endless_structures_are_not_crash() -> None:
    assert broken("a: \x07\n").startswith("c.yaml: ")
    assert "#x0007" in broken("a: \x07\n")
    assert broken("a: &a [*a]\n").startswith("c.yaml: ")


def test_json_members_have_lines_unless_two_objects_have_them_and_may_be_indented_with_tabs() -> None:
    Path("c.json").write_text('{\n\t"a": {"b": [1, "}"]},\n\n\t"b" : 2.5,"c":null\n}\n', encoding="utf-8")
    content = read_json(Path("c.json"))
    assert content == {"a": {"b": [1, "}"]}, "b": 2.5, "c": None}
    assert content.lines == {"a": 2, "c": 4}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1,\n "b" 2}', "c.json:2:6: not JSON: Expecting ':' delimiter"),
        ('{"a": 1,\n "a": 2}', "c.json: not JSON: it has 'a' twice"),
        ("[1]", "c.json: should contain a JSON object, {...}"),
        ("", "c.json:1:1: not JSON: Expecting value"),
    ],
)
def test_a_broken_json_file_is_reported_with_its_line(text: str, message: str) -> None:
    assert broken(text, "c.json") == message


words = st.one_of(
    st.sampled_from(["3e-5", "yes", "null", "1,0", "", "~", "<<", "0x1", "a: b", "# x", "2020-01-01", "数"]),
    st.text(st.characters(exclude_categories=("C",)), max_size=8),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), words),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(words, values, max_size=4))
def test_written_yaml_reads_back_unchanged(data: dict[str, Any]) -> None:
    assert guessed(parse_yaml(yaml_text(data))) == data
