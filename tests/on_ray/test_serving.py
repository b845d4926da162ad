"""Replicas of Ray Serve answer as the model does, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import palm
import palm.ray
from helpers import tiny
from helpers.ports import free_port

pytestmark = pytest.mark.slow
TEXTS = [f"the {colour} {thing}" for colour in tiny.COLOURS for thing in tiny.THINGS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    tiny.controller(folder, "cls", num_epochs=0.5, precision="fp32").train()
    return folder / "out"


@pytest.fixture(scope="module")
def url(model: Path, cluster: None) -> Iterator[str]:  # noqa: ARG001
    pytest.importorskip("httpx", reason="needs the extra `serve`")
    serve = pytest.importorskip("ray.serve", reason="needs the extra `ray`")
    port = free_port()
    serve.start(http_options={"port": port})
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0.5}}
    serve.run(palm.ray.deployment(model, load={"device": "cpu"}, **options))
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()


def replicas() -> set[int]:
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if words.startswith(b"ray::ServeReplica"):
            found.add(int(process.name))
    return found


def test_no_request_is_lost_when_a_replica_is_killed(model: Path, url: str) -> None:
    expected = palm.load_model(model, device="cpu").predict(TEXTS)
    before = replicas()
    killed = False
    answers: list[dict[str, Any]] = []
    repeated = 0
    with palm.Client(url) as client:
        while len(answers) < 20 * len(TEXTS):
            number = len(answers) % len(TEXTS)
            try:
                answers.append(client.predict([TEXTS[number]])[0]["cls"])
            except palm.PalmError:  # the killed replica had it
                repeated += 1
                assert killed
                time.sleep(0.1)
            if len(answers) == 100 and not killed:
                os.kill(min(before), signal.SIGKILL)
                killed = True
    assert repeated < 20
    assert len(replicas() & before) == 1
    for number, record in enumerate(answers):
        same = expected[number % len(TEXTS)]
        assert record["label"] == same["label"]
        assert record["logits"] == pytest.approx(same["logits"], abs=1e-5)


def test_a_text_that_was_cut_says_so_and_a_wrong_request_says_why(url: str) -> None:
    httpx = pytest.importorskip("httpx")
    with palm.Client(url) as client:
        ((short,), (long,)) = ([each["cls"]] for each in client.predict(["a red door", "a red door " * 40]))
    assert "truncated" not in short
    assert long["truncated"] is True
    for body, status, said in (
        (b"{", 400, "JSON"),
        (b"[]", 422, "texts"),
        (b'{"texts": "a"}', 422, "list of texts"),
        (b'{"texts": ["a"], "tasks": ["clss"]}', 422, "did you mean 'cls'"),
        (b'{"texts": ["a"], "tasks": "cls"}', 422, "list of names"),
    ):
        answer = httpx.post(url, content=body)
        assert (answer.status_code, said in answer.json()["detail"]) == (status, True)
