"""Pickles as data: a pickle is a program that names functions and calls them, and here it can do neither.

The few names that arrays are made with stand for functions of our own, which only collect numbers; any other
name ends the reading. So do operations that arrays do not need, and what costs more than the file weighs:
Python's reader in C reserves memory for any number that a memo is given, and every reader (that of
`torch.load(weights_only=True)` too) computes the hash of a key, which takes forever for nested tuples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, NoReturn

MAX_OPERATIONS = 200_000
"""Operations of one pickle, each of which may leave an object of 100 bytes; an array takes about thirty."""

_ALLOWED = """
    PROTO FRAME STOP MARK POP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 BINFLOAT BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS
    EMPTY_DICT GLOBAL STACK_GLOBAL REDUCE BINPERSID
"""
"""Operations of the protocols from 2 on that are done as Python does them."""

_LONGEST_LINE = 4096


class Stream:
    """A part of a file; reading past its end fails before memory is reserved.

    Args:
        file: open for reading, at the beginning of the part.
        size: of the part, in bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.left = size

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly `size` bytes, all that are left where it is negative.

        Raises:
            EOFError: there are fewer.
        """
        if size > self.left:
            raise EOFError("it is cut short")
        data = self.file.read(self.left if size < 0 else size)
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        """Return the rest of a line, which is short."""
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < _LONGEST_LINE:
            line += self.read(1)
        return bytes(line)


class Fillable:
    """Base of objects that get their content after they are made."""

    __slots__ = ()

    def fill(self, state: Any) -> None:
        """Take the content."""
        raise NotImplementedError


class Ordered(dict[Any, Any], Fillable):
    """`collections.OrderedDict`, without the attributes that torch sets on it."""

    def fill(self, state: Any) -> None:
        """Ignore the attributes."""


def _ordered(pairs: Iterable[tuple[Any, Any]] = ()) -> Ordered:
    return Ordered({_key(key): value for key, value in pairs})


COMMON: dict[str, object] = {
    "collections.OrderedDict": _ordered,
    "builtins.tuple": tuple,
    "__builtin__.tuple": tuple,
}
"""Names that all files of arrays need -> what stands for them."""


def load_pickle(
    stream: Stream, known: Mapping[str, object], stored: Callable[[Any], Any] | None = None
) -> Any:
    """Return the value of a pickle.

    Args:
        stream: at its beginning; afterwards, behind its end.
        known: every name that it may ask for -> what stands for it.
        stored: returns the value of an entry that lies outside of the pickle; None where there are none.

    Raises:
        Exception: it is malformed, in any of the ways that Python has for it.
        pickle.UnpicklingError: it asks for another name, or does what no array needs.
    """
    return _Reader(stream, known, stored).load()


class _Reader(pickle._Unpickler):
    """Python's own reader, with our table of operations; its memo is a dictionary."""

    def __init__(
        self, stream: Stream, known: Mapping[str, object], stored: Callable[[Any], Any] | None
    ) -> None:
        # Python 2 wrote bytes as text; latin1 makes each byte the character of its number.
        super().__init__(stream, encoding="latin1")
        self.known = known
        self.stored = stored
        # Of this reader alone: the table of the class is that of every pickle in the process.
        self.dispatch = _Operations(_TABLE)  # type: ignore[misc]

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

    left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        # Python's reader looks up every operation here, so that counting needs no loop of our own.
        self.left -= 1
        if self.left < 0:
            raise pickle.UnpicklingError(f"it has more than {MAX_OPERATIONS} operations")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError(f"it has the operation {bytes([code])!r}, which no array needs")


def _key(key: object) -> Any:
    # By type: a subclass could have a hash of its own, and tuples hash for as long as they are deep.
    if type(key) not in (str, int):
        raise pickle.UnpicklingError(f"a key of the type {type(key).__name__}; arrays have names")
    return key


def _set_items(reader: Any, items: list[Any]) -> None:
    """Put keys and values, by turns, into what lies on top of the stack."""
    target = reader.stack[-1]
    if not isinstance(target, dict) or len(items) % 2:
        raise pickle.UnpicklingError("items are put into something else than a dictionary")
    target.update(zip(map(_key, items[0::2]), items[1::2], strict=True))


def _load_setitem(reader: Any) -> None:
    value = reader.stack.pop()
    _set_items(reader, [reader.stack.pop(), value])


def _load_setitems(reader: Any) -> None:
    _set_items(reader, reader.pop_mark())


def _load_build(reader: Any) -> None:
    state = reader.stack.pop()
    target = reader.stack[-1]
    if not isinstance(target, Fillable):
        raise pickle.UnpicklingError(f"{type(target).__name__} cannot be given a state")
    target.fill(state)


_TABLE: dict[int, Callable[[Any], None]] = {
    getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
    for name in _ALLOWED.split()
} | {
    pickle.SETITEM[0]: _load_setitem,
    pickle.SETITEMS[0]: _load_setitems,
    pickle.BUILD[0]: _load_build,
}
