"""`palm compare` from the configuration to verdicts: real runs, tiny, and score tables made by hand."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import palm
from helpers import tiny
from helpers.messages import raises
from palm.cli import main
from palm.cli.starter.project import write_project
from palm.config import read_config
from palm.config.run import RunConfig, with_tasks
from palm.controller.resolve import edited_document, resolve
from palm.core.errors import ConfigError, StorageError
from palm.core.records import read_record
from palm.experiments import grid as worker
from palm.experiments.compare import document_of, planned_ways, ways_of
from palm.experiments.grid import CONFIGURATION, JOB, ROWS, Grid, GridRun, Job
from palm.experiments.outcome import Answer, Outcome, Scoring, Way, _verdict, outcome_of, read_rows
from palm.experiments.statistics import Difference
from palm.metrics import METRICS
from palm.mixing import MixRatio, Proportional, TaskProgress
from palm.train.task import StepPlan

pytestmark = pytest.mark.usefixtures("loaded_runs")


def made(folder: Path, *tasks: str, **settings: Any) -> dict[str, Any]:
    tiny.write_files(folder)
    given = tiny.config(
        folder, *tasks, with_dev=True, **{"num_epochs": 0.4, "mix_ratio": [1, 0.5], **settings}
    )
    del given["overwrite"]
    return given


def command(folder: Path) -> list[str]:
    """`palm compare` of a target with a helper, two seeds, into the folder `grid`."""
    given = made(folder, "cls", "match", target_tag=[1, 0])
    (folder / "config.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return ["compare", str(folder / "config.yaml"), "--seeds", "2", "--output", str(folder / "grid")]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the six runs of `command`, for tests to copy."""
    folder = tmp_path_factory.mktemp("compared")
    assert main(command(folder)) == 0
    return folder


def copied(compared: Path, folder: Path) -> list[str]:
    """The same command, with a copy of the runs."""
    shutil.copytree(compared / "grid", folder / "grid")
    (folder / "config.yaml").write_bytes((compared / "config.yaml").read_bytes())
    return ["compare", str(folder / "config.yaml"), "--seeds", "2", "--output", str(folder / "grid")]


def test_a_comparison_is_trained_once_and_continues_with_what_is_missing(
    compared: Path, tmp_path: Path
) -> None:
    copied(compared, tmp_path)
    runs = tmp_path / "grid" / "runs"
    ways = ("alone-cls-6-updates", "alone-cls", "together")
    labels = [f"{variant}-seed{seed}" for variant in ways for seed in (1, 2)]
    names = sorted(path.name for path in runs.iterdir())
    assert [name.rpartition("-")[0] for name in names] == labels
    found = json.loads((tmp_path / "grid" / "compare.json").read_text(encoding="utf-8"))
    steps = [each["steps"] for each in found["ways"]]
    assert steps == [{"cls": 4, "match": 2}, {"cls": 4}, {"cls": 6}]
    assert sorted(run for each in found["ways"] for run in each["runs"]) == names
    results = [json.loads((runs / name / "result.json").read_text(encoding="utf-8")) for name in names]
    assert [result["steps"]["cls"] for result in results] == [6, 6, 4, 4, 4, 4]
    scores = found["ways"][1]["scores"]["cls"]["per_seed"]
    assert scores == [result["test"]["cls"]["scores"]["accuracy"] for result in results[2:4]]
    assert found["auxiliaries"] == {"match": {"cls": "no difference"}}
    table = list(csv.reader((tmp_path / "grid" / "compare.csv").open(encoding="utf-8")))
    expected = [["cls", "together", "alone-cls"], ["cls", "together", "alone-cls-6-updates"]]
    assert [row[:2] + row[3:4] for row in table[1:]] == expected

    # What is done is reused.
    times = {name: (runs / name / "result.json").stat().st_mtime_ns for name in names}
    again = palm.compare(tmp_path / "config.yaml", seeds=2, output=tmp_path / "grid")
    assert {name: (runs / name / "result.json").stat().st_mtime_ns for name in times} == times
    assert json.loads(json.dumps(again.as_json()["answers"])) == found["answers"]


