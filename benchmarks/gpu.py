"""How fast palm trains on a GPU, beside Hugging Face's Trainer at its best: one call, one table.

    python benchmarks/gpu.py                 # BERT-base and -large: pairs, length 384, a mix, 1 to 8 heads
    python benchmarks/gpu.py --output report.md --peak 989
    python benchmarks/gpu.py --quick         # the same program on any machine, tiny, in seconds

bf16 on both sides, the same weights, rows, batches, dropout and optimizer; Hugging Face with sdpa attention
(and FlashAttention 2 where it is installed) and dynamic padding, in the order of the rows and grouped by
length. They take turns; a ratio is that of one turn, and the table tells the median and the extremes. MFU
is the share that the layers need, for real tokens, of the card's peak as its maker tells it (dense bf16;
`--peak` for others), and of the best of the encoder's own matrix products on this card, measured in the
same run. Host time is what one step costs the thread that starts the kernels. With several heads, steps
alternate between as many tasks on one encoder; in "a step of all", each of them has its part of a batch in
every step. Demo 2's mix draws passages of length 384, pairs and masked pairs by its `mix_ratio`, through the
whole loop; beside it stand the same steps in runs of one task each, turn by turn.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from arguments import new_parser
from speed import VARIANTS, Timing, compare, report, variants
from speed_cases import SHAPES, Case, Shape, made_up, masked, realistic_lengths
from speed_mix import TASKS, both
from speed_runs import (
    LEARNING_RATE,
    WEIGHT_DECAY,
    HuggingFace,
    Palm,
    backbone_of,
    clock,
    free,
    gemm_rate,
    peak_memory,
    task_of,
)

from palm.engine.run.checkpoint import optimizer_tensors, restore_optimizer
from palm.engine.training.build import start
from palm.engine.training.loop import Training
from palm.engine.training.planning import StepPlan, TasksPerStep, expect
from palm.engine.training.recipe import Recipe
from palm.engine.training.task import Task
from palm.mixing import MixRatio
from palm.optimizer import AdamW

ROWS = {"tiny": (8, 4), "base": (128, 48), "large": (64, 24)}
"""Shape -> rows of a batch of short pairs, and of one of length 384."""

PEAKS = {"B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "A10": 125}
"""Part of a card's name -> dense bf16 TFLOP/s by its maker's data sheet."""

HEADS = (1, 2, 4, 8)

VARIANTS["HF bf16 FA2 grouped"] = lambda case, shape, device: HuggingFace(
    case, shape, device, "bf16", "flash_attention_2", grouped=True
)


def cases_of(shape: str, count: int) -> list[Case]:
    """Short pairs and long passages, with lengths as data of that kind has them."""
    short, long = ROWS[shape]
    return [
        made_up("match", realistic_lengths(128, 80, short * count), short),
        made_up("mrc", realistic_lengths(384, 372, long * count), long),
    ]


def on_one_encoder(
    tasks: list[Task], shape: Shape, device: torch.device, tasks_per_step: TasksPerStep = 1
) -> Training:
    """A run of tasks."""
    return start(
        Recipe(
            backbone=backbone_of(shape),
            tasks=tasks,
            optimizer=AdamW(LEARNING_RATE, WEIGHT_DECAY),
            schedule=lambda _: 1.0,
            device=device,
            precision="bf16",
            tasks_per_step=tasks_per_step,
        )
    )


def mixed(cases: dict[str, Case], names: list[str], shape: Shape, device: torch.device) -> Training:
    """A run of some of demo 2's tasks, drawn as its `mix_ratio` says, that takes its batches from streams."""
    tasks = [task_of(name, cases[name], shape, TASKS[name]) for name in names]
    # Every batch of length 384 once; each task by itself is planned for no fewer steps than among others.
    expect(tasks, StepPlan(tasks=[task.progress() for task in tasks], mixing=MixRatio()).over_epochs(1))
    return on_one_encoder(tasks, shape, device)


def alternating(training: Training, case: Case, steps: int) -> Callable[[], None]:
    """Steps in which the tasks take turns."""

    def act() -> None:
        for k in range(steps):
            task = training.tasks[training.step % len(training.tasks)]
            training.step_on([(task, [case.batches[k % len(case.batches)]])])

    return act


