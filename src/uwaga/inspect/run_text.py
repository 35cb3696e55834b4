"""Run a model once over a text, and record its attention."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from uwaga._base import untrusted
from uwaga._base.threads import calling_here

if TYPE_CHECKING:
    from torch import Tensor, nn

    from uwaga.inspect.edits import Edits
    from uwaga.inspect.recordings.recording import Recording
    from uwaga.models.model import Model
    from uwaga.models.tokenizers.tokenizer import Tokenizer

DEFAULT_MODEL = "minilm"
NEW_TOKENS = 40  # the most that an encoder-decoder generates without a target
# The most tokens that an encoder-decoder generates from. Its encoder reads them twice, for the generation and for the maps, in quadratic
# time: the bundled speller takes 40 seconds on two busy cores.
MAX_GENERATED_FROM = 20_000
Report = Callable[[float], object]


class RecordError(ValueError):
    """Report a text or an image that cannot be read, or that this model cannot read."""


class TextTooLongError(RecordError):
    """Report a text with more tokens than the model takes; `most` is the number that it takes."""

    def __init__(self, message: str, most: int) -> None:
        super().__init__(message)
        self.most = most


class Reading(NamedTuple):
    """Hold the recording of a text and what the model computed.

    Attributes:
        recording: the recorded attention.
        ids: (T,) token ids that the last stack has read.
        states: (T, M) hidden states of the last stack after its last layer.
        written: the ids that an encoder-decoder generated; None if it read a target, and for other models.
    """

    recording: "Recording"
    ids: "Tensor"
    states: "Tensor"
    written: list[int] | None


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turn ValueErrors of this package into RecordErrors without the function's name."""
    try:
        yield
    except ValueError as error:
        raise RecordError(re.sub(r"^(?:view|generate|watch|Transformer): ", "", str(error))) from error


