"""Texts instead of recordings: a bundled model, or one in a directory or of the hub, is run once over a text and recorded."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from uwaga._base import renamed
from uwaga.viewer import api
from uwaga.viewer.token_text import written
from uwaga.viewer.view_model import MapsLike, Tokens

if TYPE_CHECKING:
    from torch import nn

    from uwaga.maps.recordings.recording import Recording
    from uwaga.models.text.tokenizer import Tokenizer
    from uwaga.viewer.api import View
    from uwaga.viewer.notebook import Widget

_DEFAULT_MODEL = "minilm"
_NEW_TOKENS = 40  # of an encoder-decoder, which generates where no target is given
Progress = AbstractContextManager[Callable[[float], object]]


class RecordError(ValueError):
    """The text cannot be read, or not by this model."""


class TextTooLongError(RecordError):
    """The text has more tokens than the model takes."""


class LoadedModel(NamedTuple):
    """A model with its title, its tokenizer, and the tokenizer of its decoder, which may be another one."""

    title: str
    model: "nn.Module"
    tokenizer: "Tokenizer"
    target_tokenizer: "Tokenizer"


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn the ValueErrors of functions of the package into RecordError, without the function's name in the message."""
    try:
        yield
    except ValueError as error:
        raise RecordError(re.sub(r"^(?:view|generate|watch|\w+Model|Transformer): ", "", str(error))) from error


def load(name: str, dtype: str) -> LoadedModel:
    """A bundled model, one in a directory, or one from the hub. Raises CheckpointError."""
    import torch

    from uwaga._base import json_files
    from uwaga.models import checkpoints, directories
    from uwaga.models.text.tokenizer import Tokenizer

    folder = directories.transformer(directories.find(name, None))
    settings = json_files.optional(folder / "sentence_bert_config.json") or {}
    lowercase = settings.get("do_lower_case") is True
    tokenizer = Tokenizer.load(folder, lowercase=lowercase)
    title = directories.BUNDLED[name].title if name in directories.BUNDLED else Path(name).name or name
    model = checkpoints.load(folder, dtype=getattr(torch, dtype))
    return LoadedModel(title, model, tokenizer, Tokenizer.load_target(folder) or tokenizer)