def all_at_once(training: Training, case: Case, steps: int) -> Callable[[], None]:
    """Steps with a part of a batch for each task."""
    count = len(training.tasks)
    part = case.rows // count

    def act() -> None:
        for k in range(steps):
            batch = case.batches[k % len(case.batches)]
            cuts = [slice(n * part, (n + 1) * part) for n in range(count)]
            own = [{name: value[cut] for name, value in batch.items()} for cut in cuts]
            training.step_on([(task, [each]) for task, each in zip(training.tasks, own, strict=True)])

    return act


def resumed(training: Training) -> None:
    """Give the optimizer its own state back from the CPU, as a resumed run does."""
    parameters = dict(training.model.named_parameters())
    tensors = optimizer_tensors(training.optimizer, parameters)
    saved = {name: value.cpu() for name, value in tensors.items()}
    restore_optimizer(training.optimizer, parameters, saved)


def host_time(act: Callable[[], None], steps: int) -> float:
    """Seconds of a step that the thread that starts the kernels computes."""
    started = time.thread_time()
    act()
    return (time.thread_time() - started) / steps


def step_time(act: Callable[[], None], steps: int, device: torch.device) -> float:
    """Seconds of a step, waiting for the device at the end alone."""
    started = clock(device)
    act()
    return (clock(device) - started) / steps


class Rates:
    """What the card can do."""

    def __init__(self, shape: Shape, device: torch.device, peak: float | None, tokens: int) -> None:
        self.gemm = gemm_rate(shape, device, torch.bfloat16, tokens)
        name = torch.cuda.get_device_name() if device.type == "cuda" else ""
        known = next((value for part, value in PEAKS.items() if part in name), None)
        told = known if peak is None else peak
        self.peak = None if told is None else told * 1e12

    def shares(self, flops: float, seconds: float) -> str:
        """Both MFUs of steps of so many operations, as columns."""
        of_peak = "" if self.peak is None else f"{flops / seconds / self.peak:.1%}"
        return f"{of_peak} | {flops / seconds / self.gemm:.1%}"


HEADER = """
| | | tokens/s | palm's speed-up over it (least–most) | MFU of peak | of GEMM | host, ms a step | peak MiB |
|---|---|---|---|---|---|---|---|"""


def rows_of_peers(
    args: argparse.Namespace, label: str, case: Case, shape: Shape, device: torch.device, rates: Rates
) -> list[str]:
    """A line per variant."""
    memory: dict[str, float] = {}
    for name in args.variants:  # alone first, for its memory
        free()
        VARIANTS[name](case, shape, device).train(0, 2)
        memory[name] = peak_memory(device)
    free()
    timings: dict[str, Timing] = compare(case, shape, device, args.variants, args.turns, args.steps, "train")
    palm = Palm(case, shape, device, "bf16")
    palm.train(0, 2)
    resumed(palm.training)
    host = host_time(alternating(palm.training, case, args.steps), args.steps)
    tokens, flops = per_step(case, shape)
    lines = []
    for name, timing in timings.items():
        seconds, ratios = median(timing.turns), timing.against(timings["palm"])
        ahead = sorted(1 / ratio for ratio in ratios)
        spread = "" if name == "palm" else f"{median(ahead):.2f} ({ahead[0]:.2f}–{ahead[-1]:.2f})"
        own_host = f"{1e3 * host:.1f}" if name == "palm" else ""
        cells = [label, name, f"{tokens / seconds:.0f}", spread, rates.shares(flops, seconds), own_host]
        lines.append(f"| {' | '.join(cells)} | {memory[name]:.0f} |")
    return lines


def per_step(case: Case, shape: Shape) -> tuple[float, float]:
    """Real tokens and floating-point operations of a step, on the average."""
    count = len(case.batches)
    tokens = sum(int(batch["input_mask"].sum()) for batch in case.batches) / count
    return tokens, 3 * sum(map(shape.flops, case.batches)) / count


