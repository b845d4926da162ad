"""Warnings and errors about settings, data and weights that would do something else than they say."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.messages import raises
from palm.backbone import BERT, RoBERTa
from palm.controller.controller import Controller
from palm.core.errors import ConfigError, StorageError
from palm.pretrained.families import write_hugging_face
from palm.pretrained.loading import load_pretrain


def warnings(caplog: pytest.LogCaptureFixture, config: dict[str, Any], reads_data: bool = False) -> list[str]:
    with caplog.at_level(logging.WARNING, "palm"):
        controller = Controller(config, argv=[])
        if reads_data:
            controller.training()
    return [record.getMessage() for record in caplog.records]


# Data


def test_capitals_for_a_vocabulary_without_are_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = (folder / "cls.tsv").read_text(encoding="utf-8").replace("anna", "Anna")
    (folder / "cls.tsv").write_text(text, encoding="utf-8")
    count = text.count("Anna")
    (line,) = warnings(caplog, tiny.config(folder, "cls"), reads_data=True)
    share = f"{count} of 40 ({100 * count / 40:.1f} %)"
    assert line.startswith(f"{folder / 'cls.tsv'}: {share} ")
    assert str(folder / "vocab.txt") in line
    assert line.endswith("do_lower_case: True")
    caplog.clear()
    assert warnings(caplog, tiny.config(folder, "cls", do_lower_case=True), reads_data=True) == []


def test_unknown_words_and_cut_rows_are_reported_with_their_share(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = ["label\ttext_a", *["0\tred qqq door"] * 10, *["1\tred"] * 30]
    (folder / "cls.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    unknown, cut = warnings(caplog, tiny.config(folder, "cls", max_seq_len=4), reads_data=True)
    assert "cls.tsv: 10 of 60 (16.7 %) tokens" in unknown
    assert "10 of 40 (25.0 %) rows" in cut
    assert "max_seq_len (now 4)" in cut


def test_findings_about_a_file_are_reported_again_where_its_rows_are_kept(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.config(folder, "cls", max_seq_len=4, data_cache=str(folder / "cache"))
    first = warnings(caplog, config, reads_data=True)
    caplog.clear()
    assert warnings(caplog, config, reads_data=True) == first
    assert len(first) == 1


def test_cut_questions_are_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tiny.config(folder, "mrc", max_seq_len=12, max_query_len=3, doc_stride=9)
    config["tasks"]["mrc"] |= {"max_query_len": 3, "doc_stride": 9}
    told = warnings(caplog, config, reads_data=True)
    assert any("40 of 40 (100.0 %) questions" in line and "max_query_len" in line for line in told)


# Weights


SIZES = tiny.sizes(32, 1, 4, vocab_size=40, max_position_embeddings=16)


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (BERT(**SIZES, type_vocab_size=1), "backbone: roberta"),
        (RoBERTa(**SIZES | {"num_attention_heads": 2}), "num_attention_heads: 4 "),
        (RoBERTa(**SIZES, hidden_act="relu"), "set hidden_act: gelu"),
    ],
    ids=["family", "heads", "activation"],
)
def test_weights_that_are_computed_otherwise_are_refused(tmp_path: Path, here: Any, words: str) -> None:
    there = RoBERTa(**SIZES)
    write_hugging_face(there.state_dict(), there, tmp_path)
    with raises(StorageError, str(tmp_path / "config.json"), words):
        load_pretrain(here, tmp_path)
    load_pretrain(RoBERTa(**SIZES), tmp_path)


def test_another_vocabulary_than_that_of_the_weights_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = folder / "weights"
    weights.mkdir()
    bert = BERT(**tiny.BACKBONE)
    write_hugging_face(bert.state_dict(), bert, weights)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    words[5], words[6] = words[6], words[5]
    (weights / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    controller = tiny.controller(folder, "cls")
    with caplog.at_level(logging.WARNING, "palm"):
        controller.load_pretrain(weights)
    (line,) = caplog.messages
    assert line.startswith(f"2 tokens of {folder / 'vocab.txt'} ")
    assert line.endswith(f"vocab_path: {weights / 'vocab.txt'}")


# Settings


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"eval_every_n_steps": 5}, ["dev_file"]),
        ({"cls.metrics": ["mcc"]}, ["'cls'", "dev_file"]),
        ({"cls.metrics": ["ece"]}, ["'cls'", "dev_file"]),
        ({"ema_decay": 0.9}, ["use_ema: True"]),
        ({"use_ema": True}, ["ema_decay"]),
        ({"keep_last_n": 2}, ["save_every_n_steps"]),
        ({"cls.pred_file": "nowhere.tsv"}, ["nowhere.tsv"]),
        ({"cls.pred_output_path": "x", "cls.pred_file": None}, ["'cls'", "pred_file"]),
        ({"cls.label_map": {"0": 0, "1": 1}}, ["names 2 labels", "n_classes", "'cls' is 4"]),
        ({"data_cache": "x", "use_data_cache": False}, ["use_data_cache"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_setting_without_effect_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], values: list[str]
) -> None:
    (line,) = warnings(caplog, tiny.config(folder, "cls", **settings))
    assert re.search(rf"\b{next(iter(settings)).removeprefix('cls.')} ", line)
    assert all(value in line for value in values)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("learning_rate", 5.0, "5e-4"),
        ("weight_decay", 1000.0, "0.01"),
        ("save_path", "$NOWHERE/out", "$NOWHERE"),
        ("save_path", "%NOWHERE%/out", "%NOWHERE%"),
        ("save_path", "D:\\me\\out", r"'D:\\me\\out'"),
        ("data_cache", "D:/me/out", "'D:'"),
        ("cls.pred_output_path", "“out”", "'“'"),
        ("cls.train_file", "cls.tsv, cls.tsv", "cls.tsv twice"),
    ],
)
def test_an_unlikely_value_is_reported(
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: float | str,
    words: str,
) -> None:
    monkeypatch.chdir(folder)
    more = {"cls.pred_file": "cls.tsv"} if name == "cls.pred_output_path" else {}
    (line,) = warnings(caplog, tiny.config(folder, "cls", **{name: value}, **more))
    assert f"{name.removeprefix('cls.')} " in line
    assert words in line


def test_a_value_of_a_task_file_that_the_global_file_overrides_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny.config(folder, "cls", max_seq_len=32)
    config["tasks"]["cls"]["max_seq_len"] = 16
    (line,) = warnings(caplog, config)
    assert "max_seq_len = 32 overrides 16 (config['tasks']['cls'])" in line
    assert "cls.max_seq_len" in line
    caplog.clear()
    assert warnings(caplog, {**config, "cls.max_seq_len": 16}) == []  # written for one task


def test_a_seed_that_contradicts_the_seed_of_the_run_is_refused(folder: Path) -> None:
    with raises(ConfigError, "config: seed 3 contradicts random_seed 1"):
        Controller(tiny.config(folder, "cls", seed=3, random_seed=1), argv=[])
    run = Controller(tiny.config(folder, "cls", seed=1, random_seed=1), argv=[]).run
    assert (run.settings.random_seed, run.tasks[0].settings.seed) == (1, None)


def test_a_sample_of_more_rows_than_there_are_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = warnings(caplog, tiny.config(folder, "cls", **{"cls.sample": 41}))
    assert "sample is 41" in line
    assert "40 rows" in line
    caplog.clear()
    assert warnings(caplog, tiny.config(folder, "cls", **{"cls.sample": 40})) == []


@pytest.mark.parametrize(("far", "told"), [("9999", "9999"), ("-999", "-999"), ("90", "")])
def test_a_number_far_from_all_others_is_reported(
    folder: Path, caplog: pytest.LogCaptureFixture, far: str, told: str
) -> None:
    rows = ["label\ttext_a", *(f"{number}\ta {word} door" for number, word in enumerate("abcdefgh"))]
    (folder / "cls.tsv").write_text("\n".join([*rows, f"{far}\tred"]) + "\n", encoding="utf-8")
    config = tiny.config(folder, "cls")
    own = {"reader": "cls", "paradigm": "regression", "train_file": str(folder / "cls.tsv")}
    config["tasks"]["cls"] = own
    found = [line for line in warnings(caplog, config, reads_data=True) if "median" in line]
    assert [f"the label {told} " in line and " as far from the median " in line for line in found] == [
        True
    ] * bool(told)


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({"reader": "cls", "paradigm": "cls", "n_classes": 4}, 2),
        ({"reader": "cls", "paradigm": "regression"}, 2.0),
        ({"reader": "multi_label", "paradigm": "multi_label", "n_classes": 4}, [0, 0, 1, 0]),
    ],
)
def test_training_rows_of_one_label_are_reported(
    folder: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], label: object
) -> None:
    config = tiny.config(folder, "cls")
    rows = ["label\ttext_a", *["2\tred door", "2\tblue boat"] * 4]
    (folder / "cls.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    config["tasks"]["cls"] = {"train_file": str(folder / "cls.tsv"), **settings}
    (line,) = [each for each in warnings(caplog, config, reads_data=True) if "label" in each]
    assert f"all 8 training rows have the label {label}" in line
    (folder / "cls.tsv").write_text("\n".join([*rows, "3\tred coat"]) + "\n", encoding="utf-8")
    caplog.clear()
    assert [each for each in warnings(caplog, config, reads_data=True) if "label" in each] == []


def test_pairs_of_one_label_are_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text_a": f"a {thing}", "text_b": "the boat", "label": 1} for thing in tiny.THINGS]
    (folder / "t.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), "utf-8")
    for kind, how in (
        ("match", {}),
        ("match", {"label_type": "real", "paradigm": "regression"}),
        ("embedding", {"label_type": "real", "learning_strategy": "similarity"}),
    ):
        config = tiny.config(folder, "cls")
        task = {"reader": kind, "paradigm": kind, "train_file": str(folder / "t.jsonl")}
        config["tasks"]["cls"] = task | how
        caplog.clear()
        (line,) = [each for each in warnings(caplog, config, reads_data=True) if "label 1" in each]
        assert "all 6 training rows" in line


@pytest.mark.parametrize(
    ("task", "own", "name"),
    [("mrc", {"for_cn": True}, "for_cn"), ("cls", {"paradigm": "regression"}, "n_classes ")],
)
def test_a_setting_that_a_task_does_not_use_is_accepted_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, task: str, own: dict[str, Any], name: str
) -> None:
    config = tiny.config(folder, "cls", "mrc", **{"cls.for_cn": True})
    config["tasks"][task] |= own
    (line,) = warnings(caplog, config)
    assert name in line
    assert f"'{task}'" in line


def test_pairs_whose_number_or_negatives_are_not_used_are_reported(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "".join(f'{{"text_a": "red {word}", "text_b": "blue {word}", "label": 0.5}}\n' for word in "abcd")
    (folder / "pairs.jsonl").write_text(rows, encoding="utf-8")
    config = tiny.config(folder, "cls", batch_size=1)
    task = {"reader": "embedding", "paradigm": "embedding", "train_file": str(folder / "pairs.jsonl")}
    config["tasks"]["cls"] = {**task, "label_type": "real"}
    first, second = warnings(caplog, config)
    assert all(part in first for part in ("label_type", "'cls'", "learning_strategy: similarity"))
    assert "batch_size" in second
    config["tasks"]["cls"]["learning_strategy"] = "similarity"
    caplog.clear()
    assert warnings(caplog, config) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"early_stopping_patience": 2}, "early_stopping_patience needs"),
        ({"early_stopping_patience": 2, "eval_every_epoch": False, "cls.dev_file": "cls.tsv"}, "needs"),
    ],
)
def test_what_cannot_be_done_without_evaluation_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(folder)
    with raises(ConfigError, words):
        tiny.controller(folder, "cls", **settings)
