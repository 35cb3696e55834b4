"""The film of the layers and what a decoder writes: where they are, and that they wait while nobody sees them."""

from typing import Any

import pytest
from pages import MakeMaps, Open, Serve

pytestmark = pytest.mark.slow

playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright")

WORDS = ["[CLS]", "the", "quick", "brown", "fox", "jumps", "[SEP]"]
# What `document.hidden` says, and that it has changed.
_SET_HIDDEN = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def page(serve: Serve, open_page: Open, make_maps: MakeMaps) -> Any:
    view = serve(make_maps(len(WORDS)), tokens=WORDS, title="The quick brown fox", model="org/tiny")
    opened = open_page(f"{view.address}&tab=explore&layer=0&head=1&query=2", accept_downloads=True)
    opened.locator(".uwaga-wall svg").nth(5).wait_for()
    return opened


def stop_clock(page: Any) -> None:
    """From here on time passes in the page where the test says so."""
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)


def layer_shown(page: Any) -> str | None:
    pressed = page.get_by_role("group", name="Layer", exact=True).locator('[aria-pressed="true"]')
    return str(pressed.inner_text()) if pressed.count() else None


def test_the_film_waits_where_the_page_is_hidden_and_ends_in_another_view(page: Any) -> None:
    stop_clock(page)
    page.get_by_role("button", name="Play the layers").click()
    assert layer_shown(page) == "0"
    page.evaluate(_SET_HIDDEN, True)
    page.clock.run_for(3500)  # more than two stops of a film of two
    assert layer_shown(page) == "0"
    page.evaluate(_SET_HIDDEN, False)
    page.clock.run_for(1500)
    assert layer_shown(page) == "1"
    page.clock.run_for(1500)
    assert layer_shown(page) is None
    page.get_by_role("button", name="Play the layers").click()
    page.get_by_role("tab", name="All heads").click()
    page.get_by_role("tab", name="Explore").click()
    page.get_by_role("button", name="Play the layers").wait_for()
    assert layer_shown(page) is None
