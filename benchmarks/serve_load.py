"""How many requests a second `palm serve` answers, with one and with several tasks, and beside other servers.

    python benchmarks/serve_load.py                       # MiniLM's shape, some ten minutes
    python benchmarks/serve_load.py --shape tiny --seconds 2 --heads 1 2 --peers none

The texts and their lengths are those of `data/`; a request has one text, and asks for its classes in K tasks.
Every server is a process of its own with one thread for its computations, and so is this program, which sends
requests at a constant rate, whether or not earlier ones are answered, and counts times from the moment when a
request should have been sent.

The knee is the highest of the tried rates at which no request fails and 99 % of them are answered within
`--bound` seconds. Rates are tried downwards, from what a server answers when 32 requests always wait.
CPU is that of all processes of the server per request, while 32 wait and at 70 % of the knee: it depends less
on what else the machine does. The median and the 99th percentile of the times are those at 70 % of the knee.
Last, palm gets twice its knee with a short queue.

    pipeline  FastAPI with one `transformers` pipeline for each task
    litserve  LitServe with palm's joint model, batches of 32 after 5 ms
    onnx      FastAPI with palm's exported graph for each task in ONNX Runtime
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np
import torch
from arguments import new_parser
from http_load import Connections, at_rate
from speed import machine
from speed_cases import DATA, SHAPES

from palm.backbone import BERT
from palm.core.process import START
from palm.export import to_hugging_face, to_onnx
from palm.paradigm import Classify
from palm.predict.inference import InferenceModel
from palm.reader import ClassifyReader

PEERS = ("pipeline", "litserve", "onnx")
FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
"""Tried rates, as parts of what a server answers when requests always wait."""


class Times(NamedTuple):
    """Times of answered requests in seconds, the number of failed ones, and CPU seconds per request."""

    answered: np.ndarray
    failed: int
    cpu: float

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.answered, q)) if len(self.answered) else float("inf")


def made_up_models(folder: Path, shape: str, heads: int) -> list[Path]:
    """Save models of tasks that nobody has trained, with one encoder."""
    torch.manual_seed(0)
    settings = SHAPES[shape].settings
    reader = ClassifyReader(DATA / "vocab.txt", 128, n_classes=3, do_lower_case=True)
    encoder = BERT(**settings | {"vocab_size": reader.vocab_size})
    folders = [folder / f"task{number}" for number in range(heads)]
    for each in folders:
        head = Classify(3, SHAPES[shape].hidden_size)
        InferenceModel(each.name, reader, encoder, head, precision="fp32").save(each)
    return folders


def texts() -> list[str]:
    """The texts of the tables in `data/`, shuffled."""
    found = []
    for file in sorted(DATA.glob("*/train.tsv")):
        head, *lines = file.read_text(encoding="utf-8").splitlines()
        column = head.split("\t").index("text_a")
        found += [line.split("\t")[column].replace("\x02", " ") for line in lines]
    return [found[k] for k in np.random.default_rng(0).permutation(len(found))]


@contextlib.contextmanager
def serving(name: str, folders: Sequence[Path], *options: str) -> Iterator[tuple[int, int]]:
    """Start a server; yield its port and the id of its process group."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    words = [str(folder) for folder in folders]
    peers = Path(__file__).with_name("serve_peers.py")
    command = [sys.executable, str(peers), name, str(port), *words]
    if name == "palm":
        command = [
            *START,
            "serve",
            *words,
            "--precision",
            "fp32",
            "--queue",
            "4096",
            "--port",
            str(port),
            *options,
        ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        while True:
            with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/openapi.json"):
                break
            assert process.poll() is None, f"{name} did not start"
            time.sleep(0.1)
        yield port, process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cpu_seconds(group: int) -> float:
    """CPU time of the processes of a group."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:13])) if int(fields[2]) == group else 0
    return ticks / os.sysconf("SC_CLK_TCK")


class Load:
    """Sends texts to a server.

    Args:
        port: of the server.
        group: its process group.
        bodies: the requests, which are repeated.
    """

    def __init__(self, port: int, group: int, bodies: Sequence[bytes]) -> None:
        self.connections = Connections(port)
        self.group = group
        self.bodies = bodies

    async def capacity(self, seconds: float) -> tuple[float, float]:
        """Requests per second while 32 wait at any time, and CPU seconds per request."""
        end = time.perf_counter() + seconds
        counts = [0] * 32

        async def client(number: int) -> None:
            while time.perf_counter() < end:
                body = self.bodies[(32 * counts[number] + number) % len(self.bodies)]
                status, answer = await self.connections.post(body)
                assert status == 200, answer
                counts[number] += 1

        begin = time.perf_counter()
        before = cpu_seconds(self.group)
        await asyncio.gather(*map(client, range(32)))
        rate = sum(counts) / (time.perf_counter() - begin)
        return rate, (cpu_seconds(self.group) - before) / sum(counts)

    async def at(self, rate: float, seconds: float) -> Times:
        """Times at a constant rate."""
        clock = asyncio.get_running_loop().time

        async def send(number: int, planned: float) -> float | None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
                sent = self.connections.post(self.bodies[number % len(self.bodies)])
                status, _ = await asyncio.wait_for(sent, 30)
                return clock() - planned if status == 200 else None
            return None

        before = cpu_seconds(self.group)
        times = await at_rate(rate, max(20, int(rate * seconds)), send)
        answered = np.asarray([each for each in times if each is not None])
        cpu = (cpu_seconds(self.group) - before) / max(1, len(answered))
        return Times(answered, len(times) - len(answered), cpu)


async def measured(load: Load, seconds: float, bound: float) -> tuple[float, float, Times]:
    """The knee, CPU seconds per request while 32 wait, and the times at 70 % of the knee."""
    await load.capacity(seconds / 4)  # warm
    most, cpu = await load.capacity(seconds)
    for fraction in FRACTIONS:
        at_knee = await load.at(fraction * most, seconds)
        if not at_knee.failed and at_knee.percentile(99) <= bound:
            break
    return fraction * most, cpu, await load.at(0.7 * fraction * most, seconds)


def line(name: str, heads: int, result: tuple[float, float, Times]) -> str:
    knee, cpu, below = result
    told = [
        f"{knee:.0f}",
        f"{1000 * cpu:.1f}",
        f"{1000 * below.cpu:.1f}",
        f"{1000 * below.percentile(50):.0f}",
    ]
    told += [f"{1000 * below.percentile(99):.0f}", str(below.failed), f"{os.getloadavg()[0]:.0f}"]
    return f"| {name} | {heads} | {' | '.join(told)} |"


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="minilm")
    parser.add_argument("--heads", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--peers", nargs="+", choices=[*PEERS, "none"], default=list(PEERS))
    parser.add_argument("--peer_heads", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument(
        "--bound", type=float, default=1, help="seconds in which 99 %% are answered at the knee"
    )
    parser.add_argument("--overload_seconds", type=float, default=30, help="at twice the last knee")
    parser.add_argument("--turns", type=int, default=2, help="times that all servers take turns")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    bodies = [json.dumps({"texts": [text]}).encode() for text in texts()]
    peers = [peer for peer in args.peers if peer != "none"]
    cases = [(peer, heads) for peer in peers for heads in args.peer_heads]
    cases += [("palm", heads) for heads in args.heads]
    with tempfile.TemporaryDirectory() as name:
        folders = made_up_models(Path(name), args.shape, max(heads for _, heads in cases))
        for folder in folders[: max(args.peer_heads)]:
            if "pipeline" in peers:
                to_hugging_face(folder, folder.with_name(f"{folder.name}-hf"))
            if "onnx" in peers:
                to_onnx(folder, folder.with_name(f"{folder.name}-onnx"))
        print(
            "| server | tasks | knee 1/s | CPU ms, 32 wait | CPU ms, 70 % | p50 ms | p99 ms | failed | load |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for _ in range(args.turns):
            for server, heads in cases:
                with serving(server, folders[:heads]) as (port, group):
                    result = asyncio.run(measured(Load(port, group, bodies), args.seconds, args.bound))
                print(line(server, heads, result), flush=True)
        with serving("palm", folders[:heads], "--queue", "64") as (port, group):
            rate = 2 * result[0]
            times = asyncio.run(Load(port, group, bodies).at(rate, args.overload_seconds))
        p50, p99 = (1000 * times.percentile(q) for q in (50, 99))
        print(
            f"\npalm, {heads} tasks, a queue of 64, {rate:.0f} requests/s for {args.overload_seconds:g} s: "
            f"{len(times.answered)} answered, p50 {p50:.0f} ms, p99 {p99:.0f} ms; {times.failed} refused"
        )


if __name__ == "__main__":
    main()
