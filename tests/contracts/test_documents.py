"""The documents are true: their examples run, their tables and folder map are those of the code."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
from documents import (
    DOCS,
    DOCUMENTS,
    ORIGINALS,
    PAGES,
    ROOT,
    TRANSLATED,
    blocks,
    commands,
    examples,
    name_of,
    run_examples,
    table_rows,
    uwaga_arguments,
)
from PIL import Image
from typer.main import get_command

import uwaga
from uwaga._base import env
from uwaga.cli import app

# Pages whose examples take seconds, and read models in ways that other pages do too: `pytest tests/contracts/test_documents.py` runs them.
NIGHTLY = {
    "concepts/transformers-from-parts", "guides/heads-and-figures", "guides/images", "guides/kv-cache", "guides/transformers",
    "tutorials/search-your-notes", "tutorials/see-attention",
}  # fmt: skip


@pytest.mark.gate(only=lambda document: name_of(document) not in NIGHTLY)
@pytest.mark.parametrize(
    "document",
    [pytest.param(path, marks=[pytest.mark.slow] if path.stem == "train" else []) for path in DOCUMENTS],
    ids=name_of,
)
def test_every_example_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    run_examples(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_command_has_these_options(document: Path) -> None:
    """Commands that no test can run, such as a server, are at least commands of the program."""
    group = get_command(app)
    for block in blocks(document):
        if block.language != "shell":
            continue
        for command, _ in commands(block.text):
            if arguments := uwaga_arguments(command):
                context = click.Context(group, info_name="uwaga")
                name, found, rest = group.resolve_command(context, arguments)
                found.make_parser(click.Context(found, info_name=name, parent=context)).parse_args(list(rest))


def test_the_readme_is_short_and_has_examples() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert examples(ROOT / "README.md").count(">>>") > 5
    assert len(text.split()) <= 700
    first_screen = text.splitlines()[:25]
    assert "$ pip install '.[demo]'" in first_screen
    assert any(line.startswith("![") for line in first_screen)


# Glossaries are of a language by itself: tests/viewer/test_languages.py reads them.
@pytest.mark.parametrize("document", [path for path in TRANSLATED if path.name != "glossary.md"], ids=name_of)
def test_a_translation_has_the_parts_of_its_original(document: Path) -> None:
    original = ORIGINALS[document.stem]
    assert examples(document) == examples(original)
    expected = [re.sub(r"--language \w+", f"--language {document.parent.name}", part) for part in parts(original)]
    assert parts(document) == expected
    assert f"](../{document.parent.name}/{document.name})" in original.read_text(encoding="utf-8").splitlines()[2]


def parts(document: Path) -> list[str]:
    """What each line is that is no prose: its heading's level, a row's number of cells, a picture, a command without its comment."""
    results = []
    for line in document.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"#+ ", line):
            results.append(heading[0])
        elif line.startswith("|"):
            results.append(f"row of {line.count(' | ')}")
        elif picture := re.match(r"!\[[^\]]*\]\((.*)\)", line):
            results.append(picture[1])
        elif line.startswith("$ "):
            results.append(line.partition(" # ")[0].rstrip())
    return results


@pytest.mark.parametrize("document", [*DOCUMENTS, *TRANSLATED], ids=name_of)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (document.parent / target).exists(), target


def names_for_forms() -> dict[str, object]:
    tokens, width = 6, 4
    x = torch.randn(tokens, width)
    return {name: getattr(uwaga, name) for name in uwaga.__all__} | {
        "X": x, "K": x, "V": torch.randn(tokens, 2), "q": x[:2].expand(1, 3, 2, width), "k": x.expand(1, 3, tokens, width),
        "v": x.expand(1, 3, tokens, width), "slopes": torch.rand(3), "table": torch.randn(32, 3),
        "scores": torch.randn(3, 2, tokens), "visible": torch.rand(2, tokens) > 0.5, "lengths": torch.tensor([4]),
        "ids": torch.tensor([0, 0, 1, 1, 1, 1]), "sinks": torch.zeros(3),
        "ragged": uwaga.Ragged.from_list([torch.randn(n, 3, width) for n in (2, 3)]),
    }  # fmt: skip


FORMS = [
    call
    for _, calls in table_rows(ROOT / "docs/reference/forms.md", "form")[2:]
    for call in re.findall(r"`(.*?)`", calls)
]


@pytest.mark.parametrize("call", FORMS)
def test_every_form_runs(call: str) -> None:
    names = names_for_forms()
    if call == "attention(q, K, K)" or call == "attention(q, K, V)":
        names["q"] = torch.randn(2, 4)
    result = eval(call, names)
    finite = result.values if isinstance(result, uwaga.Ragged) else result
    assert torch.isfinite(finite).all()


def test_variables_are_those_of_the_code() -> None:
    documented = table_rows(ROOT / "docs/reference/command-line.md", "variable")[2:]
    meanings = {name.strip("`"): meaning for name, meaning in documented}
    assert meanings == env.VARIABLES


def test_commands_are_those_of_the_code() -> None:
    documented = [
        command.strip("`") for command, _ in table_rows(ROOT / "docs/reference/command-line.md", "command")[2:]
    ]
    assert sorted(documented) == sorted(f"uwaga {name}" for name in get_command(app).commands)


def test_makefile_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        asked = set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", document.read_text(encoding="utf-8"), re.MULTILINE))
        assert asked <= targets, document.name


# The documents' pictures show what the commands beside them open.


WITH_PICTURES = [ROOT / "README.md", *PAGES, DOCS / "site" / "index.md"]


def shown_in(document: Path) -> list[str]:
    return re.findall(r"!\[[^\]]*\]\((?:docs/|\.\./)?pictures/([\w-]+)\.png\)", document.read_text(encoding="utf-8"))


@pytest.mark.stress
def test_each_picture_is_of_a_command_in_the_document_that_shows_it(program: Callable[[str], ModuleType]) -> None:
    """A picture of another command is made again by `make pictures`."""
    pictures = program(".ci/pictures.py")
    shown = {(document, name) for document in WITH_PICTURES for name in shown_in(document)}
    assert {name for _, name in shown} <= pictures.PICTURES.keys()
    for document, name in shown:
        command, text = pictures.PICTURES[name].command, document.read_text(encoding="utf-8")
        assert f"$ {command}\n" in text or f"`{command}`" in text, f"{document.name}: {name}.png shows {command}"
    assert {path.stem for path in pictures.FOLDER.glob("*.png")} == pictures.PICTURES.keys()
    for name, picture in pictures.PICTURES.items():
        with Image.open(pictures.FOLDER / f"{name}.png") as image:
            assert image.info.get("command") == picture.command, name
            assert image.size == (picture.width, picture.height), name
