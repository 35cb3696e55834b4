"""uwaga.view: attention in a browser, in a notebook, or in a file."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeGuard

from uwaga._base.languages import LANGUAGES, tr
from uwaga.inspect import pictures
from uwaga.inspect.patches import PatchGrid
from uwaga.inspect.recordings.recording import Recording
from uwaga.inspect.run_text import RecordError, default_model
from uwaga.models.opening import open as open_model
from uwaga.viewer.page.bundle import bundle
from uwaga.viewer.page.snapshot import SECONDS, Exact, save_snapshot
from uwaga.viewer.service import ViewService
from uwaga.viewer.text_runner import RunRequest, TextRunner
from uwaga.viewer.view_model import MapsLike, ScoreSource, Tokens, ViewModel

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import nn

    from uwaga.models.model import Model
    from uwaga.viewer.notebook import Widget
    from uwaga.viewer.server.server import Server


class View:
    """A view that is served to a browser on this machine; as a context manager it closes at the end of the block.

    Attributes:
        service: answers the requests of the page.
    """

    def __init__(self, service: ViewService, server: "Server") -> None:
        self.service, self._server = service, server

    @property
    def address(self) -> str:
        """The page's URL with a one-time code, which gives access to the first browser that opens it. Once the code is used,
        this is a URL with a new code, for another browser; the first browser keeps its access."""
        return self._server.address

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        exact: Sequence[Exact] = (),
        seconds: float = SECONDS,
        progress: Callable[[float], None] | None = None,
    ) -> str:
        """Write the view as one HTML file that needs no server and no network.

        The file holds the statistics of every head, every map pooled into cells, as small as 20 MB allow, and the exact weights of the heads in
        `exact`, however long that takes.

        Args:
            path: the file; it is written atomically.
            exact: heads whose exact weights are stored, as (kind, layer, head), such as ("encoder", 3, 5); or blocks of a head,
                with ranges of queries and of keys, such as ("encoder", 3, 5, (0, 512), (0, 512)).
            seconds: approximate time for what the page can do without: predictions, the largest weights, the variants that merge tokens into
                words or hide special tokens, and exact cells of maps that are so large that they were sampled first.
            progress: called with the completed fraction, from 0 to 1.

        Returns:
            What the limits of time and size left out, which the page says too; "" where nothing was.

        Raises:
            ValueError: heads or tokens that do not exist, or more exact weights than a page may hold.
            OSError: the file cannot be written.
        """
        return save_snapshot(self.service, path, exact=exact, seconds=seconds, progress=progress)

    def browse(self) -> bool:
        """Open the page in a browser; False where there is no graphical browser."""
        return self._server.browse()

    def wait(self) -> None:
        """Block until Ctrl-C, SIGTERM or `close`, then close the view."""
        self._server.wait()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        self._server.close()

    def __enter__(self) -> "View":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"View({self.address}{', closed' if self._server.closed else ''})"


def view(
    maps: "MapsLike | str | os.PathLike[str] | Image",
    *,
    picture: object = None,
    grid: PatchGrid | Mapping[str, PatchGrid] | None = None,
    tokens: Tokens | None = None,
    title: str | None = None,
    model: "str | os.PathLike[str] | nn.Module" = "",
    tokenizer: object = None,
    target: str | None = None,
    row: int = 0,
    second: MapsLike | str | None = None,
    second_tokens: Tokens | None = None,
    second_title: str | None = None,
    second_model: "str | os.PathLike[str] | nn.Module | None" = None,
    second_tokenizer: object = None,
    second_row: int = 0,
    port: int = 0,
    browser: bool | None = None,
    block: bool | None = None,
    language: str | None = None,
) -> "View | Widget":
    """Show attention: every layer and head as an overview, each map down to its exact weights, the text, and the statistics.

        with uwaga.watch(model, tokenizer=tokenizer) as recording:
            model(ids)
        uwaga.view(recording)

        uwaga.view("The animal didn't cross the street because it was too tired.", model="minilm")
        uwaga.view("Four score and seven years ago", model=model, tokenizer=tokenizer)      # of transformers, or of uwaga.models

    A text is read by a model, whose attention and predictions are shown; further texts can be typed into the page, and heads switched
    off. In a notebook (Jupyter, VS Code, Colab, marimo) the view is a widget. Elsewhere it is served to a browser on this machine
    (loopback only), and its URL is printed.

    Args:
        maps: a text; a picture of PIL, or the path of one; a recording; a map; several maps by (kind, layer), by layer, or in the order of
            their layers. Each is (R, H, Q, K), (H, Q, K), (Q, K) or ragged: R rows of a batch, H heads, Q queries, K keys.
        picture: for a recording or maps, what the model saw, as `uwaga.plots.patch_attention` takes it: each patch's weights are shown over it.
        grid: where the patches are among the tokens, as `uwaga.inspect.patch_grid` gives it for an encoder, or by "encoder" and "decoder", whose
            grid `uwaga.inspect.image_grids` gives; None: as the tokens of the recording are named.
        tokens: a string per token, which replace those of the recording, not for texts; a dict with the keys "encoder" and "decoder" for maps
            of both stacks.
        title: the title of the page; None: the beginning of the text.
        model: the name of the model; for a picture the directory of one that reads pictures; for a text the model that reads it: "minilm" or another bundled one (empty: minilm
            where it is installed, else copyist), a directory, or a model id of the Hugging Face Hub: of a family of `uwaga.models`, or of
            whatever transformers loads from safetensors; or a model itself, of `uwaga.models` or of transformers, in evaluation mode. Beside
            a recording a model itself says why its heads look there, if the recording has values (`inspect.score_attribution`).
        tokenizer: for a model itself, one of transformers or tokenizers; None: that of the directory that the model was read from.
        target: for a text, what the decoder of an encoder-decoder reads; None: it generates at most 40 tokens.
        row: the row of a batch that is shown.
        second, second_tokens, second_title, second_model, second_tokenizer, second_row: the same for a second text or model, which is shown
            beside the first and as their difference. A text with a second model alone is read by both.
        port: the TCP port to serve on; 0: any free one.
        browser: whether to open a browser; None: where there is a graphical one.
        block: whether to wait for Ctrl-C or SIGTERM before returning; None: in a program, but not at Python's prompt.
        language: of the page: "en", "pl", "pt", "ja" or "zh"; None: what the browser prefers, in a notebook English.

    Returns:
        In a notebook the widget; elsewhere a View, which is already closed if this call waited for Ctrl-C.

    Raises:
        ValueError: an unknown language; no maps; maps of different texts; a row out of range; a number of tokens that differs from the maps';
            a text without tokens, or with more than the model takes; a model that cannot be read (CheckpointError) or watched, reads no
            text, is in training mode, or has no tokenizer; a tokenizer with more ids than the model.
        ImportError: the extra `uwaga[view]` is not installed.
        OSError: the port is not available.
    """
    check_language("view", language)
    for argument, value in (("model", model), ("second_model", second_model)):
        if not (value is None or isinstance(value, str | os.PathLike) or _is_module(value)):
            rule = "the name of a model, a directory or a model itself"
            raise ValueError(f"view: {argument} must be {rule}, not {type(value).__name__}")
    for argument, given, of in (
        ("tokenizer", tokenizer, model),
        ("second_tokenizer", second_tokenizer, second_model),
    ):
        if given is not None and not (isinstance(maps, str) and _is_module(of)):
            name = argument.replace("tokenizer", "model")
            raise ValueError(
                f"view: {argument} goes with a text and {name}=, a model itself: a named model has its own"
            )
    if grid is not None and picture is None:
        raise ValueError("view: grid says where the patches of picture are: give picture too")
    if isinstance(maps, os.PathLike) or hasattr(maps, "convert"):
        beside = {
            "picture": picture, "tokens": tokens, "target": target, "row": row or None, "second": second, "second_model": second_model,
            "second_tokens": second_tokens, "second_title": second_title, "second_row": second_row or None,
        }  # fmt: skip
        for argument, excess in beside.items():
            if excess is not None:
                raise ValueError(f"view: {argument} does not go with a picture to read")
        if not isinstance(model, str | os.PathLike) or not os.fspath(model):
            raise ValueError("view: a picture needs model, the directory of one that reads pictures")
        service = ViewService(_picture_view(maps, os.fspath(model), title))
    elif isinstance(maps, str):
        if picture is not None:
            raise ValueError("view: picture goes with a recording, and a text is given")
        for wrong, argument in ((tokens, "tokens"), (second_tokens, "second_tokens")):
            if wrong is not None:
                raise ValueError(f"view: {argument} are those of maps, and a text is given")
        for wrong_row, of_text in ((row, "the text"), (second_row, "the second text")):
            if wrong_row:
                raise ValueError(f"view: row {wrong_row} is out of range: {of_text} is one row")
        if second is not None and not isinstance(second, str):
            raise ValueError("view: second is maps, and the first is a text: give two texts, or maps for both")
        reader = _reader("", model or default_model(), tokenizer)
        again = None if second_model is None else _reader("second_", second_model, second_tokenizer)
        service = _text_service(RunRequest(maps, second, target), reader, again, title, second_title)
    else:
        if target is not None:
            raise ValueError("view: target is read with a text, and maps are given")
        if isinstance(second, str):
            raise ValueError("view: second is a text, and maps is none: give two texts, or maps for both")
        model_name, source = _model_of_maps("model", model, maps, row)
        second_name, second_source = _model_of_maps("second_model", second_model, second, second_row)
        view_model = ViewModel.create(
            maps,
            tokens=tokens,
            title=title,
            model=model_name or "",
            row=row,
            second=second,
            second_tokens=second_tokens,
            second_title=second_title,
            second_model=second_name,
            second_row=second_row,
        )
        sources = source, second_source
        sides = (replace(side, scores=each) for side, each in zip(view_model.sides, sources, strict=False))
        view_model = replace(view_model, sides=tuple(sides))
        if picture is not None:
            view_model = view_model.with_picture(picture, grid)
        service = ViewService(view_model)
    return display(service, port=port, browser=browser, block=block, language=language)


def _is_module(value: object) -> TypeGuard["nn.Module"]:
    from torch import nn

    return isinstance(value, nn.Module)


def _model_of_maps(argument: str, model: object, maps: object, row: int) -> tuple[str | None, ScoreSource | None]:
    """The name of the model of maps, and by what their scores are split. Raises ValueError: a model itself that has no recording."""
    if isinstance(maps, Recording) and _is_module(model):
        return None, _source(model, maps, row)
    if model is None or isinstance(model, str | os.PathLike):
        return None if model is None else os.fspath(model), None
    raise ValueError(f"view: {argument} is a model, which reads a text; maps are given, with the name of a model")


def _source(model: "nn.Module", recording: Recording, row: int) -> ScoreSource:
    """The recording itself, with the values that it has: what the model had read besides its ids is not known."""

    def recorded(_: object) -> Recording:
        if not recording.values:
            raise RecordError("the recording has no values: record it with uwaga.watch(model, values=True)")
        return recording

    return ScoreSource(model, recorded, row)


def _reader(prefix: str, model: "str | os.PathLike[str] | nn.Module", tokenizer: object) -> "Model":
    """The model of an argument, with its tokenizer. prefix: "second_" or "", of the argument in messages."""
    if isinstance(model, str | os.PathLike):
        return open_model(model, dtype="float32")
    try:
        return open_model(model, tokenizer=tokenizer)
    except ValueError as error:
        raise type(error)(f"view: {prefix}model: {error}") from error


def _picture_view(picture: Any, model: str, title: str | None) -> ViewModel:
    """A picture of PIL or the path of one, read by the model of a directory."""
    named, given = title, picture
    try:
        if isinstance(picture, os.PathLike):
            named = title or Path(picture).name
            picture = pictures.read_picture(Path(picture))
        else:
            picture = pictures.in_rgb(lambda: given, "picture")
        reader = pictures.load_vision(model, "float32")
        reading = pictures.record_picture(reader, picture)
    except RecordError as error:
        error.args = (f"view: {error}",)
        raise
    shown = ViewModel.create(reading.recording, title=named or tr("Picture"), model=reader.title)
    return shown.with_picture(reading.pixels, reading.grid)


def _text_service(
    request: RunRequest, reader: "Model", second: "Model | None", title: str | None, second_title: str | None
) -> ViewService:
    """Texts, read by a model."""
    runner = TextRunner(reader=reader, second=second)
    try:
        first = runner.run(request, max_tokens=None, title=title, second_title=second_title)
    except RecordError as error:
        error.args = (f"view: {error}",)
        raise
    return ViewService(first, runner=runner, typed=request)


def display(
    service: ViewService, *, port: int, browser: bool | None, block: bool | None, language: str | None = None
) -> "View | Widget":
    """A widget in a notebook, elsewhere a served view; port, browser and block: as in `view`."""
    if in_notebook():
        from uwaga.viewer.notebook import widget

        return widget(service, language or "en")
    return show(service, service.view_model.title, "view", port=port, browser=browser, block=block, language=language)


def show(
    service: ViewService,
    title: str,
    name: str,
    *,
    fragment: str = "",
    port: int,
    browser: bool | None,
    block: bool | None,
    language: str | None = None,
) -> View:
    """Serve a view, print its URL, open a browser and wait. port, browser and block: as in `view`; the others: as in `serve`."""

    def announce(address: str) -> None:
        print(f"uwaga.{name}: {address}", flush=True)  # noqa: T201  # where no browser opens, this is the only way to the page

    served = serve(service, title, announce=announce, port=port, name=name, fragment=fragment, language=language)
    announce(served.address)
    if browser or browser is None:
        served.browse()
    if block or (block is None and not at_prompt()):
        served.wait()
    return served


def serve(
    service: ViewService,
    title: str,
    *,
    announce: Callable[[str], object],
    port: int = 0,
    name: str = "view",
    fragment: str = "",
    language: str | None = None,
) -> View:
    """Start a server for a view; `announce`, `port` and `fragment` as in `Server`.

    Args:
        name: "view" or "lesson", for the message about a missing package.
        language: of the page, a code of uwaga._base.languages; None: what the browser prefers.

    Raises:
        ImportError: the extra `uwaga[view]` is not installed.
        OSError: the port is not available.
    """
    try:
        from uwaga.viewer.server.server import Server
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("starlette", "uvicorn"):
            raise
        rule = f"uwaga.{name} needs {package}, which is not installed: pip install 'uwaga[view]'"
        raise ModuleNotFoundError(rule, name=package) from error
    lesson = service.opens_with_lesson
    bundle(lesson=lesson)  # now, so that the first request of a page does not wait for it
    server = Server(
        service, title=title, port=port, fragment=fragment, lesson=lesson, announce=announce, language=language
    )
    return View(service, server)


def check_language(name: str, language: str | None) -> None:
    """Raises ValueError: a language that there is no table of."""
    if language is not None and language not in LANGUAGES:
        raise ValueError(f"{name}: language must be one of {', '.join(LANGUAGES)}, not {language!r}")


def in_notebook() -> bool:
    """Whether the value of a cell is displayed as a widget: in a Jupyter kernel or in marimo."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return True
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def at_prompt() -> bool:
    """Whether this is an interactive session, of Python or of IPython."""
    ipython = sys.modules.get("IPython")
    return hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
