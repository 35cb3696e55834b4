"""What a terminal would obey is shown as its code point."""

import pytest

from uwaga._base.terminal import escape_controls, printable


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain, ż and 東京 🐢\n\tnext", "plain, ż and 東京 🐢\n\tnext"),
        ("\x1b[2J\x1b]0;title\x07", "<U+001B>[2J<U+001B>]0;title<U+0007>"),
        ("\x9b31m", "<U+009B>31m"),  # C1: the same as ESC [
        ("a\rb\x7f\0", "a<U+000D>b<U+007F><U+0000>"),
        ("\u202egnp.exe\u2066", "<U+202E>gnp.exe<U+2066>"),
        ("\ud800", "<U+D800>"),
        ("a\u2028b\ufeff\ue000", "a<U+2028>b<U+FEFF><U+E000>"),
        ("\u0645\u06cc\u200c\u062e 👨\u200d👩", "\u0645\u06cc\u200c\u062e 👨\u200d👩"),
    ],
)
def test_what_is_unsafe_in_a_terminal(text: str, safe: str) -> None:
    assert escape_controls(text) == safe
    assert escape_controls(safe) == safe


def test_names_are_short_and_ascii() -> None:
    assert printable("wte.weight") == "wte.weight"
    assert printable("\x1b[2J") == "'\\x1b[2J'"
    assert printable("x" * 201) == "x" * 200 + "..."
