"""Run a model once over a text with its attention recorded, for `uwaga view`."""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from uwaga._base import untrusted
from uwaga.cli.terminal import progress_bar

if TYPE_CHECKING:
    from torch import nn

    from uwaga.maps.recordings.recording import Recording
    from uwaga.models.text.tokenizer import Tokenizer

# Not meant as a text: a path, or a file name with the extension of a text file.
_LIKE_A_FILE = re.compile(r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text)", re.IGNORECASE)


class RecordError(ValueError):
    """The text cannot be read, or not by this model."""


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


def read_prompt_text(argument: str) -> str:
    """The text of an argument: of stdin for "-", of the file at a path, else the argument itself. Raises RecordError."""
    if argument == "-":
        return _decoded(_read(argument), "stdin")
    path = Path(argument)
    try:
        is_file, is_folder = path.is_file(), bool(argument) and path.is_dir()  # "" would be the current directory
    except (OSError, ValueError):  # too long for a path, or with a character that paths cannot have
        is_file = is_folder = False
    if is_file:
        return _decoded(_read(argument), argument)
    if is_folder:
        raise RecordError(f"{argument} is a directory, not a text or a file")
    if _LIKE_A_FILE.fullmatch(argument):
        raise RecordError(f"there is no file {argument}")
    try:
        argument.encode()  # bytes that are not UTF-8 arrive as lone surrogates
    except UnicodeError as error:
        raise RecordError("the text is not valid UTF-8") from error
    return argument


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


def load(name: str, dtype: str) -> LoadedModel:
    """A bundled model, one in a directory, or one from the hub. Raises CheckpointError."""
    import torch

    from uwaga.models import checkpoints, directories, json_files
    from uwaga.models.text.tokenizer import Tokenizer

    folder = directories.transformer(directories.find(name, None))
    settings = json_files.optional(folder / "sentence_bert_config.json") or {}
    lowercase = settings.get("do_lower_case") is True
    tokenizer = Tokenizer.load(folder, lowercase=lowercase)
    title = directories.BUNDLED[name].title if name in directories.BUNDLED else Path(name).name or name
    model = checkpoints.load(folder, dtype=getattr(torch, dtype))
    return LoadedModel(title, model, tokenizer, Tokenizer.load_target(folder) or tokenizer)


def record_text(
    reader: LoadedModel, text: str, *, target: str | None, new_tokens: int, truncate: bool, layers: Sequence[int] | None
) -> "Recording":
    """Run the model once over a text; an encoder-decoder generates its output, or reads the target in its place.

    Raises:
        RecordError: a text without tokens, or longer than the model's maximum; a target for a model without a decoder of
            its own.
    """
    import torch

    from uwaga.integrations.watch import watch

    model = cast("Any", reader.model)
    has_both = not getattr(model, "prompt_counts", True) and model.decoder is not None
    if target is not None and not has_both:
        raise RecordError(f"{reader.title} reads one text; --target is for models with an encoder and a decoder")
    ids = _ids(reader, reader.tokenizer, text, "the text", truncate)
    own, target_own = reader.tokenizer.backend, reader.target_tokenizer.backend
    called = {"encoder": own, "decoder": target_own if has_both else own}
    watching = watch(model, layers=layers, tokenizer=called)
    with reporting_errors(), torch.no_grad(), watching as recording:
        if has_both and target is None:
            _write(model, ids, new_tokens)
            return recording
        read = [ids] if target is None else [ids, _target(reader, target, truncate)]
        with _layer_by_layer(model):
            model(*(torch.tensor([each]) for each in read))
    return recording


@contextmanager
def _layer_by_layer(model: "nn.Module") -> Iterator[None]:
    """A progress bar over the layers: 100,000 tokens take minutes."""
    from uwaga.nn import DecoderLayer, EncoderLayer

    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    with progress_bar("reading") as progress, ExitStack() as hooks:
        for number, layer in enumerate(layers, start=1):
            done = number / len(layers)
            hooks.callback(layer.register_forward_hook(lambda *_, done=done: progress(done)).remove)
        yield


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
    own = tokenizer.encode([text], with_offsets=False)[0].ids
    if not own:
        raise RecordError(f"{name} is empty: it has no tokens")
    total = len(own) + tokenizer.num_special_tokens
    if room is not None and total > room:
        if not truncate:
            said = f"{name} has {total:,} tokens, special ones included, and {reader.title} takes {room:,}"
            raise RecordError(f"{said}; --truncate shortens it to that")
        own = own[: room - tokenizer.num_special_tokens]
    return [*tokenizer.prefix_ids, *own, *tokenizer.suffix_ids]
