import re
import shlex

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import uwaga
from uwaga.cli import EXAMPLES, app


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_alone_it_says_what_there_is_and_how_to_begin() -> None:
    said = shown()
    for verb in EXAMPLES:
        assert re.search(rf"^. {verb} +[A-Z]", said, re.MULTILINE), verb
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    assert lines[lines.index("To begin with:") + 1 :] == [
        'uwaga view "The animal didn\'t cross the street because it was too tired."',
        "uwaga lesson",
        "uwaga generate --model speller attention",
        "uwaga doctor",
    ]


def test_the_version() -> None:
    assert shown("--version") == f"uwaga {uwaga.__version__}\n"


def test_every_verb_has_examples_in_its_help() -> None:
    assert EXAMPLES.keys() == get_command(app).commands.keys()
    for verb, examples in EXAMPLES.items():
        lines = [line.strip() for line in shown(verb, "--help").splitlines()]
        assert "Examples:" in lines
        for example in examples:
            assert example in lines


@pytest.mark.parametrize("example", [example for pair in EXAMPLES.values() for example in pair])
def test_examples_are_commands_with_options_that_exist(example: str) -> None:
    name, verb, *arguments = shlex.split(example)
    assert name == "uwaga"
    command = get_command(app).commands[verb]
    assert command.make_context(verb, arguments).params.keys() == {param.name for param in command.params} - {"help"}
