"""Other spellings of a parameter, declared where the parameter is defined.

PaddlePALM 2.x calls `max_seq_len` `max_len`, `n_classes` `num_classes`; its documents call
`num_epochs` `epoch`. One decorator accepts them, for Python callers and for configurations.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def also_called(**spellings: str) -> Callable[[C], C]:
    """Class decorator: let the constructor accept other spellings.

    Args:
        spellings: other name = the parameter's own name, e.g. `max_len="max_seq_len"`.

    Raises:
        TypeError: when a call gives one parameter under both names.
    """

    def decorate(cls: C) -> C:
        original = cls.__init__  # type: ignore[misc]

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            for other, own in spellings.items():
                if other in kwargs:
                    if own in kwargs:
                        raise TypeError(f"{cls.__name__}() got {own!r} twice, once as {other!r}")
                    kwargs[own] = kwargs.pop(other)
            original(self, *args, **kwargs)

        cls.__init__ = init  # type: ignore[misc]
        cls.palm_aliases = {**getattr(cls, "palm_aliases", {}), **spellings}  # type: ignore[attr-defined]
        return cls

    return decorate


def aliases_of(component: Any) -> dict[str, str]:
    """Other spelling -> own name, as `also_called` declared them."""
    return dict(getattr(component, "palm_aliases", {}))
