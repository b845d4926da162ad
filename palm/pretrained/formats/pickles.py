"""Pickles as data: a pickle is a program that can call any function; this reader calls none of them.

The few names that arrays need are mapped to functions of our own, which only collect values; any other name
is an error. So are operations that arrays do not need, and costs out of proportion to the file's size:
Python's reader in C allocates memory for any memo index, and every reader, including that of
`torch.load(weights_only=True)`, computes the hash of a key, which takes forever for nested tuples.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, NoReturn

MAX_OPERATIONS = 200_000
"""Limit of the operations of one pickle; each may create an object of 100 bytes, and an array needs 30."""

_ALLOWED = """
    PROTO FRAME STOP MARK POP MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE
    BININT BININT1 BININT2 LONG1 BINFLOAT BINSTRING SHORT_BINSTRING BINUNICODE SHORT_BINUNICODE BINUNICODE8
    BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS
    EMPTY_DICT GLOBAL STACK_GLOBAL REDUCE BINPERSID
"""
"""Operations of the protocols from 2 on with Python's own implementation."""

_MAX_LINE = 4096


class Stream:
    """A part of a file; reading past its end fails before memory is allocated.

    Args:
        file: open for reading, at the start of the part.
        size: size of the part in bytes.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file = file
        self.left = size

    def read(self, size: int = -1, /) -> bytes:
        """Return exactly `size` bytes, or all remaining ones if it is negative.

        Raises:
            EOFError: if fewer bytes remain.
        """
        if size > self.left:
            raise EOFError("it is truncated")
        data = self.file.read(self.left if size < 0 else size)
        self.left -= len(data)
        return data

    def readline(self) -> bytes:
        """Return the rest of a line, up to 4096 bytes."""
        line = bytearray()
        while not line.endswith(b"\n") and len(line) < _MAX_LINE:
            line += self.read(1)
        return bytes(line)


class Fillable:
    """Base class of objects whose content is set after their creation."""

    __slots__ = ()

    def fill(self, state: Any) -> None:
        """Set the content."""
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
"""Name that any file of arrays may refer to -> its replacement."""


def load_pickle(
    stream: Stream, known: Mapping[str, object], stored: Callable[[Any], Any] | None = None
) -> Any:
    """Load the value of a pickle.

    Args:
        stream: positioned at the start of the pickle; afterwards, at its end.
        known: name that it may refer to -> its replacement.
        stored: function that returns the value of a persistent id; None if there are none.

    Raises:
        Exception: if it is malformed; any of the errors that Python's reader may raise.
        pickle.UnpicklingError: if it refers to another name, or uses an operation that no array needs.
    """
    return _Reader(stream, known, stored).load()


class _Reader(pickle._Unpickler):
    """Python's own reader in Python, with our table of operations; its memo is a dictionary."""

    def __init__(
        self, stream: Stream, known: Mapping[str, object], stored: Callable[[Any], Any] | None
    ) -> None:
        # Python 2 wrote bytes as text; latin1 maps each byte to the character of the same number.
        super().__init__(stream, encoding="latin1")
        self.known = known
        self.stored = stored
        # Only for this reader: the table of the class is shared by all pickles of the process.
        self.dispatch = _Operations(_TABLE)  # type: ignore[misc]

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in self.known:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no array needs; it may be harmful and was not run"
            )
        return self.known[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> Any:
        if self.stored is None:
            raise pickle.UnpicklingError("it refers to an object outside the file")
        return self.stored(pid)


class _Operations(dict[int, Callable[[Any], None]]):
    """The table of operations of one reader, which counts their executions."""

    left = MAX_OPERATIONS

    def __getitem__(self, code: int) -> Callable[[Any], None]:
        # Python's reader looks up every operation here, so no loop of our own is needed to count them.
        self.left -= 1
        if self.left < 0:
            raise pickle.UnpicklingError(f"it has more than {MAX_OPERATIONS} operations")
        return super().__getitem__(code)

    def __missing__(self, code: int) -> NoReturn:
        raise pickle.UnpicklingError(f"it uses the operation {bytes([code])!r}, which no array needs")


def _key(key: object) -> Any:
    # By exact type: a subclass could have its own hash function, and nested tuples take forever to hash.
    if type(key) not in (str, int):
        raise pickle.UnpicklingError(f"a key has the type {type(key).__name__}, expected str or int")
    return key


def _set_items(reader: Any, items: list[Any]) -> None:
    """Insert alternating keys and values into the object on top of the stack."""
    target = reader.stack[-1]
    if not isinstance(target, dict) or len(items) % 2:
        raise pickle.UnpicklingError("it sets items of an object that is not a dictionary")
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
        raise pickle.UnpicklingError(f"it sets the state of an object of type {type(target).__name__}")
    target.fill(state)


_TABLE: dict[int, Callable[[Any], None]] = {
    getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
    for name in _ALLOWED.split()
} | {
    pickle.SETITEM[0]: _load_setitem,
    pickle.SETITEMS[0]: _load_setitems,
    pickle.BUILD[0]: _load_build,
}
