"""The report: one page, with the numbers of the history, that runs nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import palm
from helpers.runs import HOSTILE
from palm.cli import main
from palm.report.analysis import Analysis, analyses_of
from palm.report.charts import Frame, Line, labels, minus
from palm.report.curves import Curve
from palm.report.history import read_history
from palm.report.page import _diverged, page_title
from palm.report.run import read_run

pytest.importorskip("jinja2", reason="the extra report is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """What a test asks of a page: its tags, the lines of its figures, its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.lines: dict[str, list[str]] = {}
        self._titles: list[str] = []
        self.title = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "figcaption":
            self._titles.append("")
        elif tag == "polyline":
            self.lines.setdefault(self._titles[-1], []).append(dict(attrs)["points"] or "")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._inside == "title" and not self._titles:
            self.title += data
        if self._inside == "figcaption":
            self._titles[-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.fixture(scope="module")
def reported(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its report."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("page") / "run"))
    with (run / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"event": "warning", "step": 3, "message": "a warning with <b>markup</b>"}\n')
    palm.write_report(run)
    return run


def check(page: Page, run: Path) -> None:
    """The page has the history's numbers, as text and as lines, and the hostile row as text."""
    history = read_history(run)
    steps = [step for step in history.steps if step.task == "cls"]
    raw = [tuple(map(float, pair.split(","))) for pair in page.lines["cls: loss"][0].split()]
    assert len(raw) == len(steps)
    # Of three points the proportions of their heights are those of their losses.
    heights = [Frame.bottom - y for _, y in raw]
    losses = [step.loss or 0 for step in steps]
    low, high = losses.index(min(losses)), losses.index(max(losses))
    scale = (heights[high] - heights[low]) / (losses[high] - losses[low])
    assert 0 < scale < (Frame.bottom - Frame.top) / (losses[high] - losses[low]) + 1e-6
    for height, loss in zip(heights, losses, strict=True):
        assert height == pytest.approx(heights[low] + scale * (loss - losses[low]), abs=0.11)  # 0.1 are drawn
    assert len(page.lines["mrc: f1"][0].split()) == len(history.evaluations)
    assert HOSTILE in "".join(page.text)
    assert not [attrs for tag, attrs in page.tags if tag in ("script", "img", "iframe", "object", "base")]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.title == "cls, match, mlm, mrc · palm report"


def test_the_page_has_the_numbers_of_the_history(reported: Path) -> None:
    check(Page((reported / "report.html").read_text(encoding="utf-8")), reported)


def test_the_page_needs_no_network_and_is_small(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    addresses = [
        attrs.get(name) for tag, attrs in Page(text).tags for name in ("src", "href") if name in attrs
    ]
    assert all((address or "").startswith(("#", "data:")) for address in addresses)
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text
    assert len(text.encode()) < 2_000_000


def test_every_chart_has_a_name_and_every_link_a_goal(reported: Path) -> None:
    page = Page((reported / "report.html").read_text(encoding="utf-8"))
    charts = [attrs for tag, attrs in page.tags if attrs.get("class") == "chart"]
    assert len(charts) >= 12
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in charts)
    names = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = [attrs["href"] or "" for tag, attrs in page.tags if tag == "a"]
    assert links
    assert {link.removeprefix("#") for link in links} <= names


def test_the_page_shows_what_was_trained_and_how_to_do_it_again(reported: Path) -> None:
    text = " ".join(" ".join(Page((reported / "report.html").read_text(encoding="utf-8")).text).split())
    history = read_history(reported)
    assert "4 tasks" in text
    assert "bert encoder" in text
    assert f"finished after {history.last_step} steps" in text
    assert f"palm train {reported / 'resolved_config.yaml'} --save_path NEW_FOLDER" in text
    assert "learning_rate 0.003" in text
    assert "Step 3: a warning with <b>markup</b>" in text
    assert "No model" in text
    assert "exactly right" in text


def test_a_run_that_is_under_way_and_has_no_settings_can_be_shown(run: Path) -> None:
    (run / "resolved_config.yaml").unlink()
    lines = (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if json.loads(line)["event"] in ("start", "step")][:5]
    (run / "history.jsonl").write_text("\n".join(kept), encoding="utf-8")
    text = palm.write_report(run, run / "page.html", predict=False).read_text(encoding="utf-8")
    assert "not finished" in text
    assert "global step 4" in text
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
        (
            ["{run}", "--no_predict", "--output", "{run}/no/page.html"],
            r"cannot write .*page\.html: .*No such file",
        ),
    ],
)
def test_what_cannot_be_read_or_written_is_named(
    run: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *(word.format(run=run) for word in arguments)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_the_message_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(palm.PalmError, match=r"jinja2.*palm-torch\[report\]"):
        palm.write_report(run, predict=False)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_a_browser_shows_the_page_offline_without_an_error(reported: Path, tmp_path: Path) -> None:
    page, said = opened(reported / "report.html", tmp_path)
    check(page, reported)
    assert said == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with")
def test_a_browser_would_tell_of_a_script(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    script = "<script>document.title = 'taken'; console.log('seen')</script>"
    file.write_text(f"<title>mine</title>{script}", encoding="utf-8")
    page, said = opened(file, tmp_path)
    assert page.title == "taken"
    assert any("seen" in line for line in said)


def opened(file: Path, folder: Path) -> tuple[Page, list[str]]:
    """A page as a browser without a network has it, and what its console says."""
    assert CHROMIUM is not None
    quiet = [
        f"--disable-{what}" for what in ("gpu", "quic", "background-networking", "component-update", "sync")
    ]
    found = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--no-first-run", *quiet),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'profile'}",
            *("--enable-logging=stderr", "--dump-dom", file.as_uri()),
        ],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=True,
    )
    return Page(found.stdout), [line for line in found.stderr.splitlines() if "CONSOLE" in line]


