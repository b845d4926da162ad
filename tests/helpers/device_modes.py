"""Ways of training that are tried on a GPU, or on a pretend one, with their settings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

MODES: dict[str, dict[str, Any]] = {
    "one task a step": {},
    "bf16": {"precision": "bf16"},
    "two tasks a step": {"tasks_per_step": 2},
    "all tasks a step, bf16": {"tasks_per_step": "all", "precision": "bf16"},
    "private layers": {"tasks_per_step": "all", "private_layers": 1},
    "lora": {"tasks_per_step": "all", "lora": {"rank": 2}},
    "averaged weights": {"use_ema": True, "ema_decay": 0.9},
    "accumulation": {"gradient_accumulation_steps": 2},
    "activation checkpointing": {"activation_checkpointing": True},
    "norm clipped": {"grad_clip_type": "norm", "grad_clip": 0.1},
    "crf": {"crf": True, "tasks_per_step": "all"},
    "lamb": {"optimizer": "lamb"},
    "adamwdl": {"optimizer": "adamwdl"},
    "epsilon as in PaddlePALM": {"epsilon_hat": True},
    "frozen embeddings": {"freeze": "embeddings"},
    "shared rows": {"shared_rows": True},
    "kernels with a fixed order": {"deterministic": True},
    "balance by uncertainty": {"tasks_per_step": "all", "balance": "uncertainty"},
    "balance by dwa": {"tasks_per_step": "all", "balance": "dwa"},
    "balance by famo": {"tasks_per_step": "all", "balance": "famo"},
    "balance by gradients": {"tasks_per_step": 2, "balance": "helpers.balances.EqualNorms"},
}
if find_spec("torchjd"):
    for name in ("pcgrad", "cagrad", "mgda", "upgrad"):
        MODES[f"balance by {name}"] = {"tasks_per_step": 2, "balance": name}
