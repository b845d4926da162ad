"""Time palm's adapter of `transformers` encoders beside the library itself, alternating in one process.

    python benchmarks/encoders.py [--family modernbert] [--width 384] [--layers 6] [--turns 7]

The library gets batches of rows of like lengths, its `sdpa` attention and, in bf16, torch's autocast for
training and weights in bf16 for prediction; palm gets the same batches. A turn is every batch once; figures
are medians of the turns' ratios, with their range.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel

from palm.backbone.transformers import Transformers

SHAPES = {"short": (4, 32), "pairs": (16, 128), "long": (96, 384)}
"""Case -> the shortest and the longest row; lengths are spread evenly on a logarithmic scale."""


def main() -> None:
    options = parsed()
    settings = {
        "model_type": options.family,
        "vocab_size": 8000,
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.width // 64,
        "intermediate_size": options.width * (4 if options.family == "bert" else 3) // 2 * 2 // 1,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "cls_token_id": 1,
        "eos_token_id": 2,
        "sep_token_id": 2,
        "max_position_embeddings": 512,
    }
    known = AutoConfig.for_model(options.family)
    settings = {name: value for name, value in settings.items() if hasattr(known, name)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(settings), encoding="utf-8")
        ours = Transformers(file)
    theirs = AutoModel.from_config(AutoConfig.for_model(**settings), attn_implementation="sdpa")
    theirs.load_state_dict(ours.model.state_dict())
    print(f"{options.family}, {options.layers} layers of {options.width}, {torch.get_num_threads()} threads")
    print("case    precision  what      palm tokens/s  library tokens/s  ratio (range)")
    for case in options.cases:
        batches = batches_of(*SHAPES[case], rows=options.rows)
        for precision in ("fp32", "bf16"):
            for what, turn in (("train", trained), ("predict", predicted)):
                report(
                    case,
                    precision,
                    what,
                    turn(ours, theirs, precision == "bf16"),
                    batches,
                    options.turns,
                )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="modernbert")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cases", nargs="+", default=list(SHAPES))
    return parser.parse_args()


def batches_of(shortest: int, longest: int, rows: int, size: int = 16) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(rows, generator=generator)
    lengths = (shortest * (longest / shortest) ** spread).long().sort().values
    batches = []
    for part in lengths.split(size):
        ids = torch.randint(3, 8000, (len(part), int(part.max())), generator=generator)
        mask = torch.arange(ids.shape[1]) < part[:, None]
        ids = ids * mask
        zeros = torch.zeros_like(ids)
        batches.append({"token_ids": ids, "input_mask": mask, "segment_ids": zeros, "position_ids": zeros})
    return batches


Turns = tuple[Callable[[dict[str, Tensor]], None], Callable[[dict[str, Tensor]], None]]


def trained(ours: Transformers, theirs: torch.nn.Module, half: bool) -> Turns:
    ours.train()
    theirs.train().float()

    def by_palm(batch: dict[str, Tensor]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = ours(batch, ["encoder_outputs"])["encoder_outputs"].float().square().mean()
        loss.backward()

    def by_library(batch: dict[str, Tensor]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            made = theirs(input_ids=batch["token_ids"], attention_mask=batch["input_mask"].long())
            loss = made.last_hidden_state.float().square().mean()
        loss.backward()

    return by_palm, by_library


def predicted(ours: Transformers, theirs: torch.nn.Module, half: bool) -> Turns:
    ours.eval()
    theirs.eval().to(torch.bfloat16 if half else torch.float32)

    @torch.inference_mode()
    def by_palm(batch: dict[str, Tensor]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            ours(batch, ["encoder_outputs"])

    @torch.inference_mode()
    def by_library(batch: dict[str, Tensor]) -> None:
        theirs(input_ids=batch["token_ids"], attention_mask=batch["input_mask"].long())

    return by_palm, by_library


def report(
    case: str, precision: str, what: str, both: Turns, batches: list[dict[str, Tensor]], turns: int
) -> None:
    tokens = sum(int(batch["input_mask"].sum()) for batch in batches)
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for kept, compute in zip(seconds, both, strict=True):
            started = time.perf_counter()
            for batch in batches:
                compute(batch)
            if turn:  # the first prepares kernels
                kept.append(time.perf_counter() - started)
    ratios = [library / palm for palm, library in zip(*seconds, strict=True)]
    palm, library = (tokens / statistics.median(kept) for kept in seconds)
    print(
        f"{case:7s} {precision:10s} {what:9s} {palm:13.0f} {library:17.0f}  "
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
        flush=True,
    )


if __name__ == "__main__":
    main()
