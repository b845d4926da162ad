"""numpy's `.npz`: a zip file of arrays, each with a header that tells its type and shape."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from palm.core.files.untrusted import wrap_read_errors
from palm.pretrained.formats.zips import opened

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(file: Path, headers: bool = False) -> dict[str, Tensor]:
    """The arrays of a file, by name.

    Args:
        file: what `numpy.savez` wrote.
        headers: leave the numbers where they are; the tensors are on the device "meta".

    Raises:
        StorageError: it is something else, damaged, or claims more than it holds.
    """
    with wrap_read_errors(file, " as numpy's arrays"), opened(file) as archive:
        found = {}
        for entry in archive.infolist():
            name = entry.filename.removesuffix(".npy")
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                shape, by_columns, dtype = _HEADERS[version](stream)
                if dtype.hasobject or math.prod(shape) * dtype.itemsize != entry.file_size - stream.tell():
                    claim = f"{list(shape)} of {dtype}, which it is not"
                    raise ValueError(f"the header of {entry.filename} claims {claim}")
                if headers:
                    kind = torch.from_numpy(np.empty(0, dtype)).dtype
                    found[name] = torch.empty(shape, dtype=kind, device="meta")
                else:  # to its end, where the checksum is compared
                    values = np.frombuffer(bytearray(stream.read()), dtype)
                    found[name] = torch.from_numpy(values.reshape(shape, order="F" if by_columns else "C"))
        return found
