"""Escaping of untrusted text for terminals and messages: control characters and invisible ones never reach them."""

import reprlib
import unicodedata

# Unicode categories: control, format (invisible, reordering), unassigned, private use, surrogate, line, paragraph.
_UNSAFE = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
# Joiners spell words in Persian and Hindi, and combine emoji.
_JOINERS = "\u200c\u200d"


def escape_controls(text: str, keep: str = "\n\t") -> str:
    """Replace every character that is unsafe in a terminal by its code point, except those of `keep`.

    >>> escape_controls("a\\x1b[2J")
    'a<U+001B>[2J'
    """
    if text.isascii() and text.isprintable():
        return text
    safe = _JOINERS + keep
    return "".join(f"<U+{ord(c):04X}>" if c not in safe and unicodedata.category(c) in _UNSAFE else c for c in text)


def printable(name: str) -> str:
    """Return a string from an untrusted file, for a message: ASCII, on one line, at most 200 characters."""
    text = name if name.isprintable() and name.isascii() else ascii(name[:201])
    return text if len(text) <= 200 else text[:200] + "..."


_REPR = reprlib.Repr()  # bounded in depth and length
_REPR.maxstring = _REPR.maxother = 200
# repr raises for an integer of thousands of digits.
_REPR.repr_int = lambda x, level: repr(x) if abs(x) <= 10**20 else "an integer of more than 20 digits"  # type: ignore[method-assign]


def short(value: object) -> str:
    """Return the repr of a value of any size and depth, for a message: at most 60 characters."""
    text = _REPR.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
