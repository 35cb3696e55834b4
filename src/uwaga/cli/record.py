"""A text in a model, once, with its attention recorded: what `uwaga view` shows."""

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

# What nobody means as a text: a path, or the name of a kind of file that holds text.
_LIKE_A_FILE = re.compile(r"\S*[/\\]\S*|\S+\.(?:txt|md|rst|tex|html?|json|csv|log|py|text)", re.IGNORECASE)


class RecordError(ValueError):
    """A text that cannot be read, or not by this model."""


class LoadedModel(NamedTuple):
    """A model and its tokenizer, and that of its decoder, which may have one of its own."""

    title: str
    model: "nn.Module"
    tokenizer: "Tokenizer"
    target_tokenizer: "Tokenizer"


@contextmanager
def reporting_errors() -> Iterator[None]:
    """What the floors below refuse is said without a traceback, and without the name of the function."""
    try:
        yield
    except ValueError as error:
        raise RecordError(re.sub(r"^(?:view|generate|watch|\w+Model|Transformer): ", "", str(error))) from error


def read_text(argument: str) -> str:
    """What an argument means: "-" is stdin, the path of a file its text, and anything else itself. Raises RecordError."""
    if argument == "-":
        return _decoded(_read(argument), "stdin")
    path = Path(argument)
    try:
        is_file, is_folder = path.is_file(), bool(argument) and path.is_dir()  # "" would be the folder that we are in
    except (OSError, ValueError):  # too long for a name, or with a character that no name has
        is_file = is_folder = False
    if is_file:
        return _decoded(_read(argument), argument)
    if is_folder:
        raise RecordError(f"{argument} is a directory, and neither a text nor a file")
    if _LIKE_A_FILE.fullmatch(argument):
        raise RecordError(f"there is no file {argument}")
    try:
        argument.encode()  # an argument that is no UTF-8 arrives as halves of surrogate pairs
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
    """A bundled model, one in a directory, or one of the hub. Raises CheckpointError."""
    import torch

    from uwaga.models import bundled, checkpoints, directories, json_files
    from uwaga.models.text.tokenizer import Tokenizer

    folder = directories.transformer(directories.find(name, None))
    settings = json_files.optional(folder / "sentence_bert_config.json") or {}
    lowercase = settings.get("do_lower_case") is True
    tokenizer = Tokenizer.load(folder, lowercase=lowercase)
    title = bundled.MODELS[name].title if name in bundled.MODELS else Path(name).name or name
    model = checkpoints.load(folder, dtype=getattr(torch, dtype))
    return LoadedModel(title, model, tokenizer, Tokenizer.load_target(folder) or tokenizer)


def record_text(
    reader: LoadedModel, text: str, *, target: str | None, new_tokens: int, truncate: bool, layers: Sequence[int] | None
) -> "Recording":
    """Run the model once over a text; an encoder-decoder writes its answer, or reads the target as such.

    Raises:
        RecordError: a text without tokens, or longer than the model; options that the model has no use for.
    """
    import torch

    from uwaga.integrations.watch import watch

    model = cast("Any", reader.model)
    has_both = not getattr(model, "prompt_counts", True) and model.decoder is not None
    if target is not None and not has_both:
        raise RecordError(f"{reader.title} reads one text; --target is for a model with an encoder and a decoder")
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
    """A bar that moves on with every layer: 100,000 tokens take minutes."""
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
    """What the decoder reads to write the target: its start token first, and without an end."""
    config = cast("Any", reader.model).config
    ids = _ids(reader, reader.target_tokenizer, target, "the target", truncate)
    return [config.decoder_start_token_id, *(ids[:-1] if ids[-1] in config.eos_token_ids else ids)]


def _ids(reader: LoadedModel, tokenizer: "Tokenizer", text: str, name: str, truncate: bool) -> list[int]:
    """With the tokenizer's special tokens."""
    room = cast("Any", reader.model).config.max_tokens
    own = tokenizer.encode([text], with_offsets=False)[0].ids
    if not own:
        raise RecordError(f"{name} is empty: it has no tokens")
    total = len(own) + tokenizer.num_special_tokens
    if room is not None and total > room:
        if not truncate:
            said = f"{name} has {total:,} tokens, special ones included, and {reader.title} takes {room:,}"
            raise RecordError(f"{said}; --truncate cuts it there")
        own = own[: room - tokenizer.num_special_tokens]
    return [*tokenizer.prefix_ids, *own, *tokenizer.suffix_ids]
