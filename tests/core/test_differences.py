"""One differ of nested mappings, which every message about two runs or models uses."""

from __future__ import annotations

from palm.core.errors import ABSENT, Change, changes, shortened


def test_values_that_differ_have_the_keys_that_lead_to_them() -> None:
    old = {"a": {"b": 1, "c": [1, 2], "d": {"e": 1}}, "x": 1, "gone": None}
    new = {"a": {"b": 2, "c": (1, 2), "d": 5}, "x": 1, "come": {"y": 1}}
    assert list(changes(old, new)) == [
        Change(("a", "b"), 1, 2),
        Change(("a", "d"), {"e": 1}, 5),
        Change(("gone",), None, ABSENT),
        Change(("come",), ABSENT, {"y": 1}),
    ]


def test_below_a_depth_mappings_are_compared_as_a_whole() -> None:
    old = {"a": {"b": {"c": 1}}}
    new = {"a": {"b": {"c": 2}}}
    paths = {depth: [change.path for change in changes(old, new, depth)] for depth in (1, 2, None)}
    assert paths == {1: [("a",)], 2: [("a", "b")], None: [("a", "b", "c")]}


def test_of_many_lines_the_first_are_shown_and_the_others_counted() -> None:
    assert shortened(["a", "b"], 2) == ["a", "b"]
    assert shortened(["a", "b", "c", "d"], 2) == ["a", "b", "and 2 more"]