def test_the_folder_of_a_run_is_not_one_of_comparisons(compared: Path, tmp_path: Path) -> None:
    words = copied(compared, tmp_path)
    run = next((tmp_path / "grid" / "runs").glob("*/out/run.json")).parent
    before = sorted(run.rglob("*"))
    with raises(StorageError, "--output", str(run)):
        palm.compare(words[1], seeds=2, output=run)
    assert sorted(run.rglob("*")) == before


def test_what_cannot_be_compared_is_reported_before_anything_is_trained(tmp_path: Path) -> None:
    given = made(tmp_path, "cls", "match")
    with pytest.raises(ConfigError, match="seeds: 1"):
        palm.compare(given, seeds=1)
    with pytest.raises(ConfigError, match=r"test: 'clas'.*cls, match"):
        palm.compare(given, test={"clas": tmp_path / "cls.tsv"})
    del given["tasks"]["match"]["dev_file"]
    with pytest.raises(ConfigError, match=r"'match'.*--test match=FILE"):
        palm.compare(given)
    with pytest.raises(ConfigError, match="task_instance"):
        palm.compare({**given, "mix_ratio": [1]}, argv=["--task_instance", "cls"])
    assert not (tmp_path / "out_compare").exists()


def resolved(given: Any) -> RunConfig:
    return resolve(read_config(given, argv=[]))


def test_a_document_of_some_tasks_has_nothing_of_the_others(tmp_path: Path) -> None:
    given = made(tmp_path, "cls", "mrc", "mlm", mix_ratio=[1, 1, 0.5], target_tag=[1, 1, 0])
    given |= {"doc_stride": 9, "mrc.batch_size": 3, "mixing": "temperature"}
    given["mixing_temperature"] = 3
    whole = resolved(given)
    two = resolved(with_tasks(whole, ["cls", "mlm"]).to_dict())
    assert [task.name for task in two.tasks] == ["cls", "mlm"]
    assert (two.settings.mix_ratio, two.settings.target_tag) == ([1.0, 0.5], [1, 0])
    assert two.mixing.settings["mixing_temperature"] == 3.0
    one = resolved(edited_document(with_tasks(whole, ["mrc"]), {"random_seed": 7}))
    assert [task.name for task in one.tasks] == ["mrc"]
    assert one.tasks[0].settings.batch_size == 3
    assert one.settings.random_seed == 7


SLOT = TaskProgress(name="slot", mix_ratio=0.7, rows=300, steps_per_epoch=30)
INTENT = TaskProgress(name="intent", mix_ratio=1.3, rows=90, steps_per_epoch=9)
MLM = TaskProgress(name="mlm", mix_ratio=0.5, rows=1000, steps_per_epoch=100, is_target=False)


def planned(*tasks: TaskProgress, mixing: Any = None, epochs: float = 1) -> list[Way]:
    whole = StepPlan(tasks=tasks, mixing=mixing or MixRatio()).over_epochs(epochs)
    return ways_of(whole, epochs)


def test_ways_are_together_alone_and_without_each_auxiliary() -> None:
    assert {way.name: list(way.tasks) for way in planned(SLOT, INTENT, MLM)} == {
        "together": ["slot", "intent", "mlm"],
        "alone-slot": ["slot"],
        "alone-intent": ["intent"],
        "without-mlm": ["slot", "intent"],
    }
    assert [way.name for way in planned(SLOT, MLM)] == ["together", "alone-slot"]


@pytest.mark.parametrize("mixing", [MixRatio(), Proportional()])
@pytest.mark.parametrize("epochs", [1, 2.3, 7])
def test_a_target_has_the_same_steps_in_every_way(mixing: Any, epochs: float) -> None:
    whole, *parts = planned(SLOT, INTENT, MLM, mixing=mixing, epochs=epochs)
    for way in parts:
        assert way.steps == {name: whole.steps[name] for name in way.tasks}


