"""Texts typed into the page, and changes of the model, in a browser."""

import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
import torch
from pages import Open, Serve
from written import number_of

import uwaga
from uwaga.viewer.api import ServedView
from uwaga.viewer.shown import Text
from uwaga.viewer.texts import EXAMPLES, RunRequest, TextRunner

pytestmark = pytest.mark.slow

BOX = ".uwaga-typing textarea"


@pytest.fixture
def bard(serve: Serve) -> ServedView:
    return serve("To be, or not to", model="bard")


def write(page: Any, text: str) -> None:
    """Opens the text box where it is closed, and types a text."""
    if not page.locator(BOX).first.is_visible():
        page.get_by_role("button", name="Write a text").click()
    page.locator(BOX).first.fill(text)


def type_text(page: Any, text: str) -> None:
    write(page, text)
    page.keyboard.press("Enter")
    page.wait_for_function("text => new URLSearchParams(location.hash.slice(1)).get('text') === text", arg=text)
    page.locator(".uwaga-headline bdi").first.wait_for()


def bars(page: Any, title: str) -> list[str]:
    section = page.locator(".uwaga-predictions section", has=page.locator("h2", has_text=title))
    section.wait_for()
    return section.locator(".uwaga-token").all_inner_texts()


def test_a_typed_text_is_shown_with_what_comes_next(bard: ServedView, open_page: Open) -> None:
    page = open_page(bard.address)
    assert page.locator(BOX).first.input_value() == "To be, or not to"
    type_text(page, "ROMEO:\nWhat light is")
    words = page.locator(".uwaga-reading:visible .uwaga-word")
    assert words.evaluate_all("all => all.map((one) => one.firstChild.textContent).join(' ')").startswith("ROMEO")
    run = TextRunner(Text("", model=uwaga.models.open("bard", dtype="float32")))
    predictions = run.run(RunRequest("ROMEO:\nWhat light is")).predictions["0"]
    words = predictions.top(len(predictions) - 1, len(predictions), 5)[0][0]
    assert bars(page, "What comes next") == [word.replace(" ", "\u2423").replace("\n", "\u21b5") for word in words]
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('text=')")
    page.wait_for_function("box => document.querySelector(box).value === 'To be, or not to'", arg=BOX)


def test_a_text_that_cannot_be_read_leaves_the_picture(bard: ServedView, open_page: Open) -> None:
    page = open_page(bard.address)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    before = page.locator(".uwaga-headline").inner_text()
    write(page, "x" * 50_001)
    page.keyboard.press("Enter")
    page.locator(".uwaga-typing-note", has_text="50,001 tokens").wait_for()
    assert page.locator(".uwaga-headline").inner_text() == before


def test_a_text_that_is_too_long_is_read_in_part_or_by_another_model(serve: Serve, open_page: Open) -> None:
    served = serve("The cat sat.", model="minilm")
    page = open_page(served.address)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    ways = (("Read the first 512 tokens", "all-MiniLM-L6-v2", 512), ("Read it with copyist", "copyist", 1200))
    for number, (button, model, tokens) in enumerate(ways, 1):
        write(page, "cat " * 599 + "end")
        page.keyboard.press("Enter")
        said = "the text has 602 tokens, special ones included, and all-MiniLM-L6-v2 takes 512"
        page.locator(".uwaga-typing-note", has_text=said).wait_for()
        page.get_by_role("button", name=button).click()
        page.locator(".uwaga-word", has_text="cat").first.wait_for()  # of a long text that is shown
        page.locator(".uwaga-title", has_text=model).wait_for()
        (side,) = served.service.answer({"request": "about", "run": number}).meta["sides"]
        assert side["model"] == model
        assert next(iter(side["stacks"].values()))["tokens"] == tokens


