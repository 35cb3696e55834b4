"""The documents' pictures show what the commands beside them open."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docs" / "site" / "index.md"]
BY_A_TEST = {"copyist"}  # 100,000 tokens that no file of the project has; see the Makefile


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / ".ci" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module
    spec.loader.exec_module(module)
    return module


def shown_in(document: Path) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\((?:docs/)?pictures/([\w-]+)\.png\)", document.read_text(encoding="utf-8"))


def test_each_is_of_a_command_in_the_document_that_shows_it(pictures: ModuleType) -> None:
    shown = {(document, name) for document in DOCUMENTS for name in shown_in(document)}
    assert {name for _, name in shown} <= pictures.PICTURES.keys() | BY_A_TEST
    assert len(shown) > 8
    for document, name in shown:
        if name not in BY_A_TEST:
            command, text = pictures.PICTURES[name].command, document.read_text(encoding="utf-8")
            assert f"    {command}\n" in text or f"`{command}`" in text, f"{document.name}: {name}.png shows {command}"


def test_each_was_made_by_the_command_that_the_documents_have(pictures: ModuleType) -> None:
    """A picture of another command is made again by `make pictures`."""
    assert {path.stem for path in pictures.FOLDER.glob("*.png")} == pictures.PICTURES.keys() | BY_A_TEST
    for name, picture in pictures.PICTURES.items():
        with Image.open(pictures.FOLDER / f"{name}.png") as image:
            assert image.info.get("command") == picture.command, name
            assert image.size == (picture.width, picture.height), name


def test_make_run_shows_the_text_of_the_readme(pictures: ModuleType) -> None:
    text = re.search(r"^TEXT \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert text is not None
    assert pictures.words_of(pictures.TIRED) == [text[1]]
    assert f"    {pictures.TIRED}\n" in (ROOT / "README.md").read_text(encoding="utf-8")
