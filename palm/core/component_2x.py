"""Base of all components: they record their constructor's arguments and accept other spellings.

A component is rebuilt from `settings`, the complete arguments of its constructor. PaddlePALM 2.x
has other names for some arguments (`max_len` for `max_seq_len`, `num_classes` for `n_classes`); the
class attribute `aliases` lists them, for Python and for configurations. Arguments that only the
constructors of 2.x have (`phase`, `seed`) are listed in `only_2x` and are not part of configurations.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, get_args, get_type_hints

from palm.core.checks import FILE_NAMES, raise_any
from palm.core.component import Component
from palm.core.constructor import constructor_of
from palm.core.errors import ConfigError
from palm.core.tensor_specs import SPEC_NAMES, Specs, specs_of

Translate = Callable[[Any], dict[str, Any]]
"""Translate the value of an argument that only 2.x has into arguments of palm."""


def unused(value: object) -> dict[str, Any]:  # noqa: ARG001
    """Ignore an argument of 2.x that has no effect."""
    return {}


def checked_phase(value: object) -> dict[str, Any]:
    """Check `phase`, which is only recorded: no component computes differently because of it.

    Raises:
        ConfigError: it is neither 'train' nor 'predict'.
    """
    if value not in ("train", "predict"):
        raise ConfigError(f"phase should be 'train' or 'predict', not {value!r}")
    return {}


class Component2x(Component):
    """Base of components that still take the arguments of 2.x; it goes when the last of them is converted.

    Attributes:
        aliases: other spelling -> name of the constructor's parameter.
        only_2x: arguments that only the constructor of PaddlePALM 2.x has -> their translation.
        order_2x: the order of positional arguments in 2.x, by palm's names; "*" as the first one stands for
            the constructor's own. If empty, these are followed by `only_2x`.
        given_2x: the arguments of `only_2x` that were passed.
        stands_for: the registered class of which this one only changes defaults; its instances are
            described and saved under the name of that class.
        own_settings: name of the method whose parameters are further settings; the base class that
            defines it has the constructor with the common settings.
        defaults: defaults that replace those of the common settings.
        fixed: values of common settings that this component does not offer.
        not_called: methods of 2.x that palm never calls, so overriding one is an error -> what to do instead.
        settings: every argument of the constructor by palm's name, defaults included; files as `Path`.
    """

    aliases: ClassVar[dict[str, str]] = {}
    only_2x: ClassVar[Mapping[str, Translate]] = {}
    order_2x: ClassVar[tuple[str, ...]] = ()
    given_2x: Mapping[str, Any] = MappingProxyType({})
    own_settings: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}
    not_called: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def defaults_2x(cls, given: Collection[str]) -> dict[str, Any]:  # noqa: ARG003
        """Return defaults that replace the constructor's, depending on which arguments are given."""
        return {}

    @property
    def phase(self) -> str:
        """The constructor argument of 2.x: 'train' or 'predict'."""
        return str(self.given_2x.get("phase", "train"))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, specs_of(value) if name in SPEC_NAMES else value)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        is_declared = not {cls.own_settings, "defaults"}.isdisjoint(cls.__dict__)
        # A subclass without settings of its own keeps the inherited constructor.
        if cls.own_settings and is_declared and "__init__" not in cls.__dict__:
            kind = next(base for base in cls.__mro__ if "own_settings" in base.__dict__)
            take = getattr(cls, cls.own_settings)
            construct = kind.__dict__["__init__"]
            cls.__init__ = constructor_of(cls, construct, take, cls.fixed)  # type: ignore[method-assign]
        if vain := cls.not_called.keys() & cls.__dict__.keys():
            raise ConfigError(
                f"{cls.__qualname__}.{n} is not called: {cls.not_called[n]}" for n in sorted(vain)
            )
        for name in SPEC_NAMES & cls.__dict__.keys():
            declared = cls.__dict__[name]
            if isinstance(declared, property):
                setattr(cls, name, property(_normalized(declared), doc=declared.__doc__))
            elif isinstance(declared, Mapping):
                setattr(cls, name, specs_of(declared))
        if "__init__" in cls.__dict__:
            if cls.order_2x[:1] == ("*",):
                cls.order_2x = (*_positional(inspect.signature(cls.__init__)), *cls.order_2x[1:])
            cls.__init__ = _recording(cls.__dict__["__init__"])  # type: ignore[method-assign]


def _normalized(declared: property) -> Callable[[Any], Specs]:
    assert declared.fget is not None
    declare = declared.fget
    return lambda self: specs_of(declare(self))


