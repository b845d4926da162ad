"""Whether palm computes on a GPU what it computes on a CPU, and how fast, beside Hugging Face at its best.

    python benchmarks/gpu.py --output report.md        # everything, in 10 minutes at most
    python benchmarks/gpu.py --only large --peak 989   # cases by a part of their names
    python benchmarks/gpu.py --quick                   # the same program on any machine, tiny, in seconds

Correctness comes first: kernels beside their definition, losses and gradients of 20 steps without dropout
beside a CPU's, resumed runs beside straight ones. Then variants take turns on the same rows, with the same
weights, dropout and optimizer; a turn is some steps with one wait at their end; a speed-up is that of one
turn, and the table tells the median and the extremes. Hugging Face's Trainer has bf16, pinned memory,
processes that collate, sdpa or FlashAttention 2, rows grouped by length, and torch.compile.

MFU is the share of the card's peak by its maker (dense bf16; `--peak` for cards that are not known), and of
the best of the encoder's own matrix products in the same run, that the layers need for the real tokens. The
host's time is that of making a batch and enqueueing its step on an idle device (on a CPU, that of the whole
step); idle is the share of a step in which none of the profiler's kernels runs. Each case is a process with
an end of its own, before which what it has measured is written; each variant may fail by itself: its error
stands in the table.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from arguments import new_parser
from speed import report
from speed_cases import SHAPES, Case, Shape, made_up, masked, part_of, realistic_lengths, short_lengths
from speed_mix import TASKS
from speed_runs import HuggingFace, Palm, free, gemm_rate, peak_memory, task_of
from torch import Tensor
from torch.autograd import DeviceType
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from palm.backbone.attention import attend
from palm.backbone.packing import Packing, Scope, Sequences
from palm.core.device import fixed_order
from palm.train.checkpoint import optimizer_tensors, restore_optimizer

SIZES = {"tiny": (320, 160), "base": (32768, 10240), "large": (16384, 5120)}
"""Shape -> real tokens of a step."""

NARROW = Shape(16, 12, 1)
"""Its kernels take no time, so a step takes as long as the host needs."""

PEAKS = {"B200": 2250, "H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "L40S": 362, "A10": 125}
"""Part of a card's name -> dense bf16 TFLOP/s by its maker's data sheet."""

COLUMNS = (
    "",
    "tokens/s",
    "palm's speed-up over it (least–most)",
    "MFU of peak",
    "of GEMM",
    "host, ms a step",
    "idle",
    "peak MiB",
)
Makers = Mapping[str, Callable[[], Any]]
"""Variant -> what makes its runner."""


def line(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def header(*columns: str) -> str:
    """The head of a Markdown table."""
    return f"{line(*columns)}\n|{'---|' * len(columns)}"


def short(error: BaseException) -> str:
    """An error as a cell."""
    return f"{type(error).__name__}: {error}".split("\n")[0][:120]


def batches_of(args: argparse.Namespace, kind: str, tokens: int) -> Case:
    """Rows with lengths as data of this kind has them, so many tokens a step."""
    longest, mean = (384, 372) if kind == "mrc" else (128, 80)
    rows = max(tokens // mean, 2)
    count = (args.turns + 1) * (args.steps + 1)
    return made_up(kind, realistic_lengths(longest, mean, rows * count), rows)


class OutOfTime(BaseException):
    """A case has had its part of the time; no handler of errors takes it for one."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Leave the context after so many seconds, in the midst of a turn if need be."""

    def stop(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        with suppress(OutOfTime):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Variant:
    """One of those that take turns: its times, and what went wrong.

    Args:
        make: makes its runner.
        device: where it computes.
    """

    def __init__(self, make: Callable[[], Any], device: torch.device) -> None:
        self._make = make
        self.device = device
        self.turns: list[float] = []
        self.error: str | None = None
        self.memory = 0.0
        self.host = ""
        self.idle = ""
        self.longest: list[str] = []
        self.runner: Any = None

    def measure(self, verb: str, steps: int) -> None:
        """Take a turn; before the first one, some steps that do not count."""
        if self.error is not None:
            return
        try:
            if self.runner is None:
                free()
                before = torch.cuda.memory_allocated() if self.device.type == "cuda" else 0
                self.runner = self._make()
                getattr(self.runner, verb)(max(steps // 2, 1))
                self.memory = peak_memory(self.device) - before / 2**20
            self.turns.append(getattr(self.runner, verb)(steps))
        except Exception as error:  # whatever it is, the others go on
            self.error = short(error)
            self.runner = None

    @property
    def seconds_per_token(self) -> list[float]:
        """Of each turn, for real tokens."""
        batches = [] if self.runner is None else self.runner.case.batches
        tokens = sum(int(batch["input_mask"].sum()) for batch in batches)
        return [seconds * len(batches) / tokens for seconds in self.turns] if tokens else []

    def explain(self, steps: int, name: str, seconds: float) -> None:
        """Find the host's time, the idle share and the longest kernels, as far as the seconds suffice."""
        with at_most(seconds):
            try:
                self.host = f"{1e3 * self.runner.host(steps):.1f}"
                busy, self.longest = self.busy(min(steps, 3), name)
                self.idle = f"{max(0.0, 1 - busy / median(self.turns)):.0%}"
            except Exception as error:  # a profiler may not be allowed
                self.idle = short(error)

    def busy(self, steps: int, name: str) -> tuple[float, list[str]]:
        """Seconds of a step in which the device computes, and lines with its longest kernels."""
        on_gpu = self.device.type == "cuda"
        with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
            self.runner.train(steps)
        kind = DeviceType.CUDA if on_gpu else DeviceType.CPU
        every = (event for event in seen.events() if event.device_type == kind)
        events = [event for event in every if not event.is_user_annotation]  # a range spans what is idle
        total, end = 0.0, 0.0
        by_name: Counter[str] = Counter()
        for event in sorted(events, key=lambda event: event.time_range.start):
            total += max(0.0, event.time_range.end - max(event.time_range.start, end))
            end = max(end, event.time_range.end)
            by_name[event.name] += event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
        each = 1e3 * (steps + 1)  # train makes a step that it does not count
        top = [
            line(name, kernel[:80], f"{us / each:.3f}", f"{us / total:.1%}")
            for kernel, us in by_name.most_common(8)
        ]
        return total / each / 1e3, top


def shares(shape: Shape, device: torch.device, args: argparse.Namespace) -> Callable[[float], list[str]]:
    """Return a function that tells both MFUs of FLOP/s."""
    free()
    gemm = gemm_rate(shape, device, torch.bfloat16, 256 if args.quick else 16384)
    name = torch.cuda.get_device_name() if device.type == "cuda" else ""
    known = args.peak or next((value for part, value in PEAKS.items() if part in name), None)
    return lambda rate: ["" if known is None else f"{rate / known / 1e12:.1%}", f"{rate / gemm:.1%}"]


def take_turns(
    args: argparse.Namespace,
    shape: Shape,
    makers: Makers,
    device: torch.device,
    verb: str = "train",
) -> None:
    """Let variants take turns until the end is near, and write a line for each; then the kernels.

    The first variant is the one that others are compared with.
    """
    report(args, header(*COLUMNS))
    mfu = shares(shape, device, args)
    variants = {name: Variant(make, device) for name, make in makers.items()}
    with at_most(args.end - time.monotonic() - 0.35 * args.seconds):
        for _ in range(args.turns):
            for variant in variants.values():
                variant.measure(verb, args.steps)
    first = next(iter(variants.values()))
    explained = list(variants)[: 2 if args.quick else None]  # reading a profile takes seconds
    for name, variant in variants.items():
        if variant.error is not None or not variant.turns:
            report(args, line(name, variant.error or "no turn in time", *[""] * (len(COLUMNS) - 2)))
            continue
        ahead = [t / own for t, own in zip(variant.seconds_per_token, first.seconds_per_token, strict=False)]
        spread = f"{median(ahead):.2f} ({min(ahead):.2f}–{max(ahead):.2f})" if ahead else ""
        batches = variant.runner.case.batches
        flops = (3 if verb == "train" else 1) * sum(map(shape.flops, batches)) / len(batches)
        if verb == "train" and name in explained:
            variant.explain(args.steps, name, args.end - time.monotonic() - 0.1 * args.seconds)
        rate = f"{1 / median(variant.seconds_per_token):.0f}"
        cells = [name, rate, spread, *mfu(flops / median(variant.turns)), variant.host, variant.idle]
        report(args, line(*cells, f"{variant.memory:.0f}"))
    hf = [each for name, each in variants.items() if name.startswith("HF") and each.longest]
    best = sorted(hf, key=lambda each: median(each.turns))[:1]
    top = [cells for variant in (first, *best) for cells in variant.longest]
    if top:
        report(args, "\n" + "\n".join([header("", "kernel", "ms a step", "of all kernels"), *top]))


def peers(case: Case, shape: Shape, device: torch.device, args: argparse.Namespace) -> dict[str, Any]:
    """palm in bf16, and Hugging Face with everything that makes it fast."""
    best = partial(HuggingFace, case, shape, device, "bf16", workers=args.workers)
    return {
        "palm": lambda: Palm(case, shape, device, "bf16"),
        "HF sdpa": lambda: best("sdpa"),
        "HF sdpa grouped": lambda: best("sdpa", grouped=True),
        "HF FlashAttention 2 grouped": lambda: best("flash_attention_2", grouped=True),
    }


def throughput(name: str, kind: str, size: int, args: argparse.Namespace, device: torch.device) -> None:
    """palm beside Hugging Face on steps of so many tokens."""
    shape = SHAPES[name]
    case = batches_of(args, kind, SIZES[name][size])
    take_turns(args, shape, peers(case, shape, device, args), device)


def compiled(name: str, args: argparse.Namespace, device: torch.device) -> None:
    """palm beside Hugging Face with torch.compile: rows padded to one length, and grouped."""
    shape = SHAPES[name]
    case = batches_of(args, "match", SIZES[name][0])
    backend = "eager" if args.quick else "inductor"  # a CPU's compiler takes minutes
    best = partial(HuggingFace, case, shape, device, "bf16", "sdpa", workers=args.workers, compiled=backend)
    palm = peers(case, shape, device, args)["palm"]
    makers = {"palm": palm, "HF compiled": best, "HF compiled grouped": partial(best, grouped=True)}
    take_turns(args, shape, makers, device)


@contextmanager
def tf32() -> Iterator[None]:
    """Allow TensorFloat-32 in float32 matrix products."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Within:
    """A runner that is made and trains within a context.

    Args:
        context: makes the context.
        make: makes the runner.
    """

    def __init__(self, context: Callable[[], AbstractContextManager[Any]], make: Callable[[], Any]) -> None:
        self._context = context
        with context():
            self._runner = make()
        self.case = self._runner.case

    def train(self, count: int) -> float:
        """Train within it."""
        with self._context():
            return float(self._runner.train(count))

    def host(self, count: int) -> float:
        """Enqueue within it."""
        with self._context():
            return float(self._runner.host(count))


def modes(name: str, args: argparse.Namespace, device: torch.device) -> None:
    """Ways to train, beside one task a step in bf16."""
    shape, tokens = SHAPES[name], SIZES[name][0]
    case = batches_of(args, "match", tokens)
    tags, crf, passages = (batches_of(args, kind, tokens) for kind in ("seq_label", "crf", "mrc"))
    words = masked(case)
    whole = [task_of(f"task{k}", case, shape) for k in range(4)]
    parts = [task_of(f"task{k}", part_of(case, k, 2), shape) for k in range(2)]
    own = dict(zip(TASKS, (passages, words, case), strict=True))
    drawn = [task_of(each, own[each], shape, ratio) for each, ratio in TASKS.items()]
    # Of the drawn steps, every second is one of passages.
    mix = Case("mix", "mix", [*passages.batches, *passages.batches, *words.batches, *case.batches])

    def palm(case: Case = case, precision: Any = "bf16", **settings: Any) -> Callable[[], Palm]:
        return lambda: Palm(case, shape, device, precision, **settings)

    peer = partial(HuggingFace, case, shape, device, "fp32", "sdpa", grouped=True, workers=args.workers)
    makers = {
        "palm": palm(),
        "averaged weights (EMA)": palm(use_ema=True, ema_decay=0.999),
        "activation checkpointing": palm(activation_checkpointing=True),
        "kernels with a fixed order": palm(deterministic=True),
        "4 tasks in turns": palm(tasks=whole),
        "2 tasks in a step, half of the rows each": palm(tasks=parts, tasks_per_step="all"),
        "demo 2's three tasks, drawn": palm(mix, tasks=drawn),
        "masked language model": palm(words),
        "sequence labels": palm(tags),
        "sequence labels, CRF": palm(crf),
        "fp32": palm(precision="fp32"),
        "HF fp32": peer,
        "tf32": lambda: Within(tf32, palm(precision="fp32")),
        "HF tf32": lambda: Within(tf32, peer),
    }
    take_turns(args, shape, makers, device)


def prediction(name: str, args: argparse.Namespace, device: torch.device) -> None:
    """palm beside Hugging Face on rows to predict."""
    shape = SHAPES[name]
    case = batches_of(args, "match", SIZES[name][1])
    best = partial(HuggingFace, case, shape, device, attention="sdpa", grouped=True, workers=args.workers)
    makers = {
        "palm": lambda: Palm(case, shape, device, "bf16"),
        "palm fp32": lambda: Palm(case, shape, device, "fp32"),
        "HF sdpa grouped": partial(best, precision="bf16"),
        "HF fp32 grouped": partial(best, precision="fp32"),
    }
    take_turns(args, shape, makers, device, "predict")


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """On a CPU, call as many operators as on a GPU: one for attention, one for dropout; dense gradients."""

    def one_kernel(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
        q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)

    with (
        patch("palm.backbone.attention.attend", one_kernel),
        patch("palm.backbone.cpu_kernels.dropout", F.dropout),
    ):
        yield


def host(args: argparse.Namespace, device: torch.device) -> None:
    """12 layers of width 16 on a few short rows: what a step costs the host.

    On a CPU, attention is one operator on both sides: palm's as on a GPU, Hugging Face's without dropout.
    """
    case = made_up("match", short_lengths(8 * 64), 8)

    def peer(precision: Any) -> HuggingFace:
        runner = HuggingFace(case, NARROW, device, precision, "sdpa")
        for layer in runner.model.bert.encoder.layer:
            layer.attention.self.dropout.p = 0.0
        return runner

    context = nullcontext if device.type == "cuda" else as_on_a_gpu
    makers: dict[str, Callable[[], Any]] = {}
    for precision in ("fp32", "bf16")[: 1 + (device.type == "cuda")]:  # small bf16 products are slow on a CPU
        palm = partial(Palm, case, NARROW, device, precision)
        makers[f"palm {precision}"] = lambda palm=palm: Within(context, palm)
        makers[f"HF {precision}"] = partial(peer, precision)
    take_turns(args, NARROW, makers, device)


def definition(query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> Tensor:
    """softmax(q · k / sqrt(d)) · v, a sequence at a time."""
    rows = []
    for (q0, q1), (k0, k1) in zip(scope.queries.bounds, scope.keys.bounds, strict=True):
        scores = torch.einsum("qhd,khd->hqk", query[q0:q1], key[k0:k1]) / query.shape[-1] ** 0.5
        rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[k0:k1]))
    return torch.cat(rows)


def kernels(shape: Shape, dtype: torch.dtype, first_only: bool, device: torch.device) -> list[str]:
    """The largest differences of packed attention and its gradients from the definition in float64."""
    torch.manual_seed(0)
    lengths = torch.tensor(realistic_lengths(384, 200, 24))
    packing = Packing.of(torch.arange(384) < lengths[:, None])
    scope = packing.scope(first_only, None)
    sides = [Sequences(side.offsets.to(device), side.longest) for side in (scope.queries, scope.keys)]
    size = (3, int(lengths.sum()), shape.num_attention_heads, shape.hidden_size // shape.num_attention_heads)
    rounded = torch.randn(size).to(dtype)
    results = []
    for given, there in ((rounded.double(), scope), (rounded.to(device), Scope(*sides, None))):
        parts = given.requires_grad_()
        query = parts[0][packing.first.to(parts.device)] if first_only else parts[0]
        attended = definition if there is scope else partial(attend, dropout_prob=0.0)
        output = attended(query, parts[1], parts[2], there)
        output.backward(
            torch.cos(torch.arange(output.numel(), device=parts.device)).view_as(output).to(output)
        )
        results.append([output.detach().double().cpu(), parts.grad.double().cpu()])
    exact, seen = results
    return [f"{(a - b).abs().max() / a.abs().max():.1e}" for a, b in zip(exact, seen, strict=True)]


def gradient(palm: Palm) -> Tensor:
    """All gradients of the last step as one vector."""
    grads = [parameter.grad for parameter in palm.training.replica.parameters]
    parts = [grad.flatten() for grad in grads if grad is not None]
    return torch.cat(parts).double().cpu()


def followed(case: Case, shape: Shape, device: torch.device, steps: int) -> Iterator[tuple[str, list[str]]]:
    """Variant -> relative differences of losses and gradients from a CPU's in fp32: first, largest."""
    cpu = torch.device("cpu")
    exact = Palm(case, shape, cpu, "fp32", dropout=0.0)
    places: list[tuple[str, torch.device, Any]] = [
        ("fp32", device, "fp32"),
        ("bf16", device, "bf16"),
        ("bf16 of the CPU", cpu, "bf16"),
    ]
    others = {name: Palm(case, shape, place, how, dropout=0.0) for name, place, how in places}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in others}
    for _ in range(steps):
        loss = float(exact.training.next_step().loss)
        wanted = gradient(exact)
        for name, other in others.items():
            own = float(other.training.next_step().loss)
            far = float((gradient(other) - wanted).norm() / wanted.norm())
            seen[name].append((abs(own - loss) / abs(loss), far))
    for name, differences in seen.items():
        most = [max(values) for values in zip(*differences, strict=True)]
        yield name, [f"{value:.1e}" for value in (*differences[0], *most)]


def resumed(case: Case, shape: Shape, device: torch.device, fixed: bool) -> str:
    """The largest relative difference of a resumed run's losses from a straight one's, with dropout."""
    with fixed_order(fixed):
        straight, first, second = (Palm(case, shape, device, "bf16").training for _ in range(3))
        wanted = [straight.next_step().loss for _ in range(10)]
        for _ in range(5):
            first.next_step()
        parameters = [dict(training.model.named_parameters()) for training in (first, second)]
        state = optimizer_tensors(first.optimizer, parameters[0])
        second.model.load_state_dict({name: value.cpu() for name, value in first.model.state_dict().items()})
        restore_optimizer(
            second.optimizer, parameters[1], {name: value.cpu() for name, value in state.items()}
        )
        second.load_state_dict(first.state_dict())
        losses = [second.next_step().loss for _ in range(5)]
        pairs = zip(map(float, wanted[5:]), map(float, losses), strict=True)
        return f"{max(abs(a - b) / abs(a) for a, b in pairs):.1e}"


def correctness(args: argparse.Namespace, device: torch.device) -> None:
    """Everything that has an answer; each line may fail by itself."""
    shape = SHAPES["tiny" if args.quick else "minilm"]
    report(args, header("kernels beside their definition", "values", "gradients"))

    def tell(name: str, act: Callable[[], list[str]], cells: int) -> None:
        try:
            found = act()
        except Exception as error:  # whatever it is, the other checks go on
            found = [short(error), *[""] * (cells - 1)]
        report(args, line(name, *found))

    for dtype in (torch.float32, torch.bfloat16):
        for first_only in (False, True):
            which = "first tokens" if first_only else "all tokens"
            tell(f"attention, {dtype}, {which}", partial(kernels, shape, dtype, first_only, device), 2)
    steps = 2 if args.quick else 20
    columns = ("first step: loss", "gradient", f"{steps} steps: loss", "gradient")
    report(args, "\n" + header("beside a CPU in fp32, without dropout", *columns))
    cases = {kind: made_up(kind, realistic_lengths(128, 80, 8 * 20), 8) for kind in ("match", "mrc", "crf")}
    for kind, case in {**cases, "mlm": masked(cases["match"])}.items():
        try:
            for name, found in followed(case, shape, device, steps):
                report(args, line(f"{kind}, {name}", *found))
        except Exception as error:
            report(args, line(kind, short(error), "", "", ""))
    report(args, "\n" + header("resumed after 5 of 10 steps beside straight", "largest difference of a loss"))
    for fixed in (True, False):
        name = "kernels with a fixed order" if fixed else "kernels as they are"
        tell(name, lambda fixed=fixed: [resumed(cases["match"], shape, device, fixed)], 1)


def environment(args: argparse.Namespace, device: torch.device) -> None:
    """What the figures depend on."""
    if device.type == "cuda":
        card = torch.cuda.get_device_properties(device)
        facts = [card.name, f"{card.total_memory / 2**30:.0f} GiB", f"CUDA {torch.version.cuda}"]
    else:
        facts = ["CPU"]
    report(
        args,
        ", ".join([*facts, f"torch {torch.__version__}", f"tf32 {torch.backends.cuda.matmul.allow_tf32}"]),
    )


Act = Callable[[argparse.Namespace, torch.device], None]


def cases_of(args: argparse.Namespace) -> Iterator[tuple[str, int, Act]]:
    """Cases in their order, the most needed ones first, each with its seconds at most."""
    names = ["tiny"] if args.quick else ["base", "large"]
    yield "machine", 60, environment
    yield "correctness", 90, correctness
    for size in (0, 1):
        for name in names:
            title = f"{name}, pairs ≤ 128, {SIZES[name][size]} tokens"
            yield title, 60 - 15 * size, partial(throughput, name, "match", size)
    yield f"{names[0]}, pairs ≤ 128, torch.compile", 90, partial(compiled, names[0])
    yield f"{names[0]}, ways to train", 90, partial(modes, names[0])
    yield f"{names[0]}, prediction", 30, partial(prediction, names[0])
    yield "host: 12 layers, width 16", 30, host
    for name in names:
        yield f"{name}, length 384, {SIZES[name][0]} tokens", 45, partial(throughput, name, "mrc", 0)
    if len(names) > 1:
        yield f"{names[1]}, pairs ≤ 128, torch.compile", 90, partial(compiled, names[1])


def run_case(args: argparse.Namespace, act: Act) -> None:
    """Run one case, in a process of its own."""
    if not torch.cuda.is_available() and not args.quick:
        raise SystemExit("no CUDA GPU is visible; --quick runs the same program on a CPU")
    torch.set_num_threads(1 if args.quick else torch.get_num_threads())
    act(args, torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny encoder, on whatever device there is")
    parser.add_argument("--only", default="", help="cases with this in their names")
    parser.add_argument("--turns", type=int, help="3, or 1 with --quick")
    parser.add_argument("--steps", type=int, help="of a turn: 10, or 1 with --quick")
    parser.add_argument("--minutes", type=float, default=9.5, help="of all cases together")
    parser.add_argument("--peak", type=float, help="the card's dense bf16 TFLOP/s, where it is not known")
    parser.add_argument("--output", type=Path, help="a Markdown file to append the tables to")
    args = parser.parse_args()
    args.turns = args.turns or (1 if args.quick else 3)
    args.steps = args.steps or (1 if args.quick else 10)
    args.workers = 0 if args.quick else 4
    return args


def main() -> None:
    args = read_arguments()
    end = time.monotonic() + 60 * args.minutes
    if args.quick:
        with suppress(ImportError):  # once, for all cases
            import torch._dynamo  # noqa: F401
            from transformers import BertForSequenceClassification, Trainer  # noqa: F401
        gc.freeze()  # a case's collections pass over what all have in common
    # A forked process starts at once, but may not be able to use CUDA.
    context: Any = multiprocessing.get_context("fork" if args.quick else "spawn")
    for name, seconds, act in cases_of(args):
        if args.only not in name and name != "machine":
            continue
        # A CPU may do other work besides.
        args.seconds = max(0.0, min(4 * seconds if args.quick else seconds, end - time.monotonic()))
        args.end = time.monotonic() + args.seconds
        report(args, f"\n### {name}\n")
        process = context.Process(target=run_case, args=(args, act))
        process.start()
        process.join(args.seconds)
        if process.is_alive():
            process.kill()
            process.join()
            report(args, line(f"stopped after {args.seconds:.0f} s", *[""] * (len(COLUMNS) - 1)))
        elif process.exitcode and name == "machine":
            raise SystemExit(process.exitcode)
        elif process.exitcode:
            report(args, line(f"ended with {process.exitcode}", *[""] * (len(COLUMNS) - 1)))


if __name__ == "__main__":
    main()
