"""`train` of the 2.x trainers: history, callbacks, signals, result."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

import palm.compat as palm
from helpers import tiny
from helpers.callbacks import at_step, timeless
from palm.report.page import write_report
from palm.report.run import read_run
from palm.train.callbacks import Event
from palm.train.loop import Step


def built(
    folder: Path, name: str, file: str, num_epochs: int | None, bert: palm.backbone.BERT
) -> palm.Trainer:
    """A trainer, and its reader as `reader`."""
    classes = {"cls": palm.reader.ClassifyReader, "match": palm.reader.MatchReader}
    reader = classes[name](str(folder / "vocab.txt"), 24, seed=3)
    reader.load_data(str(folder / file), 4, num_epochs=num_epochs)
    reader.register_with(bert)
    trainer = palm.Trainer(name, precision="fp32")
    head = palm.head.Classify(4, 32) if name == "cls" else palm.head.Match(2, 32)
    trainer.build_forward(bert, head)
    trainer.reader = reader  # type: ignore[attr-defined]
    return trainer


def encoder() -> palm.backbone.BERT:
    import torch

    torch.manual_seed(3)
    return palm.backbone.BERT.from_config(tiny.BACKBONE)


def single(folder: Path, num_epochs: int = 3) -> palm.Trainer:
    trainer = built(folder, "cls", "cls.tsv", num_epochs, encoder())
    trainer.build_backward(palm.optimizer.Adam(None, 1e-3))
    trainer.fit_reader(trainer.reader)  # type: ignore[attr-defined]
    return trainer


def losses(events: list[Event]) -> list[float]:
    return [event.loss.item() for event in events if isinstance(event, Step)]


def test_a_run_has_a_result_a_history_and_callbacks(folder: Path) -> None:
    heard: list[Event] = []
    trainer = single(folder)
    trainer.set_saver(folder / "out", 10)
    result = trainer.train(10, callbacks=[heard.append])
    bare: list[Event] = []
    single(folder).train(callbacks=[bare.append])
    assert losses(heard) == losses(bare)

    assert result.steps == {"cls": 30}
    assert result.paths == {"checkpoint": "ckpt.step30"}


def test_a_trainer_continues_with_its_history(folder: Path) -> None:
    whole = single(folder)
    whole.set_saver(folder / "whole", 10)
    expected = whole.train(3)

    (folder / "out").mkdir()
    first = single(folder)
    first.set_saver(folder / "out", 10)
    with pytest.raises(KeyboardInterrupt):
        first.train(3, callbacks=[at_step(24, KeyboardInterrupt())])
    assert timeless(folder / "out" / "history.jsonl")[-1]["reason"] == "interrupted"
    second = single(folder)
    second.set_saver(folder / "out", 10)
    second.load_ckpt(folder / "out" / "ckpt.step20")
    result = second.train(3)
    assert timeless(folder / "out" / "history.jsonl") == timeless(folder / "whole" / "history.jsonl")
    assert result.steps == expected.steps


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_cell_ends_with_a_partial_result_and_train_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    trainer = single(folder, num_epochs=1)
    trainer.set_saver(folder / "out", -1)
    result = trainer.train(callbacks=[at_step(3, signal.SIGINT)])
    assert (result.steps, result.is_interrupted) == ({"cls": 3}, True)
    assert "ckpt.step3" in caplog.text
    result = trainer.train()
    assert (result.steps, result.is_interrupted) == ({"cls": 10}, False)
    other = single(folder, num_epochs=1)
    other.load_ckpt(folder / "out/ckpt.step3")
    assert other.train().steps == {"cls": 10}


def test_the_report_has_the_settings_of_a_trainer(folder: Path) -> None:
    trainer = single(folder)
    trainer.set_saver(folder / "out", 10)
    trainer.train()
    run = read_run(folder / "out")
    assert not run.is_configured
    values = {title: {each.name: each.value for each in values} for title, values in run.sections.items()}
    assert list(values) == ["global", "task cls", "backbone"]
    expected = {
        "global": {
            "optimizer": "adam",
            "learning_rate": 1e-3,
            "lr_scheduler": "constant",
            "backbone": "bert",
        },
        "task cls": {"reader": "cls", "paradigm": "cls", "batch_size": 4, "max_seq_len": 24, "n_classes": 4},
        "backbone": tiny.BACKBONE,
    }
    for title, settings in expected.items():
        assert {name: values[title].get(name) for name in settings} == settings
    assert values["task cls"]["vocab_path"] == str(folder / "vocab.txt")
    text = write_report(folder / "out", predict=False).read_text(encoding="utf-8")
    assert "program that trained it" in text
    assert "palm train" not in text
