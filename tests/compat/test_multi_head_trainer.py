"""Several tasks under the names of PaddlePALM 2.x: the article's program, its steps, sharing, prediction."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers import article, tiny
from helpers.article import HIDDEN
from helpers.shared import RECORDED_2, needs_shared

SAMPLING = RECORDED_2 / "sampling" / "sampling.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return article.write_files(tmp_path)


def with_prediction(trainer: palm.MultiHeadTrainer, folder: Path, rows: int | None = None) -> Any:
    """The article's tasks ready to predict; the function from a task to its batches."""
    if rows is not None:
        for name in ("slot", "intent"):
            lines = (folder / f"{name}.tsv").read_text(encoding="utf-8").splitlines()[: rows + 1]
            (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    slot = palm.reader.SequenceLabelReader(
        folder / "vocab.txt", 16, folder / "label_map.json", phase="predict"
    )
    intent = palm.reader.ClassifyReader(folder / "vocab.txt", 16, phase="predict")
    ernie = palm.backbone.ERNIE.from_config(article.CONFIG, phase="predict")
    slot_head = palm.head.SequenceLabel(len(article.LABELS), HIDDEN, phase="predict")
    for name, head in (("slot", slot_head), ("intent", palm.head.Classify(2, HIDDEN, phase="predict"))):
        trainer.trainers[name].build_predict_forward(ernie, head)
    trainer.build_predict_forward()
    for name, reader in (("slot", slot), ("intent", intent)):
        reader.load_data(folder / f"{name}.tsv", batch_size=16)
        reader.register_with(ernie)
    return trainer.merge_inference_readers([slot, intent])


def assert_same(ones: Any, others: Any) -> None:
    """Equal labels and, up to rounding, equal probabilities: a pass for several heads computes more."""
    assert [one["label"] for one in ones] == [other["label"] for other in others]
    for one, other in zip(ones, others, strict=True):
        assert one["probs"] == pytest.approx(other["probs"], abs=1e-6)


def encoder_passes(backbone: Any) -> list[int]:
    """Grows by the number of rows at every pass of the encoder."""
    passes: list[int] = []
    backbone.embeddings.register_forward_hook(lambda _, args, __: passes.append(len(args[0]["token_ids"])))
    return passes


def test_the_articles_program_trains_both_tasks(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        trainer = article.program(folder, num_epochs=6)
        trainer.set_saver(save_path=folder / "outputs", save_steps=30)
        trainer.train(print_steps=10)
    lines = [record.getMessage() for record in caplog.records]
    first = lines.index("ok!")  # a process hears once that it has no GPU
    expected = [f"{task}: expected train steps 30." for task in ("slot", "intent")]
    expected = ["ok!", "ok!", *expected, "Estimated overall train steps 60."]
    assert lines[first : first + 5] == expected
    steps = [line for line in lines if line.startswith("global step: ")]
    assert {line.split(", ")[1].split(":")[0] for line in steps} == {"  slot", "intent"}
    assert {"slot train finish!", "intent train finish!"} <= set(lines)
    assert f"checkpoint has been saved at {folder / 'outputs' / 'ckpt.step30'}" in lines

    batches = with_prediction(trainer, folder)
    truth = [line[0] for line in (folder / "intent.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    results = trainer.predict(folder / "predict")
    assert [str(result["label"]) for result in results["intent"]] == truth
    tags = [line.split("\t")[1].split("\2") for line in (folder / "slot.tsv").read_text().splitlines()[1:]]
    expected = [[3, *(article.LABELS[tag] for tag in row), 3] for row in tags]
    assert list(results["slot"]) == expected
    written = (folder / "predict" / "slot" / "predictions.json").read_text(encoding="utf-8")
    assert written == "".join(f"{row}\n" for row in expected)
    assert len(list(batches("slot"))) == 3


def test_one_trainer_predicts_from_the_checkpoint_of_several(folder: Path) -> None:
    trainer = article.program(folder)
    trainer.train()
    trainer.save(folder / "ckpt")
    with_prediction(trainer, folder)
    together = trainer.predict()

    alone = palm.Trainer("intent")
    ernie = palm.backbone.ERNIE.from_config(article.CONFIG, phase="predict")
    alone.build_predict_forward(ernie, palm.head.Classify(2, HIDDEN, phase="predict"))
    alone.load_ckpt(folder / "ckpt")
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 16, phase="predict")
    reader.load_data(folder / "intent.tsv", batch_size=16)
    reader.register_with(ernie)
    alone.fit_reader(reader, phase="predict")
    assert_same(alone.predict(), together["intent"])


def test_a_text_that_two_heads_read_is_encoded_once(folder: Path) -> None:
    trainer = article.program(folder)
    batches = with_prediction(trainer, folder, rows=40)
    passes = encoder_passes(trainer.trainers["slot"].predict_forward.backbone)
    for slot_batch, intent_batch in zip(batches("slot"), batches("intent"), strict=True):
        assert [int(batch["__task_id"]) for batch in (slot_batch, intent_batch)] == [0, 1]
        assert set(trainer.predict_one_batch("slot", slot_batch)) == {"logits", "word_mask"}
        assert set(trainer.predict_one_batch("intent", intent_batch)) == {"logits", "probs"}
    passes.clear()
    trainer.predict()
    assert passes == [14, 14, 12]  # about as many tokens in each


@needs_shared
def test_steps_are_counted_as_in_the_original(tmp_path: Path) -> None:
    recorded = json.loads(SAMPLING.read_text(encoding="utf-8"))
    for case, expected in recorded.items():
        trainer, readers = plain_tasks(tmp_path, expected)
        length = (expected["sampling_reference"], expected["num_epochs"])
        if 0 in expected["expected_steps"].values():
            with pytest.raises(palm.TrainingError, match=r"'intent'.*num_epochs"):
                trainer.fit_readers_with_mixratio(readers, *length)
            continue
        trainer.fit_readers_with_mixratio(readers, *length)
        assert trainer.overall_train_steps == expected["overall_train_steps"], case
        for name, one in trainer.trainers.items():
            assert one.steps_pur_epoch == expected["steps_pur_epoch"][name], case
            if "auxiliary" not in case:
                assert one.task.expected_steps == expected["expected_steps"][name], case


def plain_tasks(folder: Path, expected: dict[str, Any]) -> tuple[palm.MultiHeadTrainer, dict[str, Any]]:
    """Trainers and readers of classification tasks with as many rows as were recorded."""
    tiny.write_files(folder)
    backbone = palm.backbone.BERT.from_config(tiny.BACKBONE)
    trainers, readers = [], {}
    for name, rows in expected["num_examples"].items():
        path = folder / f"{name}.tsv"
        path.write_text("label\ttext_a\n" + "0\tthe red door\n" * rows, encoding="utf-8")
        readers[name] = palm.reader.ClassifyReader(folder / "vocab.txt", 16)
        readers[name].load_data(path, expected["batch_size"])
        readers[name].register_with(backbone)
        trainer = palm.Trainer(name, mix_ratio=expected["mix_ratio"][name])
        trainer.build_forward(backbone, palm.head.Classify(2, HIDDEN))
        trainers.append(trainer)
    if expected["overall_train_steps"] > expected["actual_total_steps"]:
        trainers[1].set_as_aux()
    return palm.MultiHeadTrainer(trainers), readers


SETUP = {"num_examples": {"a": 24, "b": 24}, "batch_size": 8, "mix_ratio": {"a": 1.0, "b": 1.0}}
SETUP |= {"overall_train_steps": 0, "actual_total_steps": 0}


def test_an_auxiliary_task_ends_nothing(tmp_path: Path) -> None:
    trainer, readers = plain_tasks(tmp_path, SETUP)
    trainer.trainers["b"].set_as_aux()
    trainer.build_forward()
    trainer.build_backward(palm.optimizer.Adam(None, 1e-3))
    trainer.fit_readers_with_mixratio(list(readers.values()), "a", 4)
    trainer.train()
    assert trainer.trainers["a"].cur_train_step == 12
    assert trainer.trainers["b"].cur_train_step > 0
    trainer.trainers["a"].set_as_aux()
    with pytest.raises(palm.ConfigError, match=r"auxiliary.*target"):
        trainer.fit_readers_with_mixratio(readers, "a", 4)


def test_a_head_that_is_reused_is_one_head(tmp_path: Path) -> None:
    trainer, readers = plain_tasks(tmp_path, SETUP)
    a, b = trainer.trainers.values()
    b.reuse_head_with = "a"
    trainer.build_forward()
    assert a.forward.head is b.forward.head
    trainer.build_backward(palm.optimizer.Adam(None, 1e-3))
    trainer.fit_readers_with_mixratio(readers, "a", 2)
    trainer.train()
    trainer.save(tmp_path / "ckpt")
    alone = palm.Trainer("b")
    head = palm.head.Classify(2, HIDDEN)
    alone.build_predict_forward(palm.backbone.BERT.from_config(tiny.BACKBONE), head)
    alone.load_ckpt(tmp_path / "ckpt")
    assert torch.equal(head.out.weight, a.forward.head.out.weight)


def test_what_does_not_fit_together_is_reported(tmp_path: Path) -> None:
    trainer, readers = plain_tasks(tmp_path, SETUP)
    a, b = trainer.trainers.values()
    with pytest.raises(palm.ConfigError, match=r"'aa'.* a, b\b.*'a'"):
        trainer.fit_readers_with_mixratio(readers, "aa", 2)
    with pytest.raises(palm.ConfigError, match=r"\b1 .*\b2 .*\(a, b\)"):
        trainer.fit_readers_with_mixratio(list(readers.values())[:1], "a", 2)
    with pytest.raises(palm.ConfigError, match=r"MultiHeadTrainer .*'a \+ a'"):
        palm.MultiHeadTrainer([a, a])
    trainer.build_backward(palm.optimizer.Adam(None, 1e-3))
    with pytest.raises(
        palm.PalmError, match=r"call fit_readers_with_mixratio\(readers, sampling_reference, num"
    ):
        trainer.train()
    with pytest.raises(palm.PalmError, match=r"'__task_id'.* get_one_batch\(\)"):
        trainer.train_one_step({})
    b.reuse_head_with = "a"
    b.build_forward(a.forward.backbone, palm.head.Classify(3, HIDDEN))
    with pytest.raises(palm.WiringError, match=r"'b'.*'a': Classify .*'n_classes': 3"):
        trainer.build_forward()
    b.build_forward(palm.backbone.BERT.from_config(tiny.BACKBONE), a.forward.head)
    with pytest.raises(palm.WiringError, match=r"'a' and 'b'.* backbone"):
        trainer.build_forward()
