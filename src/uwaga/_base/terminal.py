"""Text that a terminal shows and does not obey, whoever wrote it: a file, a model, or a library's error."""

import unicodedata

# Control characters, those that reorder text or cannot be seen, halves of surrogate pairs, and what has no meaning yet.
_UNSAFE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
# Joiners spell words in Persian and Hindi, and combine emoji.
_JOINERS = "\u200c\u200d"


def escape_controls(text: str, keep: str = "\n\t") -> str:
    """Every character that is unsafe in a terminal as its code point; those to keep, line ends and tabs, stay.

    >>> escaped("a\\x1b[2J")
    'a<U+001B>[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    safe = _JOINERS + keep
    return "".join(f"<U+{ord(c):04X}>" if c not in safe and unicodedata.category(c) in _UNSAFE else c for c in text)


def printable(name: str) -> str:
    """A name from a file as messages show it: in ASCII, on one line, and of 200 characters at most."""
    text = name if name.isprintable() and name.isascii() else ascii(name[:201])
    return text if len(text) <= 200 else text[:200] + "..."
