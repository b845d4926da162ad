"""The model of all targets that a run saves: what it holds, and what loads, predicts and exports it."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from helpers.equal import differing
from palm.backbone import BERT
from palm.cli import main
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, PalmError, StorageError
from palm.core.io import read_json, verify
from palm.core.saved import load_tensors
from palm.export import to_hugging_face, to_onnx
from palm.pretrained.peft import read_adapters
from palm.train import saved_model
from palm.train.saved_model import start_from

PAIR = ("who owns the door", "anna has a new red door .")


def trained(folder: Path, *tasks: str, **settings: Any) -> Path:
    """The folder of a run whose models are all of the last step."""
    tiny.write_files(folder)
    config = tiny.config(folder, *tasks, **{"max_steps": 4, "tasks_per_step": "all", **settings})
    Controller(config, argv=[]).train()
    return folder / "out"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three targets and an auxiliary without dev data."""
    folder = tmp_path_factory.mktemp("run")
    return trained(folder, "cls", "match", "mrc", "mlm", target_tag=[1, 1, 1, 0], num_hidden_layers=1)


def same_records(joint: palm.JointModel, out: Path, *tasks: str) -> None:
    for task in tasks:
        own = palm.load_model(out / task / "infer_model", precision="fp32")
        texts = ["a red door", "anna has the old boat"] if task in ("cls", "mlm") else [PAIR, PAIR[::-1]]
        assert [each[task] for each in joint.predict(texts, [task])] == own.predict(texts)
        assert differing(joint.tasks[task].weights(), own.weights()) == []


def test_a_run_of_several_targets_saves_all_of_them_as_one_model(run: Path) -> None:
    joint = palm.load_model(run, precision="fp32")
    assert isinstance(joint, palm.JointModel)
    assert list(joint.tasks) == ["cls", "match", "mrc"]
    same_records(joint, run, "cls", "match", "mrc")
    assert len({id(model.backbone) for model in joint.tasks.values()}) == 1
    assert read_json(run / "model" / "config.json")["tasks"]["cls"]["training"]["step"] == 4
    names = {"README.md", "config.json", "heads.safetensors", "model.safetensors", "vocab.txt"}
    assert set(verify(run / "model")) == names


def test_an_encoder_with_the_same_bytes_is_on_the_disk_once(run: Path) -> None:
    files = [run / task / "infer_model" / "model.safetensors" for task in ("cls", "match", "mrc")]
    assert all(file.samefile(run / "model" / "model.safetensors") for file in files)
    assert len({file.stat().st_ino for file in run.rglob("heads.safetensors")}) == 4


def test_without_hard_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    out = trained(tmp_path, "cls", "match")
    one, other = (out / place / "model.safetensors" for place in ("cls/infer_model", "model"))
    assert not one.samefile(other)
    assert one.read_bytes() == other.read_bytes()
    same_records(palm.load_model(out / "model", precision="fp32"), out, "cls", "match")


