"""A server in a thread of the test, or in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from palm.core.process import START
from palm.serve.app import create_app
from palm.serve.service import Settings


@contextmanager
def served(*folders: Path, api_key: str | None = None, **settings: Any) -> Iterator[str]:
    """Serve in a thread; yield the address."""
    app = create_app(Settings([str(folder) for folder in folders], **settings), api_key)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def serving_process(*words: object, port: int, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run `palm serve` until it is ready; kill it if the block leaves it running."""
    command = [*START, "serve", *map(str, words), "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes, env={**os.environ, **environment})
    try:
        while not is_ready(port):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready").is_success
    except httpx.TransportError:
        return False


def metric(url: str, name: str, **labels: str) -> float:
    """The value of a metric of the server; 0 if nothing was counted."""
    text = httpx.get(f"{url}/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())


def log_lines(output: str) -> list[dict[str, Any]]:
    """The lines of an access log."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