def test_the_headline_of_a_long_text_is_the_exact_weight_in_every_head(serve: Serve, open_page: Open) -> None:
    """With more tokens than a small map has cells, figures of cells of several words once passed for words."""
    text = "The keeper of the lighthouse did not cross the bay because it was too wild; she waited for the boat. " * 14
    served = serve(text, model="minilm")
    page = open_page(served.address)
    heads = page.locator(".uwaga-wall button")
    page.locator(".uwaga-headline", has_text="%").wait_for()
    maps = served.service.view.sides[0].maps
    for at in (0, 17, 40, 71):
        heads.nth(at).click()
        layer, head = divmod(at, 12)
        page.wait_for_function(f"() => location.hash.includes('layer={layer}&head={head}&')")
        page.locator(".uwaga-headline-note", has_text=f"layer {layer}, head {head}").wait_for()
        page.locator(".uwaga-headline", has_text="%").wait_for()
        query = int(parse_qs(urlsplit(page.url).fragment)["query"][0])
        row = maps["encoder", layer][head, query]
        figures = [
            number_of(figure) for figure in re.findall(r"([<>]?[\d.]+)%", page.locator(".uwaga-headline").inner_text())
        ]
        key = int(parse_qs(urlsplit(page.url).fragment)["key"][0])
        shown = [100 * float(row[key]), 100 * float(row[1:-1].max()), 100 * float(row.max())]
        assert figures
        assert all(any(abs(figure - one) <= 0.051 for one in shown) for figure in figures), (figures, shown)


def test_a_head_is_switched_off_and_a_link_cut(bard: ServedView, open_page: Open) -> None:
    page = open_page(bard.address)
    page.locator(".uwaga-headline bdi").first.wait_for()
    page.get_by_role("button", name="This head", exact=True).click()
    page.locator(".uwaga-change-controls").get_by_role("button", name="Off").click()
    bar = page.locator(".uwaga-changes")
    bar.get_by_text("1 change", exact=True).wait_for()
    where = parse_qs(urlsplit(page.url).fragment)
    assert where["side"] == ["1"]
    head = f"layer {where['layer'][0]}, head {where['head'][0]}"
    assert bar.locator(".uwaga-change").all_inner_texts()[0].startswith(f"decoder {head} off")
    page.locator(".uwaga-cut").click()
    bar.get_by_text("2 changes").wait_for()
    # Nothing goes over the link that was cut.
    page.locator(".uwaga-headline", has_text="Without").wait_for()
    bar.get_by_role("button", name="Before").click()
    page.wait_for_function("() => location.hash.includes('side=0')")
    page.locator(".uwaga-headline", has_text="Without").wait_for(state="hidden")
    bar.get_by_role("button", name="Undo").click()
    bar.get_by_text("1 change", exact=True).wait_for()
    bar.get_by_role("button", name="Clear").click()
    page.wait_for_function("() => document.querySelector('.uwaga-changes').hidden")


