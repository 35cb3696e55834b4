"""What tests of the page in a browser share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import uwaga
from uwaga._base import languages
from uwaga.lessons import page as lesson_page
from uwaga.lessons.page import texts_of
from uwaga.viewer import ServedView
from uwaga.viewer.page.bundle import FRONT

Serve = Callable[..., ServedView]
Open = Callable[..., Any]
MakeMaps = Callable[..., dict[tuple[str, int], uwaga.AttentionMap]]

_AXE = FRONT / "node_modules" / "axe-core" / "axe.min.js"  # `make stress` and `make front-types` install it
_RUN = """async (within) => (await axe.run(within, { resultTypes: ["violations"] })).violations
  .map(({ id, nodes }) => [id, nodes.slice(0, 3).map(({ html }) => html.slice(0, 200))])"""
_TEXT = ("the", "quick", "brown", "fox", "jump", "##s", "over", "a", "lazy", "dog", ",", "and", "looks", "back", ".")

# Texts that must not become markup, formulas or controls.
HOSTILE = [
    "<script>window.harmed=1</script>",
    '"><img src=x onerror="window.harmed=1">',
    "\u202eevil",
    "a\x07b",
    "",
    "=1+1",
]


def words(count: int) -> list[str]:
    return ["[CLS]", *(_TEXT[i % len(_TEXT)] for i in range(count - 2)), "[SEP]"]


def save(page: Any, kind: str, folder: Path) -> Path:
    """Save a file by the menu "Share"."""
    page.get_by_role("button", name="Share", exact=True).click()
    with page.expect_download() as download:
        page.click(f'[data-export="{kind}"]')
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def replace_texts(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Give every language the English texts of the pages and of the lesson, changed."""

    def changed(text: Any) -> Any:
        if isinstance(text, dict):
            return {name: changed(value) for name, value in text.items()}
        return [changed(value) for value in text] if isinstance(text, list) else change(text)

    forms = {message: [change(message)] for message in languages.tables()["messages"]}
    table = languages.Table(forms, frozenset(forms), lambda count: 0)
    lesson_texts = changed(texts_of("en"))
    monkeypatch.setattr(languages, "table_of", lambda language: table)
    monkeypatch.setattr(lesson_page, "texts_of", lambda language: lesson_texts)


def violations(page: Any, within: str = "html") -> list[Any]:
    """What axe-core finds, with the first elements of each."""
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    return page.evaluate(_RUN, within)  # type: ignore[no-any-return]
