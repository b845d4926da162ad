"""Take pictures of all that palm shows: `python scripts/make_screens.py FOLDER [PAGE ...]`.

Trains tiny tasks from fixed seeds, a few minutes in all; what lies in FOLDER already is used again. Each page
is taken at 1400 and 390 pixels, light and dark, and as it is printed, in slices of a screen's height. What a
program sees is printed: requests, messages of scripts, text outside of its place, pages that are half empty
on paper. Needs Chromium, chromedriver, pdftoppm, Pillow and the extra `report`.
"""

from __future__ import annotations

import argparse
import contextlib
import html
import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

if TYPE_CHECKING:
    from PIL.Image import Image

    from helpers.browser import Browser

WIDTHS = (1400, 390)
HEIGHT = 1700
"""Pixels of a slice."""

NARROW = 4
"""Slices of a narrow screen that lie side by side in a picture."""

HALF = 0.55
"""Part of a printed page, not the last, that must not be empty at its end."""

OUTSIDE = """(() => {
  const found = [], root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) found.push('the page is ' + root.scrollWidth + ' wide');
  for (const svg of document.querySelectorAll('.chart svg')) {
    const place = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect(), name = text.textContent;
      const isOutside = box.left < place.left - 1 || box.right > place.right + 1;
      if (box.width && isOutside || name.endsWith('…')) found.push('in a chart: ' + name);
    }
  }
  for (const each of document.querySelectorAll('p, li, h1, h2, h3, h4, summary, figcaption'))
    if (each.clientWidth && each.scrollWidth > each.clientWidth + 1) found.push('cut: ' + each.textContent);
  return found.map(each => each.slice(0, 100));
})()"""

CARD = """:root { color-scheme: light dark } body { max-width: 840px; margin: 20px auto; padding: 0 14px;
font: 16px/1.5 sans-serif } td, th { border: 1px solid #8888; padding: 4px 12px } code { font-size: 85% }
table { border-collapse: collapse; display: block; overflow-x: auto; margin-bottom: 16px }
pre { overflow-x: auto; background: #8882; padding: 12px }"""

TERMINAL = """body { background: #16181d; color: #d7dae0 }
pre { font: 13px/1.35 monospace; border: 1px solid #555; overflow-x: auto }"""

NOTEBOOK = """body { font: 14px sans-serif } table { border-collapse: collapse }
td, th { padding: 4px 8px; text-align: right }"""


def palm(*words: object) -> str:
    """Run a command of palm; return what it printed."""
    from palm.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([str(word) for word in words])
    return printed.getvalue()


def project(name: str, kinds: str) -> Path:
    """The configuration of a starter project with these kinds of tasks."""
    if not Path(name).exists():
        palm("init", name, "--tasks", kinds)
    return Path(name, "config.yaml")


def trained(name: str, kinds: str, *words: object) -> Path:
    """The folder of a finished run of a starter project."""
    folder = Path(name, "run")
    if not folder.exists():
        palm("train", project(name, kinds), "--save_path", folder.absolute(), *words)
    return folder


def reported(*folders: Path) -> Path:
    palm("report", *folders)
    return folders[0] / "report.html"


def one() -> Path:
    """The report of one task."""
    return reported(trained("one", "cls"))


def two() -> Path:
    """The report of entities and answers."""
    return reported(trained("two", "seq_label,mrc", "--num_epochs", 30))


