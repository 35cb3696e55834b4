"""The lesson in a browser: its numbers, their provenance, editing, settings, keys and charts."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from pages import MakeMaps, Open
from written import number_of

import uwaga
from uwaga._base.languages import LANGUAGES
from uwaga.viewer.lesson import Lesson, work_through
from uwaga.viewer.page.snapshot import save_snapshot
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View

pytestmark = pytest.mark.slow

Page = Any
TITLE = ".lesson-title"


@pytest.fixture
def worked() -> Iterator[Lesson]:
    with uwaga.lesson(browser=False, block=False) as lesson:
        yield lesson


@pytest.fixture
def page(worked: Lesson, open_page: Open) -> Page:
    opened = open_page(worked.view.address)  # type: ignore[union-attr]
    opened.wait_for_selector(TITLE)
    show_numbers(opened)
    unfold(opened)
    return opened


def show_numbers(page: Page) -> None:
    """Asks no questions before the numbers."""
    page.get_by_label("Predict first").uncheck()


def go(page: Page, title: str) -> None:
    """Opens a step by the dots, and everything that is folded in it."""
    page.locator(".lesson-thread").click()
    page.locator(".lesson-list button", has_text=title).first.click()
    page.wait_for_function("title => document.querySelector('.lesson-title').textContent.startsWith(title)", arg=title)
    unfold(page)


def unfold(page: Page) -> None:
    page.locator(".lesson-view details").evaluate_all("all => { for (const one of all) one.open = true; }")


def cell(page: Page, matrix: str, row: int, column: int) -> Any:
    return page.locator(f"[data-matrix={matrix}] td[data-row='{row}'][data-column='{column}']").first


def table(page: Page, matrix: str) -> np.ndarray:
    """The numbers of a matrix as the page shows them."""
    rows = page.locator(f"[data-matrix={matrix}]").first.locator("tbody tr")
    texts = [rows.nth(row).locator("td").all_text_contents() for row in range(rows.count())]
    return np.array([[number_of(text) for text in row] for row in texts])


def settle(page: Page) -> None:
    """Waits until an edit has been calculated: the delay after typing, the request and the reply."""
    page.wait_for_selector(".lesson-view:not([aria-busy])")


def test_the_page_opens_at_the_lesson_without_a_model(page: Page) -> None:
    assert page.locator(TITLE).text_content() == "Crude attention: X Xᵀ X"
    assert page.locator(".lesson-list li").count() == 24
    go(page, "The same in a real model")
    button = page.locator(".lesson-open").first
    assert button.is_disabled()
    assert "No model is loaded." in page.locator(".lesson-real").first.text_content()


@pytest.mark.parametrize(
    ("title", "matrices"),
    [
        ("Crude attention", ["crude_scores", "crude_sums", "lengths", "crude", "crude_shuffled"]),
        ("Scores", ["q", "k", "scores", "form", "form_scores"]),
        ("Softmax", ["scaled", "exponentials", "weights"]),
        ("Sum", ["weights", "v", "output"]),
        ("Masks", ["causal_scores", "past_weights", "past_output", "window_weights", "lengths_bits"]),
        ("Heads", ["head1_weights", "head2_weights", "joined", "layer_output"]),
    ],
)
def test_the_page_shows_the_numbers_of_work_through(
    page: Page, worked: Lesson, title: str, matrices: list[str]
) -> None:
    go(page, title)
    for name in matrices:
        # Two decimals are shown, and numbers below 0.005 with one significant digit.
        np.testing.assert_allclose(table(page, name), worked[name], atol=0.0051, equal_nan=True)


def test_the_provenance_of_a_number_can_be_followed_to_the_input(page: Page, worked: Lesson) -> None:
    """From a weight to its exponential, the scaled score, the score, the query and the token's vector."""
    go(page, "Softmax")
    cell(page, "weights", 0, 3).click()
    heading = page.locator(".lesson-explained")
    assert heading.text_content() == f"Weights A [this, pen] = {worked['weights'][0, 3]:.3f}"
    assert "lesson-source" in cell(page, "exponentials", 0, 1).get_attribute("class")
    assert page.locator(".lesson-calculation").text_content() == (
        "= 1.00 / (0.0705 + 0.0434 + 0.1633 + 1.00 + 0.0255) = 0.768"
    )
    followed = []
    for number in (0, 0, 0, 0, 0):
        page.locator(".lesson-number").nth(number).click()
        followed.append(heading.text_content())
    assert followed == [
        "Exponentials [this, pen] = 1.000",
        "Scores, scaled [this, pen] = 3.757",
        "Scores Q Kᵀ [this, pen] = 5.313",
        "Q [this, q1] = 1.750",
        "X [this, pointing] = 1.000",
    ]
    assert page.locator(".lesson-why").text_content().startswith("a row of numbers per tokenThis number is typed in")
    page.get_by_role("button", name="Show it in its step: Crude attention: X Xᵀ X").click()
    assert page.locator(TITLE).text_content() == "Crude attention: X Xᵀ X"
    page.locator(".lesson-title").click()
    for expected in reversed(followed[:-1]):
        page.locator(".uwaga").first.press("Backspace")
        assert heading.text_content() == expected


