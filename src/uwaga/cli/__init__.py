"""The command line: one file per verb. Modules other than typer are imported when a verb runs."""

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

from uwaga.cli import bench, demo, doctor, encode, generate, lesson, memory, train, view
from uwaga.cli.terminal import echo, escape_library_output

# For each verb, options that changed their names: the old one is refused, and the message says the new one.
RENAMED_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "encode": {"--long": "--overflow", "--budget": "--tokens-per-batch"},
}


class Command(TyperCommand):
    """A verb that refuses the former names of its options, with the new name in the message."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        renamed = RENAMED_OPTIONS.get(self.name or "", {})
        for argument in args:
            if argument == "--":
                break
            if (old := argument.partition("=")[0]) in renamed:
                echo(f"uwaga {self.name}: {old} is now called {renamed[old]}", err=True)
                raise typer.Exit(2)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="uwaga",
    help="Exact Transformer attention that you can run, train and look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # plain tracebacks, for bug reports
)
for verb in (
    bench.bench, demo.demo, doctor.doctor, encode.encode, generate.generate, lesson.lesson, train.train, view.view,
):  # fmt: skip
    app.command(cls=Command)(verb)
_memory = typer.Typer(
    help="Passages of texts in a soft database, and what they say to a question.", no_args_is_help=True
)
for command in memory.COMMANDS:
    _memory.command(cls=Command)(command)
app.add_typer(_memory, name="memory")


def main() -> None:
    """The entry point of the console script `uwaga`."""
    escape_library_output()
    app()
