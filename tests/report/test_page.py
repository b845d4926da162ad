"""The report: one page, with the numbers of the history, that runs nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palm
from helpers.browser import HAS_BROWSER, browser
from helpers.runs import HOSTILE
from palm.cli import main
from palm.core.errors import StorageError
from palm.core.logging import logger
from palm.report.analysis import MOST_OF_CELL
from palm.report.charts import COLOURS
from palm.report.history import read_history
from palm.report.page import headline, next_step, page_title, run_step
from palm.report.run import read_run
from palm.train.callbacks import Ended, ScoredRows
from palm.train.verdict import Verdict, minus, score_text, verdict_of

pytest.importorskip("altair", reason="the extra report is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """What a test asks of a page: its tags, its charts, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.charts: dict[str, dict[str, Any]] = {}
        self.scripts: list[str] = []
        self.title = ""
        self._place = ("", "")
        self._figure = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._place = tag, dict(attrs).get("type") or ""

    def handle_data(self, data: str) -> None:
        if self._place == ("script", "application/json"):
            self.charts[self._figure] = json.loads(data)
        elif self._place[0] == "script":
            self.scripts.append(data)
        elif self._place[0] == "figcaption":
            self._figure = data.strip()
        elif self._place[0] == "title" and not self.title:
            self.title = data
        self.text.append(data if self._place[0] not in ("script", "style") else "")

    def handle_endtag(self, tag: str) -> None:
        self._place = ("", "")


@pytest.fixture(scope="module")
def reported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its report."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("page") / "run"))
    with (run / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "warning", "step": 3, "message": "a warning with <b>markup</b>"}\n')
    palm.write_report(run)
    return run


def points(spec: dict[str, Any], name: str) -> list[tuple[float, float]]:
    """The points of a curve in a chart."""
    (values,) = spec["datasets"].values()
    return [(each["x"], each["y"]) for each in values if each["name"] == name]


def check(page: Page, run: Path) -> None:
    """The page has the history's numbers, and the hostile row as text."""
    history = read_history(run)
    assert points(page.charts["Loss"], "cls") == [
        (e.step, e.means["cls"]) for e in history.losses if "cls" in e.means
    ]
    f1 = [(each.step, each.scores["mrc"]["f1"]) for each in history.evaluations]
    assert points(page.charts["mrc: f1, exact_match"], "f1") == f1
    assert HOSTILE in "".join(page.text)
    assert not [attrs for tag, attrs in page.tags if tag in ("img", "iframe", "object", "base")]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.title == "cls, match, mlm, mrc · palm report"


def test_the_page_has_the_numbers_of_the_history(reported: Path) -> None:
    check(Page((reported / "report.html").read_text(encoding="utf-8")), reported)


def test_the_page_may_request_nothing_and_runs_only_its_own_scripts(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    links = [attrs.get(name) or "" for _, attrs in page.tags for name in ("src", "href") if name in attrs]
    assert all(link.startswith(("#", "data:")) for link in links)
    (policy,) = [attrs["content"] or "" for tag, attrs in page.tags if attrs.get("http-equiv")]
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert (rules["default-src"], rules["base-uri"], rules["form-action"]) == ("'none'",) * 3
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in page.scripts]
    assert rules["script-src"].split() == [f"'sha256-{each}'" for each in hashes]
    assert len(hashes) == 2
    assert len(text.encode()) < 3_000_000


def test_every_chart_has_a_name_and_a_table_and_every_link_a_goal(reported: Path) -> None:
    page = Page((reported / "report.html").read_text(encoding="utf-8"))
    charts = [attrs for _, attrs in page.tags if attrs.get("class") == "chart"]
    assert len(charts) == len(page.charts) >= 12
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)
    assert sum(tag == "summary" for tag, _ in page.tags) >= len(charts)
    names = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = [attrs["href"] or "" for tag, attrs in page.tags if tag == "a"]
    assert links
    assert {link.removeprefix("#") for link in links} <= names


def test_the_page_shows_what_was_trained_and_how_to_do_it_again(reported: Path) -> None:
    text = " ".join(" ".join(Page((reported / "report.html").read_text(encoding="utf-8")).text).split())
    history = read_history(reported)
    assert "4 tasks" in text
    assert "bert encoder" in text
    assert text.partition("Finished. Tasks: ")[2]
    assert f"{history.last_step} of {history.start.total_steps} steps" in text
    assert f"palm train {reported / 'resolved_config.yaml'} --save_path NEW_FOLDER" in text
    assert "learning_rate 0.003" in text
    assert "Step 3: a warning with <b>markup</b>" in text
    assert "No model" in text
    assert "exactly right" in text


def test_a_history_without_a_readable_event_is_damaged(run: Path) -> None:
    (run / "history.jsonl").write_text("{", encoding="utf-8")
    with pytest.raises(StorageError, match=r"history\.jsonl is damaged"):
        palm.write_report(run)


