"""The signature is the schema."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from palm.config import FilePath, settings_of
from palm.config.conversion import REQUIRED, Parameter
from palm.config.run import default_text, help_text, listed
from palm.core.component import Component
from palm.core.errors import PalmError

if TYPE_CHECKING:
    from decimal import Decimal


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
        Parameter(
            "hidden_size",
            int,
            REQUIRED,
            "width of the output: `[batch, hidden_size]`.",
        ),
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


def test_a_class_without_a_constructor_has_no_settings() -> None:
    class Empty:
        pass

    assert settings_of(Empty) == {}


def test_a_wrapped_function_has_the_settings_of_the_inner_one() -> None:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapped

    @wrap
    def warm_up(steps: int, peak: float = 1.0) -> None:
        """Warm up.

        Args:
            steps: how long.
        """

    assert list(settings_of(warm_up).values()) == [
        Parameter("steps", int, REQUIRED, "how long."),
        Parameter("peak", float, 1.0, ""),
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

    assert list(settings_of(Settings).values()) == [
        Parameter("tags", list[int], [1], "one per task."),
        Parameter("name", str, REQUIRED, ""),
    ]


def test_an_annotation_that_only_a_type_checker_can_read_is_reported() -> None:
    class Strange:
        def __init__(self, size: Decimal) -> None: ...

    with pytest.raises(PalmError, match=r"Strange: .*'Decimal'.*TYPE_CHECKING"):
        settings_of(Strange)


def test_help_lists_every_setting_once_with_type_default_and_meaning() -> None:
    def train(
        learning_rate: float,
        hidden_size: int = 3,
        betas: tuple[float, ...] = (0.9, 0.999),
        use_ema: bool = False,
        resume: str | None = None,
        tag: str = "",
    ) -> None:
        """Train.

        Args:
            learning_rate: word_one word_two word_333 word_444 word_555 word_666 word_777 word_888 word_999
                word_ten word_11.
        """

    provided = dict.fromkeys((Encoder, train), ("vocab_path", "use_ema"))
    assert help_text({"model": [Encoder, train], "again": [train]}, provided) == (
        "model:\n"
        "  --hidden_size  (whole number, required)\n"
        "      width of the output: `[batch, hidden_size]`.\n"
        "  --dropout_prob  (number, default 0.1)\n"
        "      probability of zeroing.\n"
        "  --attention_dropout_prob  (value, default 0.2)\n"
        "      probability of zeroing.\n"
        "  --learning_rate  (number, required)\n"
        "      word_one word_two word_333 word_444 word_555 word_666 word_777 word_888 word_999 word_ten\n"
        "      word_11.\n"
        "  --betas  (list of numbers, default 0.9, 0.999)\n"
        "  --resume  (string, default none)\n"
        "  --tag  (string, default empty)\n"
        "\n"
        "again:\n"
        "  --learning_rate  (number, required)\n"
        "      word_one word_two word_333 word_444 word_555 word_666 word_777 word_888 word_999 word_ten\n"
        "      word_11.\n"
        "  --hidden_size  (whole number, default 3)\n"
        "  --betas  (list of numbers, default 0.9, 0.999)\n"
        "  --resume  (string, default none)\n"
        "  --tag  (string, default empty)"
    )
    assert default_text(settings_of(train)["use_ema"]) == "default false"
    assert [parameter.name for parameter in listed([Encoder, train])][:2] == ["hidden_size", "vocab_path"]