@contextmanager
def reading_file(path: Path) -> Iterator[None]:
    """Turn OSErrors into RecordErrors with the path."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error


def text_of_file(path: Path) -> str:
    """Return the text of a file in UTF-8. Raises RecordError."""
    with reading_file(path):
        data = untrusted.read_file(path, untrusted.LINE_BYTES)
    try:
        return data.decode("utf-8-sig")
    except UnicodeError as error:
        raise RecordError(f"{path} is not valid UTF-8") from error


def default_model() -> str:
    """Return the bundled model for a text without a model: minilm if it is installed, else copyist."""
    from uwaga.models.checkpoints import directories

    return DEFAULT_MODEL if directories.is_installed(DEFAULT_MODEL) else "copyist"


def run_text(
    reader: "Model",
    text: str,
    *,
    target: str | Sequence[int] | None = None,
    new_tokens: int = NEW_TOKENS,
    truncate: bool = False,
    max_tokens: int | None = None,
    layers: Sequence[int] | None = None,
    edits: "Edits | None" = None,
    report: Report = lambda fraction: None,
) -> Reading:
    """Record the model's attention over a text and what it generates, or over a text and a target.

    Args:
        reader: the model, as `uwaga.models.open` returns it.
        text: the text that the model, or its encoder, reads.
        target: the text that the decoder of an encoder-decoder reads, or its token ids without the start token.
        new_tokens: the most tokens that an encoder-decoder generates without a target.
        truncate: shorten a text that exceeds the maximum; False: raise TextTooLongError.
        max_tokens: a maximum for each text, next to the model's own.
        layers: the layers to record; None: all.
        edits: changes of the model's attention.
        report: called with the completed fraction, 0 to 1, after each layer. It is called with 0 after each layer of a generation, and
            before each call of attention with edits. An exception that it raises ends the run.

    Raises:
        TextTooLongError: more tokens than the model's maximum, or than MAX_GENERATED_FROM if an encoder-decoder generates.
        RecordError: a text without tokens or with lone surrogates; a target for a model that is not an encoder-decoder; edits of
            layers or heads that the model does not have.
    """
    import torch

    from uwaga.inspect.watching import watch

    has_both = reader.config.has_both
    if target is not None and not has_both:
        raise RecordError(f"{reader.title} reads one text; a target is for models with an encoder and a decoder")
    generates = has_both and target is None
    ids = _ids(reader, reader.tokenizer, text, "the text", truncate, max_tokens, generates=generates)
    of_decoder = reader.target_tokenizer if has_both else reader.tokenizer
    tokenizers = {"encoder": reader.tokenizer, "decoder": of_decoder}
    with reporting_errors(), torch.no_grad():
        inputs: list[Tensor] = [torch.tensor([ids])]
        written_ids: list[int] | None = None
        if generates:
            with after_each_layer(reader.steps, lambda _: report(0.0)):
                written_ids = reader.continuation(ids, new_tokens)
        if has_both:
            if isinstance(target, str):
                decoder_ids = _target(reader, target, truncate, max_tokens)
            else:
                decoder_ids = [reader.config.decoder_start_token_id, *(target or written_ids or [])][:-1]
            inputs.append(torch.tensor([decoder_ids]))
        with ExitStack() as editing:
            if edits is not None:
                from uwaga.inspect.editing import edit

                editing.enter_context(_before_each_attention(reader, lambda: report(0.0)))
                editing.enter_context(edit(reader, edits))
            with (
                watch(reader, layers=layers, tokenizer=tokenizers) as recording,
                after_each_layer(reader.steps, report),
            ):
                states = reader.read(*inputs)
    recording.model = reader.title
    recording.written = _written(reader, recording, text, target if isinstance(target, str) else None)
    return Reading(recording, inputs[-1][0], states, written_ids)


def read_again(reader: "Model", recording: "Recording", *, max_bytes: int, report: Report) -> "Recording":
    """Record the token ids of a recording again, with the values that `score_attribution` needs.

    Args:
        reader: the model that has read the recording, without edits.
        max_bytes: the most bytes of the result.
        report: as in `run_text`.

    Raises:
        RecordError: the result is larger than `max_bytes`.
    """
    import torch

    from uwaga.inspect.watching import watch

    inputs = [torch.tensor(recording.token_ids(stack)) for stack in recording.tokens]
    with (
        reporting_errors(),
        torch.no_grad(),
        watch(reader, values=True, max_bytes=max_bytes) as result,
        after_each_layer(reader.steps, report),
    ):
        reader.read(*inputs)
    return result


def record_text(reader: "Model", text: str, **options: Any) -> "Recording":
    """Return the recording of `run_text`. Arguments and errors are as there."""
    return run_text(reader, text, **options).recording


def _written(
    reader: "Model", recording: "Recording", text: str, target: str | None
) -> dict[str, list[tuple[str, Sequence[tuple[int, int]]]]]:
    """Return the text and the characters of each token, by stack; a text that was cut short has no entry."""
    from uwaga.models.tokenizers.token_text import written

    tokens = recording.tokens
    read = {"encoder" if "encoder" in tokens else "decoder": (text, reader.tokenizer)}
    if target is not None:
        read["decoder"] = (target, reader.target_tokenizer)
    by_stack: dict[str, list[tuple[str, Sequence[tuple[int, int]]]]] = {}
    for stack, (source, tokenizer) in read.items():
        if stack in tokens and (found := written(source, tokenizer.backend, tokens[stack][0])) is not None:
            by_stack[stack] = [found]
    return by_stack


@contextmanager
def after_each_layer(layers: "Sequence[nn.Module]", report: Report) -> Iterator[None]:
    """Report the completed fraction after each layer that this thread computes."""
    with ExitStack() as hooks:
        here = hooks.enter_context(calling_here())
        for number, layer in enumerate(layers, start=1):

            @here
            def after(*_: object, done: float = number / len(layers)) -> None:
                report(done)

            hooks.callback(layer.register_forward_hook(after).remove)
        yield


@contextmanager
def _before_each_attention(reader: "Model", report: Callable[[], object]) -> Iterator[None]:
    """Report before each call of attention in this thread; an edited layer can have many."""
    from uwaga.inspect.editing import hooking
    from uwaga.models.attention_layers import attention_layers

    def before(asked: Any, _: object, proceed: Any) -> Any:
        report()
        return proceed(asked)

    with hooking(reader, dict.fromkeys(attention_layers(reader), before)):
        yield


def _target(reader: "Model", target: str, truncate: bool, max_tokens: int | None) -> list[int]:
    """Return the decoder's input ids for the target: the start token, then the ids without the end-of-sequence token."""
    ids = _ids(reader, reader.target_tokenizer, target, "the target", truncate, max_tokens)
    return [reader.config.decoder_start_token_id, *(ids[:-1] if ids[-1] in reader.config.eos_token_ids else ids)]


def _ids(
    reader: "Model",
    tokenizer: "Tokenizer",
    text: str,
    name: str,
    truncate: bool,
    max_tokens: int | None,
    *,
    generates: bool = False,
) -> list[int]:
    """Return token ids with special tokens. Raises RecordError: no tokens, or more than the model takes or generates from."""
    room, rule = reader.config.max_tokens, "takes {:,}"
    if generates and (room is None or room > MAX_GENERATED_FROM):
        room, rule = MAX_GENERATED_FROM, "generates from {:,} at most: with a target it takes more"
    try:
        text.encode()
    except UnicodeError as error:
        raise RecordError(f"{name} has a lone surrogate, which no text in UTF-8 has") from error
    ids = tokenizer.encode([text], with_offsets=False)[0].ids
    if not ids:
        raise RecordError(f"{name} is empty: it has no tokens")
    total = len(ids) + tokenizer.num_special_tokens
    if max_tokens is not None and total > max_tokens and (room is None or room > max_tokens):
        if not truncate:
            message = f"{name} has {total:,} tokens, special ones included; a page may run {max_tokens:,}"
            raise TextTooLongError(message, max_tokens)
        room = max_tokens
    if room is not None and total > room:
        if not truncate:
            raise TextTooLongError(
                f"{name} has {total:,} tokens, special ones included, and {reader.title} {rule.format(room)}", room
            )
        ids = ids[: room - tokenizer.num_special_tokens]
    return [*tokenizer.prefix_ids, *ids, *tokenizer.suffix_ids]
