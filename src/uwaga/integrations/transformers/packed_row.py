"""Texts in one row of a model of transformers, as it packs them for FlashAttention, and whether a model keeps them apart there.

Letters: N tokens of all texts, M width.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from uwaga.nn.operand import values_of
from uwaga.nn.positions import roberta_positions, token_positions
from uwaga.ops.ragged import Ragged


def packed_row(ids: Ragged, padding: int | None) -> dict[str, Any]:
    """What the model takes by keyword: the tokens (1, N), their positions, the number of the text of each, and the texts' offsets.

    ids: values (N,); no text may be empty. padding: of `position_padding`.
    """
    if padding is None:
        at_N = token_positions("packed_row", ids.with_values(ids.values[:, None]), 0)
    else:
        at_N = values_of(roberta_positions(ids, padding))
    text_N = torch.arange(len(ids), dtype=torch.int32).repeat_interleave(ids.lengths.cpu()).to(ids.values.device)
    offsets = ids.offsets.to(torch.int32)
    return {
        "input_ids": ids.values[None],
        "position_ids": at_N[None],
        "seq_idx": text_N[None],
        "cu_seq_lens_q": offsets,
        "cu_seq_lens_k": offsets,
        "max_length_q": ids.max_length,
        "max_length_k": ids.max_length,
    }


def position_padding(model: nn.Module) -> int | None:
    """RoBERTa's padding token, after which a model counts positions, without the padding tokens that a text itself may have; None:
    positions are counted from 0. The rule is that of sentence-transformers: no other model has both attributes in one module."""
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), nn.Embedding):
            return padding
    return None


def example_text(length: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Ids above those that most vocabularies have for padding and the like."""
    least = min(5, vocabulary - 1)
    return [least + (7 * seed + 3 * at) % (vocabulary - least) for at in range(length)]


def keeps_apart(
    alone: Callable[[Tensor], Mapping[str, Tensor]],
    together: Callable[[Sequence[list[int]]], Mapping[str, Tensor]],
    device: torch.device,
    vocabulary: int,
) -> bool:
    """Whether two texts in one row have the states that they have alone. They do not where a layer mixes tokens outside of
    attention, as a convolution or a recurrence, or counts positions by itself, or reads one state of each row.

    alone: ids (1, n) to what is computed of a text by itself, by name: (n, M) of its tokens, or (1, M). together: texts to that of all
    in one row: (N, M), or (2, M).
    """
    texts = example_text(3, vocabulary), example_text(4, vocabulary, 1)
    try:
        each = [alone(torch.tensor([ids], device=device)) for ids in texts]
        result = together(texts)
    except (KeyError, ValueError, NotImplementedError):  # a layer that says so itself, or looks for attention_mask
        return False
    expected = {name: torch.cat([of_text[name] for of_text in each]) for name in each[0]}
    return all(name in result and is_close(result[name], x) for name, x in expected.items())


def is_close(states_NM: Tensor, expected_NM: Tensor) -> bool:
    """Whether states are the same up to rounding: far above what that and its amplification make in bfloat16, and far below what a
    neighbour does."""
    if states_NM.shape != expected_NM.shape:
        return False
    difference = (states_NM.double() - expected_NM.double()).norm(dim=-1)
    return bool((difference <= 0.1 * expected_NM.double().norm(dim=-1)).all())
