"""A step of the lesson in the making: its texts in the current language, and the matrices that it and earlier steps have made.

texts/*.toml has the texts of a language, a table for each step, in the order of the steps. A key has one text; a list of
paragraphs; title and formula of a matrix; or the forms of a plural, by the names of CLDR in their order.
"""

import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from uwaga._base.languages import current, filled, plural
from uwaga.lessons.document import Chart, Illustration, LessonFinding, LessonStep, Problem, Section
from uwaga.lessons.example import Example
from uwaga.lessons.matrix import Matrix, Rule, rule

Text = str | list[str] | dict[str, str]
CALCULATION = 6  # steps of the calculation itself


@functools.cache
def texts_of(language: str) -> dict[str, dict[str, Text]]:
    """Return the texts of all steps; "common" has those that several steps use."""
    texts: dict[str, dict[str, Text]] = tomllib.loads(
        resources.files("uwaga.lessons").joinpath("texts", f"{language}.toml").read_text(encoding="utf-8")
    )
    return texts


class Page:
    """What a step is made with."""

    def __init__(self, id: str, example: Example, matrices: dict[str, Matrix]) -> None:
        self.id, self.example, self._matrices = id, example, matrices
        texts = texts_of(current())
        self._texts = texts["common"] | texts[id]

    def __getitem__(self, id: str) -> Matrix:
        """Return a matrix of this step or of one before."""
        return self._matrices[id]

    def text(self, key: str, /, **values: object) -> str:
        """Return a text with the values in its braces; integers among them as the language writes them."""
        text = self._texts[key]
        assert isinstance(text, str), key
        return filled(text, values)

    def texts(self, key: str, /, **values: object) -> tuple[str, ...]:
        """Return paragraphs; none if the step has none."""
        paragraphs = self._texts.get(key, [])
        assert isinstance(paragraphs, list), key
        return tuple(filled(paragraph, values) for paragraph in paragraphs)

    def stated(self, key: str, /, **values: object) -> Rule:
        """Return the rule of a number that a text explains, not other matrices."""
        return rule("given", say=self.text(key, **values))

    def counted(self, key: str, count: int, **values: object) -> str:
        """Return a text in the form that the language has for a count, which is `{count}` in it."""
        forms = self._texts[key]
        assert isinstance(forms, dict), key
        return plural(list(forms.values()), count, **values)

    def matrix(
        self, id: str, matrix: Matrix, key: str = "", /, *, head: int = 0, note: str = "", **values: object
    ) -> Matrix:
        """Give a matrix its name, and title and formula from the texts.

        key: of the texts, by default the id.
        head: the number of its head, which the title says; 0 for none.
        """
        title, formula = self.texts(key or id, **values)
        if head:
            title = self.text("of_head", title=title, head=head)
        self._matrices[id] = replace(matrix, id=id, title=title, formula=formula, note=note)
        return self._matrices[id]

    def finding(self, key: str, cells: Iterable[tuple[str, int, int]] = (), /, **values: object) -> LessonFinding:
        """Return a sentence about numbers."""
        return LessonFinding(text=self.text(key, **values), cells=list(cells))

    def problem(self, id: str, text: str, numbers: Sequence[float] = (), *, solved: bool = False) -> Problem:
        """Return a problem of the calculation as it stands at this step, or its remedy."""
        title = texts_of(current())["problems"][id]
        assert isinstance(title, str)
        return Problem(
            id=id, title=title, text=text, solved=solved, numbers=[float(f"{number:.4g}") for number in numbers]
        )

    def chart(
        self,
        key: str,
        matrix: str,
        lines: Sequence[int],
        finding: LessonFinding,
        x_title: str,
        y_title: str,
        *,
        log_x: bool = False,
        log_y: bool = False,
    ) -> Chart:
        """Return a chart with the title `key`, which a finding describes."""
        titles = {"title": self.text(key), "x_title": x_title, "y_title": y_title}
        return Chart(matrix=matrix, lines=lines, description=finding.text, log_x=log_x, log_y=log_y, **titles)

    def picture(
        self, kind: str, key: str, *matrices: Matrix, values: Mapping[str, object] | None = None, **more: Any
    ) -> Illustration:
        """Return a drawing with the title `key`."""
        return Illustration(kind=kind, title=self.text(key, **values or {}), matrices=matrices, **more)

    def section(
        self,
        key: str,
        *matrices: Matrix,
        title: str = "",
        text: Sequence[str] | None = None,
        values: Mapping[str, object] | None = None,
        **more: Any,
    ) -> Section:
        """Return a section with the title `key`, and the paragraphs `key`_text if there are any. values: of both."""
        return Section(
            title=title or self.text(key, **values or {}),
            text=self.texts(f"{key}_text", **values or {}) if text is None else text,
            matrices=matrices,
            **more,
        )

    def step(
        self, *sections: Section, place: int = 0, values: Mapping[str, object] | None = None, **more: Any
    ) -> LessonStep:
        """Return the step, with the texts "title", "text" and "told". place: among the steps of the calculation; 0 for
        all others. values: of the texts."""
        text, told = (self.texts(key, **values or {}) for key in ("text", "told"))
        number = self.text("place", place=place, count=CALCULATION) if place else ""
        parts = {"title": self.text("title"), "text": text, "told": told} | more
        return LessonStep(id=self.id, sections=sections, number=number, **parts)
