"""The search space of a sweep: the values to try for each setting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palm.config.files import parse_yaml, read_yaml
from palm.config.values import guessed
from palm.core.checks import raise_any, type_problems
from palm.core.errors import ConfigError

Values = dict[str, Any]
"""Setting -> its value; `intent.batch_size` is a setting of one task."""


@dataclass(frozen=True)
class Range:
    """A range of values, or of integers if both ends are integers.

    Args:
        low: the least value.
        high: the largest value.
        log: sample on a logarithmic scale.
        step: between values; None for a continuous range.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None

    def problem(self) -> str | None:
        """Describe what is wrong with the limits, if anything is."""
        numbers = [self.low, self.high] if self.step is None else [self.low, self.high, self.step]
        if not all(type(each) in (int, float) and math.isfinite(each) for each in numbers):
            return f"low, high and step should be numbers, not {numbers}"
        if self.low >= self.high or (self.step is not None and self.step <= 0):
            return f"low should be below high, and step above 0; not {numbers}"
        if self.log and (self.low <= 0 or self.step is not None):
            return "log needs low above 0 and no step"
        return None


Space = Mapping[str, Sequence[Any] | Range]
"""Setting -> its values, in the order in which a grid tries them, or a range."""


def space_of(given: Mapping[str, Any]) -> Space:
    """Check a search space: setting -> a list of values, or `{low: …, high: …, log: …, step: …}`.

    Raises:
        ConfigError: values are neither; all problems in one report.
    """
    raise_any(type_problems(Mapping, "a mapping from settings to values", space=given))
    found: dict[str, Sequence[Any] | Range] = {}
    problems = [] if given else ["sweep: nothing to vary; name settings with --grid or --space"]
    for name, value in given.items():
        if isinstance(value, (list, tuple)) and value:
            found[name] = [guessed(each) for each in value]
        elif isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= {"low", "high", "log", "step"}:
            limits = Range(**{key: guessed(each) for key, each in value.items()})
            found[name] = limits
            if (problem := limits.problem()) is not None:
                problems.append(f"sweep: {name}: {problem}")
        else:
            expected = "a list of values, or low and high (and log, step)"
            problems.append(f"sweep: {name} should be {expected}, not {value!r}")
    raise_any(problems)
    return found


def read_space(path: Path) -> dict[str, Any]:
    """Read a search space from a YAML file.

    Raises:
        ConfigError: it cannot be read.
    """
    problems: list[str] = []
    content = read_yaml(path, problems)
    raise_any(problems)
    return dict(content)


def grid_words(words: Iterable[str], option: str = "--grid") -> dict[str, Any]:
    """Parse `NAME=V1,V2`, the values of a command-line option.

    Raises:
        ConfigError: a word has another form.
    """
    found = {}
    for word in words:
        name, _, rest = word.partition("=")
        found[name] = parse_yaml(f"[{rest}]") if name and rest else None
        if not found[name]:
            raise ConfigError(f"{option} should be NAME=VALUE,VALUE..., not {word!r}")
    return found


def grid_points(space: Space) -> list[Values]:
    """List all combinations of values; the last setting changes fastest.

    Raises:
        ConfigError: the space has a range.
    """
    lists = []
    for name, values in space.items():
        if isinstance(values, Range):
            raise ConfigError(
                f"sweep: {name} is a range, which needs --trials N; a grid needs a list of values"
            )
        lists.append(values)
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*lists)]


def first_point(space: Space) -> Values:
    """Return the first value of every setting."""
    return {name: each.low if isinstance(each, Range) else each[0] for name, each in space.items()}


def json_of_space(space: Space) -> dict[str, Any]:
    """Return the space, JSON-ready."""
    return {name: asdict(each) if isinstance(each, Range) else list(each) for name, each in space.items()}