def test_a_cut_says_where_the_weight_went_and_what_moved(serve: Serve, open_page: Open) -> None:
    served = serve(EXAMPLES["minilm"][0], model="minilm")
    page = open_page(served.address)
    page.locator(".uwaga-headline", has_text="it looks mostly at animal: 67.7%").wait_for()
    before = page.locator(".uwaga-words small").all_inner_texts()
    page.locator(".uwaga-cut").click()
    page.get_by_role("heading", name="Where the 67.7% went").wait_for()
    page.locator(".uwaga-headline", has_text="Without animal, it rests on CLS: ").wait_for()
    assert page.locator('.uwaga-words [data-item="2"] small').inner_text().startswith("cut")
    after = page.locator(".uwaga-words small").all_inner_texts()
    # What is left is divided again: every other share grows by one factor.
    factors = [
        number_of(now.split()[0]) / number_of(was)
        for at, (was, now) in enumerate(zip(before, after, strict=True))
        if at != 2 and number_of(was) > 4
    ]
    assert len(factors) >= 3
    assert max(factors) - min(factors) < 0.1
    gained = page.locator(".uwaga-flow li b").all_inner_texts()
    assert sum(number_of(each.strip("+%")) for each in gained) == pytest.approx(67.7, abs=0.6)
    page.get_by_text("so every other share grew by the same factor, 3.09.").wait_for()
    # Each is what stands under its word; and what is one band, is as wide as all that it stands for.
    under = dict(text.split("\n") for text in page.locator(".uwaga-stage-word").evaluate_all(
        """all => all.filter((one) => one.querySelector('small i')).map((one) => `${one.querySelector('bdi').textContent.replace(/[[\\]]/g, '')}\n${one.querySelector('small i').textContent}`)"""
    ))  # fmt: skip
    rows = page.locator(".uwaga-flow li").all_inner_texts()
    assert rows[-1].split("\n")[0] == "7 others"
    flow = dict(row.replace("%", "").split("\n") for row in rows[:-1])
    assert {word: flow[word] for word in ("CLS", "it", "street", "The")} == {
        word: under[word] for word in ("CLS", "it", "street", "The")
    }
    widths = page.locator(".uwaga-flow path").evaluate_all("all => all.map((one) => one.getBBox().height)")
    assert len(widths) == len(rows)
    # Before and after of the output: figures of the service, dots where these are.
    about = served.service.answer({"request": "about", "run": 1}).meta
    lines = page.locator(".uwaga-dot-lines li")
    assert [text.split("\n") for text in lines.all_inner_texts()] == [
        [text, f"{before:.4f} \u2192 {after:.4f}"] for text, before, after in about["probes"]
    ]
    dots = lines.evaluate_all(
        "all => all.map((one) => ['ring', 'dot'].map((name) => parseFloat(one.querySelector(name === 'dot' ? '.uwaga-dot' : '.uwaga-dot-ring').style.insetInlineStart)))"
    )
    for (ring, dot), (_, before, after) in zip(dots, about["probes"], strict=True):
        assert (ring, dot) == (50, pytest.approx(50 + 100 * (after - before) / 0.005, abs=0.02))
    page.get_by_text(
        "away from \u201cThe animal was exhausted\u201d and towards \u201cThe street was too wide\u201d"
    ).wait_for()
    assert page.locator(".uwaga-moved-list li").count() == 5
    page.get_by_text("The text\u2019s vector is >99.9% like the one before.").wait_for()
    # The picture to share tells what is left, that the model is changed, and how.
    with page.expect_download() as saved:
        page.keyboard.press("Shift+A")
    drawing = saved.value.path().read_text(encoding="utf-8")
    row = served.service.answer(
        {
            "request": "row",
            "run": 1,
            "side": "1",
            "kind": "encoder",
            "layer": 3,
            "head": 1,
            "merge": "words",
            "specials": "show",
            "query": 8,
        }
    )
    assert re.findall(r">([\d.]+%)<", drawing) == [f"{100 * float(np.sort(row.arrays[0][1:-1])[-2]):.1f}%"] == ["15.5%"]
    assert "layer 3, head 1 \u00b7 1 change \u00b7 34.3% at rest" in drawing
    assert "with uwaga.edit(model, scores=" in drawing
    # What the weight went to is what is lit; and no number is cut off at the edge of a narrower window.
    assert page.locator('.uwaga-stage-word[data-role="asked"]').inner_text().startswith("street")
    page.set_viewport_size({"width": 800, "height": 900})
    page.wait_for_function(
        "() => [...document.querySelectorAll('.uwaga-stage-word')].every((one) => one.getBoundingClientRect().right <= 800)"
    )
    # Of the change nothing is left with another text.
    type_text(page, "The street was wide.")
    page.get_by_text("How alike its vector is").wait_for()
    assert page.get_by_text("with the changes").count() == 0
    assert page.locator(".uwaga-moved").is_hidden()


def test_a_changed_decoder_shows_probabilities_before_and_after(bard: ServedView, open_page: Open) -> None:
    """As lines in place of bars: each with both figures, and the sentence names what moved most."""
    page = open_page(bard.address)
    page.locator(".uwaga-headline bdi").first.wait_for()
    assert bars(page, "What comes next")
    page.get_by_role("button", name="This head", exact=True).click()
    page.locator(".uwaga-change-controls").get_by_role("button", name="Off").click()
    lines = page.locator(".uwaga-predictions section", has=page.locator("h3", has_text="What comes next")).locator(
        ".uwaga-dot-lines li"
    )
    lines.first.wait_for()
    reply = bard.service.answer({"request": "about", "run": 1}).meta["predictions"]["1"]
    figures = bard.service.answer(
        {"request": "predictions", "run": 1, "side": "1", "first": reply["tokens"] - 1, "count": 1}
    )
    after, before = (each[0] for each in figures.arrays)
    shown = [[number_of(one) for one in re.findall(r"[<>]?[\d.]+(?=%)", text)] for text in lines.all_inner_texts()]
    # The first, and what is not next to nothing.
    kept = [at for at in range(5) if at == 0 or max(before[at], after[at]) >= 0.005]
    assert np.allclose(shown, 100 * np.stack([before, after], 1)[kept], atol=0.0501)
    assert page.locator(".uwaga-predictions .uwaga-bar-row").count() == 0


