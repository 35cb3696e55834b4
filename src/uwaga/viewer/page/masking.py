"""JavaScript with blanks for what is no code: comments, and the insides of strings, templates and patterns."""

import re
from typing import NamedTuple

# What a slash after it begins: after an operator or one of these words a pattern, else a division.
_BEFORE_PATTERN = re.compile(
    r"(?:^|[(,=:\[!&|?{};+\-*%~^<>]|\b(?:return|typeof|case|in|of|delete|void|yield|await))\s*$"
)
_TOKENS = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<quote>`)|(?P<slash>/)"""
    r"|(?P<open>\{)|(?P<close>\})",
    re.DOTALL,
)
_PATTERN = re.compile(r"/(?![*/])(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[A-Za-z]*")
_TEMPLATE = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*", re.DOTALL)


class Masked(NamedTuple):
    """A module's text, read so far."""

    code: str  # of the same length and lines, with blanks for all that is no code
    comments: list[tuple[int, int]]  # where they begin and end


def mask(text: str) -> Masked:
    """Tell code from what is none. A template's expressions are code."""
    reader = _Reader(text)
    reader.read()
    return Masked("".join(reader.out), reader.comments)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.place = text, 0
        self.out: list[str] = []
        self.comments: list[tuple[int, int]] = []
        self.in_template: list[bool] = []  # of every open brace: whether it holds a template's expression

    def read(self) -> None:
        while found := _TOKENS.search(self.text, self.place):
            self._keep(found.start())
            kind, stop = found.lastgroup, found.end()
            if kind == "comment":
                self.comments.append(found.span())
                self._blank(stop)
            elif kind == "string":
                self._quoted(stop)
            elif kind == "slash":
                self._slash()
            else:
                self._keep(stop)
                if kind == "open":
                    self.in_template.append(False)
                elif kind == "quote" or (self.in_template and self.in_template.pop()):
                    self._template()
        self._keep(len(self.text))

    def _template(self) -> None:
        """From behind its beginning, or behind an expression of it, to its end or its next expression."""
        within = _TEMPLATE.match(self.text, self.place)
        assert within is not None, "it matches the empty string too"
        self._blank(within.end())
        if self.text.startswith("${", self.place):
            self._keep(self.place + 2)
            self.in_template.append(True)
        else:
            self._keep(min(self.place + 1, len(self.text)))

    def _slash(self) -> None:
        pattern = _PATTERN.match(self.text, self.place)
        if pattern is not None and _BEFORE_PATTERN.search("".join(self.out[-8:])[-200:]):
            self._quoted(pattern.end())
        else:
            self._keep(self.place + 1)

    def _quoted(self, stop: int) -> None:
        self._keep(self.place + 1)
        self._blank(stop - 1)
        self._keep(stop)

    def _keep(self, stop: int) -> None:
        self.out.append(self.text[self.place : stop])
        self.place = stop

    def _blank(self, stop: int) -> None:
        self.out.append(re.sub(r"[^\n]", " ", self.text[self.place : stop]))
        self.place = stop