def record_text(
    reader: LoadedModel,
    text: str,
    *,
    target: str | None = None,
    new_tokens: int = _NEW_TOKENS,
    truncate: bool = False,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> "Recording":
    """Run the model once over a text; an encoder-decoder generates its output, or reads the target in its place.

    Args:
        reader: the model, as `load` returns it.
        text: what the model reads, or its encoder.
        target: the text that the decoder of an encoder-decoder reads.
        new_tokens: the maximum number of tokens that it generates without a target.
        truncate: shorten a text that exceeds the model's maximum.
        layers: record only these; None: all.
        progress: a context manager of a function that is called with the completed fraction after each layer, from 0 to 1.

    Raises:
        TextTooLongError: more tokens than the model's maximum.
        RecordError: a text without tokens, or with lone surrogates; a target for a model without a decoder of its own.
    """
    import torch

    from uwaga.integrations.watch import watch

    model = cast("Any", reader.model)
    has_both = not getattr(model, "prompt_counts", True) and model.decoder is not None
    if target is not None and not has_both:
        raise RecordError(f"{reader.title} reads one text; a target is for models with an encoder and a decoder")
    ids = _ids(reader, reader.tokenizer, text, "the text", truncate)
    own, target_own = reader.tokenizer.backend, reader.target_tokenizer.backend
    called = {"encoder": own, "decoder": target_own if has_both else own}
    watching = watch(model, layers=layers, tokenizer=called)
    with reporting_errors(), torch.no_grad(), watching as recording:
        recording.model = reader.title
        if has_both and target is None:
            _write(model, ids, new_tokens)
            recording.written = _written(reader, recording, text, None)
            return recording
        read = [ids] if target is None else [ids, _target(reader, target, truncate)]
        with _layer_by_layer(model, nullcontext(_ignore) if progress is None else progress):
            model(*(torch.tensor([each]) for each in read))
    recording.written = _written(reader, recording, text, target)
    return recording


def _written(
    reader: LoadedModel, recording: "Recording", text: str, target: str | None
) -> dict[str, list[tuple[str, Sequence[tuple[int, int]]]]]:
    """What was written for each stack, as far as its tokens are those of the text: one that was cut short has others."""
    tokens = recording.tokens
    read = {"encoder" if "encoder" in tokens else "decoder": (text, reader.tokenizer)}
    if target is not None:
        read["decoder"] = (target, reader.target_tokenizer)
    found = {
        stack: written(source, tokenizer.backend, tokens[stack][0])
        for stack, (source, tokenizer) in read.items()
        if stack in tokens
    }
    return {stack: [source] for stack, source in found.items() if source is not None}


@contextmanager
def _layer_by_layer(model: "nn.Module", reporting: Progress) -> Iterator[None]:
    """Report each layer: 100,000 tokens take minutes."""
    from uwaga.nn import DecoderLayer, EncoderLayer

    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    with reporting as progress, ExitStack() as hooks:
        for number, layer in enumerate(layers, start=1):
            done = number / len(layers)
            hooks.callback(layer.register_forward_hook(lambda *_, done=done: progress(done)).remove)
        yield


def _ignore(fraction: float) -> None:
    """No progress is shown."""


def _write(model: Any, ids: list[int], new_tokens: int) -> None:
    from uwaga.models.generation.generate import generate

    generate(model, [ids], max_new_tokens=new_tokens)


def _target(reader: LoadedModel, target: str, truncate: bool) -> list[int]:
    """The decoder's input ids for the target: the start token first, without the end-of-sequence token."""
    config = cast("Any", reader.model).config
    ids = _ids(reader, reader.target_tokenizer, target, "the target", truncate)
    return [config.decoder_start_token_id, *(ids[:-1] if ids[-1] in config.eos_token_ids else ids)]


def _ids(reader: LoadedModel, tokenizer: "Tokenizer", text: str, name: str, truncate: bool) -> list[int]:
    """Token ids with special tokens. Raises RecordError for no tokens, or more than the model takes."""
    room = cast("Any", reader.model).config.max_tokens
    try:
        text.encode()
    except UnicodeError as error:
        raise RecordError(f"{name} has a lone surrogate, which no text in UTF-8 has") from error
    own = tokenizer.encode([text], with_offsets=False)[0].ids
    if not own:
        raise RecordError(f"{name} is empty: it has no tokens")
    total = len(own) + tokenizer.num_special_tokens
    if room is not None and total > room:
        if not truncate:
            raise TextTooLongError(
                f"{name} has {total:,} tokens, special ones included, and {reader.title} takes {room:,}"
            )
        own = own[: room - tokenizer.num_special_tokens]
    return [*tokenizer.prefix_ids, *own, *tokenizer.suffix_ids]


@renamed.parameters(shown="maps")
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
) -> "View | Widget":
    """Show attention: every layer and head as an overview, each map down to its exact weights, the text, and the statistics.

        with uwaga.watch(model, tokenizer=tokenizer) as recording:
            model(ids)
        uwaga.view(recording)

        uwaga.view("The animal didn't cross the street because it was too tired.", model="minilm")

    A text is read once by a model, whose attention is shown. In a notebook (Jupyter, VS Code, Colab, marimo) the view is a widget. Elsewhere it is served to a browser on this machine
    (loopback only), and its URL is printed.

    Args:
        maps: a text; a recording; a map; several maps by (kind, layer), by layer, or in the order of their layers. Each is
            (R, H, Q, K), (H, Q, K), (Q, K) or ragged: R rows of a batch, H heads, Q queries, K keys.
        tokens: a string per token, which replace those of the recording, not for texts; a dict with the keys "encoder" and "decoder" for maps
            of both stacks.
        title: the title of the page; None: the beginning of the text.
        model: the name of the model; for a text the model that reads it: "minilm" (also where it is empty) or another bundled
            one, a directory, or a model id of the Hugging Face Hub.
        target: for a text, what the decoder of an encoder-decoder reads; None: it generates at most 40 tokens.
        row: the row of a batch that is shown.
        second, second_tokens, second_title, second_model, second_row: the same for a second text or model, which is shown
            beside the first and as their difference. A text with a second model alone is read by both.
        port: the TCP port to serve on; 0: any free one.
        browser: whether to open a browser; None: where there is a graphical one.
        block: whether to wait for Ctrl-C or SIGTERM before returning; None: in a program, but not at Python's prompt.

    Returns:
        In a notebook the widget; elsewhere a View, which is already closed if this call waited for Ctrl-C.

    Raises:
        ValueError: no maps; maps of different texts; a row out of range; a number of tokens that differs from the maps';
            a text without tokens, or with more than the model takes; a model that cannot be read (CheckpointError).
        ImportError: the extra `uwaga[view]` is not installed.
        OSError: the port is not available.
    """
    name = os.fspath(model)
    second_name = None if second_model is None else os.fspath(second_model)
    if isinstance(maps, str):
        if tokens is not None:
            raise ValueError("view: tokens are those of the text; they can be given for maps only")
        name = name or _DEFAULT_MODEL
        if second is None and second_name is not None:
            second = maps
        reader = load(name, "float32")
        if isinstance(second, str):
            if second_tokens is not None:
                raise ValueError("view: second_tokens are those of the second text; they can be given for maps only")
            again = load(second_name, "float32") if second_name is not None else reader
            second_title = first_line(second) if second_title is None else second_title
            second, second_name = _recorded(again, second, target), again.title
        title = first_line(maps) if title is None else title
        maps, name = _recorded(reader, maps, target), reader.title
    elif target is not None:
        raise ValueError("view: target is read with a text, and maps are given")
    elif isinstance(second, str):
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
    )


def first_line(text: str) -> str:
    """The first line of a text as it was given: a tokenizer may lower its case."""
    line = " ".join(text.strip().partition("\n")[0].split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def _recorded(reader: LoadedModel, text: str, target: str | None) -> "Recording":
    try:
        return record_text(reader, text, target=target)
    except RecordError as error:
        raise type(error)(f"view: {error}") from error
