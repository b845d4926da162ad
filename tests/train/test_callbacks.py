"""One stream of events, to callbacks of all kinds, and none of them changes a loss."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers import callbacks, tiny
from helpers.callbacks import controller, logged
from palm.core.process import START
from palm.train.callbacks import (
    HISTORY_FILE,
    Ended,
    Evaluated,
    Event,
    Logged,
    Saved,
    Started,
    callback_problems,
    events_until,
    read_events,
)
from palm.train.loop import Step
from palm.train.result import TrainingResult

ROOT = Path(__file__).resolve().parents[2]


def losses_of(events: list[Event]) -> list[float]:
    return [event.loss.item() for event in events if isinstance(event, Step)]


class Run(NamedTuple):
    """A run, what two callbacks heard of it, and its log lines."""

    result: TrainingResult
    heard: list[Event]
    others: list[Event]
    lines: list[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    heard: list[Event] = []
    others: list[Event] = []
    with logged() as lines:
        trained = controller(tmp_path_factory.mktemp("run"), progress="lines")
        return Run(trained.train(callbacks=[others.append, heard.append]), heard, others, lines)


def test_a_class_in_place_of_a_callback_is_refused() -> None:
    (problem,) = callback_problems([print, Path])
    assert "the class Path" in problem


def test_every_callback_hears_the_same_in_the_same_order(run: Run) -> None:
    heard = run.heard
    assert heard == run.others
    assert isinstance(heard[0], Started)
    evaluated = next(k for k, event in enumerate(heard) if isinstance(event, Evaluated))
    steps = [event.number for event in heard[:evaluated] if isinstance(event, Step)]
    assert heard[evaluated].step == steps[-1]  # type: ignore[attr-defined]
    assert {event.kind for event in heard if isinstance(event, Saved)} >= {"target", "best", "checkpoint"}
    assert isinstance(heard[-1], Ended)


def test_a_step_is_written_down_before_what_follows_from_it(tmp_path: Path) -> None:
    """A resumed run cuts off the lines behind that of its checkpoint.

    So the history comes before what evaluates and saves, what evaluates before the saver of best models, and
    the saver of checkpoints last: only the line of the checkpoint itself lies behind it.
    """
    heard: list[Event] = []
    settings = {"print_every_n_steps": 10, "eval_every_n_steps": 10, "save_every_n_steps": 10}
    controller(tmp_path, **settings).train(callbacks=[heard.append])
    at_ten = [event for event in heard if getattr(event, "step", getattr(event, "number", None)) == 10]
    kinds = [event.kind if isinstance(event, Saved) else type(event).__name__ for event in at_ten]
    assert kinds == ["Losses", "Logged", "Step", "Evaluated", "best", "best_overall", "checkpoint"]
    events = read_events(tmp_path / "out" / HISTORY_FILE)
    kinds = [type(event).__name__ for event in events_until(events, 10) if event.step == 10]
    assert kinds == ["Losses", "Logged", "Drawn", "Evaluated", "Saved", "Saved", "Saved"]
    assert events_until(events, 10)[-1] == Saved(10, "checkpoint", Path("step_10"))


def test_no_callback_changes_a_loss(tmp_path: Path) -> None:
    bare = [step.loss.item() for step in controller(tmp_path).training().steps()]
    heard: list[Event] = []
    watched = controller(tmp_path, print_every_n_steps=1, progress="bar")
    watched.train(callbacks=[heard.append])
    assert losses_of(heard) == bare


def test_the_line_of_a_step_has_palms_words_first(run: Run) -> None:
    lines = [line for line in run.lines if line.startswith("Global step: 3.")]
    pattern = (
        r"Global step: 3\. Task: \w+, step \d/10 \(epoch 0\), loss: \d\.\d{3}, speed: \d+\.\d\d steps/s, "
        r"mean loss: \d\.\d{3}, learning rate: \d\.\d\de-\d\d, elapsed: \d:\d\d:\d\d, remaining: \d:\d\d:\d\d"
    )
    assert len(lines) == 1
    assert re.fullmatch(pattern, lines[0])
    (event,) = [event for event in run.heard if isinstance(event, Logged) and event.step == 3]
    assert f" loss: {event.loss:.3f}, " in lines[0]
    assert f" mean loss: {event.mean_loss:.3f}, " in lines[0]


def test_a_result_is_a_table_for_terminals_and_notebooks(run: Run) -> None:
    result = run.result
    head, cls, mrc, last = str(result).splitlines()
    assert " ".join(head.split()) == "task steps planned mean loss best score at step saved at"
    assert cls.split()[:3] == ["cls", str(result.steps["cls"]), "20"]
    assert cls.endswith("cls/best_model")
    best = result.best["cls"]
    assert f" accuracy {best.scores['accuracy']:.2f} " in cls  # of 40 rows
    assert mrc.endswith("mrc/infer_model")
    assert last.startswith(f"{sum(result.steps.values())} steps of all tasks in ")
    shown = result._repr_html_()
    assert f"<td>{result.best['cls'].step}</td><td>cls/best_model</td></tr>" in shown
    assert shown.count("<tr>") == 3
    assert shown.startswith(f'<p style="white-space: pre-line">{last}</p><table><tr><th>task</th>')
    assert result.paths["checkpoint"] == f"step_{sum(result.steps.values()) // 10 * 10}"


PROGRAM = """
import sys
from pathlib import Path
from helpers.callbacks import controller, logged
print(sorted(controller(Path(sys.argv[1])).train().steps))
"""


def program(folder: Path) -> list[str]:
    """The words of a program that trains in a folder."""
    file = folder / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    return [str(file), str(folder)]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return {**kept, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def on_a_terminal(words: list[str], columns: int, **more: str) -> str:
    """What a program shows on a terminal of this width."""
    parent, child = pty.openpty()
    import fcntl
    import struct
    import termios

    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    run = subprocess.Popen(
        words, cwd=ROOT, env=environment(TERM="xterm", **more), stdout=subprocess.PIPE, stderr=child
    )
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(parent, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    assert run.stdout is not None
    answer = run.stdout.read()
    assert (run.wait(), answer) == (0, b"['cls', 'mrc']\n"), shown.decode()
    os.close(parent)
    return shown.decode()


@pytest.mark.parametrize(("columns", "more"), [(40, {}), (200, {"NO_COLOR": "1"})], ids=["narrow", "wide"])
def test_a_terminal_gets_a_bar_and_a_line_for_each_evaluation(
    tmp_path: Path, loaded_python: list[str], columns: int, more: dict[str, str]
) -> None:
    shown = on_a_terminal([*loaded_python, *program(tmp_path)], columns, **more)
    last = re.sub(r"\x1b\[\d*m", "", shown[shown.rindex("100% |") :])
    logged = [event for event in read_events(tmp_path / "out" / HISTORY_FILE) if isinstance(event, Logged)][
        -1
    ]
    values = rf"{logged.task} loss {logged.mean_loss:.3f}, lr {logged.learning_rate:.1e}, \d+ examples/s"
    bar = rf"█{{10,}}\| (\d+)/\1 \[\d\d:\d\d<00:00, {values}\]" if columns > 100 else "█"
    assert re.match(rf"100% \|{bar}", last)
    assert re.search(r"\nstep \d+: cls: accuracy 0\.\d{4}", shown.replace("\r", "\n"))
    assert "Global step: " not in shown
    assert "cls: train finished!\n" in shown.replace("\r", "")
    assert ("\x1b[32m" in shown) == (not more)
    pieces = re.split(r"[\r\n]", re.sub(r"\x1b\[\d*m", "", shown))
    assert max(len(piece) for piece in pieces if "% |" in piece) <= columns


def palm_train(python: list[str], folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    given = callbacks.configuration(folder, num_epochs=1, eval_every_n_steps=-1)
    words = [*python, START[-1], "train", str(tiny.write_config(folder, given)), *options]
    return subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8")


def test_quiet_shows_only_warnings(tmp_path: Path, loaded_python: list[str]) -> None:
    done = palm_train(loaded_python, tmp_path, "--quiet")
    assert done.returncode == 0
    same_rows, no_better = (line.partition(";")[0] for line in done.stderr.splitlines())
    assert same_rows.endswith(": dev_file is the train_file, so its scores are not those of new rows")
    assert no_better == "cls: no evaluation was better than always the same answer, whose accuracy is 0.3750"


def test_verbose_shows_when_and_where_and_an_error_with_its_traceback(
    tmp_path: Path, loaded_python: list[str]
) -> None:
    done = palm_train(loaded_python, tmp_path, "--verbose", "--cls.train_file", "nowhere.tsv")
    assert done.returncode == 2
    first, *others = done.stderr.splitlines()
    assert re.fullmatch(r"[-\d]+ [:,\d]+ __init__:\d+: palm \d.*, Python \d.*, .*", first)
    assert "Traceback (most recent call last):" in others
    assert others[-1].startswith("error: ")


HOST = """
import logging, sys
import palm.core.logging as ours
ours.show_on_console()
ours.logger.info("before")
logging.basicConfig(stream=sys.stdout, format="host %(name)s %(message)s", level=logging.INFO)
ours.logger.info("after")
"""


def test_a_program_that_configures_logging_gets_the_records() -> None:
    words, own = [sys.executable, "-c", HOST], environment()
    done = subprocess.run(words, cwd=ROOT, env=own, capture_output=True, encoding="utf-8", check=True)
    assert (done.stdout, done.stderr) == ("host palm after\n", "before\n")
