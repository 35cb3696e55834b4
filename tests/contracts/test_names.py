"""The public surface is a list: a name that comes or goes is a decision, and shows up here."""

import importlib
import pkgutil
import re
from importlib import metadata
from pathlib import Path

import pytest

import uwaga

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
    "Reranker",
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
    "maxsim",
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
    "package_name",
    [
        "corpora",
        "inspect",
        "integrations",
        "maps",
        "models",
        "nn",
        "plots",
        "sequence_parallel",
        "store",
        "train",
        "viewer",
    ],
)
def test_packages_with_names_of_their_own_need_no_import(package_name: str) -> None:
    package = getattr(uwaga, package_name)
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as caught:
        uwaga.atention  # noqa: B018
    assert str(caught.value) == "module 'uwaga' has no attribute 'atention'"


def test_installed_version_is_the_one_in_the_source(root: Path) -> None:
    assert metadata.version("uwaga") == uwaga.__version__
    assert re.search(rf"^## {re.escape(uwaga.__version__)}\b", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
