"""JavaScript with blanks for what is no code: comments, and the insides of strings, templates and patterns."""

import re

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


def mask(text: str) -> str:
    """The same length and lines, with blanks for comments and for the insides of strings, templates and patterns."""
    out: list[str] = []
    place = 0
    closing: list[bool] = []  # of every open brace: whether it ends an expression inside a template

    def template(at: int) -> int:
        stop = _TEMPLATE.match(text, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        out.append(_blank(text[at:stop]))
        if text.startswith("${", stop):
            out.append(" {")
            closing.append(True)
            return stop + 2
        out.append("`" if stop < len(text) else "")
        return stop + 1

    while found := _TOKENS.search(text, place):
        out.append(text[place : found.start()])
        place = found.end()
        match found.lastgroup:
            case "comment":
                out.append(_blank(found[0]))
            case "string":
                out.append(found[0][0] + " " * (len(found[0]) - 2) + found[0][-1])
            case "quote":
                out.append("`")
                place = template(place)
            case "slash":
                place = _slash(text, found.start(), out)
            case "open":
                out.append("{")
                closing.append(False)
            case _:
                out.append("}")
                if closing and closing.pop():
                    place = template(place)
    out.append(text[place:])
    return "".join(out)[: len(text)]


def _slash(text: str, at: int, out: list[str]) -> int:
    pattern = _PATTERN.match(text, at)
    if pattern is None or not _BEFORE_PATTERN.search("".join(out[-8:])[-200:]):
        out.append("/")
        return at + 1
    out.append("/" + " " * (len(pattern[0]) - 2) + "/")
    return pattern.end()


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
