"""Train Hugging Face's BERT on a PALM data file of classes or word labels: the yardstick of docs/results.md.

Same weights, batch size, epochs, optimizer and schedule as `palm train` (AdamW without decay on
biases and norms, clipping to norm 1, linear warm-up from 0, then `lr * (1 - step / N)`), padding to
the longest row of the batch, fp32 or, with `--precision bf16`, autocast while training. One JSON line
per seed.

    python benchmarks/hf_reference.py --model DIR --train train.tsv --dev dev.tsv --epochs 3
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from arguments import read_arguments
from palm_accuracy import kind_of, rows_of
from transformers import AutoTokenizer, BertForSequenceClassification, BertForTokenClassification

import palm

IGNORED = -100
"""Label of subwords that continue a word, and of padding."""


def label_ids_of(args: argparse.Namespace, rows: list[dict[str, str]]) -> dict[str, int]:
    if kind_of(args.train) == "seq_label":
        return dict(json.loads((args.train.parent / "label_map.json").read_text("utf-8")))
    return {name: int(name) for name in {row["label"] for row in rows}}


def batch_of(rows: list[dict[str, str]], tokenizer: Any, labels: dict[str, int], max_len: int) -> Any:
    options = {"truncation": True, "max_length": max_len, "padding": True, "return_tensors": "pt"}
    if not rows[0]["label"].isdecimal():
        return batch_of_words(rows, tokenizer, labels, options)
    second = [row["text_b"] for row in rows] if "text_b" in rows[0] else None
    batch = tokenizer([row["text_a"] for row in rows], second, **options)
    batch["labels"] = torch.tensor([int(row["label"]) for row in rows])
    return batch


def batch_of_words(
    rows: list[dict[str, str]], tokenizer: Any, labels: dict[str, int], options: dict[str, Any]
) -> Any:
    """Encode texts word by word; the first subword of each word has its label."""
    batch = tokenizer([row["text_a"].split() for row in rows], is_split_into_words=True, **options)
    batch["labels"] = torch.full(batch["input_ids"].shape, IGNORED)
    for index, row in enumerate(rows):
        names = row["label"].split()
        words = batch.word_ids(index)
        for at, word in enumerate(words):
            if word is not None and word != words[at - 1]:
                batch["labels"][index, at] = labels[names[word]]
    return batch


def score(
    model: Any, rows: list[dict[str, str]], tokenizer: Any, labels: dict[str, int], max_len: int
) -> float:
    """Return accuracy, or entity F1 of word labels."""
    model.eval()
    names = {number: name for name, number in labels.items()}
    found: list[Any] = []
    for start in range(0, len(rows), 64):
        batch = batch_of(rows[start : start + 64], tokenizer, labels, max_len)
        words = batch.pop("labels") != IGNORED
        with torch.no_grad():
            chosen = model(**batch).logits.argmax(-1)
        if chosen.dim() == 1:
            found += map(str, chosen.tolist())
        else:
            found += [
                [names[number] for number in row[kept].tolist()]
                for row, kept in zip(chosen, words, strict=True)
            ]
    true = [row["label"] for row in rows]
    if isinstance(found[0], list):
        return palm.metrics.entity_scores(found, [own.split() for own in true])["f1"]
    return sum(one == other for one, other in zip(found, true, strict=True)) / len(true)


def train(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    train_rows, dev_rows = rows_of(args.train), rows_of(args.dev)
    labels = label_ids_of(args, train_rows + dev_rows)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    of_words = kind_of(args.train) == "seq_label"
    kind = BertForTokenClassification if of_words else BertForSequenceClassification
    model = kind.from_pretrained(args.model, num_labels=max(labels.values()) + 1)
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
    figures = {"dev": score(model, dev_rows, tokenizer, labels, args.max_seq_len)}
    if args.test:
        figures["test"] = score(model, rows_of(args.test), tokenizer, labels, args.max_seq_len)
    return {"train": str(args.train), "seed": seed, "cpu_seconds": round(seconds), **figures}


def main() -> None:
    args = read_arguments(__doc__)
    for seed in args.seeds:
        print(json.dumps(train(args, seed)), flush=True)


if __name__ == "__main__":
    main()
