"""Why a head looks there, in a browser: from a cell to the parts of its score, and from a part to the head that wrote it."""

from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from pages import MakeMaps, Open, Serve
from written import number_of

import uwaga
from uwaga.inspect import score_attribution
from uwaga.viewer.api import ServedView, display
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import RunRequest, TextRunner

pytestmark = pytest.mark.slow

TIRED = "The animal didn't cross the street because it was too tired."
BIRDS = "seven green birds sing ; seven green birds sing"


def recorded(view: ServedView, model: str) -> tuple[Any, uwaga.Recording]:
    reader, (side,) = uwaga.models.open(model, dtype="float32"), view.service.view.sides
    (stack,) = side.stacks
    ids = torch.tensor([[reader.tokenizer.backend.token_to_id(token) for token in side.tokens[stack]]])
    with uwaga.watch(reader, values=True) as recording, torch.no_grad():
        reader.read(ids)
    return reader, recording


def where(page: Any) -> dict[str, Any]:
    return {
        name: int(value) if value.isdigit() else value
        for name, (value,) in parse_qs(urlsplit(page.url).fragment).items()
    }


def wait_for_head(page: Any, **state: int) -> None:
    for name, value in state.items():
        page.wait_for_function(
            "([name, value]) => new URLSearchParams(location.hash.slice(1)).get(name) === value", arg=[name, str(value)]
        )


def figures(page: Any) -> list[float]:
    """All contributions, that of all others, and the sum."""
    return [number_of(text) for text in page.locator(".uwaga-why .uwaga-bar-number").all_inner_texts()]


def close(shown: list[float], right: list[float]) -> bool:
    """To the digits that are shown: four after the point below 10."""
    return len(shown) == len(right) and all(
        abs(a - b) <= 0.51 * 10 ** -(4 if abs(b) < 10 else 2) for a, b in zip(shown, right, strict=True)
    )


def test_from_a_cell_to_its_parts_and_to_the_head_that_wrote_one(serve: Serve, open_page: Open) -> None:
    view = serve(BIRDS, model="copyist")
    model, recording = recorded(view, "copyist")
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
    why = score_attribution(model, recording, 1, 2, link["query"], link["key"])
    shares = [share.share for share in why.top(10)]
    assert close(figures(page), [*shares, float(why.total()) - sum(shares), float(why.total())])
    items = view.service.view.sides[0].token_text("decoder").labels
    assert page.locator(".uwaga-why h2").inner_text() == f"Why {items[link['query']]} looks at {items[link['key']]}"
    # The part that a head wrote leads to that head, and its own weights are explained next.
    part = page.locator(".uwaga-why tbody .uwaga-link").first
    layer, head = (int(word.rstrip(",")) for word in part.inner_text().split()[1::2])
    part.click()
    wait_for_head(page, layer=layer, head=head)
    page.locator(".uwaga-headline-note", has_text=f"layer {layer}, head {head}").wait_for()
    page.locator(".uwaga-why:not([aria-busy]) tfoot").wait_for()
    there = where(page)
    assert there["query"] in (link["query"], link["key"])
    assert float(recording.maps["decoder", layer].select(0, head)[there["query"], there["key"]]) > 0
    assert page.evaluate("document.activeElement.tagName") == "H2"
    own = score_attribution(model, recording, layer, head, there["query"], there["key"])
    page.wait_for_function(
        "total => document.querySelector('.uwaga-why tfoot .uwaga-bar-number').textContent.includes(total)",
        arg=f"{abs(float(own.total())):.4f}"[:5],
    )
    page.go_back()
    wait_for_head(page, layer=1, head=2)
    page.locator(".uwaga-why h2", has_text=items[link["key"]]).wait_for()
    page.locator(".uwaga-why:not([aria-busy]) tfoot").wait_for()
    assert page.locator(".uwaga-why").is_visible()


