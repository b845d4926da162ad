"""Treat `palm serve` badly: broken requests, slow and vanishing clients, new models, SIGTERM at any moment.

    python benchmarks/faults/serve.py [--requests 20000] [--rate 100] [--swap_seconds 10] [--ends 50]

A request is good if it gets the status that it should. An accepted one must be answered with the records of
one of the two models that replace each other, never of both. At the end the server must have answered what it
accepted; its memory is printed on the way.

Each end is a server that gets SIGTERM at a random moment under load. It is good if the process exits with 0,
and every request in its log was answered to its client. Linux, because memory is read from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

import palm
from benchmarks.http_load import HEAD, Connections, answer_of, at_rate, request_of
from palm.backbone import BERT
from palm.core.process import START
from palm.paradigm import Classify
from palm.predict.inference import InferenceModel, JointModel
from palm.reader import ClassifyReader

WORDS = ["boston", "denver", "flight", "fare", "from", "to", "the", "a", "monday", "show", "me", "what", "is"]
TASKS = ("one", "two")
KINDS = {"good": 80, "broken JSON": 6, "megabyte": 4, "slow body": 4, "hangs up": 6}
"""Kind of request -> its share in percent."""

OPTIONS = ["--seconds", "20", "--queue", "512", "--precision", "fp32"]


def models(folder: Path) -> list[Path]:
    """Save two versions of the models of two tasks, with the same encoder each."""
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    versions = [folder / "a", folder / "b"]
    for seed, version in enumerate(versions):
        torch.manual_seed(seed)
        encoder = BERT(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=2, vocab_size=len(WORDS) + 5,
            max_position_embeddings=64, type_vocab_size=2, initializer_range=0.3,
        )  # fmt: skip
        for task in TASKS:
            reader = ClassifyReader(folder / "vocab.txt", 64, n_classes=3)
            InferenceModel(task, reader, encoder, Classify(3, 64), precision="fp32").save(version / task)
    return versions


@contextlib.contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Serve the models in a folder in a process; yield it, its port and the file of its log."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    log = folder.parent / f"log-{port}"
    command = [
        *START,
        "serve",
        *(str(folder / task) for task in TASKS),
        "--port",
        str(port),
        *OPTIONS,
        *words,
    ]
    with log.open("wb") as out, log.with_suffix(".errors").open("wb") as errors:
        process = subprocess.Popen(
            command, stdout=out, stderr=errors, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    try:
        while True:
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/health/ready"):
                break
            assert process.poll() is None, log.with_suffix(".errors").read_text()
            time.sleep(0.05)
        yield process, port, log
    finally:
        process.kill()
        process.wait()


def texts_of(rng: random.Random) -> list[str]:
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 80))) for _ in range(rng.randint(1, 4))]


class Client:
    """Sends requests of all kinds and judges what comes back.

    Args:
        port: of the server.
        versions: the joint model of each version.
        seed: of the kinds and texts.
    """

    def __init__(self, port: int, versions: Sequence[JointModel], seed: int) -> None:
        self.connections = Connections(port)
        self.versions = versions
        self.rng = random.Random(seed)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.unchecked: list[tuple[list[str], list[dict[str, Any]]]] = []

    async def send(self, number: int, planned: float) -> None:  # noqa: ARG002
        kind = self.rng.choices(list(KINDS), KINDS.values())[0]
        try:
            outcome = await getattr(self, "_" + kind.replace(" ", "_"))()
        except (OSError, asyncio.IncompleteReadError) as error:
            outcome = type(error).__name__
        self.counts[kind, str(outcome)] += 1

    async def _good(self) -> str:
        texts = texts_of(self.rng)
        status, body = await self.connections.post(json.dumps({"texts": texts}).encode())
        if status == 200:
            self.unchecked.append((texts, json.loads(body)["results"]))
        return str(status)

    def check(self) -> None:
        """Compare the answers since the last check with those of both versions."""
        texts = [text for each, _ in self.unchecked for text in each]
        versions = [version.predict(texts) for version in self.versions]
        first = 0
        for own, results in self.unchecked:
            last = first + len(own)
            given = torch.tensor([[result[task]["logits"] for result in results] for task in TASKS])
            expected = [
                [[record[task]["logits"] for record in version[first:last]] for task in TASKS]
                for version in versions
            ]
            if not any(torch.allclose(torch.tensor(each), given, atol=1e-5) for each in expected):
                self.wrong.append(f"{own}: {results}")
            first = last
        self.unchecked = []

    async def _broken_JSON(self) -> str:  # noqa: N802
        body = json.dumps({"texts": texts_of(self.rng)}).encode()
        cut = bytearray(body[: self.rng.randrange(len(body))])
        if cut and self.rng.random() < 0.5:
            cut[self.rng.randrange(len(cut))] = self.rng.randrange(256)
        status, answer = await self.connections.post(bytes(cut))
        assert "detail" in json.loads(answer)
        return str(status)

    async def _megabyte(self) -> str:
        text = "boston " * self.rng.randint(150_000, 600_000)
        return str((await self.connections.post(json.dumps({"texts": [text]}).encode()))[0])

    async def _slow_body(self) -> str:
        body = json.dumps({"texts": ["boston"]}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.connections.port)
        writer.write(HEAD.format(len(body)).encode())
        for byte in body:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        status, _ = await answer_of(reader)
        writer.close()
        return str(status)

    async def _hangs_up(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", self.connections.port)
        request = request_of(json.dumps({"texts": texts_of(self.rng)}).encode())
        writer.write(request[: self.rng.randint(1, len(request))])
        await writer.drain()
        await asyncio.sleep(self.rng.random() * 0.02)
        writer.transport.abort()
        return "gone"


def memory(process: int) -> float:
    """Resident memory of a process, MiB."""
    line = next(x for x in Path(f"/proc/{process}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def swap(versions: Sequence[Path], number: int, live: Path) -> None:
    """Replace the models of all tasks by those of a version, each by one rename."""
    for task in TASKS:
        new = live / f".new-{task}"
        shutil.copytree(versions[number % 2] / task, new)
        old = live / f".old-{task}"
        (live / task).rename(old)
        new.rename(live / task)
        shutil.rmtree(old)


async def load(
    client: Client, args: argparse.Namespace, versions: Sequence[Path], live: Path, process: int
) -> None:
    """Send all requests while the models are replaced; print memory on the way."""
    part = max(1, args.requests // 10)

    async def swapping() -> None:
        for number in range(1, 10**9):
            await asyncio.sleep(args.swap_seconds)
            await asyncio.to_thread(swap, versions, number, live)

    swaps = asyncio.ensure_future(swapping())
    for number in range(0, args.requests, part):
        await at_rate(args.rate, min(part, args.requests - number), client.send)
        await asyncio.to_thread(client.check)
        print(
            f"{number + part} requests, {memory(process):.0f} MiB, load {os.getloadavg()[0]:.1f}", flush=True
        )
    swaps.cancel()
    client.connections.close()


async def load_until_end(client: Client, rate: float, process: subprocess.Popen[bytes], after: float) -> None:
    """Send requests, and SIGTERM after some seconds; go on until the server is gone."""
    asyncio.get_running_loop().call_later(after, process.send_signal, signal.SIGTERM)
    while process.poll() is None:
        await at_rate(rate, max(1, int(rate / 5)), client.send)


def ends(args: argparse.Namespace, live: Path, versions: Sequence[JointModel]) -> list[str]:
    """Stop servers at random moments; return what was wrong."""
    rng = random.Random(args.seed)
    wrong = []
    for number in range(args.ends):
        with serving(live) as (process, port, log):
            client = Client(port, versions, number)
            asyncio.run(load_until_end(client, args.rate, process, rng.uniform(0.05, 2)))
        client.check()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        answered = sum(line["path"] == "/predict" and line["status"] == 200 for line in lines)
        received = client.counts["good", "200"] + client.counts["slow body", "200"]
        errors = log.with_suffix(".errors").read_text()
        if process.returncode or received != answered or client.wrong or "Traceback" in errors:
            wrong.append(f"end {number}: exit {process.returncode}, {answered} answered, {received} received")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=100, help="requests per second")
    parser.add_argument("--swap_seconds", type=float, default=10)
    parser.add_argument("--ends", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of requests and moments")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        versions = models(Path(name))
        loaded = [
            JointModel({task: palm.load_model(version / task, precision="fp32") for task in TASKS})
            for version in versions
        ]
        live = Path(name) / "live"
        shutil.copytree(versions[0], live)
        with serving(live, "--watch") as (process, port, log):
            client = Client(port, loaded, args.seed)
            asyncio.run(load(client, args, versions, live, process.pid))
            replaced = log.with_suffix(".errors").read_text().count("new model")
            process.send_signal(signal.SIGTERM)
            exit_code = process.wait(60)
            lines = [json.loads(line) for line in log.read_text().splitlines()]
        print(f"exit {exit_code}; {replaced} times a new model")
        for (kind, outcome), count in sorted(client.counts.items()):
            print(f"| {kind} | {outcome} | {count} |")
        statuses = Counter(line["status"] for line in lines if line["path"] == "/predict")
        print("in the log of the server:", dict(sorted(statuses.items())))
        wrong = [*client.wrong[:5], *ends(args, live, loaded)]
        print("\n".join(wrong) or f"{args.ends} ends, nothing wrong")
    return 1 if wrong or exit_code else 0


if __name__ == "__main__":
    sys.exit(main())
