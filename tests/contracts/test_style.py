"""Every page keeps the measurable rules of writing: tests/style.py."""

from pathlib import Path

import pytest
import style
from documents import DOCUMENTS, name_of

# A page that breaks each rule once, and what is found.
FAULTS = """# What the cache may forget

the page begins without a capital, and we say so. {long}

    an indented block

```
no language
```

| a | b |
| --- | --- |
| one two three four five six seven eight nine ten eleven twelve thirteen | b |

Encoding takes 12 ms here.

Where it is none, mend that of the others, which is told beside those of the rest, but for it, as long as it stands.
"""


@pytest.mark.parametrize("page", DOCUMENTS, ids=name_of)
def test_a_page_keeps_the_rules(page: Path) -> None:
    assert style.faults(page) == []


def test_a_fault_of_each_kind_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "guides"
    folder.mkdir()
    page = folder / "page.md"
    page.write_text(FAULTS.format(long="It goes on " + "and on " * 50 + "."))
    found = [fault.partition(":")[0].partition(", not")[0] for fault in style.faults(page)]
    assert found == [
        "a heading names its subject in at most six words",
        "a paragraph has at most 90 words",
        "a sentence has at most 40 words",
        "a paragraph begins with a capital",
        "nobody says we",
        "a line has at most 100 columns",
        "a block of code is fenced",
        "a block of code names its language",
        "a cell of a table has at most 12 words",
        "a figure links to its report or to the page on performance",
        "a line has at most 100 columns",
        "a guide says you at least 8 times in 1,000 words",
        "a guide instructs in at least 10 % of its sentences",
        "a guide ends with the heading Next",
        "at most 4 constructions of the list PATTERNS in 1,000 words",
        "nine of ten sentences have at most 30 words",
    ]
    assert style.main([str(page)]) == 1
