"""The explorer and the lesson in a browser, in all languages."""

import re
from pathlib import Path
from typing import Any

import pytest
from pages import MakeMaps, Open, Serve, replace_texts
from waiting import until

from uwaga._base.languages import LANGUAGES
from uwaga.viewer.lesson import lesson, work_through

pytestmark = pytest.mark.slow

Page = Any
STEPS = {"pl": "Krok 1 z 24", "ja": "ステップ 1 / 24", "zh": "第 1 步\uff0c共 24 步"}


def opened(address: str, open_page: Open, **options: Any) -> Page:
    page = open_page(address, **options)
    page.wait_for_selector(".lesson-title, .uwaga-headline, canvas")
    return page


@pytest.mark.stress
def test_the_page_is_in_the_browsers_language_until_another_is_chosen(open_page: Open) -> None:
    with lesson(browser=False, block=False) as worked:
        page = opened(worked.view.address, open_page, locale="pl-PL")  # type: ignore[union-attr]
        assert page.locator("html").get_attribute("lang") == "pl"
        page.get_by_text(STEPS["pl"]).wait_for()
        assert page.locator(".lesson-sentence").first.input_value() == "to jest moje pióro ."
        page.get_by_role("button", name="Widok", exact=True).click()
        page.get_by_label("Język").select_option("ja")
        page.get_by_text(STEPS["ja"]).wait_for()
        assert page.locator("html").get_attribute("lang") == "ja"
        assert "language=ja" in page.url
        page.reload()
        page.get_by_text(STEPS["ja"]).wait_for()


@pytest.mark.stress
def test_a_language_that_was_asked_for_comes_before_the_browsers(open_page: Open, tmp_path: Path) -> None:
    """Also in a file, which has one language."""
    with lesson("the pen", browser=False, block=False, language="zh") as worked:
        page = opened(worked.view.address, open_page, locale="pt-BR")  # type: ignore[union-attr]
        page.get_by_text(STEPS["zh"]).wait_for()
    work_through("to jest pióro .", language="pl").save(tmp_path / "lekcja.html")
    page = opened((tmp_path / "lekcja.html").as_uri() + "#tab=lesson&step=softmax", open_page, locale="ja-JP")
    page.get_by_role("heading", name="Softmax: z wyników udziały").wait_for()
    page.get_by_role("button", name="Widok", exact=True).click()
    assert page.get_by_label("Język").count() == 0


# Text and labels that a user sees or hears; not tokens, code, and what is hidden from both.
_SHOWN = """() => {
  const found = [];
  const skip = "script, style, code, pre, kbd, bdi, textarea, input, option[lang], .uwaga-token, .uwaga-title, [data-text]";
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, text = node.textContent.trim();
    if (!text || !node.parentElement || node.parentElement.closest(skip)) continue;
    // A message whose values are elements has its brackets around them.
    found.push(node.parentElement.textContent.includes("⟦") ? `⟦${text}` : text);
  }
  for (const element of document.querySelectorAll("[aria-label], [title], [placeholder]"))
    if (!element.closest(skip)) for (const name of ["aria-label", "title", "placeholder"])
      if (element.getAttribute(name)) found.push(element.getAttribute(name));
  return found;
}"""


@pytest.mark.gate(only=lambda tab: tab == "explore")
@pytest.mark.parametrize("tab", ["explore", "overview", "table", "lesson"])
def test_every_text_of_a_page_comes_from_a_table(
    tab: str, serve: Serve, make_maps: MakeMaps, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a table whose messages are those of English in brackets."""
    replace_texts(monkeypatch, lambda text: f"⟦{text}⟧")
    handle = serve(make_maps(7), language="pl", title="w1 w2", tokens=[f"w{n}" for n in range(7)])
    page = open_page(f"{handle.address}&tab={tab}")
    page.wait_for_function("() => document.body.innerText.includes('⟦')")
    page.wait_for_timeout(1000)
    for button in ("⟦View⟧", "⟦Share⟧"):
        page.get_by_role("button", name=button, exact=True).click()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    until(lambda: sum("⟦" in text for text in page.evaluate(_SHOWN)) > 50)
    result = page.evaluate(_SHOWN)
    bare = [text for text in result if "⟦" not in text and re.search(r"[A-Za-z]{3,} [a-z]{2,}|^[A-Z][a-z]{3,}$", text)]
    example = set(work_through(language="pl").request["tokens"])
    assert not [text for text in bare if not set(text.split()) <= example]


@pytest.mark.gate(only=lambda language, width: (language, width) == ("pl", 360))
@pytest.mark.parametrize("width", [360, 800, 1400])
@pytest.mark.parametrize("language", [code for code in LANGUAGES if code != "en"])
def test_no_page_overflows(language: str, width: int, serve: Serve, make_maps: MakeMaps, open_page: Open) -> None:
    """The lesson's steps: test_lesson.py."""
    page = open_page(serve(make_maps(7), language=language, title="a b").address, width=width, height=800)
    for tab in ("explore", "overview", "table"):
        page.evaluate("tab => { location.hash = `tab=${tab}`; }", tab)
        page.wait_for_timeout(300)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), tab
