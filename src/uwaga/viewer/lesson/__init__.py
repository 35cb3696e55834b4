"""The calculation of attention on a small example, step by step: every number, and what it came from.

    >>> from uwaga.viewer.lesson import work_through
    >>> lesson = work_through("this is a pen .")
    >>> lesson["weights"].shape
    (5, 5)

The numbers are computed by `uwaga.attention`, `uwaga.attend` and `uwaga.nn`, which also compute the models. Each name is
imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.viewer.lesson.api import Lesson, lesson, work_through
    from uwaga.viewer.lesson.build import answer

__all__ = ["Lesson", "answer", "lesson", "work_through"]

_HOME = {
    "Lesson": "uwaga.viewer.lesson.api",
    "answer": "uwaga.viewer.lesson.build",
    "lesson": "uwaga.viewer.lesson.api",
    "work_through": "uwaga.viewer.lesson.api",
}

__getattr__, __dir__ = names(__name__, _HOME)