def test_one_drawing_of_the_matrices_stays_through_all_steps(worked: Lesson, page: Page) -> None:
    """Boxes of this step, of earlier and of later ones; squares by sign and size; a click goes to a matrix, in its step.

    It is folded under each step.
    """
    states = {}
    for title in ("Crude attention", "Scores", "Sum", "Heads", "The decoder"):
        go(page, title)
        states[title] = page.locator(".lesson-box").evaluate_all(
            "boxes => Object.fromEntries(boxes.map(box => [box.dataset.slot, box.getAttribute('class').split('lesson-box-')[1]]))"
        )
    assert states["Crude attention"] == {
        "x": "here", "q": "coming", "k": "coming", "v": "coming", "scores": "here", "scaled": "coming", "weights": "coming",
        "output": "here", "head2": "coming", "layer": "coming",
    }  # fmt: skip
    assert [slot for slot, state in states["Scores"].items() if state == "here"] == ["q", "k", "scores"]
    assert [slot for slot, state in states["Sum"].items() if state == "past"] == ["x", "q", "k", "scores", "scaled"]
    assert states["Heads"]["layer"] == "here"
    assert set(states["The decoder"].values()) == {"here"}

    go(page, "Sum")
    squares = page.locator("[data-box=weights] .lesson-square")
    opacity = squares.evaluate_all("all => all.map(one => Number(one.getAttribute('fill-opacity')))")
    np.testing.assert_allclose(opacity, 0.15 + 0.85 * np.ravel(worked["weights"]), atol=0.0006)
    box = page.locator("[data-box=scores]")
    assert box.get_attribute("aria-label") == "Scores Q Kᵀ, 5 \u00d7 5"
    box.focus()
    page.keyboard.press("Enter")
    assert page.locator(TITLE).text_content() == "Scores: Q Kᵀ"


def test_lines_join_a_number_with_its_sources_and_copies_show_those_of_other_steps(page: Page) -> None:
    go(page, "Scores")
    cell(page, "scores", 0, 3).click()
    assert page.locator(".lesson-join").count() == 2 * 2  # d_k numbers of the query, and as many of the key
    assert page.locator(".lesson-pipeline .lesson-joined").count() == 1
    assert page.locator(".lesson-copy").count() == 0
    above = page.evaluate("document.querySelector('.lesson-explanation').previousElementSibling.innerHTML")
    assert 'data-matrix="scores"' in above
    page.locator(".lesson-number").first.click()
    assert page.locator(".lesson-copy figcaption").all_text_contents() == ["X 5 \u00d7 4", "WQ 4 \u00d7 2"]
    assert page.locator(".lesson-copy").first.locator(".lesson-joined-source").count() == 4


def test_a_calculation_is_played_term_by_term(page: Page) -> None:
    """What lifts is marked, products appear one at a time, then the sum; nothing that is read moves."""
    go(page, "Scores")
    cell(page, "scores", 0, 3).click()
    places = "() => [...document.querySelectorAll('.lesson-calculation *')].map(one => one.getBoundingClientRect().x)"
    before = page.evaluate(places)
    shown, marked = [], []
    for _ in range(4):
        page.get_by_role("button", name="One term").click()
        shown.append(page.locator(".lesson-term:not(.lesson-unplayed)").count())
        marked.append(page.locator("td.lesson-source").count())
        assert page.evaluate(places) == before
    assert shown == [0, 1, 2, 3]
    assert marked == [4, 2, 2, 4]
    page.get_by_label("Speed").select_option("2")
    page.get_by_role("button", name="Play").click()
    # At once, since a click of Playwright's may come after the end on a busy machine.
    page.wait_for_function("""() => {
        if (document.querySelectorAll('.lesson-unplayed').length !== 2) return false;
        [...document.querySelectorAll('button')].find((one) => one.textContent === 'Pause').click();
        return true;
    }""")
    page.wait_for_timeout(400)
    assert page.locator(".lesson-unplayed").count() == 2
    page.get_by_role("button", name="Play").click()
    page.wait_for_function("() => document.querySelectorAll('.lesson-unplayed').length === 0")
    assert page.get_by_role("button", name="Play").count() == 1


