"""Damage everything that palm reads, in every way, and see what becomes of it.

    python benchmarks/faults/mutations.py --count 100000 --keep bad
    python benchmarks/faults/mutations.py --count 100000 --written
    python benchmarks/faults/mutations.py --flips

Each mutation is read in another process, with 10 seconds of CPU time and 1 GB of memory above the file's
size. What may come out: the right result, a result with other values (where a format has no checksum of them,
a flipped bit is another number), or an error of palm. Anything else is a fault of palm: another exception, a
process that dies, more time, more memory. Its bytes are kept. `--flips`
flips all bits of what describes saved models.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import written
from samples import Sample, fingerprint, samples

from palm.core.errors import PalmError

SECONDS, MEMORY = 10, 1 << 30
PATIENCE = 30 * SECONDS  # by the clock, on a machine that has other work
OUTCOMES = ("right result", "other values", "palm error", "fault")

HUGE = [
    *(
        b"9" * 30,
        b"9" * 5000,
        b"-1",
        b"1e999",
        b"4294967295",
        b"9223372036854775807",
        b"18446744073709551616",
    ),
    *(
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b"0.5",
        b'"os.system"',
        b'{"file": "/etc/passwd"}',
        b'"../x"',
        b"NaN",
    ),
    *(
        b"\xff" * 4,
        b"\xff" * 8,
        b"\xff\xff\xff\x7f",
        b"\0" * 8,
        b"\xff" * 9 + b"\x01",
        b"\x80" * 12,
        b"\0\0\0\x40",
    ),
    *(
        b"[" * 3000,
        b'{"a":' * 3000,
        b"\\ud800",
        b"\xed\xa0\x80",
        b"&a [*a, *a]",
        b"<<: *d\n",
        b"\t",
        b"\n",
        b"\r",
    ),
]
"""What is put in the place of something: numbers, values of other kinds, and what has been a fault before."""


@dataclass
class Tally:
    """What became of the mutations of one format.

    Attributes:
        outcomes: how often each.
        slowest: seconds of the slowest.
        faults: the number of a mutation and what happened.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    faults: list[tuple[int, str]] = field(default_factory=list)


def mutated(data: bytes, random: random.Random) -> bytes:
    """The data with one to three changes."""
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        data = _changed(bytearray(data), random)
    return data


def _changed(data: bytearray, random: random.Random) -> bytes:
    place = random.randrange(len(data) + 1)
    end = min(len(data), place + random.choice([1, 2, 4, 8, 40, 1 << random.randrange(12)]))
    span = bytes(data[place:end])
    kind = random.randrange(8)
    if kind == 0 and place < len(data):
        data[place] ^= 1 << random.randrange(8)
    elif kind == 1 and place < len(data):
        data[place] = random.randrange(256)
    elif kind == 2:
        return bytes(data[:place])
    elif kind == 3:
        del data[place:end]
    elif kind == 4:
        data[end:end] = span * random.choice([1, 1, 2, 50])
    elif kind == 5:
        other = random.randrange(len(data) + 1)
        data[other : other + len(span)] = span
    elif kind == 6:
        data[place:end] = random.choice(HUGE)
    else:
        _replace_number(data, random)
    return bytes(data)


def _replace_number(data: bytearray, random: random.Random) -> None:
    """A value of a text becomes another, with what is around it as it was."""
    starts = [found.end() for found in re.finditer(rb"[ :,[\t](?!\Z)", data)]
    if not starts:
        return
    start = random.choice(starts)
    end = re.compile(rb"[ ,\]}\n\t]|\Z").search(data, start)
    assert end is not None
    data[start : end.start()] = random.choice(HUGE)


def outcome(sample: Sample, right: str) -> tuple[str, str]:
    """What becomes of the file as it is now, and what happened if it is a fault."""
    try:
        sample.mend()
        found = fingerprint(sample.read())
    except PalmError as error:
        return ("palm error", "") if str(error) else ("fault", "an error of palm without a word")
    except BaseException:
        return "fault", traceback.format_exc(limit=-4)
    if found == right:
        return "right result", ""
    return ("fault", "other values under a checksum") if sample.is_covered else ("other values", "")


def work(connection: Connection, sample: Sample, seed: int) -> None:
    """Read mutation after mutation of one format, as their numbers come."""
    whole = sample.file.read_bytes()
    for _ in range(2):  # what is mended again must be whole, too
        sample.mend()
        right = fingerprint(sample.read())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + MEMORY + len(whole)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    _keep_quiet()
    connection.send("ready")
    while (number := connection.recv()) is not None:
        sample.file.write_bytes(mutation(sample, whole, seed, number))
        start = time.process_time()
        what, why = outcome(sample, right)
        seconds = time.process_time() - start
        sample.clean()
        if seconds >= SECONDS:
            what, why = "fault", TOO_LONG
        connection.send((what, why, seconds))


