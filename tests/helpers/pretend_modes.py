"""Ways of training that are tried on the pretend device, with their settings."""

from __future__ import annotations

from typing import Any

MODES: dict[str, dict[str, Any]] = {
    "one task a step": {},
    "bf16": {"precision": "bf16"},
    "two tasks a step": {"tasks_per_step": 2},
    "all tasks a step, bf16": {"tasks_per_step": "all", "precision": "bf16"},
    "private layers": {"tasks_per_step": "all", "private_layers": 1},
    "averaged weights": {"use_ema": True, "ema_decay": 0.9},
    "accumulation": {"gradient_accumulation_steps": 2},
    "activation checkpointing": {"activation_checkpointing": True},
    "norm clipped": {"grad_clip_type": "norm", "grad_clip": 0.1},
    "crf": {"crf": True, "tasks_per_step": "all"},
    "lamb": {"optimizer": "lamb"},
    "adamwdl": {"optimizer": "adamwdl"},
    "epsilon as in PaddlePALM": {"epsilon_hat": True},
    "balance": {"tasks_per_step": "all", "balance": "uncertainty"},
    "frozen embeddings": {"freeze": "embeddings"},
}
