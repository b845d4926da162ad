"""Train Hugging Face's `BertForSequenceClassification` on a PALM data file: the yardstick of docs/results.md.

Same weights, batch size, epochs, optimizer and schedule as `palm train` (AdamW without decay on
biases and norms, clipping to norm 1, linear warm-up from 0, then `lr * (1 - step / N)`), padding to
the longest row of the batch, fp32 or, with `--precision bf16`, autocast while training. One JSON line
per seed.

    python benchmarks/hf_reference.py --model DIR --train train.tsv --dev dev.tsv --epochs 3
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import torch
from arguments import read_arguments
from transformers import AutoTokenizer, BertForSequenceClassification


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def batch_of(rows: list[dict[str, str]], tokenizer: Any, labels: dict[str, int], max_len: int) -> Any:
    second = [row["text_b"] for row in rows] if "text_b" in rows[0] else None
    batch = tokenizer(
        [row["text_a"] for row in rows],
        second,
        truncation=True,
        max_length=max_len,
        padding=True,
        return_tensors="pt",
    )
    batch["labels"] = torch.tensor([labels[row["label"]] for row in rows])
    return batch


def accuracy(
    model: Any, rows: list[dict[str, str]], tokenizer: Any, labels: dict[str, int], max_len: int
) -> float:
    model.eval()
    right = 0
    for start in range(0, len(rows), 64):
        batch = batch_of(rows[start : start + 64], tokenizer, labels, max_len)
        with torch.no_grad():
            right += int((model(**batch).logits.argmax(-1) == batch["labels"]).sum())
    return right / len(rows)


def train(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    train_rows, dev_rows = rows_of(args.train), rows_of(args.dev)
    names = sorted({row["label"] for row in train_rows + dev_rows}, key=int)
    labels = {name: int(name) for name in names}
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = BertForSequenceClassification.from_pretrained(args.model, num_labels=max(labels.values()) + 1)
    no_decay = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decay = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    optimizer = torch.optim.AdamW(
        [
            {"params": decay, "weight_decay": args.weight_decay},
            {"params": no_decay, "weight_decay": 0.0},
        ],
        lr=args.learning_rate,
        fused=True,
    )
    per_epoch = len(train_rows) // args.batch_size
    total = per_epoch * args.epochs
    warmup = int(0.1 * total)

    def rate(step: int) -> float:
        return step / warmup if step < warmup else 1 - step / total

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    started = time.process_time()
    for _ in range(args.epochs):
        order = torch.randperm(len(train_rows)).tolist()
        model.train()
        for step in range(per_epoch):
            chosen = [train_rows[i] for i in order[step * args.batch_size : (step + 1) * args.batch_size]]
            batch = batch_of(chosen, tokenizer, labels, args.max_seq_len)
            with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = time.process_time() - started
    figures = {"dev": accuracy(model, dev_rows, tokenizer, labels, args.max_seq_len)}
    if args.test:
        figures["test"] = accuracy(model, rows_of(args.test), tokenizer, labels, args.max_seq_len)
    return {"train": str(args.train), "seed": seed, "cpu_seconds": round(seconds), **figures}


def main() -> None:
    args = read_arguments(__doc__)
    for seed in args.seeds:
        print(json.dumps(train(args, seed)), flush=True)


if __name__ == "__main__":
    main()
