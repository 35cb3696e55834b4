"""The text of every public message, as the file of its area shows it; record.py beside this file writes the files."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `import record`: the tests are no package

import record

from uwaga._base import native

pytestmark = pytest.mark.skipif(native.reason_unavailable() is not None, reason="there is no native library")


@pytest.mark.parametrize("area", record.AREAS)
@pytest.mark.usefixtures("one_thread")
def test_messages_are_those_of_the_file(area: str) -> None:
    """After a change that is meant: `make error-messages`, and read the difference."""
    messages = {name: record.message(call) for name, call in record.table(area).items()}
    assert [name for name, text in messages.items() if text == "no error"] == []
    recorded = (record.HERE / f"{area}.txt").read_text(encoding="utf-8")
    assert record.written(messages).split("\n[") == recorded.split("\n[")
