"""`Trainer` and `MultiHeadTrainer` take the steps that PaddlePALM 2.0.2 took, on its recorded batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers import tiny
from helpers.article import write_files
from helpers.shared import RECORDED_2, needs_shared
from helpers.trainer_golden import arrays, assert_near, batch_of, ernie, head_parameters, load

pytestmark = needs_shared

LATER = RECORDED_2


# With decay: it multiplies the updated value there and the one before the step here, which differ by
# rate * decay * rate a step. Where a gradient is about 0, Adam makes more of that from the second step on.
RUNS = [
    ("const_lr_no_wd", {}, None, 5e-6, 5e-6),
    ("const_lr_wd0.1", {}, None, 1.1e-5, 4e-3),
    ("const_lr_wd0.1_ema0.9", {"use_ema": True, "ema_decay": 0.9}, None, 1.1e-5, 4e-3),
    ("clip0.05_via_subclass", {}, 0.05, 5e-6, 5e-6),
]


@pytest.mark.parametrize(("run", "averages", "grad_clip", "at_first", "later"), RUNS)
def test_twenty_steps_of_one_task_follow_the_original(
    run: str, averages: dict[str, Any], grad_clip: float | None, at_first: float, later: float, tmp_path: Path
) -> None:
    folder = LATER / "optim"
    told = json.loads((folder / "losses.json").read_text(encoding="utf-8"))[run]
    backbone, head = (
        ernie(json.loads((folder / "config.json").read_text(encoding="utf-8"))),
        palm.head.Classify(3, 16, 0.0),
    )
    load(arrays(folder / f"{run}.npz", "init."), backbone, c=head)
    trainer = palm.Trainer("c", precision="fp32")
    loss_var = trainer.build_forward(backbone, head)
    trainer.build_backward(
        palm.optimizer.Adam(loss_var, told["lr"], grad_clip=grad_clip, epsilon_hat=True),
        told["weight_decay"],
        **averages,
    )
    trainer.fit_reader(any_reader(tmp_path, backbone))

    for step, loss in enumerate(told["losses"], start=1):
        outputs = trainer.train_one_step(batch_of(folder / "batches.npz", f"b{(step - 1) % 4}."))
        assert outputs["c.loss"].item() == pytest.approx(loss, abs=later)
        if step in (1, 2, 5, 10, 20):
            recorded = arrays(folder / f"{run}.npz", f"step{step}.")
            assert_near(recorded, backbone, head, "c", at_first if step == 1 else later)
    if averages:
        shadows = {
            name: value / (1 - 0.9**20) for name, value in arrays(folder / f"{run}.npz", "ema.").items()
        }
        with trainer.averaged():
            assert_near(shadows, backbone, head, "c", later)


def any_reader(folder: Path, backbone: Any) -> Any:
    """A reader that has what assembling a run asks for; its batches are not used."""
    tiny.write_files(folder)
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 16)
    reader.load_data(folder / "cls.tsv", 4)
    reader.register_with(backbone)
    return reader


def test_two_tasks_begin_as_in_the_original_and_the_head_that_is_not_drawn_rests(tmp_path: Path) -> None:
    folder = LATER / "multitask_traj"
    told = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    init = arrays(folder / "traj.npz", "init.")
    backbone = ernie(told["config"])
    slot_head = palm.head.SequenceLabel(
        init["slot.cls_out_b"].numel(), 16, 0.0, learning_rate=1.0, emission_l2=0.0
    )
    intent_head = palm.head.Classify(init["intent.cls_out_b"].numel(), 16, 0.0)
    load(init, backbone, slot=slot_head, intent=intent_head)
    slot, intent = (palm.Trainer(name, precision="fp32") for name in ("slot", "intent"))
    slot.build_forward(backbone, slot_head)
    intent.build_forward(backbone, intent_head)
    trainer = palm.MultiHeadTrainer([slot, intent], precision="fp32")
    adam = palm.optimizer.Adam(trainer.build_forward(), told["lr"], epsilon_hat=True)
    trainer.build_backward(adam, told["weight_decay"])
    write_files(tmp_path)
    slot_reader = palm.reader.SequenceLabelReader(tmp_path / "vocab.txt", 16, tmp_path / "label_map.json")
    slot_reader.load_data(tmp_path / "slot.tsv", 4)
    slot_reader.register_with(backbone)
    trainer.fit_readers_with_mixratio([slot_reader, any_reader(tmp_path, backbone)], "slot", 1)

    outputs, task = trainer.train_one_step(
        {**batch_of(folder / "traj.npz", "batch1."), "__task_id": torch.tensor([1])}
    )
    assert (task, outputs["intent.loss"].item()) == (1, pytest.approx(told["losses"][0], abs=2e-6))
    after = arrays(folder / "traj.npz", "step1.")
    assert_near(after, backbone, intent_head, "intent", 5e-5)
    rests = head_parameters(init, "slot")
    assert all(torch.equal(value, rests[name]) for name, value in slot_head.state_dict().items())
    theirs = head_parameters(after, "slot")
    assert not any(torch.equal(theirs[name], rests[name]) for name in ("out.weight", "crf.weight"))

    outputs, task = trainer.train_one_step(
        {**batch_of(folder / "traj.npz", "batch2."), "__task_id": torch.tensor([0])}
    )
    assert (task, outputs["slot.loss"].item()) == (0, pytest.approx(told["losses"][1], abs=0.02))


def published_tagger(
    start: str, folder: Path
) -> tuple[palm.Trainer, palm.head.SequenceLabel, dict[str, Any]]:
    """A trainer of the published head on the recorded parameters, without decay; and what was told."""
    recorded = LATER / "multitask_traj"
    told = json.loads((recorded / "golden.json").read_text(encoding="utf-8"))
    backbone, head = ernie(told["config"]), palm.head.SequenceLabel(5, 16, 0.0, 1e-3, 0.02, "train")
    own = {k: v for k, v in arrays(recorded / "traj.npz", start).items() if not k.startswith("intent.")}
    load(own, backbone, slot=head)
    trainer = palm.Trainer("slot", precision="fp32")
    adam = palm.optimizer.Adam(trainer.build_forward(backbone, head), told["lr"], epsilon_hat=True)
    trainer.build_backward(adam)
    write_files(folder)
    reader = palm.reader.SequenceLabelReader(folder / "vocab.txt", 16, folder / "label_map.json")
    reader.load_data(folder / "slot.tsv", 4)
    reader.register_with(backbone)
    trainer.fit_reader(reader)
    return trainer, head, {**told, "kept": 1 - told["lr"] * told["weight_decay"]}


def test_emissions_without_a_gradient_move_by_their_l2_decay_as_in_the_original(tmp_path: Path) -> None:
    trainer, head, told = published_tagger("init.", tmp_path)
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer._training("step").optimizer.step()
    after = head_parameters(arrays(LATER / "multitask_traj" / "traj.npz", "step1."), "slot")
    # There the step was one of the other task, and every weight matrix decayed besides.
    torch.testing.assert_close(head.out.weight, after["out.weight"] / told["kept"], rtol=0, atol=2e-8)
    torch.testing.assert_close(head.crf.weight, after["crf.weight"] / told["kept"], rtol=0, atol=1e-7)


def test_the_crf_has_a_thousandth_of_the_rate_as_in_the_original(tmp_path: Path) -> None:
    trainer, head, told = published_tagger("step1.", tmp_path)
    before = head.crf.weight.detach().clone()
    loss = trainer.train_one_step(batch_of(LATER / "multitask_traj" / "traj.npz", "batch2."))["slot.loss"]
    assert loss.item() == pytest.approx(told["losses"][1], abs=2e-6)
    after = head_parameters(arrays(LATER / "multitask_traj" / "traj.npz", "step2."), "slot")
    theirs = after["crf.weight"] / told["kept"] - before
    # It was Adam's second step there, after one on a gradient of zero.
    second = (1 - 0.999**2) ** 0.5 / (1 - 0.9**2) * 0.1 / 0.001**0.5
    torch.testing.assert_close((head.crf.weight - before) * second, theirs, rtol=0, atol=2e-8)
