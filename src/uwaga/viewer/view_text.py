"""uwaga.view: maps as `uwaga.viewer.api.view` shows them, or texts, which a model reads first."""

import os
from typing import TYPE_CHECKING

from uwaga.inspect.run_text import RecordError, default_model, load
from uwaga.viewer import api
from uwaga.viewer.service import ViewService
from uwaga.viewer.text_runner import RunRequest, TextRunner
from uwaga.viewer.view_model import MapsLike, Tokens

if TYPE_CHECKING:
    from uwaga.viewer.api import View
    from uwaga.viewer.notebook import Widget


def view(
    maps: MapsLike | str,
    *,
    tokens: Tokens | None = None,
    title: str | None = None,
    model: str | os.PathLike[str] = "",
    target: str | None = None,
    row: int = 0,
    second: MapsLike | str | None = None,
    second_tokens: Tokens | None = None,
    second_title: str | None = None,
    second_model: str | os.PathLike[str] | None = None,
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

    A text is read by a model, whose attention and predictions are shown; further texts can be typed into the page, and heads switched
    off. In a notebook (Jupyter, VS Code, Colab, marimo) the view is a widget. Elsewhere it is served to a browser on this machine
    (loopback only), and its URL is printed.

    Args:
        maps: a text; a recording; a map; several maps by (kind, layer), by layer, or in the order of their layers. Each is
            (R, H, Q, K), (H, Q, K), (Q, K) or ragged: R rows of a batch, H heads, Q queries, K keys.
        tokens: a string per token, which replace those of the recording, not for texts; a dict with the keys "encoder" and "decoder" for maps
            of both stacks.
        title: the title of the page; None: the beginning of the text.
        model: the name of the model; for a text the model that reads it: "minilm" or another bundled one (empty: minilm
            where it is installed, else copyist), a directory, or a model id of the Hugging Face Hub.
        target: for a text, what the decoder of an encoder-decoder reads; None: it generates at most 40 tokens.
        row: the row of a batch that is shown.
        second, second_tokens, second_title, second_model, second_row: the same for a second text or model, which is shown
            beside the first and as their difference. A text with a second model alone is read by both.
        port: the TCP port to serve on; 0: any free one.
        browser: whether to open a browser; None: where there is a graphical one.
        block: whether to wait for Ctrl-C or SIGTERM before returning; None: in a program, but not at Python's prompt.
        language: of the page: "en", "pl", "pt", "ja" or "zh"; None: what the browser prefers, in a notebook English.

    Returns:
        In a notebook the widget; elsewhere a View, which is already closed if this call waited for Ctrl-C.

    Raises:
        ValueError: an unknown language; no maps; maps of different texts; a row out of range; a number of tokens that differs from the maps';
            a text without tokens, or with more than the model takes; a model that cannot be read (CheckpointError).
        ImportError: the extra `uwaga[view]` is not installed.
        OSError: the port is not available.
    """
    api.check_language("view", language)
    name = os.fspath(model)
    second_name = None if second_model is None else os.fspath(second_model)
    if not isinstance(maps, str):
        if target is not None:
            raise ValueError("view: target is read with a text, and maps are given")
        if isinstance(second, str):
            raise ValueError("view: second is a text, and maps is none: give two texts, or maps for both")
        return api.view(
            maps,
            tokens=tokens,
            title=title,
            model=name,
            row=row,
            second=second,
            second_tokens=second_tokens,
            second_title=second_title,
            second_model=second_name,
            second_row=second_row,
            port=port,
            browser=browser,
            block=block,
            language=language,
        )
    for wrong, of, at in ((tokens, "the text", row), (second_tokens, "the second text", second_row)):
        if wrong is not None:
            given = "tokens" if of == "the text" else "second_tokens"
            raise ValueError(f"view: {given} are those of {of}; they can be given for maps only")
        if at:
            raise ValueError(f"view: row {at} is out of range: {of} is one row")
    if second is not None and not isinstance(second, str):
        raise ValueError("view: second is maps, and the first is a text: give two texts, or maps for both")
    reader = load(name or default_model(), "float32")
    runner = TextRunner(reader=reader, second=None if second_name is None else load(second_name, "float32"))
    typed = RunRequest(maps, second, target)
    try:
        first = runner.run(typed, max_tokens=None, title=title, second_title=second_title)
    except RecordError as error:
        raise type(error)(f"view: {error}") from error
    service = ViewService(first, runner=runner, typed=typed)
    return api.display(service, port=port, browser=browser, block=block, language=language)
