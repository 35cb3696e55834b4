"""What models of an encoder and a decoder share: two inputs that belong together. Letters: R rows, N packed tokens."""

from typing import TypeVar

import torch

from uwaga.ops.ragged import Operand, Ragged

_Stack = TypeVar("_Stack")


def check(model: str, ids: Operand, decoder_ids: Operand) -> None:
    """Both Ragged or neither, with as many rows. Raises ValueError."""
    if isinstance(ids, Ragged) != isinstance(decoder_ids, Ragged):
        raise ValueError(f"{model}: ids and decoder_ids must both be Ragged, or neither")
    rows, decoder_rows = _rows(ids), _rows(decoder_ids)
    if rows != decoder_rows:
        raise ValueError(f"{model}: ids and decoder_ids must have the same rows, not {rows} and {decoder_rows}")


def need_decoder(model: str, decoder: _Stack | None) -> _Stack:
    """The decoder itself; ValueError for a model that is an encoder alone."""
    if decoder is None:
        raise ValueError(f"{model}: this model is an encoder alone, and decodes nothing")
    return decoder


def starts(prompts: Ragged, start: int) -> Ragged:
    """(R,) ids, packed: the token that a decoder begins with, once for each prompt."""
    device = prompts.values.device
    first_R = torch.full((len(prompts),), start, dtype=torch.int64, device=device)
    return Ragged(first_R, torch.arange(len(prompts) + 1, device=device), max_length=1)


def _rows(ids: Operand) -> tuple[int, ...]:
    return (len(ids),) if isinstance(ids, Ragged) else tuple(ids.shape[:-1])
