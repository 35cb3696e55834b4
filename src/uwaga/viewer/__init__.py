"""Floor 4: looking at attention: one front end, served to a browser, shown in a notebook, or saved as one file.

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.viewer.door import view
    from uwaga.viewer.lesson.door import lesson

__all__ = ["lesson", "view"]

_HOME = {
    "lesson": "uwaga.viewer.lesson.door",
    "view": "uwaga.viewer.door",
}

__getattr__, __dir__ = names(__name__, _HOME)
