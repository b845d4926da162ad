"""Resolving the path of a run, a task's folder or a model to a model, with advice if there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from palm.config.model_names import MODEL_NAME
from palm.core.errors import StorageError
from palm.core.files.door import has_link
from palm.core.files.fs import numbered
from palm.core.files.manifest import is_sealed

FORMAT = "palm-model"
VERSION = 1
WEIGHTS = "model.safetensors"
DESCRIPTION = "config.json"
ADAPTERS = "lora"
"""For a saved model: its format, its files, and the folder that holds only its adapters and its head."""

EXPORT = "palm_export.json"
EXPORT_FORMAT = "palm-export"
"""For an export: the file that describes it, and its format."""

BEST = "best_model"
LAST = "infer_model"
"""Folders of a target's models: at its best evaluation, and after its last step."""

ON_THE_WAY = f"{LAST}.step"
"""Prefix of the folders of a target's intermediate models; the step follows."""

BEST_OF_RUN = "best"
"""The folder in a run that holds a model of every target at the best evaluation of the whole run."""


def models_of(run: Path, task: str) -> Iterator[tuple[str, Path]]:
    """Yield kind and folder of each of a task's models in the folder of a run, the best one first.

    Kinds are `best`, `last`, `best of the run` and `after step N`. Models behind links are ignored.
    """
    on_the_way = sorted(numbered(run / task, ON_THE_WAY).items(), reverse=True)
    places = {
        "best": run / task / BEST,
        "last": run / task / LAST,
        "best of the run": run / BEST_OF_RUN / task,
        **{f"after step {number}": path for number, path in on_the_way},
    }
    for kind, path in places.items():
        if is_sealed(path) and not has_link(path, run):
            yield kind, path


def chosen_model(path: Path) -> Path:
    """Return the model at a path; for a task's folder, or a run with one task, its best or last model.

    Raises:
        StorageError: there is no model, or there are several.
    """
    if (path / "state.json").is_file():
        where = "models of finished tasks are in <save_path>/<task>"
        raise StorageError(
            f"{path} is a checkpoint, not a task's model: resume it with --resume {path}; {where}"
        )
    if is_sealed(path):
        return path
    if found := _model_in(path, path):
        return found
    tasks = [folder for folder in sorted(path.iterdir()) if _model_in(folder, path)] if path.is_dir() else []
    names = ", ".join(folder.name for folder in tasks)
    if len(tasks) > 1:
        raise StorageError(f"{path} has models of several tasks ({names}); give one, such as {tasks[0]}")
    found = _model_in(tasks[0], path) if tasks else None
    if found is None:
        raise StorageError(f"{path} is not a directory that palm saved: {_advice(path)}")
    return found


def _model_in(folder: Path, named: Path) -> Path | None:
    """Return the best or last model in a task's folder, unless it is reached through a link below `named`."""
    places = (folder / BEST, folder / LAST)
    return next((place for place in places if is_sealed(place) and not has_link(place, named)), None)


def _advice(path: Path) -> str:
    if not path.exists():
        if MODEL_NAME.fullmatch(name := path.as_posix()):
            return (
                f"there is no such folder; for a model from Hugging Face, use `palm download {name}`, or "
                f"train a task with pretrain_path: {name}"
            )
        return "there is no such folder; train first, or give the folder of a trained task"
    if checkpoints := numbered(path, "step_"):
        return f"no task has finished here; continue with --resume {checkpoints[max(checkpoints)]}"
    if (path / "config.json").is_file():
        return "it has no manifest.json; if it holds pretrained weights, set pretrain_path to it"
    return "it has no manifest.json; give the folder of a trained task, <save_path>/<task>"


def describe_missing_model(task: str, folder: Path, is_target: bool) -> str:
    """Explain why a task of a configuration has no model at `<save_path>/<task>/infer_model`."""
    what = f"task {task!r} has no model at {folder}"
    if not is_target:
        return f"{what}: it is auxiliary, and only targets are saved; set its target_tag to 1, and train"
    if on_the_way := numbered(folder.parent, ON_THE_WAY):
        return f"{what}: its training is not finished; inference_model_dir: {on_the_way[max(on_the_way)]}"
    if checkpoints := numbered(folder.parents[1], "step_"):
        return f"{what}: its training is not finished; resume with --resume {checkpoints[max(checkpoints)]}"
    return f"{what}: it is not trained yet; train first, or set save_path to that of the training"
