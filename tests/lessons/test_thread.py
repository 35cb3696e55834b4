"""What is said before a question is answered, the ledger of problems, and what was trained, by the lesson's own numbers."""

import re
from collections.abc import Iterator

import numpy as np
import pytest

from uwaga.lessons.document import Step
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


def shown(step: Step, *, answered: bool) -> Iterator[str]:
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
    step = next(each for each in worked.steps if each.id == id)
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
    step = next(each for each in worked.steps if each.id == "heads")
    assert step.question is not None
    _, i, _ = step.question.cells[0]
    for head in (1, 2):
        row = worked[f"head{head}_weights"][i]
        assert (row > row.max() - 1e-5).sum() == 1


def test_the_ledger_grows_and_each_remedy_is_measured_again(worked: Lesson) -> None:
    known: dict[str, str] = {}
    for step in worked.steps:
        ids = [problem.id for problem in step.ledger]
        assert set(known) <= set(ids)
        for problem in step.ledger:
            if problem.here and problem.solved and problem.id in known:
                assert problem.text != known[problem.id], problem.id
            known[problem.id] = problem.text
    last = worked.steps[-1].ledger
    assert [problem.id for problem in last if not problem.solved] == ["cost"]
    assert {"learned", "long", "shares", "symmetric", "order"} == {p.id for p in worked.steps[0].ledger}


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