def _recording(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)
    paths = functools.cache(lambda: _path_parameters(original))

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        # Base class constructors are wrapped too; their arguments are not settings.
        outermost = type(self).__init__ is init
        given: dict[str, Any] = {}
        if outermost:
            args, kwargs, given = _without_2x(type(self), signature, args, kwargs)
        try:
            bound = signature.bind(self, *args, **_own_names(type(self), kwargs))
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}(): {error}") from None
        for name, kind in paths().items():
            if isinstance(bound.arguments.get(name), str | Path):
                bound.arguments[name] = kind(bound.arguments[name])
        if outermost:
            raise_any(_type_problems(original, bound.arguments))
            bound.arguments.update(type(self).defaults_2x(bound.arguments.keys()) | dict(bound.arguments))
        original(*bound.args, **bound.kwargs)
        if outermost:
            bound.apply_defaults()
            own = list(bound.arguments.items())[1:]
            self.settings = {name: Path(v) if name in paths() and _is_file(v) else v for name, v in own}
            self.given_2x = given

    return init


def _type_problems(function: Callable[..., None], given: Mapping[str, Any]) -> Iterator[str]:
    """Check types where a wrong value would go unnoticed: 'no' is true, and a string is a list of letters."""
    for name, hint in _hints(function).items():
        value = given.get(name)
        if hint is bool and value is not None and not isinstance(value, bool | int):
            yield f"{name} should be true or false, not {value!r}"
        if list[str] in (hint, *get_args(hint)) and value is not None and not isinstance(value, list | tuple):
            yield f"{name} should be a list of strings, not {value!r}"


@functools.cache
def _hints(function: Callable[..., None]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except NameError:  # an annotation that only type checkers can resolve
        return {}


def _without_2x(
    component: type[Component2x], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """Return the arguments with those of `only_2x` translated, and the latter as given."""
    own = dict(list(signature.parameters.items())[1:])
    only = {name: meaning for name, meaning in component.only_2x.items() if name not in own}
    if only and args:
        order = component.order_2x or (*_positional(signature), *only)
        kwargs = _by_name(component.__name__, order, args, kwargs)
        args = ()
    aliases = {other: name for other, name in component.aliases.items() if name in only}
    kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
    given = {name: kwargs.pop(name) for name in only if name in kwargs}
    for name, value in given.items():
        kwargs = only[name](value) | kwargs
    return args, kwargs, given


def _positional(signature: inspect.Signature) -> list[str]:
    """Return the parameters of a constructor that may be passed by position, without `self`."""
    return [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD][1:]


def _by_name(
    caller: str, order: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return all arguments by name for a call with positional arguments in the order of PaddlePALM 2.x."""
    if isinstance(args[-1], str) and args[-1] in ("train", "predict") and "phase" in order:
        # 2.0.2 has fewer arguments before `phase` than 2.1.
        order = (*order[: len(args) - 1], "phase", *order[len(args) :])
    if len(args) > len(order):
        raise TypeError(f"{caller}() takes {len(order)} positional arguments, not {len(args)}")
    named = dict(zip(order, args, strict=False))
    if twice := sorted(named.keys() & kwargs.keys()):
        raise TypeError(f"{caller}() got {', '.join(twice)} twice, by position and by name")
    return named | kwargs


def _is_file(value: object) -> bool:
    return isinstance(value, str) and Path(value).is_file()


def _path_parameters(function: Callable[..., None]) -> dict[str, type[Path] | type[str]]:
    """Return parameters that may name files: Path by annotation, or str by a name such as `vocab_path`."""
    kinds = {name: (hint, *get_args(hint)) for name, hint in _hints(function).items()}
    text = {name: str for name, kind in kinds.items() if str in kind and name.endswith(FILE_NAMES)}
    return text | {name: Path for name, kind in kinds.items() if Path in kind}


def _own_names(component: type[Component2x], kwargs: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in kwargs.items():
        own = component.aliases.get(name, name)
        if own in named or (own != name and own in kwargs):
            raise TypeError(f"got {own!r} twice, under two spellings")
        named[own] = value
    return named


class Phased(Component2x):
    """Base of components written for PaddlePALM 2.x, which only keep the phase.

    Args:
        phase: 'train' or 'predict'.
    """

    not_called: ClassVar[Mapping[str, str]] = {}

    def __init__(self, phase: str = "train") -> None:
        super().__init__()
        checked_phase(phase)
        self._phase = phase

    @property
    def phase(self) -> str:
        return self._phase
