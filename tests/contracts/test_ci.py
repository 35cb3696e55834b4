"""The programs of .ci, that constraints.txt locks what pyproject.toml asks for, and that GitHub's files follow the project."""

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import uwaga

Program = Callable[[str], ModuleType]


@pytest.fixture
def locked(root: Path, program: Program) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return program(".ci/changed_versions.py").locked(lines)


def test_constraints_txt_locks_everything_that_is_asked_for(root: Path, locked: dict[str, str]) -> None:
    """`make lock` makes it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [project["project"]["dependencies"], *project["project"]["optional-dependencies"].values()]
    lists += [project["build-system"]["requires"]]
    tools = (root / ".ci" / "requirements.in").read_text(encoding="utf-8").splitlines()
    lists += [[line for line in tools if not line.startswith("#")]]
    for requirement in (Requirement(line) for requirements in lists for line in requirements):
        if requirement.name != "uwaga" and (requirement.marker is None or requirement.marker.evaluate()):
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement


def test_the_packages_own_bounds_stay_wide(root: Path) -> None:
    """Users have other versions; `make newest` tries the newest ones."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = [
        project["dependencies"],
        *(project["optional-dependencies"][name] for name in ("encode", "plots", "train", "view")),
    ]
    for requirement in (Requirement(line) for requirements in lists for line in requirements):
        assert {bound.operator for bound in requirement.specifier} <= {">="}, requirement


# GitHub's files follow the project: workflows run the Makefile's targets, the citation names the version.


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
            for job in pytest.importorskip("yaml").safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
            for step in job["steps"]
            if "run" in step
        )
        for path in (root / ".github" / "workflows").glob("*.yml")
    }


def nightly_targets(makefile: str) -> set[str]:
    return set(re.search(r"\.ci/nightly\.py (.*)$", makefile, re.MULTILINE)[1].split())


@pytest.mark.stress
def test_workflows_and_the_nightly_run_targets_of_the_makefile(makefile: str, workflows: dict[str, str]) -> None:
    targets = set(re.findall(r"^([a-z-]+(?: [a-z-]+)*):", makefile, re.MULTILINE))
    targets = {target for line in targets for target in line.split()}
    asked = targets_of("\n".join(workflows.values())) | nightly_targets(makefile)
    assert {"lint", "test", "nightly", "newest", "wheel-test", "site"} <= asked <= targets


def test_what_a_change_must_run_is_run_by_the_nightly(program: Program, root: Path, makefile: str) -> None:
    needed = program(".ci/needed.py").needed
    every = {name for _, names in program(".ci/needed.py").TARGETS for name in names.split()}
    assert every - nightly_targets(makefile) == {"newest"}
    assert needed(["src/uwaga/store/ask.py", "README.md"]) == ["stress", "attacks", "site", "notebooks"]
    assert needed(["tests/store/test_ask.py"]) == []


def test_the_gate_runs_lint_and_the_parts_of_make_test_and_nothing_of_the_nightly(root: Path, makefile: str) -> None:
    gate = targets_of((root / ".ci" / "run").read_text(encoding="utf-8"))
    parts = set(re.search(r"^test: (.*)$", makefile, re.MULTILINE)[1].split())
    assert gate == {"setup", "lint"} | parts
    assert gate & nightly_targets(makefile) == set()


def test_the_citation_names_this_version(root: Path) -> None:
    assert f"\nversion: {uwaga.__version__}\n" in (root / "CITATION.cff").read_text(encoding="utf-8")
