"""How fast palm trains large encoders on a GPU, beside Hugging Face's Trainer: one call, under ten minutes.

    python benchmarks/gpu.py                 # BERT-base and BERT-large shapes, short pairs and length 384
    python benchmarks/gpu.py --tiny          # the same program on any machine, in seconds

bf16 on both sides, the same weights, rows, batches, dropout and optimizer; Hugging Face with sdpa
attention and dynamic padding, in the order of the rows and grouped by length. They take turns, and the
table tells the median ratio and the extremes. MFU is the share of the rate of the encoder's own matrix
products on this card, measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from speed import VARIANTS, Timing, compare, report, table, variants
from speed_cases import SHAPES, Case, made_up, realistic_lengths
from speed_runs import Palm, free, gemm_rate, peak_memory

from palm.engine.checkpoint import optimizer_tensors, restore_optimizer

ROWS = {"tiny": (4, 4), "base": (128, 48), "large": (64, 24)}
"""Shape -> rows of a batch of short pairs, and of one of length 384."""

VARIANTS["palm compiled"] = lambda case, shape, device: compiled(Palm(case, shape, device, "bf16"))


def compiled(palm: Palm) -> Palm:
    """With the setting `compile`."""
    palm.training.model.backbone.compile()
    return palm


def cases_of(shape: str, count: int) -> list[Case]:
    """Short pairs and long passages, with lengths as data of that kind has them."""
    short, long = ROWS[shape]
    return [
        made_up("match", realistic_lengths(128, 80, short * count), short),
        made_up("mrc", realistic_lengths(384, 372, long * count), long),
    ]


def of_host(palm: Palm) -> str:
    """What a step costs the host, after the state of the optimizer was read back as a resumed run does."""
    palm.train(0, 2)
    optimizer, parameters = palm.training.optimizer, dict(palm.training.model.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    tensors = optimizer_tensors(optimizer, lambda parameter: names[id(parameter)])
    saved = {name: value.cpu() for name, value in tensors.items()}
    restore_optimizer(optimizer, parameters, saved)
    started = time.thread_time()
    for k in range(2, 6):
        palm.training.step_on(palm.task, [palm.case.batches[k % len(palm.case.batches)]])
    took = (time.thread_time() - started) / 4
    return f"the host computes {1e3 * took:.1f} ms a step; resumed on the device"


def measure(args: argparse.Namespace, shape: str, case: Case, device: torch.device) -> str:
    """The table of one case."""
    rate = gemm_rate(SHAPES[shape], device, torch.bfloat16, 256 if args.tiny else 16384)
    memory: dict[str, float] = {}
    timings: dict[str, Timing] = {}
    for name in args.variants:  # alone first, for its memory
        free()
        VARIANTS[name](case, SHAPES[shape], device).train(0, 2)
        memory[name] = peak_memory(device)
    free()
    timings = compare(case, SHAPES[shape], device, args.variants, args.turns, args.steps, "train")
    heading = f"### {shape}, {case.name}: {case.rows} rows a batch, {case.fill:.0%} real tokens"
    facts = f"GEMM {rate / 1e12:.1f} TFLOP/s (bf16)"
    facts += f"; {of_host(Palm(case, SHAPES[shape], device, 'bf16'))}"
    base = "HF bf16 sdpa" if "HF bf16 sdpa" in timings else "palm"
    return f"\n{heading}\n\n{facts}\n\n{table(case, SHAPES[shape], timings, rate, memory, base, passes=3)}"


def read_arguments() -> Any:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="a tiny encoder, on whatever device there is")
    parser.add_argument("--shape", nargs="+", choices=list(ROWS), default=["base", "large"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=9, help="no further case begins after them")
    parser.add_argument("--compile", action="store_true", help="palm with compiled layers, too")
    parser.add_argument("--output", type=Path, help="a Markdown file to append the tables to")
    args = parser.parse_args()
    if args.tiny:
        args.shape, args.turns, args.steps = ["tiny"], 1, 2
    args.variants = [
        "palm",
        *(["palm compiled"] if args.compile else []),
        "HF bf16 sdpa",
        "HF bf16 sdpa grouped",
    ]
    return args


def main() -> None:
    args = read_arguments()
    if not torch.cuda.is_available() and not args.tiny:
        raise SystemExit("no CUDA GPU is visible; --tiny runs the same program on a CPU")
    torch.set_num_threads(1)  # for a tiny encoder on a CPU
    args.variants = variants(args.variants)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    report(args, f"{name}, torch {torch.__version__}")
    begun = time.perf_counter()
    for shape in args.shape:
        for case in cases_of(shape, (args.turns + 1) * (args.steps + 1)):
            if time.perf_counter() - begun < 60 * args.minutes:
                report(args, measure(args, shape, case, device))


if __name__ == "__main__":
    main()
