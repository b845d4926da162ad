"""The folder of a run: one run at a time, and an earlier one is continued, moved or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palm.core.errors import StorageError
from palm.core.io import new_directory, read_json, write_json
from palm.train.checkpoint import NEEDED, VERSION
from palm.train.folder import RunFolder, RunStart, is_only_a_run, only_run_in
from palm.train.model_paths import name_problem


def identity(**settings: Any) -> dict[str, Any]:
    counts = {"batch_size": 4, "gradient_accumulation_steps": 1, "devices": 1, "rows": 40}
    task = {**counts, "data": "d1", "expected_steps": 20, "paradigm": {"n_classes": 4}}
    return {
        "num_epochs": 2,
        "optimizer": {"name": "adam", "settings": {"learning_rate": 0.001}},
        "backbone": {"hidden_size": 32},
        "lr_scheduler": {"name": "constant", "settings": {}},
        "tasks": {"cls": task},
        **settings,
    }


def begun(run: RunFolder, made: dict[str, Any] | None = None) -> RunStart:
    """Take a run as far as its first step."""
    with run.locked():
        start = run.open()
        assert run.finished(start, made or identity(), 20) is None
        run.begin(start, made or identity(), 20)
    return start


def checkpoint(path: Path, step: int, run_id: str, **settings: Any) -> Path:
    with new_directory(path / f"step_{step}", overwrite=True) as part:
        kind = {"format": "palm-checkpoint", "version": VERSION}
        state = {**kind, "run_id": run_id, "task_steps": {"cls": step}, "run": identity(**settings)}
        write_json(part / "state.json", state)
        for name in NEEDED[1:]:
            (part / name).touch()
    return path / f"step_{step}"


def model(path: Path) -> Path:
    with new_directory(path, overwrite=True) as part:
        write_json(part / "config.json", {})
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_run_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from palm.train.folder import only_run_in\n"
        "with only_run_in(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        with pytest.raises(StorageError, match=str(tmp_path)), only_run_in(tmp_path):
            pass
        first.kill()  # it can tidy nothing up
    with only_run_in(tmp_path):
        pass


def test_a_run_that_did_not_begin_leaves_nothing(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "out").locked():
        pass
    assert names(tmp_path) == []


def test_an_earlier_run_stops_a_new_one(tmp_path: Path) -> None:
    start = begun(RunFolder(tmp_path))
    for step in (4, 8, 12):
        checkpoint(tmp_path, step, start.run_id)
    model(tmp_path / "cls" / "infer_model")
    with pytest.raises(
        StorageError, match=r"\(step_4, step_8, step_12, and 1 more\).*resume: auto.*overwrite: true"
    ):
        RunFolder(tmp_path).open()
    with pytest.raises(StorageError, match="resume: auto"):
        RunFolder(tmp_path, resume="elsewhere/step_8").open()
    assert RunFolder(tmp_path, resume="auto").open().checkpoint == tmp_path / "step_12"
    assert RunFolder(tmp_path, resume=str(tmp_path / "step_8")).open().checkpoint == tmp_path / "step_8"
    assert RunFolder(tmp_path, overwrite=True).open().checkpoint is None


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_in_the_folder_of_a_model_or_a_checkpoint_is_refused(
    resume: str | None, tmp_path: Path
) -> None:
    for place in (model(tmp_path / "cls" / "infer_model"), checkpoint(tmp_path, 4, "a")):
        with pytest.raises(StorageError, match=f"save_path: {place}"):
            RunFolder(place, resume, overwrite=True).open()


def whole_run(path: Path) -> None:
    """Write everything that a run, a prediction and a report write."""
    first = begun(RunFolder(path))
    checkpoint(path, 4, first.run_id)
    for place in (
        "cls/infer_model",
        "cls/infer_model.step8",
        "cls/best_model",
        "model",
        "stages/1-a/weights",
    ):
        model(path / place)
    for name in ("history.jsonl", "cls/predictions.json", "report.html", "wandb/x/y", "cls.train.rows.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()


def test_overwrite_moves_the_folder_and_removes_only_what_a_run_wrote(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(3):
        whole_run(out)
        begun(RunFolder(out, overwrite=True))
        assert names(out) == [".run.lock", "run.json"]
        assert names(tmp_path) == ["out", "out.previous"]
        assert len(list((tmp_path / "out.previous").rglob("manifest.json"))) == 6


@pytest.mark.parametrize(
    "name", ["notes.txt", "cls/notes.txt", "cls/infer_model/notes.txt", "wandb.txt", "step_9/x", "stages/x"]
)
def test_a_folder_with_a_file_of_the_users_is_never_removed(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole_run(out)
    assert is_only_a_run(out)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine", encoding="utf-8")
    begun(RunFolder(out, overwrite=True))
    whole_run(out)
    begun(RunFolder(out, overwrite=True))
    assert names(tmp_path) == ["out", "out.previous", "out.previous.2"]
    assert (tmp_path / "out.previous" / name).read_text(encoding="utf-8") == "mine"


def test_a_copied_model_and_a_link_are_the_users(tmp_path: Path) -> None:
    model(tmp_path / "cls" / "copy of infer_model")
    assert not is_only_a_run(tmp_path)
    (tmp_path / "linked" / "cls").mkdir(parents=True)
    (tmp_path / "linked" / "cls" / "infer_model").symlink_to(tmp_path / "cls" / "copy of infer_model")
    assert not is_only_a_run(tmp_path / "linked")


def test_resume_auto_takes_the_newest_checkpoint_of_this_run(tmp_path: Path) -> None:
    first = begun(RunFolder(tmp_path))
    checkpoint(tmp_path, 4, first.run_id)
    newest = checkpoint(tmp_path, 8, first.run_id)
    checkpoint(tmp_path, 12, "another run's")
    start = begun(RunFolder(tmp_path, resume="auto"))
    assert (start.checkpoint, start.run_id) == (newest, first.run_id)
    assert read_json(tmp_path / "run.json")["id"] == first.run_id


def test_resume_of_one_checkpoint_continues_with_its_run_or_begins_another(tmp_path: Path) -> None:
    here = tmp_path / "here"
    first = begun(RunFolder(here))
    chosen = checkpoint(here, 4, first.run_id)
    assert begun(RunFolder(here, resume=str(chosen))).run_id == first.run_id
    start = begun(RunFolder(tmp_path / "there", resume=str(chosen)))
    assert start.checkpoint == chosen
    assert start.run_id != first.run_id
    assert names(here) == [".run.lock", "run.json", "step_4"]


def test_resume_auto_without_a_checkpoint_repeats_only_its_own_configuration(tmp_path: Path) -> None:
    out = tmp_path / "out"
    begun(RunFolder(out))
    model(out / "cls" / "infer_model")
    other = identity(optimizer={"name": "adam", "settings": {"learning_rate": 0.002}})
    with pytest.raises(StorageError, match=r"learning_rate: 0.001 in the checkpoint, 0.002 in this run"):
        begun(RunFolder(out, resume="auto"), other)
    assert (out / "cls" / "infer_model").is_dir()
    assert begun(RunFolder(out, resume="auto")).checkpoint is None
    assert names(tmp_path) == ["out"]
    assert begun(RunFolder(out, resume="auto", overwrite=True), other).checkpoint is None
    assert (tmp_path / "out.previous" / "cls" / "infer_model").is_dir()


def test_what_dead_processes_left_is_removed_at_the_start(tmp_path: Path) -> None:
    first = begun(RunFolder(tmp_path))
    model(tmp_path / "cls" / "infer_model").rename(tmp_path / "cls" / ".infer_model.node-17.old")
    for name in (".step_8.node-17.part", "cls/.infer_model.step8.node-17.part", ".model.node-17.part"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".history.jsonl.node-17.part").touch()
    checkpoint(tmp_path, 4, first.run_id)
    with RunFolder(tmp_path, resume="auto").locked():
        assert names(tmp_path) == [".run.lock", "cls", "run.json", "step_4"]
    assert names(tmp_path / "cls") == ["infer_model"]


@pytest.mark.parametrize("name", ["step_4", "model", "Model", "run.json", "history.jsonl", ".hidden", "a/b"])
def test_a_task_cannot_be_called_like_a_folder_of_the_run(name: str) -> None:
    assert f"task {name!r}: " in (name_problem(name) or "")
