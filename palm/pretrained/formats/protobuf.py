"""Protocol buffers without a schema: the fields of a message, by number."""

from __future__ import annotations

from collections.abc import Iterator

_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes of a number of fixed size."""

_LONGEST = 63
"""Bits before the last byte of an integer; more make no 64."""


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of every field, in order: an integer, or the bytes of text or of another message.

    Raises:
        ValueError: the message is cut short, or something else.
    """
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = varint(message, at)
            yield tag >> 3, value
            continue
        size, at = (_FIXED[kind], at) if kind in _FIXED else varint(message, at)
        if kind not in (2, *_FIXED) or at + size > len(message):
            raise ValueError("not a protocol buffer")
        data = message[at : at + size]
        yield tag >> 3, data if kind == 2 else int.from_bytes(data, "little")
        at += size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The integer that begins at a place, seven bits a byte from the lowest on, and where it ends.

    Raises:
        ValueError: the data end within it.
    """
    value = shift = 0
    while at < len(data) and data[at] & 0x80 and shift < _LONGEST:
        value |= (data[at] & 0x7F) << shift
        at += 1
        shift += 7
    if at >= len(data) or data[at] & 0x80:
        raise ValueError("cut short")
    return value | data[at] << shift, at + 1