def test_by_the_keyboard_alone_with_a_difference_and_by_what_wrote_at_the_key(serve: Serve, open_page: Open) -> None:
    view = serve(TIRED, model="minilm")
    model, recording = recorded(view, "minilm")
    page = open_page(view.address)
    page.locator(".uwaga-headline", has_text="it looks mostly at animal: 67.7%").wait_for()
    page.keyboard.press("e")
    page.locator(".uwaga-why tfoot").wait_for()
    assert page.locator(".uwaga-why h2").inner_text() == "Why it looks at animal"
    tokens = view.service.view.sides[0].tokens["encoder"]
    it, animal, street = (tokens.index(token) for token in ("it", "animal", "street"))
    layer, head = where(page)["layer"], where(page)["head"]
    why = score_attribution(model, recording, layer, head, it, animal)
    assert close(figures(page)[-1:], [float(why.total())])
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")  # the difference to another word; it looks at itself more than at street
    page.locator(".uwaga-why th", has_text="Wrote at animal, less at street").wait_for()
    page.locator(".uwaga-why:not([aria-busy])").wait_for()
    why = score_attribution(model, recording, layer, head, it, animal, than=street)
    shares = [share.share for share in why.top(10)]
    assert close(figures(page), [*shares, float(why.total()) - sum(shares), float(why.total())])
    said = page.locator(".uwaga-why p").first.inner_text()
    m = recording.maps["encoder", layer].select(0, head)
    assert said.startswith(
        f"animal gets {float(m[it, animal]) / float(m[it, street]):.2f} times the weight of street: their scores differ by "
    )
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")  # by what wrote at the key
    page.locator(".uwaga-why td", has_text="everything").first.wait_for()
    sums = sorted(why.shares().sum(0).tolist(), key=lambda x: -abs(x))[:10]
    assert close(figures(page)[:-2], sums)
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


def test_where_there_is_no_model_it_says_so_and_a_saved_page_has_no_button(
    serve: Serve, make_maps: MakeMaps, open_page: Open, tmp_path: Any
) -> None:
    view = serve(make_maps(7), tokens=["[CLS]", "the", "cat", "saw", "the", "dog", "[SEP]"])
    page = open_page(view.address)
    page.get_by_role("button", name="Why?").click()
    page.locator(".uwaga-why [role=status]", has_text="here is none: open a text with a model").wait_for()
    view.save(tmp_path / "page.html")
    saved = open_page((tmp_path / "page.html").as_uri())
    saved.locator(".uwaga-headline bdi").first.wait_for()
    assert saved.get_by_role("button", name="Why?").count() == 0


def test_it_can_be_asked_once_there_is_a_link(serve: Serve, open_page: Open) -> None:
    page = open_page(serve(BIRDS, model="copyist").address)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    held: list[Any] = []

    def hold(route: Any) -> None:
        if '"request":"items"' in str(route.request.post_data):
            held.append(route)
        else:
            route.continue_()

    page.route("**/ask", hold)
    page.evaluate("() => history.replaceState(null, '', location.pathname)")
    page.reload()
    page.get_by_role("tabpanel").wait_for()
    page.wait_for_timeout(300)
    assert held
    assert page.get_by_role("button", name="Why?").count() == 0
    page.unroute("**/ask")  # what is held goes on
    page.get_by_role("button", name="Why?").click()
    page.locator(".uwaga-why tfoot").wait_for()


def test_a_text_that_is_written_from_right_to_left(serve: Serve, open_page: Open) -> None:
    """Its words keep their direction inside of the sentences, in one text with the page's."""
    view = serve("שלום עולם טוב", model="bard")
    page = open_page(view.address)
    page.locator(".uwaga-headline bdi").first.wait_for()
    page.keyboard.press("e")
    page.locator(".uwaga-why tfoot").wait_for()
    assert page.locator(".uwaga-why h2 bdi").count() == 2
    page.locator(".uwaga").first.evaluate("root => { root.dir = 'rtl'; }")
    numbers, names = (
        page.locator(f".uwaga-why tbody tr:first-child td:{which}-child").bounding_box() for which in ("last", "first")
    )
    assert numbers["x"] < names["x"]
    wide = page.locator(".uwaga-why").evaluate("one => one.scrollWidth - one.clientWidth")
    assert wide <= 0


def test_a_head_of_a_layer_that_the_page_has_not_is_a_name_alone(open_page: Open) -> None:
    """As of `uwaga view --layers 1`: the score has parts of all layers below."""
    runner, request = (
        TextRunner(Text("", model=uwaga.models.open("copyist", dtype="float32"), layers=[1])),
        RunRequest(BIRDS),
    )
    service = ViewService(runner.run(request), runner=runner, typed=request)
    with cast("ServedView", display(service, port=0, browser=False, block=False, language=None)) as view:
        page = open_page(f"{view.address}&tab=explore&layer=1&head=2&merge=tokens")
        page.locator(".uwaga-headline", has_text="%").wait_for()
        page.get_by_role("button", name="Why?").click()
        page.locator(".uwaga-why tfoot").wait_for()
        assert page.locator(".uwaga-why td", has_text="layer 0, head").count() > 0
        assert page.locator(".uwaga-why td button").count() == 0
