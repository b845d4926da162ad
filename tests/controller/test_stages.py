"""Runs in stages: each is the run that one would make by hand, and all of them are one run."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from helpers.callbacks import at_step, timeless
from helpers.equal import differing
from helpers.messages import raises
from palm.check import check
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, StorageError, TrainingError
from palm.core.process import Stopped
from palm.core.saved import load_tensors
from palm.train.callbacks import Started
from palm.train.checkpoint import load_checkpoint
from palm.train.loop import Step, Training


def config(folder: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    """Tiny tasks of ten steps an epoch, with dev data."""
    own = {"num_epochs": 1, "overwrite": False, **settings}
    return tiny.config(folder, *(tasks or ("cls", "match")), with_dev=True, **own)


def weights(*place: str | Path) -> dict[str, torch.Tensor]:
    return load_tensors(Path(*place) / "model.safetensors")


STAGES = [
    {"name": "joint"},
    {"tasks": ["cls"], "learning_rate": 5e-4, "num_epochs": 1.5, "freeze": 1},
    {"name": "match", "tasks": ["match"], "start_from": "joint", "reset": "heads"},
]


def test_a_staged_run_equals_the_same_runs_by_hand(folder: Path) -> None:
    result = Controller(config(folder, stages=STAGES), argv=[]).train()
    out = folder / "out"

    by_hand = {name: folder / f"hand_{name}" for name in ("joint", "cls", "match")}
    Controller(config(folder, save_path=str(by_hand["joint"]), save_every_n_steps=20), argv=[]).train()
    start = {"start_from": str(by_hand["joint"] / "step_20")}
    second = {"learning_rate": 5e-4, "num_epochs": 1.5, "freeze": 1, "save_path": str(by_hand["cls"])}
    second |= start
    Controller(config(folder, "cls", **second), argv=[]).train()
    third = {"reset": ["match"], "save_path": str(by_hand["match"]), **start}
    Controller(config(folder, "match", **third), argv=[]).train()

    for stage, task in (("1-joint", "cls"), ("1-joint", "match"), ("2-cls", "cls"), ("3-match", "match")):
        hand = by_hand[stage[2:]]
        for kind in ("infer_model", "best_model"):
            assert differing(weights(out, "stages", stage, task, kind), weights(hand, task, kind)) == [], (
                stage,
                task,
            )
    for task in ("cls", "match"):
        assert differing(weights(out, task, "infer_model"), weights(by_hand[task], task, "infer_model")) == []
    assert (
        differing(weights(out, "cls", "infer_model"), weights(by_hand["joint"], "cls", "infer_model")) != []
    )
    assert result.steps == {"cls": 25, "match": 20}
    assert result.stages == {"cls": "2-cls", "match": "3-match"}
    assert "2-cls" in str(result)


class Killed(Exception):  # noqa: N818
    """Nobody tidies up after it."""


KEPT = {"stages": STAGES, "save_every_n_steps": 3, "print_every_n_steps": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody ended."""
    folder = tiny.write_files(tmp_path_factory.mktemp("whole"))
    Controller(config(folder, save_path=str(folder / "whole"), **KEPT), argv=[]).train()
    return folder


@pytest.mark.parametrize(("stage", "step"), [("1-joint", 13), ("2-cls", 8), ("3-match", 4)])
def test_kill_and_resume_inside_a_stage_are_bit_identical(whole: Path, stage: str, step: int) -> None:
    out = whole / stage
    parts = config(whole, save_path=str(out), **KEPT)
    with pytest.raises(Killed):
        Controller(parts, argv=[]).train([at_step(step, Killed(), stage)])
    with pytest.raises(StorageError, match=rf"{stage}\b.*resume: auto"):
        Controller(parts, argv=[]).train()
    Controller({**parts, "resume": "auto"}, argv=[]).train()
    for name in ("cls", "match"):
        for kind in ("infer_model", "best_model"):
            assert differing(*(weights(run, name, kind) for run in (whole / "whole", out))) == []
    assert timeless(whole / "whole") == timeless(out)


