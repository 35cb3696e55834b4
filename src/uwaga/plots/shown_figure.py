"""The figure that the functions of uwaga.plots make. A module of its own, since its base class comes with matplotlib."""

from io import BytesIO

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure that a notebook shows: without pyplot, nothing else shows IPython how."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=150)  # text of 6 points is 12 pixels high
        return file.getvalue()
