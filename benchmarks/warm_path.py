"""Which files of the package does a warm call of attention(q, k, v, mask=Causal()) go through?

The second call of the same sizes, on one thread of the CPU, in plain eager mode: one row for each Python function of the
package that is entered, in order, and then the list of their files.
"""

import sys
from pathlib import Path
from types import FrameType

import torch
from harness import DTYPES, HEADS, Report, options, parse

import uwaga

PACKAGE = Path(uwaga.__file__).parent


def entered(dtype: torch.dtype) -> list[tuple[str, str]]:
    """File and function of every Python call inside the package, in order."""
    query, key, value = (torch.randn(1, HEADS, 64, 64, dtype=dtype) for _ in range(3))
    mask = uwaga.Causal()
    uwaga.attention(query, key, value, mask=mask)
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found.append((str(path.relative_to(PACKAGE)), frame.f_code.co_name))

    sys.setprofile(note)
    try:
        uwaga.attention(query, key, value, mask=mask)
    finally:
        sys.setprofile(None)
    return found


if __name__ == "__main__":
    parser = options(__doc__, grid=False)
    parser.set_defaults(dtype=["float32"])
    chosen = parse(parser)
    for dtype in chosen.dtype:
        report = Report(chosen, f"The warm path, {dtype}", ("file", "function"))
        calls = entered(DTYPES[dtype])
        for call in calls:
            report.row(*call)
        files = list(dict.fromkeys(path for path, _ in calls))
        report.say(f"\n{len(files)} files, {len(calls)} calls: {', '.join(files)}.\n")
