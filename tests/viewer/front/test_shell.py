"""The page around the views in a browser: keys, help, URL, the overview and the table."""

import re
from typing import Any

import pytest
import torch
from pages import MakeMaps, Open, Serve
from written import number_of

pytestmark = pytest.mark.slow

Page = Any  # of playwright


@pytest.fixture
def page(serve: Serve, make_maps: MakeMaps, open_page: Open) -> Page:
    """A page of three layers of four heads over forty tokens."""
    opened = open_page(
        f"{serve(make_maps(40, layers=3, heads=4), tokens=[f't{at}' for at in range(40)]).address}&tab=overview"
    )
    opened.wait_for_selector(".uwaga-tabs")
    return opened


def part(page: Page, name: str) -> str | None:
    """The value of a key in the fragment of the URL."""
    match = re.search(rf"[#&]{name}=([^&]*)", page.url)
    return match and match[1]


def test_the_overview_and_the_table_open_a_head_that_the_url_names(page: Page) -> None:
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    cell = page.locator(".uwaga-overview-cell[data-active]")
    assert "encoder layer 2, head 1" in cell.get_attribute("aria-label")
    page.keyboard.press("Enter")
    page.wait_for_url("**tab=explore**")
    assert (part(page, "layer"), part(page, "head")) == ("2", "1")
    token = part(page, "token")
    page.keyboard.press("h")
    assert part(page, "head") == "2"
    page.go_back()
    page.go_back()
    page.wait_for_url("**tab=overview**")
    page.go_forward()
    page.wait_for_url("**tab=explore**")
    page.reload()
    page.wait_for_selector(".uwaga-tabs")
    assert [part(page, name) for name in ("tab", "layer", "head", "token")] == ["explore", "2", "1", token]
    page.get_by_role("tab", name="All heads").click()
    page.get_by_role("button", name="Table", exact=True).click()
    page.locator("tr[data-at]").nth(11).wait_for()
    for width in (390, 1280):  # every number stands under its heading
        page.set_viewport_size({"width": width, "height": 800})
        head, *rows = (
            page.evaluate("""() => [...document.querySelectorAll('.uwaga-heads thead tr, tr[data-at]')].map((row) =>
          [...row.children].map((cell) => { const { left, right } = cell.getBoundingClientRect(); return [left, right]; }))""")
        )
        assert len(head) > 5
        assert rows == [head] * 12
    heading = page.get_by_role("columnheader", name="entropy", exact=True)
    assert heading.get_attribute("aria-sort") is None
    heading.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    at = page.locator("table.uwaga-heads thead th").all_inner_texts().index(heading.inner_text())
    values = [number_of(row.locator("td, th").nth(at).inner_text()) for row in page.locator("tr[data-at]").all()]
    assert values == sorted(values, reverse=True)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    name = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("Enter")
    page.wait_for_url("**tab=explore**")
    assert name == f"encoder layer {part(page, 'layer')}, head {part(page, 'head')}: open"


@pytest.mark.stress
def test_help_lists_the_commands_of_every_view_and_keys_change_the_theme(page: Page) -> None:
    page.keyboard.press("?")
    dialog = page.locator("dialog[open]")
    keys = dict(
        dialog.locator("section").evaluate_all(
            "all => all.map((one) => [one.querySelector('h3').textContent, [...one.querySelectorAll('kbd')].map((key) => key.textContent)])"
        )
    )
    assert keys.keys() >= {"Views", "Heads", "Display", "Overview", "Map", "Long texts", "Table", "Files"}
    of_files = keys.pop("Files")
    assert len(set(of_files)) == len(of_files) == 7
    assert not set(of_files) & {key for group in keys.values() for key in group}
    page.keyboard.press("h")
    assert part(page, "head") in (None, "0")
    for _ in range(4):
        page.keyboard.press("Tab")
        assert page.evaluate(
            "() => document.activeElement === document.body || !!document.activeElement.closest('dialog')"
        )
    page.keyboard.press("Escape")
    assert dialog.count() == 0
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector(".uwaga[data-theme=dark]")
    for theme in ("light", "dark"):
        page.keyboard.press("t")
        assert page.evaluate("() => document.querySelector('.uwaga').dataset.theme") == theme
    page.keyboard.press("?")
    dialog.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("1")
    assert part(page, "tab") == "overview"


