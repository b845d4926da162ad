"""Tasks and ways of training that are tried on a GPU, or on a pretend one, with their settings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from helpers import tiny

SEQ_LABEL = {"reader": "seq_label", "paradigm": "seq_label", "n_classes": 2, "label_map": {"O": 0, "B": 1}}
CLASSES = {"reader": "cls", "paradigm": "cls", "n_classes": 4}
OTHERS: dict[str, dict[str, Any]] = {
    "labels": {
        "reader": "multi_label",
        "paradigm": "multi_label",
        "label_map": {colour: k for k, colour in enumerate(tiny.COLOURS)},
    },
    "choices": {"reader": "multiple_choice", "paradigm": "multiple_choice"},
    "ranks": {"reader": "ranking", "paradigm": "ranking"},
    "pairwise": {"reader": "ranking", "paradigm": "ranking", "learning_strategy": "pairwise"},
    "pairs": {"reader": "embedding", "paradigm": "embedding"},
    "stars": {**CLASSES, "paradigm": "ordinal"},
    "counts": {"reader": "cls", "paradigm": "count"},
    "numbers": {"reader": "cls", "paradigm": "regression"},
}
FILES = {
    "choices": "choices.jsonl",
    "ranks": "ranks.jsonl",
    "pairwise": "ranks.jsonl",
    "pairs": "pairs.jsonl",
}
FIRST = ("cls", "match", "mlm", "mrc", "span", "relation", "tags")

MODES: dict[str, dict[str, Any]] = {
    "one task a step": {},
    "bf16": {"precision": "bf16"},
    "all tasks a step, bf16": {"tasks_per_step": "all", "precision": "bf16"},
    "lora": {"tasks_per_step": "all", "lora": {"rank": 2}},
    "averages of accumulated steps": {"use_ema": True, "ema_decay": 0.9, "gradient_accumulation_steps": 2},
    "adamwdl, checkpointing": {"optimizer": "adamwdl", "activation_checkpointing": True, "tasks_per_step": 2},
    "lamb, norm clipped": {"optimizer": "lamb", "grad_clip_type": "norm", "grad_clip": 0.1},
    "frozen, shared rows": {"freeze": "embeddings", "shared_rows": True},
    "epsilon as in PaddlePALM, kernels with a fixed order": {"epsilon_hat": True, "deterministic": True},
    "balance by uncertainty, crf": {"crf": True, "tasks_per_step": "all", "balance": "uncertainty"},
    "balance of the test": {"tasks_per_step": 2, "balance": "helpers.balances.EqualLosses"},
}
MODES |= {
    f"other heads, {name}": {"heads": "other", "tasks_per_step": count, "precision": precision}
    for name, count, precision in (("fp32", 1, "fp32"), ("all a step, bf16", "all", "bf16"))
}
RUNS: dict[str, dict[str, Any]] = {
    "heads": {},
    "other heads": {"heads": "other"},
    "lora": {"lora": {"rank": 2}},
}
"""Of whole runs: what they differ in from the first."""

if find_spec("transformers"):
    RUNS["transformers"] = {"backbone": "transformers"}
    MODES["transformers"] = RUNS["transformers"]
    MODES["transformers, all tasks a step, bf16"] = {
        **RUNS["transformers"],
        "tasks_per_step": "all",
        "precision": "bf16",
    }