def test_a_run_that_is_under_way_and_has_no_settings_can_be_shown(run: Path) -> None:
    (run / "resolved_config.yaml").unlink()
    lines = (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["event"] in ("start", "step")][:5]
    (run / "history.jsonl").write_text("\n".join(kept), encoding="utf-8")
    text = palm.write_report(run, run / "page.html", predict=False).read_text(encoding="utf-8")
    assert "Not finished. Tasks: 4 not evaluated." in text
    assert re.search(r"4 of [1-9]\d+ steps", text)
    assert "learning_rate" not in text


def test_the_command_writes_the_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = run.parent / "page.html"
    assert main(["report", str(run), "--no_predict", "--output", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert "Nothing was predicted (--no_predict)." in output.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}/cls"], r"cls/history\.jsonl: No such file"),
        (["{run}", "--no_predict", "--output", "{run}/no/page.html"], r"page\.html: .*No such file"),
    ],
)
def test_what_cannot_be_read_or_written_is_named(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(word.format(run=run) for word in arguments)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_a_run_that_is_no_path_is_refused() -> None:
    with pytest.raises(palm.ConfigError, match="run should be a path, not None"):
        palm.write_report(None)  # type: ignore[arg-type]


def test_the_message_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(palm.PalmError, match=r"altair.*palm-torch\[report\]"):
        palm.write_report(run, predict=False)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_a_browser_draws_the_page_without_a_request_or_an_error(reported: Path, tmp_path: Path) -> None:
    several = palm.write_report([reported, reported], tmp_path / "several.html")
    assert opened(several, tmp_path)[1:] == ([], [])
    page, said, requested = opened(reported / "report.html", tmp_path)
    check(page, reported)
    assert (said, requested) == ([], [])
    drawn = [attrs for tag, attrs in page.tags if tag == "svg" and "marks" in (attrs.get("class") or "")]
    assert len(drawn) == len(page.charts)


@pytest.mark.skipif(not HAS_BROWSER, reason="no Chromium or chromedriver")
def test_cells_filters_and_scales_work_and_in_print_nothing_is_hidden(reported: Path, tmp_path: Path) -> None:
    rows, shown = "document.querySelector('#task-1 .rows')", "[...{}.querySelectorAll('li:not([hidden])')]"
    shown = shown.format(rows)
    cell = "document.querySelector('#task-1 td[data-goto]')"
    with browser(tmp_path / "profile") as page:
        page.open((reported / "report.html").resolve().as_uri(), 1400, "light")
        page.wait_for("[...document.querySelectorAll('figure.drawn')].every(each => each.view)")
        assert (page.script(f"{shown}.length"), page.script(f"{rows}.querySelectorAll('li').length")) == (
            10,
            13,
        )
        page.script(f"{cell}.click()")
        wanted = json.loads(page.script(f"{cell}.dataset.goto"))
        found = [json.loads(each) for each in page.script(f"{shown}.map(each => each.dataset.cell)")]
        assert found == [wanted] * min(int(page.script(f"{cell}.textContent")), MOST_OF_CELL)
        page.script(f"{rows}.querySelector('.only-wrong').click()")
        assert set(page.script(f"{shown}.map(each => each.className)")) == {"wrong"}
        page.script("document.querySelector('input.log').click()")
        page.wait_for("document.querySelector('figure:has(input.log)').view.scale('y').type === 'log'")
        page.script("window.dispatchEvent(new Event('beforeprint'))")
        assert page.script("document.querySelectorAll('li[hidden], .fold:not([open])').length") == 0
        widths = page.script(
            "[...document.querySelectorAll('.charts .drawn')].map(each => each.view.width())"
        )
        assert min(widths) > 0
        assert max(widths) < 270  # what the axis leaves
        assert page.told("browser") == []


# Machado, Oliveira and Fernandes, 2009: linear RGB as seen without the cones for green, or for red.
SEEN = {
    "everyone": np.eye(3),
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.01182, 0.04294, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}


@pytest.mark.parametrize("eyes", SEEN)
def test_colours_of_both_schemes_differ_in_all_eyes(eyes: str) -> None:
    style = Path(palm.__file__).with_name("report") / "template" / "style.css"
    schemes = re.findall(r"--c0: .*", style.read_text(encoding="utf-8"))
    assert len(schemes) == 2
    for scheme in schemes:
        colours = [bytes.fromhex(code) for code in re.findall(r"#(\w{6})", scheme)]
        assert len(colours) == COLOURS
        labs = [lab(np.array(SEEN[eyes]) @ linear(each)) for each in colours]
        # In CIE 1976; 2 can just be told apart side by side.
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(labs, 2)) > 15


