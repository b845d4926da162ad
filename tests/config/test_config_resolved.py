"""A `RunConfig`: printed as PALM does, readable again, with the place of every value, and editable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from helpers import tiny
from helpers.shared import RECORDED_0, needs_shared
from palm.config import read_config, yaml_text
from palm.config.run import RunConfig, printed
from palm.controller.resolve import edited, resolve


def written(folder: Path, **settings: Any) -> Path:
    """A project of two tasks in files."""
    return tiny.write_config(folder, tiny.config(folder, "cls", "match", **settings))


def run_of(config: Any, *argv: str) -> RunConfig:
    return resolve(read_config(config, argv=list(argv)))


def test_a_written_run_is_the_same_run(folder: Path) -> None:
    run = run_of(written(folder), "--learning_rate", "0.003", "--match.batch_size", "2")
    again = folder / "elsewhere.yaml"
    again.write_text(yaml_text(run.to_dict()), encoding="utf-8")
    for source in (run.to_dict(), again):
        read = run_of(source)
        assert read == run
        assert read.to_dict() == run.to_dict()
    assert run.optimizer.settings["learning_rate"] == 0.003
    assert [task.settings.batch_size for task in run.tasks] == [4, 2]


def test_every_given_value_has_its_place(folder: Path) -> None:
    config = written(folder)
    lines = {path.name: path.read_text("utf-8").splitlines() for path in folder.glob("*.yaml")}
    run = run_of(config, "--learning_rate", "0.003", "--cls.shuffle", "no")
    assert run.place("learning_rate") == "--learning_rate"
    assert run.place("shuffle", "cls") == "--cls.shuffle"
    assert run.placed("shuffle", "cls") == "--cls.shuffle"
    for scope, name, file in ((None, "save_path", "config.yaml"), ("cls", "n_classes", "cls.yaml")):
        place = run.place(name, scope)
        assert place is not None
        path, _, line = place.rpartition(":")
        assert Path(path).name == file
        assert lines[file][int(line) - 1].startswith(f"{name}:")
    assert run.place("ema_decay") is None
    document = run.to_dict()
    origins = run.origins_of(document)
    assert origins["global"].keys() == document["global"].keys()
    assert document["tasks"]["cls"].keys() - origins["tasks"]["cls"].keys() == {"reader", "paradigm"}


def test_an_edit_is_the_run_of_the_edited_document(folder: Path) -> None:
    run = run_of(written(folder, warmup_proportion=0.1), "--cls.batch_size", "2")
    longer = edited(run, {"num_epochs": 7, "batch_size": 8, "warmup_proportion": None})
    assert (longer.settings.num_epochs, longer.settings.warmup_proportion) == (7, 0.0)
    assert [task.settings.batch_size for task in longer.tasks] == [8, 8]
    assert longer.place("save_path") == run.place("save_path")
    assert run_of(longer.to_dict()) == longer
    lamb = edited(run, {"optimizer": "lamb"})
    assert lamb.optimizer.name == "lamb"
    assert replace(lamb, optimizer=run.optimizer, settings=run.settings) == run


def test_it_is_printed_in_palms_layout(folder: Path) -> None:
    run = run_of(written(folder), "--cls.batch_size", "2")
    sections = printed(run.as_written()).split("\n\n")
    heads = [section.splitlines()[0] for section in sections]
    assert heads[0] == "------------------------ global configuration ------------------------"
    expected = ["global configuration", "cls configuration", "match configuration", "backbone configuration"]
    assert [head.strip("- ") for head in heads] == expected
    assert (
        f"max_seq_len              \t{run.tasks[0].reader.settings['max_seq_len']}"
        in sections[0].splitlines()
    )
    assert "batch_size               \t2" in sections[1].splitlines()


@needs_shared
def test_the_second_demo_is_printed_as_palm_printed_it() -> None:
    runs = RECORDED_0 / "runs"
    run = resolve(read_config(runs / "demo2" / "config.yaml", "tasks", []), for_train=False)
    log = (runs / "demo2.log").read_text(encoding="utf-8")
    for ours, theirs in zip(printed(run.as_written()).split("\n\n")[:4], log.split("\n\n")[:4], strict=True):
        assert ours.splitlines()[0] == theirs.splitlines()[0]
        assert _settings(ours) == _settings(theirs)


def _settings(section: str) -> dict[str, str]:
    """Return the printed settings: a path by its file, for ours are absolute, and `seed` by our name."""
    lines = (line.partition("\t") for line in section.splitlines()[1:])
    return {
        {"seed": "random_seed"}.get(name.strip(), name.strip()): Path(value).name for name, _, value in lines
    }
