"""Texts in place of recordings: a bundled model, or one in a directory or of the hub, is run once over a text and recorded."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga._base.threads import calling_here

if TYPE_CHECKING:
    from torch import Tensor, nn

    from uwaga.inspect.adapters.adapter import Adapter
    from uwaga.inspect.edits import Edits
    from uwaga.inspect.recordings.recording import Recording
    from uwaga.models.tokenizers.loading import Tokenizer

DEFAULT_MODEL = "minilm"
NEW_TOKENS = 40  # of an encoder-decoder, which generates where no target is given
# Tokens that it generates from. Its encoder, where every token sees all, reads them twice, for the generation and for the maps: with the
# bundled speller 40 seconds on two busy cores, and 25 times as long for 100,000.
MAX_GENERATED_FROM = 20_000
Progress = AbstractContextManager[Callable[[float], object]]


class RecordError(ValueError):
    """The text cannot be read, or not by this model."""


class TextTooLongError(RecordError):
    """The text has more tokens than the model takes.

    most: that it takes.
    """

    def __init__(self, message: str, most: int) -> None:
        super().__init__(message)
        self.most = most


class LoadedModel(NamedTuple):
    """A model with its name and title, its tokenizer, the tokenizer of its decoder, which may be another one, and its directory.

    A model that was not loaded by its name has the name "", and perhaps no directory.
    """

    name: str
    title: str
    model: "nn.Module"
    tokenizer: "Tokenizer"
    target_tokenizer: "Tokenizer"
    folder: Path | None

    @property
    def adapter(self) -> "Adapter":
        """How it is run."""
        from uwaga.inspect.layers import huggingface

        if huggingface.outermost(self.model):
            from uwaga.inspect.adapters.huggingface import HuggingFaceAdapter

            return HuggingFaceAdapter(self.model)
        from uwaga.inspect.adapters.builtin import BuiltinAdapter

        return BuiltinAdapter(self.model)

    @property
    def has_both(self) -> bool:
        """Whether it has an encoder and a decoder of its own."""
        return self.adapter.has_both


class Reading(NamedTuple):
    """What came of a text.

    Attributes:
        recording: of its attention.
        ids: (T,) token ids that the last stack has read.
        states: (T, M) hidden states of the last stack after its last layer.
        written: ids that an encoder-decoder generated; None where it read a target, and for other models.
    """

    recording: "Recording"
    ids: "Tensor"
    states: "Tensor"
    written: list[int] | None


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn the ValueErrors of functions of the package into RecordError, without the function's name in the message."""
    try:
        yield
    except ValueError as error:
        raise RecordError(re.sub(r"^(?:view|generate|watch|\w+Model|Transformer): ", "", str(error))) from error


def default_model() -> str:
    """The bundled model that reads a text where none is named: minilm where it is installed, else copyist, which always is."""
    from uwaga.models.checkpoints import directories

    return DEFAULT_MODEL if directories.is_installed(DEFAULT_MODEL) else "copyist"


def load(name: str, dtype: str) -> LoadedModel:
    """A bundled model, one in a directory, or one from the hub; of a family that this package does not have, as transformers
    computes it. Raises CheckpointError."""
    from uwaga.models.checkpoints import directories

    result = directories.find(name, None)  # before PyTorch is imported, which takes seconds
    import torch

    from uwaga.inspect.adapters import loading
    from uwaga.models.checkpoints import load_save, sentence_files
    from uwaga.models.tokenizers.loading import Tokenizer

    folder = directories.transformer(result)
    title = directories.BUNDLED[name].title if name in directories.BUNDLED else Path(name).name or name
    if not loading.is_own(folder):
        model = loading.load(folder, getattr(torch, dtype))
        tokenizer = loading.tokenizer(folder)
        return LoadedModel(name, title, model, tokenizer, tokenizer, result)
    tokenizer = Tokenizer.load(folder, lowercase=sentence_files.lowercases(folder))
    model = load_save.load(folder, dtype=getattr(torch, dtype))
    return LoadedModel(name, title, model, tokenizer, Tokenizer.load_target(folder) or tokenizer, result)