def linear(colour: bytes) -> Any:
    """Linear RGB of a colour in sRGB."""
    value = np.array([*colour]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: Any) -> Any:
    """L*, a* and b* of linear RGB, with the white of D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / to_xyz.sum(1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_a_browser_would_tell_of_a_script_and_of_a_request(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    script = (
        "<script>document.title = 'taken'; console.log('seen')</script><img src=http://elsewhere.invalid/x>"
    )
    file.write_text(f"<title>mine</title>{script}", encoding="utf-8")
    page, said, requested = opened(file, tmp_path)
    assert page.title == "taken"
    assert any("seen" in line for line in said)
    assert "http://elsewhere.invalid/x" in requested


def opened(file: Path, folder: Path) -> tuple[Page, list[str], list[str]]:
    """A page as a browser without a network has it, what its console says, and the addresses it asks for."""
    assert CHROMIUM is not None
    quiet = [
        f"--disable-{what}" for what in ("gpu", "quic", "background-networking", "component-update", "sync")
    ]
    found = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", *quiet),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            f"--log-net-log={folder / 'net.json'}",
            *("--virtual-time-budget=20000", "--enable-logging=stderr", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    urls = re.findall(r'"url":"((?:https?|wss?)://[^"]*)"', (folder / "net.json").read_text(encoding="utf-8"))
    own = [url for url in urls if "google" not in url]  # the browser's own, which nothing answers
    return Page(found.stdout), [line for line in found.stderr.splitlines() if "CONSOLE" in line], own


def test_numbers_have_a_minus_sign_and_no_negative_zero() -> None:
    assert minus("drop (-1.02, -1.03 to -0.00, of 5)") == "drop (−1.02, −1.03 to 0.00, of 5)"
    assert minus("2026-11-23 x-1 -0.004 -0") == "2026-11-23 x-1 −0.004 0"


def test_a_task_is_one_sentence_beside_its_own_baseline(reported: Path) -> None:
    run = read_run(reported)
    found = {task: verdict_of(task, run.history.best(task)) for task in run.history.tasks}
    best = run.history.best("cls")
    assert best is not None
    dev = Path(str(run.setting("cls", "dev_file"))).read_text("utf-8")
    gold = [line.split("\t")[0] for line in dev.splitlines()[1:]]
    score = found["cls"].score
    assert (found["cls"].metric, found["cls"].rows.rows) == ("accuracy", 13)
    assert score == best.scores["cls"]["accuracy"]
    assert found["cls"].baseline == max(map(gold.count, gold)) / 13
    low, high = found["cls"].interval
    assert (low, high) == pytest.approx(proportion(round(13 * score), 13))
    text = " ".join(" ".join(Page((reported / "report.html").read_text(encoding="utf-8")).text).split())
    order = sorted(found, key=lambda task: found[task].gain)
    places = [text.index(f"{task} : {found[task].metric} ") for task in order]
    assert places == sorted(places)  # the weakest first
    assert f"on 13 dev rows, 95 % interval {low:.2f} to {high:.2f}; " in text
    assert f"than always the same answer, {found['cls'].baseline:.2f}." in text
    assert "perplexity" in text and text.count("lower is better") >= 2  # noqa: PT018


def proportion(right: int, rows: int) -> tuple[float, float]:
    """Wilson's interval, written as its definition: the shares p with |share - p| = 1.96 * sqrt(p(1-p)/n)."""
    a, b, c = 1 + 1.96**2 / rows, -(2 * right / rows + 1.96**2 / rows), (right / rows) ** 2
    root = math.sqrt(b * b - 4 * a * c)
    return (-b - root) / (2 * a), (-b + root) / (2 * a)


def verdict(
    score: float = 0.8,
    baseline: float | None = None,
    interval: Sequence[float] = (),
    metric: str = "accuracy",
) -> Verdict:
    intervals = {metric: interval} if interval else {}
    rows = ScoredRows(50, {} if baseline is None else {metric: baseline}, intervals)
    return Verdict("t", metric, score, 1, rows)


def test_a_score_is_better_than_the_baseline_only_beyond_its_interval() -> None:
    assert verdict(baseline=0.5, interval=(0.6, 0.9)).beside == "better"
    assert verdict(baseline=0.7, interval=(0.6, 0.9)).beside == "not clearly better"
    assert verdict(baseline=0.8, interval=(0.6, 0.9)).beside == "not better"
    assert verdict(baseline=1.5, interval=(0.6, 0.9), metric="mse").beside == "better"
    assert verdict(baseline=0.7, interval=(0.6, 0.9), metric="mse").beside == "not better"
    assert (verdict().beside, verdict(baseline=0.5, score=math.nan).beside) == ("", "")
    assert verdict(baseline=0.5).gain == pytest.approx(0.6)


