"""Curves on a page and as text; seeds as their mean."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import palm
from palm.cli import main
from palm.report.charts import Chart
from palm.report.history import read_history
from palm.report.plot import charts_of, terminal_plot


def changed(run: Path, name: str, seed: int, shift: float = 0.0, **settings: str) -> Path:
    """A copy of a run with another seed, and scores and losses that are higher by `shift`."""
    other = run.with_name(name)
    shutil.copytree(run, other)
    config = (other / "resolved_config.yaml").read_text(encoding="utf-8")
    config = config.replace("global:\n", f"global:\n  random_seed: {seed}\n", 1)
    for setting, value in settings.items():
        line = next(line for line in config.splitlines() if line.startswith(f"  {setting}:"))
        config = config.replace(line, f"  {setting}: {value}")
    (other / "resolved_config.yaml").write_text(config, encoding="utf-8")
    lines = []
    for text in (other / "history.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(text)
        if event["event"] == "step":
            event["loss"] += shift
        lines.append(json.dumps(event))
    (other / "history.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return other


def charts_by_title(*runs: Path) -> dict[str, Chart]:
    return {chart.title: chart for chart in charts_of(runs)}


def test_the_points_of_a_chart_are_those_of_the_history(run: Path) -> None:
    charts = charts_by_title(run)
    history = read_history(run)
    raw, mean, *_ = charts["mrc: loss"].lines
    steps = [step for step in history.steps if step.task == "mrc"]
    assert (list(raw.curve.points), raw.faint) == ([(step.step, step.loss) for step in steps], True)
    assert list(mean.curve.points) == [(step.step, step.mean_loss) for step in steps]
    f1 = [(each.step, each.scores["mrc"]["f1"]) for each in history.evaluations]
    assert list(charts["mrc: f1"].lines[0].curve.points) == f1
    # cls has two metrics, match two, mlm two, mrc two, each task a loss
    assert len(charts) == 12


def test_runs_are_named_by_the_settings_in_which_they_differ_and_seeds_have_one_colour(run: Path) -> None:
    others = [changed(run, "a", 1), changed(run, "b", 2), changed(run, "c", 1, learning_rate="0.5")]
    lines = [line for line in charts_by_title(*others)["cls: loss"].lines if not line.faint]
    assert [(line.curve.name, line.colour) for line in lines] == [
        ("learning_rate 0.003 (a)", 0),
        ("learning_rate 0.003 (a), dev loss", 0),
        ("learning_rate 0.003 (b)", 0),
        ("learning_rate 0.003 (b), dev loss", 0),
        ("learning_rate 0.5", 1),
        ("learning_rate 0.5, dev loss", 1),
    ]
    assert [line.curve.name for line in charts_by_title(*others[:2])["cls: accuracy"].lines] == ["a", "b"]


@pytest.mark.parametrize("name", ["c.html", None])
def test_the_command_writes_a_page(run: Path, name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2", reason="the extra report is not installed")
    output = run / "curves.html" if name is None else run.parent / name
    given = [] if name is None else ["--output", str(output)]
    assert main(["plot", str(run), *given]) == 0
    assert output.read_text(encoding="utf-8").count("<figure>") == 12
    assert capsys.readouterr().out == f"{output}\n"


def test_a_picture_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(run), "--output", str(run / "c.png")]) == 2
    assert "c.png: " in capsys.readouterr().err


def test_the_terminal_gets_text(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotext", reason="the extra plot is not installed")
    assert main(["plot", str(run), "--terminal"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text  # it is not a terminal
    assert [line.strip() for line in text.splitlines() if ": " in line] == [
        f"{task}: {what}"
        for task, metrics in [
            ("cls", ("accuracy", "macro_f1")),
            ("match", ("accuracy", "macro_f1")),
            ("mlm", ("perplexity", "word_accuracy")),
            ("mrc", ("f1", "exact_match")),
        ]
        for what in ("loss", *metrics)
    ]
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b[" in terminal_plot(run)


def test_the_names_of_curves_lie_on_no_curve(run: Path) -> None:
    pytest.importorskip("plotext", reason="the extra plot is not installed")
    others = [changed(run, "a", 1), changed(run, "b", 1, learning_rate="0.5")]
    loss, *_ = terminal_plot(*others, width=80, colour=False).split("\n\n")
    lines = loss.splitlines()
    end = next(number for number, line in enumerate(lines) if "└" in line)
    assert sum(name in line for line in lines[:end] for name in ("0.003", "0.5")) == 4
    numbers = [number for number, line in enumerate(lines) if line.split("┤")[0].strip()[:1].isdigit()]
    assert numbers[0] > end


@pytest.mark.parametrize(("missing", "call"), [("jinja2", palm.plot), ("plotext", terminal_plot)])
def test_the_message_says_what_to_install(
    run: Path, missing: str, call: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(palm.PalmError, match=f"{missing}: pip install"):
        call(run)


def test_no_run_is_an_error() -> None:
    with pytest.raises(palm.PalmError, match="run"):
        palm.plot()
