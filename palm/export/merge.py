"""Merging of several models of one task by averaging their weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from palm.core.component import path_problems, raise_any, type_problems
from palm.core.errors import ConfigError, StorageError, changes, shortened
from palm.core.io import MANIFEST, check_target, checksum
from palm.core.logging import logger, show_on_console
from palm.core.saved import load_into, weights_under
from palm.export.sources import parts_of
from palm.predict.inference import InferenceModel
from palm.predict.loading import models_in
from palm.train.model_paths import STATE, chosen_model

MOST_DIFFERENCES = 4
"""Maximum differences in a message."""

ONLY_TRAINING = {"hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_prob", "initializer_range"}
"""Settings of encoders and heads that do not affect what a trained model computes."""


def merge(
    models: Sequence[str | Path],
    output: str | Path,
    weights: Sequence[float] | None = None,
    *,
    task: str | None = None,
    trust: str | Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Save the mean of several models of one task, from checkpoints of a run or from runs with other seeds.

    Tensors are averaged in float64. If one model has all of the weight, its values do not change.

    Args:
        models: saved models, as for `palm.load_model`, or checkpoints; both may have several tasks.
        output: a new folder for the saved model; its card lists the merged models.
        weights: one for each model, which are divided by their sum; None for equal weights.
        task: the task to merge; required if there are several.
        trust: as for `palm.load_model`.
        overwrite: replace a folder that palm wrote.

    Raises:
        ConfigError: the number of weights is wrong, or they are negative or all 0.
        StorageError: a model is missing, damaged, or differs in structure from the first.
    """
    show_on_console()
    if isinstance(models, str | Path) or not models:
        raise ConfigError(f"models should be a list of models, not {models!r}")
    raise_any(problem for model in models for problem in path_problems(model=model))
    raise_any(type_problems((list, tuple, NoneType), "a list of numbers", weights=weights))
    folder = Path(output)
    folders = [path if (path / STATE).is_file() else chosen_model(path) for path in map(Path, models)]
    shares = normalized_shares(weights, len(folders))
    check_target(folder, overwrite, folders)
    first, *others = parents = [_loaded(path, task, trust) for path in folders]
    for path, other in zip(folders[1:], others, strict=True):
        raise_any(_differences(folders[0], first, path, other))
    mean = mean_of([model.weights() for model in parents], shares)
    load_into(first.backbone, weights_under("backbone", mean), folder)
    load_into(first.head, weights_under("paradigm", mean), folder)
    merged = [
        {"model": str(name), "share": share, "sha256": checksum(path / MANIFEST)}
        for name, path, share in zip(models, folders, shares, strict=True)
    ]
    first.save(folder, training={"merged": merged}, overwrite=overwrite)
    logger.info("%s: mean of %d models saved at %s", first.task, len(folders), folder)
    return folder


def normalized_shares(shares: Sequence[float] | None, count: int) -> list[float]:
    """Return weights that add up to 1; equal ones for None.

    Raises:
        ConfigError: the number of weights is wrong, or they are negative or all 0.
    """
    if shares is None:
        return [1 / count] * count
    if len(shares) != count:
        raise ConfigError(f"weights: {len(shares)} given for {count} models; give one for each, or none")
    if not all(0 <= share < math.inf for share in shares) or not sum(shares) > 0:
        raise ConfigError(f"weights should be 0 or more, and at least one above 0, not {list(shares)}")
    return [share / sum(shares) for share in shares]


def mean_of(models: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Average every tensor in float64; a model whose share is 1 is returned unchanged.

    Integer tensors, such as counters, are not averaged but taken from the first model whose share is not 0.
    """
    taken = [(model, share) for model, share in zip(models, shares, strict=True) if share]
    mean = dict(taken[0][0])
    if len(taken) > 1:
        for name, value in mean.items():
            if value.is_floating_point():
                total = torch.stack([model[name].double() * share for model, share in taken]).sum(0)
                mean[name] = total.to(value.dtype)
    return mean


def _loaded(folder: Path, task: str | None, trust: str | Sequence[str]) -> InferenceModel:
    models = {model.task: model for model in models_in(folder, trust)}
    chosen = list(models) if task is None else [task]
    if len(chosen) > 1 or chosen[0] not in models:
        raise StorageError(f"{folder} has the tasks {', '.join(models)}; name one of them with task (--task)")
    return models[chosen[0]]


def _differences(one: Path, first: InferenceModel, other: Path, second: InferenceModel) -> Iterator[str]:
    """Yield one line that lists the differences between two models, if there are any."""
    differences = changes(_facts(first), _facts(second), 1)
    if lines := [f"{path[0]} is {old!r} and {new!r}" for path, old, new in differences]:
        yield f"{one} and {other} cannot be merged: {'; '.join(shortened(lines, MOST_DIFFERENCES))}"


def _facts(model: InferenceModel) -> dict[str, Any]:
    """Return everything that determines what a model computes, except weights; files by their content."""
    facts: dict[str, Any] = {"task": model.task}
    for kind, part in parts_of(model).items():
        facts[kind] = part["name"]
        for name, value in part["settings"].items():
            if name not in ONLY_TRAINING:
                is_file = isinstance(value, Path)
                facts[name] = f"a file with SHA-256 {checksum(value)[:16]}…" if is_file else value
    return facts