def test_a_further_variant_has_the_steps_of_its_own_settings_and_can_be_added_later(
    compared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = copied(compared, tmp_path)
    also = ["--also", "equal:mix_ratio=1,1", "--also", "equal:tasks_per_step=all"]
    assert main([*words, *also]) == 0
    found = json.loads((tmp_path / "grid" / "compare.json").read_text(encoding="utf-8"))
    updates = {each["name"]: each["updates"] for each in found["ways"]}
    assert updates == {"together": 6, "alone-cls": 4, "equal": 4, "alone-cls-6-updates": 6}
    pairs = [(answer["way"], answer["against"]) for answer in found["answers"]]
    assert sorted(pairs) == [
        ("equal", "alone-cls"),
        ("equal", "together"),
        ("together", "alone-cls"),
        ("together", "alone-cls-6-updates"),
    ]
    name = next(each["runs"][1] for each in found["ways"] if each["name"] == "equal")
    run = yaml.safe_load((tmp_path / "grid/runs" / name / "config.yaml").read_text(encoding="utf-8"))
    assert (run["global"]["tasks_per_step"], run["global"]["random_seed"]) == ("all", 2)
    scores = {each["name"]: np.array(each["scores"]["cls"]["per_seed"]) for each in found["ways"]}
    of_pair = found["answers"][pairs.index(("equal", "alone-cls"))]
    assert of_pair["difference"]["mean"] == pytest.approx(
        100 * (scores["equal"] - scores["alone-cls"]).mean()
    )
    capsys.readouterr()
    assert main(words) == 0  # without it, what is there stays
    assert "equal " not in capsys.readouterr().out.partition("\n")[2]


@pytest.mark.parametrize(
    ("also", "named"),
    [
        ({"alone-cls": {}}, "also: 'alone-cls' "),
        ({"less": {"task_instance": "cls", "mix_ratio": "1"}}, "also: less "),
        ({"more": {"tasks_per_stp": 2}}, "'tasks_per_step'"),
        ({"parts": {"stages": [{"tasks": ["cls"]}]}}, "also: parts "),
        ({"staged": {"tasks_per_step": 2}}, "also: 'staged' "),
    ],
)
def test_a_further_variant_that_cannot_be_is_refused(
    also: dict[str, dict[str, Any]], named: str, tmp_path: Path
) -> None:
    given = made(tmp_path, "cls", "match")
    with pytest.raises(ConfigError, match=named):
        palm.compare(given, also=also)


WAYS = [Way("together", ["a", "b"], {}, 20, is_whole=True), Way("alone-a", ["a"], {}, 20)]
TEST = {"a": Scoring("test.tsv", "accuracy", 400, "best", is_dev=False)}


def table(ways: list[Way] = WAYS, num_seeds: int = 5, **shares: float) -> Outcome:
    """The outcome of made-up runs that are right on these shares of 400 rows."""
    rng = np.random.default_rng(1)
    difficulty = rng.random(400)

    def run(share: float) -> list[Any]:
        is_right = difficulty + rng.normal(0, 0.05, 400) < share
        return [({"label": int(right)}, {"label": 1}) for right in is_right]

    rows = {name.replace("_", "-"): [run(share) for _ in range(num_seeds)] for name, share in shares.items()}
    return outcome_of(ways, {"a": rows}, TEST, range(1, num_seeds + 1), "Equal.", resamples=400)


def test_a_helper_that_helps_is_called_helpful_and_by_how_much() -> None:
    found = table(together=0.9, alone_a=0.8)
    assert found.auxiliaries == {"b": {"a": "helpful"}}
    (answer,) = found.answers
    assert (answer.direction, answer.is_certain) == (1, True)
    told = answer.difference
    assert f"{told.mean:.1f} points of accuracy ({told.low:+.1f} to {told.high:+.1f})" in found.verdicts["a"]
    assert found.verdicts["a"].endswith("; b helpful")
    assert 8 < told.mean < 12


def test_a_way_is_judged_against_the_better_of_a_target_alone() -> None:
    ways = [WAYS[0], Way("alone-a", ["a"], {}, 10), Way("alone-a-20-updates", ["a"], {}, 20)]
    rng = np.random.default_rng(2)

    def runs(share: float) -> list[Any]:
        return [[({"label": int(r)}, {"label": 1}) for r in rng.random(400) < share] for _ in range(5)]

    def judged(few: float, many: float) -> list[tuple[str, bool]]:
        rows = {"together": runs(0.8), "alone-a": runs(few), "alone-a-20-updates": runs(many)}
        found = outcome_of(ways, {"a": rows}, TEST, range(1, 6), "Equal.", resamples=50)
        assert [each.comparisons for each in found.answers] == [2, 2]
        assert set(found.auxiliaries["b"]) == {"a"}
        return [(each.against, each.judged) for each in found.answers]

    assert judged(0.5, 0.7) == [("alone-a", False), ("alone-a-20-updates", True)]
    assert judged(0.7, 0.5) == [("alone-a", True), ("alone-a-20-updates", False)]


def test_a_further_variant_is_compared_with_each_target_alone() -> None:
    ways = [*WAYS, Way("staged", ["a", "b"], {}, 20, is_whole=True)]
    found = table(ways, together=0.8, alone_a=0.8, staged=0.9)
    expected = [("together", "alone-a", 0), ("staged", "together", 1), ("staged", "alone-a", 1)]
    assert [(answer.way, answer.against, answer.direction) for answer in found.answers] == expected
    assert found.auxiliaries == {"b": {"a": "undecided"}}


def answered(*per_seed: list[float], metric: str = "accuracy", **asked: list[float]) -> Outcome:
    """The outcome of variants right on these shares of 1000 rows more than the reference, seed by seed."""
    shares = {"together": [0.0] * len(per_seed[0])} | {f"without-{k}": own for k, own in enumerate(per_seed)}
    ways = [Way(name, [name], {}, 20, is_whole=name in asked) for name in (shares | asked)]
    rows = {
        name: [[({"label": int(k < 500 + 1000 * share)}, {"label": 1}) for k in range(1000)] for share in own]
        for name, own in (shares | asked).items()
    }
    test = {"a": Scoring("test.tsv", metric, 1000, "last", is_dev=False)}
    seeds = range(len(per_seed[0]))
    return outcome_of(ways, {"a": rows}, test, seeds, "Equal.", resamples=50)


def test_intervals_are_corrected_as_verdicts_are() -> None:
    large = [0.1, 0.3, 0.2, 0.35, 0.05]  # p 0.03 by itself
    small = [0.1, -0.1, 0.05, -0.05, 0.02]
    (alone,) = answered(large).answers
    assert (alone.direction, alone.is_certain, alone.comparisons) == (1, True, 1)
    assert alone.difference.low > 0
    first = answered(large, small, small).answers[0]
    assert (first.direction, first.is_certain, first.comparisons) == (1, False, 3)
    assert first.difference.p_value < 0.05 < first.p_corrected
    assert first.difference.low < 0 < first.difference.mean == pytest.approx(20, abs=0.1)


def test_a_variant_that_was_asked_for_changes_no_verdict_of_the_planned_ones() -> None:
    large = [0.15, 0.25, 0.2, 0.3, 0.1]
    planned = answered(large).answers[0]
    both = answered(large, twin=[0.0, 0.1, -0.1, 0.05, 0.0]).answers
    assert [(each.way, each.comparisons) for each in both] == [("without-0", 1), ("twin", 1)]
    assert both[0] == planned


def test_a_score_has_the_name_that_evaluations_give_it() -> None:
    names = {name: Scoring("t.tsv", name, 9, "last", is_dev=False).score for name in ("label_f1", "squad")}
    assert names == {"label_f1": "micro_f1", "squad": "f1"}


def test_intervals_end_where_the_metric_does() -> None:
    (two_seeds,) = answered([0.0, 0.4]).answers
    assert (two_seeds.difference.low, two_seeds.difference.high) == (-100, 100)
    (correlated,) = answered([0.0, 0.4], metric="mcc").answers
    assert correlated.difference.high <= 200


def test_a_score_that_is_not_a_number_is_the_worst() -> None:
    def run(loss: float) -> list[Any]:
        return [({"words": [{"log_prob": -loss, "word": 1, "predicted": 1}]}, {"words": []})] * 20

    rows = {"together": [run(math.nan), run(1.0)], "alone-a": [run(2.0), run(1.5)]}
    test = {"a": Scoring("test.tsv", "perplexity", 20, "last", is_dev=False)}
    found = outcome_of(WAYS, {"a": rows}, test, [1, 2], "Equal.", resamples=20)
    assert found.ways[0].scores["a"].per_seed == pytest.approx([math.exp(2), math.exp(1)])
    rows = {"together": [[({"value": 1.0}, {"value": k}) for k in range(20)]] * 2}
    rows["alone-a"] = [[({"value": -k}, {"value": k}) for k in range(20)]] * 2
    test = {"a": Scoring("test.tsv", "pearson", 20, "last", is_dev=False)}
    found = outcome_of(WAYS, {"a": rows}, test, [1, 2], "Equal.", resamples=20)
    assert [own.scores["a"].mean for own in found.ways] == [-1.0, pytest.approx(-1.0)]


def test_a_verdict_is_one_short_line() -> None:
    tasks = ["target", *(f"auxiliary_{k}" for k in range(12))]
    ways = [Way("together", tasks, {}, 20, is_whole=True), Way("alone-target", ["target"], {}, 20)]
    ways += [Way(f"without-{task}", [t for t in tasks if t != task], {}, 20) for task in tasks[1:]]
    rows = {way.name: [[({"label": 1}, {"label": k % 2}) for k in range(40)]] * 2 for way in ways}
    test = {"target": Scoring("test.tsv", "accuracy", 40, "last", is_dev=False)}
    found = outcome_of(ways, {"target": rows}, test, [1, 2], "Equal.", resamples=20)
    alone = "target: together and alone: no difference (+0.0 to +0.0); "
    assert found.verdicts == {"target": f"{alone}auxiliaries: 12 no difference"}
    assert len(found.auxiliaries) == len(found.rows()) - 2 == 12


def test_a_verdict_that_does_not_fit_is_counted_and_then_shortened() -> None:
    alone = [
        answer("together", "alone-a", "points of relation_boundary_f1", direction=-1, is_certain=True),
        answer("each_step", "alone-a", "points of relation_boundary_f1", more_seeds=12),
    ]
    effects = {"masked": "helpful", "b": "perhaps harmful"}
    first = "together worse than alone by 1.2 points of relation_boundary_f1 (-2.0 to -0.4)"
    second = "each_step and alone: undecided (-2.0 to -0.4), about 12 more seeds would decide"
    assert _verdict("a", alone[:1], effects) == f"a: {first}; masked helpful; b perhaps harmful"
    assert _verdict("a", alone, {}) == f"a: {first}; other ways: 1 undecided"
    assert _verdict("a", alone[1:], effects) == f"a: {second}; masked helpful; b perhaps harmful"
    short = "together worse than alone by 1.2 points (-2.0 to -0.4)"
    rest = "other ways: 1 undecided; auxiliaries: 1 helpful, 1 perhaps harmful"
    assert _verdict("a", alone, effects) == f"a: {short}; 3 more in the table"
    assert len(f"a: {short}; {rest}") > 120
    assert _verdict("a", alone[:1], dict.fromkeys("bcdefghijklmnopq", "undecided")) == (
        f"a: {first}; auxiliaries: 16 undecided"
    )
    long = _verdict(100 * "n", alone, effects)
    assert (len(long), long.partition("…")[2]) == (120, f": {short}; 3 more in the table")


def answer(way: str, against: str, unit: str, **decided: Any) -> Answer:
    difference = Difference(-1.2, 0.1, 0.1, 0.0, -2.0, -0.4, 0.01, [-1.2, -1.2])
    return Answer("a", way, against, unit, difference, judged=True, **decided)


def test_stages_are_a_way_with_the_lengths_that_they_have(tmp_path: Path) -> None:
    stages = [{"name": "joint"}, {"tasks": ["cls"], "num_epochs": 0.2, "start_from": "joint"}]
    given = made(
        tmp_path, "cls", "match", target_tag=[1, 0], stages=stages, balance="uncertainty", tasks_per_step=2
    )
    runs = {"together": resolved(given)}
    ways = planned_ways(runs)
    assert [(way.name, dict(way.steps), way.updates) for way in ways] == [
        ("together", {"cls": 4, "match": 2}, 4),
        ("alone-cls", {"cls": 4}, 4),
        ("staged", {"cls": 6, "match": 2}, 6),
        ("alone-cls-6-updates", {"cls": 6}, 6),
    ]
    together, alone, staged, _ = (document_of(runs, way, 3) for way in ways)
    assert ["stages" in each["global"] for each in (together, alone, staged)] == [False, False, True]
    assert "balance" not in alone["global"]
    staged["global"]["save_path"] = str(tmp_path / "staged")
    result = palm.Controller(staged, argv=[]).train()
    assert result.steps == {"cls": 6, "match": 2}
    assert result.stages == {"cls": "2-cls", "match": "1-joint"}


def with_a_twin(folder: Path, **settings: Any) -> dict[str, Any]:
    """Targets match and twin; twin shares the rows of cls, which helps."""
    given = made(folder, "match", "cls", **{"mix_ratio": None, **settings})
    given["tasks"]["twin"] = {**given["tasks"]["cls"], "share_rows_with": "cls"}
    given |= {"task_instance": ["match", "cls", "twin"], "target_tag": [1, 0, 1]}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tasks_per_step": 2},
        {"tasks_per_step": "all", "balance": "uncertainty"},
        {"balance": "uncertainty"},
        {"max_steps": 7},
        {"num_epochs": None, "max_steps": 7},
    ],
    ids=str,
)
def test_every_variant_trains_the_planned_steps_also_where_tasks_depend_on_each_other(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    runs = {"together": resolved(with_a_twin(tmp_path, **settings))}
    ways = planned_ways(runs)
    names = [way.name for way in ways if not way.name.endswith("-updates")]
    assert names == ["together", "alone-match", "alone-twin", "without-cls"]
    for way in ways:
        document = document_of(runs, way, 1)
        document["global"]["save_path"] = str(tmp_path / way.name)
        training = palm.Controller(document, argv=[]).training()
        assert sum(1 for _ in training.steps()) == way.updates
        assert {task.name: task.step for task in training.tasks} == way.steps
        for name in {"match", "twin"} & (way.steps.keys() if way.name in names else set()):
            assert way.steps[name] == ways[0].steps[name]


def test_a_variant_that_cannot_be_built_is_refused_before_the_first_run(tmp_path: Path) -> None:
    given = made(tmp_path, "cls", "match", target_tag=[1, 0])
    also = {"wide": {"cls.lora": {"targets": ["nowhere"]}}}
    with raises(ConfigError, "nowhere"):
        palm.compare(given, also=also, output=tmp_path / "grid")
    assert not list((tmp_path / "grid").glob("runs/*"))


def scored_without_training(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the training of runs; the names of those that would be trained."""
    names: list[str] = []

    def train(grid: Grid, runs: Iterable[GridRun]) -> Iterator[tuple[GridRun, Any]]:
        for run in grid.different(runs):
            folder = grid.prepare(run)
            (folder / ROWS).mkdir(exist_ok=True)
            rows = (json.dumps({"prediction": {"label": k % 2}, "truth": {"label": 1}}) for k in range(9))
            (folder / ROWS / "cls.jsonl").write_text("\n".join(rows), encoding="utf-8")
            tested = {"metric": "accuracy", "model": "best_model", "scores": {"accuracy": 0.5}}
            names.append(run.label)
            yield run, {"state": "done", "why": "", "seconds": 1.0, "test": {"cls": tested}}

    monkeypatch.setattr(Grid, "train", train)
    return names


def test_ways_that_are_equal_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = scored_without_training(monkeypatch)
    given = made(tmp_path, "cls", "match", target_tag=[1, 0])
    found = palm.compare(given, seeds=2, also={"same": {"mix_ratio": "1,0.5"}})
    assert len(names) == 6
    assert not any(name.startswith("same") for name in names)
    assert "same" in {way.name for way in found.ways}


def test_the_table_is_written_for_a_spreadsheet_or_for_latex(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored_without_training(monkeypatch)
    given = made(tmp_path, "cls", "match", target_tag=[1, 0])
    found = palm.compare(given, seeds=2, output=tmp_path / "table.csv")
    assert list(csv.reader((tmp_path / "table.csv").open(encoding="utf-8"))) == found.rows()
    assert palm.compare(given, seeds=2, output=tmp_path / "table.tex").rows() == found.rows()
    lines = (tmp_path / "table.tex").read_text(encoding="utf-8").splitlines()
    assert (lines[0], lines[2], lines[-1]) == (r"\begin{tabular}{llllllllll}", r"\hline", r"\end{tabular}")
    assert lines[1].startswith(r"task & way & score & against & score & difference & 95 \% interval & p ")
    assert lines[3].startswith(r"cls & together & 0.4444 $\pm$ 0.0000 & alone-cls & ")
    assert len(lines) == len(found.rows()) + 3


KINDS = {
    "multi_label": "lrap",
    "span": "span_f1",
    "relation": "relation_strict_f1",
    "multiple_choice": "accuracy",
    "ranking": "mrr",
    "embedding": "mrr",
    "ordinal": "qwk",
    "count": "poisson_deviance",
}
"""Kinds of tasks of a starter project, and the number that decides about each."""


def test_every_kind_of_task_is_compared_with_itself_alone(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    write_project(folder, {kind: kind for kind in KINDS})
    given = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    given |= {"num_epochs": 0.2, "mixing": "round_robin", "precision": "fp32", "eval_every_epoch": False}
    given |= {"num_hidden_layers": 1}
    (folder / "config.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    configs = {"together": resolved(folder / "config.yaml")}
    tests = {task.name: str(task.settings.dev_file) for task in configs["together"].tasks}
    grid = Grid(tmp_path / "grid")
    ways = planned_ways(configs)[: 1 + len(KINDS)]  # without those of as many updates
    results = {}
    rows: dict[str, dict[str, list[Any]]] = {kind: {} for kind in KINDS}
    for seed, way in ((seed, way) for seed in (1, 2) for way in ways):
        own = {kind: tests[kind] for kind in way.tasks}
        run = GridRun(f"{way.name}-seed{seed}", document_of(configs, way, seed), own, "last")
        place = grid.prepare(run)  # trained here, because a process for each takes a minute
        controller = palm.Controller(place / CONFIGURATION, argv=[])
        results[run.label] = worker._trained(place, controller, read_record(place / JOB, Job))
        for kind in results[run.label]["test"]:
            found = read_rows(place / ROWS / f"{kind}.jsonl")
            rows[kind].setdefault(run.label.partition("-seed")[0], []).append(found)
    scorings = {}
    for kind, metric in KINDS.items():
        name = results["together-seed1"]["test"][kind]["metric"]
        assert METRICS[name].main == metric
        scorings[kind] = Scoring("dev", name, len(rows[kind]["together"][0]), "last", is_dev=True)
    outcome = outcome_of(ways, rows, scorings, [1, 2], "Equal.", resamples=20)
    compared = {(answer.target, answer.against) for answer in outcome.answers}
    assert compared == {(kind, f"alone-{kind}") for kind in KINDS}
    for way in outcome.ways:
        for kind, scores in way.scores.items():
            runs = [results[f"{way.name}-seed{seed}"]["test"][kind]["scores"] for seed in (1, 2)]
            assert scores.per_seed == [pytest.approx(run[KINDS[kind]]) for run in runs]
