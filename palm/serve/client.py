"""The client of a server of `palm serve`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from palm.core.errors import PalmError

BUSY = (429, 503)


class Client:
    """Predict with the models of a server; usable as a context manager.

    A request that the server was too busy for is sent again, after the time that it asks for, or else after
    0.5, 1, 2 … seconds; so is one whose connection failed, because predicting twice does no harm.

    Args:
        url: the address of the server, such as `http://localhost:8000`.
        api_key: the key of the server; None for that in the environment variable PALM_API_KEY.
        timeout: seconds that a single attempt may take.
        retries: the most attempts after the first one.
        transport: a transport of httpx in place of the network, such as `httpx.ASGITransport`.

    Raises:
        PalmError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 6,
        transport: Any = None,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise PalmError("palm.Client needs httpx: pip install 'palm-torch[serve]'") from None
        key = api_key or os.environ.get("PALM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)
        self._failures = httpx.TransportError
        self._retries = retries

    def predict(
        self, texts: Sequence[Any], tasks: Sequence[str] | None = None
    ) -> list[dict[str, dict[str, Any]]]:
        """Predict texts.

        Args:
            texts: a text, a pair, a list of words, or what the `predict` of the tasks takes, each.
            tasks: names of tasks; None for all.

        Returns:
            For each text task -> its record, as returned by the `predict` of the models.

        Raises:
            PalmError: the server refuses the request, or cannot be reached; with its message.
        """
        body = {"texts": list(texts)} | ({} if tasks is None else {"tasks": list(tasks)})
        results: list[dict[str, dict[str, Any]]] = self._json("POST", "/predict", json=body)["results"]
        return results

    def models(self) -> dict[str, Any]:
        """Describe the tasks of the server: kind, labels and an example, and the bounds of a request.

        Raises:
            PalmError: see `predict`.
        """
        found: dict[str, Any] = self._json("GET", "/models")
        return found

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _json(self, method: str, path: str, **request: Any) -> Any:
        problem = ""
        for wait in self._waits():
            asked = 0.0
            try:
                response = self._http.request(method, path, **request)
            except self._failures as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return response.json()
                problem = f"status {response.status_code}: {_detail(response)}"
                if response.status_code not in BUSY:
                    break
                asked = _seconds(response.headers.get("Retry-After", ""))
            if wait is not None:
                time.sleep(asked or wait)
        raise PalmError(f"{self._http.base_url}: {problem}")

    def _waits(self) -> Iterator[float | None]:
        """Yield the seconds to wait after each attempt; None after the last one."""
        yield from (0.5 * 2**number for number in range(self._retries))
        yield None


def _detail(response: Any) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):  # an answer of something between client and server
        return str(response.reason_phrase)


def _seconds(header: str) -> float:
    """Return the seconds of a Retry-After; 0 if there is none, or a date."""
    return float(header) if header.isdecimal() else 0.0