@pytest.mark.stress
def test_errors_are_shown_and_can_be_dismissed(serve: Serve, make_maps: MakeMaps, open_page: Open) -> None:
    page = open_page(f"{serve(make_maps(20)).address}&layer=0")
    page.wait_for_selector(".uwaga-tabs")
    page.wait_for_load_state("networkidle")  # the requests of the first view have ended
    broken = True

    def answer(route: Any) -> None:
        if broken:
            route.fulfill(status=200, content_type="application/octet-stream", body=b"no")
        else:
            route.continue_()

    page.route("**/ask", answer)
    page.keyboard.press("1")
    page.keyboard.press("h")  # another head, whose weights are not loaded yet
    alert = page.get_by_role("alert").first
    alert.wait_for()
    assert "reply:" in alert.inner_text()
    broken = False
    while page.get_by_role("alert").count():
        page.get_by_role("alert").first.get_by_role("button").click()


def test_explore_is_driven_by_the_wall_the_words_and_the_keys(
    serve: Serve, make_maps: MakeMaps, open_page: Open
) -> None:
    words = ["[CLS]", "the", "cat", "saw", "the", "dog", "and", "ran", "[SEP]"]
    maps = make_maps(len(words), layers=3, heads=4)
    page = open_page(serve(maps, tokens=words).address)
    all_heads = page.get_by_role("group", name="All heads")
    all_heads.get_by_role("button", pressed=True).wait_for()
    assert all_heads.get_by_role("button").count() == 12
    first = int(part(page, "layer") or 0), int(part(page, "head") or 0)
    all_heads.get_by_role("button", pressed=True).focus()
    page.keyboard.press("ArrowRight" if first != (2, 3) else "ArrowLeft")
    page.wait_for_function(
        "([layer, head]) => !location.hash.includes(`layer=${layer}&head=${head}&`)", arg=list(first)
    )
    opened = all_heads.get_by_role("button", pressed=True)
    assert opened.get_attribute("data-head") == part(page, "head")

    dog = page.locator('.uwaga-words [data-item="5"]')
    dog.click()
    page.locator(".uwaga-headline", has_text=re.compile("^dog ")).wait_for()

    def row_of(query: int) -> torch.Tensor:
        return maps["encoder", int(part(page, "layer") or 0)][0, int(part(page, "head") or 0), query]

    assert_shares(page, row_of(5))
    # A word's arcs while the pointer is on it, and those of the picked one after that.
    page.locator('.uwaga-words [data-item="2"]').hover()
    page.locator(".uwaga-headline", has_text="cat looks").wait_for()
    assert_shares(page, row_of(2))
    page.mouse.move(0, 0)
    page.locator(".uwaga-headline", has_text="dog looks").wait_for()
    assert_shares(page, row_of(5))
    # What comes to lie under a mouse at rest, as pages change, is not pointed at: over it, but not moved.
    cat = page.locator('.uwaga-words [data-item="2"]')
    cat.dispatch_event("pointerover", {"bubbles": True, "pointerType": "mouse"})
    page.wait_for_timeout(300)
    assert page.locator(".uwaga-headline", has_text="dog looks").is_visible()
    cat.hover()
    page.locator(".uwaga-headline", has_text="cat looks").wait_for()
    page.mouse.move(0, 0)
    page.locator(".uwaga-headline", has_text="dog looks").wait_for()
    dog.focus()
    page.keyboard.press("ArrowLeft")
    page.locator(".uwaga-headline", has_text="the looks").wait_for()
    assert page.evaluate("() => document.activeElement.dataset.item") == "4"
    assert_shares(page, row_of(4))
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_url("**key=**")

    page.locator(".uwaga-map-frame").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('.uwaga-map-frame [role=gridcell]:not(:empty)')")
    grid = page.get_by_role("grid", name="Attention map")
    assert (grid.get_attribute("aria-rowcount"), grid.get_attribute("aria-colcount")) == ("9", "9")
    said = page.locator(f"#{grid.get_attribute('aria-activedescendant')}").text_content()
    assert re.fullmatch(r"\S+ to \S+, (<0\.1|[\d.]+)%, \d+(st|nd|rd|th) of 9", said), said