def twelve() -> Path:
    """The report of every kind of task, some of them hardly trained."""
    from palm.cli.starter.project import KINDS

    steps = 30 * len(KINDS)
    words = ["--mixing", "round_robin", "--max_steps", steps, "--eval_every_n_steps", steps // 3]
    targets = ",".join("1" * len(KINDS))
    return reported(trained("twelve", ",".join(KINDS), *words, "--target_tag", targets))


def failed() -> Path:
    """The report of a run that diverged and was stopped by an error."""
    config = project("failed", "cls,count")
    folder = Path("failed", "run")
    if not folder.exists():
        with contextlib.suppress(Exception):
            palm(
                "train",
                config,
                "--save_path",
                folder.absolute(),
                "--learning_rate",
                3,
                "--print_every_n_steps",
                1,
                "--grad_clip",
                "null",
                "--warmup_proportion",
                0,
            )
    return reported(folder)


def running() -> Path:
    """The page of a run that goes on, after its third evaluation."""
    from palm import Controller
    from palm.report.live import LiveReport
    from palm.train.callbacks import Evaluated, Event

    config, page, seen = project("running", "cls,match"), Path("running", "page.html"), []

    def keep(event: Event) -> None:
        seen.append(isinstance(event, Evaluated))
        if seen[-1] and sum(seen) == 3:
            shutil.copy(folder / "report.html", page)

    folder = Path("running", "run").absolute()
    if not page.exists():
        Controller(config, argv=["--save_path", str(folder)]).train([LiveReport(), keep])
    return page


def table() -> Path:
    """The configuration of a table with two columns to learn."""
    if not Path("hotel").exists():
        file = ROOT / "data" / "reviews" / "reviews.en.csv"
        rows = file.read_text(encoding="utf-8").replace(",rooms,", ",room,").splitlines(keepends=True)
        Path("reviews.csv").write_text("".join(rows[:161]), encoding="utf-8")
        palm("init", "hotel", "--from", "reviews.csv")
    return Path("hotel", "config.yaml")


def compare() -> Path:
    """The page of a comparison."""
    *_, folder = words = compared()
    if not Path(str(folder), "compare.json").exists():
        palm("compare", *words)
    return reported(Path(str(folder)))


def compared() -> list[object]:
    """The arguments of a comparison, its folder last."""
    return [table(), "--seeds", 2, "--effort", "quick", "--output", Path("hotel", "compared").absolute()]


def sweep() -> Path:
    """The page of a sweep over rates and batches."""
    *_, folder = words = swept()
    if not Path(str(folder), "sweep.json").exists():
        palm("sweep", *words)
    return reported(Path(str(folder)))


def swept() -> list[object]:
    """The arguments of a sweep, its folder last."""
    grid = ["--grid", "learning_rate=0.0001,0.003", "--grid", "batch_size=4,8"]
    return [project("sweep", "cls,match"), *grid, "--output", Path("sweep", "found").absolute()]


def several() -> Path:
    """The page of runs that differ in seed and rate."""
    found = [
        trained("one", "cls"),
        *(
            again(name, *words)
            for name, *words in (("b", "--random_seed", 7), ("c", "--learning_rate", 3e-4))
        ),
    ]
    palm("report", *found, "--output", "several.html")
    return Path("several.html")


def again(name: str, *words: object) -> Path:
    folder = Path("one", name)
    if not folder.exists():
        palm("train", project("one", "cls"), "--save_path", folder.absolute(), *words)
    return folder


def card() -> Path:
    """Cards of a model of one task and of one of two tasks, as the Hub shows Markdown."""
    from markdown_it import MarkdownIt

    texts = []
    for file in (trained("one", "cls") / "cls/best_model", trained("two", "") / "model"):
        front, _, body = (
            (file / "README.md").read_text(encoding="utf-8").removeprefix("---\n").partition("\n---\n")
        )
        texts += [
            f"<pre>{html.escape(front)}</pre>",
            MarkdownIt("commonmark").enable("table").render(body),
            "<hr>",
        ]
    return written("card", f"<style>{CARD}</style>{''.join(texts)}")


def written(name: str, body: str) -> Path:
    file = Path(f"{name}.html")
    viewport = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    file.write_text(f"{viewport}{body}", encoding="utf-8")
    return file


def terminal() -> Path:
    """What commands show: on a terminal of 80 and 120 columns, without colour, and piped."""
    parts = []
    for name, words in commands():
        for how, columns, more in (
            ("80", 80, {}),
            ("120", 120, {}),
            ("no colour", 80, {"NO_COLOR": "1"}),
            ("piped", 0, {}),
        ):
            file = Path("terminal", f"{name}, {how}.txt")
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                given = [str(word).format(how=how) for word in words]
                file.write_bytes(run(given, columns, **more).encode())  # with its carriage returns
            shown = file.read_bytes().decode()
            parts.append(
                f"<h3>{name}, {how}</h3><pre style='width:{columns or 120}ch'>{coloured(shown)}</pre>"
            )
    return written("terminal", f"<style>{TERMINAL}</style>{''.join(parts)}")


def commands() -> Iterator[tuple[str, list[object]]]:
    hotel = table()
    faulty = Path("one", "faulty.yaml")
    faulty.write_text(
        project("one", "cls")
        .read_text("utf-8")
        .replace("batch_size:", "batchsize:")
        .replace("adamw", "adamv"),
        "utf-8",
    )
    yield "check, ready", ["check", project("one", "cls")]
    yield "check, a table", ["check", hotel, "--no_measure"]
    yield "check, warnings", ["check", hotel, "--no_measure", "--max_seq_len", 9]
    yield "check, errors", ["check", faulty]
    train = [
        "train",
        project("two", ""),
        "--num_epochs",
        3,
        "--overwrite",
        "true",
        "--save_path",
        "terminal_run",
    ]
    yield "train", train
    yield "train --help", ["train", "--help"]
    yield "diff", ["diff", "one/run", "two/run"]
    saved = ["--model", "one/run/cls/best_model", "--input", "one/data/cls/dev.tsv"]
    yield "evaluate", ["evaluate", *saved]
    yield "evaluate, a configuration", ["evaluate", "two/run/resolved_config.yaml"]
    yield "predict", ["predict", *saved, "--output", "terminal/predicted.jsonl"]
    yield "report", ["report", "two/run"]
    yield "compare", ["compare", *compared()]
    yield "sweep", ["sweep", *swept()]
    yield "ls", ["ls"]
    yield "ls of one", ["ls", "temperature"]
    yield "inspect", ["inspect", "two/run/model"]
    yield "init", ["init", "terminal/{how}", "--tasks", "cls,mlm"]


def run(words: list[str], columns: int, **more: str) -> str:
    """Run a command on a terminal with these columns, or with its output piped if there are none."""
    import pty

    command = [sys.executable, "-m", "palm", *words]
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **more}
    if not columns:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.stderr + done.stdout
    parent, child = pty.openpty()
    os.environ.pop("COLUMNS", None)
    import fcntl
    import struct
    import termios

    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(command, env=environment, stdin=child, stdout=child, stderr=child)
    os.close(child)
    found = b""
    with contextlib.suppress(OSError):
        while part := os.read(parent, 65536):
            found += part
    process.wait()
    return found.decode()


