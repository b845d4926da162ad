"""Paddle's `.pdparams`: a pickle of numpy arrays."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palm.core.files.untrusted import wrap_read_errors
from palm.pretrained.formats.pickles import COMMON, Fillable, Stream, load_pickle

NAMES_KEY = "StructuredToParameterName@@"
PARTS_KEY = "UnpackBigParamInfor@@"
"""Paddle's own entries: other names of the arrays, and large arrays that were split into parts."""

_DTYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "b1"}


def read_pdparams(file: Path, headers: bool = False) -> dict[str, Tensor]:
    """Read the arrays of a file written by `paddle.save(layer.state_dict(), file)`, by name.

    Args:
        file: the file.
        headers: return tensors on the device "meta"; the values are read anyway, as part of the pickle.

    Raises:
        StorageError: if it is not such a file, contains anything besides arrays, or asks for a function to be
            called.
    """
    with wrap_read_errors(file, " as Paddle's arrays"):
        with file.open("rb") as stream:
            content = load_pickle(Stream(stream, file.stat().st_size), _KNOWN)
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"it contains a {type(content).__name__}, not arrays by name")
        content.pop(NAMES_KEY, None)
        parts = content.pop(PARTS_KEY, {})
        # One by one, so only a single array is in memory twice.
        tensors = {name: _tensor(name, content.pop(name)) for name in list(content)}
        for name, cut in parts.items():
            pieces = [tensors.pop(piece) for piece in cut["slices"]]
            tensors[name] = torch.cat(pieces).reshape(cut["OriginShape"])
        return {name: value.to("meta") for name, value in tensors.items()} if headers else tensors


def _tensor(name: object, value: Any) -> Tensor:
    """Convert an entry to a tensor; in some versions a parameter is (its name, its array)."""
    array = value[1] if isinstance(value, tuple) and len(value) == 2 else value
    if not (isinstance(name, str) and isinstance(array, _Array) and array.values is not None):
        raise pickle.UnpicklingError(f"{name!r} is not an array")
    values = array.values
    if values.dtype.str[1:] == "u2":  # Paddle's bfloat16, which numpy lacks
        return torch.from_numpy(values.astype("<u2")).view(torch.bfloat16)
    return torch.from_numpy(values.astype(values.dtype.newbyteorder("=")))


class _Dtype(Fillable):
    """The dtype of an array: its code and, set later, its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or code not in _DTYPES:
            shown = repr(code) if isinstance(code, str) else type(code).__name__
            raise pickle.UnpicklingError(f"arrays of type {shown} are not numeric")
        self.code = code
        self.order = "<"

    def fill(self, state: Any) -> None:
        """Set the byte order."""
        if not isinstance(state[1], str) or state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("the byte order of an array is unknown")
        self.order = state[1]


class _Array(Fillable):
    """An array, empty until `fill`; numpy always creates it with the same arguments."""

    __slots__ = ("values",)

    def __init__(self, *_: object) -> None:
        self.values: np.ndarray[Any, Any] | None = None

    def fill(self, state: Any) -> None:
        """Set shape, dtype and values."""
        _, shape, dtype, is_fortran, data = state
        # Python 2 wrote bytes as text, one character per byte.
        raw = data.encode("latin1") if isinstance(data, str) else data
        flat = np.frombuffer(raw, dtype=np.dtype(dtype.order + dtype.code))
        self.values = flat.reshape(shape, order="F" if is_fortran else "C")


def _encode(text: str, encoding: object) -> bytes:
    """Replace `_codecs.encode`, which old protocols use for bytes."""
    if not isinstance(encoding, str) or encoding != "latin1":
        raise pickle.UnpicklingError("the encoding of bytes should be latin1")
    return text.encode("latin1")


_KNOWN: dict[str, object] = {
    **COMMON,
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy._core.multiarray._reconstruct": _Array,
    "numpy.ndarray": object(),
    "numpy.dtype": _Dtype,
    "_codecs.encode": _encode,
}
"""Name that a file of arrays may refer to -> its replacement."""
