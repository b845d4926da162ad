"""The folder of a run: one run at a time, an earlier one is noticed, old checkpoints take no part."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from palm.core.errors import StorageError
from palm.core.files.atomic_dir import new_directory
from palm.core.files.fs import OLD, UNFINISHED, WRITTEN, write_json
from palm.core.files.untrusted import read_json
from palm.train.checkpoint import VERSION
from palm.train.run_directory import RunDirectory, RunStart
from palm.train.run_lock import only_run_in
from palm.train.run_names import name_problem


def identity(**settings: Any) -> dict[str, Any]:
    task = {
        "batch_size": 4,
        "max_tokens_per_batch": None,
        "gradient_accumulation_steps": 1,
        "devices": 1,
        "data": "d1",
        "rows": 40,
        "expected_steps": 20,
        "paradigm": {"n_classes": 4},
    }
    return {
        "num_epochs": 2,
        "optimizer": {"name": "adam", "settings": {"learning_rate": 0.001}},
        "backbone": {"hidden_size": 32},
        "lr_scheduler": {"name": "constant", "settings": {}},
        "tasks": {"cls": task},
        **settings,
    }


def directory(path: Path, **settings: Any) -> RunDirectory:
    return RunDirectory(path, ["cls"], ["cls"], **settings)


def begun(run: RunDirectory, made: dict[str, Any] | None = None, **launch: Any) -> RunStart:
    start = run.check(**launch)
    launch.pop("restarted", None)
    run.begin(start, made or identity(), **launch)
    return start


def checkpoint(path: Path, step: int, run_id: str, **settings: Any) -> Path:
    with new_directory(path / f"step_{step}", overwrite=True) as part:
        state = {
            "format": "palm-checkpoint",
            "version": VERSION,
            "run_id": run_id,
            "task_steps": {"cls": step},
            "run": identity(**settings),
        }
        write_json(part / "state.json", state)
        for name in ("model", "optimizer"):
            (part / f"{name}.safetensors").touch()
    return path / f"step_{step}"


def model(path: Path) -> Path:
    with new_directory(path, overwrite=True) as part:
        write_json(part / "config.json", {})
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_run_is_refused_by_name_of_the_first(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from palm.train.run_lock import only_run_in\n"
        "with only_run_in(Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        with (
            pytest.raises(StorageError, match=rf"process {first.pid} on \S+ since 20\d\d-"),
            only_run_in(tmp_path),
        ):
            pass
        first.kill()  # it can tidy nothing up
    with only_run_in(tmp_path):
        assert read_json(tmp_path / ".run.lock.json")["process"] == os.getpid()


def test_a_first_run_leaves_its_record(tmp_path: Path) -> None:
    run = directory(tmp_path)
    run.check()
    start = begun(run, identity(), launch="l")
    assert start.checkpoint is None
    record = read_json(tmp_path / "run.json")
    assert (record["id"], record["launch"], record["identity"]) == (start.run_id, "l", identity())
    run.check()  # nothing has come of it yet: no obstacle for another one
    assert begun(run).run_id != start.run_id


def test_an_earlier_run_stops_a_new_one_with_both_remedies(tmp_path: Path) -> None:
    start = begun(directory(tmp_path))
    for step in (4, 8, 12):
        checkpoint(tmp_path, step, start.run_id)
    model(tmp_path / "cls" / "infer_model")
    with pytest.raises(
        StorageError,
        match=r"20\d\d-\S+ \S+ \(step_4, step_8, step_12, and 1 more\).*"
        r"resume: auto.*overwrite: true.*save_path",
    ):
        directory(tmp_path).check()
    directory(tmp_path, resume="auto").check()
    directory(tmp_path, resume=str(tmp_path / "step_8")).check()
    directory(tmp_path, overwrite=True).check()
    with pytest.raises(StorageError, match="resume: auto"):
        directory(tmp_path, resume="elsewhere/step_8").check()


@pytest.mark.parametrize("resume", [None, "auto"])
def test_a_run_in_the_folder_of_a_model_or_a_checkpoint_is_refused(
    resume: str | None, tmp_path: Path
) -> None:
    for place in (model(tmp_path / "cls" / "infer_model"), checkpoint(tmp_path, 4, "a")):
        with pytest.raises(StorageError, match=f"save_path: {place}"):
            directory(place, resume=resume, overwrite=True).check()


def test_overwrite_replaces_what_palm_wrote_and_nothing_else(tmp_path: Path) -> None:
    first = begun(directory(tmp_path))
    checkpoint(tmp_path, 4, first.run_id)
    model(tmp_path / "cls" / "infer_model.step8")
    model(tmp_path / "best" / "cls")
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "cls" / "predictions.json").write_text("{}\n", encoding="utf-8")
    (tmp_path / "step_99").mkdir()
    (tmp_path / "step_99" / "mine").write_text("mine", encoding="utf-8")
    run = directory(tmp_path, overwrite=True)
    run.check()
    assert begun(run, identity(num_epochs=3)).run_id != first.run_id
    assert names(tmp_path) == [WRITTEN, "best", "cls", "notes.txt", "run.json", "step_99"]
    assert names(tmp_path / "cls") == ["predictions.json"]
    assert names(tmp_path / "step_99") == ["mine"]


@pytest.mark.parametrize("place", ["cls/infer_model", "cls/best_model", "best/cls"])
def test_files_of_others_where_a_model_goes_are_noticed_at_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "thesis.tex").write_text("mine", encoding="utf-8")
    with pytest.raises(StorageError, match=r"\(thesis\.tex\)"):
        directory(tmp_path, overwrite=True).check()


def test_resume_auto_takes_the_newest_checkpoint_of_this_run(tmp_path: Path) -> None:
    first = begun(directory(tmp_path))
    checkpoint(tmp_path, 4, first.run_id)
    newest = checkpoint(tmp_path, 8, first.run_id)
    checkpoint(tmp_path, 12, "another run's")
    start = begun(directory(tmp_path, resume="auto"))
    assert (start.checkpoint, start.run_id) == (newest, first.run_id)
    assert read_json(tmp_path / "run.json")["id"] == first.run_id


def test_resume_of_one_checkpoint_continues_with_its_run_or_begins_another(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "there").mkdir()
    first = begun(directory(here))
    chosen = checkpoint(here, 4, first.run_id)
    assert begun(directory(here, resume=str(chosen))).run_id == first.run_id
    start = begun(directory(tmp_path / "there", resume=str(chosen)))
    assert start.checkpoint == chosen
    assert start.run_id != first.run_id
    assert names(here) == [WRITTEN, "run.json", "step_4"]


def test_resume_auto_without_a_checkpoint_replaces_only_its_own_configuration(tmp_path: Path) -> None:
    begun(directory(tmp_path))
    model(tmp_path / "cls" / "infer_model")
    other = identity(optimizer={"name": "adam", "settings": {"learning_rate": 0.002}})
    with pytest.raises(StorageError, match=r"learning_rate: 0.001 in the checkpoint, 0.002 in this run"):
        begun(directory(tmp_path, resume="auto"), other)
    assert (tmp_path / "cls" / "infer_model").is_dir()
    assert begun(directory(tmp_path, resume="auto")).checkpoint is None
    assert not (tmp_path / "cls" / "infer_model").exists()


def test_a_restart_by_the_launcher_continues_without_being_asked(tmp_path: Path) -> None:
    first = begun(directory(tmp_path), identity(), launch="l")
    newest = checkpoint(tmp_path, 4, first.run_id)
    run = directory(tmp_path)
    assert begun(run, identity(), launch="l", restarted=True).checkpoint == newest
    with pytest.raises(StorageError, match="resume: auto"):
        run.check(launch="m", restarted=True)


def test_what_dead_processes_left_is_swept_at_the_start(tmp_path: Path) -> None:
    first = begun(directory(tmp_path))
    (tmp_path / "cls" / ".infer_model.node-17.part").mkdir(parents=True)
    (tmp_path / "cls" / ".infer_model.node-17.part" / UNFINISHED).touch()
    model(tmp_path / "cls" / "infer_model").rename(tmp_path / "cls" / ".infer_model.node-17.part" / OLD)
    for name in (".step_8.node-17.part", "cls/.infer_model.step8.node-17.part", "best/.cls.node-17.part"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".history.jsonl.node-17.part", "..run.lock.json.node-17.part", ".run.json.node-17.part"):
        (tmp_path / name).mkdir()
        for file in (UNFINISHED, "half"):
            (tmp_path / name / file).write_text("half", encoding="utf-8")
    checkpoint(tmp_path, 4, first.run_id)
    directory(tmp_path, resume="auto").check()
    assert names(tmp_path) == [WRITTEN, "best", "cls", "run.json", "step_4"]
    assert names(tmp_path / "cls") == ["infer_model"]
    assert names(tmp_path / "best") == []


def test_the_advice_says_what_is_complete(tmp_path: Path) -> None:
    run = directory(tmp_path)
    start = begun(run)
    assert str(tmp_path) in run.resume_advice()
    assert "resume" not in run.resume_advice()
    checkpoint(tmp_path, 4, start.run_id)
    model(tmp_path / "cls" / "infer_model")
    assert "step_4, cls/infer_model" in run.resume_advice()
    assert run.resume_advice().endswith("resume: auto")


@pytest.mark.parametrize("name", ["step_4", "best", "Best", "run.json", "history.jsonl", ".hidden", "a/b"])
def test_a_task_cannot_be_called_like_a_folder_of_the_run(name: str) -> None:
    assert f"task {name!r}: " in (name_problem(name) or "")


def test_other_names_are_free() -> None:
    assert [name_problem(name) for name in ("a.b", "step_", "step_4a", "bests", "run")] == [None] * 5
