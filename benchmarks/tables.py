"""Memory and speed of encoding tables of every format, and a fault near the end of a large CSV file.

    python benchmarks/tables.py encoding --rows 1000 1000000    # peak memory, rows a CPU-second
    python benchmarks/tables.py fault --gigabytes 2             # its line, memory before and after

Every measurement is a process of its own; files lie in a temporary folder, which is removed.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import random
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from palm.core.cache import Cache
from palm.core.errors import DataError
from palm.reader import ClassifyReader
from palm.reader.cache import training_rows
from palm.reader.tables.reading import raw_rows

FORMATS = ("tsv", "csv", "jsonl", "parquet")
WORDS = 12


def main() -> None:
    """Measure what the arguments name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("encoding", "fault"))
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=1, help="every format once in each")
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--folder", type=Path, help="in place of the system's temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        if args.what == "fault":
            in_new_process(fault, Path(folder), args.gigabytes)
            return
        for rows in args.rows:
            files = {kind: write_table(Path(folder), kind, rows) for kind in FORMATS}
            for number in range(args.rounds):
                for kind, file in files.items():
                    in_new_process(encode, file, kind, rows, number)


def in_new_process(measure, *arguments) -> None:
    """Call a function where nothing else has used memory."""
    process = multiprocessing.get_context("spawn").Process(target=measure, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def texts(count: int) -> Iterator[tuple[str, str]]:
    """Yield a label and a text of `WORDS` words, the same ones in every call."""
    words = [f"word{number}" for number in range(1000)]
    draw = random.Random(0)
    for number in range(count):
        yield str(number % 2), " ".join(draw.choices(words, k=WORDS))


def write_table(folder: Path, kind: str, count: int) -> Path:
    """Write a table of so many rows; Parquet in one row group, the hardest case for memory."""
    path = folder / f"{count}.{kind}"
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        labels, said = zip(*texts(count), strict=True)
        table = pyarrow.table({"label": labels, "text_a": said})
        parquet.write_table(table, path, row_group_size=count)
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == "jsonl":
            for label, text in texts(count):
                file.write(json.dumps({"label": label, "text_a": text}) + "\n")
        else:
            writer = csv.writer(file, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n")
            writer.writerow(["label", "text_a"])
            writer.writerows(texts(count))
    return path


def mebibytes(name: str) -> float:
    """Return a figure of this process, `VmRSS` (resident now) or `VmHWM` (the most so far)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024


def encode(file: Path, kind: str, rows: int, number: int) -> None:
    """Encode a table into an empty cache, on one thread, and print the peak of memory and the speed."""
    vocabulary = file.parent / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary.write_text("\n".join([*special, *(f"word{k}" for k in range(1000))]) + "\n", encoding="utf-8")
    reader = ClassifyReader(vocabulary, 32, n_classes=2)
    if kind == "parquet":
        import pyarrow.parquet  # noqa: F401 - the library's own memory is none of the table's
    before = mebibytes("VmRSS")
    with tempfile.TemporaryDirectory(dir=file.parent) as cache:
        began = time.process_time()
        made = training_rows(reader, file, Cache(Path(cache)))
        seconds = time.process_time() - began
        assert len(made) == rows
    print(
        f"round {number}  {kind:8} {rows:>9,} rows  peak {mebibytes('VmHWM'):7.1f} MiB "
        f"(+{mebibytes('VmHWM') - before:.1f} while encoding)  {rows / seconds:9,.0f} rows/CPU-s  "
        f"digest {made.digest[:12]}",
        flush=True,
    )


def fault(folder: Path, gigabytes: float) -> None:
    """Write a CSV file of records of three lines, a wrong one near its end, and print what is told of it."""
    path = folder / "large.csv"
    record = '1,"{}\nthe second line, ""quoted""\n{}"\n'.format("a" * 900, "b" * 900)
    block = record * 500
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write("label,text_a\n")
        blocks = int(gigabytes * 1e9 / len(block))
        for _ in range(blocks):
            file.write(block)
        file.write('1,"two\nlines",too many\n')
        file.write(record * 3)
    expected = 2 + 3 * 500 * blocks
    problems: list[str] = []
    rows = 0
    began = time.process_time()
    for row in raw_rows(path):
        if isinstance(row, DataError):
            problems.append(str(row))
            continue
        rows += 1
        if rows == 1000:
            before = mebibytes("VmHWM")
    assert rows == 500 * blocks + 3
    print(
        f"{path.stat().st_size / 1e9:.2f} GB, {rows:,} rows; expected line {expected:,}; told: "
        f"{[problem.partition(path.name)[2][:60] for problem in problems]}\n"
        f"peak of memory {before:.1f} MiB after 1,000 rows, {mebibytes('VmHWM'):.1f} MiB at the end; "
        f"{time.process_time() - began:.1f} CPU-s"
    )


if __name__ == "__main__":
    main()
