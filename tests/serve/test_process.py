"""`palm serve` as a process: how it ends, how it replaces models, what it logs."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")
httpx = pytest.importorskip("httpx", reason="needs the extra `serve`")

import palm  # noqa: E402
from helpers.ports import free_port  # noqa: E402
from helpers.serving import log_lines, metric, serving_process  # noqa: E402

TEXT = "anna has a red door ."


def test_sigterm_under_load_loses_no_accepted_request_and_logs_no_text(run: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    statuses: list[Any] = []
    started = threading.Event()

    def ask(_: int) -> None:
        with httpx.Client(timeout=30) as http:
            while True:
                try:
                    answer = http.post(
                        f"{url}/predict", json={"texts": [f"{TEXT} secret"] * 20, "tasks": ["cls"]}
                    )
                except httpx.TransportError as error:
                    statuses.append(error)
                    return
                statuses.append(answer.status_code)
                started.set()

    with serving_process(run / "cls", "--workers", 2, port=port) as process, ThreadPoolExecutor(4) as clients:
        for _ in range(10):  # by new connections, which go to any worker
            httpx.post(f"{url}/predict", json={"texts": [TEXT]})
        assert metric(url, "palm_texts_total", task="cls") == 10
        running = clients.map(ask, range(4))
        assert started.wait(60)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
        list(running)

    assert process.returncode == 0
    assert "Traceback" not in errors
    assert sum(url in line for line in errors.splitlines()) == 1  # where to go, once for all workers
    assert "secret" not in output + errors
    lines = [line for line in log_lines(output) if line["path"] == "/predict"]
    answers = [status for status in statuses if isinstance(status, int)]
    assert set(answers) == {200}
    # What the server has accepted, its clients have received.
    assert len(lines) == 10 + len(answers)
    assert lines[-1].keys() >= {"time", "request", "method", "status", "seconds", "tokens"}
    assert lines[-1]["texts"] == 20


def test_a_new_model_replaces_the_old_one_between_batches(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(run / "cls" / "infer_model", folder)
    old = palm.load_model(folder)
    new = palm.load_model(folder)
    new.head.out.bias.data += 1.5  # type: ignore[union-attr,operator]
    new.head.out.bias.data[0] -= 3  # type: ignore[union-attr,operator]
    new.save(tmp_path / "new")
    answers = [model.predict([TEXT])[0]["logits"] for model in (old, new)]
    port = free_port()
    seen: list[int] = []
    with (
        serving_process(folder, "--watch", "--log_texts", port=port, PALM_API_KEY="sesam") as process,
        palm.Client(f"http://127.0.0.1:{port}", api_key="sesam") as client,
    ):
        # What is damaged, or not complete yet, replaces nothing.
        (folder / "manifest.json").write_text("{", encoding="utf-8")
        time.sleep(1.5)
        assert client.predict([TEXT])[0]["cls"]["logits"] == pytest.approx(answers[0], abs=1e-6)
        folder.rename(tmp_path / "old")
        (tmp_path / "new").rename(folder)
        while 1 not in seen:
            logits = client.predict([TEXT])[0]["cls"]["logits"]
            seen.append([logits == pytest.approx(each, abs=1e-6) for each in answers].index(True))
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)

    assert seen == sorted(seen)
    assert process.returncode == 0
    assert "the model stays as it is" in errors
    assert log_lines(output)[-1]["content"] == [TEXT]
    assert "sesam" not in output + errors


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["{run}/cls", "{run}/cls"],
        ["{run}/cls", "--port", "70000"],
        ["{run}/cls", "--workers", "0"],
    ],
)
def test_a_server_that_cannot_start_says_why(
    words: list[str], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from palm.cli import main

    assert main(["serve", *(word.format(run=run) for word in words)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
