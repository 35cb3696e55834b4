"""Sphinx's configuration of the documentation site. `make site` writes its sources (build.py) and builds it."""

import re

import uwaga

project = "uwaga"
author = "The uwaga authors"
copyright = author
version = release = uwaga.__version__

# Without viewcode, whose links to names that are imported when they are used lead nowhere.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"uwaga {release}"
html_copy_source = False
html_show_sphinx = False
html_extra_path = ["extra"]  # the gallery's pages
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # one entry for an attribute that is a property too

_SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields):")


def docstring_to_rst(lines: list[str]) -> list[str]:
    """A docstring with Markdown's code spans and indented code, and without markup, as reStructuredText.

    Code is what is indented after a blank line; what is indented after `Args:` and the like belongs to that section.
    """
    results: list[str] = []
    in_section = in_code = False
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith(" "):
            in_section, in_code = _SECTION.fullmatch(line.strip()) is not None, False
        elif line.strip() and not in_section and not in_code and number and not lines[number - 1].strip():
            results += ["::", ""]
            in_code = True
        results.append(line if in_code or line.startswith((">>>", "...")) else _prose(line))
    return results


def _prose(line: str) -> str:
    parts = re.split(r"`+([^`]+)`+", line)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(?<=\w)_(?!\w)", r"\\_", re.sub(r"[*|\\]", r"\\\g<0>", parts[at]))
    for at in range(1, len(parts), 2):
        parts[at] = f"``{parts[at]}``"
    return "".join(parts)


def _rewrite(app, what, name, obj, options, lines: list[str]) -> None:
    # What namedtuple writes about a field says nothing.
    lines[:] = [] if lines and lines[0].startswith("Alias for field number") else docstring_to_rst(lines)


def setup(app) -> None:
    app.connect("autodoc-process-docstring", _rewrite, priority=400)  # before napoleon, which comes at 500
