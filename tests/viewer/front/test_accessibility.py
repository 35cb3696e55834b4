"""Every screen and step by axe-core, which `make stress` and `make front-types` install, and by the keyboard alone."""

from pathlib import Path
from typing import Any

import pytest
from pages import Open, Serve, violations

import uwaga

pytestmark = pytest.mark.stress

TITLE = ".lesson-title"
TIRED = "The animal didn't cross the street because it was too tired."
LONG = f"{TIRED} The keeper of the house saw it, and she waited until it had slept. " * 8


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
    page.get_by_role("button", name="Cut link").click()
    page.locator(".uwaga-headline", has_text="Without").wait_for()
    page.locator(".uwaga-dot-lines").first.wait_for()
    opened(page)
    found["a cut link"] = violations(page)
    assert not {screen: wrong for screen, wrong in found.items() if wrong}


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