def test_editing_a_number_recalculates_the_numbers_that_depend_on_it(page: Page) -> None:
    cell(page, "x", 0, 0).locator("input").fill("3")
    settle(page)
    x = work_through()["x"]
    x[0, 0] = 3
    expected = work_through(x, tokens="this is a pen .")
    np.testing.assert_allclose(table(page, "crude_scores"), expected["crude_scores"], atol=0.0051)
    go(page, "Three roles")
    cell(page, "wq", 0, 0).locator("input").fill("-1,5")
    settle(page)
    wq = expected["wq"]
    wq[0, 0] = -1.5
    expected = work_through(x, tokens="this is a pen .", wq=wq)
    go(page, "Softmax")
    np.testing.assert_allclose(table(page, "weights"), expected["weights"], atol=0.0051)
    page.get_by_role("button", name="Reset").click()
    settle(page)
    np.testing.assert_allclose(table(page, "weights"), work_through()["weights"], atol=0.0051)


def test_an_invalid_number_shows_an_error_and_sends_no_request(page: Page) -> None:
    asked = []
    page.on("request", lambda request: asked.append(request.post_data or ""))
    field = cell(page, "x", 0, 0).locator("input")
    field.fill("one")
    page.locator("[data-matrix=x] input[aria-invalid=true]").wait_for()
    page.wait_for_timeout(400)
    said = "“one” is not a number. The numbers below are those of the last valid input."
    assert page.locator(".lesson-error:visible").text_content() == said
    assert not [each for each in asked if "lesson" in each]
    field.fill("1")
    assert page.locator(".lesson-error:visible").count() == 0
    field.fill("")
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => document.querySelector('[data-matrix=x] input').value === '1'")
    assert page.locator(".lesson-error:visible").count() == 0


def test_another_sentence(page: Page) -> None:
    field = page.locator(".lesson-sentence")
    field.fill("the <b>pen</b> \u202e writes")
    field.press("Enter")
    settle(page)
    names = page.locator("[data-matrix=x] tbody th").all_text_contents()
    assert names == ["the", "<", "b", ">", "pen", "<", "/", "b", ">", "<U+202E>", "writes"]
    assert field.input_value() == "the <b>pen</b> \u202e writes"
    field.fill("これはペンです。")
    field.press("Enter")
    settle(page)
    names = page.locator("[data-matrix=x] tbody th").all_text_contents()
    assert names == ["こ", "れ", "は", "ペン", "で", "す", "。"]


def test_a_sentence_that_is_too_long_is_refused_and_stays(worked: Lesson, browser: Any) -> None:
    page = browser.new_page()  # a reply of status 400 is an error in the console
    page.goto(worked.view.address)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    field = page.locator(".lesson-sentence")
    field.fill(" ".join("abcdefghijklm"))
    field.press("Enter")
    settle(page)
    said = (
        "lesson: text must have 1 to 12 words and punctuation marks, not 13. The numbers shown are the previous ones."
    )
    assert page.locator(".lesson-error:visible").text_content() == said
    assert field.input_value() == "a b c d e f g h i j k l m"
    assert page.locator("[data-matrix=x] tbody tr").count() == 5
    field.fill("a b")
    field.press("Enter")
    settle(page)
    assert page.locator("[data-matrix=x] tbody tr").count() == 2
    assert page.locator(".lesson-error:visible").count() == 0
    page.close()


