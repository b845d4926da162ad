"""The resolved configuration: printed as PALM does, and enough by itself to repeat the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.shared import RECORDED_0, needs_shared
from palm.config import Config, FilePath, read_config, yaml_text


def run(
    task_instance: list[str],
    learning_rate: float,
    save_path: Path,
    mix_ratio: list[float],
    betas: tuple[float, float] = (0.9, 0.999),
    resume: str | None = None,
) -> None: ...


def read_task(
    max_seq_len: int,
    vocab_path: FilePath,
    label: str = "",
    label_map: FilePath | dict[str, int] | None = None,
    use_ema: bool = False,
) -> None: ...


def encode(hidden_size: int, dropout_prob: float = 0.1, backbone_config_path: Path | None = None) -> None: ...


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def received(config: Config) -> dict[str, Any]:
    """Everything that everybody gets."""
    result: dict[str, Any] = {"run": config.arguments(run), "encoder": config.arguments(encode, "backbone")}
    result |= {task: config.arguments(read_task, task) for task in config.tasks}
    config.finish()
    return result


def example(tmp_path: Path) -> Config:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "vocab.txt").touch()
    (tmp_path / "bert.json").write_text('{"hidden_size": 32, "dropout_prob": 0.1, "architectures": ["Bert"]}')
    (tmp_path / "config.yaml").write_text(
        "task_instance: 'a, 数据'\nlearning_rate: 3e-5\nsave_path: out\nmix_ratio: 1.0,0.5\n"
        "max_seq_len: 512\nbackbone_config_path: bert.json\nvocab_path: vocab.txt\n"
        "label: 007\ndropout_prob: 0.2\n",
        encoding="utf-8",
    )
    (tmp_path / "tasks" / "a.yaml").write_text("max_seq_len: 384\nlabel_map: {neg: 0, pos: 1}\n")
    (tmp_path / "tasks" / "数据.yaml").write_text("use_ema: true\n")
    argv = ["--learning_rate", "1e-3", "--数据.max_seq_len", "64", "--betas", "0.9,0.99", "--resume", "none"]
    return read_config(tmp_path / "config.yaml", "tasks", argv)


def test_the_resolved_configuration_holds_what_was_received_with_paths_in_full(tmp_path: Path) -> None:
    config = example(tmp_path)
    received(config)
    assert config.resolved() == {
        "global": {
            "task_instance": ["a", "数据"],
            "save_path": str(tmp_path / "out"),
            "mix_ratio": [1.0, 0.5],
            "max_seq_len": 512,
            "backbone_config_path": str(tmp_path / "bert.json"),
            "vocab_path": str(tmp_path / "vocab.txt"),
            "label": "007",
            "dropout_prob": 0.2,
            "learning_rate": 1e-3,
            "betas": [0.9, 0.99],
            "resume": None,
            "数据.max_seq_len": 64,
        },
        "tasks": {"a": {"label_map": {"neg": 0, "pos": 1}}, "数据": {"use_ema": True}},
        "backbone": {"hidden_size": 32, "architectures": ["Bert"]},
    }


def test_every_value_has_its_origin(tmp_path: Path) -> None:
    config = example(tmp_path)
    received(config)
    origins = config.origins()
    assert origins == {
        "global": {
            "task_instance": "config.yaml:1",
            "save_path": "config.yaml:3",
            "mix_ratio": "config.yaml:4",
            "max_seq_len": "config.yaml:5",
            "backbone_config_path": "config.yaml:6",
            "vocab_path": "config.yaml:7",
            "label": "config.yaml:8",
            "dropout_prob": "config.yaml:9",
            "learning_rate": "--learning_rate",
            "betas": "--betas",
            "resume": "--resume",
            "数据.max_seq_len": "--数据.max_seq_len",
        },
        "tasks": {"a": {"label_map": "tasks/a.yaml:2"}, "数据": {"use_ema": "tasks/数据.yaml:1"}},
        "backbone": {"hidden_size": "bert.json:1"},
    }


def test_the_resolved_configuration_alone_repeats_the_run(tmp_path: Path) -> None:
    config = example(tmp_path)
    first = received(config)
    assert first["run"]["learning_rate"] == 1e-3
    resolved = config.resolved()
    saved = tmp_path / "elsewhere" / "run.yaml"
    saved.parent.mkdir()
    saved.write_text(yaml_text(resolved), encoding="utf-8")
    as_json = tmp_path / "elsewhere" / "run.json"
    as_json.write_text(json.dumps(resolved, ensure_ascii=False), encoding="utf-8")
    for name in ("config.yaml", "bert.json", "tasks/a.yaml", "tasks/数据.yaml"):
        (tmp_path / name).unlink()
    for source in (resolved, saved, as_json):
        again = read_config(source, argv=[])
        assert received(again) == first
        assert again.resolved() == resolved


def test_it_is_printed_in_palms_layout(tmp_path: Path) -> None:
    config = example(tmp_path)
    received(config)
    assert config.printed() == (
        "------------------------ global configuration ------------------------\n"
        "task_instance            \ta, 数据\n"
        f"save_path                \t{tmp_path / 'out'}\n"
        "mix_ratio                \t1.0, 0.5\n"
        "max_seq_len              \t512\n"
        f"backbone_config_path     \t{tmp_path / 'bert.json'}\n"
        f"vocab_path               \t{tmp_path / 'vocab.txt'}\n"
        "label                    \t007\n"
        "dropout_prob             \t0.2\n"
        "learning_rate            \t0.001\n"
        "betas                    \t0.9, 0.99\n"
        "resume                   \tNone\n"
        "数据.max_seq_len           \t64\n"
        "\n"
        "-------------------------- a configuration ---------------------------\n"
        "label_map                \t{'neg': 0, 'pos': 1}\n"
        "\n"
        "-------------------------- 数据 configuration --------------------------\n"
        "use_ema                  \tTrue\n"
        "\n"
        "----------------------- backbone configuration -----------------------\n"
        "hidden_size              \t32\n"
        "architectures            \tBert\n"
    )


@needs_shared
def test_the_second_demo_is_printed_as_palm_printed_it() -> None:
    runs = RECORDED_0 / "runs"

    def whole(
        task_instance: list[str],
        target_tag: list[int],
        mix_ratio: list[float],
        save_path: str,
        backbone: str,
        backbone_config_path: str,
        vocab_path: str,
        do_lower_case: bool,
        max_seq_len: int,
        batch_size: int,
        num_epochs: int,
        optimizer: str,
        learning_rate: float,
        warmup_proportion: float,
        weight_decay: float,
        print_every_n_steps: int,
        use_gpu: bool,
        save_every_n_steps: int,
        seed: int,
    ) -> None: ...

    def part(
        reader: str,
        paradigm: str,
        train_file: str,
        pred_file: str = "",
        pred_output_path: str = "",
        doc_stride: int = 0,
        max_query_len: int = 0,
        max_answer_len: int = 0,
        n_best_size: int = 0,
    ) -> None: ...

    config = read_config(runs / "demo2" / "config.yaml", "tasks", [])
    config.arguments(whole)
    for task in config.tasks:
        config.arguments(part, task)
    config.finish()
    log = (runs / "demo2.log").read_text(encoding="utf-8")
    for ours, theirs in zip(config.printed().split("\n\n")[:4], log.split("\n\n")[:4], strict=True):
        assert ours.splitlines()[0] == theirs.splitlines()[0]
        assert sorted(ours.splitlines()) == sorted(theirs.splitlines())


# A random configuration: any of these settings in any of the layers that reach somebody.

TEXT = st.sampled_from(["3e-5", "007", "none", "null", "yes", "", "1,2", "数据", "a: b"])
PATHS = st.sampled_from(["v.txt", "./sub/../v.txt"])
FOR_TASKS: dict[str, st.SearchStrategy[Any]] = {
    "max_seq_len": st.sampled_from([8, "8", 8.0]),
    "vocab_path": PATHS,
    "label": TEXT,
    "label_map": st.one_of(PATHS, st.none(), st.dictionaries(TEXT, st.integers(), max_size=2)),
    "use_ema": st.sampled_from([True, "no"]),
}
FOR_ALL: dict[str, st.SearchStrategy[Any]] = {
    "learning_rate": st.sampled_from([3e-5, "3e-5", 1]),
    "save_path": st.sampled_from(["out", "../out"]),
    "mix_ratio": st.sampled_from(["1.0, 0.5", [1, "0.5"]]),
    "betas": st.sampled_from(["0.9,0.99", [0.8, 0.9]]),
    "resume": st.one_of(st.none(), TEXT),
    "hidden_size": st.sampled_from([8, 16]),
    "dropout_prob": st.sampled_from([0, 0.5]),
    **FOR_TASKS,
    **{f"{task}.{name}": values for task in "ab" for name, values in FOR_TASKS.items()},
}
FLOOR = {"learning_rate": 1, "save_path": "x", "mix_ratio": "1", "max_seq_len": 2, "vocab_path": "v.txt"}
tasks = st.fixed_dictionaries({}, optional=FOR_TASKS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    everything=st.fixed_dictionaries({}, optional=FOR_ALL),
    over=st.fixed_dictionaries({}, optional={name: FOR_ALL[name] for name in FOR_ALL if "map" not in name}),
    a=tasks,
    b=tasks,
    backbone=st.fixed_dictionaries({"hidden_size": st.just(4)}, optional={"dropout_prob": st.just(0.25)}),
)
def test_any_resolved_configuration_gives_the_same_arguments(
    everything: dict[str, Any],
    over: dict[str, Any],
    a: dict[str, Any],
    b: dict[str, Any],
    backbone: dict[str, Any],
) -> None:
    Path("v.txt").touch()
    Path("sub").mkdir(exist_ok=True)
    content = {**FLOOR, **everything, "tasks": {"a": a, "b": b}, "backbone": backbone}
    argv = [f"--{name}={value}" for name, value in over.items()]
    config = read_config(content, argv=argv)
    first = received(config)
    resolved = config.resolved()
    Path("run.yaml").write_text(yaml_text(resolved), encoding="utf-8")
    for source in (resolved, Path("run.yaml")):
        again = read_config(source, argv=[])
        assert received(again) == first
        assert again.resolved() == resolved
