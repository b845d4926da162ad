"""One task under the names of PaddlePALM 2.x: the eight steps, exact resumption, results and messages."""

from __future__ import annotations

import json
import logging
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import palm.compat as palm
from helpers import tiny
from helpers.equal import differing
from palm.controller.controller import Controller

HIDDEN = tiny.BACKBONE["hidden_size"]


def reader_of(folder: Path, phase: str = "train", num_epochs: int | None = 2, **settings: Any) -> Any:
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 24, seed=1, phase=phase, **settings)
    reader.load_data(folder / "cls.tsv", batch_size=4, num_epochs=num_epochs)
    return reader


def parts(phase: str = "train") -> tuple[Any, Any]:
    backbone = palm.backbone.BERT.from_config(tiny.BACKBONE, phase=phase)
    return backbone, palm.head.Classify(4, HIDDEN, 0.1, phase=phase)


def trainer_of(
    folder: Path, num_epochs: int | None = 2, lr: float = 1e-3, precision: str = "fp32", **backward: Any
) -> palm.Trainer:
    """The steps before training; the learning rate rises and falls over all of them."""
    reader = reader_of(folder, num_epochs=num_epochs)
    backbone, head = parts()
    reader.register_with(backbone)
    trainer = palm.Trainer("cls", precision=precision)
    loss_var = trainer.build_forward(backbone, head)
    sched = palm.lr_sched.TriangularSchedualer(2, 10 * (num_epochs or 1))
    trainer.build_backward(palm.optimizer.Adam(loss_var, lr, sched), weight_decay=0.01, **backward)
    trainer.fit_reader(reader)
    return trainer


def with_prediction(trainer: palm.Trainer, folder: Path) -> palm.Trainer:
    backbone, head = parts("predict")
    trainer.build_predict_forward(backbone, head)
    reader = reader_of(folder, "predict")
    reader.register_with(backbone)
    trainer.fit_reader(reader, phase="predict")
    return trainer


def losses(trainer: palm.Trainer, count: int | None = None) -> list[float]:
    """The losses of the next steps, of a loop of the user's own."""
    batches = iter(lambda: trainer.get_one_batch(), None)
    return [trainer.train_one_step(batch)["cls.loss"].item() for batch in islice(batches, count)]


def weights(trainer: palm.Trainer) -> dict[str, torch.Tensor]:
    assert trainer.forward is not None
    return {
        **{
            f"backbone.{name}": value.clone() for name, value in trainer.forward.backbone.state_dict().items()
        },
        **{f"head.{name}": value.clone() for name, value in trainer.forward.head.state_dict().items()},
    }


def test_the_eight_steps_train_and_predict(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "palm"):
        trainer = trainer_of(folder, num_epochs=10, lr=0.01)
        trainer.set_saver(save_path=folder / "outputs", save_steps=40, save_type="ckpt")
        trainer.train(print_steps=8)
        with_prediction(trainer, folder)
        results = trainer.predict(output_dir=folder / "predict", print_steps=5)
    lines = [record.getMessage() for record in caplog.records]
    expected = ["step 8/10 (epoch 0)", "step 6/10 (epoch 1)", "step 4/10 (epoch 2)"]
    assert [line.split(", loss")[0] for line in lines if line.startswith("step ")][:3] == expected
    assert "ok!" in lines
    assert f"checkpoint has been saved at {folder / 'outputs' / 'ckpt.step40'}" in lines
    assert sum(line.startswith("batch 10/10, speed: ") for line in lines) == 1
    assert lines[-1] == f"Predictions saved at {folder / 'predict' / 'predictions.json'}"
    names = {path.name for path in (folder / "outputs").iterdir()}
    assert names == {*(f"ckpt.step{k}" for k in (40, 80, 100)), ".run.lock", "history.jsonl", "recipe.yaml"}

    written = (folder / "predict" / "predictions.json").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == list(results)
    assert [list(result) for result in results] == [["index", "label", "logits", "probs"]] * 40
    truth = [int(line[0]) for line in (folder / "cls.tsv").read_text(encoding="utf-8").splitlines()[1:]]
    assert np.mean([result["label"] == label for result, label in zip(results, truth, strict=True)]) > 0.5


