"""Evaluation: saved models score a file with labels, every example once, in every kind of task."""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import palm
from helpers import tiny
from helpers.equal import differing
from palm.core.errors import ConfigError
from palm.core.layers import generator
from palm.core.saved import load_tensors
from palm.metrics import METRICS
from palm.predict.inference import InferenceModel
from palm.reader.tokenizer import Tokenizer
from palm.train.callbacks import HISTORY_FILE, Evaluated, read_events
from palm.train.loop import Step, Training
from palm.train.model import outputs_of


def trained(folder: Path, *tasks: str, steps: int = 10) -> Training:
    """A run after some steps."""
    training = tiny.controller(folder, *tasks).training()
    for step in training.steps():
        if step.number == steps:
            break
    return training


def model_of(training: Training, batch_size: int = 7) -> InferenceModel:
    """Its first task's model; batches do not divide the 40 rows, so the last one is short."""
    task = training.tasks[0]
    model = training.model
    parts = (task.name, task.reader, model.backbone, task.head)
    return InferenceModel(*parts, batch_size=batch_size, precision=model.precision)


def test_every_label_counts_once(folder: Path) -> None:
    model = model_of(trained(folder, "cls"))
    lines = (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]
    records = model.predict([line.split("\t")[1] for line in lines])
    right = sum(record["label"] == int(line[0]) for record, line in zip(records, lines, strict=True))
    scores = model.evaluate(folder / "cls.tsv")
    assert scores["accuracy"] == right / 40
    assert list(scores) == ["accuracy", "macro_f1"]
    assert list(model.evaluate(folder / "cls.tsv", ["mcc", "micro_f1"])) == ["mcc", "micro_f1"]


def test_questions_score_as_their_prediction_file_does(folder: Path) -> None:
    model = model_of(trained(folder, "mrc", steps=20), batch_size=16)
    answers = model.predict_file(folder / "mrc.json", folder / "predictions")
    by_file = palm.metrics.squad_scores(dict(answers), folder / "mrc.json")
    assert by_file.pop("total") == 40
    assert model.evaluate(folder / "mrc.json") == by_file


def test_perplexity_is_the_exponential_of_the_loss_over_the_same_masks(folder: Path) -> None:
    training = trained(folder, "mlm")
    model = model_of(training, batch_size=40)
    scores = model.evaluate(folder / "mlm.tsv")
    task = training.tasks[0]
    rows = task.reader.encode(list(task.reader.read(folder / "mlm.tsv", True)), with_targets=True)
    order = sorted(range(len(rows)), key=lambda row: rows.lengths[row])
    draw = lambda k: generator(0, "mask", "mlm", "predict", 0, order[k])  # noqa: E731
    batch = task.reader.collate(rows, order, draw)
    with torch.inference_mode():
        training.model.eval()
        logits = outputs_of(training.model.backbone, task.head, batch)["logits"]
        loss = F.cross_entropy(logits, batch["mask_label"]).item()
        right = (logits.argmax(-1) == batch["mask_label"]).float().mean().item()
    perplexity = pytest.approx(math.exp(loss), rel=1e-5)
    assert scores == {"perplexity": perplexity, "word_accuracy": pytest.approx(right)}
    assert model.evaluate(folder / "mlm.tsv") == scores


