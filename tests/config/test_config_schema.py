"""The signature is the schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from palm.config import FilePath, settings_of
from palm.config.conversion import REQUIRED, Parameter
from palm.core.component import Component

if TYPE_CHECKING:
    pass


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

    assert list(settings_of(Settings).values()) == [
        Parameter("tags", list[int], [1], "one per task."),
        Parameter("name", str, REQUIRED, ""),
    ]
