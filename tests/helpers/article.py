"""The slot and intent program of the PALM article, with tiny files of requests."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import palm.compat as palm
from helpers import tiny

LABELS = {"O": 0, "B-colour": 1, "B-thing": 2, "B-name": 3}
CONFIG = {**tiny.BACKBONE, "sent_type_vocab_size": 2, "task_type_vocab_size": 3}
HIDDEN = CONFIG["hidden_size"]


def write_files(folder: Path, rows: int = 40) -> Path:
    """Vocabulary, label map, `slot.tsv` and `intent.tsv` of the same texts in `folder`."""
    tiny.write_files(folder)
    rng = random.Random(1)
    slot, intent = ["text_a\tlabel"], ["label\ttext_a"]
    for _ in range(rows):
        name, colour, thing = rng.choice(tiny.NAMES), rng.choice(tiny.COLOURS), rng.choice(tiny.THINGS)
        if rng.random() < 0.5:
            words, labels = ["who", "owns", "the", colour, thing], "O O O B-colour B-thing"
        else:
            words, labels = [name, "has", "a", thing], "B-name O O B-thing"
        slot.append("\2".join(words) + "\t" + labels.replace(" ", "\2"))
        intent.append(f"{int(words[0] == 'who')}\t{' '.join(words)}")
    (folder / "slot.tsv").write_text("\n".join(slot) + "\n", encoding="utf-8")
    (folder / "intent.tsv").write_text("\n".join(intent) + "\n", encoding="utf-8")
    (folder / "label_map.json").write_text(json.dumps(LABELS), encoding="utf-8")
    return folder


def readers(folder: Path, batch_size: int = 8, seed: int = 1) -> tuple[Any, Any]:
    """The two readers of the program, loaded."""
    slot = palm.reader.SequenceLabelReader(folder / "vocab.txt", 16, folder / "label_map.json", seed=seed)
    intent = palm.reader.ClassifyReader(folder / "vocab.txt", 16, seed=seed)
    slot.load_data(folder / "slot.tsv", file_format="tsv", num_epochs=None, batch_size=batch_size)
    intent.load_data(folder / "intent.tsv", batch_size=batch_size, num_epochs=None)
    return slot, intent


def program(folder: Path, num_epochs: int = 2, seed: int = 1, **backward: Any) -> palm.MultiHeadTrainer:
    """The article's program up to, and without, `trainer.train`."""
    slot_reader, intent_reader = readers(folder, seed=seed)
    ernie = palm.backbone.ERNIE.from_config(CONFIG)
    slot_reader.register_with(ernie)
    intent_reader.register_with(ernie)
    slot_head = palm.head.SequenceLabel(len(LABELS), HIDDEN, 0.1)
    intent_head = palm.head.Classify(2, HIDDEN, 0.1)
    slot, intent = palm.Trainer("slot", mix_ratio=1.0), palm.Trainer("intent", mix_ratio=1.0)
    trainer = palm.MultiHeadTrainer([slot, intent])
    intent.build_forward(ernie, intent_head)
    slot.build_forward(ernie, slot_head)
    loss_var = trainer.build_forward()
    n_steps = slot_reader.num_examples * 1.5 * num_epochs
    sched = palm.lr_sched.TriangularSchedualer(int(0.1 * n_steps), n_steps)
    adam = palm.optimizer.Adam(loss_var, 5e-3, sched)
    trainer.build_backward(optimizer=adam, weight_decay=0.01, **backward)
    trainer.fit_readers_with_mixratio([slot_reader, intent_reader], "slot", num_epochs)
    return trainer
