"""Every screen and step by axe-core, which `make stress` and `make front-types` install, and by the keyboard alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pages import MakeMaps, Open, Serve, violations

import uwaga
from uwaga.inspect import PatchGrid
from uwaga.viewer.lesson import work_through

pytestmark = pytest.mark.stress

TITLE = ".lesson-title"
TIRED = "The animal didn't cross the street because it was too tired."
LONG = f"{TIRED} The keeper of the house saw it, and she waited until it had slept. " * 8


@pytest.fixture(scope="module")
def browser(browser_with_bars: Any) -> Any:
    return browser_with_bars


@pytest.fixture
def saved(tmp_path: Path) -> str:
    with uwaga.lesson(browser=False, block=False) as lesson:
        lesson.save(tmp_path / "lesson.html")
    return (tmp_path / "lesson.html").as_uri() + "#tab=lesson"


def opened(page: Any) -> None:
    page.wait_for_function("() => document.querySelector('.uwaga-panel > .uwaga-view:not([hidden])')")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(900)  # arcs are drawn


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 1400), ("light", 390), ("dark", 390)])
def test_no_screen_has_a_violation(serve: Serve, open_page: Open, theme: str, width: int) -> None:
    """Every view, what the menus open, a changed model, and why a head looks there."""
    found: dict[str, Any] = {}

    def show(text: str, model: str, fragment: str) -> Any:
        page = open_page(f"{serve(text, model=model).address}&{fragment}", width=width, height=900, color_scheme=theme)
        opened(page)
        found[f"{model} {fragment}"] = violations(page)
        return page

    for fragment in ("tab=overview", "tab=table", "tab=explore&layer=3&head=1&query=8&map=wide"):
        show(TIRED, "minilm", fragment).context.close()
    show(LONG, "minilm", "tab=explore").context.close()
    show("To be, or not to", "bard", "tab=explore").context.close()
    show("pneumonoultramicroscopicsilicovolcanoconiosis", "speller", "tab=explore").context.close()
    page = show("seven green birds sing ; seven green birds sing", "copyist", "tab=explore")
    page.get_by_role("button", name="Why?").click()
    page.locator(".uwaga-why tfoot").wait_for()
    page.get_by_label("What is split").select_option(index=1)
    page.locator(".uwaga-why th", has_text="less at").wait_for()
    opened(page)
    found["why"] = violations(page)
    page.context.close()
    page = show(TIRED, "minilm", "tab=explore")
    if width > 800:
        page.get_by_role("button", name="Share", exact=True).click()
        found["share"] = violations(page)
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        found["help"] = violations(page)
        page.keyboard.press("Escape")
    page.context.close()
    # The vector of a text changes in a sentence, the predictions of a language model in lines of dots.
    for text, model, shown in ((TIRED, "minilm", ".uwaga-said"), ("To be, or not to", "bard", ".uwaga-dot-lines")):
        page = show(text, model, "tab=explore")
        page.get_by_role("button", name="Cut link").click()
        page.locator(".uwaga-headline", has_text="Without").wait_for()
        page.locator(shown).first.wait_for()
        opened(page)
        found[f"a cut link of {model}"] = violations(page)
        page.context.close()
    assert not {screen: wrong for screen, wrong in found.items() if wrong}


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390)])
def test_a_picture_has_no_violation(serve: Serve, open_page: Open, make_maps: MakeMaps, theme: str, width: int) -> None:
    """Before and after a patch is pointed at."""
    grid = PatchGrid(rows=8, columns=8, special=("[CLS]",))
    served = serve(make_maps(65, heads=4), tokens=grid.tokens, picture=torch.rand(64, 64), grid=grid)
    page = open_page(served.address, width=width, height=900, color_scheme=theme)
    headline = page.locator(".uwaga-picture .uwaga-headline")
    headline.filter(has_text="CLS").wait_for()
    assert violations(page) == []
    box = page.locator(".uwaga-photo").bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    headline.filter(has_text="patch 0,0").wait_for()
    assert violations(page) == []


# What a reader can work with: of a table one cell, from which the arrow keys lead to the others.
_REACHED = ".lesson-view :is(button, input, select, textarea, summary, [role=button], td[tabindex='0']):not(:disabled):not([tabindex='-1'])"
# Marks all of these that are shown until they have the focus, and returns how many they are.
_MARK = f"""() => {{
  document.addEventListener("focusin", (event) => event.target.removeAttribute("data-to-reach"));
  const all = [...document.querySelectorAll("{_REACHED}")].filter((one) => one.getClientRects().length);
  for (const one of all) one.setAttribute("data-to-reach", "");
  return all.length;
}}"""
_LEFT = "() => [...document.querySelectorAll('[data-to-reach]')].map((one) => one.outerHTML.slice(0, 120))"
_UNFOLD = "() => { for (const one of document.querySelectorAll('.lesson-view details')) one.open = true; }"


def test_everything_of_a_step_is_reached_by_tab(saved: str, open_page: Open) -> None:
    page = open_page(saved)
    for step in ("crude", "learning", "vectors", "copy", "architecture", "model"):
        page.goto(f"{saved}&step={step}")
        page.reload()
        page.wait_for_selector(TITLE)
        page.evaluate(_UNFOLD)
        count = page.evaluate(_MARK)
        assert count > 8
        page.locator(".lesson-thread").focus()
        for _ in range(count + 8):
            page.keyboard.press("Tab")
        assert page.evaluate(_LEFT) == [], step


def test_the_focus_stays_where_the_reader_is(saved: str, open_page: Open) -> None:
    """A question is answered, its explanation closed, and a word of the ribbons picked, with keys alone."""
    page = open_page(f"{saved}&step=softmax")
    page.wait_for_selector(TITLE)
    focused = "() => document.activeElement.getAttribute('class')"
    page.get_by_role("button", name="over 0.7").press("Enter")
    assert page.evaluate(focused) == "lesson-answer"
    page.get_by_role("button", name="Unmark the number").press("Enter")
    assert page.evaluate(focused) == "lesson-answer"
    page.evaluate(_UNFOLD)
    page.locator("[data-matrix=weights] td.lesson-cell").first.press("Enter")
    page.get_by_role("button", name="Unmark the number").press("Enter")
    assert page.evaluate("document.activeElement.closest('table').dataset.matrix") == "weights"
    page.goto(f"{saved}&step=copy")
    page.reload()
    page.locator(".lesson-show").press("Enter")
    word = page.locator(".lesson-ribbons .lesson-word").nth(2)
    word.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "is"
    assert "lesson-word-asks" in page.evaluate(focused)


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 390)])
def test_no_step_has_a_violation(saved: str, open_page: Open, theme: str, width: int) -> None:
    """Before and after its answer, with everything unfolded."""
    page = open_page(saved, width=width, color_scheme=theme, reduced_motion="reduce")
    page.wait_for_selector(TITLE)
    steps = page.locator(".lesson-list li").count()
    for step in range(steps):
        for state in ("asking", "answered"):
            page.evaluate(_UNFOLD)
            assert violations(page, ".lesson-view") == [], (step + 1, state)
            if state == "asking":
                page.locator(".lesson-show").click()
        page.locator(".lesson-after").click(force=True) if step < steps - 1 else None


# What is wider than its place, and whether the keyboard reaches it or something in it.
_SCROLLED = """() => [...document.querySelectorAll('.lesson-view *')]
  .filter((one) => one.getClientRects().length && one.scrollWidth > one.clientWidth && ['auto', 'scroll'].includes(getComputedStyle(one).overflowX))
  .map((one) => [(one.closest('[data-picture]')?.dataset.picture ?? one.querySelector('[data-matrix]')?.dataset.matrix ?? one.className),
    one.tabIndex === 0 || !!one.querySelector("[tabindex='0'], button, input")])"""


def test_what_scrolls_sideways_on_a_phone_is_reached_by_the_keyboard(tmp_path: Path, open_page: Open) -> None:
    """On every step of a sentence of twelve words, with everything unfolded."""
    lesson = work_through([f"w{n}" for n in range(12)])
    lesson.save(tmp_path / "lesson.html")
    page = open_page((tmp_path / "lesson.html").as_uri() + "#tab=lesson", width=390, reduced_motion="reduce")
    page.wait_for_selector(TITLE)
    assert page.locator(".lesson-view").evaluate("e => innerWidth - e.clientWidth") > 0  # there is a scroll bar
    seen = set()
    for step in lesson.steps:
        page.locator(".lesson-show").click() if step.question is not None else None
        page.evaluate(_UNFOLD)
        # A frame, after which what has been resized has been looked at.
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        scrolled = page.evaluate(_SCROLLED)
        assert [name for name, is_reached in scrolled if not is_reached] == [], step.id
        seen |= {name for name, _ in scrolled}
        page.locator(".lesson-after").click(force=True) if step is not lesson.steps[-1] else None
    assert {"scores", "weights"} <= seen


def test_the_film_plays_by_itself_only_if_motion_is_wanted(saved: str, open_page: Open) -> None:
    page = open_page(f"{saved}&step=learning", reduced_motion="reduce")
    for motion, button in (("reduce", "Watch it learn"), ("no-preference", "Stop")):
        page.emulate_media(reduced_motion=motion)
        page.reload()
        page.wait_for_selector(TITLE)
        page.locator(".lesson-show").click()
        assert page.locator(".lesson-watch").text_content() == button
        page.evaluate(_UNFOLD)
        moving = "e => Math.max(...getComputedStyle(e, '::before').transitionDuration.split(',').map(parseFloat))"
        weight = page.locator("[data-matrix=learn_weights] td.lesson-cell").first
        assert (weight.evaluate(moving) > 0) == (motion != "reduce")