def test_a_link_that_is_cut_behind_the_softmax_moves_no_share(serve: Serve, open_page: Open) -> None:
    edits = {
        "heads": [],
        "scores": [],
        "weights": [{"kind": "encoder", "layer": 3, "head": 1, "queries": [10], "keys": [2], "factor": 0}],
    }
    address = serve(EXAMPLES["minilm"][0], model="minilm").address
    asked = {"text": EXAMPLES["minilm"][0], "edits": json.dumps(edits), "layer": 3, "head": 1, "query": 8, "side": 1}
    page = open_page(f"{address}&{urlencode(asked)}")
    page.get_by_role("heading", name="Where the 67.7% went").wait_for()
    page.get_by_text("The other shares stay as they are, and the head sums up 32.3% of its values.").wait_for()
    page.get_by_text("it \u2192 animal \u00d7 0 after the softmax in layer 3, head 1").wait_for()
    assert page.locator(".uwaga-flow").count() == 0


LONG_WORD = "pneumonoultramicroscopicsilicovolcanoconiosis"


@pytest.mark.parametrize(
    ("word", "width", "said"),
    [
        (LONG_WORD, 1400, "R looks mostly at t: 99.4%"),
        (LONG_WORD, 390, "R looks mostly at t: 99.4%"),
        (2 * LONG_WORD, 1400, "N looks mostly at m: 96.3%"),
    ],
    ids=["desk", "phone", "more than a small map has cells for"],
)
def test_of_a_long_word_the_rest_is_folded_with_its_exact_share(
    serve: Serve, open_page: Open, word: str, width: int, said: str
) -> None:
    """Of 46 or 91 letters those around the picked one; arrow keys move what is shown, and a fold opens at a click."""
    served = serve(word, model="speller")
    page = open_page(served.address, width=width)
    page.locator(".uwaga-headline", has_text=said).wait_for()
    m = served.service.view.sides[0].maps
    side = 12 if width == 1400 else 5

    def check() -> tuple[int, list[int]]:
        page.wait_for_function(
            "() => document.querySelector('.uwaga-ribbon-row[data-axis=key] .uwaga-ribbon-fold small').textContent"
        )
        where = parse_qs(urlsplit(page.url).fragment)
        query = int(
            page.locator('.uwaga-ribbon-row[data-axis="query"] [aria-pressed="true"]').get_attribute("data-item")
        )
        row = m["cross", int(where["layer"][0])].select(int(where["head"][0]))[query].detach().numpy()
        shown = page.locator('.uwaga-ribbon-row[data-axis="key"] button').evaluate_all(
            "all => all.map((one) => [one.dataset.item === undefined ? -1 : Number(one.dataset.item), one.querySelector('small').textContent, one.querySelector('bdi').textContent])"
        )
        items = [item for item, *_ in shown if item >= 0]
        assert items == list(range(items[0], items[0] + 2 * side + 1))
        first = True
        for item, share, name in shown:
            if item >= 0:
                exact = float(row[item])
            else:
                folded = row[: items[0]] if first and items[0] else row[items[-1] + 1 :]
                assert name == f"+{len(folded)}"
                exact = float(folded.sum())
            first = False
            if share:
                # On a phone without a decimal place beside another number.
                tolerance = 0.051 if width == 1400 or item < 0 or "." in share else 0.501
                assert abs(number_of(share.strip("<>%")) - 100 * exact) <= tolerance or exact < 0.0005
            else:
                assert item >= 0
                assert exact < 0.05
        return query, items

    query, before = check()
    page.locator('.uwaga-ribbon-row[data-axis="query"] [aria-pressed="true"]').focus()
    for step in range(1, 6):
        page.keyboard.press("ArrowRight")
        page.wait_for_function(
            "at => document.activeElement.dataset.item === String(at) && document.activeElement.ariaPressed === 'true'",
            arg=query + step,
        )
        check()
    with page.expect_download() as saved:
        page.keyboard.press("Shift+A")
    drawing = saved.value.path().read_text(encoding="utf-8")
    assert re.findall(r">(\+\d+)<", drawing)
    where = parse_qs(urlsplit(page.url).fragment)
    row = m["cross", int(where["layer"][0])].select(int(where["head"][0]))[query + 5].detach()
    assert re.findall(r">([\d.]+%)<", drawing) == [f"{100 * float(row.max()):.1f}%".replace(".0%", "%")]
    page.locator('.uwaga-ribbon-row[data-axis="key"] .uwaga-ribbon-fold').last.click()
    page.wait_for_function(
        "before => Number(document.querySelector('.uwaga-ribbon-row[data-axis=key] [data-item]').dataset.item) > before",
        arg=before[0],
    )
    query, _ = check()
    if len(word) < 65:  # the rows of all words are there
        return
    held: list[Any] = []
    page.route(
        "**/ask",
        lambda route: held.append(route) if '"request":"row"' in route.request.post_data else route.continue_(),
    )
    page.locator('.uwaga-ribbon-row[data-axis="query"] [aria-pressed="true"]').press("ArrowRight")
    pressed = page.locator(f'.uwaga-ribbon-row[data-axis="query"] [data-item="{query + 1}"][aria-pressed="true"]')
    pressed.wait_for()
    assert held
    assert not any(page.locator(".uwaga-ribbon-row[data-axis=key] small").all_inner_texts())
    page.unroute("**/ask")  # what is held goes on
    assert check()[0] == query + 1


