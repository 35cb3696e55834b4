"""The lesson in a browser: its numbers and where they come from, changes, questions, every step, printing, saved pages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from pages import MakeMaps, Open, Serve
from written import number_of

import uwaga
from uwaga._base.languages import LANGUAGES
from uwaga.viewer.lesson import Lesson, work_through

pytestmark = pytest.mark.slow

Page = Any
TITLE = ".lesson-title"
MATRICES = {
    "Crude attention": ["crude_scores", "crude_sums", "lengths", "crude", "crude_shuffled"],
    "Scores": ["q", "k", "scores", "form", "form_scores"],
    "Masks": ["causal_scores", "past_weights", "past_output", "window_weights", "lengths_bits"],
    "Heads": ["head1_weights", "head2_weights", "joined", "layer_output"],
}


@pytest.fixture(scope="module")
def worked() -> Iterator[Lesson]:
    with uwaga.lesson(browser=False, block=False) as lesson:
        yield lesson


def opened(worked: Lesson, open_page: Open, more: str = "", **options: Any) -> Page:
    page = open_page(worked.view.address + more, **options)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    return page


@pytest.fixture
def page(worked: Lesson, open_page: Open) -> Page:
    """The first step, with all its numbers."""
    page = opened(worked, open_page)
    show_numbers(page)
    unfold(page)
    return page


def show_numbers(page: Page) -> None:
    """Ask no questions before the numbers."""
    page.get_by_label("Predict first").uncheck()


def go(page: Page, title: str) -> None:
    """Open a step by the dots, and everything that is folded in it."""
    page.locator(".lesson-thread").click()
    page.locator(".lesson-list button", has_text=title).first.click()
    page.wait_for_function("title => document.querySelector('.lesson-title').textContent.startsWith(title)", arg=title)
    unfold(page)


def unfold(page: Page) -> None:
    page.locator(".lesson-view details").evaluate_all("all => { for (const one of all) one.open = true; }")


def cell(page: Page, matrix: str, row: int, column: int) -> Any:
    return page.locator(f"[data-matrix={matrix}] td[data-row='{row}'][data-column='{column}']").first


def table(page: Page, matrix: str) -> np.ndarray:
    """Return the numbers of a matrix as the page shows them."""
    rows = page.locator(f"[data-matrix={matrix}]").first.locator("tbody tr")
    texts = [rows.nth(row).locator("td").all_text_contents() for row in range(rows.count())]
    return np.array([[number_of(text) for text in row] for row in texts])


def assert_shows(page: Page, lesson: Lesson, *matrices: str) -> None:
    """Two decimals are shown, and numbers below 0.005 with one significant digit."""
    for name in matrices:
        np.testing.assert_allclose(table(page, name), lesson[name], atol=0.0051, equal_nan=True, err_msg=name)


def settle(page: Page) -> None:
    """Wait until an edit has been calculated: the delay after typing, the request and the reply."""
    page.wait_for_selector(".lesson-view:not([aria-busy])")


def type_in(field: Any, text: str, page: Page) -> None:
    field.fill(text)
    field.press("Enter")
    settle(page)


def picked(page: Page) -> set[str]:
    """Return the words that are picked on a page, in its first pictures and in its tables."""
    words = ".lesson-stage :is(.lesson-arcs, .lesson-rows-words) .lesson-word-asks, .lesson-row-asks > th"
    return set(page.locator(words).all_text_contents())


def test_the_steps_show_the_numbers_of_work_through(page: Page, worked: Lesson) -> None:
    assert page.locator(TITLE).text_content() == "Crude attention: X Xᵀ X"
    assert page.locator(".lesson-list li").count() == len(worked.steps) == 24
    page.get_by_role("button", name=re.compile("^Long vectors dominate")).click()
    assert page.locator(".lesson-source").all_text_contents() == ["1.25", "2.00", "2.06"]
    for title, matrices in MATRICES.items():
        go(page, title)
        assert_shows(page, worked, *matrices)
    go(page, "Why")
    names = [chart.get_attribute("aria-label") for chart in page.locator("svg.lesson-chart[role=img]").all()]
    assert len(names) == 3
    assert names[0].startswith("Variance of q · k by d_k. At d_k = 4 the variance is ")
    go(page, "Sum")
    # The area of a circle grows with its number; the numbers of the picked word stand with them, the others on request.
    circles = page.locator("[data-matrix=weights] td.lesson-cell")
    sizes = circles.evaluate_all("all => all.map(one => parseFloat(one.style.getPropertyValue('--lesson-size')))")
    np.testing.assert_allclose(np.square(sizes), np.ravel(worked["weights"]), atol=0.002)
    numbers = page.locator("[data-matrix=weights] .lesson-cell-number")
    seen = "all => all.map(one => getComputedStyle(one).opacity).join('')"
    page.locator(TITLE).hover()
    assert numbers.evaluate_all(seen) == "11111" + 20 * "0"
    page.get_by_label("All numbers").check()
    assert numbers.evaluate_all(seen) == 25 * "1"
    # The drawing of all matrices is folded under each step: its squares are as dark as their numbers are large, and a box opens the step
    # of its matrix.
    squares = page.locator("[data-box=weights] .lesson-square")
    opacity = squares.evaluate_all("all => all.map(one => Number(one.getAttribute('fill-opacity')))")
    np.testing.assert_allclose(opacity, 0.15 + 0.85 * np.ravel(worked["weights"]), atol=0.0006)
    page.locator("[data-box=scores]").press("Enter")
    assert page.locator(TITLE).text_content() == "Scores: Q Kᵀ"
    go(page, "The same in a real model")
    assert page.locator(".lesson-open").first.is_disabled()
    assert "No model is loaded." in page.locator(".lesson-real").first.text_content()
    # A number is followed: from a weight to its exponential, the scaled score, the score, the query and the token's vector.
    go(page, "Softmax")
    cell(page, "weights", 0, 3).click()
    heading = page.locator(".lesson-explained")
    weight = f"{worked['weights'][0, 3]:.3f}"
    assert heading.text_content() == f"Weights A [this, pen] = {weight}"
    calculation = page.locator(".lesson-calculation").text_content()
    assert calculation.startswith("= 1.00 / (0.0705 + 0.0434 + ")
    assert calculation.endswith(f" = {weight}")
    followed = []
    for _ in range(5):
        page.locator(".lesson-number").first.click()
        followed.append(heading.text_content())
    assert followed == [
        "Exponentials [this, pen] = 1.000",
        "Scores, scaled [this, pen] = 3.757",
        "Scores Q Kᵀ [this, pen] = 5.313",
        "Q [this, q1] = 1.750",
        "X [this, pointing] = 1.000",
    ]
    page.get_by_role("button", name="Show it in its step: Crude attention: X Xᵀ X").click()
    assert page.locator(TITLE).text_content() == "Crude attention: X Xᵀ X"
    page.locator(TITLE).click()
    for expected in reversed(followed[:-1]):
        page.locator(".uwaga").first.press("Backspace")
        assert heading.text_content() == expected
    go(page, "Scores")
    cell(page, "scores", 0, 3).click()
    assert page.locator(".lesson-join").count() == 2 * 2  # d_k numbers of the query, and as many of the key
    # Products appear one at a time, then the sum; nothing that is read moves.
    places = "() => [...document.querySelectorAll('.lesson-calculation *')].map(one => one.getBoundingClientRect().x)"
    before = page.evaluate(places)
    shown = []
    for _ in range(4):
        page.get_by_role("button", name="One term").click()
        shown.append(page.locator(".lesson-term:not(.lesson-unplayed)").count())
        assert page.evaluate(places) == before
    assert shown == [0, 1, 2, 3]
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelectorAll('.lesson-unplayed').length === 0")
    page.locator(".lesson-number").first.click()  # matrices of other steps are copied to where they are needed
    assert page.locator(".lesson-copy figcaption").all_text_contents() == ["X 5 \u00d7 4", "WQ 4 \u00d7 2"]
    go(page, "The decoder")
    cell(page, "decoder_cross_attended", 2, 0).click()
    page.locator(".lesson-number").first.click()  # into a section that was folded
    assert heading.text_content().startswith("Heads side by side [")


def test_numbers_sentences_and_settings_are_changed_and_kept_in_the_address(page: Page, worked: Lesson) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    field = cell(page, "x", 0, 0).locator("input")
    field.fill("one")
    page.locator("[data-matrix=x] input[aria-invalid=true]").wait_for()
    page.wait_for_timeout(400)
    assert page.locator(".lesson-error:visible").text_content().startswith("“one” is not a number.")
    assert not [body for body in asked if "lesson" in body]
    field.fill("3")
    settle(page)
    assert page.locator(".lesson-error:visible").count() == 0
    x = worked["x"]
    x[0, 0] = 3
    expected = work_through(x, tokens="this is a pen .")
    assert_shows(page, expected, "crude_scores")
    page.get_by_role("button", name="Reset").click()
    settle(page)
    assert_shows(page, worked, "crude_scores")
    go(page, "Scale")
    page.get_by_label("Scale by 1/√dk").uncheck()
    settle(page)
    np.testing.assert_array_equal(table(page, "scaled"), table(page, "scores"))
    go(page, "The decoder")
    type_in(page.get_by_label("Written so far"), "my pen", page)
    assert_shows(page, work_through(scaled=False, written="my pen"), "next_word")
    go(page, "Heads")
    heads = page.locator("[data-setting=heads]")
    assert (heads.input_value(), heads.locator("option").all_text_contents()) == ("2", ["1", "2", "3", "4"])
    heads.select_option("3")
    settle(page)
    assert page.locator("[data-matrix=head3_weights]").count() == 1
    go(page, "Crude attention")
    type_in(page.locator(".lesson-sentence"), "the <b>pen</b> \u202e writes", page)
    names = ["the", "<", "b", ">", "pen", "<", "/", "b", ">", "<U+202E>", "writes"]
    shown = page.locator("[data-matrix=x] tbody th")
    assert shown.all_text_contents() == names
    page.wait_for_function("() => location.hash.includes('step=crude') && location.hash.includes('writes')")
    page.reload()
    shown.first.wait_for(state="attached")
    assert shown.all_text_contents() == names


@pytest.mark.stress
def test_what_the_server_rejects_is_said_and_changes_nothing(worked: Lesson, browser: Any) -> None:
    page = browser.new_page()  # a reply of status 400 is an error in the console
    example = quote(json.dumps({"tokens": ["a"], "settings": {"heads": 9}}))
    page.goto(f"{worked.view.address}&step=heads&example={example}")  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    error = page.locator(".lesson-error:visible")
    assert "heads must be a whole number from 1 to 4" in error.text_content()
    type_in(page.locator(".lesson-sentence"), " ".join("abcdefghijklm"), page)
    assert "must have 1 to 12 words" in error.text_content()
    assert page.locator(".lesson-sentence").input_value() == "a b c d e f g h i j k l m"
    assert_shows(page, worked, "head1_q")
    page.close()


def test_the_lesson_works_with_the_keyboard_alone(page: Page) -> None:
    page.locator(TITLE).focus()
    for _ in range(3):
        page.keyboard.press("n")
    assert page.locator(TITLE).text_content() == "Scores: Q Kᵀ"
    unfold(page)
    cell(page, "scores", 0, 0).focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.locator(".lesson-explained").text_content() == "Scores Q Kᵀ [is, a] = 0.500"
    assert page.locator("[data-matrix=scores] [tabindex='0']").count() == 1  # each table has one tab stop
    page.keyboard.press("q")
    assert page.locator("[data-setting=query]").input_value() == "1"
    page.keyboard.press("p")
    assert page.locator(TITLE).text_content() == "Three roles: Q, K and V"
    unfold(page)
    cell(page, "wq", 0, 0).locator("input").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.type("2")
    settle(page)
    assert cell(page, "wq", 1, 0).locator("input").input_value() == "2"


@pytest.mark.stress
def test_learning_is_watched_and_done_by_hand_and_a_transformer_is_drawn(page: Page, worked: Lesson) -> None:
    go(page, "Learning")
    stops = page.locator(".lesson-strip button")
    assert stops.all_text_contents() == ["0", "14", "29", "43", "57", "71", "86", "100"]
    stops.last.click()
    assert page.locator(".lesson-film-said").text_content().startswith("Step 100: loss 0.02")
    for clicks, button in ((2, "One step"), (1, "Ten steps")):
        for _ in range(clicks):
            page.get_by_role("button", name=button).click()
    settle(page)
    assert_shows(page, work_through(steps=12), "learn_wq")
    page.get_by_role("button", name="From the start", exact=True).click()
    settle(page)
    assert_shows(page, worked, "learn_wq")
    go(page, "The whole Transformer")
    page.get_by_role("button", name="BERT").click()
    left_out = page.locator(".lesson-part.lesson-left-out").all()
    assert [part.get_attribute("data-part") for part in left_out][:3] == ["written", "out_embedding", "out_positions"]
    page.get_by_role("button", name="Send tokens through").click()
    page.locator("[data-part=cross]").focus()
    page.wait_for_function("() => document.querySelector('.lesson-lit')?.dataset.part === 'attention'")
    page.keyboard.press("Enter")  # as the tokens go on
    assert page.locator(TITLE).text_content().startswith("The decoder: ")


def test_a_question_is_answered_before_its_numbers_are_shown(worked: Lesson, open_page: Open) -> None:
    page = opened(worked, open_page)
    # A word of the picture is a guess, and its arcs follow.
    words, shares = page.locator(".lesson-stage .lesson-word"), page.locator(".lesson-stage .lesson-share")
    assert set(shares.all_text_contents()) == {"?"}
    assert page.locator(".lesson-word-asks").first.text_content() == "a"  # the question's word
    words.filter(has_text="this").press("Enter")
    assert page.locator(".lesson-answer").text_content().startswith("Not quite. “pen”: 2.00.")
    words.filter(has_text="pen").click()
    row = worked["crude_scores"][3]
    np.testing.assert_allclose([number_of(text) for text in shares.all_text_contents()], row, atol=0.0051)
    widths = page.locator(".lesson-arc").evaluate_all("all => all.map(one => parseFloat(one.style.strokeWidth))")
    np.testing.assert_allclose(widths, 44 * np.where(np.arange(5) == 3, 0, row) / row.sum(), atol=0.006)
    go(page, "Softmax")
    assert picked(page) == {"this"}  # a pick is not carried to the next question
    covered = page.locator("[data-matrix=weights] td.lesson-cell")
    assert set(covered.all_text_contents()) == {"?"}
    assert "not shown yet" in covered.first.get_attribute("aria-label")
    assert page.locator(".lesson-finding:visible").count() == 0
    covered.first.click()
    assert set(covered.all_text_contents()) == {"?"}
    page.get_by_role("button", name="under 0.4").click()
    assert page.locator(".lesson-answer").text_content().startswith("Not quite. It is 0.77")
    assert page.locator(".lesson-right").text_content() == "over 0.7"
    assert page.locator(".lesson-guess").text_content() == "under 0.4"
    assert_shows(page, worked, "weights")
    explained = page.locator(".lesson-explained").text_content()  # the calculation behind the answer
    assert explained.startswith("Weights A [this, pen] = ")
    words.filter(has_text="pen").click()
    type_in(page.locator(".lesson-sentence"), "is this a pen", page)
    assert picked(page) == {"this"}
    go(page, "Masks")
    page.get_by_role("button", name="Zeros.", exact=True).click()
    assert page.locator(".lesson-answer").text_content().startswith("Right. ")
    go(page, "Softmax")
    page.get_by_label("Predict first").uncheck()
    page.get_by_label("Predict first").check()
    assert set(covered.all_text_contents()) == {"?"}


def secrets(lesson: Lesson, step: Any) -> tuple[list[str], set[str]]:
    """Return the sentences and the numbers that answer the question of a step."""
    question = step.question
    said = [*step.told, question.why, *(found.text for section in step.sections for found in section.findings)]
    numbers = {  # of a matrix of several heads, the largest
        f"{abs(float(lesson[matrix][..., row, column].max())):.2f}"
        for matrix, row, column in question.cells
        if matrix in question.covers and not question.about_sizes
        if lesson.matrices[matrix].shade in ("signed", "share")
    }
    return [squeezed(text) for text in said], {n for n in numbers if n in question.why and n not in ("0.00", "1.00")}


def squeezed(text: str) -> str:
    return re.sub(r"[_^\s]", "", text)


# Whether a page fits as it opens and with everything unfolded, what it says then, and its height. Parts outside the step stay open in
# the next one: what was folded is so again.
_LOOK = """async () => {
  const fits = () => [".lesson-view", ".lesson-main"].every((part) => document.querySelector(part).scrollWidth <= document.querySelector(part).clientWidth);
  const seen = { height: document.querySelector(".lesson-view").scrollHeight, asks: document.documentElement.scrollWidth <= innerWidth };
  const folded = [...document.querySelectorAll(".lesson-view details:not([open])")];
  for (const one of folded) one.open = true;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const said = [...document.querySelectorAll(".lesson-page :is(p, li, h2, h3, figcaption, summary, text)")];
  seen.text = said.filter((one) => one.getClientRects().length && !one.closest(".lesson-ledger")).map((one) => one.textContent).join("\\n");
  seen.fits = seen.asks && fits();
  for (const one of folded) one.open = false;
  return seen;
}"""


@pytest.mark.gate(only=lambda language, width: (language, width) == ("pl", 390))
@pytest.mark.parametrize("width", [360, 390, 800, 1280])
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_step_fits_is_drawn_and_keeps_its_answer_secret(open_page: Open, language: str, width: int) -> None:
    """Before the question is answered and after it, as it opens, in at most three screens of a phone, and unfolded."""
    with uwaga.lesson(browser=False, block=False, language=language) as lesson:
        page = opened(lesson, open_page, width=width, height=844)
        tokens = lesson.request["tokens"]
        for step in lesson.steps:
            question, seen = step.question, set()
            texts, numbers = secrets(lesson, step)
            for state in ("asking", "answered"):
                at = (step.id, state)
                seen |= picked(page)
                shown = page.evaluate(_LOOK)
                assert shown["fits"], at
                assert width != 390 or shown["height"] <= 3 * 844, at
                text = shown["text"]
                said = [secret for secret in texts if secret in squeezed(text)]
                assert said == ([] if state == "asking" else texts), at
                for number in numbers:
                    asked = number in question.text or number in "".join(question.choices)
                    found = bool(re.search(rf"(?<![0-9.]){number}(?![0-9])", text))
                    assert found == (state == "answered") or asked, (*at, number)
                if state == "asking":
                    page.locator(".lesson-show").click()
            assert seen & set(tokens) <= {tokens[question.token]}, step.id  # no pick is carried on
            drawn = ".lesson-picture svg:visible, .lesson-chart:visible, .lesson-drawing:visible"
            assert page.locator(drawn).count() > 0, step.id
            page.locator(".lesson-after").click(force=True) if step is not lesson.steps[-1] else None


def test_steps_are_printed_on_white_with_their_numbers_and_without_controls(worked: Lesson, open_page: Open) -> None:
    """One by the browser's own command, after which the page is as it was; or all."""
    page = opened(worked, open_page, "&step=database", color_scheme="dark")
    state = "() => [document.querySelectorAll('.lesson-covered').length, document.querySelectorAll('.lesson-page details:not([open])').length]"
    asking = page.evaluate(state)
    assert min(asking) > 0
    page.emulate_media(media="print")
    assert page.locator(".uwaga").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in (".lesson-nav", ".lesson-explanation", ".lesson-own", ".uwaga-header"):
        assert not page.locator(hidden).first.is_visible(), hidden
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(state) == [0, 0]
    printed = page.locator(".lesson-page").inner_text()
    question = worked.steps[12].question
    assert question is not None
    assert "?" not in printed.replace(question.text, "")
    assert question.why in printed
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate(state) == asking
    page.evaluate(
        "() => { window.print = () => { window.printed = [document.querySelectorAll('.lesson-page').length,"
        " document.querySelectorAll('.lesson-page details:not([open])').length, document.querySelectorAll('.lesson-covered').length]; }; }"
    )
    page.get_by_role("button", name="Print all steps").click()
    assert page.evaluate("window.printed") == [len(worked.steps), 0, 0]
    assert page.locator(".lesson-page").count() == 1


