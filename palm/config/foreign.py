"""Names of settings in other programs, and removed settings of palm."""

from __future__ import annotations

from collections.abc import Sequence

_TRAINING_ARGUMENTS: dict[str, Sequence[str]] = {
    "learning_rate": ["lr", "base_lr", "peak_lr"],
    "num_epochs": ["num_train_epochs", "epochs", "n_epochs", "max_epochs"],
    "batch_size": ["per_device_train_batch_size", "train_batch_size", "per_gpu_train_batch_size"],
    "pred_batch_size": ["per_device_eval_batch_size", "eval_batch_size"],
    "max_seq_len": ["seq_length", "max_length", "max_seq_length", "model_max_length"],
    "warmup_proportion, a fraction of all steps": [
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
    "task_instance": ["task", "tasks", "tasks_file", "task_names"],
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
    "loggers": ["trackers", "report_to", "wandb", "mlflow", "tensorboard"],
    "lora": ["adapter", "lora_alpha", "lora_config", "lora_rank", "peft"],
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
    "loss_weight": ["loss_scale", "task_weight"],
    "not a setting: leave it out": [
        "compile",
        "torch_compile",
        "gradient_exchange",
        "cagrad_radius",
        "gradnorm_alpha",
        "gradnorm_rate",
        "famo_decay",
        "dwa_steps",
        "dwa_temperature",
        "lr_cut_fraction",
        "lr_ratio",
        "fork_merge",
    ],
}
"""Setting, worded as advice on what to write -> its names in other programs."""

REMOVED = {
    "transfer_every_n_steps": "palm compare shows what each auxiliary is worth, by training without it",
}
"""A removed setting of palm -> what to do instead."""

FOREIGN = {other: ours for ours, names in _TRAINING_ARGUMENTS.items() for other in names}
