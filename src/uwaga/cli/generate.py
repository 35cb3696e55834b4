"""`uwaga generate`: text that a model generates after prompts, printed token by token."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from uwaga._base import untrusted
from uwaga._base.errors import CheckpointError
from uwaga.cli.terminal import Storage, echo, echo_json, ending, fail, in_option_names

if TYPE_CHECKING:
    from torch import Tensor

    from uwaga.models.tokenizers.tokenizer import Tokenizer
    from uwaga.models.transformer import Transformer


def generate(
    prompts: Annotated[list[str], typer.Argument(help="Texts to continue, or to answer; - reads one from stdin.")],
    model: Annotated[
        str, typer.Option(help="Model: bard, speller, copyist, a directory, or an id of the Hub.")
    ] = "bard",
    max_new_tokens: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 20,
    do_sample: Annotated[
        bool, typer.Option("--do-sample", help="Sample each token instead of taking the most probable one.")
    ] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Number by which the logits are divided before sampling.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k most probable tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most probable tokens that together reach this probability.")
    ] = None,
    num_beams: Annotated[int, typer.Option(help="Number of beams of a beam search; 1 turns beam search off.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Random seed for --do-sample.")] = None,
    dtype: Annotated[Storage, typer.Option(help="Data type of the weights and the computation.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Continue prompts, or answer them. The text of a single prompt is printed as it is generated, without the prompt."""
    options = {
        "max_new_tokens": max_new_tokens,
        "do_sample": do_sample,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "num_beams": num_beams,
        "seed": seed,
    }
    with ending("generate", CheckpointError):
        _write(_load(model, dtype), [_text(n, prompt) for n, prompt in enumerate(prompts)], options, as_json=as_json)


def _text(number: int, prompt: str) -> str:
    try:
        if prompt == "-":
            prompt = untrusted.read_stream(sys.stdin.buffer, "stdin", untrusted.LINE_BYTES).decode()
        prompt.encode()  # an argument that is not UTF-8 arrives with lone surrogates
    except UnicodeError:
        fail("generate", f"prompt {number} is not valid UTF-8")
    except OSError as error:
        fail("generate", f"prompt {number} cannot be read: {error.strerror}")
    return prompt


def _load(name: str, dtype: str) -> "Transformer":
    """Load a model that generates text. Raises CheckpointError."""
    from uwaga.models.opening import open as open_model

    result = open_model(name, dtype=dtype)
    from uwaga.models import Transformer  # after it: a name that is not there is said before PyTorch is imported

    if not isinstance(result, Transformer):
        why = f"{result.label} is a model of transformers, which generates its text"
    elif result.decoder is None:
        why = f"a {result.label} model has only an encoder, and does not generate text"
    else:
        return result
    raise CheckpointError(f"{result.directory}: {why}")


def _write(model: "Transformer", texts: Sequence[str], options: dict[str, Any], *, as_json: bool) -> None:
    from uwaga.models.generating import generate, unknown_text

    prompts = model.tokenizer.with_special_tokens(texts)
    for number, (text, ids) in enumerate(zip(texts, prompts, strict=True)):
        if not ids:
            fail("generate", f"prompt {number} is empty: it has no tokens")
        if unknown := model.tokenizer.unknown_characters(text):
            echo(f"uwaga generate: prompt {number}: {unknown_text(unknown)}", err=True)
    streams = len(prompts) == 1 and options["num_beams"] == 1 and not as_json
    streamer = _TextStreamer(model.target_tokenizer) if streams else None
    try:
        # Lists in, lists out.
        written = cast("list[list[int]]", generate(model, prompts, streamer=streamer, **options))
    except ValueError as error:  # options that the model does not take, or that contradict each other
        fail("generate", in_option_names(str(error).removeprefix("generate: "), options))
    if streamer is not None:
        return
    for text, ids in zip(texts, written, strict=True):
        answer = model.target_tokenizer.decode(ids)
        if as_json:
            echo_json(json.dumps({"prompt": text, "text": answer, "tokens": ids}))
        else:
            echo(answer)


class _TextStreamer:
    """A streamer that prints text as soon as its characters are complete: one may consist of several tokens."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)
        self._ids: list[int] | None = None  # None: before the prompt, or a decoder's start token, which is not printed
        self._shown = ""

    def put(self, value: "Tensor") -> None:
        if self._ids is None:
            self._ids = []
            return
        for token in value.tolist():
            self._ids.append(token)
            self._show(self._tokenizer.step(self._stream, token))

    def end(self) -> None:
        """Print the rest: the text may end with an incomplete character."""
        whole = self._tokenizer.decode(self._ids or [])
        if whole.startswith(self._shown):
            self._show(whole.removeprefix(self._shown))
        echo()

    def _show(self, piece: str) -> None:
        self._shown += piece
        echo(piece, nl=False)
        sys.stdout.flush()
