"""The first screen of real models in a browser, served and saved."""

from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import pytest
from pages import Open, Serve

import uwaga
from uwaga.viewer import ServedView

pytestmark = pytest.mark.slow

TIRED = "The animal didn't cross the street because it was too tired."


def test_the_first_screen(serve: Serve, open_page: Open) -> None:
    """It opens on what the pronoun means, with the exact weight, at three widths, with nothing cut off."""
    served = serve(f"{TIRED} This is a pen.", model="minilm")
    side = served.service.view.sides[0]
    query, key = (side.tokens["encoder"].index(word) for word in ("it", "animal"))
    share = f"{100 * float(side.maps['encoder', 3][1, query, key]):.1f}%"
    page = open_page(served.address, width=1400, height=1240)
    page.locator(".uwaga-wall svg").nth(71).wait_for()
    headline = page.locator(".uwaga-headline", has_text="it looks mostly at animal")
    headline.wait_for()
    assert headline.inner_text().endswith(f": {share}")
    for width, height in ((1400, 1240), (800, 1300), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function("() => !document.querySelector('.uwaga-activity').textContent")
        page.wait_for_timeout(300)
        overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, f"the page is {overflow} pixels wider than its window of {width}"


@pytest.mark.gate(only=lambda model: model == "speller")
@pytest.mark.parametrize(
    ("model", "text", "said", "labels"),
    [
        ("minilm", TIRED, "it looks mostly at animal: 67.7%", 14),
        ("minilm", TIRED.replace("tired", "wide"), "it rests on CLS: 32.6%; of the words, most on animal: 28.1%", 14),
        ("copyist", TIRED, "it looks most at animal: ", 12),
        ("copyist", "Mr and Mrs Dursley of Privet Drive were proud . Mr and Mrs Durs", "and looks mostly at Mrs", 14),
        ("speller", "attention", "SH looks mostly at t: 98.2%", 18),
    ],
)
def test_a_first_screen_tells_a_story(
    serve: Serve, open_page: Open, model: str, text: str, said: str, labels: int
) -> None:
    """Opened cold: a pronoun's meaning, what came after an earlier copy, a sound's letter; and every word is on the screen."""
    page = open_page(serve(text, model=model).address, width=1400, height=900)
    page.locator(".uwaga-headline", has_text=said).wait_for()
    words = page.locator(".uwaga-stage-word, .uwaga-word")
    assert words.count() == labels
    for word in words.all():
        box = word.bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 1400
        assert 0 <= box["y"] < box["y"] + box["height"] <= 900


def opened_at(page: Any) -> dict[str, str]:
    """What a page shows once it has chosen: the head and the words in its address, and its sentence."""
    page.wait_for_function("() => new URLSearchParams(location.hash.slice(1)).has('query')")
    page.locator(".uwaga-headline", has_text="%").wait_for()
    named = dict(parse_qsl(urlsplit(page.url).fragment))
    # A saved page of many words has no exact weight but those of its strongest links, and says so.
    headline = page.locator(".uwaga-headline").inner_text().replace(" looks mostly at ", " looks at ")
    return {name: named.get(name, "") for name in ("tab", "kind", "layer", "head", "query", "key")} | {"said": headline}


@pytest.mark.stress
@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("minilm", TIRED),
        ("speller", "transformer"),
        ("copyist", "seven green birds sing at dawn ; the old clock stopped ; " * 12),
    ],
)
def test_a_saved_page_opens_as_the_served_one(
    serve: Serve, open_page: Open, tmp_path: Path, request: pytest.FixtureRequest, model: str, text: str
) -> None:
    """Also one that was saved on a machine without time: each reply is one step, and no second is left for what is not needed."""
    page = open_page(serve(text, model=model).address, width=1400, height=900)
    expected = opened_at(page)
    page.close()  # it would ask on when the view is closed
    with cast("ServedView", uwaga.view(text, model=model, browser=False, block=False)) as again:
        request.getfixturevalue("one_step")
        again.save(tmp_path / "page.html", seconds=0)
    page = open_page((tmp_path / "page.html").as_uri(), width=1400, height=900)
    assert opened_at(page) == expected
    assert page.locator(".uwaga-left-out").inner_text().endswith("--seconds allows more than 0 seconds.")
