"""Components: classes with a name in a registry, recorded settings and declared tensors."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import math
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from palm.core.errors import ConfigError, PalmError, Problem, StorageError

T = TypeVar("T")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the closest other one of `known`, or an empty string."""
    close = difflib.get_close_matches(name, [each for each in known if each != name], n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, name: object, known: Collection[str]) -> str:
    """Return the message that no `kind` has this name, with the known names and the closest one."""
    return f"no {kind} is called {name!r}; known: {', '.join(known)}{did_you_mean(str(name), known)}"


def imported(kind: str, path: str) -> Any:
    """Import the object at a dotted path, `package.module.name`.

    Args:
        kind: its kind, for messages (`"reader"`).
        path: the path.

    Raises:
        PalmError: it cannot be imported.
    """
    module, _, attribute = str(path).rpartition(".")
    if not module:
        raise PalmError(f"the {kind} {path!r} should be a dotted path, package.module.name")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        what = str(error)
        if not isinstance(error, (ImportError, AttributeError)):
            last = traceback.extract_tb(error.__traceback__)[-1]
            # The message of a syntax error has its own line number.
            place = "" if isinstance(error, SyntaxError) else f" at {last.filename}:{last.lineno}"
            what = f"{type(error).__name__}{place}: {error}"
        if isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name)):
            what += "; put it in the working directory, or add its folder to PYTHONPATH"
        raise PalmError(f"the {kind} {path!r} cannot be imported: {what}") from error


class Registry(Generic[T]):
    """Components of one kind by name.

    Args:
        kind: the kind of the entries, for messages (`"reader"`).
        base: the base class of all entries.
        setting: the setting that names an entry in a configuration (`"mixing"`); `kind` by default.
    """

    def __init__(self, kind: str, base: type, setting: str = "") -> None:
        self.kind = kind
        self.setting = setting or kind
        self._base = base
        self._entries: dict[str, T] = {}

    def register(self, *names: str) -> Callable[[T], T]:
        """Return a decorator that registers a component under one or more names."""

        def enter(component: T) -> T:
            for name in names:
                assert name not in self._entries, f"{self.kind} {name!r} is registered twice"
                self._entries[name] = component
            return component

        return enter

    def __getitem__(self, name: str) -> T:
        """Return a component by name, or import it from a dotted path, `package.module.Class`.

        Only for names from the user's own program or configuration; see `named_in_directory`.

        Raises:
            PalmError: the name is unknown, the path cannot be imported, or the object is of another kind.
        """
        if name not in self._entries and "." in name:
            return self._checked(imported(self.kind, name), name)
        if name.lower() in self._entries:  # AdamW, BERT
            return self._entries[name.lower()]
        if name not in self._entries:
            raise PalmError(unknown(self.kind, name, sorted(self._entries)))
        return self._entries[name]

    def named_in_directory(self, name: object, place: object, trust: str | Sequence[str] = ()) -> T:
        """Return the component that a file in a directory names, without importing untrusted code.

        Args:
            name: a registered name; or the dotted path of a class that the running program has already
                imported, or that `trust` covers.
            place: the file, for messages.
            trust: dotted paths of classes, modules or packages whose code may be imported and run.

        Raises:
            StorageError: the name is none of these.
            PalmError: a trusted path cannot be imported, or the object is of another kind.
        """
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        path = name if isinstance(name, str) else ""
        trusted = [trust] if isinstance(trust, str) else trust
        if any(path == known or path.startswith(f"{known}.") for known in trusted):
            return self._checked(imported(self.kind, path), path)
        module, _, attribute = path.rpartition(".")
        # vars(), because getattr may run code in modules that import lazily.
        found = vars(sys.modules[module]).get(attribute) if module in sys.modules else None
        if self.holds(found):
            return found  # type: ignore[return-value]
        hint = f"; if you trust its code, say so: trust=[{module!r}], or --trust {module}" if module else ""
        raise StorageError(
            f"{place} names the {self.kind} {name!r}, which neither palm nor this program provides{hint}"
        )

    def _checked(self, found: Any, path: str) -> T:
        if not self.holds(found):
            base = f"{self._base.__module__}.{self._base.__qualname__}"
            raise PalmError(f"the {self.kind} {path!r} should be a subclass of {base}")
        return found  # type: ignore[no-any-return]

    def holds(self, found: object) -> bool:
        """Check whether an object is a class of this kind."""
        return isinstance(found, type) and issubclass(found, self._base)

    def name_of(self, component: T) -> str:
        """Return the registered name of a component, or its dotted path."""
        # vars(), because a subclass must not inherit `stands_for`.
        known = vars(component).get("stands_for") or component
        for name, entry in self._entries.items():
            if entry is known:
                return name
        return f"{component.__module__}.{component.__qualname__}"  # type: ignore[attr-defined]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