def coloured(text: str) -> str:
    """Text of a terminal as HTML; a line that was written over is what it was at last."""
    from rich.console import Console
    from rich.text import Text

    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n"))
    console = Console(
        record=True, width=400, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="{code}")


def notebook() -> Path:
    """What a notebook shows of results."""
    from palm import Controller, plot

    folder = Path("notebook").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    result = Controller(project("two", ""), argv=["--num_epochs", "3", "--save_path", str(folder)]).train()
    parts = [result, plot(folder)]
    shown = "".join(f"<pre>Out[{n}]</pre>{each._repr_html_()}" for n, each in enumerate(parts, 1))
    return written("notebook", f"<style>{NOTEBOOK}</style>{shown}")


PAGES: dict[str, Callable[[], Path]] = {
    each.__name__: each
    for each in (one, two, twelve, failed, running, compare, sweep, several, card, terminal, notebook)
}


def look_at(page: Browser, name: str, file: Path, folder: Path) -> None:
    """Take the pictures of a page, and print what is wrong with it."""
    from PIL import Image

    page.call("/url", url="about:blank")
    page.told("browser"), page.told("performance")
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            page.open(file.resolve().as_uri(), width, scheme)
            page.wait_for(
                "document.readyState === 'complete' && [...document.querySelectorAll('figure.drawn .chart')]"
                ".every(each => each.querySelector('svg') || !each.clientWidth)"
            )
            if scheme == "light":
                for line in page.script(OUTSIDE):
                    print(f"{name} {width}: {line}")
            place = folder / f"{name}-{width}-{scheme}.png"
            page.picture(place)
            slices(Image.open(place).convert("RGB"), place, 1 if width > 600 else NARROW)
    for line in unwanted(page, file.resolve().as_uri()):
        print(f"{name}: {line}")
    page.open(file.resolve().as_uri(), 1400, "dark")
    page.printed(folder / f"{name}.pdf")
    print_slices(folder / f"{name}.pdf")


