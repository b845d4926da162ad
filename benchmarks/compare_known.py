"""A comparison whose answers are known: helpers that help, that teach nothing, and the target's other half.

    python benchmarks/compare_known.py [--seeds 5] [--output DIR]

The target is to say which of eight groups a word of a sentence belongs to; words are made up, and the 48
rows of the target show only a part of them. Three comparisons, each of the target with one helper:

    half       256 other rows of the same task, with their labels: has to be called helpful
    shuffled   the same rows with their labels shuffled: has to be called harmful, or of no difference
    nothing    the same rows, labelled by a word that has nothing to do with the group: the same

Nothing is pretrained; the encoder is small and random. Prints every comparison's verdicts and whether the
answer is the known one; the exit code is 0 if all are.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import palm

GROUPS, WORDS_PER_GROUP, FILLERS = 8, 12, 40
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
KNOWN = {
    "half": {"helpful"},
    "shuffled": {"harmful", "no difference"},
    "nothing": {"harmful", "no difference"},
}
ENCODER = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


def word(group: int, number: int) -> str:
    return f"g{group}w{number}"


def sentences(rng: random.Random, number: int) -> list[tuple[int, int, str]]:
    """Group of its word, label of its first filler, and text."""
    found = []
    for _ in range(number):
        group = rng.randrange(GROUPS)
        fillers = [rng.randrange(FILLERS) for _ in range(5)]
        words = [f"f{filler}" for filler in fillers]
        words.insert(rng.randrange(6), word(group, rng.randrange(WORDS_PER_GROUP)))
        found.append((group, fillers[0] % GROUPS, " ".join(words)))
    return found


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    words = [word(group, number) for group in range(GROUPS) for number in range(WORDS_PER_GROUP)]
    vocabulary = [*SPECIAL, *words, *(f"f{number}" for number in range(FILLERS))]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    target, half, test = sentences(rng, 48), sentences(rng, 256), sentences(rng, 500)
    labels = [group for group, _, _ in half]
    rng.shuffle(labels)
    files = {
        "target": [(group, text) for group, _, text in target],
        "half": [(group, text) for group, _, text in half],
        "shuffled": [(label, text) for label, (_, _, text) in zip(labels, half, strict=True)],
        "nothing": [(filler, text) for _, filler, text in half],
        "test": [(group, text) for group, _, text in test],
    }
    for name, rows in files.items():
        lines = "".join(f"{label}\t{text}\n" for label, text in rows)
        (folder / f"{name}.tsv").write_text(f"label\ttext_a\n{lines}", encoding="utf-8")


def config_of(folder: Path, helper: str, epochs: float) -> dict[str, Any]:
    task = {"reader": "cls", "paradigm": "cls", "n_classes": GROUPS}
    return {
        "task_instance": ["target", helper],
        "target_tag": [1, 0],
        "mix_ratio": [1, 2],
        "task_reuse_tag": ["a", "a" if helper == "half" else "b"],
        "backbone": "bert",
        **ENCODER,
        "vocab_size": len(SPECIAL) + GROUPS * WORDS_PER_GROUP + FILLERS,
        "vocab_path": str(folder / "vocab.txt"),
        "max_seq_len": 12,
        "batch_size": 16,
        "num_epochs": epochs,
        "learning_rate": 2e-3,
        "warmup_proportion": 0.1,
        "precision": "fp32",
        "save_path": str(folder / helper),
        "tasks": {
            "target": {**task, "train_file": str(folder / "target.tsv")},
            helper: {**task, "train_file": str(folder / f"{helper}.tsv")},
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=float, default=60, help="of the target's 48 rows")
    parser.add_argument("--budget", choices=["target", "total"], default="target")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--output", type=Path, help="keep everything here; a temporary folder where absent")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = (args.output or Path(spare)).resolve()
        write_data(folder)
        right = []
        for helper, known in KNOWN.items():
            found = palm.compare(
                config_of(folder, helper, args.epochs),
                seeds=args.seeds,
                budget=args.budget,
                test={"target": folder / "test.tsv"},
                workers=args.workers,
            )
            called = found.helpers[helper]["target"]
            right.append(called in known)
            print(f"{found}\n{helper}: {called}; known: {' or '.join(sorted(known))}\n", flush=True)
    raise SystemExit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