def test_tasks_with_adapters_or_a_head_in_common_are_such_a_model_too(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", max_steps=4, tasks_per_step="all", freeze="backbone")
    config["tasks"]["cls"]["lora"] = {"rank": 2, "targets": ["query", "value"]}
    config["tasks"]["again"] = {**config["tasks"]["match"]}
    config["tasks"]["other"] = {**config["tasks"]["again"]}
    config |= {"task_instance": ["cls", "match", "again", "other"], "task_reuse_tag": [0, 1, 2, 2]}
    Controller(config, argv=[]).train()
    out = folder / "out"
    joint = palm.load_model(out / "model", precision="fp32")
    for task in ("cls", "match", "again", "other"):
        texts = ["a red door" if task == "cls" else PAIR]
        own = palm.load_model(out / task / "infer_model", precision="fp32")
        assert joint.predict(texts, [task]) == [{task: own.predict(texts)[0]}]
    names = list(load_tensors(out / "model" / "heads.safetensors"))
    assert {name.partition(".")[2].partition(".")[0] for name in names} == {"@cls", "@match", "@again"}
    assert (out / "model" / "lora" / "cls" / "adapter_config.json").is_file()
    with pytest.raises(StorageError, match="lora"):
        start_from(joint.tasks["cls"].backbone, [], out)
    expected = "share no encoder" if find_spec("onnxscript") else "palm-torch.onnx"
    with pytest.raises(PalmError, match=expected):
        to_onnx(out, folder / "onnx")


def test_a_frozen_encoder_is_on_the_disk_once_but_one_with_adapters_at_every_step(folder: Path) -> None:
    config = tiny.config(folder, "cls", "match", freeze="backbone", save_infermodel_every_n_steps=5)
    config["tasks"]["cls"]["lora"] = {"rank": 2, "targets": ["query", "value"]}
    Controller({**config, "learning_rate": 1e-2}, argv=[]).train()
    out = folder / "out"
    first, *later = (
        out / "match" / f"infer_model{end}" / "model.safetensors" for end in (".step5", ".step10", "")
    )
    assert all(file.samefile(first) for file in (*later, out / "model" / "model.safetensors"))
    for step in (".step5", ".step10", ""):
        place = out / "cls" / f"infer_model{step}"
        weights = palm.load_model(place, precision="fp32").backbone.state_dict()
        shared = palm.load_model(out / "match" / "infer_model", precision="fp32").backbone
        merged = read_adapters(shared, place / "lora").merged_into(shared).state_dict()
        assert differing(merged, weights) == []


def test_a_run_that_fails_while_it_saves_leaves_the_earlier_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny.config(folder, "cls", "match", num_epochs=6, learning_rate=5e-3, with_dev=True)
    compute, saved = saved_model.model_card, []

    def full(description: Any, *given: Any, **more: Any) -> str:
        if len(description["tasks"]) > 1:
            saved.append(description["tasks"]["cls"]["training"]["step"])
        if len(saved) == 2:
            raise OSError(28, "No space left on device")
        return compute(description, *given, **more)

    monkeypatch.setattr(saved_model, "model_card", full)
    with pytest.raises(StorageError, match="the disk is full"):
        Controller(config, argv=[]).train()
    assert not [place.name for place in (folder / "out").iterdir() if place.name.startswith(".model")]
    assert read_json(folder / "out" / "model" / "config.json")["tasks"]["cls"]["training"]["step"] == saved[0]
    verify(folder / "out" / "model")


def test_a_run_predicts_and_scores_all_targets_with_one_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = trained(tmp_path, "cls", "mlm", "match", backbone_config_path=str(tmp_path / "backbone.json"))
    config = tiny.config(tmp_path, "cls", "match", "mlm")
    config["tasks"]["twin"] = {**config["tasks"]["cls"]}
    config |= {"task_instance": ["cls", "match", "mlm", "twin"], "max_steps": 4, "tasks_per_step": "all"}
    for task in config["tasks"].values():
        task["dev_file"] = task["train_file"]
    Controller(config, argv=[]).train()
    controller = Controller(config, for_train=False, argv=[])
    alone = {task: list(controller.pred(task, out / "model")) for task in config["tasks"]}
    rows = []
    compute = BERT.forward
    monkeypatch.setattr(
        BERT, "forward", lambda self, *given: rows.append(len(given[0]["token_ids"])) or compute(self, *given)
    )
    together = controller.pred_all()
    assert sum(rows) == 3 * 40  # cls and twin have the same texts
    assert {task: list(each) for task, each in together.items()} == alone
    assert not list(out.rglob(".predictions.resume"))
    scores = controller.evaluate_all()
    last = read_json(out / "model" / "config.json")["tasks"]
    assert scores == {task: last[task]["training"]["evaluation"]["scores"] for task in config["tasks"]}

    (tmp_path / "new.tsv").write_text("text_a\na red door\nthe old boat\n", encoding="utf-8")
    words = ["--model", str(out / "model"), "--input", str(tmp_path / "new.tsv"), "--device", "cpu"]
    assert (
        main(["predict", *words, "--task", "cls", "--task", "twin", "--output", str(tmp_path / "new")]) == 0
    )
    found = [
        json.loads(line) for line in (tmp_path / "new" / "cls" / "predictions.json").read_text().splitlines()
    ]
    expected = palm.load_model(out, device="cpu").predict(["a red door", "the old boat"], ["cls", "twin"])
    assert found == [each["cls"] for each in expected]
    assert (tmp_path / "new" / "twin" / "predictions.json").is_file()
    assert main(["predict", *words, "--output", str(tmp_path / "new.jsonl")]) == 2
    capsys.readouterr()
    words[3] = str(tmp_path / "cls.tsv")
    assert main(["evaluate", *words, "--task", "cls", "--task", "twin"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {
        task: scores[task] for task in ("cls", "twin")
    }


def test_a_stopped_prediction_of_all_targets_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pairs.tsv"
    rows = [f"the old boat\tanna has a new {tiny.COLOURS[k % 4]} {tiny.THINGS[k % 6]} ." for k in range(20)]
    file.write_text("\n".join(["text_a\ttext_b", *rows]) + "\n", encoding="utf-8")
    monkeypatch.setattr("palm.train.task_model.CHUNK_EXAMPLES", 4)
    joint = palm.load_model(run, precision="fp32", device="cpu")
    whole = joint.predict_files({t: (file, tmp_path / "whole" / t) for t in ("cls", "match")})
    compute, passes = joint.outputs, []

    def stops(batches: Any) -> Any:
        passes.append(1)
        if len(passes) == 4:
            raise KeyboardInterrupt
        return compute(batches)

    joint.outputs = stops  # type: ignore[method-assign]
    files = {task: (file, tmp_path / "again" / task) for task in ("cls", "match")}
    with pytest.raises(KeyboardInterrupt):
        joint.predict_files(files)
    resumed = joint.predict_files(files, resume=True)
    assert {t: list(each) for t, each in resumed.items()} == {t: list(each) for t, each in whole.items()}


def test_all_targets_are_exported(run: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    to_hugging_face(run, tmp_path / "hf")
    assert {place.name for place in (tmp_path / "hf").iterdir()} == {"cls", "match", "mrc", "manifest.json"}
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf" / "cls")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf" / "cls")(
        "a red door", return_tensors="pt"
    )
    (record,) = palm.load_model(run, precision="fp32").tasks["cls"].predict(["a red door"])
    assert theirs(**tokens).logits[0].tolist() == pytest.approx(record["logits"], abs=1e-5)


def test_onnxruntime_answers_for_all_targets(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    ours, theirs = (
        palm.load_model(run, engine=engine, device="cpu", precision="fp32") for engine in ("torch", "onnx")
    )
    runs = []
    engine = theirs.tasks["cls"].engine
    compute = type(engine).__call__
    counted = lambda self, batches: runs.append([*batches]) or compute(self, batches)  # noqa: E731
    monkeypatch.setattr(type(engine), "__call__", counted)
    (found,) = theirs.predict([{"text_a": "a red door", "text_b": PAIR[1]}], ["cls", "match"])
    (answer,) = theirs.predict([PAIR], ["mrc"])
    assert runs == [["cls", "match"], ["mrc"]]
    (expected,) = ours.predict([{"text_a": "a red door", "text_b": PAIR[1]}], ["cls", "match"])
    for task in ("cls", "match"):
        assert found[task]["logits"] == pytest.approx(expected[task]["logits"], abs=1e-5)
    assert answer["mrc"]["text"] == ours.predict([PAIR], ["mrc"])[0]["mrc"]["text"]


def test_a_new_run_starts_from_all_targets(run: Path) -> None:
    weights = saved_model.trained_weights(run)
    assert list(weights.heads) == ["cls", "match", "mrc"]
    own = palm.load_model(run / "match" / "infer_model").head.state_dict()
    assert all(torch.equal(weights.heads["match"][name], value) for name, value in own.items())
    backbone = palm.load_backbone(run / "model")
    assert torch.equal(
        backbone.state_dict()["embeddings.word.weight"], weights.backbone["embeddings.word.weight"]
    )


def test_a_missing_task_or_a_wrong_setting_is_named(run: Path) -> None:
    config = tiny.config(run.parent, "cls", "match", "mrc", "mlm")
    controller = Controller(config, for_train=False, argv=[])
    with pytest.raises(StorageError, match="cls, match, mrc, not 'mlm'"):
        controller.pred("mlm", run / "model")
    assert next(iter(controller.pred("cls", run / "model")))["index"] == 0
    with pytest.raises(ConfigError):
        palm.load_model(run, reader={"cls": {"max_seq_len": -3}})
    with pytest.raises(PalmError, match="nobody"):
        palm.load_model(run, reader={"nobody": {"max_seq_len": 16}})