def test_the_lesson_of_a_text_is_loaded_when_it_is_opened_and_a_page_saved_there_calculates_an_edit(
    worked: Lesson, serve: Serve, make_maps: MakeMaps, open_page: Open, tmp_path: Path
) -> None:
    """With its script and with the page's state; a step opens the head that it suggests. In a file what follows from a number by a rule
    is shown, and what does not is hidden, until the numbers are reset; typing goes on in the same field."""
    maps = make_maps(11)
    page = open_page(serve(maps).address + "&layer=1")
    loaded = "() => [...document.querySelectorAll('link[rel=stylesheet], script[src]')].map((one) => one.href ?? one.src).map((one) => one.split('/').pop())"
    page.get_by_role("tab", name="Lesson").wait_for()
    assert page.evaluate(loaded) == ["app.css", "app.js"]
    page.get_by_role("tab", name="Lesson").click()
    page.wait_for_selector(TITLE)
    assert page.evaluate(loaded) == ["lesson.css", "lesson.js"]
    assert "layer=1" in page.url
    with page.expect_download() as download:
        page.keyboard.press("Shift+G")
    download.value.save_as(tmp_path / "page.html")
    go(page, "Masks")
    page.wait_for_function("() => document.querySelector('.lesson-open')?.disabled === false")
    scores = {
        (layer, head): float(value)
        for (_, layer), m in maps.items()
        for head, value in enumerate(uwaga.inspect.previous_token(m))
    }
    layer, head = max(scores, key=scores.__getitem__)
    said = page.locator(".lesson-real").text_content()
    assert said.startswith(f"Layer {layer}, head {head}: the head with the most weight on the token before")
    page.locator(".lesson-open").click()
    page.wait_for_function(
        "([a, b]) => location.hash.includes('tab=explore') && location.hash.includes(`layer=${a}`)", arg=[layer, head]
    )
    page = open_page((tmp_path / "page.html").as_uri() + "#tab=lesson")
    page.wait_for_selector(TITLE)
    assert "This is a saved page. If you change a number" in page.locator(".lesson-main").text_content()
    show_numbers(page)
    go(page, "Positions")
    assert page.locator("[data-matrix=with_order]").count() == 1
    field = cell(page, "x", 0, 0).locator("input")
    field.click()
    field.press("Control+a")
    field.press_sequentially("2", delay=1)
    page.wait_for_selector("[data-matrix=with_order]", state="detached")
    page.keyboard.type(".5")
    settle(page)
    assert field.input_value() == "2.5"
    x = np.array(worked["x"])
    x[0, 0] = 2.5
    expected = work_through(x, tokens="this is a pen .")
    assert page.locator("[data-matrix=x_placed]").count() == 1
    go(page, "Weigh")
    page.locator("[data-setting=query]").select_option(label="4: pen")
    np.testing.assert_allclose(table(page, "weighted"), expected["weighted"][3], atol=0.0051)
    go(page, "The decoder")
    assert_shows(page, expected, "next_word")
    assert page.locator(".lesson-finding, .lesson-question, .lesson-ledger:visible").count() == 0
    page.get_by_role("button", name="Reset").click()
    page.wait_for_selector(".lesson-question")
    assert_shows(page, worked, "next_word")
