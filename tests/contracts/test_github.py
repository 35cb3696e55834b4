"""GitHub's files follow the project: workflows run the Makefile's targets, the citation names the version."""

import re
from pathlib import Path

import pytest

import uwaga

yaml = pytest.importorskip("yaml")


def test_workflows_run_targets_of_the_makefile(root: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    asked = set()
    for workflow in (root / ".github" / "workflows").glob("*.yml"):
        for job in yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values():
            lines = [step["run"] for step in job["steps"] if "run" in step]
            lines += [f"make {target}" for target in job.get("strategy", {}).get("matrix", {}).get("target", [])]
            for line in lines:
                asked |= (
                    set(re.findall(r"[a-z-]+", line.removeprefix("make "))) if re.match(r"make [a-z]", line) else set()
                )
    assert {"lint", "test", "wheel-test", "site", "notebooks", "fuzz", "levels", "emulate"} <= asked <= targets


def test_everything_that_ci_runs_has_a_workflow(root: Path) -> None:
    """The targets of .ci/run, one by one."""
    run = set(
        re.findall(r"[a-z-]+", " ".join(re.findall(r"^ *make (.*)$", (root / ".ci" / "run").read_text(), re.MULTILINE)))
    )
    workflows = "\n".join(path.read_text(encoding="utf-8") for path in (root / ".github" / "workflows").glob("*.yml"))
    assert run
    assert [target for target in sorted(run) if not re.search(rf"\b{target}\b", workflows)] == []


def test_the_citation_names_this_version(root: Path) -> None:
    assert yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"] == uwaga.__version__
