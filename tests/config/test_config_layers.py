"""Precedence of settings, reports of overridden ones, and settings that nothing uses."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from helpers.messages import facts
from palm.config import Config, FilePath, read_config
from palm.core.component import Component
from palm.core.errors import ConfigError


class Reader(Component):
    """A reader.

    Args:
        max_seq_len: longest row, in tokens
    """

    def __init__(self, max_seq_len: int, vocab_path: FilePath | None = None, label: str = "x") -> None: ...


def given(config: Config, *consumer: Any, **options: Any) -> dict[str, Any]:
    """The arguments that a configuration gives to a consumer."""
    return config.arguments(*consumer, **options)[0]


def run(
    task_instance: list[str],
    learning_rate: float = 1.0,
    save_path: Path = Path("out"),
    mix_ratio: list[float] | None = None,
    use_ema: bool = False,
) -> None: ...


class Encoder:
    """An encoder.

    Args:
        hidden_size: width of the output
    """

    def __init__(self, hidden_size: int, dropout_prob: float = 0.1) -> None: ...


class Head:
    def __init__(self, hidden_size: int, n_classes: int = 2) -> None: ...


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, text: str) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def config_of(*lines: str, argv: tuple[str, ...] = (), **tasks: str) -> Config:
    """A global file of these lines, and a file in `tasks` for each task."""
    path = written("config.yaml", "\n".join((f"task_instance: {', '.join(tasks)}", *lines)))
    for name, text in tasks.items():
        written(f"tasks/{name}.yaml", text)
    return read_config(path, "tasks", argv)


def report(config: Config) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.finish()
    return list(map(facts, caught.value.problems))


def refused(*args: Any, **kwargs: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_config(*args, **kwargs)
    return list(map(facts, caught.value.problems))


# Precedence. Every layer writes its own number, so that the number says who won:
# 1 `--a.max_seq_len`, 2 `--max_seq_len`, 3 global file for task a, 4 global file, 5 task file,
# 6 backbone JSON.


@pytest.mark.parametrize("strongest", range(1, 7))
def test_command_line_over_global_file_over_task_file_over_backbone(strongest: int) -> None:
    at = [number >= strongest for number in (1, 2, 3, 4, 5, 6)]
    argv = (("--a.max_seq_len", "1") if at[0] else ()) + (("--max_seq_len", "2") if at[1] else ())
    lines = ["backbone_config_path: bert.json"]
    lines += ["a.max_seq_len: 3"] if at[2] else []
    lines += ["max_seq_len: 4"] if at[3] else []
    written("bert.json", json.dumps({"max_seq_len": 6}))
    config = config_of(*lines, argv=argv, a="max_seq_len: 5" if at[4] else "", b="max_seq_len: 50")
    assert given(config, Reader, "a") == {"max_seq_len": strongest}
    expected_of_the_other_task = {1: 2, 2: 2, 3: 4, 4: 4, 5: 50, 6: 50}
    assert given(config, Reader, "b") == {"max_seq_len": expected_of_the_other_task[strongest]}
    config.finish()


def test_a_value_that_is_overruled_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "palm")
    lines, argv = ("max_seq_len: 512", "label: same"), ("--learning_rate", "1e-4", "--b.label", "other")
    config = config_of(*lines, argv=argv, a="max_seq_len: 384\nlabel: same", b="max_seq_len: 512.0")
    for _ in range(2):
        given(config, run)
        given(config, Reader, "a")
        given(config, Reader, "b")
    expected = ["config.yaml:2 max_seq_len 512 384 1", "--b.label 'other' 'same' 3"]
    assert [facts(record.getMessage()) for record in caplog.records] == expected
    config.finish()


# Paths.


def test_paths_in_files_count_from_the_global_file_and_on_the_command_line_from_here(tmp_path: Path) -> None:
    def paths(train_file: Path, vocab_path: Path, save_path: Path) -> None: ...

    written("demo/config.yaml", "task_instance: a\nvocab_path: ../v.txt\nsave_path: out")
    written("demo/tasks/a.yaml", "train_file: data/a.tsv")
    config = read_config("demo/config.yaml", "tasks", ["--save_path", "here"])
    assert config.base == tmp_path / "demo"
    assert given(config, paths, "a") == {
        "train_file": tmp_path / "demo" / "data" / "a.tsv",
        "vocab_path": tmp_path / "v.txt",
        "save_path": tmp_path / "here",
    }


def test_task_files_lie_beside_the_global_file_or_else_in_the_working_directory() -> None:
    written("demo/config.yaml", "task_instance: a")
    written("demo/tasks/a.yaml", "max_seq_len: 1")
    written("tasks/a.yaml", "max_seq_len: 2")
    written("more/a.yaml", "max_seq_len: 3")
    written("demo/a.yaml", "max_seq_len: 4")

    def length(**where: Any) -> Any:
        return given(read_config("demo/config.yaml", argv=[], **where), Reader, "a")["max_seq_len"]

    assert length(task_dir="tasks") == 1
    assert length(task_dir="more") == 3
    assert length() == 4


# Tasks and sections.


def test_tasks_may_stand_in_the_global_file_or_dict() -> None:
    text = "max_seq_len: 8\ntasks:\n  a:\n    label: one\n  b:\n"
    for config in (written("c.yaml", text), {"max_seq_len": 8, "tasks": {"a": {"label": "one"}, "b": None}}):
        read = read_config(config, argv=[])
        assert read.tasks == ["a", "b"]
        assert given(read, Reader, "a") == {"max_seq_len": 8, "label": "one"}
        assert given(read, Reader, "b") == {"max_seq_len": 8}
        read.finish()


def test_problems_in_a_dict_are_reported_with_its_keys() -> None:
    config = read_config(
        {"x": 1, "global": {"y": 1}, "tasks": {"a": {"label": True}}, "backbone": {"hidden_size": "big"}},
        argv=[],
    )
    given(config, Reader, "a")
    given(config, Encoder, "backbone")
    assert report(config) == [
        "config['tasks']['a'] max_seq_len",
        "config['tasks']['a']",
        "config['backbone'] hidden_size 'big'",
        "config 'x'",
        "config['global'] 'y'",
    ]


# What is wrong with the sources themselves: nothing else can be said, so it is said at once.


def test_all_files_that_cannot_be_read_are_reported_together() -> None:
    written("config.yaml", "task_instance: a, b, mrq\nbackbone_config_path: bert.json")
    written("tasks/a.yaml", "x: [1")
    written("tasks/b.yaml", "y: {1")
    written("tasks/mrqa.yaml", "")
    written("bert.json", '{"hidden_size": }')
    assert refused("config.yaml", "tasks", ["stray"]) == [
        "command 'stray'",
        "tasks/a.yaml:1 ',' ']' '<stream end>' 'x: [1'",
        "tasks/b.yaml:1 ',' '}' '<stream end>' 'y: {1'",
        "config.yaml:1 task_instance 'mrq' 'mrqa'",
        "bert.json:1:17",
    ]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["config.yaml task_instance"]),
        ("task_instance:", ["config.yaml task_instance"]),
        ("task_instanse: a", ["config.yaml task_instance", "config.yaml:1 'task_instanse' 'task_instance'"]),
        ("task_instance: ''", ["config.yaml:1 task_instance"]),
        ("task_instance: {a: 1}", ["config.yaml:1 task_instance 'a' 1"]),
        ("task_instance: a, b, a\ntasks: {a: , b: }", ["config.yaml:1 task_instance 'a'"]),
        ("task_instance: backbone\ntasks: {backbone: }", ["config.yaml:1 task_instance 'backbone'"]),
        ("tasks:\n  a: 3", ["config.yaml:2 3"]),
    ],
)
def test_it_has_to_be_clear_which_tasks_there_are(text: str, problems: list[str]) -> None:
    assert refused(written("config.yaml", text), argv=[]) == problems


# What is wrong with the settings: one report.


def test_everything_wrong_is_one_report() -> None:
    config = config_of(
        "learning_rate: fast",
        "mix_ratio: 1.0, many",
        "use_ema: 2",
        "save_pth: out",
        "c.label: z",
        "use_ema: true",
        argv=("--learning_rat", "3", "--a.n_clases=4", "--a.learning_rate", "1", "--b.label"),
        a="vocab_path: v.txt\nn_classes: 3\nlearning_rate: 1",
        b="max_seq_len: 2.5\nn_classes: 4",
    )
    given(config, run)
    given(config, Reader, "a")
    given(config, Reader, "b")
    given(config, Head, "a", provided=["hidden_size"])
    config.problem("task 'a': the parts do not fit")
    assert report(config) == [
        "config.yaml:7 'use_ema' 4",
        "config.yaml:6 'c'",
        "config.yaml:2 learning_rate 'fast'",
        "config.yaml:3 mix_ratio '1.0, many'",
        "tasks/a.yaml max_seq_len",
        facts(f"tasks/a.yaml:1: vocab_path: {Path.cwd() / 'v.txt'} 'v.txt'"),
        "tasks/b.yaml:1 max_seq_len 2.5",
        "--b.label",
        "task 'a'",
        "config.yaml:5 'save_pth' 'save_path'",
        "tasks/a.yaml:3 'learning_rate'",
        "tasks/b.yaml:2 'b' 'n_classes'",
        "--learning_rat 'learning_rat' 'learning_rate'",
        "--a.n_clases 'n_clases' 'n_classes'",
        "--a.learning_rate 'learning_rate'",
    ]
