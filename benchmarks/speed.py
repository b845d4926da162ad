"""How fast palm trains and predicts, beside Hugging Face's Trainer, in one run that anybody can repeat.

    python benchmarks/speed.py --quick                         # a few minutes
    python benchmarks/speed.py --output report.md              # MiniLM, one thread: under an hour
    python benchmarks/speed.py --shape minilm base --threads 1 2 --output report.md
    ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 python benchmarks/speed.py ...  # as on a CPU without AMX
    python benchmarks/speed.py --pairs train.tsv --vocab vocab.txt

The report names the CPU with its instructions; make one for each kind of machine. What answers one request,
and ONNX Runtime, is in `speed_onnx.py`. Both start from the same weights and take the same rows in the same
batches, with the same dropout, learning rate, decay and clipping. They take turns within the run, a few
steps each; a ratio is that of one turn, and the table tells the median and the extremes. On one thread of a
CPU, seconds are those of the process, which other programs hardly disturb; otherwise those of the wall. MFU
is the share of the rate of the encoder's own matrix products, measured in the same run, that the layers need
for the real tokens, forward and, where they train, backward.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import speed_cases as cases
import torch
from arguments import new_parser
from speed_cases import DATA, SHAPES, Case, Shape
from speed_runs import HuggingFace, Palm, free, gemm_rate, peak_memory

from palm.core.device import choice

Runner = Callable[[Case, Shape, torch.device], Any]

VARIANTS: dict[str, Runner] = {
    "palm": lambda case, shape, device: Palm(case, shape, device, "bf16"),
    "palm fp32": lambda case, shape, device: Palm(case, shape, device, "fp32"),
    "HF default": lambda case, shape, device: HuggingFace(case, shape, device, "fp32", "sdpa"),
    "HF fp32 grouped": lambda case, shape, device: HuggingFace(
        case, shape, device, "fp32", "sdpa", grouped=True
    ),
    "HF bf16 sdpa": lambda case, shape, device: HuggingFace(case, shape, device, "bf16", "sdpa"),
    "HF bf16 eager": lambda case, shape, device: HuggingFace(case, shape, device, "bf16", "eager"),
    "HF bf16 sdpa grouped": lambda case, shape, device: HuggingFace(
        case, shape, device, "bf16", "sdpa", grouped=True
    ),
    "HF bf16 eager grouped": lambda case, shape, device: HuggingFace(
        case, shape, device, "bf16", "eager", grouped=True
    ),
    "HF bf16 compiled grouped": lambda case, shape, device: HuggingFace(
        case, shape, device, "bf16", "sdpa", grouped=True, compiled="inductor"
    ),
}
ON_REQUEST = {"HF bf16 compiled grouped"}
"""Compiles for every length of a batch: minutes a turn."""

CASES = ["pairs", "short", "mrc", "mlm", "tagging", "inference", "inference short", "mix"]


@dataclass
class Timing:
    """What one variant took, a number per turn: seconds of a step."""

    turns: list[float] = field(default_factory=list)

    def against(self, other: Timing) -> list[float]:
        """How many times faster than another one, turn by turn."""
        return [theirs / own for own, theirs in zip(self.turns, other.turns, strict=True)]


def compare(
    case: Case, shape: Shape, device: torch.device, names: Sequence[str], turns: int, steps: int, verb: str
) -> dict[str, Timing]:
    """Let the variants take turns at `train` or `predict`, a few steps each; the first does not count."""
    runners = {name: VARIANTS[name](case, shape, device) for name in names}
    timings = {name: Timing() for name in names}
    for turn in range(turns + 1):
        for name, runner in runners.items():
            seconds = getattr(runner, verb)(steps)
            if turn:
                timings[name].turns.append(seconds)
    return timings


def table(
    case: Case,
    shape: Shape,
    timings: dict[str, Timing],
    rate: float,
    memory: dict[str, float],
    base: str,
    passes: int,
) -> str:
    """A Markdown table of a case; ratios are those to `base`, a step costs so many forward passes."""
    tokens = sum(int(batch["input_mask"].sum()) for batch in case.batches) / len(case.batches)
    flops = passes * sum(map(shape.flops, case.batches)) / len(case.batches)
    lines = [
        f"| | examples/s | real tokens/s | times {base} (least–most) | MFU | peak MiB |",
        "|---|---|---|---|---|---|",
    ]
    for name, timing in timings.items():
        seconds, ratios = median(timing.turns), timing.against(timings[base])
        spread = f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        peak = f"{memory[name]:.0f}" if name in memory else ""
        mfu = f"{flops / seconds / rate:.0%}"
        lines.append(
            f"| {name} | {case.rows / seconds:.1f} | {tokens / seconds:.0f} | {spread} | {mfu} | {peak} |"
        )
    return "\n".join(lines)


def memory_of(args: argparse.Namespace, case: str, shape: str, name: str) -> float:
    """MiB at most of a process of its own that takes three steps."""
    command = [sys.executable, __file__, "--shape", shape, "--threads", "1", "--measure_memory", case, name]
    for setting in ("pairs", "vocab", "short"):
        command += [f"--{setting}", str(given)] if (given := getattr(args, setting)) else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def cases_of(args: argparse.Namespace, shape: str, count: int) -> dict[str, tuple[Callable[[], Case], str]]:
    """Case -> what makes it, and whether it trains or predicts."""
    few = {"minilm": (32, 8), "base": (12, 4), "large": (8, 4), "tiny": (4, 2)}[shape]

    def pairs() -> Case:
        return cases.read_pairs(args.pairs, args.vocab, 128, few[0], count)

    lengths = cases.realistic_lengths(384, 372, few[1] * count)
    lengths_of_short = cases.short_lengths(few[0] * count)

    def short() -> Case:
        if args.short:
            return cases.read_short(args.short, args.vocab, few[0], count)
        return cases.made_up("match", lengths_of_short, few[0])

    return {
        "pairs": (pairs, "train"),
        "short": (short, "train"),
        "mrc": (lambda: cases.made_up("mrc", lengths, few[1]), "train"),
        "mlm": (lambda: cases.masked(pairs()), "train"),
        "tagging": (lambda: cases.read_tagging(few[0], count), "train"),
        "inference": (pairs, "predict"),
        "inference short": (short, "predict"),
    }


def variants(wanted: list[str]) -> list[str]:
    """Those that can run here."""
    if all(map(importlib.util.find_spec, ("transformers", "accelerate"))):
        return wanted
    print("transformers and accelerate are not installed: palm alone is measured")
    return [name for name in wanted if name.startswith("palm")]


def run_case(args: argparse.Namespace, shape: str, name: str, threads: int) -> None:
    """Measure and print one case."""
    count = (args.turns + 1) * (args.steps + 1)
    make, verb = cases_of(args, shape, count)[name]
    case, device = make(), torch.device("cpu")
    names = variants(args.variants)
    timings = compare(case, SHAPES[shape], device, names, args.turns, args.steps, verb)
    rate = gemm_rate(SHAPES[shape], device, torch.bfloat16)
    memory = {} if args.quick or threads > 1 else {n: memory_of(args, name, shape, n) for n in names}
    base = next((name for name in names if name == "HF default"), names[0])
    heading = f"### {shape}, {name}, {threads} thread{'s' if threads > 1 else ''}"
    facts = f"{case.rows} rows a batch, {case.fill:.0%} real tokens; GEMM {rate / 1e9:.0f} GFLOP/s (bf16)"
    passes = {"train": 3, "predict": 1}[verb]
    lines = table(case, SHAPES[shape], timings, rate, memory, base, passes)
    report(args, f"\n{heading}\n\n{facts}\n\n{lines}")
    free()


def report(args: argparse.Namespace, text: str) -> None:
    """Print, and append to the report."""
    print(text, flush=True)
    if args.output:
        with args.output.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def machine() -> str:
    """What the figures depend on."""
    lines = [f"{platform.platform()}, Python {platform.python_version()}, torch {torch.__version__}"]
    if importlib.util.find_spec("transformers"):
        import transformers

        transformers.logging.set_verbosity_error()
        lines.append(f"transformers {transformers.__version__}")
    cores, flags = torch.get_num_threads(), "no bf16 instructions known"
    name = platform.processor()
    told = Path("/proc/cpuinfo")
    if told.is_file():
        fields = dict(
            (part.strip() for part in line.split(":", 1))
            for line in told.open(encoding="utf-8")
            if ":" in line
        )
        name, cores = fields.get("model name", name), int(fields.get("processor", 0)) + 1
        has = [flag for flag in FLAGS if flag in fields.get("flags", "").split()]
        flags = " ".join(has) or flags
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
    limited = f", limited to {limit} by ONEDNN_MAX_CPU_ISA" if limit else ""
    precision, reason = choice("auto", torch.device("cpu"))
    lines.append(f"{name}, {cores} cores, {flags}{limited}")
    return "; ".join([*lines, f"precision auto is {precision}: {reason}"])


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__)
    parser.add_argument("--shape", nargs="+", choices=list(SHAPES), default=["minilm"])
    parser.add_argument("--case", nargs="+", default=CASES)
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=list(VARIANTS),
        default=[name for name in VARIANTS if name not in ON_REQUEST],
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--turns", type=int, default=7, help="how often each variant has its turn")
    parser.add_argument("--steps", type=int, default=4, help="steps of a turn")
    parser.add_argument("--quick", action="store_true", help="two turns of two steps, no memory")
    parser.add_argument("--pairs", type=Path, default=DATA / "match4mrqa" / "train.tsv")
    parser.add_argument("--short", type=Path, help="a data file of cls; random words where absent")
    parser.add_argument("--vocab", type=Path, default=DATA / "vocab.txt")
    parser.add_argument("--output", type=Path, help="a Markdown file to append the tables to")
    parser.add_argument("--measure_memory", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.quick:
        args.turns, args.steps = 2, 2
    return args


def main() -> None:
    args = read_arguments()
    info = machine()
    if args.measure_memory:
        torch.set_num_threads(1)
        name, variant = args.measure_memory
        make, verb = cases_of(args, args.shape[0], 6)[name]
        getattr(VARIANTS[variant](make(), SHAPES[args.shape[0]], torch.device("cpu")), verb)(2)
        print(peak_memory(torch.device("cpu")))
        return
    report(args, info)
    for threads in args.threads:
        torch.set_num_threads(threads)
        for shape in args.shape:
            for name in args.case:
                if name == "mix":
                    from speed_mix import overheads

                    report(args, overheads(shape, threads, args.turns * args.steps))
                else:
                    run_case(args, shape, name, threads)


if __name__ == "__main__":
    main()
