"""The worksheet: what is blank, and solutions that are the numbers of the operation."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
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


def test_the_solutions_are_what_attention_gives(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, wq, wk, wv = (
        torch.randn(shape, generator=generator).round(decimals=1) for shape in ((4, 3), (3, 2), (3, 2), (3, 2))
    )
    worked = work_through(x, tokens="a < b &", wq=wq, wk=wk, wv=wv.numpy(), heads=1)
    worked.save_worksheet(tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text()
    task, solved = tables(html)
    assert task.keys() == {"x", "wq", "wk", "wv", *solved}
    for name, tensor in {"x": x, "wq": wq, "wk": wk, "wv": wv}.items():
        np.testing.assert_array_equal(np.array(task[name], np.float32), tensor)
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


def test_the_sheet_has_questions_their_answers_tables_and_the_scale(tmp_path: Path) -> None:
    """A matrix with a table for each query has the table of the question's token."""
    worked = work_through()
    worked.save_worksheet(tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text()
    task, _, solutions = html.partition("<section class")
    questions = {step.id: step.question for step in worked.steps}
    asked = questions["softmax"]
    assert asked.why in solutions
    assert asked.why not in task
    assert 'class="right"' not in task
    assert f'<li class="right">{asked.choices[asked.answers[0]]}</li>' in solutions
    assert "weight for “.”" in questions["weighted"].text
    assert html.count("<strong>Values by their weights, for one query (.)</strong>") == 2
    np.testing.assert_allclose(np.array(tables(html)[1]["weighted"], float), worked["weighted"][4], atol=0.005001)
    assert "Scores are scaled by 1/√2." in html
    work_through(scaled=False).save_worksheet(tmp_path / "unscaled.html")
    assert "Scores are scaled by 1." in (tmp_path / "unscaled.html").read_text()