FILE_NAMES = ("_path", "_file")
"""Suffixes of names of settings: a string under such a name is a path if that file exists."""

MAX_COUNT = 2**31 - 1
"""Upper limit of counts: the largest int32, the type of labels and ids."""


def count_problems(least: int = 1, **settings: object) -> list[str]:
    """Return a line for every setting that is not an integer from `least` to `MAX_COUNT`."""
    return [
        Problem(
            f"{name}: {value!r} should be a whole number, {least} or more"
            + (f", at most {MAX_COUNT}" if isinstance(value, int) and value > MAX_COUNT else ""),
            name,
        )
        for name, value in settings.items()
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT
    ]


def number_problems(expected: str, fits: Callable[[float], bool], /, **settings: object) -> list[str]:
    """Return a line for every setting that is not a number for which `fits` is true."""
    return [
        Problem(f"{name}: {value!r} should be {expected}", name)
        for name, value in settings.items()
        if not isinstance(value, int | float) or isinstance(value, bool) or not fits(value)
    ]


def dropout_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not a probability below 1."""
    return number_problems("a probability, from 0 to below 1", lambda value: 0 <= value < 1, **settings)


def share_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not above 0 and at most 1."""
    return number_problems("above 0 and at most 1", lambda value: 0 < value <= 1, **settings)


def positive_problems(expected: str = "a number above 0", /, **settings: object) -> list[str]:
    """Return a line for every setting that is not a finite number above 0."""
    return number_problems(expected, lambda value: 0 < value < math.inf, **settings)


def type_problems(kind: type | tuple[type, ...], wanted: str, **settings: object) -> list[str]:
    """Return a line for every setting that is not an instance of `kind`; `wanted` describes it."""
    return [
        Problem(f"{name} should be {wanted}, not {value!r}", name)
        for name, value in settings.items()
        if not isinstance(value, kind) or isinstance(value, bool)
    ]


def text_problem(value: object) -> str | None:
    """Return the problem with a value that could not be saved with a model, to follow its name; or None."""
    try:
        str(value).encode()
    except UnicodeEncodeError:
        return f" should be UTF-8, also in names of files, not {str(value)!a}; rename it"
    return None


def path_problems(**settings: object) -> list[str]:
    """Return a line for every setting that is not a path."""
    return type_problems((str, PathLike), "a path", **settings)


def choice_problems(choices: Collection[str], **settings: object) -> list[str]:
    """Return a line for every setting that is not one of `choices`."""
    return [
        Problem(f"{name}: {value!r} should be one of {', '.join(choices)}", name)
        for name, value in settings.items()
        if value not in choices
    ]


PositiveInt = Annotated[int, count_problems]
"""A setting's annotation: a whole number, 1 or more."""

Probability = Annotated[float, dropout_problems]
"""A setting's annotation: a number from 0 to below 1."""

PositiveFloat = Annotated[float, positive_problems]
"""A setting's annotation: a finite number above 0."""

NonNegative = Annotated[
    float, functools.partial(number_problems, "0 or more", lambda value: 0 <= value < math.inf)
]
"""A setting's annotation: a finite number of 0 or more."""

BelowOne = Annotated[
    float, functools.partial(number_problems, "0 or more, below 1", lambda value: 0 <= value < 1)
]
"""A setting's annotation: a number from 0 to below 1 that is no probability."""


