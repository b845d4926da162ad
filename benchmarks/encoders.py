"""Time palm's adapter of `transformers` encoders beside the library and palm's own, interleaved.

    python benchmarks/encoders.py [--family modernbert] [--width 384] [--layers 6] [--turns 5]

Rows have lengths spread evenly on a logarithmic scale. palm gets them in batches in the order of the
file; the library once in these (`padded`) and once in batches of rows of like lengths (`grouped`), with its
`sdpa` attention. In bf16, both train under torch's autocast; to predict, the library has its weights in bf16,
and palm computes under autocast with its weight cache, as its predictions do. A turn is every batch once by
everybody; ratios are those of the turns' seconds of CPU time, as median and range.
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
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from palm.backbone import BERT
from palm.backbone.transformers import Transformers
from palm.core.layers import WeightCache

SHAPES = {"short": (4, 32), "pairs": (16, 128), "long": (96, 384)}
"""Case -> the shortest and the longest row; lengths are spread evenly on a logarithmic scale."""


def main() -> None:
    options = parsed()
    print(f"{options.family}, {options.layers} layers of {options.width}, {torch.get_num_threads()} threads")
    encoders = built(options)
    theirs = encoders["library"]
    for case in options.cases:
        batches = batches_of(*SHAPES[case], rows=options.rows, size=options.batch_size)
        for precision in options.precisions:
            for what in options.work:
                runs = {
                    name: turn_of(name, model, what == "train", precision == "bf16", batches[False])
                    for name, model in encoders.items()
                    if model is not theirs
                }
                for is_grouped in (False, True):
                    name = "library grouped" if is_grouped else "library padded"
                    half = precision == "bf16"
                    runs[name] = turn_of(name, theirs, what == "train", half, batches[is_grouped])
                theirs.to(torch.bfloat16 if what == "predict" and precision == "bf16" else torch.float32)
                tokens = sum(int(batch["input_mask"].sum()) for batch in batches[False])
                report(f"{case:6s} {precision} {what:8s}", runs, tokens, options.turns)


def built(options: argparse.Namespace) -> dict[str, nn.Module]:
    """palm's adapter, the library's model with the same weights, and for ModernBERT palm's own parts."""
    sizes = {
        "vocab_size": 8000,
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.width // 64,
        "intermediate_size": options.width * (4 if options.family == "bert" else 3) // 2 * 2,
        "max_position_embeddings": 512,
    }
    special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
    known = AutoConfig.for_model(options.family)
    settings = {name: value for name, value in (sizes | special).items() if hasattr(known, name)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps({"model_type": options.family, **settings}), encoding="utf-8")
        ours = Transformers(file, pooling="mean")
    theirs = AutoModel.from_config(
        AutoConfig.for_model(options.family, **settings), attn_implementation="sdpa", dtype=torch.float32
    )
    theirs.load_state_dict(ours.model.state_dict(), strict=False)
    encoders: dict[str, nn.Module] = {"adapter": ours}
    if options.family == "bert":
        encoders["palm's own"] = BERT(**sizes, pooling="mean")
    return {**encoders, "library": theirs}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", default="modernbert")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=list(SHAPES))
    parser.add_argument("--work", nargs="+", default=["train", "predict"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    return parser.parse_args()


def batches_of(shortest: int, longest: int, rows: int, size: int) -> dict[bool, list[dict[str, Tensor]]]:
    """The same rows in batches as they come (False) and of like lengths (True)."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(rows, generator=generator)
    lengths = (shortest * (longest / shortest) ** spread).long()
    batches: dict[bool, list[dict[str, Tensor]]] = {}
    for is_grouped, order in ((False, lengths), (True, lengths.sort().values)):
        batches[is_grouped] = []
        for part in order.split(size):
            ids = torch.randint(3, 8000, (len(part), int(part.max())), generator=generator)
            mask = torch.arange(ids.shape[1]) < part[:, None]
            positions = torch.arange(ids.shape[1]).expand_as(ids)
            batch = {"token_ids": ids * mask, "input_mask": mask, "position_ids": positions}
            batches[is_grouped].append({**batch, "segment_ids": torch.zeros_like(ids)})
    return batches


def turn_of(
    name: str, model: nn.Module, trains: bool, half: bool, batches: list[dict[str, Tensor]]
) -> Callable[[], None]:
    """A function that sends every batch through the model once, with gradients if it trains."""
    is_library = name.startswith("library")
    autocast = half and (trains or not is_library)
    cache = WeightCache()

    def encoded(batch: dict[str, Tensor]) -> Tensor:
        if is_library:
            return model(
                input_ids=batch["token_ids"], attention_mask=batch["input_mask"].long()
            ).last_hidden_state
        return model(batch, ["encoder_outputs"])["encoder_outputs"]

    def turn() -> None:
        model.train(trains)
        with torch.set_grad_enabled(trains), cache.active():
            for batch in batches:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    tokens = encoded(batch)
                if trains:
                    tokens.float().square().mean().backward()

    return turn


def report(title: str, runs: dict[str, Callable[[], None]], tokens: int, turns: int) -> None:
    """Print tokens per second of everybody, and the adapter's ratios to the others."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(turns + 1):
        for name, turn in runs.items():
            started = time.process_time()
            turn()
            if number:  # the first prepares kernels
                seconds[name].append(time.process_time() - started)
    pace = {name: f"{tokens / statistics.median(kept):.0f}" for name, kept in seconds.items()}
    ratios = []
    for name, kept in seconds.items():
        if name != "adapter":
            each = [other / own for own, other in zip(seconds["adapter"], kept, strict=True)]
            ratios.append(f"{name} {statistics.median(each):.2f} ({min(each):.2f}-{max(each):.2f})")
    print(f"{title} tokens/s {pace}  adapter beside {'; '.join(ratios)}", flush=True)


if __name__ == "__main__":
    main()
