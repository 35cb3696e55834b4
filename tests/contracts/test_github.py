"""GitHub's files follow the project: workflows run the Makefile's targets, the citation names the version."""

import re
from pathlib import Path

import pytest

import uwaga

yaml = pytest.importorskip("yaml")


def targets_of(text: str) -> set[str]:
    """The targets of all lines `make ...` of a script or a workflow, also those of `part SECONDS make ...`."""
    return {target for line in re.findall(r"\bmake ([a-z][a-z -]*)$", text, re.MULTILINE) for target in line.split()}


@pytest.fixture
def makefile(root: Path) -> str:
    return (root / "Makefile").read_text(encoding="utf-8")


@pytest.fixture
def workflows(root: Path) -> dict[str, str]:
    """By file, the lines that its jobs run."""
    return {
        path.name: "\n".join(
            step["run"]
            for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
            for step in job["steps"]
            if "run" in step
        )
        for path in (root / ".github" / "workflows").glob("*.yml")
    }


def nightly_targets(makefile: str) -> set[str]:
    return set(re.search(r"\.ci/nightly\.py (.*)$", makefile, re.MULTILINE)[1].split())


def test_workflows_and_the_nightly_run_targets_of_the_makefile(makefile: str, workflows: dict[str, str]) -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", makefile, re.MULTILINE))
    targets = {target for line in targets for target in line.split()}
    asked = targets_of("\n".join(workflows.values())) | nightly_targets(makefile)
    assert {"lint", "test", "nightly", "newest", "wheel-test", "site"} <= asked <= targets


def test_the_gate_runs_lint_and_the_parts_of_make_test(root: Path, makefile: str) -> None:
    gate = targets_of((root / ".ci" / "run").read_text(encoding="utf-8"))
    parts = set(re.search(r"^test: (.*)$", makefile, re.MULTILINE)[1].split())
    assert gate == {"setup", "lint"} | parts


def test_nothing_is_run_both_by_the_gate_and_by_the_nightly(root: Path, makefile: str) -> None:
    gate = targets_of((root / ".ci" / "run").read_text(encoding="utf-8"))
    assert gate & nightly_targets(makefile) == set()


def test_the_citation_names_this_version(root: Path) -> None:
    assert yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"] == uwaga.__version__
