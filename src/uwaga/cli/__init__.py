"""The command line: one file per verb. Modules other than typer are imported when a verb runs."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from uwaga._base import env
from uwaga._base.install import missing
from uwaga.cli import doctor, encode, generate, lesson, serve, store, train, view
from uwaga.cli.terminal import echo, end_without_output, escape_library_output, escape_unencodable, is_of_output
from uwaga.data.documents import SUFFIXES

# At the end of each verb's help.
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "doctor": ("uwaga doctor", "uwaga doctor --json"),
    "encode": (
        "uwaga encode docs.jsonl -o vectors.parquet --model minilm",
        "uwaga encode docs.jsonl -o first.parquet --model minilm --limit 1000 --overflow mean --skip-invalid",
        "uwaga encode docs.jsonl -o vectors.parquet --processes 8",
    ),
    "generate": (
        "uwaga generate --model speller attention",
        'uwaga generate "Once more unto" --max-new-tokens 200 --do-sample --temperature 0.8 --seed 1',
    ),
    "lesson": ("uwaga lesson", 'uwaga lesson "the cat sat on the mat" --plain'),
    "serve": ("uwaga serve minilm", "uwaga serve models/e5 --host 0.0.0.0 --keys keys.txt"),
    "store": ("uwaga store add notes.db docs", 'uwaga store ask notes.db "what decides the order of the rows?"'),
    "train": ("uwaga train config.toml", "uwaga train config.toml optimizer.lr=1e-3 run.output_dir=runs/second"),
    "view": (
        """uwaga view "The animal didn't cross the street because it was too tired.\"""",
        "uwaga view --model copyist book.txt --save book.html",
    ),
}
_FIRST = ("view", "lesson", "generate", "doctor")  # to begin with


def _examples(verb: str) -> str:
    """Return the examples of a command, with empty lines between them, since the help joins neighbouring lines."""
    return "Examples:\n\n" + "\n\n".join(f"  {line}" for line in EXAMPLES[verb])


class _WithRay(TyperCommand):
    """Of `uwaga encode`, where --ray may have no value, which Typer has no way to say: before another option or a file of documents it has none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for index, argument in reversed(list(enumerate(args))):
            if argument == "--ray" and (
                index + 1 == len(args) or args[index + 1].startswith("-") or args[index + 1].endswith(SUFFIXES)
            ):
                args.insert(index + 1, encode.HERE)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="uwaga",
    help="Exact Transformer attention that you can run, train and look inside.",
    epilog="To begin with:\n\n" + "\n\n".join(f"  {EXAMPLES[verb][0]}" for verb in _FIRST),
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,  # plain tracebacks, for bug reports
)
for verb in (
    doctor.doctor, encode.encode, generate.generate, lesson.lesson, serve.serve, train.train, view.view,
):  # fmt: skip
    app.command(epilog=_examples(verb.__name__), cls=_WithRay if verb is encode.encode else None)(verb)
_store = typer.Typer(
    help="Store passages of texts in a database, and ask the database questions.",
    epilog=_examples("store"),
    no_args_is_help=True,
)
for command in store.COMMANDS:
    _store.command()(command)
app.add_typer(_store, name="store")


@app.callback()
def _start(
    ctx: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version, and end.")] = False
) -> None:
    if version:
        import uwaga

        echo(f"uwaga {uwaga.__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        if shown := ctx.get_help():  # typer prints it itself if rich does the layout
            echo(shown)
        raise typer.Exit


def main() -> None:
    """Run the console script `uwaga`."""
    env.wait_asleep()
    escape_library_output()
    escape_unencodable()
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        echo(f"uwaga: {missing(error, '')}", err=True)
        raise SystemExit(1) from None
    except OSError as error:
        if not is_of_output(error):
            raise
        end_without_output(error)
