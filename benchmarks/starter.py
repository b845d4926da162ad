"""Train projects of `palm init` in many combinations of kinds; the least best dev score of each kind.

    python benchmarks/starter.py --output DIR

Every kind alone with three seeds, every pair, all kinds, all but one, and sets of three to eight by chance.
What is done is kept: the same command goes on after an interruption, and with `--show` it only prints the
Markdown table. The exit code is 1 where a score is below what 2026-11-24-starter.md promises.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import palm
from palm.cli.starter.project import KINDS, write_project

FLOORS = {
    "cls": ("accuracy", 0.6),
    "multi_label": ("lrap", 0.45),
    "seq_label": ("entity_f1", 0.9),
    "span": ("span_f1", 0.75),
    "relation": ("relation_strict_f1", 0.1),
    "mrc": ("f1", 80),
    "match": ("accuracy", 0.4),
    "multiple_choice": ("accuracy", 0.3),
    "ranking": ("mrr", 0.55),
    "embedding": ("mrr", 0.4),
    "ordinal": ("qwk", 0.8),
    "count": ("spearman", 0.75),
    "mlm": ("perplexity", 200),
}
"""Kind -> metric, and what 2026-11-24-starter.md promises of it: at least, of `perplexity` at most."""

SETS = 24
"""Sets of three to eight kinds."""


def cases() -> list[tuple[int, tuple[str, ...]]]:
    """Seeds and kinds."""
    kinds = list(KINDS)
    choice = random.Random(0)
    some = [sorted(choice.sample(range(len(kinds)), choice.randint(3, 8))) for _ in range(SETS)]
    pairs = list(combinations(kinds, 2))
    sets = [*pairs, *(tuple(kinds[k] for k in each) for each in some)]
    choice.shuffle(sets)  # if it is stopped early, all kinds have had partners
    without = [tuple(kind for kind in kinds if kind != left) for left in kinds]
    alone = [(seed, (kind,)) for seed in (1, 2, 3) for kind in kinds]
    return [*alone, (1, tuple(kinds)), *((1, each) for each in (*sets, *without))]


def train(folder: Path, seed: int, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Train one project as it stands; return the best dev scores by kind."""
    write_project(folder, {kind: kind for kind in kinds})
    result = palm.Controller(folder / "config.yaml", argv=["--random_seed", str(seed)]).train()
    return {kind: dict(result.best[kind].scores) for kind in kinds}


def rows_of(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[str], bool]]:
    """Kind -> its cells: alone, in pairs, in larger sets; and whether all runs keep its promise."""
    for kind, (metric, floor) in FLOORS.items():
        found = {}
        for sizes in (range(1, 2), range(2, 3), range(3, 99)):
            runs = (each for each in lines if kind in each["kinds"] and len(each["kinds"]) in sizes)
            found[sizes] = [each["scores"][kind][metric] for each in runs]
        cells = [f"{min(v):.2f} to {max(v):.2f}" if v else "" for v in found.values()]
        scores = [score for values in found.values() for score in values]
        keeps = max(scores) <= floor if metric == "perplexity" else min(scores) >= floor
        yield kind, [metric, str(floor), *cells, str(len(scores))], keeps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="the folder of all projects")
    parser.add_argument("--show", action="store_true", help="train nothing")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    record = options.output / "runs.jsonl"
    done = [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []
    known = {(each["seed"], *each["kinds"]) for each in done}
    for number, (seed, kinds) in enumerate(cases()):
        if options.show or (seed, *kinds) in known:
            continue
        began = time.process_time()
        scores = train(options.output / f"{number:03d}-{time.time_ns()}", seed, kinds)
        line = {"seed": seed, "kinds": kinds, "seconds": time.process_time() - began, "scores": scores}
        with record.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")
    lines = [json.loads(line) for line in record.read_text("utf-8").splitlines()]
    heads = ["kind", "metric", "promised", "by itself", "in pairs", "in larger sets", "runs"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    broken = []
    for kind, cells, keeps in rows_of(lines):
        print(f"| `{kind}` | {' | '.join(cells)} |")
        broken += [] if keeps else [kind]
    if broken:
        raise SystemExit(f"below what is promised: {', '.join(broken)}")


if __name__ == "__main__":
    main()
