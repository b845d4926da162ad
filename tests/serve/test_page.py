"""The page of the server in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("httpx", reason="needs the extra `serve`")

import palm
from helpers.browser import HAS_BROWSER, Browser, browser
from helpers.serving import served

pytestmark = pytest.mark.skipif(not HAS_BROWSER, reason="needs Chromium and chromedriver")

TEXT = "anna has a red door ."
BACKGROUNDS = {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 22, 27)"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def url(run: Path) -> Iterator[str]:
    with served(run) as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_a_typed_text_gets_the_answers_of_the_models(
    page: Browser, url: str, run: Path, width: int, scheme: str
) -> None:
    page.open(url, width, scheme)
    page.wait_for("document.querySelectorAll('#tasks input').length === 4")
    page.type("#text", TEXT)
    page.type("#second", "<b>who</b> owns the lamp")
    page.type("#question", "what colour is the door")
    page.type("#question", "\ue009\ue007")  # Ctrl + Enter
    page.wait_for("document.querySelectorAll('article').length === 4")

    shown = page.script("[...document.querySelectorAll('article')].map((card) => card.innerText)")
    models = palm.load_model(run).tasks
    (record,) = models["cls"].predict([TEXT])
    assert f"{100 * max(record['probs']):.1f} %" in shown[0]
    assert page.script("document.querySelector('.bars dt.chosen').innerText") == str(record["label"])
    assert "<b>who</b> owns the lamp" in shown[1]  # as text, not as HTML
    (answer,) = models["mrc"].predict([("what colour is the door", TEXT)])
    assert page.script("document.querySelector('mark.answer').innerText") == answer["text"]
    (spans,) = models["span"].predict([TEXT])
    assert page.script("document.querySelectorAll('article:last-child mark').length") == len(spans["spans"])
    assert '\'{"texts":[' in page.script("document.getElementById('curl').textContent")
    assert " ms" in page.script("document.getElementById('time').innerText")

    assert page.script("getComputedStyle(document.body).backgroundColor") == BACKGROUNDS[scheme]
    assert page.script("document.documentElement.scrollWidth") == width  # nothing sticks out
    urls = page.script("performance.getEntriesByType('resource').map((each) => each.name)")
    assert urls
    assert all(each.startswith((f"{url}/", "data:")) for each in urls)
    unnamed = "[...document.querySelectorAll('input, textarea')].filter((each) => !each.labels.length).length"
    assert page.script(unnamed) == 0


def test_a_server_with_a_key_asks_for_it(page: Browser, run: Path) -> None:
    with served(run / "cls", api_key="sesam") as url:
        page.open(url, 1400, "light")
        page.wait_for("!document.getElementById('key-field').hidden")
        page.type("#key", "sesam")
        page.type("#text", TEXT)
        page.type("#text", "\ue009\ue007")
        page.wait_for("document.querySelectorAll('article').length === 1")
        assert "$PALM_API_KEY" in page.script("document.getElementById('curl').textContent")
        assert "sesam" not in page.script("document.getElementById('curl').textContent")
