"""Every screen by axe-core, in both themes and on a phone; and by the keyboard alone."""

from typing import Any

import pytest
from pages import MakeMaps, Open, Serve, violations

pytestmark = pytest.mark.slow

TIRED = "The animal didn't cross the street because it was too tired."
LONG = f"{TIRED} The keeper of the house saw it, and she waited until it had slept. " * 8
VIEWS = [
    ("minilm", TIRED, ("tab=explore", "tab=overview", "tab=table", "tab=explore&layer=3&head=1&query=8&map=wide")),
    ("minilm", LONG, ("tab=explore",)),
    ("speller", "attention", ("tab=explore",)),
    ("speller", "pneumonoultramicroscopicsilicovolcanoconiosis", ("tab=explore",)),
]


def opened(page: Any) -> None:
    page.wait_for_function("() => document.querySelector('.uwaga-panel > .uwaga-view:not([hidden])')")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(900)  # arcs are drawn


@pytest.mark.stress
@pytest.mark.parametrize(
    ("model", "text", "fragments"), VIEWS, ids=["sentence", "long text", "two rows", "two folded rows"]
)
def test_no_screen_has_a_violation(
    serve: Serve, open_page: Open, model: str, text: str, fragments: tuple[str, ...]
) -> None:
    found: dict[str, Any] = {}
    for theme, width in (("light", 1400), ("dark", 1400), ("light", 390)):
        for fragment in fragments:
            served = serve(text, model=model)
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
            served.close()
    assert not {screen: wrong for screen, wrong in found.items() if wrong}


@pytest.mark.stress
@pytest.mark.parametrize(
    ("model", "text", "first"),
    [("minilm", TIRED, "animal"), ("bard", "To be, or not to", "to"), ("speller", "cat", "%")],
)
@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 1400), ("light", 390)])
def test_a_changed_model_has_no_violation(
    serve: Serve, open_page: Open, model: str, text: str, first: str, theme: str, width: int
) -> None:
    served = serve(text, model=model)
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
def test_why_a_head_looks_there_has_no_violation(serve: Serve, open_page: Open, theme: str, width: int) -> None:
    served = serve("seven green birds sing ; seven green birds sing", model="copyist")
    page = open_page(served.address, width=width, height=900, color_scheme=theme)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    page.get_by_role("button", name="Why?").click()
    page.locator(".uwaga-why tfoot").wait_for()
    page.get_by_label("What is split").select_option(index=1)
    page.locator(".uwaga-why th", has_text="less at").wait_for()
    opened(page)
    assert violations(page) == []


def test_the_keyboard_reaches_every_control(serve: Serve, make_maps: MakeMaps, open_page: Open) -> None:
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
        "View",
        "uwaga-stage-word",
        "Play",
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
