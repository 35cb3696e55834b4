"""The HTML around the front end: the same few elements, with script and style linked or inlined."""

import base64
import hashlib
import json
from html import escape

from uwaga._base import languages

# The empty icon keeps the browser from requesting /favicon.ico.
_HTML = """<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
{head}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
{style}
</head>
<body>
<div id="uwaga" class="uwaga"></div>
<noscript>{noscript}</noscript>
{table}{data}{script}
</body>
</html>
"""


def served_html(title: str, language: str = "en", *, lesson: bool = False) -> str:
    """Return the page of a server, which has its messages as data, but no script or style."""
    front = "lesson" if lesson else "app"
    return _HTML.format(
        **_in_language(language, can_change=True),
        head="",
        title=escape(page_title(title)),
        style=f'<link rel="stylesheet" href="/{front}.css">',
        data="",
        script=f'<script type="module" src="/{front}.js"></script>',
    )


def saved_html(title: str, *, script: str, css: str, data: str, language: str = "en") -> str:
    """Return a page that is one file.

    Its Content-Security-Policy allows this script and style, by their hashes, and no requests.

    Args:
        data: JSON without "<", which the script finds in the element with the attribute `data-uwaga-saved`.
    """
    assert "<" not in data
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return _HTML.format(
        **_in_language(language, can_change=False),
        head=f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        title=escape(page_title(title)),
        style=f"<style>{css}</style>",
        data=f'<script type="application/json" data-uwaga-saved>{data}</script>\n',
        script=f'<script type="module">{script}</script>',
    )


def _in_language(language: str, *, can_change: bool) -> dict[str, str]:
    with languages.using(language):
        noscript = languages.tr("This page needs JavaScript.")
    table = languages.page_table(language, can_change=can_change)
    data = json.dumps(table, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return {
        "language": language,
        "noscript": escape(noscript),
        "table": f'<script type="application/json" data-uwaga-language>{data}</script>\n',
    }


def page_title(title: str) -> str:
    """Return the title of the tab: one line, without control and bidirectional characters."""
    shown = "".join(letter if letter.isprintable() else " " for letter in title[:200])
    return f"{' '.join(shown.split())} - uwaga" if shown.strip() else "uwaga"


def _hash(text: str) -> str:
    """Return the source expression of an inline element in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
