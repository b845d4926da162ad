"""Several runs on one page; seeds in one colour."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import palm
from palm.report.curves import Curve
from palm.report.history import read_history
from palm.report.rendering import scripts
from palm.report.run import read_run
from palm.report.several import _settings, curves_of, differing, named


def changed(run: Path, name: str, seed: int, **settings: str) -> Path:
    """A copy of a run with another seed and other settings."""
    other = run.with_name(name)
    shutil.copytree(run, other)
    config = (other / "resolved_config.yaml").read_text(encoding="utf-8")
    config = config.replace("global:\n", f"global:\n  random_seed: {seed}\n", 1)
    for setting, value in settings.items():
        line = next(line for line in config.splitlines() if line.startswith(f"  {setting}:"))
        config = config.replace(line, f"  {setting}: {value}")
    (other / "resolved_config.yaml").write_text(config, encoding="utf-8")
    return other


def curves_by_title(*folders: Path) -> dict[str, list[Curve]]:
    runs = [read_run(folder) for folder in folders]
    settings = [_settings(run) for run in runs]
    names = named(runs, settings, differing(settings))
    return {title: found for title, _, found in curves_of(runs, *names)}


def test_the_points_of_a_chart_are_those_of_the_history(run: Path) -> None:
    charts = curves_by_title(run)
    history = read_history(run)
    mean, dev = charts["mrc: loss"]
    assert mean.points == [(each.step, each.means["mrc"]) for each in history.losses if "mrc" in each.means]
    assert (dev.is_dashed, dev.group) == (True, "run")
    f1 = [(each.step, each.scores["mrc"]["f1"]) for each in history.evaluations]
    assert charts["mrc: f1"][0].points == f1
    # cls has two metrics, match two, mlm two, mrc two, each task a loss
    assert len(charts) == 12


def test_runs_are_named_by_the_settings_in_which_they_differ_and_seeds_have_one_colour(run: Path) -> None:
    others = [changed(run, "a", 1), changed(run, "b", 2), changed(run, "c", 1, learning_rate="0.5")]
    expected = [("a: 0.003", "a: 0.003"), ("b: 0.003", "a: 0.003"), ("c: 0.5", "c: 0.5")]
    assert [(each.name, each.group) for each in curves_by_title(*others)["cls: accuracy"]] == expected
    assert [each.name for each in curves_by_title(*others[:2])["cls: accuracy"]] == ["a", "b"]
    assert len({each.group for each in curves_by_title(*others[:2])["cls: accuracy"]}) == 1


def test_several_runs_are_a_table_with_what_differs_and_their_scores(run: Path) -> None:
    pytest.importorskip("altair", reason="the extra report is not installed")
    others = [changed(run, "a", 1), changed(run, "c", 1, learning_rate="0.5")]
    text = palm.write_report(others).read_text(encoding="utf-8")
    best = read_history(run).best("cls")
    assert best is not None
    rows = text.partition('id="runs"')[2].partition("<tbody>")[2].partition("</tbody>")[0].split("<tr>")[1:]
    score = best.scores["cls"]["accuracy"]
    low, high = best.rows["cls"].intervals["accuracy"]
    shown = f'data-value="{score}"><b>{score:.2f}</b> accuracy'  # two digits, because 13 rows bear no more
    assert [row.count(shown) for row in rows] == [1, 1]
    assert [row.count(f"{low:.2f} to {high:.2f}</span>") for row in rows] == [1, 1]
    assert ["<td>0.003</td>" in rows[0], "<td>0.5</td>" in rows[1]] == [True, True]
    assert text.count('<figure class="drawn">') == 12


def test_a_notebook_shows_the_page_in_a_frame(run: Path) -> None:
    pytest.importorskip("altair", reason="the extra report is not installed")
    page = palm.plot(run)
    assert Path(page) == run / "curves.html"
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert shown.count("<") == 2  # the page is the value of an attribute


def test_a_picture_is_refused(run: Path) -> None:
    with pytest.raises(palm.PalmError, match=r"c\.png: "):
        palm.plot(run, output=run / "c.png")


def test_the_message_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(palm.PalmError, match=r"vl.convert.*: pip install"):
        palm.plot(run)


def test_no_run_is_an_error() -> None:
    with pytest.raises(palm.PalmError, match="run"):
        palm.plot()
