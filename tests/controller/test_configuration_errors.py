"""Errors in a configuration, a program or a directory: place, cause and remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from helpers import tiny
from palm.controller.controller import Controller
from palm.core.errors import PalmError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tiny.write_files(tmp_path)


def told(config: dict[str, Any], *arguments: str, **kwargs: Any) -> list[str]:
    """The report on a configuration, which is written to files so that every line has a place."""
    tiny.write_config(Path(), config)
    with pytest.raises(PalmError) as caught:
        Controller("config.yaml", argv=list(arguments), **kwargs)
    return str(caught.value).splitlines()


def test_an_unknown_reader_is_the_only_complaint(folder: Path) -> None:
    config = tiny.config(folder, "cls")
    config["tasks"]["cls"]["reader"] = "clss"
    (line,) = told(config)
    assert line.startswith("cls.yaml:3: reader: ")
    assert "'clss'" in line
    assert line.endswith("'cls'?")


def test_the_owner_of_a_setting_is_named(folder: Path) -> None:
    config = tiny.config(folder, "cls", doc_stride=8, mixing_temperature=2)
    config["tasks"]["cls"]["max_query_len"] = 8
    expected = [
        ("config.yaml:15: doc_stride ", "reader mrc", "reader cls"),
        ("config.yaml:16: mixing_temperature ", "mixing temperature", "mixing mix_ratio"),
        ("cls.yaml:6: max_query_len ", "reader mrc", "reader cls"),
    ]
    for line, (place, owner, present) in zip(told(config), expected, strict=True):
        assert line.startswith(place)
        assert line.index(owner) < line.index(present)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"learning_rate": -1}, r"config\.yaml:10: learning_rate: -1\.0\b.* above 0"),
        ({"freeze": 9}, r"config\.yaml:15: freeze\b.*\b2 layers.*\b9\b"),
        ({"random_seed": 10**30}, r"config\.yaml:15: random_seed\b.*\b64 bits"),
        ({"mix_ratio": [float("nan")]}, r"config\.yaml:15: mix_ratio\b.*\[nan\]"),
        ({"keep_last_n": 0}, r"config\.yaml:15: keep_last_n\b.*\b1 or more.*\b0\b"),
        ({"dropout_prob": 2}, r"config\.yaml:15: dropout_prob\b.*\b2\.0\b.*\b0 to below 1"),
        ({"batch_size": 0}, r"config\.yaml:7: batch_size\b.*\b0\b.*\b1 or more"),
        ({"max_seq_len": 2}, r"config\.yaml:6: max_seq_len\b.* 3\b.*\b2\b"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_refused_value_has_its_place(folder: Path, change: dict[str, Any], expected: str) -> None:
    (line,) = told(tiny.config(folder, "cls", **change))
    assert re.match(expected, line), line


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (
            {"hidden_size": 0, "hidden_dropout_prob": 1.5},
            [r"backbone\.json:2: hidden_size\b.*\b0\b.*1 or more", r"backbone\.json:10: .*_prob\b.*\b1\.5\b"],
        ),
        ({"num_attention_heads": 5}, [r"backbone\.json:4: num_attention_heads\b.*\b5\b.*hidden_size 32\b"]),
    ],
    ids=["out of range", "not of the width"],
)
def test_a_value_of_the_backbones_file_has_its_place_too(
    folder: Path, wrong: dict[str, Any], expected: list[str]
) -> None:
    content = json.dumps(tiny.BACKBONE | wrong, indent=0)
    (folder / "backbone.json").write_text(content, encoding="utf-8")
    lines = told(tiny.config(folder, "cls"))
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert re.match(pattern, line), line


def test_a_module_of_the_users_that_fails_is_named_with_its_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mine_broken.py").write_text("def f(:\n", encoding="utf-8")
    (folder / "mine_failing.py").write_text("x = 1\ny = 1 / 0\n", encoding="utf-8")
    (folder / "mine_other.py").write_text("class Strange: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    expected = {
        "mine_broken.R": "SyntaxError: invalid syntax (mine_broken.py, line 1)",
        "mine_failing.R": "mine_failing.py:2: division by zero",
        "mine_other.Strange": "'mine_other.Strange'",
    }
    for path, words in expected.items():
        config = tiny.config(folder, "cls")
        config["tasks"]["cls"]["reader"] = path
        (line,) = told(config)
        assert line.startswith("cls.yaml:3: reader: ")
        assert words in line


def test_palm_train_finds_components_beside_the_configuration(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from palm.cli import main

    (folder / "beside_config.py").write_text(
        "import palm\nclass Own(palm.reader.ClassifyReader):\n    pass\n", encoding="utf-8"
    )
    here = tmp_path_factory.mktemp("here")
    (here / "beside_work.py").write_text(
        "import palm\nclass Own(palm.paradigm.Classify):\n    pass\n", encoding="utf-8"
    )
    config = tiny.config(folder, "cls", num_epochs=0.1)
    config["tasks"]["cls"] |= {"reader": "beside_config.Own", "paradigm": "beside_work.Own"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.chdir(here)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert main(["train", str(folder / "config.yaml")]) == 0
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("compile", "graphs", "leave it out"),
        ("gradient_exchange", "bf16", "leave it out"),
        ("cagrad_radius", 0.5, "leave it out"),
        ("gradnorm_alpha", 1.5, "leave it out"),
        ("dwa_temperature", 2.0, "leave it out"),
        ("lr_cut_fraction", 0.1, "leave it out"),
        ("mixing_decay", 0.5, "mixing: temperature"),
        ("loss_scale", "classes", "loss_weight"),
        ("balance", "cagrad", "uncertainty"),
        ("r_drop", 1.0, "label_smoothing"),
    ],
)
def test_a_removed_setting_is_refused_with_its_place_and_a_remedy(
    folder: Path, name: str, value: Any, remedy: str
) -> None:
    (line,) = told({**tiny.config(folder, "cls", "match"), name: value})
    assert re.match(rf"config\.yaml:\d+: .*'({name}|{value})'.*{remedy}", line)
