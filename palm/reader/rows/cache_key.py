"""The key of encoded rows, made of all that they depend on: equal keys, equal rows."""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path

import tokenizers

from palm.core.files.checksum import checksum
from palm.reader.rows.chunks import RowEncoder

FORMAT = 2
"""How rows are laid down on disk."""

_HASH = "blake2b"


def key_of(reader: RowEncoder, path: Path) -> str | None:
    """The key of a training file's rows, 32 hexadecimal digits; None where they cannot be cached.

    It covers the bytes of the file and of the vocabulary's files, the reader's class and source code, that of
    the readers and the tokenizer that come with palm, the reader's settings (of files, their bytes), and
    the version of the `tokenizers` library. Names and places of files do not count.

    There is no key for a reader whose class does not say `cacheable = True` itself, for settings that
    have no form on disk, and where one of the files cannot be read.
    """
    # Whatever a row may depend on is in the key, by its content: a stale entry would train on wrong rows and
    # nothing would tell, an entry too many costs one more encoding. So a user's class says itself that its
    # module and settings are all (`cacheable` is not inherited), and a change to palm's readers encodes anew.
    kind = type(reader)
    if not kind.__dict__.get("cacheable", False):
        return None
    package = Path(__file__).parents[1]  # palm.reader, which also has the tokenizers
    try:
        written = [Path(inspect.getfile(owner)) for owner in kind.__mro__[:-1]]  # without `object`
        sources = dict.fromkeys([*sorted(package.rglob("*.py")), *written])
        parts = {
            "format": FORMAT,
            "data": checksum(path, _HASH),
            "reader": f"{kind.__module__}.{kind.__qualname__}",
            "settings": json.dumps(reader.settings, sort_keys=True, default=_content),
            "vocabulary": [checksum(file, _HASH) for file in (reader.vocab_path, *reader.companions)],
            "code": [checksum(file, _HASH) for file in sources],
            "tokenizers": tokenizers.__version__,
        }
    except (OSError, TypeError, ValueError):
        return None
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _content(value: object) -> dict[str, str]:
    """Stand in for a setting that JSON has no form for: of a file, its bytes."""
    if isinstance(value, Path):
        return {_HASH: checksum(value, _HASH)}
    raise TypeError(f"{value!r} has no form on disk")