def test_the_film_shows_layer_after_layer(serve: Serve, open_page: Open) -> None:
    served = serve(EXAMPLES["minilm"][0], model="minilm")
    page = open_page(served.address, reduced_motion="reduce")
    page.locator(".uwaga-headline", has_text="67.7%").wait_for()
    stops = page.get_by_role("group", name="Layer", exact=True).get_by_role("button")
    assert stops.count() == 6
    for layer in (0, 5):
        stops.nth(layer).click()
        page.locator(".uwaga-headline", has_text=f"Layer {layer}: ").wait_for()
        said = [number_of(each) for each in re.findall(r"([\d.]+)%", page.locator(".uwaga-headline").inner_text())]
        mean = served.service.view.sides[0].maps["encoder", layer].to_dense().double().mean(0)
        spans = [[1], [2], [3, 4, 5], *([at] for at in range(6, 15))]  # the words, without special tokens
        words = torch.stack([torch.stack([mean[row][:, span].sum(-1).mean() for span in spans]) for row in spans])
        place = torch.arange(len(spans))
        distance = (place[:, None] - place).abs()
        shares = [float(words[where].sum()) / len(spans) for where in (distance == 1, distance > 1, distance == 0)]
        assert sum(said) == pytest.approx(100, abs=0.2)
        assert said == pytest.approx([100 * share for share in (*shares, 1 - sum(shares))], abs=0.051)
        assert page.locator(".uwaga-headline").inner_text().endswith("at rest on CLS and SEP")
        note = page.locator(".uwaga-headline-note").inner_text()
        assert note == f"all-MiniLM-L6-v2 \u00b7 layer {layer}, mean of 12 heads"
        assert not page.get_by_text("the numbers under the words add up to 100%").is_visible()
        assert page.locator(".uwaga-wall button:not([data-dim])").count() == 12
    stops.nth(5).press("Escape")
    page.locator(".uwaga-headline", has_text="it looks mostly at animal").wait_for()


def test_a_word_is_changed_for_another_and_back(serve: Serve, open_page: Open) -> None:
    page = open_page(serve(EXAMPLES["minilm"][0], model="minilm").address)
    page.locator(".uwaga-headline", has_text="67.7%").wait_for()
    page.get_by_role("button", name="Change \u201ctired\u201d into \u201cwide\u201d").click()
    page.locator(".uwaga-headline", has_text="it rests on CLS: 32.6%; of the words, most on animal: 28.1%").wait_for()
    page.get_by_role("button", name="Change \u201cwide\u201d into \u201ctired\u201d").click()
    page.locator(".uwaga-headline", has_text="67.7%").wait_for()
    word = page.locator('.uwaga-words [data-item="6"]')
    word.click()
    word.click()
    page.get_by_role("textbox", name="Another word instead of the picked one").fill("river")
    page.keyboard.press("Enter")
    page.locator('.uwaga-words [data-item="6"]', has_text="river").wait_for()


