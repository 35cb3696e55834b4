"""Commands of `uwaga` in this process: what they say."""

from typing import Any

from typer.testing import CliRunner

from uwaga.cli import app


def run(verb: str, *arguments: object, **given: Any) -> str:
    """What a command that succeeds says."""
    result = CliRunner().invoke(app, [verb, *map(str, arguments)], **given)
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(verb: str, *arguments: object, **given: Any) -> str:
    """What a command that fails says, except for the bar."""
    result = CliRunner().invoke(app, [verb, *map(str, arguments)], **given)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    return result.stderr.partition(f"uwaga {verb}: ")[2].removesuffix("\n")
