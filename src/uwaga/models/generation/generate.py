"""`uwaga.models.generate`: checks prompts and options, packs the prompts, and gives the new tokens in the form of the prompts.

Letters: R rows, T tokens, N packed tokens.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from uwaga._base.options import OptionError, read
from uwaga.models.generation.sampling import GenerationOptions, beam_search, generate_tokens
from uwaga.models.model import Model
from uwaga.models.tokenizers.loading import of_model
from uwaga.models.tokenizers.tokenizer import Tokenizer, check_text
from uwaga.nn.operand import check_ids
from uwaga.ops.ragged import Ragged

Ids = Sequence[Sequence[int]] | Ragged | Tensor
Prompts = Sequence[str] | Ids


@torch.no_grad()
def generate(
    model: Model,
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
    eos_token_ids: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    seed: int | None = None,
    streamer: Any = None,
) -> list[str] | list[list[int]] | Ragged | Tensor:
    """New tokens after each prompt, by greedy search, sampling or beam search.

    Prompts of different lengths are packed without padding, and a finished row leaves the batch. The tokens are those that
    transformers generates for each prompt alone, unless rounding decides between two tokens.

    Args:
        model: with a decoder, in evaluation mode; an encoder-decoder reads the prompts with its encoder.
        prompts: texts, for a model that `uwaga.models.load` returned, whose tokenizer is used; or token ids as a list of lists,
            as Ragged (N,), or as a tensor (R, T) with padding on the right.
        lengths: (R,) tokens of each padded prompt; None: there is no padding.
        max_new_tokens: the largest number of new tokens of a prompt.
        do_sample: sample each token; else take the most probable one.
        temperature: divides the logits before sampling; 1 by default.
        top_k: sample from the k most probable tokens; all by default.
        top_p: sample from the most probable tokens that together have this probability; 1 by default.
        num_beams: number of beams of a beam search; 1 for none.
        length_penalty: the log probability of a finished text is divided by its length to this power; 1 by default.
        early_stopping: when a beam search ends: True, with the num_beams-th finished text; False, the default, when a better
            one is unlikely; "never", when a better one is impossible.
        eos_token_ids: ids of tokens that end a text, which are part of the result; None for the model's own, () for none.
        pad_token_id: fills up rows where the prompts are a tensor; by default the model's, else its first end token.
        seed: of sampling; the same seed and prompt give the same text in any batch. None: taken from PyTorch's generator.
        streamer: an object with put(ids) and end(), as those of transformers, which is given the prompt and then each new token;
            for a single prompt without beam search.

    Returns:
        the new tokens of each prompt, in the form of the prompts: texts, lists, Ragged (N,) or a tensor (R, longest).

    Warns:
        UserWarning: a text has characters that the model's vocabulary lacks.

    Raises:
        ValueError: a model that does not continue texts, an option of a wrong type or value, or without effect beside the others, ids outside the vocabulary, an empty prompt, more tokens than
            the model has positions, a model in training mode, logits that contain NaN, texts for a model without a directory.
        CheckpointError: texts for a model whose directory has no tokenizer that fits.

    >>> from uwaga.models import Transformer, config
    >>> model = Transformer(config("gpt2", vocab_size=20, d_model=8, num_layers=1, num_heads=2, d_ff=16, max_position_embeddings=10)).eval()
    >>> [len(ids) for ids in generate(model, [[3, 4, 5], [6]], max_new_tokens=4)]
    [4, 4]
    >>> from uwaga.models.checkpoints.load_save import load
    >>> generate(load("speller"), ["attention", "cat"])
    ['AH T EH N SH AH N', 'K AE T']
    """
    if not isinstance(model, Model) or not model.continues:
        kind = getattr(getattr(model, "config", None), "model_type", None)
        named = type(model).__name__ + (f" ({kind})" if isinstance(kind, str) else "")
        raise ValueError(f"generate: {named} does not continue texts; a uwaga.models.Transformer with a decoder does")
    if isinstance(prompts, str):
        raise ValueError("generate: prompts must be a list, also for one text: [text]")
    writer: Tokenizer | None = None
    if isinstance(prompts, Sequence) and prompts and all(isinstance(each, str) for each in prompts):
        reader, writer = (of_model(model, decoder=which) for which in (False, True))
        prompts = _ids_of_texts(cast(Sequence[str], prompts), reader)
    given = (eos_token_ids,) if isinstance(eos_token_ids, int) else tuple(eos_token_ids or ())
    options = _options(
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        seed=seed,
        eos_token_ids=model.config.eos_token_ids if eos_token_ids is None else given,
    )
    ids = {"eos_token_ids": given, "pad_token_id": () if pad_token_id is None else (pad_token_id,)}
    packed = _as_ragged(cast(Ids, prompts), lengths, next(model.parameters()).device)
    check_ids("generate", "prompts", packed, model.config.vocab_size)
    is_padded = isinstance(prompts, Tensor)
    for rule in _broken_rules(model, packed, options, ids, lengths, streamer, is_padded=is_padded):
        raise ValueError(f"generate: {rule}")
    tokens = packed = packed.with_values(packed.values.long())
    if len(packed):
        decoding = model.decoding(packed, max_new_tokens)
        is_beam_search = num_beams > 1
        tokens = (
            beam_search(decoding, options) if is_beam_search else generate_tokens(decoding, packed, options, streamer)
        )
    if isinstance(prompts, Ragged):
        return tokens
    if is_padded:
        fill = model.config.pad_token_id if pad_token_id is None else pad_token_id
        # Without end tokens all rows have the same length.
        return tokens.to_padded(fill=(*options.eos_token_ids, 0)[0] if fill is None else fill)
    written = [each.tolist() for each in tokens.to_list()]
    return written if writer is None else [writer.decode(each) for each in written]


def _options(**values: object) -> GenerationOptions:
    try:
        result: GenerationOptions = read(GenerationOptions, values)
    except OptionError as error:
        raise ValueError(f"generate: {error}") from None
    return result


def _ids_of_texts(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    for number, text in enumerate(texts):
        check_text(f"generate: prompt {number}", text)
        if unknown := tokenizer.unknown_characters(text):
            warnings.warn(f"generate: prompt {number}: {unknown_text(unknown)}", stacklevel=4)
    return tokenizer.with_special_tokens(texts)


def unknown_text(unknown: Sequence[str]) -> str:
    """What a message says of characters that a vocabulary lacks; ten of them at most."""
    shown = ", ".join(map(repr, unknown[:10])) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
    return f"the model has no token for {shown}: it cannot tell what is written there"


def _as_ragged(prompts: Ids, lengths: Tensor | None, device: torch.device) -> Ragged:
    """(N,) ids of all prompts."""
    if isinstance(prompts, Ragged):
        return prompts
    if isinstance(prompts, Tensor):
        if prompts.dim() != 2:
            raise ValueError(f"generate: padded prompts must be (R, T), not {tuple(prompts.shape)}")
        whole = torch.full(prompts.shape[:1], prompts.shape[1], device=prompts.device)
        return Ragged.from_padded(prompts, whole if lengths is None else lengths)
    if not isinstance(prompts, Sequence) or not all(map(_is_ids, prompts)):
        raise ValueError(
            "generate: prompts must be a list of texts or of lists of ids, Ragged, or a padded tensor (R, T)"
        )
    if not prompts:
        return Ragged(*(torch.zeros(count, dtype=torch.int64, device=device) for count in (0, 1)))
    return Ragged.from_list([torch.as_tensor(ids, dtype=torch.int64, device=device) for ids in prompts])


def _is_ids(prompt: object) -> bool:
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1 and not prompt.dtype.is_floating_point
    return isinstance(prompt, Sequence) and all(type(each) is int for each in prompt)


def _broken_rules(
    model: Model,
    prompts: Ragged,
    options: GenerationOptions,
    ids: Mapping[str, Sequence[object]],
    lengths: Tensor | None,
    streamer: Any,
    *,
    is_padded: bool,
) -> Iterator[str]:
    if model.training:
        yield "the model is in training mode, with dropout; call model.eval() first"
    if lengths is not None and not is_padded:
        yield "lengths need prompts that are a padded tensor (R, T)"
    if ids["pad_token_id"] and not is_padded:
        yield "pad_token_id needs prompts that are a tensor"
    for name, given in ids.items():
        for each in given:
            if type(each) is not int or not 0 <= each < model.config.output_vocab_size:
                yield f"{name} must be an id from 0 to {model.config.output_vocab_size - 1}, not {each!r}"
    for number in (prompts.lengths == 0).nonzero().flatten().tolist():
        yield f"prompt {number} is empty"
    most, is_causal, new = model.config.max_tokens, model.config.is_causal, options.max_new_tokens
    read = prompts.max_length if is_causal else 1
    needed = read + new - 1  # a position for every token that is read: all but the last new one
    if most is not None and len(prompts) and needed > most:
        prompt = f"prompt {int(prompts.lengths.argmax())} of {read} tokens and " if is_causal else ""
        fits = most - read + 1
        way_out = f"max_new_tokens may be at most {fits}" if fits > 0 else f"shorten it to {most} tokens or fewer"
        yield f"{prompt}{new} new tokens need {needed} positions, but the model has {most}; {way_out}"
    if streamer is not None and options.num_beams > 1:
        yield "a streamer cannot be used with a beam search, whose tokens are known only at its end"
    if streamer is not None and len(prompts) != 1:
        yield f"a streamer takes one prompt, not {len(prompts)}"
