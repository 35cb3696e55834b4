"""Print what a change must run besides the gate, for the files that differ from a branch: python .ci/needed.py [BRANCH]"""

import re
import subprocess
import sys

# The targets of the Makefile for each kind of path.
TARGETS = (
    (r"native/|CMakeLists\.txt", "sanitize-python fuzz levels emulate cross-test"),
    (r"src/uwaga/(ops|maps|nn|models)/", "stress levels"),
    (r"src/uwaga/(encode|data)/", "stress corpora"),
    (r"src/uwaga/serve/", "stress attacks clients"),
    (r"src/uwaga/viewer/", "stress attacks front-types"),
    (r"src/uwaga/(store|_base|train)/", "stress attacks"),
    (r".*triton", "interpret"),
    (r"benchmarks/", "smoke"),
    (r"docs/|README\.md|notebooks/", "site notebooks"),
    (r"pyproject\.toml|constraints\.txt", "newest site notebooks"),
    (r"Makefile|\.ci/|\.github/", "workflows"),
)


def needed(paths: list[str]) -> list[str]:
    """The targets for these paths, in the order of the table, each once."""
    names = [
        name for pattern, names in TARGETS if any(re.match(pattern, path) for path in paths) for name in names.split()
    ]
    return list(dict.fromkeys(names))


def main() -> None:
    branch = sys.argv[1] if len(sys.argv) > 1 else "main"
    changed = ["git", "diff", "--name-only", f"{branch}...HEAD"], ["git", "diff", "--name-only", "HEAD"]
    paths = [path for command in changed for path in subprocess.check_output(command, text=True).splitlines()]
    if not paths:
        print(f"No file differs from {branch}.")
    elif targets := needed(paths):
        print("make", *targets)
    else:
        print("Nothing besides the gate: make lint test")


if __name__ == "__main__":
    main()