def test_settings_and_the_query(page: Page) -> None:
    go(page, "Scale")
    page.get_by_label("Scale by 1/√dk").uncheck()
    settle(page)
    np.testing.assert_array_equal(table(page, "scaled"), table(page, "scores"))
    go(page, "Heads")
    heads = page.locator("[data-setting=heads]")
    assert (heads.input_value(), heads.locator("option").all_text_contents()) == ("2", ["1", "2", "3", "4"])
    heads.select_option("3")
    settle(page)
    assert page.locator("[data-matrix=head3_weights]").count() == 1
    heads.select_option("1")
    settle(page)
    assert page.locator("[data-matrix$=_weights]").evaluate_all("all => all.map(one => one.dataset.matrix)") == [
        "head1_weights"
    ]
    go(page, "Weigh")
    page.locator("[data-setting=query]").select_option(label="4: pen")
    expected = work_through(scaled=False)["weighted"][3]
    np.testing.assert_allclose(table(page, "weighted"), expected, atol=0.0051)


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
    # Each table has one tab stop.
    assert page.locator("[data-matrix=scores] [tabindex='0']").count() == 1
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


def test_gradient_steps_are_made_one_by_one(page: Page) -> None:
    go(page, "Learning")
    for clicks, button in ((2, "One step"), (1, "Ten steps")):
        for _ in range(clicks):
            page.get_by_role("button", name=button).click()
    settle(page)
    assert page.locator("strong[data-setting=steps]").text_content() == "12"
    np.testing.assert_allclose(table(page, "learn_wq"), work_through(steps=12)["learn_wq"], atol=0.0051)
    assert "At step 12 the loss is" in page.locator(".lesson-finding").first.text_content()
    page.get_by_role("button", name="From the start", exact=True).click()
    settle(page)
    np.testing.assert_allclose(table(page, "learn_wq"), work_through()["learn_wq"], atol=0.0051)


def test_the_drawing_opens_steps_and_shows_what_a_model_leaves_out(page: Page) -> None:
    go(page, "The whole Transformer")
    parts = page.locator(".lesson-part")
    assert parts.count() == 17
    page.get_by_role("button", name="BERT").click()
    left_out = page.locator(".lesson-part.lesson-left-out").all()
    assert [each.get_attribute("data-part") for each in left_out][:3] == ["written", "out_embedding", "out_positions"]
    assert "leaves out the decoder" in page.locator(".lesson-model-words").text_content()
    page.get_by_role("button", name="Send tokens through").click()
    assert page.locator(".lesson-lit").get_attribute("data-part") == "read"
    page.wait_for_function("() => document.querySelector('.lesson-lit')?.dataset.part === 'in_positions'")
    assert page.locator(".lesson-architecture [role=status]").text_content() == "+ positions: 5 \u00d7 4"
    page.locator("[data-part=cross]").focus()
    page.wait_for_function("() => document.querySelector('.lesson-lit')?.dataset.part === 'attention'")
    assert page.evaluate("() => document.activeElement.dataset.part") == "cross"  # as the tokens go on
    page.keyboard.press("Enter")
    assert page.locator(TITLE).text_content() == "The decoder: self-attention and cross-attention"


def test_a_number_of_the_decoder_can_be_followed_into_a_folded_section(page: Page) -> None:
    go(page, "The decoder")
    page.get_by_label("Written so far").fill("my pen")
    page.get_by_label("Written so far").press("Enter")
    settle(page)
    expected = work_through(written="my pen")["next_word"]
    np.testing.assert_allclose(table(page, "next_word"), expected, atol=0.0051)
    cell(page, "decoder_cross_attended", 2, 0).click()
    page.locator(".lesson-number").first.click()
    assert page.locator(".lesson-explained").text_content().startswith("Heads side by side [pen, v1] = ")
    np.testing.assert_allclose(
        table(page, "decoder_cross_head1_weights"),
        work_through(written="my pen")["decoder_cross_head1_weights"],
        atol=0.0051,
    )


def test_the_address_has_the_step_and_the_changed_numbers(page: Page) -> None:
    go(page, "Softmax")
    cell_of_x = work_through()["x"]
    page.locator(".lesson-sentence").fill("a pen")
    page.locator(".lesson-sentence").press("Enter")
    settle(page)
    page.wait_for_function("() => location.hash.includes('step=softmax') && location.hash.includes('example=')")
    page.reload()
    page.wait_for_selector(TITLE)
    show_numbers(page)
    assert page.locator(TITLE).text_content() == "Softmax: scores to shares"
    np.testing.assert_allclose(
        table(page, "weights"), work_through(cell_of_x[2:4], tokens="a pen")["weights"], atol=0.0051
    )
    go(page, "Heads")
    page.go_back()
    page.wait_for_function("() => document.querySelector('.lesson-title').textContent.startsWith('Softmax')")
    page.get_by_role("button", name="Reset").click()
    settle(page)
    page.wait_for_function("() => !location.hash.includes('example=')")