def of_module(model: "nn.Module", tokenizer: object = None) -> LoadedModel:
    """A model that is in memory: of this package, or of transformers.

    Args:
        model: in evaluation mode.
        tokenizer: one of transformers or tokenizers, which is copied; None: that of the directory that the model was read from.

    Raises:
        ValueError: a model that cannot be watched, reads no text or is in training mode; no tokenizer, or one with more ids than the
            model has embeddings.
    """
    from uwaga.inspect.adapters import loading
    from uwaga.inspect.layers.attention_layers import token_embeddings
    from uwaga.models.tokenizers.loading import of_model

    name = getattr(getattr(model, "config", None), "name_or_path", "")
    title = (Path(name).name if isinstance(name, str) else "") or type(model).__name__
    folder = getattr(model, "directory", None) or (Path(name) if name and Path(name).is_dir() else None)
    if tokenizer is not None:
        own = target = loading.tokenizer_of(tokenizer)
    elif getattr(model, "directory", None) is not None:
        own, target = of_model(model), of_model(model, decoder=True)
    elif folder is not None:
        own = target = loading.tokenizer(folder)
    else:
        raise ValueError(f"this {type(model).__name__} was not read from a directory: give its tokenizer")
    result = LoadedModel("", title, model, own, target, folder)
    if not hasattr(result.adapter, "max_tokens"):
        raise ValueError(f"{type(model).__name__} is neither a model of uwaga.models nor of transformers")
    sizes: list[Any] = [getattr(each, "token_embedding", each).num_embeddings for each in token_embeddings(model)]
    if sizes and own.vocab_size > max(sizes):
        raise ValueError(
            f"the tokenizer has the token id {own.vocab_size - 1}, and {type(model).__name__} has {max(sizes)} embeddings"
        )
    return result


def run_text(
    reader: LoadedModel,
    text: str,
    *,
    target: str | Sequence[int] | None = None,
    new_tokens: int = NEW_TOKENS,
    truncate: bool = False,
    max_tokens: int | None = None,
    layers: Sequence[int] | None = None,
    edits: "Edits | None" = None,
    progress: Progress | None = None,
) -> Reading:
    """Run the model once over a text; an encoder-decoder generates its output, or reads the target in its place.

    Args:
        reader: the model, as `load` returns it.
        text: what the model reads, or its encoder.
        target: the text that the decoder of an encoder-decoder reads, or its token ids without the start token.
        new_tokens: the maximum number of tokens that it generates without a target.
        truncate: shorten a text that exceeds the model's maximum, or what it generates from.
        max_tokens: of each text, beside the model's maximum.
        layers: record only these; None: all.
        edits: change the model's attention by these.
        progress: a context manager of a function that is called with the completed fraction after each layer, from 0 to 1, and
            after each layer of a generation, and before each call of attention with edits, with 0; what it raises ends the run.

    Raises:
        TextTooLongError: more tokens than the model's maximum, or than MAX_GENERATED_FROM where an encoder-decoder generates.
        RecordError: a text without tokens, or with lone surrogates; a target for a model without a decoder of its own; edits of layers
            or heads that the model does not have.
    """
    import torch

    from uwaga.inspect.editing import edit
    from uwaga.inspect.watching import watch

    with reporting_errors():
        adapter = reader.adapter
    model, has_both = reader.model, adapter.has_both
    if target is not None and not has_both:
        raise RecordError(f"{reader.title} reads one text; a target is for models with an encoder and a decoder")
    generates = has_both and target is None
    ids = _ids(reader, reader.tokenizer, text, "the text", truncate, max_tokens, generates=generates)
    own, target_own = reader.tokenizer.backend, reader.target_tokenizer.backend
    called = {"encoder": own, "decoder": target_own if has_both else own}
    with nullcontext(_ignore) if progress is None else progress as report, reporting_errors(), torch.no_grad():
        inputs: list[Tensor] = [torch.tensor([ids])]
        written_ids: list[int] | None = None
        if generates:
            with after_each_layer(adapter.layers(), lambda _: report(0.0)):
                written_ids = adapter.generate(ids, new_tokens)
        if has_both:
            if isinstance(target, str):
                decoder_ids = _target(reader, target, truncate, max_tokens)
            else:
                decoder_ids = [adapter.decoder_start_token_id, *(target or written_ids or [])][:-1]
            inputs.append(torch.tensor([decoder_ids]))
        with ExitStack() as editing:
            if edits is not None:
                editing.enter_context(_before_each_attention(adapter, model, lambda: report(0.0)))
                editing.enter_context(edit(model, edits))
            with watch(model, layers=layers, tokenizer=called) as recording, after_each_layer(adapter.layers(), report):
                states = adapter.read(inputs[0], inputs[1] if has_both else None)
    recording.model = reader.title
    recording.written = _written(reader, recording, text, target if isinstance(target, str) else None)
    return Reading(recording, inputs[-1][0], states, written_ids)


def read_again(reader: LoadedModel, recording: "Recording", *, max_bytes: int, progress: Progress) -> "Recording":
    """The token ids of a recording that `run_text` made, without edits, read once more and recorded with values, as
    `score_attribution` needs them. `run_text` keeps none: they are half as much again as queries and keys.

    Args:
        reader: the model that has read them.
        max_bytes: of the result.
        progress: as in `run_text`.

    Raises:
        RecordError: more to keep than `max_bytes`.
    """
    import torch

    from uwaga.inspect.watching import watch

    adapter = reader.adapter
    inputs = [torch.tensor(recording.token_ids(stack)) for stack in recording.tokens]
    with (
        progress as report,
        reporting_errors(),
        torch.no_grad(),
        watch(reader.model, values=True, max_bytes=max_bytes) as result,
        after_each_layer(adapter.layers(), report),
    ):
        adapter.read(inputs[0], inputs[1] if adapter.has_both else None)
    return result


