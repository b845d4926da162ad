"""Base of all components: they record their constructor's arguments and accept other spellings.

A component is rebuilt from `settings`, the complete arguments of its constructor. PaddlePALM 2.x
calls `max_seq_len` `max_len` and `n_classes` `num_classes`; a class attribute `aliases` accepts
them, for Python callers and for configurations alike. Arguments that only the constructors of 2.x
have (`phase`, `seed`) are declared in `only_2x`; configurations do not see them.
"""

from __future__ import annotations

import functools
import inspect
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, get_args, get_type_hints

from palm.core.checks import FILE_NAMES, raise_any
from palm.core.constructor import constructor_of
from palm.core.errors import ConfigError
from palm.core.tensor_specs import SPEC_NAMES, Specs, specs_of

Translate = Callable[[Any], dict[str, Any]]
"""The value of an argument that only 2.x has -> what it means, as arguments of our own."""


def unused(value: object) -> dict[str, Any]:  # noqa: ARG001
    """For an argument of 2.x on which nothing depends."""
    return {}


def checked_phase(value: object) -> dict[str, Any]:
    """`phase` is 'train' or 'predict'; it is remembered, and no component computes otherwise for it.

    Raises:
        ConfigError: for any other value.
    """
    if value not in ("train", "predict"):
        raise ConfigError(f"phase should be 'train' or 'predict', not {value!r}")
    return {}


class Component:
    """Base of readers, backbones, heads, optimizers and schedules.

    Attributes:
        aliases: other spelling -> the constructor parameter's own name.
        only_2x: further arguments that the constructor of PaddlePALM 2.x has -> what they mean here.
        order_2x: the positional arguments of 2.x, by own name; where it is empty, they are the
            constructor's own, then those of `only_2x`.
        given_2x: those of `only_2x` that the constructor was given.
        stands_for: the registered class that this one only gives other defaults; what is built by it is
            described and saved as that.
        own_settings: the method whose parameters are settings of one component; they join those of the
            constructor of the class that names it.
        defaults: other defaults of the settings of that constructor.
        fixed: values of those that a component has not.
        not_called: methods of 2.x that a subclass would override in vain -> what to do instead.
        settings: every argument of the constructor by its own name, defaults included; files as `Path`.
    """

    aliases: ClassVar[dict[str, str]] = {}
    only_2x: ClassVar[Mapping[str, Translate]] = {}
    order_2x: ClassVar[tuple[str, ...]] = ()
    given_2x: Mapping[str, Any] = MappingProxyType({})
    stands_for: ClassVar[type[Component] | None] = None
    own_settings: ClassVar[str] = ""
    defaults: ClassVar[Mapping[str, Any]] = {}
    fixed: ClassVar[Mapping[str, Any]] = {}
    not_called: ClassVar[Mapping[str, str]] = {}
    settings: dict[str, Any]

    @classmethod
    def defaults_2x(cls, given: Collection[str]) -> dict[str, Any]:  # noqa: ARG003
        """Arguments that have another default than the constructor's, where others of these are given."""
        return {}

    def write_file(self, setting: str, target: Path) -> None:
        """Write a copy, complete in itself, of the file that a setting names."""
        shutil.copyfile(self.settings[setting], target)

    @property
    def phase(self) -> str:
        """The constructor's argument of 2.x: 'train' or 'predict'."""
        return str(self.given_2x.get("phase", "train"))

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, specs_of(value) if name in SPEC_NAMES else value)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        is_declared = not {cls.own_settings, "defaults"}.isdisjoint(cls.__dict__)
        # Below a user's constructor, that one stays.
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
                setattr(cls, name, property(_in_our_form(declared), doc=declared.__doc__))
            elif isinstance(declared, Mapping):
                setattr(cls, name, specs_of(declared))
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__dict__["__init__"])  # type: ignore[method-assign]


def _in_our_form(declared: property) -> Callable[[Any], Specs]:
    assert declared.fget is not None
    declare = declared.fget
    return lambda self: specs_of(declare(self))


def _recording(original: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(original)
    paths = functools.cache(lambda: _path_parameters(original))

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        # A constructor calls those of its bases, which are wrapped as well; their arguments are not settings.
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
    """Check the arguments whose wrong values would pass: 'no' is true, and a text is a list of letters."""
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
    except NameError:  # an annotation that only a type checker can read
        return {}


def _without_2x(
    component: type[Component], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
    """The arguments with those of `only_2x` translated, and these as they were given."""
    own = dict(list(signature.parameters.items())[1:])
    only = {name: meaning for name, meaning in component.only_2x.items() if name not in own}
    if only and args:
        positional = [name for name, p in own.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
        order = component.order_2x or (*positional, *only)
        kwargs = _by_name(component.__name__, order, args, kwargs)
        args = ()
    aliases = {other: name for other, name in component.aliases.items() if name in only}
    kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
    given = {name: kwargs.pop(name) for name in only if name in kwargs}
    for name, value in given.items():
        kwargs = only[name](value) | kwargs
    return args, kwargs, given


def _by_name(
    caller: str, order: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return all arguments by name, of a call in which some stand in the order of PaddlePALM 2.x."""
    if isinstance(args[-1], str) and args[-1] in ("train", "predict") and "phase" in order:
        # 2.0.2 has fewer arguments before it than 2.1.
        order = (*order[: len(args) - 1], "phase", *order[len(args) :])
    if len(args) > len(order):
        raise TypeError(f"{caller}() takes {len(order)} positional arguments, not {len(args)}")
    named = dict(zip(order, args, strict=False))
    if twice := sorted(named.keys() & kwargs.keys()):
        raise TypeError(f"{caller}() got {', '.join(twice)} twice, by position and by name")
    return named | kwargs


def path_settings(component: type[Component]) -> set[str]:
    """The settings of a component that are paths of files, by own name."""
    return {name for name, kind in _path_parameters(component.__init__).items() if kind is Path}


def _is_file(value: object) -> bool:
    return isinstance(value, str) and Path(value).is_file()


def _path_parameters(function: Callable[..., None]) -> dict[str, type[Path] | type[str]]:
    """Parameters that may name files -> their type: Path, or text where a name as `vocab_path` tells it."""
    kinds = {name: (hint, *get_args(hint)) for name, hint in _hints(function).items()}
    text = {name: str for name, kind in kinds.items() if str in kind and name.endswith(FILE_NAMES)}
    return text | {name: Path for name, kind in kinds.items() if Path in kind}


def _own_names(component: type[Component], kwargs: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for name, value in kwargs.items():
        own = component.aliases.get(name, name)
        if own in named or (own != name and own in kwargs):
            raise TypeError(f"got {own!r} twice, under two spellings")
        named[own] = value
    return named
