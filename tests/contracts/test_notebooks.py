"""Every notebook runs from its beginning to its end and shows what it draws. Nothing is written into them."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: the extra `test` brings it")
nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: nbclient needs it")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.mark.stress  # `make notebooks`; the pages run the same calls in every gate
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_draws(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=None).execute()  # the test's own limit ends it
    for cell in notebook.cells:
        bundles = [output.get("data", {}) for output in cell.get("outputs", ())]
        shown = {kind for bundle in bundles for kind in bundle}
        assert not any(" object at 0x" in bundle.get("text/plain", "") for bundle in bundles), cell.source
        if "uwaga.plots." in cell.source:
            assert "image/png" in shown, cell.source
        if "uwaga.view(" in cell.source:
            assert "application/vnd.jupyter.widget-view+json" in shown, cell.source
