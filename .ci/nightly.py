"""python .ci/nightly.py TARGET ...: makes one target of the Makefile after another, to the end, and then prints a table.

Each target's output is in build/nightly/TARGET.txt, and its last lines are printed where it failed. The exit status is 1 where one did.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

LOGS = Path(__file__).parents[1] / "build" / "nightly"
SECONDS = 2 * 3600  # of one target: a hang must not cost the others
_LAST_LINES = 40

# Closing lines: of pytest ("3 failed, 12 passed, 1 skipped in 4.0s"), of ctest, of the C++ tests alone and of node's test runner.
_PYTEST = re.compile(r"^(?:=+ )?(\d+ \w+(?:, \d+ \w+)*) in [\d.]+s", re.MULTILINE)
_CTEST = re.compile(r"(\d+) tests failed out of (\d+)")
_NATIVE = re.compile(r"^(\d+) passed, (\d+) failed$", re.MULTILINE)
_NODE = re.compile(r"^\S+ (pass|fail) (\d+)$", re.MULTILINE)


class Outcome(NamedTuple):
    target: str
    seconds: float
    passed: int
    failed: int
    status: int


def make(target: str) -> Outcome:
    path = LOGS / f"{target}.txt"
    start = time.monotonic()
    with path.open("w") as log:
        command = ["make", "--no-print-directory", target]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and what make has started
            status = process.wait()
            log.write(f"\nstopped after {SECONDS} s\n")
    text = path.read_text(encoding="utf-8", errors="replace")
    return Outcome(target, time.monotonic() - start, *counts(text), status)


def counts(text: str) -> tuple[int, int]:
    """Tests that passed and that failed, by the closing lines of all runners."""
    passed = failed = 0
    for line in _PYTEST.findall(text):
        of = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", line)}
        passed += of.get("passed", 0)
        failed += sum(of.get(word, 0) for word in ("failed", "error", "errors"))
    for wrong, all_tests in _CTEST.findall(text):
        passed, failed = passed + int(all_tests) - int(wrong), failed + int(wrong)
    for right, wrong in _NATIVE.findall(text):
        passed, failed = passed + int(right), failed + int(wrong)
    for word, number in _NODE.findall(text):
        passed, failed = passed + int(number) * (word == "pass"), failed + int(number) * (word == "fail")
    return passed, failed


def main(targets: list[str]) -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for target in targets:
        outcomes.append(outcome := make(target))
        say = "green" if outcome.status == 0 else f"RED, status {outcome.status}: {LOGS / target}.txt ends with"
        sys.stdout.write(f"{target}: {say}\n")
        if outcome.status:
            last = (LOGS / f"{target}.txt").read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
            sys.stdout.write("".join(f"  {line}\n" for line in last))
        sys.stdout.flush()
    sys.stdout.write(f"\n{'target':<20} {'seconds':>8} {'passed':>8} {'failed':>8}\n")
    for each in outcomes:
        red = "" if each.status == 0 else "  RED"
        sys.stdout.write(f"{each.target:<20} {each.seconds:>8.0f} {each.passed:>8} {each.failed:>8}{red}\n")
    return int(any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