def with_dev(folder: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    return tiny.config(folder, *tasks, with_dev=True, **settings)


def history(folder: Path) -> list[dict[str, Any]]:
    """Step and scores of every evaluation."""
    events = read_events(folder / "out" / HISTORY_FILE)
    return [{"step": each.step, "scores": each.scores} for each in events if isinstance(each, Evaluated)]


def observed(config: dict[str, Any]) -> list[float]:
    """The losses of `Controller.train`."""
    events: list[Any] = []
    palm.Controller(config, argv=[]).train([events.append])
    return [event.loss.item() for event in events if isinstance(event, Step)]


def test_losses_and_checkpoints_are_the_same_with_and_without_evaluation(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_every_n_steps": 30, "num_epochs": 1, "mix_ratio": [1.0, 0.8, 0.8, 0.8]}
    settings |= {"use_ema": True, "ema_decay": 0.9}
    folders = [tiny.write_files(tmp_path / name) for name in ("with", "without")]
    with_it = observed(with_dev(folders[0], **settings, eval_every_n_steps=11))
    without = observed(tiny.config(folders[1], **settings))
    assert len(with_it) >= 30
    assert with_it == without
    for file in ("model", "heads", "raw", "optimizer"):
        ours, theirs = (
            load_tensors(folder / "out" / "step_30" / f"{file}.safetensors") for folder in folders
        )
        assert differing(ours, theirs) == []


def test_tasks_are_evaluated_every_so_many_steps_after_every_epoch_and_at_the_end(folder: Path) -> None:
    # 10 steps an epoch of the main task, 20 in all; the auxiliary task draws at random in between.
    config = with_dev(folder, "cls", num_epochs=2, eval_every_n_steps=6)
    palm.Controller(config, argv=[]).train()
    assert [line["step"] for line in history(folder)] == [6, 10, 12, 18, 20]
    config |= {"eval_every_epoch": False, "save_path": str(folder / "out")}
    palm.Controller(config, argv=[]).train()
    assert [line["step"] for line in history(folder)] == [6, 12, 18, 20]
    assert list(history(folder)[0]["scores"]["cls"]) == ["accuracy", "macro_f1"]


def test_the_best_model_of_a_task_has_its_best_score_and_the_weights_of_that_step(folder: Path) -> None:
    config = with_dev(folder, "cls", num_epochs=3, learning_rate=5e-3, eval_every_n_steps=5)
    controller = palm.Controller(config, argv=[])
    controller.train()
    scores = {line["step"]: line["scores"]["cls"]["accuracy"] for line in history(folder)}
    best = controller.evaluate("cls", folder / "out" / "cls" / "best_model")
    assert best["accuracy"] == max(scores.values())
    assert controller.evaluate("cls")["accuracy"] == scores[30]
    assert not (folder / "out" / "model").exists()  # there is one target alone


def test_the_best_step_of_the_run_is_that_of_the_highest_mean(folder: Path) -> None:
    config = with_dev(folder, "cls", "match", "mlm", "mrc", target_tag=[1, 1, 0, 1], eval_every_n_steps=7)
    config |= {"learning_rate": 5e-3, "num_epochs": 1}
    palm.Controller(config, argv=[]).train()
    parts = [("cls", "accuracy", 1), ("match", "accuracy", 1), ("mrc", "f1", 100)]  # and the scale of each
    means = {
        line["step"]: sum(line["scores"][task][name] / scale for task, name, scale in parts)
        for line in history(folder)
    }
    best = max(means, key=lambda step: means[step])
    joint = palm.load_model(folder / "out", precision="fp32")
    assert list(joint.tasks) == ["cls", "match", "mrc"]
    [scores] = [line["scores"] for line in history(folder) if line["step"] == best]
    for task, file in {"cls": "cls.tsv", "match": "match.tsv", "mrc": "mrc.json"}.items():
        model = joint.tasks[task]
        model.batch_size = 4
        assert model.evaluate(folder / file) == scores[task]
    assert "perplexity" in scores["mlm"]
    assert not (folder / "out" / "mlm").exists()  # an auxiliary task is told of, and not saved


def test_a_target_that_gets_no_better_is_finished_and_not_trained_any_longer(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # With a learning rate of almost nothing every evaluation is like the first: after two more it is enough.
    config = with_dev(folder, "cls", "match", learning_rate=1e-12, early_stopping_patience=2)
    del config["tasks"]["match"]["dev_file"]
    config |= {"eval_every_n_steps": 5, "eval_every_epoch": False, "num_epochs": 2}
    with caplog.at_level(logging.INFO, "palm"):
        palm.Controller(config, argv=[]).train()
    lines = [record.getMessage() for record in caplog.records]
    assert any(line.startswith("cls: ") and re.findall(r"\d+", line) == ["2", "5"] for line in lines)
    assert [line for line in lines if line == "cls: train finished!"] == ["cls: train finished!"]
    at_15 = lines.index("cls: train finished!")
    assert any(line.startswith("step 15: cls: accuracy") for line in lines[:at_15])
    later = [line for line in lines[at_15:] if "Task: " in line]
    assert later
    assert all("Task: match" in line for line in later)
    assert (folder / "out" / "cls" / "infer_model").is_dir()
    assert (folder / "out" / "match" / "infer_model").is_dir()


def test_a_patience_that_no_run_can_reach_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told(patience: int) -> list[str]:
        caplog.clear()
        palm.Controller(with_dev(folder, "cls", early_stopping_patience=patience), argv=[]).train()
        found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        return [line for line in found if "early_stopping_patience" in line]

    assert told(1) == []  # two epochs, so two evaluations
    (line,) = told(3)
    assert "early_stopping_patience is 3" in line


def test_rows_of_a_stopped_target_are_drawn_for_the_tasks_that_share_them(folder: Path) -> None:
    config = with_dev(folder, "cls", learning_rate=1e-12, early_stopping_patience=2)
    same = {name: value for name, value in config["tasks"]["cls"].items() if name != "dev_file"}
    config["tasks"]["other"] = same | {"share_rows_with": "cls"}
    config["task_instance"] = ["cls", "other"]
    config |= {"eval_every_n_steps": 5, "eval_every_epoch": False}
    steps = []

    def collect(event: object) -> None:
        if isinstance(event, Step):
            steps.append([part.task.name for part in event.parts])

    palm.Controller(config, argv=[]).train(callbacks=[collect])
    assert len(steps) == 20
    assert steps[:15] == [["cls", "other"]] * 15
    assert steps[15:] == [["other"]] * 5
    rows = [json.loads(line) for line in (folder / "out" / "history.jsonl").read_text().splitlines()]
    counted = [line["rows"] for line in rows if line["event"] == "step"]
    assert counted == sorted(counted)
    assert counted[-1] == 20 * 4


def test_a_resumed_run_evaluates_and_stops_as_an_uninterrupted_one(tmp_path: Path) -> None:
    settings = {"eval_every_n_steps": 5, "early_stopping_patience": 3, "learning_rate": 2e-3}
    whole, broken = (tiny.write_files(tmp_path / name) for name in ("whole", "broken"))
    tasks = ("cls", "match", "mrc")
    uninterrupted = observed(with_dev(whole, *tasks, **settings))
    assert 12 < len(uninterrupted) < 60  # the plan is 20 steps for each task, and they gain nothing
    config = with_dev(broken, *tasks, **settings)
    palm.Controller(config | {"save_every_n_steps": 12}, argv=[]).train()
    for name in ("cls", "match", "mrc", "model"):
        shutil.rmtree(broken / "out" / name)
    resumed = observed(config | {"resume": str(broken / "out" / "step_12")})
    assert resumed == uninterrupted[12:]
    assert history(broken) == history(whole)
    for folder in ("cls/infer_model", "match/infer_model", "mrc/infer_model"):
        assert (whole / "out" / folder).is_dir() == (broken / "out" / folder).is_dir()


def test_only_the_last_checkpoints_and_models_on_the_way_are_kept(folder: Path) -> None:
    (folder / "out" / "step_99").mkdir(parents=True)  # of another run
    config = tiny.config(folder, "cls", save_every_n_steps=4, save_infermodel_every_n_steps=6, keep_last_n=2)
    palm.Controller(config, argv=[]).train()
    assert {path.name for path in (folder / "out").glob("step_*")} == {"step_16", "step_20", "step_99"}
    ways = {path.name for path in (folder / "out" / "cls").glob("infer_model.step*")}
    assert ways == {"infer_model.step12", "infer_model.step18"}


def test_what_is_wrong_with_an_evaluation_is_reported_before_the_run(folder: Path) -> None:
    config = with_dev(folder, "cls", "match")
    config["tasks"]["cls"]["dev_file"] = str(folder / "nowhere.tsv")
    with pytest.raises(ConfigError) as caught:
        palm.Controller(config, argv=[])
    told = "\n".join(caught.value.problems)
    assert str(folder / "nowhere.tsv") in told
    config = with_dev(folder, "cls", "mrc", **{"cls.metrics": ["squad"], "mrc.metrics": ["f2"]})
    with pytest.raises(ConfigError, match=r"'cls'.* 'squad'.* 'answers'") as caught:
        palm.Controller(config, argv=[])
    assert re.search(r"'mrc': metrics: .*'f2'", str(caught.value))
    with pytest.raises(ConfigError, match=r"early_stopping_patience.* dev_file"):
        tiny.controller(folder, "cls", early_stopping_patience=2)


def test_questions_without_an_answer_score_as_their_prediction_files_do(folder: Path) -> None:
    data = json.loads((folder / "mrc.json").read_text(encoding="utf-8"))
    for number, paragraph in enumerate(data["data"][0]["paragraphs"]):
        if number % 3 == 0:
            paragraph["qas"][0] |= {"question": "who owns the boat", "answers": []}
    (folder / "mrc.json").write_text(json.dumps(data), encoding="utf-8")
    config = tiny.config(folder, "mrc", with_negative=True, remove_noanswer=False, num_epochs=6)
    controller = palm.Controller(config, argv=[])
    controller.train()
    scores = controller.evaluate("mrc", dev_file=folder / "mrc.json")
    answers = dict(controller.pred("mrc"))
    odds = json.loads((folder / "out" / "mrc" / "null_odds.json").read_text(encoding="utf-8"))
    by_file = palm.metrics.squad_scores(answers, folder / "mrc.json", "squad2", odds)
    parts = [f"{part}{name}" for part in ("", "HasAns_", "NoAns_") for name in ("f1", "exact_match")]
    assert {name: scores[name] for name in parts} == {name: by_file[name] for name in parts}
    # Among answers that are not empty there is no less to choose from than among those that were given.
    assert scores["best_f1"] >= by_file["best_f1"] >= scores["f1"] - 1e-9


def test_an_evaluation_without_a_number_is_never_the_best(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = [0.0]
    monkeypatch.setattr(METRICS["accuracy"], "compute", lambda _: {"accuracy": score[0]})
    training = palm.Controller(with_dev(folder, "cls"), argv=[]).training()
    evaluator = palm.Evaluator(training)
    best = []
    for score[0] in (math.nan, 0.25, math.nan, 0.125):
        best.append(evaluator.evaluate().best)
    assert best == [[], ["cls"], [], []]
    assert (evaluator.best["cls"].score, evaluator.best["cls"].waited) == (0.25, 2)


def write_dev_rows(folder: Path, task: str) -> Path:
    """Write a task's rows with a word in each text that no other row has, such as cls7."""
    source = folder / {"mrc": "mrc.json", "relation": "span.jsonl"}.get(task, f"{task}.tsv")
    numbers = iter(range(1000))

    def marked(text: str) -> str:
        return f"{text} {task}{next(numbers)}"

    lines = source.read_text(encoding="utf-8").splitlines()
    if task == "mrc":
        data = json.loads(lines[0])
        for paragraph in data["data"][0]["paragraphs"]:
            paragraph["context"] = marked(paragraph["context"] + " old new" * 12)  # more than a window
        lines = [json.dumps(data)]
    elif task == "relation":
        rows = [json.loads(line) for line in lines]
        lines = [json.dumps({**row, "text_a": marked(" ".join(row["text_a"])).split()}) for row in rows]
    else:
        lines = [lines[0], *map(marked, lines[1:])]
    target = source.with_name(f"dev_{source.name}")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target


def test_a_dev_row_is_tokenized_once_in_a_run_and_has_a_loss(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = ["cls", "match", "mlm", "mrc", "relation"]
    config = tiny.config(folder, *tasks, max_steps=30, eval_every_n_steps=10)
    for task in tasks:
        config["tasks"][task]["dev_file"] = str(write_dev_rows(folder, task))
    seen: Counter[str] = Counter()
    for name in ("encode", "encode_with_offsets"):
        encode = getattr(Tokenizer, name)

        def counted(self: Tokenizer, texts: Any, *rest: Any, encode: Any = encode) -> Any:
            seen.update(word for text in texts for word in text.split() if word[-1].isdecimal())
            return encode(self, texts, *rest)

        monkeypatch.setattr(Tokenizer, name, counted)
    palm.Controller(config, argv=[]).train()
    assert seen == {f"{task}{row}": 1 for task in tasks for row in range(40)}
    events = read_events(folder / "out" / HISTORY_FILE)
    evaluations = [each for each in events if isinstance(each, Evaluated)]
    assert len(evaluations) >= 3
    assert all(list(each.dev_loss) == tasks for each in evaluations)


def test_the_dev_loss_of_answers_is_that_of_the_windows_that_have_them(folder: Path) -> None:
    config = tiny.config(folder, "mrc")
    config["tasks"]["mrc"]["dev_file"] = str(dev := write_dev_rows(folder, "mrc"))
    data = json.loads(dev.read_text(encoding="utf-8"))
    wrong, none = (paragraph["qas"][0] for paragraph in data["data"][0]["paragraphs"][:2])
    wrong["answers"][0]["answer_start"] += 1
    none["answers"] = []
    dev.write_text(json.dumps(data), encoding="utf-8")
    training = palm.Controller(config, argv=[]).training()
    evaluated = palm.Evaluator(training).evaluate()
    reader, head = training.tasks[0].reader, training.tasks[0].head
    questions = list(reader.read_gold(dev))[2:]
    every_window = len(reader.encode(questions, with_targets=False))
    rows = reader.encode([replace(each, is_scored=False) for each in questions], with_targets=True)
    assert 38 <= len(rows) < every_window
    with torch.inference_mode():
        batch = reader.collate(rows, range(len(rows)), generator)
        training.model.eval()
        outputs = outputs_of(training.model.backbone, head, batch)
        ends = [
            F.cross_entropy(outputs[f"{end}_logits"], batch[f"{end}_positions"]) for end in ("start", "end")
        ]
    assert evaluated.dev_loss["mrc"] == pytest.approx(float(sum(ends)) / 2, rel=1e-5)
    assert evaluated.scores["mrc"].keys() >= {"f1", "exact_match"}
