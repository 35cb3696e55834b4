"""The attention explorer: one front end, served to a browser, shown in a notebook, or saved as one HTML file.

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga.viewer import lesson as lesson
    from uwaga.viewer.api import view as view
    from uwaga.viewer.server.server import ServedView as ServedView
    from uwaga.viewer.shown import Maps as Maps
    from uwaga.viewer.shown import Question as Question
    from uwaga.viewer.shown import Text as Text
else:
    __all__, __getattr__, __dir__ = names(__name__)
