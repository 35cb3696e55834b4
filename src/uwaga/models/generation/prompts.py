"""Prompts as they come, packed; and what was written, as the prompts came. Letters: R rows, T tokens, N packed tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from uwaga.models import inputs
from uwaga.models.generation.decoding import Generator
from uwaga.ops.ragged import Ragged

Prompts = Sequence[Sequence[int]] | Ragged | Tensor


def packed(prompts: Prompts, lengths: Tensor | None, model: Generator) -> Ragged:
    """(N,) ids of all prompts, each checked."""
    if lengths is not None and not isinstance(prompts, Tensor):
        raise ValueError("generate: lengths are of padded prompts, a tensor (R, T)")
    found = _packed(prompts, lengths)
    inputs.check_ids("generate", "prompts", found, model.config.vocab_size)
    empty = (found.lengths == 0).nonzero().flatten().tolist()
    if empty:
        raise ValueError(f"generate: prompt {empty[0]} is empty")
    return found.with_values(found.values.long())


def _packed(prompts: Prompts, lengths: Tensor | None) -> Ragged:
    if isinstance(prompts, Ragged):
        return prompts
    if isinstance(prompts, Tensor):
        if prompts.dim() != 2:
            raise ValueError(f"generate: padded prompts must be (R, T), not {tuple(prompts.shape)}")
        whole = torch.full(prompts.shape[:1], prompts.shape[1], device=prompts.device)
        return Ragged.from_padded(prompts, whole if lengths is None else lengths)
    if isinstance(prompts, str) or not isinstance(prompts, Sequence) or not all(map(_is_ids, prompts)):
        raise ValueError("generate: prompts must be a list of lists of ids, Ragged, or a padded tensor (R, T)")
    if not prompts:
        return Ragged(torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))
    return Ragged.from_list([torch.as_tensor(ids, dtype=torch.int64) for ids in prompts])


def _is_ids(prompt: object) -> bool:
    if isinstance(prompt, Tensor):
        return prompt.dim() == 1 and not prompt.dtype.is_floating_point
    return isinstance(prompt, Sequence) and all(type(each) is int for each in prompt)


def check_room(prompts: Ragged, new_tokens: int, model: Generator) -> None:
    """The model has a position for every token that it will read: the last new one is only written."""
    most = model.config.max_tokens
    if most is None or not len(prompts):
        return
    longest = int(prompts.lengths.argmax())
    read = prompts.max_length if model.prompt_counts else 1
    if read + new_tokens - 1 > most:
        beside = f"prompt {longest} has {prompts.max_length} tokens, and " if model.prompt_counts else ""
        raise ValueError(
            f"generate: {beside}{new_tokens} new ones take {read + new_tokens - 1} positions; the model has {most}"
        )


def as_given(written: Ragged, prompts: Prompts, pad: int | None) -> list[list[int]] | Ragged | Tensor:
    """What was written, of the kind that the prompts are."""
    if isinstance(prompts, Ragged):
        return written
    if isinstance(prompts, Tensor):
        assert pad is not None
        return written.to_padded(fill=pad)
    return [ids.tolist() for ids in written.to_list()]