def test_a_loop_of_ones_own_makes_the_steps_of_train(folder: Path) -> None:
    whole = trainer_of(folder)
    whole.train()
    own = trainer_of(folder)
    seen = 0
    for batch in own.fit_reader(_same(reader_of(folder), own)):
        outputs = own.train_one_step(batch)
        seen += 1
        assert list(outputs) == ["cls.loss"]
        assert (outputs["cls.loss"].shape, own.cur_train_step) == ((1,), seen)
        assert own.cur_train_epoch == (seen - 1) // 10
    assert seen == 20
    assert differing(weights(own), weights(whole)) == []


def _same(reader: Any, trainer: palm.Trainer) -> Any:
    assert trainer.forward is not None
    reader.register_with(trainer.forward.backbone)
    return reader


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_trainer_and_a_controller_of_the_same_settings_make_the_same_losses(
    folder: Path, precision: str
) -> None:
    settings = {"weight_decay": 0.01, "grad_clip": None, "warmup_proportion": 0.1, "precision": precision}
    controller = tiny.controller(folder, "cls", **settings)
    training = controller.training()
    trainer = trainer_of(folder, precision=precision)
    assert trainer.forward is not None
    trainer.forward.backbone.load_state_dict(training.model.backbone.state_dict())
    trainer.forward.head.load_state_dict(training.tasks[0].head.state_dict())
    assert losses(trainer, 20) == [step.loss.item() for step in training.steps()]


def test_a_model_of_one_door_predicts_through_the_other(folder: Path) -> None:
    trainer = with_prediction(trainer_of(folder), folder)
    trainer.train()
    trainer.save(folder / "model", save_type="predict")
    controller = tiny.controller(folder, "cls", for_train=False)
    assert list(controller.pred("cls", folder / "model")) == trainer.predict()

    tiny.controller(folder, "cls").train()
    other = with_prediction(palm.Trainer("cls", precision="fp32"), folder)
    other.load_predict_model(folder / "out" / "cls" / "infer_model")
    assert other.predict() == list(controller.pred("cls"))


def test_a_task_built_in_python_is_trained_by_a_controller(folder: Path) -> None:
    config = tiny.config(folder, "cls")
    del config["tasks"], config["task_instance"]
    config |= {"hidden_size": HIDDEN}
    for name in ("max_seq_len", "batch_size", "vocab_path"):
        del config[name]
    torch.manual_seed(1)
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 24)
    task = palm.Task(
        "cls", reader, palm.head.Classify(4, HIDDEN), batch_size=4,
        train_file=folder / "cls.tsv", pred_file=folder / "cls.tsv",
    )  # fmt: skip
    controller = Controller(config, argv=[], tasks=[task])
    assert controller.train().steps == {"cls": 20}
    records = controller.pred("cls")
    assert len(records) == 40
    model = palm.load_model(folder / "out" / "cls" / "infer_model", precision="fp32")
    assert torch.equal(model.head.out.weight, task.head.out.weight)


def test_a_task_built_in_python_joins_those_of_the_files(folder: Path) -> None:
    reader = palm.reader.MaskLMReader(folder / "vocab.txt", 24)
    helper = palm.Task(
        "words", reader, palm.head.MaskLM(HIDDEN, 40, "gelu"), batch_size=4,
        train_file=folder / "mlm.tsv", mix_ratio=0.5, is_target=False,
    )  # fmt: skip
    training = Controller(tiny.config(folder, "cls"), argv=[], tasks=[helper]).training()
    assert [(task.name, task.expected_steps) for task in training.tasks] == [("cls", 20), ("words", 10)]
    for _ in training.steps():
        pass
    assert training.tasks[1].step > 0
    with pytest.raises(palm.ConfigError, match=r"\bPython\b.* 'cls'"):
        Controller(tiny.config(folder, "cls"), argv=[], tasks=[training.tasks[0].task])


# Wrong orders of calls name the call that is missing