def unwanted(page: Browser, own: str) -> Iterator[str]:
    """Yield messages of scripts, and requests but those of the page itself."""
    for each in page.told("browser"):
        yield f"a script says {each['message']}"
    for each in page.told("performance"):
        event = json.loads(each["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("data:", "about:", "chrome")) and url != own:
                yield f"requests {url}"


def slices(picture: Image, place: Path, beside: int) -> None:
    """Cut a picture into pieces of a screen's height, and put some side by side."""
    from PIL import Image

    for old in place.parent.glob(f"{place.stem}-*.png"):
        old.unlink()
    width, height = picture.size
    pieces = [picture.crop((0, top, width, min(top + HEIGHT, height))) for top in range(0, height, HEIGHT)]
    for number, start in enumerate(range(0, len(pieces), beside)):
        group = pieces[start : start + beside]
        made = Image.new("RGB", (len(group) * (width + 20) - 20, max(each.height for each in group)), "#888")
        for k, each in enumerate(group):
            made.paste(each, (k * (width + 20), 0))
        made.save(place.with_name(f"{place.stem}-{number}.png"))
    place.unlink()


def print_slices(file: Path) -> None:
    """Make pictures of printed pages, six in one, and print which of them are half empty."""
    from PIL import Image, ImageOps

    for old in file.parent.glob(f"{file.stem}-print*.png"):
        old.unlink()
    subprocess.run(["pdftoppm", "-r", "55", "-png", file, file.with_name(f"{file.stem}-page")], check=True)
    names = sorted(file.parent.glob(f"{file.stem}-page-*.png"))
    sheets = [Image.open(each).convert("RGB") for each in names]
    for number, sheet in enumerate(sheets[:-1], 1):
        box = ImageOps.invert(sheet.convert("L")).getbbox()
        if box is None or box[3] < HALF * sheet.height:
            print(f"{file.stem}: printed page {number} of {len(sheets)} is half empty")
    for start in range(0, len(sheets), 6):
        group = sheets[start : start + 6]
        width, height = group[0].size
        made = Image.new("RGB", (3 * (width + 10), (1 + len(group[3:] and [1])) * (height + 10)), "#888")
        for k, sheet in enumerate(group):
            made.paste(sheet, (k % 3 * (width + 10), k // 3 * (height + 10)))
        made.save(file.with_name(f"{file.stem}-print-{start // 6}.png"))
    for name in names:
        name.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where runs are kept, and pictures written")
    parser.add_argument("page", nargs="*", choices=[[], *PAGES], help="which pages; all by default")
    options = parser.parse_args()
    import torch

    from helpers.browser import browser

    torch.set_num_threads(1)
    random.seed(0)
    pictures = options.folder.absolute() / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    os.chdir(options.folder)
    made = {name: PAGES[name]().absolute() for name in options.page or PAGES}
    profile = Path("browser").absolute()
    shutil.rmtree(profile, ignore_errors=True)
    with browser(profile) as page:
        for name, file in made.items():
            look_at(page, name, file, pictures)


if __name__ == "__main__":
    main()
