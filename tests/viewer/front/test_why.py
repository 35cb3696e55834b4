"""Why a head looks there, in a browser: from a cell to the parts of its score, and from a part to the head that wrote it."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pages import Open, Serve
from written import number_of

from uwaga.viewer import ServedView

pytestmark = pytest.mark.slow

TIRED = "The animal didn't cross the street because it was too tired."
BIRDS = "seven green birds sing ; seven green birds sing"


def where(page: Any) -> dict[str, Any]:
    return {
        name: int(value) if value.isdigit() else value
        for name, (value,) in parse_qs(urlsplit(page.url).fragment).items()
    }


def reply(view: ServedView, link: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what the service answers of a link; test_why.py of the folder above compares it with `score_attribution`."""
    asked = {name: link[name] for name in ("layer", "head", "query", "key")}
    kind = next(iter(view.service.view.sides[0].maps))[0]
    options = {"side": "0", "kind": kind, "merge": "tokens", "specials": "show", "than": None}
    return dict(view.service.answer({"request": "why", **options, **asked, **more}).meta)


def wait_for_head(page: Any, **state: int) -> None:
    for name, value in state.items():
        page.wait_for_function(
            "([name, value]) => new URLSearchParams(location.hash.slice(1)).get(name) === value", arg=[name, str(value)]
        )


def figures(page: Any) -> list[float]:
    """All contributions, that of all others, and the sum."""
    return [number_of(text) for text in page.locator(".uwaga-why .uwaga-bar-number").all_inner_texts()]


def assert_shows(page: Any, reply: dict[str, Any]) -> None:
    """The page shows four digits after the point below 10."""
    shares = [share["share"] for share in reply["shares"]]
    right = [*shares, *([reply["rest"]] if reply["count"] > len(shares) else []), reply["total"]]
    shown = figures(page)
    assert len(shown) == len(right)
    assert all(abs(a - b) <= 0.51 * 10 ** -(4 if abs(b) < 10 else 2) for a, b in zip(shown, right, strict=True))


def test_from_a_cell_to_its_parts_and_to_the_head_that_wrote_one(serve: Serve, open_page: Open) -> None:
    view = serve(BIRDS, model="copyist")
    page = open_page(f"{view.address}&tab=explore&layer=1&head=2&merge=tokens")
    page.locator(".uwaga-headline", has_text="%").wait_for()
    assert page.locator(".uwaga-why").is_hidden()
    page.wait_for_function("() => location.hash.includes('query=')")
    before = where(page)
    # A cell of the map is a link, too.
    page.locator(".uwaga-map-stage").click(position={"x": 200, "y": 300})
    page.wait_for_function(
        "before => !location.hash.includes(before) && location.hash.includes('key=')",
        arg=f"query={before['query']}&key={before.get('key')}",
    )
    page.get_by_role("button", name="Why?").click()
    page.locator(".uwaga-why tfoot").wait_for()
    link = where(page)
    assert_shows(page, reply(view, link))
    items = view.service.view.sides[0].token_text("decoder").labels
    query, key = (items[link[name]] for name in ("query", "key"))
    assert page.locator(".uwaga-why h2").inner_text() == f"Why {query} looks at {key}"
    # The part that a head wrote leads to that head, and its own weights are explained next.
    part = page.locator(".uwaga-why tbody .uwaga-link").first
    layer, head = (int(word.rstrip(",")) for word in part.inner_text().split()[1::2])
    part.click()
    wait_for_head(page, layer=layer, head=head)
    page.locator(".uwaga-headline-note", has_text=f"layer {layer}, head {head}").wait_for()
    page.locator(".uwaga-why:not([aria-busy]) tfoot").wait_for()
    there = where(page)
    assert there["query"] in (link["query"], link["key"])
    assert page.evaluate("document.activeElement.tagName") == "H2"
    assert_shows(page, reply(view, there))
    page.go_back()
    wait_for_head(page, layer=1, head=2)
    page.locator(".uwaga-why h2", has_text=items[link["key"]]).wait_for()
    page.locator(".uwaga-why:not([aria-busy]) tfoot").wait_for()
    assert page.locator(".uwaga-why").is_visible()


@pytest.mark.stress
def test_by_the_keyboard_alone_with_a_difference_and_by_what_wrote_at_the_key(serve: Serve, open_page: Open) -> None:
    view = serve(TIRED, model="minilm")
    page = open_page(f"{view.address}&merge=tokens")
    page.locator(".uwaga-headline", has_text="it looks mostly at animal: 67.7%").wait_for()
    page.keyboard.press("e")
    page.locator(".uwaga-why tfoot").wait_for()
    assert page.locator(".uwaga-why h2").inner_text() == "Why it looks at animal"
    link, street = where(page), view.service.view.sides[0].tokens["encoder"].index("street")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")  # the difference to another word; it looks at itself more than at street
    page.locator(".uwaga-why th", has_text="Wrote at animal, less at street").wait_for()
    page.locator(".uwaga-why:not([aria-busy])").wait_for()
    expected = reply(view, link, than=street)
    assert_shows(page, expected)
    more, less = expected["weights"]
    said = page.locator(".uwaga-why p").first.inner_text()
    assert said.startswith(f"animal gets {more / less:.2f} times the weight of street: their scores differ by ")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "uwaga-link"
    layers = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.locator(".uwaga-headline-note", has_text=layers).wait_for()
    page.keyboard.press("Escape")
    assert page.locator(".uwaga-why").is_hidden()
    assert page.evaluate("document.activeElement.textContent") == "Why?"
    # Its key is one of this tab.
    for key in "2e1":
        page.keyboard.press(key)
    page.locator(".uwaga-headline").wait_for()
    assert page.locator(".uwaga-why").is_hidden()