def raise_any(problems: Iterable[str]) -> None:
    """Raise a ConfigError if there are problems.

    Raises:
        ConfigError: lists every problem once.
    """
    if found := list(dict.fromkeys(problems)):
        raise ConfigError(found)


class Component:
    """Base of readers, backbones, heads, optimizers, schedules and strategies.

    The constructor's signature is the list of settings, in Python as in configurations. It is explicit, or
    that of a dataclass, whose `__post_init__` calls this one first. Values are compared with annotations that
    are `bool`, `Literal`, or marked with a function such as `count_problems`.

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

    def __post_init__(self) -> None:
        """Check and record the fields of a dataclass.

        Raises:
            ConfigError: values that do not fit their annotations; lists all of them.
        """
        given = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        owner = next(each for each in type(self).__mro__ if "__dataclass_fields__" in vars(each))
        recorded = _as_recorded(_hints(owner), given)
        vars(self).setdefault("settings", recorded)  # the constructor of a subclass has recorded its own


def described_class(component: type[Component]) -> type[Component]:
    """Return the class whose name and settings describe the instances of `component`."""
    # vars(), because a subclass must not inherit `stands_for`.
    return vars(component).get("stands_for") or component


def path_settings(component: type[Component]) -> set[str]:
    """Return the names of the settings that are file paths by their annotation."""
    return {name for name, hint in _hints(component).items() if _is_path(hint)}


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
            except TypeError:
                init(self, *args, **kwargs)  # raises, and names all that are missing, as that of a dataclass
                raise
            bound.apply_defaults()
            given = dict(list(bound.arguments.items())[1:])
            if others is not None:
                given |= given.pop(others)
            vars(self)["settings"] = _as_recorded(_hints(owner), given)
        init(self, *args, **kwargs)

    return record_and_init


def _as_recorded(hints: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with files as `Path`.

    Raises:
        ConfigError: arguments that do not fit their annotations; lists all of them.
    """
    raise_any(line for name, value in given.items() for line in _problems(name, value, hints.get(name)))
    return {
        name: Path(value) if isinstance(value, str) and _is_file(name, value, hints.get(name)) else value
        for name, value in given.items()
    }


def _problems(name: str, value: Any, hint: Any) -> list[str]:
    """Return the problems of a value with its annotation; a union of several types accepts everything."""
    kinds = [hint]
    if get_origin(hint) in (Union, UnionType):
        kinds = [] if value is None else [each for each in get_args(hint) if each is not NoneType]
    if len(kinds) != 1:
        return []
    if kinds[0] is bool and not isinstance(value, bool):  # such as 'no', which is true
        return [f"{name} should be true or false, not {value!r}"]
    if get_origin(kinds[0]) is Literal:
        return choice_problems(get_args(kinds[0]), **{name: value})
    marks: Sequence[Any] = getattr(kinds[0], "__metadata__", ())
    return [line for mark in marks if callable(mark) for line in mark(**{name: value})]


def _is_file(name: str, value: str, hint: Any) -> bool:
    """Check whether a string is a path: by its annotation, or by its name if that file exists."""
    return _is_path(hint) or (name.endswith(FILE_NAMES) and Path(value).is_file())


def _is_path(hint: Any) -> bool:
    return hint is Path or any(map(_is_path, get_args(hint)))


def _hints(component: type[Component]) -> dict[str, Any]:
    try:
        return annotations_of(component)  # type: ignore[arg-type]
    except NameError:  # an annotation that only type checkers can resolve
        return {}


@functools.cache
def annotations_of(consumer: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters of a class or function, with their marks.

    Raises:
        NameError: an annotation names something that is not defined at run time.
    """
    if not isinstance(consumer, type):
        return get_type_hints(consumer, include_extras=True)
    owner = next(each for each in consumer.__mro__ if "__init__" in vars(each))
    if "__dataclass_fields__" not in vars(owner):
        return get_type_hints(inspect.unwrap(vars(owner)["__init__"]), include_extras=True)
    bases = [each for each in reversed(owner.__mro__) if "__dataclass_fields__" in vars(each)]
    return {n: hint for each in bases for n, hint in inspect.get_annotations(each, eval_str=True).items()}
