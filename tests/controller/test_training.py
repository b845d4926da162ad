"""The loop: exact steps, exact resumption, heads that rest when they are not drawn."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

import palm
from helpers import tiny
from palm.check import check
from palm.controller.controller import Controller
from palm.controller.resolve import edited
from palm.train.checkpoint import compared, differences, newest_checkpoint
from palm.train.loop import Step, Training


def losses(training: Training, count: int | None = None) -> list[float]:
    return [step.loss.item() for step in islice(training.steps(), count)]


def test_steps_are_exact_for_targets_and_the_run_ends_with_the_last_of_them(folder: Path) -> None:
    # 40 rows in batches of 4: 10 steps an epoch; 2 epochs; ratios 1, 0.5, 0.25 -> 20, 10, 5 steps.
    settings = {"target_tag": [1, 0, 1], "mix_ratio": [1.0, 0.5, 0.25], "num_epochs": 2}
    training = tiny.controller(folder, "cls", "mlm", "match", **settings).training()
    finished = {}
    for step in training.steps():
        if step.parts[0].finished:
            finished[step.task.name] = step.number
    cls, mlm, match = training.tasks
    assert [task.expected_steps for task in training.tasks] == [20, 10, 5]
    assert max(finished["cls"], finished["match"]) == training.step
    assert [cls.step, mlm.step, match.step] == [20, 10, 5]
    assert training.step == 35


def test_the_same_seed_repeats_a_run_and_another_does_not(folder: Path) -> None:
    first, again, other = (tiny.controller(folder, random_seed=seed).training() for seed in (1, 1, 2))
    assert losses(first, 12) == losses(again, 12)
    assert losses(other, 12) != losses(tiny.controller(folder).training(), 12)


def test_resume_auto_continues_from_the_newest_whole_checkpoint(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        tiny.controller(folder, "cls", save_every_n_steps=6).train()
        assert newest_checkpoint(folder / "out") == folder / "out" / "step_18"
        (folder / "out" / "step_18" / "optimizer.safetensors").write_bytes(b"cut short")
        first = (folder / "out" / "cls" / "infer_model" / "model.safetensors").read_bytes()
        record = folder / "out" / "run.json"  # of a run that was killed in the end
        record.write_text(re.sub('"finished": ".*"', '"finished": null', record.read_text("utf-8")), "utf-8")
        tiny.controller(folder, "cls", save_every_n_steps=6, resume="auto").train()
    assert "step_18 is damaged: optimizer.safetensors differs" in caplog.text
    assert "resumed from" in caplog.text
    assert "step_12 at global step 12" in caplog.text
    assert (folder / "out" / "cls" / "infer_model" / "model.safetensors").read_bytes() == first


def test_only_the_drawn_head_and_the_encoder_move(folder: Path) -> None:
    training = tiny.controller(folder, "cls", "match", weight_decay=0.1).training()
    for _ in training.steps():
        before = {name: value.clone() for name, value in training.model.state_dict().items()}
        step = training.next_step()
        now = training.model.state_dict()
        moved = {name for name, value in now.items() if not torch.equal(value, before[name])}
        rests = "match" if step.task.name == "cls" else "cls"
        assert not any(name.startswith(f"heads.@{rests}.") for name in moved)
        if step.number > 1:  # the first step's rate is 0
            assert f"heads.@{step.task.name}.out.weight" in moved
            assert "backbone.embeddings.word.weight" in moved
        if step.number == 12:
            break


def test_tasks_with_one_reuse_tag_share_one_head(folder: Path) -> None:
    config = tiny.config(folder, "cls")
    config["tasks"] = {name: dict(config["tasks"]["cls"]) for name in ("cls1", "cls2", "cls3")}
    config |= {"task_instance": "cls1, cls2, cls3", "task_reuse_tag": "0, 1, 0"}
    training = Controller(config, argv=[]).training()
    one, two, three = (task.head for task in training.tasks)
    assert one is three
    assert one is not two
    heads = {name.split(".")[1] for name in training.model.state_dict() if name.startswith("heads")}
    assert heads == {"@cls1", "@cls2"}


def test_shared_heads_must_be_alike(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", task_reuse_tag=[0, 0])
    with pytest.raises(palm.ConfigError, match=r"'cls' .*'match' .*task_reuse_tag '0'.*n_classes=4.*Match"):
        Controller(config, argv=[])


def test_averaged_weights_are_what_is_saved(folder: Path) -> None:
    run = tiny.controller(folder, "cls", use_ema=True, ema_decay=0.5, num_epochs=1)
    run.train()
    plain = tiny.controller(folder, "cls", num_epochs=1)
    training = plain.training()
    history = []
    for _ in training.steps():
        history.append(training.model.state_dict()["backbone.pooler.bias"].clone())
    weights = torch.tensor([0.5 ** (len(history) - 1 - k) for k in range(len(history))])
    by_hand = sum(w * value for w, value in zip(weights / weights.sum(), history, strict=True))
    saved = palm.load_model(folder / "out" / "cls" / "infer_model").backbone.state_dict()["pooler.bias"]
    assert torch.allclose(saved, by_hand, atol=1e-7)


def test_an_error_in_data_does_not_wait_for_what_only_training_needs(folder: Path) -> None:
    (folder / "cls.tsv").write_text("label\ttext_a\n0\n", encoding="utf-8")
    program = f"""
import sys, palm
try:
    palm.Controller({tiny.config(folder, "cls")!r}, argv=[]).train()
except palm.DataError as error:
    print(error)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    *_, message, modules = run.stdout.splitlines()
    assert "cls.tsv:2: 1 column" in message
    assert "(label, text_a)" in message
    assert modules == "[]"


@pytest.mark.parametrize("change", ["a bad row", "removed"])
def test_files_that_change_do_not_end_a_run(folder: Path, change: str) -> None:
    settings = tiny.config(folder, "cls", num_epochs=2, save_every_n_steps=5)
    (folder / "dev.tsv").write_bytes((folder / "cls.tsv").read_bytes())
    settings["tasks"]["cls"]["dev_file"] = str(folder / "dev.tsv")

    def spoil(event: object) -> None:
        if isinstance(event, Step) and event.number == 3:
            for name in ("cls.tsv", "dev.tsv"):
                if change == "removed":
                    (folder / name).unlink()
                else:
                    with (folder / name).open("a", encoding="utf-8") as file:
                        file.write("no label\n")

    result = Controller(settings, argv=[]).train([spoil])
    assert result.steps == {"cls": 20}
    assert (folder / "out" / "cls" / "best_model" / "config.json").is_file()


def test_saved_checked_compared_and_resumed_is_one_value(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", mix_ratio=[1, 2], save_every_n_steps=5, max_steps=10)
    config["tasks"]["cls"]["dev_file"] = config["tasks"]["cls"]["train_file"]
    controller = Controller(config, argv=[])
    controller.train()
    run = controller.run
    again = Controller(folder / "out" / "resolved_config.yaml", argv=[])
    assert again.run == run  # what is saved
    assert edited(run, {}) == run  # what compare, sweep and stages edit
    identity = compared(again.training())
    for name in ("state.json", "../run.json"):  # what resuming compares
        saved = json.loads((folder / "out" / "step_10" / name).read_text(encoding="utf-8"))
        assert differences(saved.get("run") or saved["identity"], identity) == []
    found = [str(each) for each in check(config | {"overwrite": False}, measure=False).problems]
    assert any("finished already" in line for line in found)  # what check plans
