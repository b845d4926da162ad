"""What all components share: they remember how they were built, and accept other spellings.

A component is rebuilt from `settings`, the complete arguments of its constructor. PaddlePALM 2.x
calls `max_seq_len` `max_len` and `n_classes` `num_classes`; a class attribute `aliases` accepts
them, for Python callers and for configurations alike.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints


class Component:
    """Base of readers, backbones, paradigms, optimizers and schedules.

    Attributes:
        aliases: other spelling -> the constructor parameter's own name.
        settings: every argument of the constructor by its own name, defaults included; paths as `Path`.
    """

    aliases: ClassVar[dict[str, str]] = {}
    settings: dict[str, Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__dict__["__init__"])  # type: ignore[method-assign]


def _recording(original: Callable[..., None]) -> Callable[..., None]:
    paths = functools.cache(lambda: _path_parameters(original))

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(original).bind(self, *args, **_own_names(type(self), kwargs))
        for name in paths() & bound.arguments.keys():
            if isinstance(bound.arguments[name], str):
                bound.arguments[name] = Path(bound.arguments[name])
        original(*bound.args, **bound.kwargs)
        if type(self).__init__ is init:
            bound.apply_defaults()
            self.settings = dict(list(bound.arguments.items())[1:])

    return init


def _path_parameters(function: Callable[..., None]) -> set[str]:
    """Parameters annotated as a path: callers may give them as text."""
    hints = get_type_hints(function)
    return {name for name, hint in hints.items() if Path in (hint, *get_args(hint))}


def _own_names(component: type[Component], kwargs: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in kwargs.items():
        own = component.aliases.get(name, name)
        if own in named or (own != name and own in kwargs):
            raise TypeError(f"{component.__name__}() got {own!r} twice, under two spellings")
        named[own] = value
    return named
