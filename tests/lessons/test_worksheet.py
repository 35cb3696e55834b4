"""The worksheet: what is blank, and solutions that are the numbers of the operation."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import uwaga
from uwaga.viewer.lesson import work_through

Cells = list[list[str]]


def tables(html: str) -> tuple[dict[str, Cells], dict[str, Cells]]:
    """The cells of each matrix, of the task and of the solutions."""
    body = re.search(r"<body>.*</body>", html, re.DOTALL)
    assert body is not None
    task, solutions = ElementTree.fromstring(body[0])  # our own
    return tuple(
        {
            table.attrib["data-matrix"]: [
                [(cell.text or "").replace("\N{MINUS SIGN}", "-") for cell in row.iter("td")]
                for row in table.findall("tbody/tr")
            ]
            for table in part.iter("table")
        }
        for part in (task, solutions)
    )


@pytest.mark.parametrize("seed", range(3))
def test_the_solutions_are_what_attention_gives(tmp_path: Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, wq, wk, wv = (
        torch.randn(shape, generator=generator).round(decimals=1) for shape in ((4, 3), (3, 2), (3, 2), (3, 2))
    )
    worked = work_through(x, tokens="a < b &", wq=wq, wk=wk, wv=wv.numpy(), heads=1)
    worked.save_worksheet(tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text()
    task, solved = tables(html)
    assert task.keys() == {"x", "wq", "wk", "wv", *solved}
    for name, given in {"x": x, "wq": wq, "wk": wk, "wv": wv}.items():
        np.testing.assert_array_equal(np.array(task[name], np.float32), given)
    assert all(not cell for name in solved for row in task[name] for cell in row)
    q, k, v = x @ wq, x @ wk, x @ wv
    expected = {
        "q": q, "k": k, "v": v, "scores": q @ k.T, "scaled": q @ k.T / 2**0.5,
        "weights": uwaga.attention(q, k, torch.eye(4)), "output": uwaga.attention(q, k, v),
    }  # fmt: skip
    for name, numbers in expected.items():
        np.testing.assert_allclose(np.array(solved[name], float), numbers, atol=0.005001, err_msg=name)
    weights = uwaga.attention(q, k, torch.eye(4))
    asked = next(step for step in worked.steps if step.id == "weighted").question
    i = 0 if asked is None else asked.token
    np.testing.assert_allclose(np.array(solved["weighted"], float), weights[i, :, None] * v, atol=0.005001)
    assert "<p>a &lt; b &amp;</p>" in html


def test_questions_stand_before_the_numbers_and_their_answers_in_the_solutions(tmp_path: Path) -> None:
    worked = work_through()
    worked.save_worksheet(tmp_path / "sheet.html")
    task, _, solutions = (tmp_path / "sheet.html").read_text().partition("<section class")
    asked = next(step for step in worked.steps if step.id == "softmax").question
    assert asked is not None
    assert asked.why in solutions
    assert asked.why not in task
    assert 'class="right"' not in task
    assert f'<li class="right">{asked.choices[asked.answers[0]]}</li>' in solutions


def test_a_question_about_a_token_has_its_table(tmp_path: Path) -> None:
    """Of a matrix with a table for each query, the sheet has that of the question's."""
    worked = work_through()
    worked.save_worksheet(tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text()
    asked = next(step for step in worked.steps if step.id == "weighted").question
    assert asked is not None
    assert "weight for “.”" in asked.text
    assert html.count("<strong>Values by their weights, for one query (.)</strong>") == 2
    np.testing.assert_allclose(np.array(tables(html)[1]["weighted"], float), worked["weighted"][4], atol=0.005001)


def test_the_scale_that_was_chosen_is_named(tmp_path: Path) -> None:
    for scaled, said in ((True, "1/√2"), (False, "1")):
        work_through(scaled=scaled).save_worksheet(tmp_path / "sheet.html")
        assert f"Scores are scaled by {said}." in (tmp_path / "sheet.html").read_text()
