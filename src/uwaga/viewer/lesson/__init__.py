"""The calculation of attention on a small example, step by step: every number, and what it came from.

    >>> from uwaga.viewer.lesson import work_through
    >>> lesson = work_through("this is a pen .")
    >>> lesson["weights"].shape
    (5, 5)

The numbers are made by `uwaga.attention`, `uwaga.attend` and `uwaga.nn`, as those of every model here. Each name is
imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.viewer.lesson.door import Lesson, lesson, work_through
    from uwaga.viewer.lesson.replying import answer

__all__ = ["Lesson", "answer", "lesson", "work_through"]

_HOME = {
    "Lesson": "uwaga.viewer.lesson.door",
    "answer": "uwaga.viewer.lesson.replying",
    "lesson": "uwaga.viewer.lesson.door",
    "work_through": "uwaga.viewer.lesson.door",
}

__getattr__, __dir__ = names(__name__, _HOME)
