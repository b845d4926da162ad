"""The command `palm evaluate`, and evaluation by Python's trainers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import palm.compat as palm
from helpers import tiny
from palm.cli import main
from palm.core.errors import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained tasks, of which one has dev data."""
    folder = tiny.write_files(tmp_path_factory.mktemp("run"))
    config = tiny.config(folder, "cls", "match", num_epochs=1)
    config["tasks"]["cls"]["dev_file"] = str(folder / "cls.tsv")
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    palm.Controller(folder / "config.yaml", argv=[]).train()
    return folder


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_tasks_with_dev_data_are_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = palm.load_model(folder / "out" / "cls" / "infer_model")
    expected = model.evaluate(folder / "cls.tsv")
    assert told(capsys, "evaluate", folder / "config.yaml") == {"cls": expected}
    more = ["--task", "match", "--match.dev_file", folder / "match.tsv", "--match.metrics", "mcc"]
    assert list(told(capsys, "evaluate", folder / "config.yaml", *more)["match"]) == ["mcc"]


def test_a_saved_model_is_scored_without_a_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", folder / "out" / "cls" / "infer_model", "--input", folder / "cls.tsv"]
    scores = told(capsys, "evaluate", *model, "--metric", "accuracy", "--metric", "mcc")
    assert list(scores) == ["accuracy", "mcc"]
    assert told(capsys, "evaluate", *model)["accuracy"] == scores["accuracy"]


def test_a_saved_model_and_a_configuration_are_computed_where_the_user_says(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = folder / "out" / "cls" / "infer_model"
    model = ["--model", saved, "--input", folder / "cls.tsv"]
    assert told(capsys, "evaluate", *model, "--device", "cpu") == told(capsys, "evaluate", *model)
    assert list(told(capsys, "evaluate", folder / "config.yaml", "--device", "cpu")) == ["cls"]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.mps.is_available", lambda: True)
    for words in (["evaluate", *model], ["predict", *model, "--output", folder / "o"]):
        assert main([*map(str, words), "--device", "cuda"]) == 2
        assert "no GPU is visible (palm supports CUDA and ROCm, not mps)" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="should be one of auto, cpu, cuda"):
        palm.load_model(saved, device="mps")  # type: ignore[arg-type]
    assert palm.load_model(saved, device="cpu").device.type == "cpu"


def trainer_of(folder: Path, name: str, backbone: palm.backbone.BERT) -> tuple[palm.Trainer, Any]:
    reader = palm.reader.ClassifyReader(folder / "vocab.txt", 24, seed=1)
    reader.load_data(folder / "cls.tsv", 8, num_epochs=2)
    reader.register_with(backbone)
    trainer = palm.Trainer(name)
    trainer.build_forward(backbone, palm.head.Classify(4, 32))
    return trainer, reader


def test_a_look_at_predictions_does_not_disturb_a_trainer(folder: Path) -> None:
    losses = []
    for looks in (False, True):
        palm.reader.ClassifyReader(folder / "vocab.txt", 24, seed=1)  # decides how the parts start
        trainer, reader = trainer_of(folder, "cls", palm.backbone.BERT.from_config(tiny.BACKBONE))
        trainer.build_backward(palm.optimizer.Adam(None, 1e-3), use_ema=True, ema_decay=0.9)
        batches = trainer.fit_reader(reader)
        encoder = palm.backbone.BERT.from_config(tiny.BACKBONE, phase="predict")
        trainer.build_predict_forward(encoder, palm.head.Classify(4, 32, phase="predict"))
        shown = palm.reader.ClassifyReader(folder / "vocab.txt", 24, phase="predict")
        shown.load_data(folder / "cls.tsv", 8)
        shown.register_with(encoder)
        trainer.fit_reader(shown, phase="predict")
        losses.append([])
        for batch in batches:
            losses[-1].append(trainer.train_one_step(batch)["cls.loss"].item())
            if looks:
                assert len(trainer.predict()) == 40
    assert losses[0] == losses[1]
    trainer.save(folder / "saved", save_type="predict")  # of the averages, which predicted as well
    saved = palm.load_model(folder / "saved").predict_file(folder / "cls.tsv", folder / "answers")
    assert list(saved) == trainer.predict()