def mutation(sample: Sample, whole: bytes, seed: int, number: int) -> bytes:
    """The damaged bytes of one number; the same on every machine."""
    return mutated(whole, random.Random(f"{seed} {sample.name} {number}"))


def _keep_quiet() -> None:
    """Warnings of palm, and what other libraries write of their own faults, are of no interest here."""
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)


def tally(sample: Sample, count: int, seed: int, first: int = 0) -> Tally:
    """Read `count` mutations of a format, in a process that is replaced when it dies or takes too long."""
    found = Tally()
    number = first
    whole = sample.file.read_bytes()
    while number < first + count:
        with _worker(sample, seed) as connection:
            while number < first + count:
                connection.send(number)
                what, why, seconds = _answer(connection)
                found.outcomes[what] += 1
                found.slowest = max(found.slowest, seconds)
                if what == "fault":
                    found.faults.append((number, why))
                number += 1
                if seconds >= SECONDS or why == DIED:
                    break
    sample.file.write_bytes(whole)
    sample.mend()
    return found


DIED = "the process died"
TOO_LONG = f"more than {SECONDS} seconds"


def _answer(connection: Connection) -> tuple[str, str, float]:
    try:
        if connection.poll(PATIENCE):
            answer: tuple[str, str, float] = connection.recv()
            return answer
    except EOFError:
        return "fault", DIED, 0.0
    return "fault", TOO_LONG, float(SECONDS)


@contextlib.contextmanager
def _worker(sample: Sample, seed: int) -> Iterator[Connection]:
    here, there = multiprocessing.Pipe()
    sys.stdout.flush()
    process = multiprocessing.get_context("fork").Process(
        target=work, args=(there, sample, seed), daemon=True
    )
    whole = sample.file.read_bytes()
    process.start()
    there.close()
    try:
        assert here.recv() == "ready"
        yield here
        with contextlib.suppress(BrokenPipeError):
            here.send(None)
    finally:
        process.join(0.5)
        process.kill()
        process.join()
        sample.file.write_bytes(whole)


def flips(sample: Sample) -> Tally:
    """Flip every bit of a file, one at a time."""
    found, whole = Tally(), sample.file.read_bytes()
    right = fingerprint(sample.read())
    for number in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[number // 8] ^= 1 << number % 8
        sample.file.write_bytes(damaged)
        what, why = outcome(sample, right)
        found.outcomes[what] += 1
        if what == "fault":
            found.faults.append((number, why))
    sample.file.write_bytes(whole)
    return found


def table(tallies: dict[str, Tally]) -> str:
    """The outcomes as Markdown."""
    lines = ["| format | mutations | " + " | ".join(OUTCOMES) + " | slowest, s |", "|---|" + "--:|" * 6]
    everything = Tally(sum((one.outcomes for one in tallies.values()), Counter()))
    everything.slowest = max(one.slowest for one in tallies.values())
    for name, one in {**tallies, "all": everything}.items():
        counts = [one.outcomes.total(), *(one.outcomes[what] for what in OUTCOMES)]
        lines.append(
            f"| {name} | " + " | ".join(f"{count:,}" for count in counts) + f" | {one.slowest:.2f} |"
        )
    return "\n".join(lines)


def main() -> int:
    """0 if nothing was a fault, 1 otherwise."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000, help="mutations of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutation of each format")
    parser.add_argument("--written", action="store_true", help="of the files that palm's commands leave")
    parser.add_argument("--only", action="append", help="a format; may be repeated")
    parser.add_argument("--keep", type=Path, help="the folder for the bytes of faults")
    parser.add_argument(
        "--flips", action="store_true", help="flip every bit of manifests, config.json and state.json"
    )
    args = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        with contextlib.redirect_stdout(nowhere):
            made = (written.samples if args.written else samples)(Path(folder))
        made = [one for one in made if args.only is None or one.name in args.only]
        if args.flips:
            made = [one for one in made if one.is_covered and one.file.suffix == ".json"]
        tallies = {}
        for sample in made:
            count = -(-args.count // len(made))
            one = flips(sample) if args.flips else tally(sample, count, args.seed, args.first)
            tallies[sample.name] = one
            print(f"{sample.name}: {dict(one.outcomes)}", file=sys.stderr, flush=True)
            for number, why in one.faults[:5]:
                print(f"  {number}: {why}", file=sys.stderr, flush=True)
                if args.keep is not None and not args.flips:
                    args.keep.mkdir(parents=True, exist_ok=True)
                    data = mutation(sample, sample.file.read_bytes(), args.seed, number)
                    (args.keep / f"{sample.name.replace('/', '_')}.{number}").write_bytes(data)
    print(table(tallies))
    return int(any(one.faults for one in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
