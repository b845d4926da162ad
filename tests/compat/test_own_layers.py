"""Layers of a task's own under the names of PaddlePALM 2.x: the run of a Controller, and joint prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers import tiny
from palm.backbone.encoder import Encoder
from palm.compat.predicting import predicted
from palm.train.checkpoint import load_checkpoint
from palm.train.loop import Training

CONFIG = {**tiny.BACKBONE, "num_hidden_layers": 3}
OWN = {"cls": 2, "match": 1, "other": 0}
TOGETHER = {"tasks_per_step": "all", "precision": "fp32"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def readers_of(folder: Path, encoder: palm.backbone.BERT | None = None, **loading: Any) -> list[Any]:
    """Those of `cls` and `match`, and of `other`, on the file of `cls`."""
    vocab, phase = str(folder / "vocab.txt"), loading.pop("phase", "train")
    kinds = [palm.reader.ClassifyReader, palm.reader.MatchReader, palm.reader.ClassifyReader]
    readers = [kind(vocab, 24, seed=3, phase=phase) for kind in kinds]
    for reader, file in zip(readers, ("cls", "match", "cls"), strict=True):
        reader.load_data(folder / f"{file}.tsv", batch_size=4, **loading)
        if encoder is not None:
            reader.register_with(encoder)
    return readers


def heads() -> list[Any]:
    return [palm.head.Classify(4, 32, 0.1), palm.head.Match(2, 32, 0.1), palm.head.Classify(4, 32, 0.1)]


def trainer_of(folder: Path, trainers: list[palm.Trainer] | None = None) -> palm.MultiHeadTrainer:
    """Three layers; `cls` has two of its own, `match` one, `other` none."""
    readers = readers_of(folder, num_epochs=None)  # first of all, since they bring the seed
    encoder = palm.backbone.BERT.from_config(CONFIG)
    trainers = trainers or [
        palm.Trainer(name, private_layers=count, precision="fp32") for name, count in OWN.items()
    ]
    for reader, trainer, head in zip(readers, trainers, heads(), strict=True):
        reader.register_with(encoder)
        trainer.build_forward(encoder, head)
    together = palm.MultiHeadTrainer(trainers, **TOGETHER)
    together.build_backward(palm.optimizer.Adam(together.build_forward(), 1e-3), weight_decay=0.01)
    together.fit_readers_with_mixratio(readers, "cls", num_epochs=1)
    return together


def ready_to_predict(trainer: palm.MultiHeadTrainer, folder: Path) -> palm.backbone.BERT:
    encoder = palm.backbone.BERT.from_config(CONFIG, phase="predict")
    for one, head in zip(trainer.trainers.values(), heads(), strict=True):
        one.build_predict_forward(encoder, head)
    trainer.build_predict_forward()
    trainer.merge_inference_readers(readers_of(folder, encoder, phase="predict"))
    return encoder


def controllers(folder: Path, **settings: Any) -> palm.Controller:
    given = tiny.config(folder, "cls", "match", grad_clip=None, random_seed=3, warmup_proportion=0.0)
    given |= {"num_hidden_layers": 3, "num_epochs": 1, "task_instance": list(OWN), **TOGETHER, **settings}
    given["tasks"]["other"] = dict(given["tasks"]["cls"])
    for name, count in OWN.items():
        given["tasks"][name]["private_layers"] = count
    return palm.Controller(given, argv=[])


def losses(run: Training) -> list[list[float]]:
    return [[part.loss.item() for part in step.parts] for step in run.steps()]


def assert_same_weights(one: Training, other: Training) -> None:
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert sum(name.startswith("private.@cls.layers.") for name in ours) == 2 * 16
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_run_is_that_of_a_controller_to_the_bit(folder: Path) -> None:
    trainer, run = trainer_of(folder), controllers(folder).training()
    assert losses(trainer._training("train")) == losses(run)
    assert_same_weights(trainer._training("train"), run)


def test_a_checkpoint_of_either_door_continues_in_the_other(folder: Path) -> None:
    whole = controllers(folder).training()
    losses(whole)
    first = trainer_of(folder)
    steps = first._training("train").steps()
    for _ in range(6):
        next(steps)
    first.save(folder / "ckpt")
    second = controllers(folder).training()
    load_checkpoint(second, folder / "ckpt")
    losses(second)
    assert_same_weights(second, whole)
    third = trainer_of(folder)
    third.load_ckpt(folder / "ckpt")
    losses(third._training("train"))
    assert_same_weights(third._training("train"), whole)


def test_joint_prediction_of_own_layers_is_that_of_each_task_alone(folder: Path) -> None:
    trainer = trainer_of(folder)
    trainer.train(print_steps=-1)
    trainer.save(folder / "saved", "predict")
    ready_to_predict(trainer, folder)
    found = trainer.predict()
    batch = next(iter(trainer.trainers["cls"].predict_batches()))
    outputs = {name: trainer.predict_one_batch(name, batch) for name in OWN}
    assert not torch.equal(outputs["cls"]["logits"], outputs["other"]["logits"])
    for name, own in outputs.items():
        alone = trainer.trainers[name].predict_one_batch(batch)
        torch.testing.assert_close(own, alone, atol=1e-6, rtol=0)
    for name, records in found.items():
        model = palm.load_model(folder / "saved" / name, precision="fp32")
        expected = model.predict_file(folder / f"{'match' if name == 'match' else 'cls'}.tsv", folder / name)
        assert [one["label"] for one in records] == [one["label"] for one in expected]
        for one, other in zip(records, expected, strict=True):
            assert one["probs"] == pytest.approx(other["probs"], abs=1e-6)


def test_saved_models_are_loaded_to_predict_together(folder: Path) -> None:
    trainer = trainer_of(folder)
    trainer.train(print_steps=-1)
    trainer.save(folder / "saved", "predict")
    ready_to_predict(trainer, folder)
    expected = trainer.predict()

    later = palm.MultiHeadTrainer([palm.Trainer(n, private_layers=k) for n, k in OWN.items()], **TOGETHER)
    ready_to_predict(later, folder)
    for name, one in later.trainers.items():
        one.load_predict_model(folder / "saved" / name)
    assert later.predict() == expected


def test_what_is_kept_of_a_batch_is_forgotten_when_own_layers_change(folder: Path) -> None:
    trainer = palm.MultiHeadTrainer([palm.Trainer(n, private_layers=k) for n, k in OWN.items()], **TOGETHER)
    ready_to_predict(trainer, folder)
    batch = next(iter(trainer.trainers["cls"].predict_batches()))
    before = trainer.predict_one_batch("cls", batch)["logits"]
    top = trainer.trainers["cls"].own_top
    assert top is not None
    with torch.no_grad():
        top["pooler"].bias += 1
    assert not torch.equal(trainer.predict_one_batch("cls", batch)["logits"], before)


def test_another_training_continues_with_the_layers_of_its_own(folder: Path) -> None:
    trainer = trainer_of(folder)
    trainer.train(print_steps=-1)
    top = trainer._training("train").model.top("cls")
    assert top is not None
    scores = trainer.evaluate({"cls": folder / "cls.tsv"})
    encoder = trainer._training("train").model.backbone
    trainer.fit_readers_with_mixratio(readers_of(folder, encoder, num_epochs=None), "cls", num_epochs=1)
    assert trainer.evaluate({"cls": folder / "cls.tsv"}) == scores
    assert trainer._training("train").model.private["@cls"] is top


def test_pretrained_weights_reach_the_layers_of_a_tasks_own(folder: Path) -> None:
    trainer = trainer_of(folder)
    trainer.train(print_steps=-1)
    trainer.save(folder / "saved", "predict")
    trainer.load_pretrain(folder / "saved" / "other")
    model = trainer._training("train").model
    assert isinstance(model.backbone, Encoder)
    for name, value in model.encoder("cls").state_dict().items():
        assert torch.equal(value, model.backbone.state_dict()[name]), name


def test_one_task_alone_may_have_its_own(folder: Path) -> None:
    encoder = palm.backbone.BERT.from_config(CONFIG)
    reader = readers_of(folder, encoder)[0]
    trainer = palm.Trainer("cls", private_layers=1, precision="fp32")
    loss = trainer.build_forward(encoder, heads()[0])
    trainer.build_backward(palm.optimizer.Adam(loss, 5e-3))
    trainer.fit_reader(reader)
    last = encoder.layers[2].ffn.inner.weight.clone()
    trainer.train(print_steps=-1)
    assert torch.equal(encoder.layers[2].ffn.inner.weight, last)
    other = palm.backbone.BERT.from_config(CONFIG, phase="predict")
    trainer.build_predict_forward(other, heads()[0])
    trainer.fit_reader(readers_of(folder, other, phase="predict")[0], phase="predict")
    truth = [int(line[0]) for line in (folder / "cls.tsv").read_text().splitlines()[1:]]
    right = sum(one["label"] == label for one, label in zip(trainer.predict(), truth, strict=True))
    assert trainer.evaluate(folder / "cls.tsv")["accuracy"] == pytest.approx(right / len(truth))


def test_a_wrong_number_is_reported(folder: Path) -> None:
    encoder = palm.backbone.BERT.from_config(CONFIG)
    trainer = palm.Trainer("cls", private_layers=3, precision="fp32")
    trainer.build_backward(palm.optimizer.Adam(trainer.build_forward(encoder, heads()[0]), 5e-3))
    trainer.fit_reader(readers_of(folder, encoder)[0])
    with pytest.raises(palm.ConfigError, match=r"private_layers .*\b2\b.* 3"):
        trainer.train()


def test_adapters_of_a_tasks_own_train_and_predict_together_as_in_a_controller(folder: Path) -> None:
    lora = {"cls": {"rank": 2}, "match": {"rank": 3, "targets": ["key"]}, "other": None}
    given = tiny.config(folder, "cls", "match", grad_clip=None, random_seed=3, warmup_proportion=0.0)
    given |= {"num_hidden_layers": 3, "num_epochs": 1, "task_instance": list(OWN), **TOGETHER}
    given["tasks"]["other"] = dict(given["tasks"]["cls"])
    for name, own in lora.items():
        given["tasks"][name]["lora"] = own
    run = palm.Controller(given, argv=[]).training()

    trainer = trainer_of(folder, [palm.Trainer(n, lora=own, precision="fp32") for n, own in lora.items()])
    assert losses(trainer._training("train")) == losses(run)
    ours, theirs = trainer._training("train").model.state_dict(), run.model.state_dict()
    assert all(value.equal(theirs[name]) for name, value in ours.items())
    trainer.save(folder / "saved", "predict")
    encoder = ready_to_predict(trainer, folder)
    expected = trainer.predict()
    for name, one in trainer.trainers.items():
        batch = next(iter(one.predict_batches()))
        model = palm.load_model(folder / "saved" / name)
        expected_outputs = predicted(model.backbone.eval(), model.head.eval(), batch, "fp32")
        for found in (one.predict_one_batch(batch), trainer.predict_one_batch(name, batch)):
            torch.testing.assert_close(found, expected_outputs, atol=1e-6, rtol=0)
    shared = palm.load_model(folder / "saved" / "other").backbone.state_dict()
    assert all(value.equal(shared[name]) for name, value in encoder.state_dict().items())

    later = palm.MultiHeadTrainer([palm.Trainer(n, lora=own) for n, own in lora.items()], **TOGETHER)
    ready_to_predict(later, folder)
    for name, one in later.trainers.items():
        one.load_predict_model(folder / "saved" / name)
    assert later.predict() == expected
