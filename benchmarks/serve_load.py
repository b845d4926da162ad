"""How many requests a second `palm serve` answers, with one and with several tasks, and beside other servers.

    python benchmarks/serve_load.py                       # MiniLM's shape, some ten minutes
    python benchmarks/serve_load.py --shape tiny --seconds 2 --cases palm:1 palm:2
    python benchmarks/serve_load.py --cases palm:8 --minutes 1   # a minute at twice the knee

The texts and their lengths are those of `data/`; a request has one text, and asks for its classes in K tasks.
Every server has the first processor for itself, with one thread for its computations; this program runs on
the last one. It sends requests at a constant rate, whether or not earlier ones are answered, and counts times
from the moment when a request should have been sent.

The knee is the highest of the tried rates at which no request fails and 99 % of them are answered within
`--bound` seconds. Rates are tried downwards, from what a server answers when 32 requests always wait.
CPU is that of all processes of the server per request, while 32 wait and at 70 % of the knee: it depends less
on what else the machine does. The median and the 99th percentile of the times are those at 70 % of the knee.
With `--minutes`, palm then gets twice its knee with a queue of 64.

    palm       `palm serve --precision auto`; palm-fp32 and palm-onnx with these options
    pipeline   FastAPI with one `transformers` pipeline for each task
    litserve   LitServe with one `transformers` model for each task, padded batches of 32 after 5 ms
    litjoint   LitServe with palm's joint model, the same batches
    onnx       FastAPI with palm's exported graph for each task in ONNX Runtime

On processors where palm chooses bfloat16, the first three peers compute in bfloat16, too; ONNX Runtime has no
such kernels.
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

CASES = ("palm:1", "palm:2", "palm:4", "palm:8", "palm-fp32:1", "palm-onnx:1", "pipeline:1")
CASES += ("litserve:1", "litjoint:1", "litjoint:8", "onnx:1")

OPTIONS = {
    "palm": [],
    "palm-fp32": ["--precision", "fp32"],
    "palm-onnx": ["--engine", "onnx"],
}
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
        if not each.exists():
            InferenceModel(each.name, reader, encoder, head, precision="fp32").save(each)
            to_hugging_face(each, each.with_name(f"{each.name}-hf"))
            to_onnx(each, each.with_name(f"{each.name}-onnx"))
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
    if name in OPTIONS:
        command = [*START, "serve", *words, "--queue", "4096", "--port", str(port), *OPTIONS[name], *options]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )
    os.sched_setaffinity(process.pid, {0})  # before it starts others
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
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="SERVER:TASKS")
    parser.add_argument("--work", type=Path, help="a folder that keeps the models")
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument(
        "--bound", type=float, default=1, help="seconds in which 99 %% are answered at the knee"
    )
    parser.add_argument("--minutes", type=float, default=0, help="at twice the last knee")
    parser.add_argument("--turns", type=int, default=2, help="times that all servers take turns")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {(os.cpu_count() or 1) - 1})
    print(machine())
    bodies = [json.dumps({"texts": [text]}).encode() for text in texts()]
    cases = [(server, int(heads)) for server, _, heads in (case.partition(":") for case in args.cases)]
    with contextlib.ExitStack() as files:
        work = args.work or Path(files.enter_context(tempfile.TemporaryDirectory()))
        folders = made_up_models(work, args.shape, max(heads for _, heads in cases))
        if not args.turns:
            return
        print(
            "| server | tasks | knee 1/s | CPU ms, 32 wait | CPU ms, 70 % | p50 ms | p99 ms | failed | load |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for _ in range(args.turns):
            for server, heads in cases:
                with serving(server, folders[:heads]) as (port, group):
                    result = asyncio.run(measured(Load(port, group, bodies), args.seconds, args.bound))
                print(line(server, heads, result), flush=True)
        if args.minutes:
            overload(folders[:heads], bodies, 2 * result[0], 60 * args.minutes)


def overload(folders: Sequence[Path], bodies: Sequence[bytes], rate: float, seconds: float) -> None:
    """Print what palm answers at a rate that it cannot keep up with."""
    with serving("palm", folders, "--queue", "64") as (port, group):
        times = asyncio.run(Load(port, group, bodies).at(rate, seconds))
    p50, p99 = (1000 * times.percentile(q) for q in (50, 99))
    print(
        f"\npalm, {len(folders)} tasks, a queue of 64, {rate:.0f} requests/s for {seconds:g} s: "
        f"{len(times.answered)} answered, p50 {p50:.0f} ms, p99 {p99:.0f} ms; {times.failed} refused"
    )


if __name__ == "__main__":
    main()
