"""The documentation site's own parts: docstrings as reStructuredText, its check of links, llms.txt, pages from the code."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from documents import PAGES

pytestmark = pytest.mark.stress
pytest.importorskip("sphinx", reason="the extra site is not installed")
Program = Callable[[str], ModuleType]


def test_a_docstring_becomes_restructured_text(program: Program) -> None:
    docstring = """One pass, `attend(q, k)`, of *args and a_ij with x_.

    with watch(model):
        model(ids)          # |x| * 2

Args:
    query: (..., D), as `attention` takes it.

Then prose.""".splitlines()
    assert (
        program("docs/site/conf.py").docstring_to_rst(docstring)
        == r"""One pass, ``attend(q, k)``, of \*args and a_ij with x\_.

::

    with watch(model):
        model(ids)          # |x| * 2

Args:
    query: (..., D), as ``attention`` takes it.

Then prose.""".splitlines()
    )


def test_dead_links_are_found(tmp_path: Path, program: Program) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "there.html").write_text('<h1 id="top">x</h1>')
    (tmp_path / "deep" / "page.html").write_text(
        '<a id="a" href="#a"></a><a href="../there.html#top"></a><a href="https://example.org/none"></a>'
        '<img src="gone.png"><a href="../there.html#bottom"></a><a href="#b"></a>'
    )
    result = program("docs/site/build.py").dead_links(tmp_path)
    assert result == ["deep/page.html: #b", "deep/page.html: ../there.html#bottom", "deep/page.html: gone.png"]


def test_every_page_has_a_place_in_the_menu(root: Path) -> None:
    listed = (root / "docs/site/index.md").read_text(encoding="utf-8").splitlines()
    assert {
        page.relative_to(root).with_suffix("").as_posix() for page in PAGES if page.parent.name != "formats"
    } <= set(listed)
