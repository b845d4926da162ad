"""Paddle's `.pdparams`: a pickle of arrays, read without letting the pickle do anything else.

A pickle is a program that names functions and calls them. Here the few names that arrays are made
with stand for objects of our own, which only collect numbers; any other name ends the reading.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from palm.core.errors import StorageError

NAMES_KEY = "StructuredToParameterName@@"
PARTS_KEY = "UnpackBigParamInfor@@"
"""Paddle's own entries: other names of the arrays, and large arrays that were cut into parts."""

_DTYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "b1"}


def read_pdparams(file: Path) -> dict[str, Tensor]:
    """The arrays of a file that `paddle.save(layer.state_dict(), file)` wrote, by name.

    Raises:
        StorageError: it is something else, holds more than arrays, or asks for anything to be called.
    """
    try:
        with file.open("rb") as stream:
            content = _Arrays(stream, encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it holds a {type(content).__name__}, not arrays by name")
        content.pop(NAMES_KEY, None)
        return _joined(
            {name: _tensor(value, name) for name, value in content.items() if name != PARTS_KEY}, content
        )
    except RecursionError:
        raise StorageError(f"cannot read {file} as Paddle's arrays: it is nested too deeply") from None
    except (OSError, EOFError, pickle.UnpicklingError, *_MALFORMED) as error:
        raise StorageError(f"cannot read {file} as Paddle's arrays: {error}") from error


_MALFORMED = (
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    UnicodeError,
    MemoryError,
    OverflowError,
)
"""What the standard library's reader raises on bytes that are no pickle."""


class _Closed:
    """What a pickle may use, but not change."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError(f"{type(self).__name__} cannot be given a state")


class _Dtype:
    """An array's type: its code, and later the order of its bytes."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        if code not in _DTYPES:
            raise pickle.UnpicklingError(f"arrays of {code!r} are not numbers")
        self.code, self.order = code, "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = {"<": "<", ">": ">", "|": "|", "=": "="}[state[1]]


class _Array:
    """An array, empty until its state comes."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        raw = data.encode("latin1") if isinstance(data, str) else data
        flat = np.frombuffer(raw, dtype=np.dtype(dtype.order + dtype.code))
        self.values = flat.reshape(shape, order="F" if is_fortran else "C")


class _Reconstruct(_Closed):
    """numpy's function of this name; its arguments are always the same."""

    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _MakeDtype(_Closed):
    """The type `numpy.dtype`."""

    __slots__ = ()

    def __call__(self, code: str, *_: object) -> _Dtype:
        return _Dtype(code)


class _Encode(_Closed):
    """`_codecs.encode`, with which old protocols write bytes."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"bytes are written as latin1, not as {encoding!r}")
        return text.encode("latin1")


_KNOWN: dict[str, object] = {
    "numpy.core.multiarray._reconstruct": _Reconstruct(),
    "numpy._core.multiarray._reconstruct": _Reconstruct(),
    "numpy.ndarray": _Closed(),
    "numpy.dtype": _MakeDtype(),
    "_codecs.encode": _Encode(),
    "collections.OrderedDict": dict,
    "builtins.tuple": tuple,
    "__builtin__.tuple": tuple,
}
"""Every name that a file of arrays needs -> what stands for it."""


class _Arrays(pickle.Unpickler):
    """A reader of pickles that knows no other names than `_KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _KNOWN:
            raise pickle.UnpicklingError(
                f"it asks for {module}.{name}, which no array needs; it may be harmful, and was not run"
            )
        return _KNOWN[f"{module}.{name}"]

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError(f"it refers to {pid!r} outside of the file")


def _tensor(value: object, name: object) -> Tensor:
    # In some versions a parameter is (its name, its array).
    array = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    if not (isinstance(name, str) and isinstance(array, _Array) and array.values is not None):
        raise pickle.UnpicklingError(f"{name!r} is no array")
    if array.values.dtype.str[1:] == "u2":  # Paddle's bfloat16, a type that numpy does not have
        return torch.from_numpy(array.values.astype("<u2")).view(torch.bfloat16)
    return torch.from_numpy(array.values.astype(array.values.dtype.newbyteorder("=")))


def _joined(tensors: dict[str, Tensor], content: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors with those in one piece again that Paddle cut."""
    for name, cut in content.get(PARTS_KEY, {}).items():
        parts = [tensors.pop(part) for part in cut["slices"]]
        tensors[name] = torch.cat(parts).reshape(cut["OriginShape"])
    return tensors
