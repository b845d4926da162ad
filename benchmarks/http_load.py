"""Requests at a constant rate, whether or not earlier ones are answered, over plain HTTP/1.1 connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

HEAD = (
    "POST /predict HTTP/1.1\r\nHost: server\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
)

IDLE_SECONDS = 3
"""Time after which an idle connection is closed, before the server does it."""


def request_of(body: bytes) -> bytes:
    """A request with a body."""
    return HEAD.format(len(body)).encode() + body


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read an answer: its status and its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = int(head.partition("content-length:")[2].partition("\r\n")[0])
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)


class Connections:
    """Kept connections to a server, as many as there are requests at a time.

    Args:
        port: where it listens on this machine.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._idle: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, body: bytes) -> tuple[int, bytes]:
        """Send a body and return status and body of the answer.

        Raises:
            OSError, asyncio.IncompleteReadError: the connection failed.
        """
        clock = asyncio.get_running_loop().time
        while self._idle and self._idle[0][0] < clock() - IDLE_SECONDS:
            self._idle.pop(0)[2].close()
        pair = self._idle.pop()[1:] if self._idle else await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = pair
        try:
            writer.write(request_of(body))
            answer = await answer_of(reader)
        except BaseException:
            writer.close()
            raise
        self._idle.append((clock(), *pair))
        return answer

    def close(self) -> None:
        """Close the connections that are not in use."""
        for _, _, writer in self._idle:
            writer.close()


async def at_rate(rate: float, count: int, send: Callable[[int, float], Awaitable[Any]]) -> list[Any]:
    """Call `send` with the number and the planned time of each request, at a constant rate.

    Args:
        rate: requests per second.
        count: their number.
        send: its results are returned, in order; times are those of the loop's clock.
    """
    begin = asyncio.get_running_loop().time()
    running = []
    for number in range(count):
        planned = begin + number / rate
        await asyncio.sleep(max(0.0, planned - asyncio.get_running_loop().time()))
        running.append(asyncio.ensure_future(send(number, planned)))
    return await asyncio.gather(*running)