def test_a_signal_ends_a_stage_with_a_checkpoint(folder: Path) -> None:
    running: list[Training] = []

    def ask(event: Any) -> None:
        if isinstance(event, Started):
            running.append(event.training)
        if isinstance(event, Step) and event.number == 7 and len(running) == 2:
            assert running[-1].stop_request is not None
            running[-1].stop_request.number = signal.SIGTERM

    whole, parts = (
        config(folder, "cls", stages=STAGES[1:2] * 2, save_path=str(folder / name)) for name in "ab"
    )
    Controller(whole, argv=[]).train()
    with pytest.raises(Stopped):
        Controller(parts, argv=[]).train([ask])
    assert [path.name for path in (folder / "b" / "stages" / "2-all").glob("step_*")] == ["step_7"]
    Controller({**parts, "resume": "auto"}, argv=[]).train()
    assert differing(*(weights(folder, name, "cls", "infer_model") for name in "ab")) == []
    assert timeless(folder / "a")[-1] == timeless(folder / "b")[-1]


def test_the_weights_of_a_stage_are_inspected_and_checked(folder: Path) -> None:
    Controller(config(folder, stages=STAGES[:2]), argv=[]).train()
    place = folder / "out" / "stages" / "1-joint" / "weights"
    facts = palm.inspect_directory(place)
    assert facts["format"].startswith("palm-model")
    with raises(StorageError, str(place), "start_from"):
        load_checkpoint(Controller(config(folder), argv=[]).training(), place)
    assert list(facts["parameters"]) == ["backbone", "cls", "match"]
    with (place / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    start = config(folder, "cls", start_from=str(place), save_path=str(folder / "new"))
    with pytest.raises(StorageError, match=r"weights is damaged: model\.safetensors\b"):
        Controller(start, argv=[]).train()


def test_a_run_that_is_done_stays_as_it_is_and_changed_stages_are_refused(folder: Path) -> None:
    given = config(folder, stages=STAGES[:2], resume="auto")
    first = Controller(given, argv=[]).train()
    steps: list[Any] = []
    again = Controller(given, argv=[]).train([lambda event: steps.append(event)])
    assert (steps, again.steps, again.best) == ([], first.steps, first.best)
    other = [STAGES[0], {**STAGES[1], "learning_rate": 1e-4}]
    with pytest.raises(StorageError, match=r"2-cls .*\n  learning_rate: 0\.0005 .*0\.0001"):
        Controller({**given, "stages": other}, argv=[]).train()
    more = Controller({**given, "stages": STAGES}, argv=[]).train([lambda event: steps.append(event)])
    assert {event.task.name for event in steps if isinstance(event, Step)} == {"match"}
    assert more.stages == {"cls": "2-cls", "match": "3-match"}
    with pytest.raises(
        StorageError, match=r"\bout holds an earlier run"
    ):  # an ordinary one would replace them
        Controller(config(folder), argv=[]).train()
    Controller(config(folder, overwrite=True), argv=[]).train()
    assert not list((folder / "out" / "stages").rglob("model.safetensors"))


def test_everything_wrong_with_all_stages_is_one_report(folder: Path) -> None:
    stages = [
        {"learning_rate": "fast", "num_epohs": 2},
        {"tasks": ["clz"], "save_path": "elsewhere"},
        {"tasks": ["cls"], "start_from": "jiont"},
        {"name": "joint", "freeze": 7},
        {"name": "joint"},
        {"reset": ["mrc"]},
    ]
    with pytest.raises(ConfigError) as error:
        Controller(config(folder, stages=stages), argv=[])
    expected = [
        r"1-all: learning_rate .*'fast'",
        r"1-all: .*'num_epohs'.*'num_epochs'",
        r"2-clz: tasks .*'clz'.*'cls'",
        r"2-clz: save_path ",
        r"3-cls: start_from: .*'jiont'",
        r"4-joint: freeze: .*\b2 layers.*\b7\b",
        r"5-joint: name 'joint'",
        r"6-all: reset .*\bmrc\b.*\bcls, match",
    ]
    for line, pattern in zip(error.value.problems, expected, strict=True):
        assert re.match(f"config: stages: stage {pattern}", line), line


def test_a_target_that_no_stage_trains_is_reported(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"stages: .*\bmatch; .*task_instance"):
        Controller(config(folder, stages=[{"tasks": ["cls"]}]), argv=[])


def test_what_stages_cannot_be_combined_with_is_reported(folder: Path) -> None:
    given = config(folder, stages=[], resume=str(folder / "out" / "step_4"))
    given["tasks"]["cls"]["lora"] = {"rank": 1}
    with pytest.raises(ConfigError) as error:
        Controller(given, argv=[])
    expected = ["config: stages: ", r"config: stages: .*lora of cls", "config: stages: .*resume"]
    for line, pattern in zip(error.value.problems, expected, strict=True):
        assert re.match(pattern, line), line


def test_a_head_of_another_shape_is_refused_with_the_remedy(folder: Path) -> None:
    Controller(config(folder, "cls"), argv=[]).train()
    model = folder / "out" / "cls"
    changed = config(folder, "cls", save_path=str(folder / "new"), start_from=str(model))
    changed["tasks"]["cls"]["n_classes"] = 5
    with pytest.raises(StorageError, match=r"'cls'.*reset: \[cls\]"):
        Controller(changed, argv=[]).train()
    Controller({**changed, "reset": "heads"}, argv=[]).train()
    with pytest.raises(ConfigError, match=r"\breset\b.*start_from"):
        Controller(config(folder, "cls", reset="heads"), argv=[])


def test_a_helper_may_have_a_stage_of_its_own(folder: Path) -> None:
    stages = [{"tasks": ["mlm"]}, {"tasks": ["cls"], "optimizer": "lamb", "lr_scheduler": "constant"}]
    given = config(
        folder, "cls", "mlm", target_tag=[1, 0], mix_ratio=[1, 0.5], balance="uncertainty", stages=stages
    )
    given["tasks_per_step"] = 2
    result = Controller(given, argv=[]).train()
    assert result.steps == {"mlm": 10, "cls": 10}
    assert (folder / "out" / "stages" / "1-mlm" / "mlm" / "infer_model").is_dir()
    resolved = (folder / "out" / "stages" / "2-cls" / "resolved_config.yaml").read_text(encoding="utf-8")
    assert "optimizer: lamb" in resolved


LABELS = {"label_map": {"red": 0, "green": 1, "blue": 2, "grey": 3}}


def names_for_numbers(folder: Path) -> None:
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()
    names = [f"{list(LABELS['label_map'])[int(line[0])]}{line[1:]}" for line in lines[1:]]
    (folder / "cls.tsv").write_text("\n".join([lines[0], *names, ""]), encoding="utf-8")


@pytest.mark.parametrize("source", ["cls", "step_5"])
def test_weights_of_other_labels_or_tokens_are_refused(folder: Path, source: str) -> None:
    names_for_numbers(folder)
    given = config(folder, "cls", num_epochs=0.5, save_every_n_steps=5, overwrite=True)
    given["tasks"]["cls"] |= LABELS
    Controller(given, argv=[]).train()
    given |= {"start_from": str(folder / "out" / source), "save_path": str(folder / "new")}
    Controller(given, argv=[]).train()
    other = {**given["tasks"]["cls"], "label_map": {"green": 0, "red": 1, "blue": 2, "grey": 3}}
    with pytest.raises(StorageError, match=r"'cls'.*label_map.*'green' is 0 and 1.*\n.*reset: \[cls\]"):
        Controller({**given, "tasks": {"cls": other}}, argv=[]).train()
    found = check({**given, "tasks": {"cls": other}}, measure=False).problems
    assert ["'green' is 0 and 1" in str(each) for each in found if each.severity == "error"] == [True]
    Controller({**given, "tasks": {"cls": other}, "reset": ["cls"]}, argv=[]).train()
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split()
    (folder / "other.txt").write_text("\n".join([*words[:5], *words[:4:-1], ""]), encoding="utf-8")
    with pytest.raises(StorageError, match=r"start_from: .*other\.txt.*vocab_path: .*pretrain_path"):
        Controller({**given, "vocab_path": str(folder / "other.txt")}, argv=[]).train()


def test_tasks_with_one_head_have_one_id_for_a_label(folder: Path) -> None:
    given = config(folder, "cls", task_instance=["cls", "b"], task_reuse_tag=["x", "x"])
    cls = given["tasks"]["cls"] | LABELS
    given["tasks"] = {"cls": cls, "b": {**cls, "label_map": {"green": 0, "red": 1, "blue": 2, "grey": 3}}}
    with pytest.raises(ConfigError, match=r"'cls' and 'b'.*'x'.*'red' is 0 and 1"):
        Controller(given, argv=[])
    given["tasks"]["b"] = {**cls, "label_map": {"rot": 0, "grün": 1, "blau": 2, "grau": 3}}
    Controller(given, argv=[])


def test_a_later_stage_without_a_step_is_reported_before_the_first_trains(folder: Path) -> None:
    stages = [{"name": "one"}, {"name": "two", "num_epochs": 0.01}]
    with pytest.raises(TrainingError, match="stages: stage 2-two: "):
        Controller(config(folder, "cls", stages=stages), argv=[]).train()
    assert not list((folder / "out").rglob("*.safetensors"))