def test_numbers_have_a_minus_sign_and_no_negative_zero() -> None:
    assert minus("drop (-1.02, -1.03 to -0.00, of 5)") == "drop (−1.02, −1.03 to 0.00, of 5)"
    assert minus("2026-11-23 x-1 -0.004 -0") == "2026-11-23 x-1 −0.004 0"


def test_colours_that_come_again_have_another_dash() -> None:
    lines = [Line(Curve("", ()), colour) for colour in range(16)]
    assert len({(line.kind, line.dashes) for line in lines}) == 16


def test_a_score_is_shown_with_its_interval_and_the_commonest_label(reported: Path) -> None:
    analysis = analyses_of(read_run(reported))["cls"]
    assert isinstance(analysis, Analysis)
    true = [each.support for each in analysis.label_scores]
    assert analysis.baseline["accuracy"] == max(true) / sum(true) == max(true) / analysis.data["examples"]
    text = (reported / "report.html").read_text(encoding="utf-8")
    assert f"always the same answer: {analysis.baseline['accuracy']:.4f}" in text


def test_the_page_marks_the_main_metric_and_has_the_memory(reported: Path) -> None:
    text = (reported / "report.html").read_text(encoding="utf-8")
    history = read_history(reported)
    assert text.count(">main metric</span>") == len({task for e in history.evaluations for task in e.scores})
    assert re.search(r"[0-9.]+ GiB of memory of the process", text)
    assert 'class="scroll" tabindex="0" role="region"' in text
    assert 'title="cls"' in text


def test_more_tasks_than_a_screen_holds_are_folded() -> None:
    assert page_title(["a", "b", "c", "d", "e", "f"], "out") == "a, b, c, d and 2 more"
    assert page_title([], "out") == "out"


def test_a_diverged_loss_is_a_warning_and_its_numbers_are_short(run: Path) -> None:
    assert _diverged(read_history(run)) == []
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines[len(lines) // 2 :]:
        if line["event"] == "step" and line["task"] == "cls":
            line["loss"] = line["mean_loss"] = 93902682102.36
    (run / "history.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    text = palm.write_report(run, run / "page.html", predict=False).read_text(encoding="utf-8")
    assert "The loss of cls diverged" in text
    assert "93902682102" not in text.replace(",", "")
    assert [text for _, text in labels([0.0, 5e51, 1e52])] == ["0", "5e+51", "1e+52"]


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
