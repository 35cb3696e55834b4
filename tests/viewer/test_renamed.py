"""Former public names of uwaga.view and uwaga.lesson are refused, and the message has the present one."""

from collections.abc import Callable

import pytest

import uwaga
from uwaga.viewer.api import View
from uwaga.viewer.lesson import Lesson, work_through


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: uwaga.view(shown=[]), "view: shown is now called maps"),
        (lambda: uwaga.lesson(given="a pen ."), "lesson: given is now called inputs"),
        (lambda: work_through(given="a pen ."), "work_through: given is now called inputs"),
        (lambda: View(desk=None, server=None), "View: desk is now called service"),
        (lambda: Lesson(question={}, steps=()), "Lesson: question is now called request"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_former_parameter_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert str(caught.value) == message


def test_a_former_attribute_is_refused() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = work_through("a pen .").question
    assert str(caught.value) == "'Lesson' object has no attribute 'question'; it is now called request"
    with pytest.raises(AttributeError) as caught:
        _ = View(None, None).desk
    assert str(caught.value) == "'View' object has no attribute 'desk'; it is now called service"
