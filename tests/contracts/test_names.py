"""Public names: each stands once, as an import in its package's `__init__.py`, where a name that comes or goes is a decision. And the
command line's verbs and options."""

import ast
import importlib
import os
import pkgutil
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import uwaga
from uwaga.cli import app

sys.path.insert(0, str(Path(__file__).parent))  # for `import structure`: the tests are no package

import structure

ROOT = Path(__file__).parents[2]
LAZY = {name: path for name, path in structure.modules().items() if structure.is_lazy(path)}


@pytest.fixture(scope="module", autouse=True)
def _everything_is_imported() -> None:
    """A module that was imported is an attribute of its package; it must not become a public name."""
    for module in pkgutil.walk_packages(uwaga.__path__, "uwaga."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def public_imports(path: Path) -> dict[str, str]:
    """The module of each name under `if TYPE_CHECKING:`, one to an import, as `from MODULE import NAME as NAME`."""
    (block,) = (node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    names = [(node.module, *(alias.name for alias in node.names)) for node in block.body]
    assert [ast.unparse(node) for node in block.body] == [f"from {at} import {name} as {name}" for at, name in names]
    homes = {name: at for at, name in names}
    assert len(homes) == len(names)
    return homes


@pytest.mark.parametrize("package", LAZY)
def test_every_public_name_stands_once_and_is_there(package: str) -> None:
    homes, module = public_imports(LAZY[package]), importlib.import_module(package)
    also = {"uwaga": ["__version__"], "uwaga.integrations": ["sentence_transformers"]}.get(package, [])
    assert dir(module) == sorted([*homes, *also])
    assert module.__all__ == sorted([*(name for name, at in homes.items() if at != package), *also])
    for name in dir(module):
        home = importlib.import_module(homes.get(name, package))
        assert getattr(module, name) is getattr(home, name)
    star: dict[str, object] = {}
    exec(f"from {package} import *", star)
    assert star.keys() - {"__builtins__"} == set(module.__all__)


@pytest.mark.parametrize("package", LAZY)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError) as caught:
        importlib.import_module(package).atention  # noqa: B018
    assert str(caught.value).endswith("has no attribute 'atention'")


def test_installed_version_is_the_one_in_the_source(root: Path) -> None:
    assert metadata.version("uwaga") == uwaga.__version__
    assert re.search(rf"^## {re.escape(uwaga.__version__)}\b", (root / "CHANGELOG.md").read_text(), re.MULTILINE)


def options(verb: Any, name: str) -> list[str]:
    """A line for a command, with its options, or for each of its own commands."""
    if commands := getattr(verb, "commands", None):
        return [line for key, command in sorted(commands.items()) for line in options(command, f"{name} {key}")]
    return [" ".join((name, *sorted(option for parameter in verb.params for option in parameter.opts)))]


def test_verbs_and_options_are_those_of_the_file() -> None:
    """One that comes or goes is a decision; `make error-messages` writes the file."""
    file, lines = Path(__file__).with_name("command_line.txt"), options(get_command(app), "uwaga")
    if "UWAGA_RECORD_MESSAGES" in os.environ:
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert file.read_text(encoding="utf-8").splitlines() == lines
