"""The files that a run writes: their sizes, existing ones, and free disk space."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from palm.check.planning import RunPlan
from palm.check.problems import Problem
from palm.controller.settings import RunSettings
from palm.core.differences import shortened
from palm.core.files.atomic_dir import foreign_files
from palm.train.history import HISTORY_FILE
from palm.train.loop import Training
from palm.train.model_paths import BEST, BEST_OF_RUN, LAST, ON_THE_WAY
from palm.train.run_directory import RunDirectory
from palm.train.run_names import CONFIGURATION, RECORD


@dataclass(frozen=True)
class Place:
    """A file or folder that the run writes.

    Args:
        path: relative to `save_path`; `*` stands for a step.
        when: when it is written.
        bytes: approximate size of all copies that are kept.
        exists: True if it exists already.
        written: bytes written in the whole run, including deleted copies; None if that depends on how often
            a dev score is the best so far.
    """

    path: str
    when: str
    bytes: int
    exists: bool
    written: int | None


@dataclass(frozen=True)
class Saving:
    """All files that the run writes.

    Args:
        save_path: the folder.
        places: the files and folders in it.
        bytes: approximate total size.
        free_bytes: free space on the disk.
        there: existing checkpoints and models of earlier runs.
    """

    save_path: str
    places: Sequence[Place]
    bytes: int
    free_bytes: int
    there: Sequence[str]


def saving_of(
    training: Training,
    plan: RunPlan,
    settings: RunSettings,
    directory: RunDirectory,
    chosen: Mapping[Path, str],
) -> Saving:
    """List the files that a run writes, including records of `chosen` rows, without writing anything."""
    folder = settings.save_path
    places = [
        Place(path, when, size, next(folder.glob(path), None) is not None, written)
        for path, when, size, written in _places(training, plan, settings)
    ]
    when = "at the start; prediction and evaluation find their rows there"
    places += [Place(path.name, when, len(text), path.exists(), len(text)) for path, text in chosen.items()]
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    total = sum(place.bytes for place in places)
    free = shutil.disk_usage(existing).free
    return Saving(str(folder), places, total, free, directory.results())


def saving_problems(saving: Saving, directory: RunDirectory) -> Iterator[Problem]:
    """Yield the reasons why the run could not write its files."""
    if (refused := directory.refusal()) is not None:
        message, _, remedy = refused.partition(". ")
        yield Problem("error", "save_path", "", message, remedy)
    elif saving.there and directory.overwrite:
        names = ", ".join(shortened(saving.there, 3))
        yield Problem("note", "save_path", "", f"{saving.save_path}: {names} would be replaced (overwrite)")
    if directory.path.exists() and not directory.path.is_dir():
        yield Problem("error", "save_path", "", f"{directory.path} is a file", "give another save_path")
    for model in (directory.path / place.path for place in saving.places):
        is_used = model.name in (LAST, BEST) and model.is_dir() and any(model.iterdir())
        if is_used and (found := foreign_files(model)):
            finding = f"{model} contains files that palm did not write ({', '.join(found[:3])})"
            yield Problem("error", "save_path", "", finding, "move them elsewhere, or give another save_path")
    if saving.bytes > saving.free_bytes:
        finding = (
            f"{saving.save_path}: the run writes about {saving.bytes / 1e9:.1f} GB, "
            f"but only {saving.free_bytes / 1e9:.1f} GB are free"
        )
        yield Problem("error", "disk", "", finding, "set keep_last_n, or give another save_path")


def _places(
    training: Training, plan: RunPlan, settings: RunSettings
) -> Iterator[tuple[str, str, int, int | None]]:
    """Yield path, time, bytes kept and bytes written of each file or folder."""
    yield CONFIGURATION, "at the start", 0, 0
    yield RECORD, "at the start", 0, 0
    yield HISTORY_FILE, "from the start on", 0, 0
    encoder = _bytes(training.model.backbone)
    evaluated = any(task.dev_file is not None for task in training.tasks)
    every = settings.save_infermodel_every_n_steps
    keep = settings.keep_last_n
    for task in (task for task in training.tasks if task.is_target):
        model = encoder + _bytes(task.head)
        yield f"{task.name}/{LAST}", f"after its step {task.expected_steps}", model, model
        if task.dev_file is not None:
            yield f"{task.name}/{BEST}", "whenever its dev score is the best so far", model, None
        if evaluated:
            yield f"{BEST_OF_RUN}/{task.name}", "whenever the run's dev score is the best so far", model, None
        if every > 0:
            number = task.expected_steps // every
            count = _kept(number, keep)
            when = f"every {every} of its steps, {count} are kept"
            yield f"{task.name}/{ON_THE_WAY}*", when, count * model, number * model
    if (every := settings.save_every_n_steps) > 0:
        number = plan.steps // every
        count = _kept(number, keep)
        # Weights, and twice as much for Adam's two moments.
        state = 3 * _bytes(training.model)
        yield "step_*", f"every {every} global steps, {count} are kept", count * state, number * state


def _kept(count: int, keep: int) -> int:
    return min(count, keep) if keep > 0 else count


def _bytes(module: torch.nn.Module) -> int:
    return sum(each.numel() * each.element_size() for each in module.state_dict().values())
