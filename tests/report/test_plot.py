"""Curves as a figure, a picture and text; seeds as their mean with its spread."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import palm
from palm.cli import main
from palm.report.curves import losses
from palm.report.groups import band, grouped_runs
from palm.report.history import read_history
from palm.report.plot import terminal_plot
from palm.report.run import read_run

pytest.importorskip("matplotlib", reason="the extra plot is not installed")


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


def test_the_points_of_a_figure_are_those_of_the_history(run: Path) -> None:
    figure = palm.plot(run)
    history = read_history(run)
    axes = {each.get_title(): each for each in figure.axes}
    raw, smooth, *_ = axes["mrc: loss"].lines
    assert raw.get_xydata().tolist() == [
        [step.step, step.loss] for step in history.steps if step.task == "mrc"
    ]
    assert smooth.get_ydata()[-1] == pytest.approx(losses(history)["mrc"].smoothed().points[-1][1])
    f1 = [[each.step, each.scores["mrc"]["f1"]] for each in history.evaluations]
    assert axes["mrc: f1"].lines[0].get_xydata().tolist() == f1
    assert [each.get_xlabel() for each in axes.values() if each.axison] == ["global step"] * 12
    # cls has two metrics, match two, mlm two, mrc two, each task a loss
    assert len([each for each in axes.values() if each.axison]) == 12


def test_seeds_are_drawn_as_their_mean_with_its_standard_deviation(run: Path) -> None:
    runs = [
        read_run(changed(run, f"seed{seed}", seed, shift)) for seed, shift in ((1, 0.0), (2, 1.0), (3, 2.0))
    ]
    (group,) = grouped_runs(runs)
    assert group.name == "seed1 (3 runs)"
    found = band(group, lambda history: losses(history)["cls"])
    assert found is not None
    points = losses(runs[1].history)["cls"].points
    assert found.mean == pytest.approx(np.interp(found.steps, *zip(*points, strict=True)))
    assert found.spread == pytest.approx(np.ones(200))


def test_runs_of_other_settings_stand_beside_each_other_under_these(run: Path) -> None:
    others = [changed(run, "a", 1), changed(run, "b", 2), changed(run, "c", 1, learning_rate="0.5")]
    groups = grouped_runs([read_run(other) for other in others])
    assert [group.name for group in groups] == ["learning_rate 0.003 (2 runs)", "learning_rate 0.5"]
    axes = palm.plot(*others).axes[0]
    assert [line.get_label() for line in axes.lines if not line.get_label().startswith("_")] == [
        "learning_rate 0.003 (2 runs)",
        "learning_rate 0.003 (2 runs), dev loss",
        "learning_rate 0.5",
        "learning_rate 0.5, dev loss",
    ]


@pytest.mark.parametrize(("name", "start"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml"), (None, b"\x89PNG")])
def test_the_command_writes_a_picture(
    run: Path, name: str | None, start: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    output = run / "curves.png" if name is None else run.parent / name
    given = [] if name is None else ["--output", str(output)]
    assert main(["plot", str(run), *given]) == 0
    assert output.read_bytes().startswith(start)
    assert capsys.readouterr().out == f"{output}\n"


def test_a_picture_of_unknown_form_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(run), "--output", str(run / "c.bmp2")]) == 2
    assert "c.bmp2: " in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("missing", "call", "message"),
    [
        ("matplotlib", palm.plot, r"plots need matplotlib: pip install 'palm-torch\[plot\]'"),
        ("plotext", terminal_plot, r"plots in a terminal need plotext: pip install 'palm-torch\[plot\]'"),
    ],
)
def test_it_is_told_what_to_install(
    run: Path, missing: str, call: Callable[..., object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(palm.PalmError, match=message):
        call(run)


def test_no_run_is_an_error() -> None:
    with pytest.raises(palm.PalmError, match="run"):
        palm.plot()
