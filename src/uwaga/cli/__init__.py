"""The command line: one file per verb. What a verb needs beyond typer, it imports when it runs."""

import typer

from uwaga.cli import bench, demo, doctor, encode, generate, lesson, train, view
from uwaga.cli.terminal import escape_library_output

app = typer.Typer(
    name="uwaga",
    help="Exact Transformer attention that you can run, train and look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # a plain traceback is what a bug report needs
)
for verb in (
    bench.bench, demo.demo, doctor.doctor, encode.encode, generate.generate, lesson.lesson, train.train, view.view,
):  # fmt: skip
    app.command()(verb)


def main() -> None:
    """What the console script `uwaga` calls."""
    escape_library_output()
    app()
