"""What a new user does after `pip install uwaga`: one exact map in Python, one page in the browser.

    python tests/contracts/first_minutes.py

runs it with the package that this Python finds, and nothing else of the repository: no model from elsewhere, no network but the
loopback interface. Wheels are tested by it, here and on the platforms that cibuildwheel builds for.
"""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

SENTENCE = "The animal didn't cross the street because it was too tired."


def exact_map() -> str:
    """One row of softmax(q K^T / sqrt(D)) through the map, beside the formula in float64; the engine that computed it."""
    import torch

    import uwaga

    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 2000, 32)
    attended = uwaga.attend(query, key, value, mask=uwaga.Causal())
    row = attended.map[0, 1, 1500, :]
    exact = (query[0, 1, 1500].double() @ key[0, 1, :1501].double().mT / 32**0.5).softmax(-1)
    assert torch.allclose(row[:1501].double(), exact, rtol=1e-4, atol=1e-7)
    assert not row[1501:].any()
    assert uwaga.__file__ is not None
    assert Path(sys.prefix) in Path(uwaga.__file__).parents, uwaga.__file__
    return uwaga.explain(query, key, value, mask=uwaga.Causal()).engine


def served_page() -> str:
    """`uwaga view SENTENCE`: the beginning of the page that its address gives."""
    command = [sys.executable, "-m", "uwaga.cli", "view", SENTENCE, "--no-browser"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+/", line)))
            with urllib.request.urlopen(address) as reply:
                return reply.read(15).decode()
        finally:
            process.terminate()


def main() -> None:
    begun = time.perf_counter()
    engine = exact_map()
    mapped = time.perf_counter()
    assert served_page().lower() == "<!doctype html>"
    served = time.perf_counter()
    sys.stdout.write(f"engine {engine}; a map after {mapped - begun:.1f} s, a page {served - mapped:.1f} s later\n")


if __name__ == "__main__":
    main()
