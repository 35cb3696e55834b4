"""What each of two processes is told where their arguments differ or are refused: told.txt, which `make error-messages` writes.

Where one process alone finds an error, the other one is told too: one that went on would wait for it until the timeout.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("told.txt")
IN_GATE = ["disagreements:2", "refused_models:2", "explained:2"]


@pytest.mark.slow
def test_what_two_processes_are_told(result: Callable[[str], list[Any]]) -> None:
    told = []
    for job in IN_GATE:
        first, second = result(job)
        told += [f"[{job.partition(':')[0]}: {name}]\n{lasting(first[name], second[name])}\n" for name in first]
    if "UWAGA_RECORD_MESSAGES" in os.environ:
        FILE.write_text("\n".join(told), encoding="utf-8")
    assert told == re.split(r"\n(?=\[)", FILE.read_text(encoding="utf-8"))


def lasting(first: str | None, second: str | None) -> str:
    """Both texts without what differs between runs: checksums, and which calls there were before."""
    texts = [
        re.sub(r"(?<=has )\d+(?=,|$)", "CHECKSUM", each) if "checksum" in each else each
        for each in map(str, (first, second))
    ]
    calls = [int(each) for text in texts for each in re.findall(r"\bcall (\d+)", text)]
    texts = [re.sub(r"\bcall (\d+)", lambda found: f"call N + {int(found[1]) - min(calls)}", text) for text in texts]
    return f"both: {texts[0]}" if texts[0] == texts[1] else f"rank 0: {texts[0]}\nrank 1: {texts[1]}"
