"""Base of all components: every one records the arguments of its constructor, from which it is rebuilt."""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, get_args, get_type_hints

from palm.core.checks import FILE_NAMES, raise_any


class Component:
    """Base of readers, backbones, heads, optimizers, schedules and strategies.

    The constructor's signature is the list of settings, in Python as in configurations.

    Attributes:
        settings: every argument of the constructor by name, defaults included; files as `Path`.
        stands_for: the registered class of which this one only changes the signature; its instances record
            the arguments of that class's constructor, and are saved under its name. It is not inherited.
    """

    settings: dict[str, Any]
    stands_for: ClassVar[type[Component] | None] = None

    def write_file(self, setting: str, target: Path) -> None:
        """Write a self-contained copy of the file that a setting names."""
        shutil.copyfile(self.settings[setting], target)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _recording(cls, vars(cls)["__init__"])  # type: ignore[method-assign]


def described_class(component: type[Component]) -> type[Component]:
    """Return the class whose name and settings describe the instances of `component`."""
    # vars(), because a subclass must not inherit `stands_for`.
    return vars(component).get("stands_for") or component


def path_settings(component: type[Component]) -> set[str]:
    """Return the names of the settings that are file paths by their annotation."""
    return {name for name, hint in _hints(component.__init__).items() if Path in (hint, *get_args(hint))}


def _recording(owner: type[Component], init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    others = next((name for name, p in signature.parameters.items() if p.kind is p.VAR_KEYWORD), None)

    @functools.wraps(init)
    def record_and_init(self: Component, *args: Any, **kwargs: Any) -> None:
        described = described_class(type(self))
        # The outermost call records; the constructors of base classes that it calls do not.
        if "settings" not in vars(self) and issubclass(described, owner):
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}(): {error}") from None
            bound.apply_defaults()
            given = dict(list(bound.arguments.items())[1:])
            if others is not None:
                given |= given.pop(others)
            vars(self)["settings"] = _as_recorded(_hints(init), given)
        init(self, *args, **kwargs)

    return record_and_init


def _as_recorded(hints: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with files as `Path`.

    Raises:
        ConfigError: an argument that should be true or false is something else, such as 'no', which is true.
    """
    raise_any(
        f"{name} should be true or false, not {value!r}"
        for name, value in given.items()
        if hints.get(name) is bool and not isinstance(value, bool)
    )
    return {
        name: Path(value) if isinstance(value, str) and _is_file(name, value, hints.get(name)) else value
        for name, value in given.items()
    }


def _is_file(name: str, value: str, hint: Any) -> bool:
    """Check whether a string is a path: by its annotation, or by its name if that file exists."""
    return Path in (hint, *get_args(hint)) or (name.endswith(FILE_NAMES) and Path(value).is_file())


@functools.cache
def _hints(function: Callable[..., None]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # an annotation that only type checkers can resolve
        return {}