def test_scores_have_as_many_digits_as_their_rows_bear() -> None:
    shown = [score_text(0.81251, rows) for rows in (16, 99, 100, 999, 1000, 10**6, 0)]
    assert shown == ["0.81", "0.81", "0.813", "0.813", "0.8125", "0.8125", "0.8125"]
    assert [score_text(80.361, 16, "f1"), score_text(80.361, 1000, "f1")] == ["80.4", "80.36"]
    assert [score_text(0.00163, 20, "mse"), score_text(0.00163, 20, "mrr")] == ["0.0016", "0.00"]
    shown = [score_text(value, 50) for value in (33.7219, 9.4e10, -0.00001)]
    assert [*shown, score_text(None)] == ["33.7", "9.4e+10", "0.00", "–"]


def test_the_last_score_has_its_own_step(reported: Path) -> None:
    history = read_history(reported)
    text = (reported / "report.html").read_text(encoding="utf-8")
    results = text.partition('id="final"')[2].partition("</table>")[0]
    last = history.evaluations[-1]
    other = [task for task in last.scores if history.best(task) not in (None, last)]
    assert results.count(f'<span class="soft small">step {last.step}</span>') == len(other)
    for task in other:
        name, value = next(iter(last.scores[task].items()))
        shown = score_text(value, last.rows[task].rows, name)
        assert f'{shown} <span class="soft small">step {last.step}</span>' in results


def test_more_tasks_than_a_screen_holds_are_folded() -> None:
    assert page_title(["a", "b", "c", "d", "e", "f"], "out") == "a, b, c, d and 2 more"
    assert page_title([], "out") == "out"


def test_numbers_of_a_diverged_loss_are_short(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines[len(lines) // 2 :]:
        if line["event"] == "losses" and "cls" in line["means"]:
            line["means"]["cls"] = 93902682102.36
    (run / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    text = palm.write_report(run, run / "page.html", predict=False).read_text(encoding="utf-8")
    assert "9.39e+10</td>" in text
    assert "93,902,682,102" not in text


def test_control_characters_of_the_data_are_escaped(run: Path) -> None:
    with (run / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "warning", "step": 3, "message": "red \\u001b[31m text"}\n')
    text = palm.write_report(run, run / "page.html", predict=False).read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert r"red \x1b[31m text" in text


def test_a_run_whose_model_is_replaced_meanwhile_is_reported(run: Path) -> None:
    (run / "cls" / "best_model" / "config.json").unlink()  # as between two renames
    text = palm.write_report(run, run / "page.html").read_text(encoding="utf-8")
    assert "Nothing was predicted" in text
    assert palm.inspect_directory(run)["format"] == "palm run"


def test_a_run_whose_model_is_removed_while_it_is_read_is_reported(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Removing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if ": predicting " in record.getMessage():  # its description and its checksums were read
                shutil.rmtree(str(record.args[-1]))  # type: ignore[index]

    handler = Removing(logging.INFO)
    logger.addHandler(handler)
    with caplog.at_level(logging.INFO, "palm"):
        text = palm.write_report(run, run / "page.html").read_text(encoding="utf-8")
    logger.removeHandler(handler)
    assert not (run / "cls" / "best_model").exists()
    assert text.count("Nothing was predicted: ") >= 2


def test_a_run_that_was_stopped_begins_again_or_goes_on(run: Path) -> None:
    found = read_run(run)
    stopped = replace(found.history, end=Ended(7, "stopped", error="the gradient's norm is inf."))
    again = f"palm train {run / 'resolved_config.yaml'}"
    assert run_step(replace(found, history=stopped, checkpoints=())) == (
        "Mend what stopped the run, then start it again.",
        f"{again} --overwrite true",
    )
    assert run_step(replace(found, history=stopped, checkpoints=[5])) == (
        "Mend what stopped the run, then finish it.",
        f"{again} --resume auto",
    )
    assert run_step(found) == ("", "")
    assert next_step(found, Verdict("cls"))[0] == "It was not evaluated; give it a dev_file."


def test_the_headline_says_how_the_run_ended_and_which_task_is_weakest(run: Path) -> None:
    history = read_history(run)
    named = [verdict(0.5, baseline=0.5), verdict(0.9, baseline=0.5), verdict(0.9), Verdict("u")]
    counted = "1 of 4 better than always the same answer, 1 not better, "
    assert headline(history, named) == (
        f"Finished. Tasks: {counted}1 without a baseline, 1 not evaluated; weakest: t."
    )
    ended = replace(history, end=Ended(7, "stopped", error="the gradient's norm is inf."))
    constant = "Tasks: 1 of 1 not better than always the same answer."
    assert headline(ended, named[:1]) == f"Stopped by an error: the gradient's norm is inf. {constant}"
    assert headline(replace(history, end=None), named[1:2]).startswith("Not finished. Tasks: 1 of 1 better")
