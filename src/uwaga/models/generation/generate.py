"""`uwaga.models.generate`: checks prompts and options, packs the prompts, and gives the new tokens in the form of the prompts.

Letters: R rows, T tokens, N packed tokens.
"""

import warnings
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from uwaga.models.generation.beam_search import beam_search
from uwaga.models.generation.sampling import GenerationOptions, generate_tokens
from uwaga.models.model import Model
from uwaga.models.tokenizers import loading as tokenizers
from uwaga.models.tokenizers import token_ids
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
    writer: tokenizers.Tokenizer | None = None
    if _are_texts(prompts):
        reader, writer = (tokenizers.of_model(model, decoder=which) for which in (False, True))
        prompts = _ids_of_texts(prompts, reader)
    prompts = cast(Ids, prompts)
    if model.training:
        raise ValueError("generate: the model is in training mode, with dropout; call model.eval() first")
    options = GenerationOptions(
        max_new_tokens=max_new_tokens,
        do_sample=do_sample,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        num_beams=num_beams,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        seed=seed,
        eos_token_ids=_eos_token_ids(eos_token_ids, model),
    )
    packed = _pack(prompts, lengths, model)
    _check_positions(packed, max_new_tokens, model)
    fill = _pad_token_id(pad_token_id, prompts, options, model)
    _check_streamer(streamer, packed, options)
    written = _in_form_of_prompts(_new_tokens(model, packed, options, streamer), prompts, fill)
    return written if writer is None else [writer.decode(ids) for ids in cast("list[list[int]]", written)]


def _are_texts(prompts: Prompts) -> TypeGuard[Sequence[str]]:
    if isinstance(prompts, str):
        raise ValueError("generate: prompts must be a list, also for one text: [text]")
    if isinstance(prompts, Ragged | Tensor) or not isinstance(prompts, Sequence):
        return False
    return len(prompts) > 0 and all(isinstance(each, str) for each in prompts)


def _ids_of_texts(texts: Sequence[str], tokenizer: tokenizers.Tokenizer) -> list[list[int]]:
    for number, text in enumerate(texts):
        tokenizers.check_text(f"generate: prompt {number}", text)
        if unknown := tokenizer.unknown_characters(text):
            warnings.warn(f"generate: prompt {number}: {unknown_text(unknown)}", stacklevel=4)
    return tokenizer.with_special_tokens(texts)


def unknown_text(unknown: Sequence[str]) -> str:
    """What a message says of characters that a vocabulary lacks; ten of them at most."""
    shown = ", ".join(map(repr, unknown[:10])) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
    return f"the model has no token for {shown}: it cannot tell what is written there"


def _new_tokens(model: Model, prompts: Ragged, options: GenerationOptions, streamer: Any) -> Ragged:
    if not len(prompts):
        return prompts
    decoding = model.decoding(prompts, options.max_new_tokens)
    if options.num_beams > 1:
        return beam_search(decoding, options)
    return generate_tokens(decoding, prompts, options, streamer)


def _eos_token_ids(given: int | Sequence[int] | None, model: Model) -> tuple[int, ...]:
    if given is None:
        return model.config.eos_token_ids
    ids = (given,) if isinstance(given, int) else tuple(given)
    for each in ids:
        _check_id("eos_token_ids", each, model)
    return ids


def _pad_token_id(given: int | None, prompts: Ids, options: GenerationOptions, model: Model) -> int | None:
    if not isinstance(prompts, Tensor):
        if given is not None:
            raise ValueError("generate: pad_token_id needs prompts that are a tensor")
        return None
    if given is not None:
        _check_id("pad_token_id", given, model)
        return given
    if model.config.pad_token_id is not None:
        return model.config.pad_token_id
    # Without end tokens all rows have the same length.
    return options.eos_token_ids[0] if options.eos_token_ids else 0


def _check_id(name: str, value: object, model: Model) -> None:
    if type(value) is not int or not 0 <= value < model.config.output_vocab_size:
        raise ValueError(
            f"generate: {name} must be an id from 0 to {model.config.output_vocab_size - 1}, not {value!r}"
        )


def _check_streamer(streamer: Any, prompts: Ragged, options: GenerationOptions) -> None:
    if streamer is None:
        return
    if options.num_beams > 1:
        raise ValueError(
            "generate: a streamer cannot be used with a beam search, whose tokens are known only at its end"
        )
    if len(prompts) != 1:
        raise ValueError(f"generate: a streamer takes one prompt, not {len(prompts)}")


def _pack(prompts: Ids, lengths: Tensor | None, model: Model) -> Ragged:
    """(N,) ids of all prompts, checked."""
    if lengths is not None and not isinstance(prompts, Tensor):
        raise ValueError("generate: lengths need prompts that are a padded tensor (R, T)")
    result = _as_ragged(prompts, lengths, next(model.parameters()).device)
    token_ids.check_ids("generate", "prompts", result, model.config.vocab_size)
    empty = (result.lengths == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"generate: prompt {empty[0]} is empty")
    return result.with_values(result.values.long())


def _as_ragged(prompts: Ids, lengths: Tensor | None, device: torch.device) -> Ragged:
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


def _check_positions(prompts: Ragged, new_tokens: int, model: Model) -> None:
    """ValueError unless the model has a position for every token that it will read: all but the last new one."""
    most = model.config.max_tokens
    if most is None or not len(prompts):
        return
    longest = int(prompts.lengths.argmax())
    read = prompts.max_length if model.config.is_causal else 1
    if read + new_tokens - 1 > most:
        prompt = f"prompt {longest} of {prompts.max_length} tokens and " if model.config.is_causal else ""
        fits = most - read + 1
        way_out = f"max_new_tokens may be at most {fits}" if fits > 0 else f"shorten it to {most} tokens or fewer"
        needed = read + new_tokens - 1
        raise ValueError(
            f"generate: {prompt}{new_tokens} new tokens need {needed} positions, but the model has {most}; {way_out}"
        )


def _in_form_of_prompts(tokens: Ragged, prompts: Ids, pad_token_id: int | None) -> list[list[int]] | Ragged | Tensor:
    """Lists, Ragged or a padded tensor, as the prompts are."""
    if isinstance(prompts, Ragged):
        return tokens
    if isinstance(prompts, Tensor):
        assert pad_token_id is not None
        return tokens.to_padded(fill=pad_token_id)
    return [ids.tolist() for ids in tokens.to_list()]
