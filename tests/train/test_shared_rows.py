"""Two tasks on the same rows: one pass of the encoder, one draw, and missing labels are masked out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers import article, tiny
from palm.controller.controller import Controller
from palm.train.loop import Training
from palm.train.train_step import sum_of_losses

STILL = {**tiny.STILL, "dropout_prob": 0.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return article.write_files(tmp_path)


def config(folder: Path, sharing: bool = True, **settings: Any) -> dict[str, Any]:
    """Slots and intents of the same requests."""
    label_map = {"label_map": str(folder / "label_map.json"), "n_classes": len(article.LABELS)}
    slot = {
        "reader": "seq_label",
        "paradigm": "seq_label",
        "train_file": str(folder / "slot.tsv"),
        **label_map,
    }
    intent = {"reader": "cls", "paradigm": "cls", "train_file": str(folder / "intent.tsv"), "n_classes": 2}
    intent |= {"share_rows_with": "slot"} if sharing else {}
    made = tiny.config(folder, "cls", **settings)
    return made | {"task_instance": ["slot", "intent"], "tasks": {"slot": slot, "intent": intent}}


def run(folder: Path, **settings: Any) -> Training:
    return Controller(config(folder, **settings), argv=[]).training()


def without_labels(file: Path, rows: Sequence[int], column: int) -> None:
    """Empty the labels of some rows, counted from 0."""
    head, *lines = file.read_text(encoding="utf-8").splitlines()
    for row in rows:
        cells = lines[row].split("\t")
        cells[column] = ""
        lines[row] = "\t".join(cells)
    file.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")


def test_rows_that_two_tasks_share_are_drawn_and_encoded_once(folder: Path) -> None:
    training, encoded = run(folder, batch_size=8), []
    encoder = training.model.backbone
    encoder.register_forward_hook(lambda _, given, __: encoded.append(given[0]["token_ids"]))
    for _ in range(7):  # into the second epoch
        step = training.next_step()
        slot, intent = step.parts
        assert torch.equal(slot.batches[0]["token_ids"], intent.batches[0]["token_ids"])
        assert torch.equal(encoded[-1], slot.batches[0]["token_ids"])
    assert len(encoded) == 7
    assert (training.rows, training.step) == (56, 7)
    assert [(task.step, task.expected_steps) for task in training.tasks] == [(7, 10), (7, 10)]
    assert training.total_steps == 10
    assert sum(1 for _ in training.steps()) == 3


def test_its_gradient_is_the_sum_of_both_tasks_alone(folder: Path) -> None:
    training = run(folder, batch_size=8, **STILL)
    drawn = [(task, task.batches(0)) for task in training.tasks]
    batches = training.task_batches(drawn)
    found = []
    for names in (["slot", "intent"], ["slot"], ["intent"]):
        training.optimizer.zero_grad()
        training.model.train()
        sum_of_losses(training.replica, [each for each in batches if each.task in names])
        found.append({n: p.grad for n, p in training.model.named_parameters() if p.grad is not None})
    together, slot, intent = found
    assert together.keys() == slot.keys() | intent.keys()
    for name, value in together.items():
        parts_of = [own[name] for own in (slot, intent) if name in own]
        torch.testing.assert_close(value, sum(parts_of[1:], parts_of[0]), atol=2e-6, rtol=1e-4, msg=name)


def test_rows_without_a_label_train_the_other_task_alone(folder: Path) -> None:
    for file, column, missing in (("slot", 1, range(0, 40, 2)), ("intent", 0, range(20, 40))):
        without_labels(folder / f"{file}.tsv", missing, column)
    training = run(folder, batch_size=4, missing_labels=True, shuffle=False, **STILL)
    slot, intent = training.tasks
    for step in range(10):
        losses = {part.task.name: part.loss.item() for part in training.next_step().parts}
        (words,), (labels,) = slot.batches(step), intent.batches(step)
        rows = range(4 * step, 4 * step + 4)
        has_slots = (words["label_ids"] >= 0).any(1).tolist()
        assert has_slots == [row % 2 == 1 for row in rows]
        assert (labels["label_ids"] >= 0).tolist() == [row < 20 for row in rows]
        assert slot.head.num_terms(words) == int(words["word_mask"][1::2].sum())
        assert intent.head.num_terms(labels) == sum(row < 20 for row in rows)
        assert (losses["intent"] > 0) == (step < 5)
        assert losses["slot"] > 0
    assert all(parameter.isfinite().all() for parameter in training.model.parameters())


@pytest.mark.parametrize("use_crf", [False, True])
def test_a_loss_is_the_mean_over_the_labels_that_are_there(folder: Path, use_crf: bool) -> None:
    whole = run(folder, batch_size=8, **STILL, **{"slot.use_crf": use_crf}).tasks[0]
    (batch,) = whole.batches(0)
    features = torch.randn(*batch["token_ids"].shape, 32, generator=torch.Generator().manual_seed(1))
    outputs = whole.head({"encoder_outputs": features, "word_mask": batch["word_mask"]})
    labels = batch["label_ids"].clone()
    labels[3:] = -100
    partly = whole.head.loss(outputs, {**batch, "label_ids": labels})
    first = {name: value[:3] for name, value in outputs.items()}
    expected = whole.head.loss(first, {"label_ids": batch["label_ids"][:3]})
    assert partly.item() == pytest.approx(expected.item(), abs=1e-6)
    assert whole.head.num_terms({**batch, "label_ids": labels}) == (
        3 if use_crf else int(batch["word_mask"][:3].sum())
    )


def test_what_cannot_share_rows_is_reported(folder: Path) -> None:
    def wrong(**settings: Any) -> None:
        Controller(config(folder, **settings), argv=[]).training()

    with pytest.raises(palm.ConfigError, match=r"share_rows_with.*'slott'.*slot, intent"):
        wrong(**{"intent.share_rows_with": "slott"})
    with pytest.raises(palm.ConfigError, match=r"batch_size.* 2.* 4"):
        wrong(**{"intent.batch_size": 2})
    lines = (folder / "intent.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "intent.tsv").write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    with pytest.raises(palm.DataError, match=r"'slot'.* 39 .* 40"):
        wrong()
    lines[5] = "0\twho"
    (folder / "intent.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(palm.DataError, match=r"row 5 .*3 \D*\d"):
        wrong()
