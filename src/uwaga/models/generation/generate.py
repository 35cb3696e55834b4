"""The door of generation. Letters: R rows, T tokens, N packed tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga.models.generation import beams, loop
from uwaga.models.generation import prompts as given
from uwaga.models.generation.choosing import chooser
from uwaga.models.generation.decoding import Generator
from uwaga.models.generation.loop import Streamer
from uwaga.models.generation.options import Options
from uwaga.models.generation.prompts import Prompts
from uwaga.ops.ragged import Ragged


@torch.no_grad()
def generate(
    model: Generator,
    prompts: Prompts,
    *,
    lengths: Tensor | None = None,
    max_new_tokens: int = 20,
    do_sample: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    num_beams: int = 1,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    eos: int | Sequence[int] | None = None,
    pad: int | None = None,
    seed: int | None = None,
    streamer: Streamer | None = None,
) -> list[list[int]] | Ragged | Tensor:
    """What a model writes after each prompt: greedy, drawn, or the best of a beam search.

    Prompts of different lengths are packed: none is padded, and a row that has ended leaves the batch. Token for token what
    transformers gives for a prompt alone, as far as rounding does not decide between two tokens.

    Args:
        model: a GPT2Model, T5Model or Transformer, in evaluation mode; an encoder-decoder reads the prompts with its encoder.
        prompts: token ids as a list of lists, as Ragged (N,), or as a tensor (R, T) with padding on the right.
        lengths: (R,) tokens of each padded prompt; None: there is no padding.
        max_new_tokens: at most so many are written.
        do_sample: draw each token; else take the likeliest.
        temperature: divides the logits before drawing; 1 by default.
        top_k: draw from the k likeliest tokens; all by default.
        top_p: draw from the likeliest tokens that together have this probability; 1 by default.
        num_beams: texts that a beam search follows at once.
        length_penalty: a finished text's log probability is divided by its length to this power; 1 by default.
        early_stopping: True ends a beam search with the num_beams-th finished text; False, the default, when it is unlikely
            that a better one comes; "never", when none can come.
        eos: ids of tokens that end a text, which are written too; None for the model's own, () for none.
        pad: what fills up rows where the prompts are a tensor; by default the model's padding, else its first eos.
        seed: of drawing; the same seed and prompt give the same text in any batch. None: drawn from PyTorch's generator.
        streamer: has put(ids) and end(), as those of transformers: told of the prompt's ids and of each new one, of one
            prompt without beams.

    Returns:
        the new tokens of each prompt, of the kind that the prompts are: lists, Ragged (N,) or a tensor (R, longest).

    Raises:
        ValueError: an option that has no meaning or no effect, ids that are not in the vocabulary, an empty prompt, more
            tokens than the model has positions for, a model in training mode.

    >>> from uwaga.models.gpt2.config import GPT2Config
    >>> from uwaga.models.gpt2.model import GPT2Model
    >>> model = GPT2Model(GPT2Config(vocab_size=20, d_model=8, num_layers=1, num_heads=2, d_ff=16, max_position_embeddings=10)).eval()
    >>> [len(ids) for ids in generate(model, [[3, 4, 5], [6]], max_new_tokens=4)]
    [4, 4]
    """
    if model.training:
        raise ValueError("generate: the model is in training mode, where dropout disturbs it; call model.eval() first")
    options = Options(
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        seed=seed,
        ends=_ends(eos, model),
    )
    packed = given.packed(prompts, lengths, model)
    given.check_room(packed, max_new_tokens, model)
    fill = _fill(pad, prompts, options, model)
    _check_streamer(streamer, packed, options)
    return given.as_given(_written(model, packed, options, streamer), prompts, fill)


def _written(model: Generator, prompts: Ragged, options: Options, streamer: Streamer | None) -> Ragged:
    if not len(prompts):
        return prompts
    decoding = model.decoding(prompts, options.max_new_tokens)
    if options.num_beams > 1:
        return beams.search(decoding, options)
    if streamer is not None:
        streamer.put(decoding.first.values.cpu())
    return loop.run(decoding, chooser(options, prompts), options, streamer)


def _ends(eos: int | Sequence[int] | None, model: Generator) -> tuple[int, ...]:
    if eos is None:
        return model.config.eos_token_ids
    ends = (eos,) if isinstance(eos, int) else tuple(eos)
    for each in ends:
        _check_id("eos", each, model)
    return ends


def _fill(pad: int | None, prompts: Prompts, options: Options, model: Generator) -> int | None:
    if not isinstance(prompts, Tensor):
        if pad is not None:
            raise ValueError("generate: pad fills up rows of a tensor, and these prompts are not one")
        return None
    if pad is not None:
        _check_id("pad", pad, model)
        return pad
    if model.config.pad_token_id is not None:
        return model.config.pad_token_id
    # Without an end all rows are of one length.
    return options.ends[0] if options.ends else 0


def _check_id(name: str, found: object, model: Generator) -> None:
    if type(found) is not int or not 0 <= found < model.config.output_vocab_size:
        raise ValueError(
            f"generate: {name} must be an id from 0 to {model.config.output_vocab_size - 1}, not {found!r}"
        )


def _check_streamer(streamer: Streamer | None, prompts: Ragged, options: Options) -> None:
    if streamer is None:
        return
    if options.num_beams > 1:
        raise ValueError("generate: a beam search knows no token before its end, and has nothing to stream")
    if len(prompts) != 1:
        raise ValueError(f"generate: a streamer takes one prompt, not {len(prompts)}")
