"""Output of the commands. Control characters in text from files, models and libraries are escaped.

Tables and progress bars are rich's, made of numbers and of text that went through `escape_controls` as well.
"""

import errno
import io
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from uwaga._base.install import missing
from uwaga._base.languages import LANGUAGES, decimal, preferred, tr, using
from uwaga._base.terminal import escape_controls

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from uwaga.ops.engine_choice import Choice
    from uwaga.viewer.service import ViewService


# Options of several commands.
Storage = Literal["float32", "bfloat16"]
Dtype = Annotated[
    Storage, typer.Option(help="Data type of the weights and the computation; vectors are always float32.")
]
TextField = Annotated[str | None, typer.Option(help="Field that holds the text.", show_default="text")]
Port = Annotated[int, typer.Option(help="TCP port to serve on; 0: any free one.", min=0, max=65535)]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the URL, but open no browser.")]


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text for people, without control characters. The command ends if nobody reads the output any more."""
    with writing_output():
        typer.echo(escape_controls(text), err=err, nl=nl)


def echo_json(text: str) -> None:
    """Print a line of JSON in ASCII, for programs; JSON escapes all control characters but DEL."""
    with writing_output():
        typer.echo(text.replace("\x7f", "\\u007f"))


@contextmanager
def writing_output() -> Iterator[None]:
    """End the command without a message if the reader of a pipe has gone, as `head` does. The exit code is SIGPIPE's.
    Commands take an OSError for one of their files."""
    try:
        yield
    except BrokenPipeError:
        drop_output()
        raise typer.Exit(141) from None
    except OSError as error:
        end_without_output(error)


def end_without_output(error: OSError) -> NoReturn:
    """End the program, whose standard output takes no more: a full disk is one reason."""
    drop_output()
    typer.echo(f"uwaga: standard output cannot be written: {error.strerror or error}", err=True)
    raise SystemExit(1) from None


def is_of_output(error: OSError) -> bool:
    """Return whether an error that no command expects can be one of standard output: it names no file."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def drop_output() -> None:
    """Discard what is left in the buffer, which is flushed at the end."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())


def say_engine(command: str, model: str, choice: "Choice") -> None:
    """Say on standard error how transformers runs a model that is not of a family of ours."""
    if choice.engine != "uwaga":
        whys = "".join(f"; not {name}: {why}" for name, why in choice.refused.items())
        echo(f"uwaga {command}: {model} runs by {choice.engine}{whys}", err=True)


def fail(verb: str, message: str) -> NoReturn:
    """End a command with a message and exit code 1."""
    echo(f"uwaga {verb}: {message}", err=True)
    raise typer.Exit(1)


@contextmanager
def ending(command: str, *errors: type[Exception], stopped: str = "interrupted") -> Iterator[None]:
    """End a command with the message of such an error; with exit code 130 and the word `stopped` at Ctrl-C."""
    try:
        yield
    except errors as error:
        fail(command, error_text(error))
    except KeyboardInterrupt:
        echo(f"\nuwaga {command}: {stopped}", err=True)
        raise typer.Exit(130) from None


def check_parents(command: str, outputs: Mapping[str, Path | None]) -> None:
    """End a command if the directory of a file that it would write is not there. outputs: by their options."""
    for option, path in outputs.items():
        if path is not None and not path.parent.is_dir():
            fail(command, f"{option} {path}: the directory {path.parent} does not exist")


def say_saved(path: Path) -> None:
    """Say how large a page is that was written, unless it went into a device or a pipe, perhaps that of this message."""
    if path.is_file():
        size = decimal(path.stat().st_size / 1e6, 1)
        echo(tr("{path}: {size} MB, self-contained HTML", path=path, size=size))


def serve_page(
    command: str,
    service: "ViewService",
    *,
    port: int,
    language: str | None,
    opens: bool,
    fragment: str,
) -> None:
    """Serve a page until Ctrl-C or SIGTERM. opens: whether in a browser."""
    from uwaga.viewer.api import serve

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serve(service, port=port, name=command, fragment=fragment, language=language) as served:
            # On a line of its own and unbroken, so that a terminal makes a link of it.
            echo(served.address)
            if opens and served.browse():
                echo(tr("Opening in the browser. Ctrl-C ends it."))
            else:
                echo(tr("Open this URL in a browser. Ctrl-C ends it."))
            served.wait()
    except KeyboardInterrupt:
        pass  # the usual way to end a server
    finally:
        signal.signal(signal.SIGTERM, before)
    echo(f"\nuwaga {command}: " + tr("closed"), err=True)


def error_text(error: Exception) -> str:
    """Return the message of an error.

    For an error of the system it is the file and the reason, without a number; for a missing PyTorch, the command that installs PyTorch.
    """
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return missing(error, "")
    return str(error)


def in_option_names(message: str, names: Iterable[str]) -> str:
    """Return a message of the Python interface about these parameters, in the words of the command line.

    >>> in_option_names("temperature has no effect without do_sample=True", ("temperature", "do_sample"))
    '--temperature has no effect without --do-sample'
    """
    message = re.sub(r", or None[^,]*", "", message)
    for name in names:
        option = f"--{name.replace('_', '-')}"
        message = re.sub(rf"\bthe option {name}\b|\b{name}=True\b", option, message)
        message = re.sub(rf"\b{name}=", f"{option} ", message)
        # A word such as temperature or prompt is a parameter's name at the beginning alone.
        anywhere = rf"(?<![-\w]){name}\b" if "_" in name else rf"\A{name}(?= (?:must|has|needs)\b)"
        message = re.sub(anywhere, option, message)
    return message


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error if that is a terminal; it disappears at the end. The function that this
    gives takes the completed share, from 0 to 1."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, columns = Console(stderr=True), (TextColumn(title), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=1.0)
        yield lambda done: progress.update(task, completed=done)


def new_table(left: Iterable["str | Text"], right: Iterable["str | Text"] = (), **options: Any) -> "Table":
    """Return a table of rich with a rule under its headings. right: columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, **options)
    for heading in left:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def escape_library_output() -> None:
    """Escape control characters in warnings and uncaught errors of this process, which may quote files."""

    def show_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        echo("".join(traceback.format_exception(kind, error, trace)), err=True, nl=False)

    def show_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: Any = None,
        line: str | None = None,
    ) -> None:
        echo(warnings.formatwarning(message, category, filename, lineno, line), err=True, nl=False)

    sys.excepthook = show_error
    warnings.showwarning = show_warning


def escape_unencodable() -> None:
    """Print what the encoding of standard output lacks as \\uXXXX. On Windows a pipe or a file has the code page of the language, which
    has no sign for most tokens; a console has all."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def in_language(command: str, language: str | None) -> Iterator[None]:
    """Open a context in which messages are in this language, or in the language of the first of LC_ALL, LC_MESSAGES and LANG for None.

    Ends the program if uwaga has no messages in the language of the option."""
    if language is not None and language not in LANGUAGES:
        fail(command, f"--language must be one of {', '.join(LANGUAGES)}, not {language!r}")
    preference = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := os.environ.get(name))), "")
    with using(language or preferred([preference])):
        yield
