"""Which values of which settings are tried."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palm.config.files import parsed_yaml, read_yaml
from palm.config.problems import Problems
from palm.config.values import guessed
from palm.core.checks import raise_any
from palm.core.errors import ConfigError

Values = dict[str, Any]
"""Setting -> its value; `intent.batch_size` is that of one task."""

RANGE = re.compile(r"(?P<low>.+?)\.\.(?P<high>.+?)(?P<log>:log)?")


@dataclass(frozen=True)
class Choices:
    """Some values.

    Args:
        values: in the order in which a grid tries them.
    """

    values: Sequence[Any]


@dataclass(frozen=True)
class Range:
    """All values between two; whole numbers, if both are.

    Args:
        low: the least.
        high: the largest.
        log: drawn by their logarithm.
        step: between values; None for all.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None


Space = Mapping[str, Choices | Range]


def space_of(given: Mapping[str, Any]) -> Space:
    """A search space as YAML or Python has it.

    Args:
        given: setting -> a list of values, or `{low: …, high: …, log: …, step: …}`.

    Raises:
        ConfigError: what is neither, all of it.
    """
    found: dict[str, Choices | Range] = {}
    problems: list[str] = []
    for name, value in given.items():
        if isinstance(value, (list, tuple)) and value:
            found[name] = Choices([guessed(each) for each in value])
        elif isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= {"low", "high", "log", "step"}:
            limits: Any = Range(**{key: guessed(each) for key, each in value.items()})
            found[name], low, high, step = limits, limits.low, limits.high, limits.step
            numbers = [low, high, *([] if step is None else [step])]
            are_numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
            if not (are_numbers and all(map(math.isfinite, numbers))):
                problems.append(f"sweep: {name}: low, high and step should be numbers, not {numbers}")
            elif low >= high or (step is not None and step <= 0):
                problems.append(f"sweep: {name}: low should be below high, and step above 0; not {numbers}")
            elif limits.log and (low <= 0 or step is not None):
                problems.append(f"sweep: {name}: log needs low above 0 and no step")
        else:
            problems.append(
                f"sweep: {name} should be a list of values, or low and high (and log, step), not {value!r}"
            )
    raise_any(
        problems
        or ([] if found else ["sweep: nothing to vary; name settings with --grid, --range or --space"])
    )
    return found


def read_space(path: Path) -> dict[str, Any]:
    """The search space of a YAML file, in the file's words; of its section `sweep` if it has one.

    Raises:
        ConfigError: it cannot be read.
    """
    problems = Problems()
    content = read_yaml(path, problems)
    problems.raise_if_any()
    section = content.get("sweep", content)
    return dict(section) if isinstance(section, Mapping) else {"sweep": section}


def grid_words(words: Iterable[str]) -> dict[str, Any]:
    """The lists of `NAME=V1,V2`, as on the command line.

    Raises:
        ConfigError: a word of another form.
    """
    found, problems = {}, []
    for word in words:
        name, equals, rest = word.partition("=")
        values = parsed_yaml(f"[{rest}]") if equals and rest else None
        if not name or not values:
            problems.append(f"--grid takes NAME=VALUE,VALUE..., not {word!r}")
        found[name] = values
    raise_any(problems)
    return found


def range_words(words: Iterable[str]) -> dict[str, Any]:
    """The ranges of `NAME=LOW..HIGH` and `NAME=LOW..HIGH:log`.

    Raises:
        ConfigError: a word of another form.
    """
    found, problems = {}, []
    for word in words:
        name, _, rest = word.partition("=")
        match = RANGE.fullmatch(rest)
        if match is None or not name:
            problems.append(f"--range takes NAME=LOW..HIGH or NAME=LOW..HIGH:log, not {word!r}")
            continue
        ends = {end: guessed(parsed_yaml(match[end])) for end in ("low", "high")}
        found[name] = {**ends, "log": bool(match["log"])}
    raise_any(problems)
    return found


def grid_points(space: Space) -> list[Values]:
    """All combinations of all values, the last setting changing fastest.

    Raises:
        ConfigError: the space has a range.
    """
    lists = []
    for name, values in space.items():
        if isinstance(values, Range):
            raise ConfigError([f"sweep: {name} is a range, which a grid cannot go through; give --trials N"])
        lists.append(values.values)
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*lists)]


def first_point(space: Space) -> Values:
    """The first value of everything."""
    return {
        name: values.low if isinstance(values, Range) else values.values[0] for name, values in space.items()
    }


def words_of(point: Values) -> list[str]:
    """The command-line arguments that set a point."""
    return [f"--{name}={text(value)}" for name, value in point.items()]


def text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text, value))}]"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def as_json(space: Space) -> dict[str, Any]:
    """The space, JSON-ready."""
    return {
        name: list(values.values) if isinstance(values, Choices) else asdict(values)
        for name, values in space.items()
    }
