"""Texts typed into the page, and changes of the model, in a browser."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from asking import runner_of
from pages import Open, Serve
from written import number_of

from uwaga.viewer import ServedView
from uwaga.viewer.texts import EXAMPLES, RunRequest

pytestmark = pytest.mark.slow

BOX = ".uwaga-typing textarea"


@pytest.fixture
def bard(serve: Serve) -> ServedView:
    return serve("To be, or not to", model="bard")


@pytest.fixture
def tired(serve: Serve) -> ServedView:
    return serve(EXAMPLES["minilm"][0], model="minilm")


def opened(open_page: Open, view: ServedView, **options: Any) -> Any:
    """Open a page, and wait until it has chosen what it shows."""
    page = open_page(view.address, **options)
    page.locator(".uwaga-headline", has_text="%").wait_for()
    return page


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


def test_a_typed_text_is_shown_with_what_comes_next(bard: ServedView, open_page: Open, tmp_path: Path) -> None:
    page = open_page(bard.address)
    assert page.locator(BOX).first.input_value() == "To be, or not to"
    type_text(page, "ROMEO:\nWhat light is")
    words = page.locator(".uwaga-reading:visible .uwaga-word")
    assert words.evaluate_all("all => all.map((one) => one.firstChild.textContent).join(' ')").startswith("ROMEO")
    predictions = runner_of("bard").run(RunRequest("ROMEO:\nWhat light is")).predictions["0"]
    words = predictions.top(len(predictions) - 1, len(predictions), 5)[0][0]
    assert bars(page, "What comes next") == [word.replace(" ", "\u2423").replace("\n", "\u21b5") for word in words]
    page.go_back()
    page.wait_for_function("() => !location.hash.includes('text=')")
    page.wait_for_function("box => document.querySelector(box).value === 'To be, or not to'", arg=BOX)
    # A saved page has what comes next, and says how to try another text.
    bard.save(tmp_path / "page.html")
    page = open_page((tmp_path / "page.html").as_uri())
    page.get_by_text('uwaga view "To be, or not to" --model bard').wait_for()
    assert len(bars(page, "What comes next")) == 5
    assert page.locator(BOX).count() == 0


@pytest.mark.stress
def test_a_text_that_is_too_long_is_read_in_part(serve: Serve, open_page: Open) -> None:
    served = serve("The cat sat.", model="minilm")
    page = opened(open_page, served)
    write(page, "cat " * 599 + "end")
    page.keyboard.press("Enter")
    said = "the text has 602 tokens, special ones included, and all-MiniLM-L6-v2 takes 512"
    page.locator(".uwaga-typing-note", has_text=said).wait_for()
    page.get_by_role("button", name="Read the first 512 tokens").click()
    page.locator(".uwaga-word", has_text="cat").first.wait_for()  # of a long text that is shown
    (side,) = served.service.answer({"request": "about", "run": 1}).meta["sides"]
    assert side["model"] == "all-MiniLM-L6-v2"
    assert next(iter(side["stacks"].values()))["tokens"] == 512


@pytest.mark.stress
def test_a_head_is_switched_off(bard: ServedView, open_page: Open) -> None:
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
    bar.get_by_role("button", name="Before").click()
    page.wait_for_function("() => location.hash.includes('side=0')")
    bar.get_by_role("button", name="Clear").click()
    page.wait_for_function("() => document.querySelector('.uwaga-changes').hidden")


@pytest.mark.stress
def test_a_cut_says_where_the_weight_went_and_what_moved(tired: ServedView, open_page: Open) -> None:
    page = open_page(tired.address)
    page.locator(".uwaga-headline", has_text="it looks mostly at animal: 67.7%").wait_for()
    page.locator(".uwaga-cut").click()
    page.get_by_role("heading", name="Where the 67.7% went").wait_for()
    page.locator(".uwaga-headline", has_text="Without animal, it rests on CLS: ").wait_for()
    assert page.locator('.uwaga-words [data-item="2"] small').inner_text().startswith("cut")
    gained = page.locator(".uwaga-flow li b").all_inner_texts()
    assert sum(number_of(text.strip("+%")) for text in gained) == pytest.approx(67.7, abs=0.6)
    page.get_by_text("so every other share grew by the same factor, 3.09.").wait_for()
    assert page.locator(".uwaga-moved-list li").count() == 5
    page.get_by_text("The text\u2019s vector is >99.9% like the one before.").wait_for()
    # Of the change nothing is left with another text.
    type_text(page, "The street was wide.")
    page.locator(".uwaga-predictions", has_text="vector").wait_for(state="hidden")
    assert page.get_by_text("with the changes").count() == 0
    assert page.locator(".uwaga-moved").is_hidden()


@pytest.mark.stress
def test_of_a_long_word_the_rest_is_folded_with_its_exact_share(serve: Serve, open_page: Open) -> None:
    """Of 91 letters 25 around the picked one, more than a small map has cells; a fold opens at a click."""
    served = serve(2 * "pneumonoultramicroscopicsilicovolcanoconiosis", model="speller")
    page = open_page(served.address, width=1400)
    page.locator(".uwaga-headline", has_text="N looks mostly at m: 96.3%").wait_for()
    where = parse_qs(urlsplit(page.url).fragment)
    query = page.locator('.uwaga-ribbon-row[data-axis="query"] [aria-pressed="true"]').get_attribute("data-item")
    m = served.service.view.sides[0].maps["cross", int(where["layer"][0])].select(int(where["head"][0]))
    row = m[int(query)].detach().numpy()

    def check() -> list[int]:
        page.wait_for_function(
            "() => document.querySelector('.uwaga-ribbon-row[data-axis=key] .uwaga-ribbon-fold small').textContent"
        )
        shown = page.locator('.uwaga-ribbon-row[data-axis="key"] button').evaluate_all(
            "all => all.map((one) => [one.dataset.item === undefined ? -1 : Number(one.dataset.item), one.querySelector('small').textContent])"
        )
        items = [item for item, _ in shown if item >= 0]
        assert items == list(range(items[0], items[0] + 25))
        folds = [part for part in (row[: items[0]], row[items[-1] + 1 :]) if len(part)]
        for item, share in shown:
            exact = float(row[item]) if item >= 0 else float(folds.pop(0).sum())
            assert abs(number_of(share.strip("<>%") or "0") - 100 * exact) <= (0.051 if share else 5)
        return items

    before = check()
    page.locator('.uwaga-ribbon-row[data-axis="key"] .uwaga-ribbon-fold').last.click()
    page.wait_for_function(
        "before => Number(document.querySelector('.uwaga-ribbon-row[data-axis=key] [data-item]').dataset.item) > before",
        arg=before[0],
    )
    check()


@pytest.mark.stress
def test_the_film_shows_layer_after_layer_and_a_word_is_changed_for_another(tired: ServedView, open_page: Open) -> None:
    page = opened(open_page, tired, reduced_motion="reduce")
    stops = page.get_by_role("group", name="Layer", exact=True).get_by_role("button")
    assert stops.count() == 6
    stops.nth(5).click()
    headline = page.locator(".uwaga-headline", has_text="Layer 5: ")
    headline.wait_for()
    shares = [number_of(share) for share in re.findall(r"([\d.]+)%", headline.inner_text())]
    assert sum(shares) == pytest.approx(100, abs=0.2)
    assert headline.inner_text().endswith("at rest on CLS and SEP")
    note = page.locator(".uwaga-headline-note").inner_text()
    assert note == "all-MiniLM-L6-v2 \u00b7 layer 5, mean of 12 heads"
    assert page.locator(".uwaga-wall button:not([data-dim])").count() == 12
    stops.nth(5).press("Escape")
    page.locator(".uwaga-headline", has_text="it looks mostly at animal").wait_for()
    page.get_by_role("button", name="Change \u201ctired\u201d into \u201cwide\u201d").click()
    page.locator(".uwaga-headline", has_text="it rests on CLS: 32.6%; of the words, most on animal: 28.1%").wait_for()


@pytest.mark.stress
def test_a_keyboard_user_keeps_the_place_in_the_text(tired: ServedView, open_page: Open) -> None:
    """After a cut, its undoing, and another word: the focus is on the word that had it, and the next key is for it."""
    page = opened(open_page, tired)
    page.locator('.uwaga-words [data-item="8"]').focus()
    page.keyboard.press("Enter")  # of the picked word: the keys after it are still commands, not letters of a box
    for key, is_changed, item in (
        ("d", True, "8"),
        ("Control+z", False, "8"),
        ("Control+Shift+z", True, "8"),
        ("ArrowLeft", True, "7"),
        ("Control+z", False, "7"),
    ):
        page.keyboard.press(key)
        page.locator(".uwaga-changes" + (":not([hidden])" if is_changed else "[hidden]")).wait_for(state="attached")
        page.wait_for_function(
            f"() => document.activeElement?.closest('.uwaga-words [data-item]')?.dataset.item === '{item}'"
        )
    page.get_by_role("button", name="because into …").press("Enter")
    page.keyboard.type("dhl")
    assert page.get_by_role("textbox", name="Another word instead of the picked one").input_value() == "dhl"
    page.keyboard.press("Escape")
    assert page.evaluate("() => document.activeElement.textContent") == "because into …"
    page.keyboard.press("Enter")
    page.keyboard.type("since")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="since into …").wait_for()
    page.wait_for_function("() => document.activeElement.textContent === 'since into …'")


@pytest.mark.stress
def test_what_the_model_does_not_know_is_marked_and_counted(serve: Serve, open_page: Open, tmp_path: Path) -> None:
    served = serve("\u592a\u7d2f\u4e86 was it \N{OWL}", model="minilm")
    served.save(tmp_path / "page.html")
    for address in (f"{served.address}&merge=tokens", (tmp_path / "page.html").as_uri() + "#merge=words"):
        page = open_page(address)
        note = page.locator(".uwaga-unknown-note")
        note.wait_for()
        assert note.inner_text().startswith(
            "3 of 6 tokens are unknown to this model: it reads the same [UNK] for each."
        )
        marked = page.locator(".uwaga-words .uwaga-unknown")
        marked.first.wait_for()
        assert marked.all_inner_texts() == ["\u7d2f", "\u4e86", "\N{OWL}"]
        style = marked.first.evaluate("one => getComputedStyle(one).textDecoration")
        assert "underline" in style
        assert "dotted" in style


@pytest.mark.stress
def test_what_a_mask_hides_is_not_a_weight_of_zero(serve: Serve, open_page: Open) -> None:
    page = opened(open_page, serve("The cat sat. The cat", model="copyist"))
    page.locator('.uwaga-words [data-item="2"]').click()
    page.locator(".uwaga-headline bdi.uwaga-asks", has_text="sat").first.wait_for()
    numbers = page.locator(".uwaga-words small").all_inner_texts()
    assert [number == "\N{EN DASH}" for number in numbers] == [False] * 3 + [True] * 3
    assert ", masked" in page.locator('.uwaga-words [data-item="4"]').inner_text()
