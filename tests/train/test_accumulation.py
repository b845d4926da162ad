"""Gradient accumulation: several batches make the step of one large one, whatever a loss is the mean of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers import article, tiny
from palm.controller.controller import Controller
from palm.train.loop import Training
from palm.train.train_step import loss_factors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return article.write_files(tmp_path)


def run(folder: Path, task: str, batch_size: int, **settings: Any) -> Training:
    config = tiny.config(folder, task, batch_size=batch_size, **settings)
    return Controller(config, argv=[]).training()


def slots(folder: Path, batch_size: int, **settings: Any) -> Training:
    """A run of sequence labelling, whose loss is a mean over words."""
    config = tiny.config(folder, "cls", batch_size=batch_size, **settings) | {"task_instance": "slot"}
    parts = {"reader": "seq_label", "paradigm": "seq_label", "n_classes": len(article.LABELS)}
    files = {"train_file": str(folder / "slot.tsv"), "label_map": str(folder / "label_map.json")}
    return Controller(config | {"tasks": {"slot": parts | files}}, argv=[]).training()


@pytest.mark.parametrize("task", ["cls", "match", "mlm", "mrc", "slot", "slot with crf"])
def test_two_batches_make_the_step_of_one_of_twice_their_size(folder: Path, task: str) -> None:
    settings: dict[str, Any] = {**tiny.STILL, **({} if task in ("mlm", "mrc") else {"dropout_prob": 0.0})}
    settings |= {"use_crf": True} if "crf" in task else {}
    whole, parts = (
        slots(folder, **sizes, **settings) if "slot" in task else run(folder, task, **sizes, **settings)
        for sizes in ({"batch_size": 8}, {"batch_size": 4, "gradient_accumulation_steps": 2})
    )
    assert parts.tasks[0].steps_per_epoch == whole.tasks[0].steps_per_epoch
    for _ in range(6):
        one, other = whole.next_step(), parts.next_step()
        assert other.loss.item() == pytest.approx(one.loss.item(), abs=2e-6)
        others = dict(parts.model.named_parameters())
        for name, parameter in whole.model.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(others[name].grad, parameter.grad, rtol=1e-4, atol=3e-6, msg=name)


def test_means_of_unequal_batches_make_the_mean_of_all() -> None:
    means, terms = [2.0, 5.0], [1, 3]
    (factors,), _ = loss_factors([terms])
    assert factors == [0.25, 0.75]
    assert sum(mean * factor for mean, factor in zip(means, factors, strict=True)) == (2 + 5 + 5 + 5) / 4
    assert loss_factors([[7], [0]], [3, 1]) == ([[1.0], [0.0]], [3, 1])


def test_a_step_uses_up_the_rows_of_all_its_batches(folder: Path) -> None:
    training = run(folder, "cls", 4, gradient_accumulation_steps=3, num_epochs=2)
    (task,) = training.tasks
    assert (task.steps_per_epoch, task.expected_steps) == (40 // 12, 2 * (40 // 12))
    assert task.stream is not None
    for step in (0, 1):
        expected = [task.stream.batch(3 * step + k)["token_ids"] for k in range(3)]
        given = [batch["token_ids"] for batch in task.batches(step)]
        assert all(torch.equal(one, other) for one, other in zip(expected, given, strict=True))


def test_both_parts_of_a_step_have_dropout_of_their_own(folder: Path) -> None:
    config = tiny.config(folder, "cls", batch_size=2, gradient_accumulation_steps=2)
    (folder / "cls.tsv").write_text("label\ttext_a\n" + "0\tanna has a red door\n" * 8, encoding="utf-8")
    training = Controller(config, argv=[]).training()
    (task,) = training.tasks
    batches, seen = task.batches(0), []
    training.model.register_forward_hook(lambda _, __, loss: seen.append(loss))
    training.step_on([(task, batches)])
    assert torch.equal(batches[0]["token_ids"], batches[1]["token_ids"])
    assert seen[0].item() != seen[1].item()


def test_too_few_rows_for_a_step_and_numbers_below_one_are_errors(folder: Path) -> None:
    with pytest.raises(palm.TrainingError, match=r"10 .*gradient_accumulation_steps.*11.*10"):
        run(folder, "cls", 4, gradient_accumulation_steps=11)
    with pytest.raises(palm.ConfigError, match="gradient_accumulation_steps: 0"):
        run(folder, "cls", 4, gradient_accumulation_steps=0)
