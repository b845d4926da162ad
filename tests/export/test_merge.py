"""The mean of models: exact where it must be, refused where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import palm
from helpers import tiny
from palm.cli import main
from palm.core.io import verify
from palm.core.saved import load_tensors
from palm.export.merge import mean_of

TEXTS = ["anna has a old red door .", "bert has a new blue boat ."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a task, the first with checkpoints and models on the way, and beside a second task."""
    folder = tiny.write_files(tmp_path_factory.mktemp("merge"))
    common: dict[str, Any] = {"num_epochs": 1, "overwrite": False}
    saving = {"save_every_n_steps": 5, "save_infermodel_every_n_steps": 4}
    one = tiny.config(folder, "cls", "match", **common, **saving, save_path=str(folder / "one"))
    palm.Controller(one, argv=[]).train()
    other = tiny.config(folder, "cls", **common, random_seed=2, save_path=str(folder / "other"))
    palm.Controller(other, argv=[]).train()
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "model.safetensors")


def models(folder: Path) -> list[Path]:
    return [folder / run / "cls" / "infer_model" for run in ("one", "other")]


def test_the_mean_of_two_seeds_is_computed_in_float64_and_rounded_once(folder: Path, tmp_path: Path) -> None:
    out = palm.merge(models(folder), tmp_path / "mean", [3, 1])
    one, other, mean = (weights(path) for path in (*models(folder), out))
    assert mean.keys() == one.keys()
    for name, value in mean.items():
        assert torch.equal(value, (0.75 * one[name].double() + 0.25 * other[name].double()).float())
    assert set(verify(out)) >= {"model.safetensors", "config.json", "README.md"}
    assert [set(record) for record in palm.load_model(out).predict(TEXTS)] == [
        set(record) for record in palm.load_model(models(folder)[0]).predict(TEXTS)
    ]
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"| {models(folder)[0]} | 0.75 |" in card
    assert f"| {models(folder)[1]} | 0.25 |" in card


@pytest.mark.parametrize(("shares", "kept"), [([1, 0], 0), ([0, 1], 1)])
def test_a_model_with_all_of_the_weight_keeps_its_bits(
    folder: Path, tmp_path: Path, shares: list[float], kept: int
) -> None:
    out = palm.merge(models(folder), tmp_path / "mean", shares)
    assert (out / "model.safetensors").read_bytes() == (
        models(folder)[kept] / "model.safetensors"
    ).read_bytes()


def test_merging_one_model_returns_its_bits(folder: Path, tmp_path: Path) -> None:
    out = palm.merge(models(folder)[:1], tmp_path / "same")
    assert (out / "model.safetensors").read_bytes() == (models(folder)[0] / "model.safetensors").read_bytes()


def test_checkpoints_and_models_on_the_way_have_a_mean(folder: Path, tmp_path: Path) -> None:
    steps = [str(folder / "one" / f"step_{number}") for number in (15, 20)]
    assert main(["merge", *steps, "--task", "match", "--output", str(tmp_path / "late")]) == 0
    first, second = (load_tensors(Path(step) / "model.safetensors") for step in steps)
    name = "backbone.layers.0.attention.value.weight"
    name = name if name in first else next(name for name in first if name.startswith("backbone.layers.0"))
    expected = ((first[name].double() + second[name].double()) / 2).float()
    assert torch.equal(weights(tmp_path / "late")[name], expected)
    assert palm.load_model(tmp_path / "late").task == "match"
    on_the_way = [folder / "one" / "cls" / f"infer_model.step{number}" for number in (4, 8)]
    assert palm.load_model(palm.merge(on_the_way, tmp_path / "way")).task == "cls"


def test_what_is_not_alike_is_reported(folder: Path, tmp_path: Path) -> None:
    one = models(folder)[0]
    with pytest.raises(palm.ConfigError, match=r"task .*'cls' .*'match'; paradigm .*'cls' .*'match'"):
        palm.merge([one, folder / "one" / "match" / "infer_model"], tmp_path / "x")
    step = folder / "one" / "step_20"
    with pytest.raises(palm.StorageError, match=r"cls, match; .*--task"):
        palm.merge([step], tmp_path / "x")
    with pytest.raises(palm.ConfigError, match=r"weights: 1 .*2 models"):
        palm.merge(models(folder), tmp_path / "x", [1])
    with pytest.raises(palm.ConfigError, match=r"weights.*0 or more"):
        palm.merge(models(folder), tmp_path / "x", [0, 0])
    assert not (tmp_path / "x").exists()


def test_an_earlier_mean_is_replaced_only_when_asked(folder: Path, tmp_path: Path) -> None:
    words = ["merge", *map(str, models(folder)), "--output", str(tmp_path / "mean")]
    assert [main(words), main(words), main([*words, "--overwrite"])] == [0, 2, 0]
    (tmp_path / "mean" / "thesis.tex").write_text("mine", encoding="utf-8")
    assert main([*words, "--overwrite"]) == 2


def test_counters_are_those_of_the_first() -> None:
    one = {"a": torch.tensor([1.0]), "seen": torch.tensor(3)}
    other = {"a": torch.tensor([2.0]), "seen": torch.tensor(7)}
    assert mean_of([one, other], [0.5, 0.5]) == {"a": torch.tensor([1.5]), "seen": torch.tensor(3)}
