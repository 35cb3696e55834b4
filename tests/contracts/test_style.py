"""Every page keeps the measurable rules of writing: tests/style.py."""

from pathlib import Path

import pytest
import style
from documents import DOCUMENTS, name_of


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_a_page_keeps_the_rules(page: Path) -> None:
    assert style.faults(page) == []
