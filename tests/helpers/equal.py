"""Runs and weights that should be equal bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from palm.train.checkpoint import load_checkpoint, optimizer_tensors, save_checkpoint
from palm.train.loop import Step, Training

Tensors = Mapping[str, Tensor]
Made = list[tuple[str, float, bool]]


def differing(one: Tensors | nn.Module, other: Tensors | nn.Module) -> list[str]:
    """Return the names that only one has, or whose tensors differ in a bit."""
    one, other = (each.state_dict() if isinstance(each, nn.Module) else each for each in (one, other))
    common = one.keys() & other.keys()
    return sorted([*(one.keys() ^ other.keys()), *(n for n in common if not torch.equal(one[n], other[n]))])


def tensors_in(folder: Path) -> dict[str, Tensor]:
    """All tensors in the files below a folder, by path and name."""
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.safetensors")}
    return {
        f"{place}: {name}": value for place, path in files.items() for name, value in load_file(path).items()
    }


def state_of(training: Training) -> dict[str, Tensor]:
    """Weights, their averages, and the moments and counters of the optimizer."""
    averages = training.ema.average if training.ema else {}
    moments = optimizer_tensors(training.optimizer, dict(training.model.named_parameters()))
    return {**training.model.state_dict(), **moments, **{f"{n} (average)": v for n, v in averages.items()}}


def made(step: Step) -> Made:
    """The tasks of a step, their losses, and whether they are finished with it."""
    return [(part.task.name, part.loss.item(), part.finished) for part in step.parts]


def assert_resumes(make: Callable[[], Training], checkpoint: Path, at: int) -> tuple[Training, list[Made]]:
    """A run from the checkpoint of a step ends as the run that wrote it, which is returned with its steps."""
    whole, steps = make(), []
    for step in whole.steps():
        steps.append(made(step))
        if step.number == at:
            save_checkpoint(whole, checkpoint)
    resumed = make()
    load_checkpoint(resumed, checkpoint)
    assert resumed.step == at
    assert [made(step) for step in resumed.steps()] == steps[at:] != []
    assert differing(state_of(resumed), state_of(whole)) == []
    assert resumed.state_dict() == whole.state_dict()
    return whole, steps