def test_a_keyboard_user_keeps_the_place_in_the_text(serve: Serve, open_page: Open) -> None:
    """After a cut, its undoing, and another word: the focus is on the word that had it, and the next key is for it."""
    page = open_page(serve(EXAMPLES["minilm"][0], model="minilm").address)
    page.locator(".uwaga-headline", has_text="67.7%").wait_for()
    place = "() => document.activeElement?.closest('.uwaga-words [data-item]')?.dataset.item"
    page.locator('.uwaga-words [data-item="8"]').focus()

    def stays(item: str) -> None:
        page.wait_for_function(f"{place} === '{item}'")

    page.keyboard.press("Enter")  # of the picked word: the keys after it are still commands, not letters of a box
    stays("8")
    page.keyboard.press("d")
    page.locator(".uwaga-changes:not([hidden])").wait_for()
    stays("8")
    page.keyboard.press("Control+z")
    page.locator(".uwaga-changes[hidden]").wait_for(state="attached")
    stays("8")
    page.keyboard.press("Control+Shift+z")
    page.locator(".uwaga-changes:not([hidden])").wait_for()
    stays("8")
    page.keyboard.press("ArrowLeft")
    stays("7")
    page.keyboard.press("Control+z")
    page.locator(".uwaga-changes[hidden]").wait_for(state="attached")
    stays("7")
    page.get_by_role("button", name="because into …").press("Enter")
    box = page.get_by_role("textbox", name="Another word instead of the picked one")
    page.keyboard.type("dhl")
    assert box.input_value() == "dhl"
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.textContent") == "because into …"
    page.keyboard.press("Enter")
    page.keyboard.type("since")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="since into …").wait_for()
    page.wait_for_function("() => document.activeElement.textContent === 'since into …'")


def test_an_address_with_a_text_and_changes_opens_on_them(bard: ServedView, open_page: Open) -> None:
    edits = '{"heads":[{"kind":"decoder","layer":0,"head":1,"value":0}],"scores":[],"weights":[]}'
    page = open_page(f"{bard.address}&text=Who+is+there&edits={edits}&layer=2&head=3&kind=decoder&side=1")
    page.locator(".uwaga-change", has_text="layer 0, head 1 off").wait_for()
    assert page.locator(BOX).first.input_value() == "Who is there"
    page.locator(".uwaga-headline-note", has_text="layer 2, head 3").wait_for()


