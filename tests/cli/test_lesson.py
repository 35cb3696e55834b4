"""`uwaga lesson`: tables in the terminal; served, it is tested in the browser."""

from pathlib import Path

from typer.testing import CliRunner

from uwaga.cli import app

SIX = (
    "1 of 6: Three roles: Q, K and V",
    "2 of 6: Scores: Q Kᵀ",
    "3 of 6: Scale: 1/√d_k",
    "4 of 6: Softmax: scores to shares",
    "5 of 6: Weigh the values",
    "6 of 6: Sum: the output of each token",
)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["lesson", *arguments], env={"COLUMNS": "150"})
    return result.exit_code, result.stdout, result.stderr


def test_plain_prints_the_six_steps_in_order_and_their_numbers() -> None:
    status, out, _ = run("--plain")
    assert status == 0
    places = [out.index(title) for title in SIX]
    assert places == sorted(places)
    assert out.count(" of 6: ") == 6
    assert "Crude attention" not in out
    row = next(line for line in out.splitlines() if "Weights A" in line)
    assert "Exponentials" in row
    assert "0.05    0.03    0.13    0.77    0.02" in out
    # 0.625 is rounded as the page rounds it.
    assert "1.56    0.88    2.75    5.31    0.13" in out


def test_all_prints_every_step_with_tables() -> None:
    status, out, _ = run("--all", "a pen .", "--heads", "4", "--query", "2", "--unscaled")
    assert status == 0
    assert "Values by their weights, for one" in " ".join(out.split())  # the title of a narrow table is wrapped
    assert "(pen)" in out
    assert "Scores, not scaled" in out
    for title in (
        "Crude attention: X Xᵀ X",
        "Masks: which keys a query sees",
        "Weights of head 4",
        "Where codes repeat",
        "Why √d_k",
    ):
        assert title in out
    assert "“a” sees nothing: the weights sum to 0 and the output is zeros." in out


def test_save_writes_one_file_and_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lesson.html"
    status, out, err = run("a pen .", "--save", str(path))
    assert (status, err) == (0, "")
    assert out.replace("\n", "").startswith(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    html = path.read_text(encoding="utf-8")
    assert "data-uwaga-saved" in html
    assert len(html) < 1_200_000


def test_a_terminal_does_not_obey_words() -> None:
    status, out, _ = run("--plain", "a\x1b[2J [red]b\u202e")
    assert status == 0
    assert "\x1b[2J" not in out
    assert "<U+001B>" in out
    assert "b<U+202E>" in out
