"""The public surface is a list: a name that comes or goes is a decision, and shows up here."""

import importlib
import inspect
import pkgutil
import re
from functools import reduce
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import uwaga
from uwaga._base import renamed
from uwaga.cli import RENAMED_OPTIONS, app

for _module in pkgutil.walk_packages(uwaga.__path__, "uwaga."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)

PUBLIC = [
    "AlibiBias",
    "AttentionMap",
    "Causal",
    "Documents",
    "Edits",
    "KeyLengths",
    "Links",
    "Patch",
    "Ragged",
    "Recording",
    "RelativeBias",
    "ShapeError",
    "SoftDatabase",
    "TextEncoder",
    "Window",
    "__version__",
    "attend",
    "attention",
    "edit",
    "explain",
    "lesson",
    "linear",
    "view",
    "watch",
]


def test_the_public_names_are_these() -> None:
    assert sorted(uwaga.__all__) == PUBLIC


def test_every_public_name_is_there_and_listed() -> None:
    for name in PUBLIC:
        assert getattr(uwaga, name) is not None
        assert name in dir(uwaga)


@pytest.mark.parametrize(
    "floor", ["distributed", "integrations", "interpret", "maps", "memory", "models", "nn", "plots", "train", "viewer"]
)
def test_packages_with_names_of_their_own_need_no_import(floor: str) -> None:
    package = getattr(uwaga, floor)
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as caught:
        uwaga.atention  # noqa: B018
    assert str(caught.value) == "module 'uwaga' has no attribute 'atention'"


def test_installed_version_is_the_one_in_the_source(root: Path) -> None:
    assert metadata.version("uwaga") == uwaga.__version__
    assert re.search(rf"^## {re.escape(uwaga.__version__)}\b", (root / "CHANGELOG.md").read_text(), re.MULTILINE)


# Test modules have examples of their own.
_FORMER = [former for former in renamed.PARAMETERS if former.owner.startswith("uwaga.")]


@pytest.mark.parametrize("former", _FORMER, ids=lambda former: f"{former.owner}-{former.old}")
def test_a_former_parameter_is_refused_and_the_present_one_exists(former: renamed.RenamedParameter) -> None:
    """Every public name that `renamed.parameters` lists, wherever it is."""
    module = max((name for name in _modules() if former.owner.startswith(name + ".")), key=len)
    names = former.owner.removeprefix(module + ".").split(".")
    target = reduce(getattr, names, importlib.import_module(module))
    with pytest.raises(TypeError) as error:
        target(**{former.old: None})
    assert str(error.value) == f"{names[-1]}: {former.old} is now called {former.new}"
    assert former.old not in inspect.signature(target).parameters


@pytest.mark.parametrize(
    ("verb", "old", "new"), [(verb, *pair) for verb, names in RENAMED_OPTIONS.items() for pair in names.items()]
)
def test_a_former_option_is_refused_and_the_present_one_exists(verb: str, old: str, new: str) -> None:
    for argument in (old, f"{old}=1"):
        result = CliRunner().invoke(app, [verb, argument])
        assert (result.exit_code, result.stderr) == (2, f"uwaga {verb}: {old} is now called {new}\n")
    assert new in CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).stdout


def _modules() -> list[str]:
    return [module.name for module in pkgutil.walk_packages(uwaga.__path__, "uwaga.")]
