"""Settings and values that palm no longer has, each with what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

_MERGE = "train the stages one after the other, and take the mean of their models with `palm merge`"
_BALANCE = "set balance: uncertainty, which balances by losses, or upgrad, by gradients"

REMOVED: dict[str, str] = {
    "compile": "leave it out; compiled layers were slower on a CPU, and nobody has measured them on a GPU",
    "balance: gradnorm": _BALANCE,
    "balance: nash_mtl": _BALANCE,
    "cagrad_radius": "leave it out; cagrad has a radius of 0.5",
    "dwa_steps": "leave it out; dwa takes means of 100 steps",
    "dwa_temperature": "leave it out; dwa has a temperature of 2",
    "famo_decay": "leave it out; famo has a decay of 0.001",
    "fork_merge": _MERGE,
    "gradient_exchange": "leave it out; gradients travel in fp32",
    "gradnorm_alpha": _BALANCE,
    "gradnorm_rate": _BALANCE,
    "lr_cut_fraction": "leave it out; slanted_triangular rises in a tenth of the steps",
    "lr_ratio": "leave it out; slanted_triangular begins and ends at a 32nd of learning_rate",
    "merge": _MERGE,
    "shares": _MERGE,
}
"""The setting (`fork_merge`), or the setting with one of its values (`balance: gradnorm`) -> the remedy.

To remove a setting, delete its declaration and enter it here; to remove a choice of a setting, delete it from
the annotation and enter both. The remedy is a clause that says what to do: "write stages with `merge`".
A configuration, task file or command line that still has it is refused with its place and this remedy.
"""


_TRAINING_ARGUMENTS: dict[str, Sequence[str]] = {
    "learning_rate": ["lr", "base_lr", "peak_lr"],
    "num_epochs": ["num_train_epochs", "epochs", "n_epochs", "max_epochs"],
    "batch_size": ["per_device_train_batch_size", "train_batch_size", "per_gpu_train_batch_size"],
    "pred_batch_size": ["per_device_eval_batch_size", "eval_batch_size"],
    "max_seq_len": ["seq_length", "max_length", "max_seq_length", "model_max_length"],
    "warmup_proportion, a share of all steps": [
        "warmup_steps",
        "warmup_ratio",
        "num_warmup_steps",
        "warm_up",
    ],
    "lr_scheduler": ["lr_scheduler_type", "scheduler", "schedule"],
    "optimizer": ["optim"],
    "weight_decay": ["decay", "l2"],
    "random_seed": ["seed_value", "random_state"],
    "vocab_path": ["vocab", "vocab_file", "tokenizer", "tokenizer_name"],
    "dropout_prob, of a head, or hidden_dropout_prob": ["classifier_dropout"],
    "pooling": ["pooler_type", "pooling_mode"],
    "task_instance": ["tasks_file", "task_names"],
    "with_negative": ["version_2_with_negative"],
    "grad_clip": ["max_grad_norm", "gradient_clip_val", "clip_norm"],
    "beta1 and beta2": ["adam_beta1", "adam_beta2", "betas"],
    "epsilon": ["adam_epsilon", "eps"],
    "save_path": ["output_dir", "logging_dir", "save_dir"],
    "save_every_n_steps": ["save_steps", "save_strategy"],
    "keep_last_n": ["save_total_limit"],
    "eval_every_n_steps, or eval_every_epoch": ["eval_steps", "evaluation_strategy", "eval_strategy"],
    "print_every_n_steps": ["logging_steps", "log_every_n_steps", "logging_strategy"],
    "best_by": ["metric_for_best_model", "load_best_model_at_end"],
    "early_stopping_patience": ["patience", "early_stopping"],
    "pretrain_path": ["model_name_or_path", "model_name", "pretrained_model_name_or_path"],
    "precision: bf16": ["fp16", "bf16", "use_fp16", "mixed_precision", "amp"],
    "activation_checkpointing": ["gradient_checkpointing"],
    "gradient_accumulation_steps": ["accumulate_grad_batches", "accum_steps"],
    "trackers": ["report_to"],
    "resume": ["resume_from_checkpoint"],
    "overwrite": ["overwrite_output_dir"],
    "dev_file": ["eval_file", "validation_file", "valid_file"],
    "pred_file": ["test_file", "predict_file"],
    "n_classes": ["num_labels", "num_label"],
    "label_map": ["label2id", "id2label", "label_list"],
    "num_devices": ["n_gpu", "num_gpus", "gpus"],
    "use_gpu": ["no_cuda", "use_cuda", "use_cpu"],
    "max_tokens_per_batch": ["max_tokens"],
    "columns": ["text_column", "label_column", "text_column_name", "label_column_name"],
    "metrics": ["metric", "metric_name"],
    "max_query_len": ["max_query_length"],
    "max_answer_len": ["max_answer_length"],
}
"""Setting, as a clause that says what to write -> names of other programs for it."""

FOREIGN = {other: ours for ours, names in _TRAINING_ARGUMENTS.items() for other in names}


def foreign(name: str) -> str | None:
    """Return the message about a setting that other programs have; None for others."""
    return f"nothing uses {name!r}; here it is {FOREIGN[name]}" if name in FOREIGN else None


def removal(name: str, value: object = None) -> str | None:
    """Return the message about a removed setting, or about a removed value of one; None for others."""
    if name in REMOVED:
        return f"{name} was removed: {REMOVED[name]}"
    remedy = REMOVED.get(f"{name}: {value}")
    return f"{name}: {value} was removed: {remedy}" if remedy else None