def test_what_was_not_called_is_named(folder: Path) -> None:
    backbone, head = parts()
    adam = palm.optimizer.Adam(None, 1e-3)
    new = palm.Trainer("t")
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 24)
    with pytest.raises(palm.PalmError, match=r"'t': build_backward\b.* build_forward"):
        new.build_backward(adam)
    with pytest.raises(palm.PalmError, match=r"'t': load_ckpt\b.* build_forward"):
        new.load_ckpt(folder)
    with pytest.raises(palm.PalmError, match=r"'t': predict\b.* build_predict_forward"):
        new.predict()
    new.build_forward(backbone, head)
    with pytest.raises(
        palm.PalmError, match=r"ClassifyReader: call load_data\(input_file, batch_size\) first"
    ):
        new.fit_reader(reader)
    reader.load_data(folder / "cls.tsv", 4)
    with pytest.raises(palm.PalmError, match=r"register_with\(backbone\)"):
        new.fit_reader(reader)
    reader.register_with(backbone)
    with pytest.raises(palm.PalmError, match=r"train\b.* call build_backward\(optimizer\) first"):
        new.train()
    new.build_backward(adam)
    for call in (new.train, new.get_one_batch, lambda: new.num_examples, lambda: new.save(folder / "x")):
        with pytest.raises(palm.PalmError, match=r"too early; call fit_reader\(reader\) first"):
            call()
    with pytest.raises(palm.PalmError, match=r"get_one_batch\b.* call fit_reader\(reader, phase='pre"):
        new.get_one_batch("predict")


# Readers


def test_positions_and_spellings_of_2_x_are_accepted(folder: Path) -> None:
    vocab = folder / "vocab.txt"
    by_place = palm.reader.ClassifyReader(vocab, 24, "wordpiece", "cn", 3, True, "predict")
    by_name = palm.reader.ClassifyReader(vocab_path=vocab, max_len=24, lang="chinese", do_lower_case=True)
    assert by_place.settings == by_name.settings
    assert (by_place.settings["for_cn"], by_place.phase, by_name.phase) == (True, "predict", "train")
    assert (
        palm.reader.MRCReader(vocab, 24, 8, 4, "wordpiece", "en", 1, True).settings["do_lower_case"] is True
    )
    mrc = palm.head.MRC(8, HIDDEN, None, False, False, True, 7, 0.0, 3, "predict")
    assert (mrc.max_answer_len, mrc.n_best_size, mrc.phase) == (7, 3, "predict")
    mlm = palm.head.MaskLM(HIDDEN, 40, "relu", 0.5, 0.1)
    assert (mlm.settings["hidden_act"], mlm.settings["initializer_range"]) == ("relu", 0.1)
    tags = palm.head.SequenceLabel(5, HIDDEN, 0.2, 1e-3, 0.1, phase="predict")
    assert (tags.settings["dropout_prob"], tags.settings["initializer_range"]) == (0.2, 0.1)
    bert = palm.backbone.BERT(8, 1, 2, 10, 4, 2, "relu", 0.0, 0.0, 0.02, False, "predict")
    assert (bert.phase, bert.settings["hidden_act"]) == ("predict", "relu")


def test_mlm_and_mrc_predict_in_the_forms_of_2_x(folder: Path) -> None:
    backbone = palm.backbone.BERT.from_config(tiny.BACKBONE, phase="predict")
    mlm = palm.Trainer("mlm")
    mlm.build_predict_forward(backbone, palm.head.MaskLM(HIDDEN, 40, "gelu", phase="predict"))
    reader = palm.reader.MaskLMReader(folder / "vocab.txt", 24, phase="predict")
    reader.load_data(folder / "mlm.tsv", 8)
    reader.register_with(backbone)
    mlm.fit_reader(reader, phase="predict")
    guesses = mlm.predict()
    assert [guess["index"] for guess in guesses] == list(range(len(guesses)))
    assert all(0 <= guess["word_id"] < 40 for guess in guesses)
    assert len(guesses) >= 40

    mrc = palm.Trainer("mrc")
    mrc.build_predict_forward(backbone, palm.head.MRC(8, HIDDEN, max_ans_len=4, phase="predict"))
    reader = palm.reader.MRCReader(folder / "vocab.txt", 24, 8, 8, phase="predict")
    reader.load_data(folder / "mrc.json", 8)
    reader.register_with(backbone)
    mrc.fit_reader(reader, phase="predict")
    in_memory = mrc.predict()
    answers = mrc.predict(folder / "answers")
    assert in_memory == dict(answers)
    assert set(answers) == {f"q{k}" for k in range(40)}
    assert json.loads((folder / "answers" / "predictions.json").read_text(encoding="utf-8")) == dict(answers)
    nbest = json.loads((folder / "answers" / "nbest_predictions.json").read_text(encoding="utf-8"))
    assert set(nbest["q0"][0]) == {"text", "probability", "start_logit", "end_logit"}
