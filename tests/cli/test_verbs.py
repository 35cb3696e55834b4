import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import uwaga
from uwaga.cli import EXAMPLES, app
from uwaga.ops import engine_profile


def test_bench_prints_a_row_for_each_question() -> None:
    result = CliRunner().invoke(app, ["bench", "--tiny", "--seconds", "0"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for what in (
        "forward",
        "causal",
        "with backward",
        "ragged",
        "decode",
        "linear map",
        "onednn",
        "8 x 16 to 32 bfloat16",
    ):
        assert what in result.stdout


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_bench_saves_which_engine_is_fastest(data: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "--save", "--tiny", "--seconds", "0"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    profile = engine_profile.read(data / "engines.json")
    assert profile is not None
    for operation, orders in profile.orders.items():
        for dtype, engines in orders.items():
            assert f"{operation}" in result.stdout
            assert f"{dtype}" in result.stdout
            assert " > ".join(engines) in result.stdout
    for operation in ("attention", "linear"):
        assert profile.orders[operation].keys() == set(engine_profile.DTYPES)
    assert f"Saved in {data / 'engines.json'}. Choices follow it from the next process on" in result.stdout
    assert "UWAGA_PROFILE is 0, so that the file is ignored." in result.stdout


def test_bench_says_where_it_cannot_save(data: Path) -> None:
    data.write_text("a file, not a folder")
    result = CliRunner().invoke(app, ["bench", "--save", "--tiny", "--seconds", "0"])
    assert (result.exit_code, result.stderr) == (
        1,
        f"uwaga bench: {data / 'engines.json'}: cannot be written: File exists\n",
    )


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


@pytest.mark.parametrize("example", [each for pair in EXAMPLES.values() for each in pair])
def test_examples_are_commands_with_options_that_exist(example: str) -> None:
    name, verb, *arguments = shlex.split(example)
    assert name == "uwaga"
    command = get_command(app).commands[verb]
    assert command.make_context(verb, arguments).params.keys() == {param.name for param in command.params} - {"help"}
