"""Turns what `uwaga.view` is given into what is shown: maps, recordings, texts, pictures, questions, and files of them."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from uwaga._base.arguments import check
from uwaga._base.errors import DataError
from uwaga._base.languages import tr
from uwaga.inspect import images
from uwaga.inspect.recordings import files
from uwaga.inspect.recordings.recording import Recording
from uwaga.inspect.run_text import RecordError, Report, default_model, record_text, text_of_file
from uwaga.models.model import Model
from uwaga.models.opening import open as open_model
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import AnyModel, Maps, MapsLike, Question, Text, View
from uwaga.viewer.texts import RunRequest, TextRunner, first_line

if TYPE_CHECKING:
    from PIL.Image import Image

    Shown = MapsLike | Maps | str | Text | Question | os.PathLike[str] | Image

Progress = Callable[[], AbstractContextManager[Report]]  # shows how far a reading is, as `run_text` reports it


def _no_progress() -> AbstractContextManager[Report]:
    return nullcontext(lambda fraction: None)


def open_view(
    shown: "Shown",
    beside: "Shown | None" = None,
    *,
    model: AnyModel | None = None,
    title: str | None = None,
    progress: Progress = _no_progress,
) -> ViewService:
    """Return the service behind a page; arguments and errors as of `uwaga.view`."""
    if isinstance(shown, Question) or isinstance(beside, Question):
        if beside is not None or not isinstance(shown, Question):
            raise ValueError("view: a question to a database is shown alone: leave out the second side")
        if not (model is None or isinstance(model, str)):
            raise ValueError(f"view: model of a question must be the name of a model, not {type(model).__name__}")
        asked = replace(shown, model=model) if shown.model is None else shown
        return ViewService(View.of_question(asked).titled(title))
    sides = [_with_model(side, model) for side in (shown, beside) if side is not None]
    texts = [side for side in sides if isinstance(side, Text)]
    if len(texts) == len(sides):
        runner, typed = _runner(*texts)
        with progress() as report:
            first = runner.run(typed, report, max_tokens=None)
        return ViewService(first.titled(title), runner=runner, typed=typed)
    maps = [_recorded(side, progress) if isinstance(side, Text) else side for side in sides]
    return ViewService(View.of(*maps).titled(title))


def of_file(path: Path, model: AnyModel | None = None) -> Maps | Text:
    """Return a saved recording, an image that the model reads, or a text. Raises RecordError."""
    if images.is_image(path):
        return of_picture(path, model)
    try:
        return Maps(Recording.load(path)) if files.is_recording(path) else Text(text_of_file(path))
    except DataError as error:
        raise RecordError(str(error)) from error


def of_picture(
    picture: Any,
    model: AnyModel | None,
    *,
    dtype: str = "float32",
    resolution: int | None = None,
    progress: Progress = _no_progress,
) -> Maps:
    """Return the maps of a picture, of PIL or a path, that the model of a directory reads.

    Args:
        model: the directory, or a model id of the hub.
        dtype, resolution: as of `uwaga.inspect.images`.

    Raises:
        ValueError: no model that reads pictures (CheckpointError), or no picture (RecordError).
    """
    if not isinstance(model, str | os.PathLike):
        raise ValueError("view: a picture needs model, the directory of one that reads pictures")
    if isinstance(picture, os.PathLike):
        title, seen = Path(picture).name, images.read_image(Path(picture))  # before the model is loaded
    else:
        title, seen = tr("Picture"), images.in_rgb(lambda: picture, "picture")
    reader = images.load_vision(os.fspath(model), dtype)
    with progress() as report:
        read = images.record_image(reader, seen, resolution=resolution, report=report)
    return Maps(read.recording, title=title, picture=read.pixels, grid=read.grid, model=reader.title)


def _with_model(shown: Any, model: AnyModel | None) -> Maps | Text:
    """Return maps or a text, with `model` if they name none."""
    if isinstance(shown, str):
        shown = Text(shown)
    elif isinstance(shown, os.PathLike):
        shown = of_file(Path(shown), model)
    elif hasattr(shown, "convert"):
        shown = of_picture(shown, model)
    elif not isinstance(shown, Maps | Text):
        shown = Maps(shown)
    result: Maps | Text = replace(shown, model=model) if shown.model is None else shown
    rule = f"the name of a model, a directory or a model itself, not {type(result.model).__name__}"
    check(isinstance(result.model, str | os.PathLike | nn.Module | None), f"view: model must be {rule}")
    return result


def _runner(first: Text, beside: Text | None = None) -> tuple[TextRunner, RunRequest]:
    """Return what reads one or two texts, and then those that are typed into the page."""
    typed = RunRequest(first.text, None, first.target)
    reader = replace(first, text="", target=None, model=_reader(first.model))
    if beside is None:
        return TextRunner(reader), typed
    has_one_target = beside.target in (None, first.target)
    check(has_one_target, "view: target of the second text must be that of the first: a page has one for both")
    is_alike = replace(beside, text="", target=None) == replace(first, text="", target=None)
    if beside.text != first.text:
        typed = typed._replace(second=beside.text)
        if is_alike:
            return TextRunner(reader), typed
    again = reader.model if beside.model is first.model or beside.model == first.model else _reader(beside.model)
    return TextRunner(reader, replace(beside, text="", target=None, model=again)), typed


def _recorded(text: Text, progress: Progress) -> Maps:
    """Return the maps of a text that is compared with maps."""
    reader = _reader(text.model)
    with progress() as report:
        recording = record_text(
            reader,
            text.text,
            target=text.target,
            new_tokens=text.new_tokens,
            truncate=text.truncate,
            layers=text.layers,
            report=report,
        )
    return Maps(recording, title=first_line(text.text))


def _reader(model: AnyModel | None) -> Model:
    """Return the model that reads a text, with its tokenizer."""
    if model is None or isinstance(model, str | os.PathLike):
        return open_model(default_model() if model is None else model, dtype="float32")
    if isinstance(model, Model) and getattr(model, "tokenizer", None) is not None:
        return model
    try:
        return open_model(model)
    except ValueError as error:
        raise type(error)(f"view: model: {error}") from error
