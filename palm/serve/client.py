"""The client of a server of `palm serve`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
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

    Raises:
        PalmError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 6,
    ) -> None:
        try:
            import httpx
        except ImportError:
            raise PalmError("palm.Client needs httpx: pip install 'palm-torch[serve]'") from None
        key = api_key or os.environ.get("PALM_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
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
        return list(self._json("POST", "/predict", json=body)["results"])

    def models(self) -> dict[str, Any]:
        """Describe the tasks of the server: kind, labels and an example.

        Raises:
            PalmError: see `predict`.
        """
        return dict(self._json("GET", "/models"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _json(self, method: str, path: str, **request: Any) -> Any:
        for number in range(self._retries + 1):
            wait = 0.5 * 2**number
            try:
                response = self._http.request(method, path, **request)
            except self._failures as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.is_success:
                    return response.json()
                is_ours = response.headers.get("Content-Type") == "application/json"
                reason = response.json().get("detail") if is_ours else response.reason_phrase
                problem = f"status {response.status_code}: {reason}"
                if response.status_code not in BUSY:
                    break
                asked = response.headers.get("Retry-After", "")
                wait = float(asked) if asked.isdecimal() else wait
            if number < self._retries:
                time.sleep(wait)
        raise PalmError(f"{self._http.base_url}: {problem}")
