"""Warnings and errors about settings, data and weights that would do something else than they say."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from palm.backbone import BERT, RoBERTa
from palm.controller import Controller
from palm.core.errors import ConfigError, StorageError
from palm.pretrained import load_pretrain
from palm.pretrained.writing import write_hugging_face


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_files(tmp_path)


def warnings(caplog: pytest.LogCaptureFixture, config: dict[str, Any], reads_data: bool = False) -> list[str]:
    with caplog.at_level(logging.WARNING, "palm"):
        controller = Controller(config, argv=[])
        if reads_data:
            controller.training()
    return [record.getMessage() for record in caplog.records]


# Data


def test_capitals_for_a_vocabulary_without_are_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (folder / "cls.tsv").read_text(encoding="utf-8").replace("anna", "Anna")
    (folder / "cls.tsv").write_text(text, encoding="utf-8")
    count = text.count("Anna")
    (line,) = warnings(caplog, tiny.config(folder, "cls"), reads_data=True)
    share = f"{count} of 40 ({100 * count / 40:.1f} %)"
    vocabulary = f"{folder / 'vocab.txt'} has words in lower case only"
    assert line == (
        f"{folder / 'cls.tsv'}: {share} texts have capital letters, and the vocabulary {vocabulary}; "
        "set do_lower_case: True"
    )
    caplog.clear()
    assert warnings(caplog, tiny.config(folder, "cls", do_lower_case=True), reads_data=True) == []


def test_unknown_words_and_cut_rows_are_told_by_their_share(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ["label\ttext_a", *["0\tred qqq door"] * 10, *["1\tred"] * 30]
    (folder / "cls.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    unknown, cut = warnings(caplog, tiny.config(folder, "cls", max_seq_len=4), reads_data=True)
    assert "cls.tsv: 10 of 60 (16.7 %) tokens are unknown to the vocabulary" in unknown
    assert "10 of 40 (25.0 %) rows are too long and lose their end; raise max_seq_len (now 4)" in cut


def test_what_is_told_of_a_file_is_told_again_where_its_rows_are_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.config(folder, "cls", max_seq_len=4, data_cache=str(folder / "cache"))
    first = warnings(caplog, config, reads_data=True)
    caplog.clear()
    assert warnings(caplog, config, reads_data=True) == first
    assert len(first) == 1


def test_cut_questions_and_windows_without_overlap_are_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.config(folder, "mrc", max_seq_len=12, max_query_len=3, doc_stride=9)
    config["tasks"]["mrc"] |= {"max_query_len": 3, "doc_stride": 9}
    told = warnings(caplog, config, reads_data=True)
    cut = "40 of 40 (100.0 %) questions are too long and lose their end; raise max_query_len"
    assert any(cut in line for line in told)
    assert any("doc_stride is above the window of 6 tokens" in line for line in told)


# Weights


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 16,
}


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (
            BERT(**SIZES, type_vocab_size=1),
            "roberta there, bert here; set backbone: roberta, or auto",
        ),
        (RoBERTa(**SIZES | {"num_attention_heads": 2}), "num_attention_heads: 4 there, 2 here"),
        (RoBERTa(**SIZES, hidden_act="relu"), "hidden_act: 'gelu' there, 'relu' here; set hidden_act: gelu"),
    ],
    ids=["family", "heads", "activation"],
)
def test_weights_that_are_computed_otherwise_are_refused(tmp_path: Path, here: Any, words: str) -> None:
    there = RoBERTa(**SIZES)
    write_hugging_face(there.state_dict(), there, tmp_path)
    with pytest.raises(StorageError) as caught:
        load_pretrain(here, tmp_path)
    assert f"are not those of this encoder, says {tmp_path / 'config.json'}:" in str(caught.value)
    assert words in str(caught.value)
    load_pretrain(RoBERTa(**SIZES), tmp_path)


def test_another_vocabulary_than_that_of_the_weights_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = folder / "weights"
    weights.mkdir()
    bert = BERT(**tiny.BACKBONE)
    write_hugging_face(bert.state_dict(), bert, weights)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words[5], words[6] = words[6], words[5]
    (weights / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    controller = Controller(tiny.config(folder, "cls"), argv=[])
    with caplog.at_level(logging.WARNING, "palm"):
        controller.load_pretrain(weights)
    (line,) = caplog.messages
    assert line.startswith(f"2 tokens of {folder / 'vocab.txt'} have another id in {weights / 'vocab.txt'}")
    assert line.endswith(f"set vocab_path: {weights / 'vocab.txt'}")


# Settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"eval_every_n_steps": 5}, "eval_every_n_steps has no effect: no task has a dev_file"),
        ({"cls.metrics": ["mcc"]}, "metrics has no effect: task 'cls' has no dev_file"),
        ({"ema_decay": 0.9}, "ema_decay has no effect: use_ema is off; set use_ema: True"),
        ({"keep_last_n": 2}, "keep_last_n has no effect: nothing is saved on the way"),
        ({"early_stopping_by": "all"}, "early_stopping_by has no effect: early_stopping_patience is off"),
        ({"cls.pred_file": "nowhere.tsv"}, "pred_file is not there"),
        ({"cls.label_map": {"0": 0, "1": 1}}, "names 2 labels, n_classes of task 'cls' is 4"),
        ({"data_cache": "x", "use_data_cache": False}, "data_cache has no effect: use_data_cache is off"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_without_effect_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: str
) -> None:
    (line,) = warnings(caplog, tiny.config(folder, "cls", **settings))
    assert words in line


def test_for_cn_is_accepted_with_a_warning_where_it_has_no_effect(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.config(folder, "cls", "mrc")
    for settings in config["tasks"].values():
        settings["for_cn"] = True
    (line,) = warnings(caplog, config)
    assert "for_cn" in line
    assert "'mrc'" in line


def test_n_classes_of_a_regression_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny.config(folder, "cls")
    config["tasks"]["cls"]["paradigm"] = "regression"
    (line,) = warnings(caplog, config)
    assert "n_classes has no effect: labels of task 'cls' are real numbers; leave it out" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mixing": "dev_score"}, "mixing: dev_score follows dev scores; give a task a dev_file"),
        ({"early_stopping_patience": 2}, "early_stopping_patience needs a task with a dev_file"),
        (
            {"early_stopping_patience": 2, "eval_every_epoch": False, "cls.dev_file": "cls.tsv"},
            "early_stopping_patience waits for evaluations, and there is none before the end",
        ),
    ],
)
def test_what_cannot_be_done_without_evaluation_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError) as caught:
        Controller(tiny.config(folder, "cls", **settings), argv=[])
    assert words in str(caught.value)
