"""The one way in which the commands write to a terminal: what comes of files, models and libraries cannot control it.

Tables and bars are rich's, made of numbers and of text that went through `escaped` as well.
"""

import sys
import traceback
import warnings
from types import TracebackType
from typing import NoReturn, TextIO

import typer

from uwaga._base.terminal import escape_controls


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Text for people, without control characters, on standard output or standard error."""
    typer.echo(escape_controls(text), err=err, nl=nl)


def echo_json(text: str) -> None:
    """A line of JSON in ASCII, for programs. JSON escapes all control characters but DEL."""
    typer.echo(text.replace("\x7f", "\\u007f"))


def fail(verb: str, message: str) -> NoReturn:
    """End a command with a message and exit code 1."""
    echo(f"uwaga {verb}: {message}", err=True)
    raise typer.Exit(1)


def escape_library_output() -> None:
    """Warnings and uncaught errors quote what they are about; for the process of the command."""

    def show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        echo("".join(traceback.format_exception(kind, error, trace)), err=True, nl=False)

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)

    sys.excepthook = show_error
    warnings.showwarning = show_warning
