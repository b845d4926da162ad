"""Pickles as data: a pickle is a program that names functions and calls them, and here it can do neither.

The few names that arrays are made with stand for objects of our own, which only collect numbers; any other
name ends the reading. So do operations that arrays do not need, and what costs more than the file weighs:
Python's reader in C reserves memory for any number that a memo is given, and every reader computes the hash
of a key, which takes forever for tuples within tuples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, Protocol

MAX_OPERATIONS = 200_000
"""Operations of one pickle, each of which may leave an object of 100 bytes; an array takes about thirty."""

_ALLOWED = (
    *("PROTO", "FRAME", "STOP", "MARK", "POP", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET"),
    *("LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("BINFLOAT", "STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2"),
    *("TUPLE3", "EMPTY_LIST", "LIST", "APPEND", "APPENDS", "EMPTY_DICT", "GLOBAL", "STACK_GLOBAL", "REDUCE"),
    *("PERSID", "BINPERSID"),
)
"""Operations that are done as Python does them."""


class Source(Protocol):
    """Where a pickle is read from."""

    def read(self, size: int, /) -> bytes:
        """As many bytes as are left, at most `size`."""

    def readline(self) -> bytes:
        """The rest of a line."""


class Stream:
    """A part of a file, of which nobody reads more than there is; nor reserves memory for it before.

    Args:
        file: open for reading, at the beginning of the part.
        size: of the part, in bytes.
    """

    def __init__(self, file: Source, size: int) -> None:
        self.file, self.left = file, size

    def read(self, size: int = -1, /) -> bytes:
        """Exactly `size` bytes, all that are left where it is negative.

        Raises:
            EOFError: there are fewer.
        """
        if size > self.left:
            raise EOFError("it is cut short")
        data = self.file.read(self.left if size < 0 else size)
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        """The rest of a line, which is short."""
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < 4096:
            line += self.read(1)
        return bytes(line)


class Fillable:
    """What gets its content after it is made."""

    __slots__ = ()

    def fill(self, state: Any) -> None:  # noqa: ARG002
        """Take the content.

        Raises:
            pickle.UnpicklingError: it is of another kind.
        """
        raise pickle.UnpicklingError(f"{type(self).__name__} cannot be given a state")


class Ordered(dict[Any, Any], Fillable):
    """`collections.OrderedDict`; what torch hangs on it is left out."""

    def fill(self, state: Any) -> None:
        """Nothing that anybody reads."""


class MakeOrdered:
    """The type `collections.OrderedDict`."""

    __slots__ = ()

    def __call__(self, pairs: Iterable[tuple[Any, Any]] = ()) -> Ordered:
        return Ordered({_key(key): value for key, value in pairs})


class MakeTuple:
    """The type `tuple`."""

    __slots__ = ()

    def __call__(self, items: Iterable[Any] = ()) -> tuple[Any, ...]:
        return tuple(items)


COMMON: dict[str, object] = {
    "collections.OrderedDict": MakeOrdered(),
    "builtins.tuple": MakeTuple(),
    "__builtin__.tuple": MakeTuple(),
}
"""Names that all files of arrays need -> what stands for them."""


def loaded(stream: Source, known: Mapping[str, object], stored: Callable[[Any], Any] | None = None) -> Any:
    """The value of a pickle.

    Args:
        stream: at its beginning; afterwards, behind its end.
        known: every name that it may ask for -> what stands for it.
        stored: what an entry stands for that lies outside of the pickle; None where there are none.

    Raises:
        Exception: it is malformed, in any of the ways that Python has for it.
        pickle.UnpicklingError: it asks for another name, or does what no array needs.
    """
    return _Reader(stream, known, stored).load()


class _Reader(pickle._Unpickler):
    """Python's own reader, with our table of operations; its memo is a dictionary."""

    def __init__(
        self, stream: Source, known: Mapping[str, object], stored: Callable[[Any], Any] | None
    ) -> None:
        super().__init__(stream, encoding="latin1")
        self.known, self.stored = known, stored
        self.dispatch = _Operations()  # type: ignore[misc]

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in self.known:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no array needs; it may be harmful, and was not run"
            )
        return self.known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> Any:
        if self.stored is None:
            raise pickle.UnpicklingError("it refers to something outside of the file")
        return self.stored(pid)


class _Operations(dict[int, Callable[[Any], None]]):
    """The table of operations of one reader; it counts those that are done."""

    def __init__(self) -> None:
        super().__init__(_TABLE)
        self.left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        self.left -= 1
        if self.left < 0:
            raise pickle.UnpicklingError(f"it has more than {MAX_OPERATIONS} operations")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError(f"it has the operation {bytes([code])!r}, which no array needs")


def _key(key: object) -> Any:
    if type(key) not in (str, int):
        raise pickle.UnpicklingError(f"a key of the type {type(key).__name__}; arrays have names")
    return key


def _set_items(reader: Any, items: list[Any]) -> None:
    """Put keys and values, by turns, into what lies on top of the stack."""
    target = reader.stack[-1]
    if not isinstance(target, dict) or len(items) % 2:
        raise pickle.UnpicklingError("items are put into something else than a dictionary")
    target.update(zip(map(_key, items[0::2]), items[1::2], strict=True))


def _load_dict(reader: Any) -> None:
    items = reader.pop_mark()
    reader.append({})
    _set_items(reader, items)


def _load_build(reader: Any) -> None:
    state, target = reader.stack.pop(), reader.stack[-1]
    if not isinstance(target, Fillable):
        raise pickle.UnpicklingError(f"{type(target).__name__} cannot be given a state")
    target.fill(state)


_TABLE: dict[int, Callable[[Any], None]] = {
    **{getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]] for name in _ALLOWED},
    pickle.SETITEM[0]: lambda reader: _set_items(reader, [reader.stack.pop(), reader.stack.pop()][::-1]),
    pickle.SETITEMS[0]: lambda reader: _set_items(reader, reader.pop_mark()),
    pickle.DICT[0]: _load_dict,
    pickle.BUILD[0]: _load_build,
}
