"""Every screen by axe-core, in both themes and on a phone; and by the keyboard alone."""

from typing import Any, cast

import pytest

import uwaga
from uwaga.viewer.api import ServedView
from uwaga.viewer.page.bundle import FRONT

pytestmark = pytest.mark.slow

AXE = FRONT / "node_modules" / "axe-core" / "axe.min.js"  # `make stress` and `make front-types` install it
TIRED = "The animal didn't cross the street because it was too tired."
LONG = f"{TIRED} The keeper of the house saw it, and she waited until it had slept. " * 8
_RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .map((one) => [one.id, one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))])"""
VIEWS = [
    ("minilm", TIRED, ("tab=explore", "tab=overview", "tab=table", "tab=explore&layer=3&head=1&query=8&map=wide")),
    ("minilm", LONG, ("tab=explore",)),
    ("speller", "attention", ("tab=explore",)),
    ("speller", "pneumonoultramicroscopicsilicovolcanoconiosis", ("tab=explore",)),
]


def violations(page: Any) -> list[Any]:
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(_RUN)  # type: ignore[no-any-return]


def opened(page: Any) -> None:
    page.wait_for_function("() => document.querySelector('.uwaga-panel > .uwaga-view:not([hidden])')")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(900)  # arcs are drawn


@pytest.mark.stress
@pytest.mark.parametrize(
    ("model", "text", "fragments"), VIEWS, ids=["sentence", "long text", "two rows", "two folded rows"]
)
def test_no_screen_has_a_violation(open_page: Any, model: str, text: str, fragments: tuple[str, ...]) -> None:
    found: dict[str, Any] = {}
    for theme, width in (("light", 1400), ("dark", 1400), ("light", 390)):
        for fragment in fragments:
            with cast("ServedView", uwaga.view(text, model=model, browser=False, block=False)) as served:
                page = open_page(f"{served.address}&{fragment}", width=width, height=900, color_scheme=theme)
                opened(page)
                found[f"{theme} {width} {fragment}"] = violations(page)
                if fragment == "tab=explore" and width == 1400:
                    page.get_by_role("button", name="Share", exact=True).click()
                    found[f"{theme} share"] = violations(page)
                    page.keyboard.press("Escape")
                    page.keyboard.press("?")
                    found[f"{theme} help"] = violations(page)
                    page.keyboard.press("Escape")
                page.context.close()
    assert not {screen: wrong for screen, wrong in found.items() if wrong}


@pytest.mark.stress
@pytest.mark.parametrize(
    ("model", "text", "first"),
    [("minilm", TIRED, "animal"), ("bard", "To be, or not to", "to"), ("speller", "cat", "%")],
)
@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 1400), ("light", 390)])
def test_a_changed_model_has_no_violation(
    open_page: Any, model: str, text: str, first: str, theme: str, width: int
) -> None:
    with cast("ServedView", uwaga.view(text, model=model, browser=False, block=False)) as served:
        page = open_page(served.address, width=width, height=900, color_scheme=theme)
        page.locator(".uwaga-headline", has_text=first).wait_for()
        page.get_by_role("button", name="Cut link").click()
        page.get_by_role("region", name="Changes").wait_for()
        page.locator(".uwaga-headline", has_text="Without").wait_for()
        page.locator(".uwaga-flow").wait_for()
        page.locator(".uwaga-dot-lines").first.wait_for()
        opened(page)
        assert violations(page) == []


@pytest.mark.stress
@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 800), ("light", 390)])
def test_why_a_head_looks_there_has_no_violation(open_page: Any, theme: str, width: int) -> None:
    with cast(
        "ServedView",
        uwaga.view("seven green birds sing ; seven green birds sing", model="copyist", browser=False, block=False),
    ) as served:
        page = open_page(served.address, width=width, height=900, color_scheme=theme)
        page.locator(".uwaga-headline", has_text="%").wait_for()
        page.get_by_role("button", name="Why?").click()
        page.locator(".uwaga-why tfoot").wait_for()
        page.get_by_label("What is split").select_option(index=1)
        page.locator(".uwaga-why th", has_text="less at").wait_for()
        opened(page)
        assert violations(page) == []


def test_the_keyboard_reaches_every_control(serve: Any, make_maps: Any, open_page: Any) -> None:
    """Tab alone stops at each group of controls; arrow keys go on inside the words, the wall and the tabs."""
    words = ["[CLS]", "the", "cat", "saw", "the", "dog", "[SEP]"]
    page = open_page(serve(make_maps(len(words)), tokens=words).address)
    page.locator(".uwaga-wall svg").first.wait_for()
    opened(page)
    stops: list[str] = []
    where = "() => document.activeElement.closest('.uwaga') && document.activeElement.outerHTML.slice(0, 300)"
    for _ in range(60):
        page.keyboard.press("Tab")
        stop = page.evaluate(where)
        if stop is None or (stops and stop == stops[0]):
            break
        stops.append(stop)
    reached = "\n".join(stops)
    for part in (
        'role="tab"',
        "Share",
        "ServedView",
        "uwaga-stage-word",
        "Play",
        "Save as film",
        "Why?",
        "uwaga-map-frame",
        "As table",
        "Larger map",
        'data-head="',
    ):
        assert part in reached, part
    # What Tab passes by is in a group that its arrow keys walk through.
    passed = page.evaluate(
        """() => [...document.querySelectorAll('.uwaga button, .uwaga input, .uwaga select, .uwaga a')]
          .filter((one) => one.offsetParent && one.tabIndex < 0 && !one.closest('.uwaga-words, .uwaga-wall, .uwaga-tabs, .uwaga-ribbon-row')).length"""
    )
    assert passed == 0