def assert_shares(page: Page, row: torch.Tensor) -> None:
    """Under each word stands its share, and every arc is as wide as it: 44 pixels are 100%, 30.8 on a narrow stage."""
    shown = page.locator(".uwaga-words small").all_inner_texts()
    for share, weight in zip(shown, row.tolist(), strict=True):
        assert number_of(share.lstrip("<>")) == pytest.approx(100 * weight, abs=0.051)
    scale = 44 if page.locator(".uwaga-stage").evaluate("e => e.clientWidth") >= 1000 else 30.8
    arcs = [
        [key, scale * weight if weight >= 0.02 else 0.8] for key, weight in enumerate(row.tolist()) if weight >= 0.004
    ]
    page.wait_for_function(  # once they have come there
        """expected => {
          const arcs = [...document.querySelectorAll('.uwaga-arc:not([style*="none"])')].map((e) => [Number(e.dataset.key), Number(e.getAttribute("stroke-width"))]);
          arcs.sort(([one], [other]) => one - other);
          return arcs.length === expected.length && arcs.every(([key, width], at) => key === expected[at][0] && Math.abs(width - expected[at][1]) <= 0.01);
        }""",
        arg=arcs,
    )


@pytest.mark.stress
def test_a_phone_has_a_tab_bar_and_the_words_as_a_column(serve: Serve, make_maps: MakeMaps, open_page: Open) -> None:
    page = open_page(serve(make_maps(12)).address, width=360, height=780)
    words = page.locator(".uwaga-stage-word")
    words.nth(11).wait_for()
    tabs = page.get_by_role("tablist").bounding_box()
    assert (tabs["y"] + tabs["height"], tabs["height"]) == (780, 56)
    places = [word.bounding_box() for word in words.all()]
    assert len({place["x"] for place in places}) == 1
    assert [place["y"] for place in places] == sorted(place["y"] for place in places)


@pytest.mark.stress
def test_words_from_right_to_left_and_arcs_without_motion(serve: Serve, make_maps: MakeMaps, open_page: Open) -> None:
    words = [
        "\u0627\u0644\u0642\u0637",
        "\u0646\u0627\u0645",
        "\u0639\u0644\u0649",
        "\u0627\u0644\u0633\u0631\u064a\u0631",
    ]
    page = open_page(serve(make_maps(4), tokens=words).address, reduced_motion="reduce")
    shown = page.locator(".uwaga-stage-word")
    shown.nth(3).wait_for()
    places = [word.bounding_box()["x"] for word in shown.all()]
    assert places == sorted(places, reverse=True)
    shown.first.click()
    shown.first.press("ArrowLeft")
    assert page.evaluate("() => document.activeElement.dataset.item") == "1"
    page.locator(".uwaga-headline", has_text=f"{words[1]} looks").wait_for()
    opacity = "all => all.filter(e => e.style.display !== 'none').map(e => Number(e.getAttribute('opacity')))"
    assert all(one in (1, 0.75) for one in page.locator(".uwaga-arc").evaluate_all(opacity))


def test_the_keyboard_reaches_every_control(serve: Serve, make_maps: MakeMaps, open_page: Open) -> None:
    """Tab alone stops at each group of controls; arrow keys go on inside the words, the wall and the tabs."""
    words = ["[CLS]", "the", "cat", "saw", "the", "dog", "[SEP]"]
    page = open_page(serve(make_maps(len(words)), tokens=words).address)
    page.locator(".uwaga-wall svg").first.wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(900)  # arcs are drawn
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


# What `document.hidden` says, and that it has changed.
_SET_HIDDEN = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def layer_shown(page: Any) -> str | None:
    pressed = page.get_by_role("group", name="Layer", exact=True).locator('[aria-pressed="true"]')
    return str(pressed.inner_text()) if pressed.count() else None


def test_the_film_waits_where_the_page_is_hidden_and_ends_in_another_view(
    serve: Serve, make_maps: MakeMaps, open_page: Open
) -> None:
    page = open_page(f"{serve(make_maps(7)).address}&tab=explore&layer=0&head=1&query=2")
    page.locator(".uwaga-wall svg").nth(5).wait_for()
    # From here on time passes in the page where the test says so.
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 1)
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
