"""The questions of the lesson: their right answers are those of the numbers, whatever the example."""

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uwaga.lessons.document import Question
from uwaga.viewer.lesson import work_through

WORDS = st.lists(st.sampled_from(["this", "is", "a", "pen", ".", "pen", "\u732b"]), min_size=1, max_size=6)


def asked(tokens: list[str], **options: Any) -> tuple[dict[str, Question], Any]:
    worked = work_through(tokens, **options)
    return {step.id: step.question for step in worked.steps if step.question is not None}, worked


def right(question: Question) -> list[str]:
    return [question.choices[place] for place in question.answers]


@settings(max_examples=5)
@example(
    ["is", "."], False, 1, 0.0, "post"
)  # two keys that fit equally: any answer would be right, so that nothing is asked
@given(
    WORDS,
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.0, 0.5, 8.0, -2.0]),
    st.sampled_from(["post", "pre"]),
)
def test_the_right_answers_are_those_of_the_numbers(
    tokens: list[str], scaled: bool, heads: int, sharpness: float, norm: str
) -> None:
    questions, worked = asked(tokens, scaled=scaled, heads=heads, sharpness=sharpness, norm=norm)
    matrices = worked.matrices
    for question in questions.values():
        assert 2 <= len(question.choices) == len(set(question.choices))
        assert 1 <= len(question.answers) < len(question.choices)
        assert all(name in matrices for name in question.covers)
        for name, row, column in question.cells:
            assert row < len(matrices[name].rows)
            assert column < len(matrices[name].columns)
    # Of the weighted values, one with a row for each query, the longest.
    for name, table in (("scores", worked["scores"]), ("weighted", np.linalg.norm(worked["weighted"], axis=-1))):
        if name in questions:
            _, i, j = questions[name].cells[0]
            row = table[i]
            assert np.isclose(row[j], row.max(), rtol=1e-5, atol=1e-5)
            label = f"\u201c{tokens[j]}\u201d"
            assert any(text.startswith(label) for text in right(questions[name]))
            best = {tokens[place] for place in np.flatnonzero(np.isclose(row, row.max(), rtol=1e-5, atol=1e-5))}
            assert all(any(text.startswith(f"\u201c{word}\u201d") for word in best) for text in right(questions[name]))
    largest = worked["weights"].max()
    low, high = (0.3, 0.6) if min(abs(largest - 0.4), abs(largest - 0.7)) < 0.02 else (0.4, 0.7)
    expected = f"under {low}" if largest < low else f"from {low} to {high}" if largest <= high else f"over {high}"
    assert right(questions["softmax"]) == [expected]
    if "database" in questions:
        _, i, j = questions["database"].cells[0]
        change = worked["sharp_weights"][i, j] - worked["weights"][i, j]
        assert right(questions["database"]) == [
            "It stays." if abs(change) <= 1e-5 else "It grows." if change > 0 else "It shrinks."
        ]
    _, by_tokens, by_features = worked["multiplications"][0]
    fewer = "Q (K\u1d40 V)" if by_features < by_tokens else "(Q K\u1d40) V"
    assert right(questions["linear"]) == ["Both need the same." if by_tokens == by_features else fewer]
    if "heads" in questions:
        _, i, _ = questions["heads"].cells[0]
        rows = [worked[f"head{head}_weights"][i] for head in (1, 2)]
        best = [set(np.flatnonzero(np.isclose(row, row.max(), atol=1e-5))) for row in rows]
        assert right(questions["heads"]) == ["Yes." if best[0] & best[1] else "No."]


def test_a_single_token_is_not_asked_about_others() -> None:
    questions, _ = asked(["pen"])
    assert not {"crude", "scores", "weighted", "past", "learning", "heads"} & set(questions)
    assert {"softmax", "masks", "encoder"} <= set(questions)
