"""`uwaga generate`: what a model writes after prompts, shown as it comes."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import typer

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga.cli.terminal import echo, echo_json, fail

if TYPE_CHECKING:
    from torch import Tensor

    from uwaga.models.generation.decoding import Generator
    from uwaga.models.text.tokenizer import Tokenizer

Storage = Literal["float32", "bfloat16"]


class PromptError(ValueError):
    """A prompt that cannot be read."""


class _Writer(NamedTuple):
    """A model and its tokenizer, and that of its decoder, which may have one of its own."""

    model: "Generator"
    tokenizer: "Tokenizer"
    decoder: "Tokenizer"


def generate(
    prompts: Annotated[list[str], typer.Argument(help="What to go on with, or to answer; - reads one from stdin.")],
    model: Annotated[str, typer.Option(help="bard, speller, a model's directory, or its id on the hub.")] = "bard",
    max_new_tokens: Annotated[int, typer.Option(help="At most so many tokens are written.")] = 20,
    do_sample: Annotated[bool, typer.Option("--do-sample", help="Draw each token; else take the likeliest.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Divides the logits before drawing.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest that together reach this.")] = None,
    num_beams: Annotated[int, typer.Option(help="Texts that a beam search follows at once.")] = 1,
    length_penalty: Annotated[float | None, typer.Option(help="Of a beam search: above 0 favours long texts.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of drawing; the same one gives the same text.")] = None,
    dtype: Annotated[Storage, typer.Option(help="Of weights and arithmetic.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per prompt, for programs.")] = False,
) -> None:
    """Write on after prompts, or answer them. One prompt's text is shown as it comes, the prompt itself is not."""
    how = {
        "max_new_tokens": max_new_tokens,
        "do_sample": do_sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "seed": seed,
    }
    try:
        _write(_load(model, dtype), [_text(n, each) for n, each in enumerate(prompts)], how, as_json=as_json)
    except (CheckpointError, PromptError) as error:
        fail("generate", str(error))
    except KeyboardInterrupt:
        echo("\nuwaga generate: stopped", err=True)
        raise typer.Exit(130) from None


def _text(number: int, prompt: str) -> str:
    try:
        text = prompt
        if prompt == "-":
            text = untrusted.read_stream(sys.stdin.buffer, "stdin", untrusted.LINE_BYTES).decode()
        text.encode()  # an argument that is no UTF-8 arrives as halves of surrogate pairs
    except UnicodeError as error:
        raise PromptError(f"prompt {number} is not valid UTF-8") from error
    except OSError as error:
        raise PromptError(f"prompt {number} cannot be read: {error.strerror}") from error
    return text


def _load(model: str, dtype: str) -> _Writer:
    """Raises CheckpointError, before any weight is read where there is no tokenizer."""
    import torch

    from uwaga.models import directories
    from uwaga.models.checkpoints import load
    from uwaga.models.text.tokenizer import Tokenizer

    folder = directories.find(model, None)
    place = directories.transformer(folder)
    own = Tokenizer.load(place)
    target = Tokenizer.load_target(place) or own
    loaded = load(folder, dtype=getattr(torch, dtype))
    if not hasattr(loaded, "decoding"):
        raise CheckpointError(f"{folder}: a {type(loaded).__name__} writes no text")
    return _Writer(cast("Generator", loaded), own, target)


def _write(writer: _Writer, texts: Sequence[str], how: dict[str, Any], *, as_json: bool) -> None:
    """Raises PromptError: a prompt or an option that does not fit the model, or options that do not go together."""
    from uwaga.models.generation.generate import generate

    own = writer.tokenizer
    prompts = [[*own.prefix_ids, *each.ids, *own.suffix_ids] for each in own.encode(texts, with_offsets=False)]
    for number, ids in enumerate(prompts):
        if not ids:
            raise PromptError(f"prompt {number} is empty: it has no tokens")
    streams = len(prompts) == 1 and how["num_beams"] == 1 and not as_json
    screen = _Screen(writer.decoder) if streams else None
    try:
        # Lists in, lists out.
        written = cast("list[list[int]]", generate(writer.model, prompts, streamer=screen, **how))
    except ValueError as error:
        raise PromptError(str(error).removeprefix("generate: ")) from error
    if screen is not None:
        return
    for text, ids in zip(texts, written, strict=True):
        said = writer.decoder.decode(ids)
        if as_json:
            echo_json(json.dumps({"prompt": text, "text": said, "tokens": ids}))
        else:
            echo(said)


class _Screen:
    """A streamer that shows text as soon as it is certain: a letter may consist of several tokens."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)
        self._ids: list[int] | None = None  # None: the prompt has not been told
        self._shown = ""

    def put(self, value: "Tensor") -> None:
        """The prompt, or where an answer begins, which are not shown; then every new token."""
        if self._ids is None:
            self._ids = []
            return
        for token in value.tolist():
            self._ids.append(token)
            self._show(self._tokenizer.step(self._stream, token))

    def end(self) -> None:
        """What was held back, as it is: the text may end inside a letter."""
        whole = self._tokenizer.decode(self._ids or [])
        self._show(whole.removeprefix(self._shown) if whole.startswith(self._shown) else "")
        echo()

    def _show(self, piece: str) -> None:
        self._shown += piece
        echo(piece, nl=False)
        sys.stdout.flush()