def test_numbers_of_an_address_that_are_not_valid_are_named(worked: Lesson, browser: Any) -> None:
    page = browser.new_page()  # a reply of status 400 is an error in the console
    page.goto(
        worked.view.address + "&step=heads&example=" + quote(json.dumps({"tokens": ["a"], "settings": {"heads": 9}}))
    )  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    said = "The numbers in the address are not shown: lesson: heads must be a whole number from 1 to 4, not 9"
    assert page.locator(".lesson-error:visible").text_content() == said
    assert page.locator(TITLE).text_content() == "Heads: several queries at once"
    np.testing.assert_allclose(table(page, "head1_q"), work_through()["head1_q"], atol=0.0051)
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_whole_lesson_is_printed_on_white_without_controls(worked: Lesson, open_page: Open, theme: str) -> None:
    page = open_page(worked.view.address, color_scheme=theme)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    page.emulate_media(media="print")
    assert page.locator(".uwaga").evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in (".lesson-nav", ".lesson-explanation", ".lesson-own", ".uwaga-header"):
        assert not page.locator(hidden).first.is_visible(), hidden
    page.emulate_media(media="screen")
    page.evaluate(
        "() => { window.print = () => { window.printed = [document.querySelectorAll('.lesson-page').length,"
        " document.querySelectorAll('.lesson-page details:not([open])').length, document.querySelectorAll('.lesson-covered').length]; }; }"
    )
    page.get_by_role("button", name="Print all steps").click()
    assert page.evaluate("window.printed") == [len(worked.steps), 0, 0]
    assert page.locator(".lesson-page").count() == 1


