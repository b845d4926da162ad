"""Components written as PaddlePALM 2.x's pages show them train and predict with palm's trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import palm.compat as palm
from helpers.published_parts import BOW, Halving, Head, HeadWithFiles, Momentum, Reader, write_data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def true_labels(folder: Path) -> list[int]:
    return [int(line[0]) for line in (folder / "texts.tsv").read_text("utf-8").splitlines()[1:]]


def trained(folder: Path, head: type[Head] = Head, steps: int = 0, **backward: Any) -> palm.Trainer:
    torch.manual_seed(0)
    reader = Reader(str(folder / "words.txt"), 8, seed=3)
    reader.load_data(str(folder / "texts.tsv"), 4, num_epochs=12)
    backbone = BOW(11, 8)
    reader.register_with(backbone)
    trainer = palm.Trainer("colour", precision="fp32")
    loss_var = trainer.build_forward(backbone, head(2, 8))
    momentum = Momentum(loss_var, 0.4, Halving(50))
    trainer.build_backward(momentum, **backward)
    batches = trainer.fit_reader(reader)
    assert (trainer.num_examples, trainer.steps_pur_epoch, trainer.num_epochs) == (41, 10, 12)
    assert momentum.get_cur_learning_rate() == 0.4
    if steps:
        for _ in range(steps):
            trainer.train_one_step(next(batches))
        assert momentum.get_cur_learning_rate() == 0.4 * 0.5 ** ((steps - 1) // 50)
    else:
        trainer.train(print_steps=50)
    return trainer


def predicting(trainer: palm.Trainer, folder: Path, head: type[Head]) -> palm.Trainer:
    reader = Reader(str(folder / "words.txt"), 8, phase="predict")
    reader.load_data(str(folder / "texts.tsv"), 4)
    backbone = BOW(11, 8, phase="predict")
    reader.register_with(backbone)
    trainer.build_predict_forward(backbone, head(2, 8, phase="predict"))
    trainer.fit_reader(reader, phase="predict")
    return trainer


def test_a_reader_a_backbone_a_head_an_optimizer_and_a_schedule_of_2_x_train_and_predict(
    folder: Path,
) -> None:
    trainer = predicting(trained(folder), folder, Head)
    results = trainer.predict()
    assert [torch.tensor(result["logits"]).argmax().item() for result in results] == true_labels(folder)
    assert [result["index"] for result in results] == list(range(41))


def test_what_a_head_does_with_results_is_done(folder: Path) -> None:
    trainer = predicting(trained(folder, HeadWithFiles), folder, HeadWithFiles)
    for _ in range(2):  # a second prediction begins anew
        assert trainer.predict(output_dir=folder / "out") == true_labels(folder)
    assert json.loads((folder / "out" / "labels.json").read_text("utf-8")) == true_labels(folder)
    head = trainer.predict_forward.head  # type: ignore[union-attr]
    assert head.get_results() == true_labels(folder)
    trainer.reset_buffer()
    assert head.get_results() == []


def test_the_rate_and_the_decay_are_those_of_the_program(folder: Path) -> None:
    trained(folder, steps=60)
    plain, decayed = (trained(folder, steps=1, **given) for given in ({}, {"weight_decay": 0.5}))
    for one, other in zip(*(t.forward.backbone.parameters() for t in (plain, decayed)), strict=True):  # type: ignore[union-attr]
        torch.testing.assert_close(one * (1 - 0.4 * 0.5), other)


@pytest.mark.parametrize("wrong", ["int64", [[None], "int65"]])
def test_a_declaration_that_cannot_be_read_is_reported(wrong: Any) -> None:
    class Wrong(palm.backbone.base_backbone.Backbone):
        @property
        def inputs_attr(self) -> Any:
            return {"token_ids": wrong}

        def build(self, inputs: Any, scope_name: str = "") -> Any:
            raise NotImplementedError

    with pytest.raises(palm.WiringError, match=r"token_ids\b.*\[shape, dtype\]"):
        Wrong().inputs_attr  # noqa: B018


def test_a_reader_of_2_x_serves_an_encoder_of_palm_and_the_reverse(folder: Path) -> None:
    reader = palm.reader.ClassifyReader(folder / "words.txt", 8)
    reader.require_attr("token_ids")
    with pytest.raises(palm.WiringError, match=r"\bseq_lens\b"):
        reader.require_attr("seq_lens")
    reader.load_data(folder / "texts.tsv", 4, num_epochs=1)
    backbone = BOW(11, 8)
    reader.register_with(backbone)
    trainer = palm.Trainer("colour", precision="fp32")
    loss_var = trainer.build_forward(backbone, palm.head.Classify(2, 8))
    trainer.build_backward(palm.optimizer.Adam(loss_var, 0.01))
    batch = next(trainer.fit_reader(reader))
    assert batch["input_mask"].dtype == torch.bool
    assert trainer.train_one_step(batch)["colour.loss"].item() == pytest.approx(0.69, abs=0.1)


def test_a_schedule_of_2_x_may_give_one_rate_for_all_steps() -> None:
    class Constant(palm.lr_sched.Schedualer):
        def _build(self, learning_rate: float) -> float:
            return learning_rate / 4

    assert [Constant()(step) for step in (0, 9)] == [0.25, 0.25]


class Numbers(palm.head.Classify):
    """A head of palm that does with results what it wants, as programs of 2.x have them."""

    def epoch_postprocess(self, post_inputs: Any = None, output_dir: Any = None) -> Any:
        assert post_inputs == {}
        return [result["label"] for result in self.get_results()]


def test_a_subclass_of_a_head_of_palm_may_do_so_too(folder: Path) -> None:
    reader = palm.reader.ClassifyReader(folder / "words.txt", 8, phase="predict")
    reader.load_data(folder / "texts.tsv", 4)
    backbone = BOW(11, 8)
    reader.register_with(backbone)
    trainer = palm.Trainer("colour", precision="fp32")
    trainer.build_predict_forward(backbone, Numbers(2, 8, phase="predict"))
    trainer.fit_reader(reader, phase="predict")
    labels = trainer.predict()
    assert labels == [
        record["label"]
        for record in trainer.predictor("predict").predict_file(folder / "texts.tsv", folder / "out")
    ]
    assert len(labels) == 41


def test_a_saved_model_and_joint_prediction_give_the_outputs_of_a_head_of_2_x(folder: Path) -> None:
    backbone, head = BOW(11, 8), Head(2, 8)
    reader = palm.reader.ClassifyReader(folder / "words.txt", 8, seed=1)
    reader.load_data(folder / "texts.tsv", 4, num_epochs=1)
    reader.register_with(backbone)
    trainer = palm.Trainer("colour", precision="fp32")
    trainer.build_backward(palm.optimizer.Adam(trainer.build_forward(backbone, head), 0.1))
    trainer.fit_reader(reader)
    trainer.train(print_steps=0)
    trainer.save(folder / "model", save_type="predict")
    model = palm.load_model(folder / "model")
    assert model.head.phase == "predict"
    [record] = model.predict(["a red door"])
    assert [len(record["logits"]), record["index"]] == [2, 0]

    test_reader = palm.reader.ClassifyReader(folder / "words.txt", 8, phase="predict")
    test_reader.load_data(folder / "texts.tsv", 4)
    pred_backbone = BOW(11, 8, phase="predict")
    test_reader.register_with(pred_backbone)
    trainer.build_predict_forward(pred_backbone, Head(2, 8, phase="predict"))
    joint = palm.MultiHeadTrainer([trainer], precision="fp32")
    joint.build_predict_forward()
    joint.merge_inference_readers([test_reader])
    alone = [record["logits"] for record in model.predict_file(folder / "texts.tsv", folder / "out")]
    together = [record["logits"] for record in joint.predict()["colour"]]
    torch.testing.assert_close(torch.tensor(together), torch.tensor(alone))
