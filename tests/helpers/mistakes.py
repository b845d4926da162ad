"""Runs of a configuration with mistakes, and a list of mistakes with the place and the values to report."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import palm.compat as palm
from helpers import tiny
from palm.cli import main
from palm.controller.controller import Controller

OF_WORDS_OR_SEVERAL = ("seq_label", "multi_label")
"""Tasks whose labels have names; the tiny run has none."""

OF_SEVERAL_TEXTS = ("embedding", "multiple_choice", "ranking")
"""Tasks of which the tiny run has no data."""

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
"""What Git LFS puts in the place of a file that was not fetched."""

MISTAKES = [
    json.loads(line)
    for line in Path(__file__).with_name("mistakes.jsonl").read_text(encoding="utf-8").splitlines()
]
"""Kind (config, task:NAME, data, shell or python), what is done, and what the report contains."""


def controller(folder: Path, change: dict[str, Any], task: str = "cls", **own: Any) -> Controller:
    """A Controller of one task, from files; `own` are settings of the task's file, None takes one away."""
    others = (*OF_WORDS_OR_SEVERAL, *OF_SEVERAL_TEXTS)
    config = tiny.config(folder, "cls" if task in others else task)
    del config["save_every_n_steps"]  # the lines of the others are expected
    config |= change
    (settings,) = config.pop("tasks").values()
    if task in OF_WORDS_OR_SEVERAL:
        settings |= {"reader": task, "paradigm": task, "n_classes": 2, "label_map": {"O": 0, "B": 1}}
    if task in OF_SEVERAL_TEXTS:
        settings |= {"reader": task, "paradigm": task, "n_classes": None}
    settings = {name: value for name, value in {**settings, **own}.items() if value is not None}
    config = {name: value for name, value in config.items() if value is not None}
    config["task_instance"] = change.get("task_instance", task)
    for name, content in (("config", config), (task, settings)):
        # A line a setting, as people write them, so that every message has its line.
        lines = [f"{key}: {v if isinstance(v, str) else json.dumps(v)}\n" for key, v in content.items()]
        (folder / f"{name}.yaml").write_text("".join(lines), encoding="utf-8")
    return Controller("config.yaml", argv=[])


def make(folder: Path, kind: str, what: Any) -> int:
    """Make a mistake; the exit status of a command, else 0."""
    small = {"max_steps": 1}
    if kind == "shell":
        for task in ("cls", "match", "mrc", "span"):
            if any(f"trained_{task}" in word for word in what):
                model(folder, task)
        controller(folder, {})
        return main(what) or 0
    if kind == "python":
        known = {"palm": palm, "folder": folder, "tiny": tiny, "model": partial(model, folder)}
        eval(what, {**vars(palm), **known})
    elif kind == "data":
        task, name, text, own = what
        for file, content in (text if isinstance(text, dict) else {name: text}).items():
            (folder / file).write_bytes(content.encode("utf-8", "surrogateescape"))
        small |= {"use_data_cache": False, "batch_size": 1}
        controller(folder, small, task, train_file=name, **own).train()
    elif kind == "config":
        controller(folder, {**small, **what}).train()
    else:
        controller(folder, small, kind.removeprefix("task:"), **what).train()
    return 0


def model(folder: Path, task: str = "cls") -> Any:
    """A model of one task, trained where no mistake before has needed it."""
    place = folder / f"trained_{task}"
    if not place.exists():
        controller(folder, {"save_path": place.name, "max_steps": 2, "save_every_n_steps": 1}, task).train()
    return palm.load_model(place / task)