def test_a_saved_page_says_how_to_try_another_text(bard: ServedView, open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    bard.save(path)
    page = open_page(path.as_uri())
    page.get_by_text('uwaga view "To be, or not to" --model bard').wait_for()
    assert len(bars(page, "What comes next")) == 5
    assert page.locator(BOX).count() == 0


def test_the_lines_of_a_text_stay_where_tokens_have_no_newline(serve: Serve, open_page: Open) -> None:
    page = open_page(serve("The first line.\nThe second.\n\nAfter a blank one.", model="minilm").address)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    # A blank line is between two paragraphs.
    texts = page.locator(".uwaga-reading:visible p").evaluate_all(
        "all => all.map((one) => [...one.childNodes].map((node) => node.tagName === 'BR' ? '\\n' : node.firstChild?.textContent ?? node.textContent).join(''))"
    )
    lines = [line.strip() for text in texts for line in text.split("\n") if line.strip()]
    assert [line.partition(".")[0].strip() for line in lines[1:]] == ["The second", "After a blank one"]


@pytest.mark.timing
def test_a_sentence_is_shown_within_a_second(serve: Serve, open_page: Open) -> None:
    """From typing to the arcs: MiniLM."""
    served = serve("the cat sat", model="minilm")
    page = open_page(served.address)
    page.locator(".uwaga-headline bdi").first.wait_for()
    seconds = []
    for text in ("The animal was tired.", "The street was too wide.", "It was late, and it rained."):
        began = time.perf_counter()
        type_text(page, text)
        page.locator('.uwaga-arc[d^="M"]').nth(3).wait_for()
        seconds.append(time.perf_counter() - began)
    assert sorted(seconds)[1] < 1.0, seconds


def test_rows_of_cross_attention_are_named_by_what_is_written(serve: Serve, open_page: Open) -> None:
    """Switchable; the letters of "cat" and the sounds K AE T."""
    served = serve("cat", model="speller")
    page = open_page(served.address)
    page.locator(".uwaga-headline bdi").first.wait_for()
    page.get_by_role("button", name="cross-attention").first.click()
    rows = page.locator('.uwaga-ribbon-row[data-axis="query"]')
    rows.locator("bdi", has_text="K").first.wait_for()
    written = rows.inner_text()
    page.get_by_role("button", name="View", exact=True).click()
    page.get_by_role("group", name="Rows of cross-attention").get_by_role("button", name="Read").click()
    page.wait_for_function(
        "text => ![text, '', undefined].includes(document.querySelector('.uwaga-ribbon-row[data-axis=query]')?.innerText)",
        arg=written,
    )
    assert "kind=cross" in page.url
    assert written.split()[0] == "K"
    assert rows.inner_text().split()[0] != "K"


def test_a_head_that_is_not_chosen_yet_is_not_in_the_address(serve: Serve, open_page: Open) -> None:
    served = serve(EXAMPLES["minilm"][0], model="minilm")
    page = open_page(served.address)
    page.locator(".uwaga-headline", has_text="67.7%").wait_for()
    held: list[Any] = []
    page.route(
        "**/ask",
        lambda route: held.append(route) if '"request":"labels"' in route.request.post_data else route.continue_(),
    )
    page.goto("about:blank")
    page.goto(urlsplit(served.address)._replace(fragment="").geturl())
    page.locator(".uwaga-wall button").nth(71).wait_for()
    page.wait_for_function("() => location.hash.includes('tab=explore')")
    assert held
    assert not {"kind", "layer", "head", "query", "key"} & set(parse_qs(urlsplit(page.url).fragment))
    page.unroute("**/ask")  # what is held goes on
    page.wait_for_function("() => location.hash.includes('layer=3&head=1&')")
    page.locator(".uwaga-headline", has_text="67.7%").wait_for()


@pytest.mark.parametrize("merge", ["words", "tokens"])
@pytest.mark.parametrize("saved", [False, True], ids=["served", "saved"])
def test_what_the_model_does_not_know_is_marked_and_counted(
    serve: Serve,
    open_page: Open,
    tmp_path: Path,
    *,
    merge: str,
    saved: bool,
) -> None:
    served = serve("\u592a\u7d2f\u4e86 was it \N{OWL}", model="minilm")
    tokens = served.service.view.sides[0].tokens["encoder"]
    assert tokens == ["[CLS]", "\u592a", "[UNK]", "[UNK]", "was", "it", "[UNK]", "[SEP]"]
    address = served.address
    if saved:
        served.save(tmp_path / "page.html")
        address = (tmp_path / "page.html").as_uri()
    page = open_page(f"{address}{'#' if saved else '&'}merge={merge}")
    note = page.locator(".uwaga-unknown-note")
    note.wait_for()
    assert note.inner_text() == (
        "3 of 6 tokens are unknown to this model: it reads the same [UNK] for each. The model copyist, which comes with "
        "uwaga, reads every text, byte by byte; intfloat/multilingual-e5-small knows words of many languages."
    )
    marked = page.locator(".uwaga-words .uwaga-unknown")
    marked.first.wait_for()
    assert marked.all_inner_texts() == ["\u7d2f", "\u4e86", "\N{OWL}"]
    assert marked.first.evaluate("one => getComputedStyle(one).textDecorationLine") == "underline"
    assert marked.first.evaluate("one => getComputedStyle(one).textDecorationStyle") == "dotted"


def test_what_a_mask_hides_is_not_a_weight_of_zero(serve: Serve, open_page: Open) -> None:
    page = open_page(serve("The cat sat. The cat", model="copyist").address)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    page.locator('.uwaga-words [data-item="2"]').click()
    page.locator(".uwaga-headline bdi.uwaga-asks", has_text="sat").first.wait_for()
    numbers = page.locator(".uwaga-words small").all_inner_texts()
    assert [number == "\N{EN DASH}" for number in numbers] == [False] * 3 + [True] * 3
    assert ", masked" in page.locator('.uwaga-words [data-item="4"]').inner_text()
    page.get_by_role("button", name="As table").click()
    cells = [
        [cell.strip() == "\N{EN DASH}" for cell in row.locator("td").all_inner_texts()]
        for row in page.locator(".uwaga-map-as-table tbody tr").all()
    ]
    assert cells == [[key > query for key in range(6)] for query in range(6)]
