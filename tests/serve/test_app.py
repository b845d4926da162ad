"""The HTTP interface, with real models behind it and real connections."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")
httpx = pytest.importorskip("httpx", reason="needs the extra `serve`")

import yaml  # noqa: E402

import palm  # noqa: E402
from helpers import tiny  # noqa: E402
from helpers.serving import metric, served  # noqa: E402
from palm.cli import COMMANDS  # noqa: E402
from palm.serve.app import AccessLog  # noqa: E402
from palm.serve.service import Settings  # noqa: E402

TASKS = ("cls", "match", "mrc", "span")
TEXTS: dict[str, list[Any]] = {
    "cls": ["anna has a red door .", {"text_a": "emil has a new blue boat ."}],
    "match": [("who owns the lamp", "dora has a old grey lamp ."), ("who owns the sun", "a red ball .")],
    "mrc": [("what colour is the door", "anna has a red door . " * 4)],
    "span": ["fred has a old red ball .", ["dora", "has", "a", "red", "lamp", "."]],
}


@pytest.fixture(scope="module")
def models(run: Path) -> dict[str, Any]:
    return palm.load_model(run).tasks


@pytest.fixture(scope="module")
def url(run: Path) -> Iterator[str]:
    with served(run, texts=8, characters=2000) as address:
        yield address


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_those_of_predict_bit_by_bit(url: str, models: dict[str, Any], task: str) -> None:
    answer = httpx.post(f"{url}/predict", json={"texts": TEXTS[task], "tasks": [task]})
    assert answer.status_code == 200
    expected = json.loads(json.dumps(models[task].predict(TEXTS[task])))
    assert [result[task] for result in answer.json()["results"]] == expected


def test_tasks_answer_together_and_say_which_text_was_cut(url: str, models: dict[str, Any]) -> None:
    texts = ["anna has a red door .", "dora has a new blue coat . " * 5]
    before = metric(url, "palm_truncated_texts_total", task="cls")
    answer = httpx.post(f"{url}/predict", json={"texts": texts, "tasks": ["span", "cls"]}).json()["results"]
    for number, text in enumerate(texts):
        assert list(answer[number]) == ["span", "cls"]
        for task, record in answer[number].items():
            assert record.pop("truncated", False) is (number == 1 and task == "cls")  # span has windows
            (expected,) = models[task].predict([text])
            assert record["index"] == number
            assert record.get("logits", []) == pytest.approx(expected.get("logits", []), abs=1e-5)
    assert metric(url, "palm_truncated_texts_total", task="cls") == before + 1
    assert metric(url, "palm_truncated_texts_total", task="span") == 0


def test_answers_under_load_are_those_of_predict(url: str, models: dict[str, Any]) -> None:
    words = [*tiny.COLOURS, *tiny.THINGS, *tiny.NAMES, *tiny.FILLERS]
    rows = [
        [
            " ".join(words[(k * step) % len(words)] for k in range(1, 3 + step % 30))
            for step in range(n, n + 3)
        ]
        for n in range(120)
    ]
    expected = [models["cls"].predict(texts) for texts in rows]
    before = metric(url, "palm_batch_requests_count")
    with palm.Client(url) as client, ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda texts: client.predict(texts, ["cls"]), rows))

    for records, results in zip(expected, answers, strict=True):
        for record, result in zip(records, results, strict=True):
            assert result["cls"]["label"] == record["label"]
            assert result["cls"]["index"] == record["index"]
            assert result["cls"]["logits"] == pytest.approx(record["logits"], abs=1e-5)
    assert 0 < metric(url, "palm_batch_requests_count") - before < len(rows)  # some shared a batch


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"texts": ["a"], "tasks": ["clss"]}, 422, "did you mean 'cls'"),
        ({"texts": ["a"], "tasks": []}, 422, "tasks"),
        ({"texts": "a"}, 422, "texts"),
        ({"text": ["a"]}, 422, "texts"),
        ({"texts": ["a", 3], "tasks": ["cls"]}, 422, "text 1"),
        ({"texts": [" "], "tasks": ["cls"]}, 422, "text 0"),
        ({"texts": [["a", "b"], ["c"]], "tasks": ["match"]}, 422, "text 1"),
        ({"texts": ["a"] * 9, "tasks": ["cls"]}, 413, "9 texts"),
        ({"texts": ["a " * 700, "b " * 400], "tasks": ["cls"]}, 413, "2200 characters"),
        (b'{"texts": ["a"', 400, "line 1 column 14"),
        (b'{"texts": ["\\ud800"]}', 400, "body"),
        (b'{"texts": ' + b"[" * 100000, 413, "2000 characters"),
        (b'{"texts": ' + b"[" * 9000, 400, "recursion"),
        (b"\xff\xfe", 400, "body"),
        (b"", 400, "body"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(url: str, body: Any, status: int, said: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(f"{url}/predict", content=content)
    assert answer.status_code == status
    assert said in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 500
    assert "Traceback" not in answer.text
    assert "/" not in answer.json()["detail"]


def test_a_body_that_is_too_long_is_read_to_its_end_and_refused(url: str) -> None:
    chunks = (b"a" * 4096 for _ in range(100))
    answer = httpx.post(f"{url}/predict", content=chunks)
    assert answer.status_code == 413
    assert answer.json()["detail"].startswith("409600 bytes")


def test_a_full_queue_is_said_with_the_time_to_wait(run: Path) -> None:
    with served(run / "cls", queue=0) as url:
        answer = httpx.post(f"{url}/predict", json={"texts": ["a"]})
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
        assert httpx.get(f"{url}/health/ready").status_code == 200  # a server that says so is no failure


def test_a_slow_answer_and_a_client_that_hangs_up_do_not_stop_the_others(run: Path) -> None:
    many = {"texts": [["what colour is the door", "anna has a red door . " * 4500]] * 4}
    with served(run / "mrc", seconds=0.5, characters=10**7) as url:
        gone = metric(url, "palm_requests_total", path="/predict", status="499")
        assert httpx.post(f"{url}/predict", json=many).status_code == 504
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/predict", json=many, timeout=0.2)
        short = {"texts": [["what colour is the door", "a red door ."]]}
        with palm.Client(url) as client:
            while True:
                answer = httpx.post(f"{url}/predict", json=short)
                if answer.status_code == 200:
                    break
                assert answer.status_code == 504  # behind what is being computed
            assert client.predict(short["texts"]) == answer.json()["results"]
        assert metric(url, "palm_requests_total", path="/predict", status="499") == gone + 1
        assert metric(url, "palm_waiting_requests") == 0


def test_a_body_that_never_ends_is_refused_when_its_time_is_over(run: Path) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"a" * 1024
            time.sleep(0.01)

    with served(run / "cls", seconds=0.3) as url:
        before = metric(url, "palm_requests_total", path="/predict", status="408")
        # Whether the client reads the answer or fails to send, because the server hangs up, is chance.
        with suppress(httpx.TransportError):
            assert httpx.post(f"{url}/predict", content=endless()).status_code == 408
        assert metric(url, "palm_requests_total", path="/predict", status="408") == before + 1


def test_only_requests_with_the_key_get_answers(run: Path) -> None:
    with served(run / "cls", api_key="sesam") as url:
        for path in ("/models", "/metrics", "/openapi.json"):
            assert httpx.get(url + path).status_code == 401
            assert httpx.get(url + path, headers={"Authorization": "Bearer sesam"}).status_code == 200
        assert httpx.post(f"{url}/predict", json={"texts": ["a"]}).status_code == 401
        with palm.Client(url, api_key="sesame") as client, pytest.raises(palm.PalmError, match="401"):
            client.predict(["a"])
        with palm.Client(url, api_key="sesam") as client:
            assert len(client.predict(["a", "b"])) == 2
        assert httpx.get(f"{url}/").status_code == httpx.get(f"{url}/health/live").status_code == 200


def test_the_examples_of_the_api_description_are_requests_that_are_answered(url: str) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    body = document["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]
    assert list(body["examples"]) == list(TASKS)
    for task, example in body["examples"].items():
        answer = httpx.post(f"{url}/predict", json=example["value"])
        assert answer.status_code == 200
        assert list(answer.json()["results"][0]) == [task]
    described = httpx.get(f"{url}/models").json()
    assert described["tasks"]["match"]["example"] == ["a text", "another text"]


def test_the_client_waits_as_long_as_it_is_told_and_then_gives_up(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    with served(run / "cls", queue=0) as url, palm.Client(url, retries=3) as client:
        monkeypatch.setattr("palm.serve.client.time.sleep", waits.append)
        with pytest.raises(palm.PalmError, match="429"):
            client.predict(["a"])
        monkeypatch.undo()
    assert waits == [1.0, 1.0, 1.0]  # the server's Retry-After
    del waits[:]
    with palm.Client(url, retries=3) as client:
        monkeypatch.setattr("palm.serve.client.time.sleep", waits.append)
        with pytest.raises(palm.PalmError, match="ConnectError"):
            client.predict(["a"])
    assert waits == [0.5, 1.0, 2.0]


def test_the_examples_of_deployment_probe_and_start_what_there_is(url: str) -> None:
    deploy = Path(__file__).parents[2] / "deploy"
    pod, *_ = yaml.safe_load_all((deploy / "kubernetes.yaml").read_text(encoding="utf-8"))
    (container,) = pod["spec"]["template"]["spec"]["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [httpx.get(url + probe["path"]).status_code for probe in probes] == [200, 200, 200]
    service = yaml.safe_load((deploy / "compose.yaml").read_text(encoding="utf-8"))["services"]["palm"]
    longest = Settings([]).seconds
    assert int(service["stop_grace_period"].removesuffix("s")) > longest
    assert pod["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > longest + 5
    for words in (container["args"], service["command"]):
        assert COMMANDS["serve"].parser().parse_args(words).folders == ["/models"]


def test_an_unexpected_error_is_500_with_a_number_and_without_what_it_says(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fails(*_: Any) -> None:
        raise ValueError("a text of somebody")

    async def ask() -> Any:
        transport = httpx.ASGITransport(AccessLog(fails))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get("/")

    answer = asyncio.run(ask())
    number = answer.headers["x-request-id"]
    assert (answer.status_code, answer.json()) == (
        500,
        {"detail": f"an error in the server; its log has request {number}"},
    )
    (told,) = (record.getMessage() for record in caplog.records if "failed" in record.getMessage())
    assert re.fullmatch(rf"request {number} failed: ValueError in \S*test_app:\d+", told)
    assert "somebody" not in caplog.text