def record_text(
    reader: LoadedModel,
    text: str,
    *,
    target: str | None = None,
    new_tokens: int = NEW_TOKENS,
    truncate: bool = False,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> "Recording":
    """The recording of `run_text`, whose arguments and errors it has."""
    return run_text(
        reader, text, target=target, new_tokens=new_tokens, truncate=truncate, layers=layers, progress=progress
    ).recording


def _written(
    reader: LoadedModel, recording: "Recording", text: str, target: str | None
) -> dict[str, list[tuple[str, Sequence[tuple[int, int]]]]]:
    """What was written for each stack, as far as its tokens are those of the text: one that was cut short has others."""
    from uwaga.models.text.token_text import written

    tokens = recording.tokens
    read = {"encoder" if "encoder" in tokens else "decoder": (text, reader.tokenizer)}
    if target is not None:
        read["decoder"] = (target, reader.target_tokenizer)
    by_stack = {
        stack: written(source, tokenizer.backend, tokens[stack][0])
        for stack, (source, tokenizer) in read.items()
        if stack in tokens
    }
    return {stack: [source] for stack, source in by_stack.items() if source is not None}


@contextmanager
def after_each_layer(layers: "Sequence[nn.Module]", report: Callable[[float], object]) -> Iterator[None]:
    """Report each layer that this thread computes: 100,000 tokens take minutes."""
    with ExitStack() as hooks:
        here = hooks.enter_context(calling_here())
        for number, layer in enumerate(layers, start=1):

            @here
            def after(*_: object, done: float = number / len(layers)) -> None:
                report(done)

            hooks.callback(layer.register_forward_hook(after).remove)
        yield


@contextmanager
def _before_each_attention(adapter: "Adapter", model: "nn.Module", report: Callable[[], object]) -> Iterator[None]:
    """Report each call of attention in this thread: an edited layer has one for each set of queries whose links are weakened."""
    from uwaga.inspect.editing import hooking

    def before(asked: Any, _: object, proceed: Any) -> Any:
        report()
        return proceed(asked)

    with hooking(model, dict.fromkeys(adapter.attentions(), before)):
        yield


def _ignore(fraction: float) -> None:
    """No progress is shown."""


def _target(reader: LoadedModel, target: str, truncate: bool, max_tokens: int | None) -> list[int]:
    """The decoder's input ids for the target: the start token first, without the end-of-sequence token."""
    adapter = reader.adapter
    ids = _ids(reader, reader.target_tokenizer, target, "the target", truncate, max_tokens)
    return [adapter.decoder_start_token_id, *(ids[:-1] if ids[-1] in adapter.eos_token_ids else ids)]


def _ids(
    reader: LoadedModel,
    tokenizer: "Tokenizer",
    text: str,
    name: str,
    truncate: bool,
    max_tokens: int | None,
    *,
    generates: bool = False,
) -> list[int]:
    """Token ids with special tokens. Raises RecordError for no tokens, or more than the model takes or generates from."""
    room, rule = reader.adapter.max_tokens, "takes {:,}"
    if generates and (room is None or room > MAX_GENERATED_FROM):
        room, rule = MAX_GENERATED_FROM, "generates from {:,} at most: with a target it takes more"
    try:
        text.encode()
    except UnicodeError as error:
        raise RecordError(f"{name} has a lone surrogate, which no text in UTF-8 has") from error
    own = tokenizer.encode([text], with_offsets=False)[0].ids
    if not own:
        raise RecordError(f"{name} is empty: it has no tokens")
    total = len(own) + tokenizer.num_special_tokens
    if max_tokens is not None and total > max_tokens and (room is None or room > max_tokens):
        if not truncate:
            said = f"{name} has {total:,} tokens, special ones included; a page may run {max_tokens:,}"
            raise TextTooLongError(said, max_tokens)
        room = max_tokens
    if room is not None and total > room:
        if not truncate:
            raise TextTooLongError(
                f"{name} has {total:,} tokens, special ones included, and {reader.title} {rule.format(room)}", room
            )
        own = own[: room - tokenizer.num_special_tokens]
    return [*tokenizer.prefix_ids, *own, *tokenizer.suffix_ids]


def first_line(text: str) -> str:
    """The first line of a text as it was given: a tokenizer may lower its case."""
    line = " ".join(text.strip().partition("\n")[0].split())
    return line if len(line) <= 60 else f"{line[:59]}…"
