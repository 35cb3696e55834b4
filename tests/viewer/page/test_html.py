"""The title of the page, as HTML."""

import pytest

from uwaga.viewer.page.html import page_title


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("a text", "a text - uwaga"),
        ("  a\n text\t", "a text - uwaga"),
        ("a\u202etext\u0000", "a text - uwaga"),
        ("\u200b", "uwaga"),
        ("", "uwaga"),
        ("żółw 🐢", "żółw 🐢 - uwaga"),
        ("x" * 300, "x" * 200 + " - uwaga"),
    ],
)
def test_a_title_is_one_line_without_control_and_bidirectional_characters(title: str, shown: str) -> None:
    assert page_title(title) == shown
