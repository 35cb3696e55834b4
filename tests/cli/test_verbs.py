import pytest
from typer.testing import CliRunner

from uwaga.cli import app


def test_bench_prints_a_row_for_each_question() -> None:
    result = CliRunner().invoke(app, ["bench", "--tiny", "--seconds", "0"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for what in ("forward", "causal", "with backward", "ragged", "decode"):
        assert what in result.stdout


@pytest.mark.slow
def test_demo_shows_the_steps_and_the_documents() -> None:
    result = CliRunner().invoke(app, ["demo", "--seconds", "0"], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for part in ("this is a pen", "X Xᵀ X", "weights", "of the work is padding", "uwaga.explain"):
        assert part in result.stdout


def test_no_verb_shows_the_verbs() -> None:
    result = CliRunner().invoke(app, [])
    for verb in ("bench", "demo", "doctor"):
        assert verb in result.output