def test_a_saved_lesson_is_one_small_file_that_opens_at_a_step(worked: Lesson, open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "lesson.html"
    worked.save(path)
    assert path.stat().st_size < 1_200_000
    page = open_page(path.as_uri() + "#tab=lesson&step=decoder")
    page.wait_for_selector(TITLE)
    assert page.locator(TITLE).text_content() == "The decoder: self-attention and cross-attention"
    np.testing.assert_allclose(table(page, "next_word"), worked["next_word"], atol=0.0051)
    go(page, "Learning")
    assert page.get_by_role("button", name="One step").is_disabled()


def test_a_question_is_answered_before_its_numbers_are_shown(worked: Lesson, open_page: Open) -> None:
    page = open_page(worked.view.address)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    go(page, "Softmax")
    covered = page.locator("[data-matrix=weights] td.lesson-cell")
    assert set(covered.all_text_contents()) == {"?"}
    assert "not shown yet" in covered.first.get_attribute("aria-label")
    assert page.locator(".lesson-finding:visible").count() == 0
    covered.first.click()
    assert set(covered.all_text_contents()) == {"?"}
    page.get_by_role("button", name="under 0.4").click()
    assert page.locator(".lesson-answer").text_content().startswith("Not so. It is 0.77")
    assert page.locator(".lesson-right").text_content() == "over 0.7"
    assert page.locator(".lesson-guess").text_content() == "under 0.4"
    np.testing.assert_allclose(table(page, "weights"), worked["weights"], atol=0.0051)
    # The calculation behind the answer.
    assert page.locator(".lesson-explained").text_content() == f"Weights A [this, pen] = {worked['weights'][0, 3]:.3f}"
    go(page, "Heads")
    page.get_by_role("button", name="Show me").click()
    assert page.locator(".lesson-answer").text_content().startswith("Head 1 gives 0.77 to ")
    go(page, "Masks")
    page.get_by_role("button", name="Zeros.", exact=True).click()
    assert page.locator(".lesson-answer").text_content().startswith("Right. ")
    go(page, "Softmax")
    np.testing.assert_allclose(table(page, "weights"), worked["weights"], atol=0.0051)
    asks = page.get_by_label("Predict first")
    asks.uncheck()
    asks.check()
    assert set(covered.all_text_contents()) == {"?"}


def test_a_finding_marks_its_numbers(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Long vectors dominate")).click()
    assert page.locator(".lesson-source").all_text_contents() == ["1.25", "2.00", "2.06"]


def test_charts_have_descriptions(page: Page) -> None:
    go(page, "Why")
    names = [each.get_attribute("aria-label") for each in page.locator("svg.lesson-chart[role=img]").all()]
    assert len(names) == 3
    assert names[0].startswith("Variance of q · k by d_k. At d_k = 4 the variance is ")


@pytest.mark.parametrize("width", [360, 700, 1280])
def test_no_element_is_wider_than_the_page(worked: Lesson, open_page: Open, width: int) -> None:
    page = open_page(worked.view.address, width=width, height=700)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    for step in range(24):
        for _ in ("as it opens", "unfolded"):
            for part in (".lesson-view", ".lesson-main"):
                assert page.locator(part).evaluate("e => e.scrollWidth <= e.clientWidth"), (step, part)
            unfold(page)
        page.locator(".lesson-after").click(force=True) if step < 23 else None


PHONE = {"width": 390, "height": 844}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_step_is_longer_than_three_screens_of_a_phone(open_page: Open, language: str) -> None:
    """Before its question is answered and after it, with the example's own sentence."""
    with uwaga.lesson(browser=False, block=False, language=language) as lesson:
        page = open_page(lesson.view.address, **PHONE)  # type: ignore[union-attr]
        page.wait_for_selector(TITLE)
        heights = {}
        for step in lesson.steps:
            for state in ("asking", "answered"):
                heights[step.id, state] = page.locator(".lesson-view").evaluate("e => e.scrollHeight")
                if state == "asking" and step.question is not None:
                    page.locator(".lesson-show").click()
            page.locator(".lesson-after").click(force=True) if step is not lesson.steps[-1] else None
        assert not {at: height for at, height in heights.items() if height > 3 * PHONE["height"]}


def test_nothing_on_a_page_answers_its_question(worked: Lesson, open_page: Open) -> None:
    """All that can be read, with everything unfolded, before the answer and after it: its reason, its number, its sentences."""
    page = open_page(worked.view.address)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    page.get_by_label("All numbers").check()
    for step in worked.steps:
        unfold(page)
        if step.question is not None:
            told = [
                *step.told,
                step.question.why,
                *(each.text for section in step.sections for each in section.findings),
            ]
            # Of a matrix of several heads, the largest.
            numbers = {
                f"{abs(float(worked[of][..., row, column].max())):.2f}"
                for of, row, column in step.question.cells
                if of in step.question.covers and not step.question.about_sizes
                if worked.matrices[of].shade in ("signed", "share")
            }
            numbers = {each for each in numbers if each in step.question.why and each not in ("0.00", "1.00")}
            secret = [re.sub(r"[_^\s]", "", each) for each in told]
            for state in ("asking", "answered"):
                text = "\n".join(
                    page.locator(".lesson-page :is(p, li, h2, h3, figcaption, summary, text)").evaluate_all(
                        "all => all.filter(one => one.getClientRects().length && !one.closest('.lesson-ledger')).map(one => one.textContent)"
                    )
                )
                seen = re.sub(r"[_^\s]", "", text)
                said = [each for each in secret if each in seen]
                assert said == ([] if state == "asking" else secret), (step.id, state)
                for number in numbers:
                    asked = number in step.question.text or number in "".join(step.question.choices)
                    found = bool(re.search(rf"(?<![0-9.]){number}(?![0-9])", text))
                    assert found == (state == "answered") or asked, (step.id, state, number)
                if state == "asking":
                    page.locator(".lesson-show").click()
                    unfold(page)
        page.locator(".lesson-after").click(force=True) if step is not worked.steps[-1] else None


def picked(page: Page) -> list[str]:
    """The words that are picked on a page, in its first pictures and in its tables."""
    return page.locator(
        ".lesson-stage :is(.lesson-arcs, .lesson-rows-words) .lesson-word-asks, .lesson-row-asks > th"
    ).all_text_contents()


def test_each_step_opens_at_the_word_of_its_question(worked: Lesson, open_page: Open) -> None:
    """Walked in order, before the answer and after it, as by a direct link: no pick is carried on."""
    page = open_page(worked.view.address)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    tokens = worked.request["tokens"]
    for step in worked.steps:
        asked = step.question
        assert asked is not None
        seen = set(picked(page))
        page.locator(".lesson-show").click()
        seen |= set(picked(page))
        assert seen & set(tokens) <= {tokens[asked.token]}, step.id
        assert step.id != "model" or seen == {"it"}
        # The question names it, or is about none.
        assert f"“{tokens[asked.token]}”" in asked.text or asked.token == 0, step.id
        page.locator(".lesson-after").click(force=True) if step is not worked.steps[-1] else None
    go(page, "Softmax")
    page.locator(".lesson-stage .lesson-word", has_text="pen").click()
    assert set(picked(page)) == {"pen"}
    go(page, "Heads")
    assert set(picked(page)) == {"this"}


def test_a_pick_stays_while_the_question_is_about_the_same_word(worked: Lesson, open_page: Open) -> None:
    page = open_page(worked.view.address + "&step=softmax")  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    show_numbers(page)
    unfold(page)
    page.locator(".lesson-stage .lesson-word", has_text="pen").click()
    page.locator(".lesson-sentence").fill("this is a pen")
    page.locator(".lesson-sentence").press("Enter")
    settle(page)
    assert set(picked(page)) == {"pen"}
    page.locator(".lesson-sentence").fill("is this a pen")
    page.locator(".lesson-sentence").press("Enter")
    settle(page)
    assert set(picked(page)) == {"this"}


def test_one_step_is_printed_with_its_numbers_and_unfolded(worked: Lesson, open_page: Open) -> None:
    """By the browser's own command; then the page is as it was."""
    page = open_page(worked.view.address + "&step=database")  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    state = "() => [document.querySelectorAll('.lesson-covered').length, document.querySelectorAll('.lesson-page details:not([open])').length]"
    asking = page.evaluate(state)
    assert min(asking) > 0
    page.emulate_media(media="print")
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(state) == [0, 0]
    printed = page.locator(".lesson-page").inner_text()
    assert "?" not in printed.replace(worked.steps[12].question.text, "")
    assert worked.steps[12].question.why in printed
    assert not page.get_by_text("Known so far").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate(state) == asking
    page.get_by_role("button", name="It grows.").click()
    assert page.locator(".lesson-answer").text_content().startswith("Right. ")


def test_every_step_has_a_drawing(worked: Lesson, open_page: Open) -> None:
    page = open_page(worked.view.address)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    for step in worked.steps:
        if step.question is not None:
            page.locator(".lesson-show").click()
        drawn = page.locator(".lesson-picture svg:visible, .lesson-chart:visible, .lesson-drawing:visible")
        assert drawn.count() > 0, step.id
        page.locator(".lesson-after").click(force=True) if step is not worked.steps[-1] else None


def test_a_word_of_the_picture_is_the_guess_and_its_arcs_follow(worked: Lesson, open_page: Open) -> None:
    page = open_page(worked.view.address)  # type: ignore[union-attr]
    page.wait_for_selector(TITLE)
    words, shares = page.locator(".lesson-stage .lesson-word"), page.locator(".lesson-stage .lesson-share")
    assert set(shares.all_text_contents()) == {"?"}
    assert page.locator(".lesson-word-asks").first.text_content() == "a"  # the question's word
    assert page.get_by_role("button", name="Guess pen").count() == 1
    words.filter(has_text="this").press("Enter")
    assert page.locator(".lesson-answer").text_content().startswith("Not so. “pen”: 2.00.")
    np.testing.assert_allclose([number_of(text) for text in shares.all_text_contents()], worked["crude_scores"][2])
    words.filter(has_text="pen").click()
    np.testing.assert_allclose(
        [number_of(text) for text in shares.all_text_contents()], worked["crude_scores"][3], atol=0.0051
    )
    assert page.locator(".lesson-word-asks").first.text_content() == "pen"
    widths = page.locator(".lesson-arc").evaluate_all("all => all.map(one => parseFloat(one.style.strokeWidth))")
    row = worked["crude_scores"][3]
    np.testing.assert_allclose(widths, 44 * np.where(np.arange(5) == 3, 0, row) / row.sum(), atol=0.006)


def test_the_circles_of_a_table_grow_with_its_numbers(page: Page, worked: Lesson) -> None:
    """Their area; the numbers of the chosen word stand with them, the others on request."""
    go(page, "Sum")
    circles = page.locator("[data-matrix=weights] td.lesson-cell")
    sizes = circles.evaluate_all("all => all.map(one => parseFloat(one.style.getPropertyValue('--lesson-size')))")
    np.testing.assert_allclose(np.square(sizes), np.ravel(worked["weights"]), atol=0.002)
    seen = "all => all.map(one => getComputedStyle(one).opacity).join('')"
    numbers = page.locator("[data-matrix=weights] .lesson-cell-number")
    page.locator(TITLE).hover()
    assert numbers.evaluate_all(seen) == "11111" + 20 * "0"
    page.get_by_label("All numbers").check()
    assert numbers.evaluate_all(seen) == 25 * "1"


def test_the_film_has_a_hundred_steps_and_stops(page: Page, worked: Lesson) -> None:
    go(page, "Learning")
    moments = page.get_by_label("Moment")
    assert moments.get_attribute("max") == "100"
    stops = page.locator(".lesson-strip button")
    assert stops.all_text_contents() == ["0", "14", "29", "43", "57", "71", "86", "100"]
    stops.last.click()
    assert moments.input_value() == "100"
    assert page.locator(".lesson-film-said").text_content().startswith("Step 100: loss 0.02")
    circles = page.locator(".lesson-film > .lesson-scroll circle")
    radii = circles.evaluate_all(
        "all => all.map(one => Number(one.getAttribute('r')) * (one.classList.contains('lesson-ring') ? -1 : 1))"
    )
    assert np.reshape(radii, (5, 5)).argmax(-1)[1:].tolist() == [0, 1, 2, 3]


def test_the_decoder_that_copies_is_watched_word_by_word(page: Page) -> None:
    go(page, "A decoder that has learned")
    page.get_by_role("button", name="Watch it write").click()
    said = page.locator(".lesson-film-said")
    page.wait_for_function("() => document.querySelector('.lesson-film-said').textContent === 'this is'")
    page.get_by_role("button", name="Watch it write").wait_for()
    assert said.text_content() == "this is a pen ."


def test_the_lesson_of_a_text_is_loaded_when_it_is_opened(
    serve: Callable[..., Any], make_maps: MakeMaps, open_page: Open, tmp_path: Any
) -> None:
    """With its script, in the page's language and with its state; the way back is without it, and a file saved there has it."""
    page = open_page(serve(make_maps(7)).address + "&layer=1")
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
    assert "// lesson/view.js" in (tmp_path / "page.html").read_text(encoding="utf-8")
    page.go_back()
    page.wait_for_function(f"() => ({loaded})()[0] === 'app.css'")
    page.get_by_role("tab", name="Explore", selected=True).wait_for()


def test_the_head_that_a_step_suggests_opens_in_the_map(
    serve: Callable[..., Any], make_maps: MakeMaps, open_page: Open
) -> None:
    maps = make_maps(11)
    page = open_page(serve(maps).address + "&tab=lesson")
    page.wait_for_selector(TITLE)
    go(page, "Masks")
    button = page.locator(".lesson-open")
    button.wait_for()
    page.wait_for_function("() => !document.querySelector('.lesson-open').disabled")
    scores = {
        (layer, head): float(value)
        for (_, layer), m in maps.items()
        for head, value in enumerate(uwaga.inspect.previous_token(m))
    }
    layer, head = max(scores, key=scores.__getitem__)
    assert (
        page.locator(".lesson-real")
        .text_content()
        .startswith(f"Layer {layer}, head {head}: the head with the most weight on the token before")
    )
    button.click()
    page.wait_for_function(
        "([a, b]) => location.hash.includes('tab=explore') && location.hash.includes(`layer=${a}`)", arg=[layer, head]
    )


def test_a_saved_page_calculates_an_edit(make_maps: MakeMaps, open_page: Open, tmp_path: Path) -> None:
    """What follows from a number by a rule; what does not is hidden, until the numbers are reset. Typing goes on in the same field."""
    shown = ViewService(View.of(make_maps(11)), lesson={"request": "lesson"})
    save_snapshot(shown, tmp_path / "page.html")
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
    x = np.array(work_through()["x"])
    x[0, 0] = 2.5
    expected = work_through(x, tokens="this is a pen .")
    assert page.locator("[data-matrix=x_placed]").count() == 1
    go(page, "Weigh")
    page.locator("[data-setting=query]").select_option(label="4: pen")
    np.testing.assert_allclose(table(page, "weighted"), expected["weighted"][3], atol=0.0051)
    go(page, "The decoder")
    np.testing.assert_allclose(table(page, "next_word"), expected["next_word"], atol=0.0051)
    assert page.locator(".lesson-finding, .lesson-question, .lesson-ledger:visible").count() == 0
    page.get_by_role("button", name="Reset").click()
    page.wait_for_selector(".lesson-question")
    np.testing.assert_allclose(table(page, "next_word"), work_through()["next_word"], atol=0.0051)