def rows_of_mix(
    args: argparse.Namespace,
    label: str,
    cases: dict[str, Case],
    shape: Shape,
    device: torch.device,
    rates: Rates,
) -> list[str]:
    """A line for steps among all tasks, and one for the same steps in runs of one task each."""
    free()
    together = mixed(cases, list(cases), shape, device)

    def act() -> None:
        for _ in range(args.steps):
            together.next_step()

    act()
    memory = peak_memory(device)
    host = host_time(act, args.steps)
    alone = {name: mixed(cases, [name], shape, device) for name in cases}
    both(together, alone, args.steps)  # does not count
    before = {task.name: task.step for task in together.tasks}
    turns = [both(together, alone, args.steps) for _ in range(args.turns)]
    batches = [
        cases[task.name].batches[k % len(cases[task.name].batches)]
        for task in together.tasks
        for k in range(before[task.name], task.step)
    ]
    tokens, flops = per_step(Case(label, "mix", batches), shape)
    # Turns draw unequal shares of the tasks, so a step's time is the mean over all.
    mix, apart = (sum(seconds) / len(batches) for seconds in zip(*turns, strict=True))
    ahead = sorted(single / several for several, single in turns)
    spread = f"{median(ahead):.2f} ({ahead[0]:.2f}–{ahead[-1]:.2f})"
    return [
        f"| {label} | palm, {len(cases)} tasks, drawn | {tokens / mix:.0f} |  | {rates.shares(flops, mix)} "
        f"| {1e3 * host:.1f} | {memory:.0f} |",
        f"| {label} | palm, the same steps, a run per task | {tokens / apart:.0f} | {spread} "
        f"| {rates.shares(flops, apart)} |  |  |",
    ]


def rows_of_heads(
    args: argparse.Namespace, label: str, case: Case, shape: Shape, device: torch.device, rates: Rates
) -> list[str]:
    """A line per number of heads, tasks in turns and all at once; the first is the run that went on."""
    tokens, flops = per_step(case, shape)
    lines = []
    for count in HEADS:
        for together in (False, True)[: 1 + (count > 1)]:
            free()
            tasks = [task_of(f"task{k}", case, shape) for k in range(count)]
            training = on_one_encoder(tasks, shape, device, "all" if together else 1)
            act = (all_at_once if together else alternating)(training, case, args.steps)
            act()
            resumed(training)
            host = host_time(act, args.steps)
            seconds = median(step_time(act, args.steps, device) for _ in range(args.turns))
            how = "a step of all" if together else "in turns"
            name = f"palm, {count} heads, {how}" if count > 1 else "palm, 1 head, resumed on the device"
            lines.append(
                f"| {label} | {name} | {tokens / seconds:.0f} |  | {rates.shares(flops, seconds)} "
                f"| {1e3 * host:.1f} | {peak_memory(device):.0f} |"
            )
    return lines


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__)
    parser.add_argument(
        "--quick", "--tiny", action="store_true", help="a tiny encoder, on whatever device there is"
    )
    parser.add_argument("--shape", nargs="+", choices=list(ROWS), default=["base", "large"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=9, help="no further case begins after them")
    parser.add_argument("--peak", type=float, help="the card's dense bf16 TFLOP/s, where it is not known")
    parser.add_argument("--output", type=Path, help="a Markdown file to append the table to")
    args = parser.parse_args()
    if args.quick:
        args.shape, args.turns, args.steps = ["tiny"], 1, 2
    args.variants = ["palm", "HF bf16 sdpa", "HF bf16 sdpa grouped"]
    if importlib.util.find_spec("flash_attn") is not None:
        args.variants.append("HF bf16 FA2 grouped")
    return args


def report_all(args: argparse.Namespace, device: torch.device) -> None:
    """The table's lines, each as soon as it is known."""
    begun = time.perf_counter()
    for name in args.shape:
        shape = SHAPES[name]
        rates = Rates(shape, device, args.peak, 256 if args.quick else 16384)
        short, long = cases_of(name, (args.turns + 1) * (args.steps + 1))
        mix = dict(zip(TASKS, (long, masked(short), short), strict=True))
        parts: list[tuple[Callable[..., list[str]], str, Case | dict[str, Case]]] = [
            (rows_of_peers, f"{name}, pairs ≤ 128", short),
            (rows_of_peers, f"{name}, length 384", long),
            (rows_of_mix, f"{name}, demo 2's mix", mix),
            (rows_of_heads, f"{name}, pairs ≤ 128", short),
        ]
        for make, label, data in parts:
            if time.perf_counter() - begun < 60 * args.minutes:
                report(args, "\n".join(make(args, label, data, shape, device, rates)))


def main() -> None:
    args = read_arguments()
    if not torch.cuda.is_available() and not args.quick:
        raise SystemExit("no CUDA GPU is visible; --quick runs the same program on a CPU")
    torch.set_num_threads(1)  # for a tiny encoder on a CPU
    args.variants = variants(args.variants)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    report(args, f"{name}, torch {torch.__version__}\n{HEADER}")
    report_all(args, device)


if __name__ == "__main__":
    main()
