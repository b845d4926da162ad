"""Headless Chromium, driven by chromedriver's HTTP interface (W3C WebDriver)."""

from __future__ import annotations

import base64
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from helpers.ports import free_port

BROWSERS = ("chromium", "google-chrome")
HAS_BROWSER = shutil.which("chromedriver") is not None and any(map(shutil.which, BROWSERS))
"""Whether the machine has what a test of a page needs."""

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
]


class Browser:
    """A session of a browser.

    Args:
        http: a client whose base address is that of the session.
    """

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def call(self, path: str, **body: Any) -> Any:
        answer = self._http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()["value"]

    def open(self, url: str, width: int, scheme: str) -> None:
        """Open a page on a screen of this width, in the scheme `light` or `dark`."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._devtools("Emulation.setEmulatedMedia", features=[feature])
        self.call("/url", url=url)

    def type(self, selector: str, text: str) -> None:
        """Type into an element, as a person does."""
        (element,) = self.call("/element", using="css selector", value=selector).values()
        self.call(f"/element/{element}/value", text=text)

    def script(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        return self.call("/execute/sync", script=f"return {code}", args=[])

    def wait_for(self, code: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + 30
        while not self.script(code):
            assert time.monotonic() < end, f"{code}: {self.script('document.body.innerText')}"
            time.sleep(0.05)

    def printed(self, path: Path) -> None:
        """Write the page as a PDF, as a person prints it."""
        self._devtools("Emulation.setEmulatedMedia", media="", features=[])
        made = self._devtools("Page.printToPDF", preferCSSPageSize=True, printBackground=False)
        path.write_bytes(base64.b64decode(made["data"]))

    def told(self, kind: str) -> list[dict[str, Any]]:
        """What happened since the last call: `browser`, messages of scripts; `performance`, all events."""
        found: list[dict[str, Any]] = self.call("/se/log", type=kind)
        return found

    def picture(self, path: Path, whole: bool = True) -> None:
        """Write a picture of the page, or of the part on the screen."""
        made = self._devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(made["data"]))

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("/goog/cdp/execute", cmd=command, params=parameters)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start a browser that keeps its files in a folder."""
    port = free_port()
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    arguments = [*FLAGS, f"--user-data-dir={folder}"]
    options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
    options["goog:loggingPrefs"] = {"browser": "ALL", "performance": "ALL"}
    transport = httpx.HTTPTransport(retries=8)  # until the driver listens
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", transport=transport, timeout=60) as http:
        try:
            made = http.post("/session", json={"capabilities": {"alwaysMatch": options}}).json()["value"]
            session = f"/session/{made['sessionId']}"
            http.base_url = http.base_url.join(session)
            yield Browser(http)
            http.delete("")
        finally:
            driver.terminate()
            driver.wait()
