"""uwaga.lesson, and work_through, which gives the numbers without a page."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

import uwaga
from uwaga.viewer.lesson import Lesson, work_through
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import View


def test_inputs_are_a_sentence_words_or_a_matrix() -> None:
    assert work_through("a pen .")["x"].shape == (3, 4)
    assert work_through(["a", "pen"])["x"].shape == (2, 4)
    x = torch.randn(3, 5)
    worked = work_through(x, heads=1)
    np.testing.assert_array_equal(worked["x"], x.numpy())
    assert worked.request["tokens"] == ["x1", "x2", "x3"]
    assert work_through(x.tolist(), tokens="one two three", heads=1).request["tokens"] == ["one", "two", "three"]


@pytest.fixture
def served(capsys: pytest.CaptureFixture[str]) -> Iterator[Lesson]:
    with uwaga.lesson("my pen .", browser=False, block=False) as worked:
        assert capsys.readouterr().out == f"uwaga.lesson: {worked.view.address}\n"
        yield worked


def test_the_served_lesson_has_the_numbers_and_a_url_of_the_lesson(served: Lesson) -> None:
    assert served["weights"].shape == (3, 3)
    address = urlsplit(served.view.address)
    assert address.hostname == "127.0.0.1"
    assert (address.path, address.query) == ("/", "lesson")
    assert address.fragment.endswith("&tab=lesson")
    assert repr(served) == f"Lesson('my pen .', 24 steps, {len(served.matrices)} matrices, {served.view.address})"


def test_in_a_notebook_the_lesson_is_a_widget(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("anywidget", reason="the extra `view` is not installed")
    from IPython.core.formatters import DisplayFormatter

    monkeypatch.setitem(sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
    with uwaga.lesson("my pen .") as worked:
        data, _ = DisplayFormatter().format(worked)
    assert "application/vnd.jupyter.widget-view+json" in data


def test_the_page_opens_with_the_given_inputs() -> None:
    service = ViewService(View(), lesson=work_through("my pen .").request)
    assert service.answer({"request": "lesson"}).meta["request"]["tokens"] == ["my", "pen", "."]
    assert service.answer({"request": "lesson", "tokens": ["a"]}).meta["request"]["tokens"] == ["a"]
    about = service.answer({"request": "about"}).meta
    assert (about["lesson"], about["sides"], about["start"]) == (True, [], None)
