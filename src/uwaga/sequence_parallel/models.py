"""A model over a long text by several processes, each of which has a part of its tokens.

Letters: B batch, N tokens of the whole, n tokens of one process.
"""

import inspect
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from uwaga.ops.dropout import rows_from
from uwaga.ops.ragged import Operand, PartOfBatch, Ragged, part_of
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.sequence import sequence_parallel

_AT = "uwaga.sequence_parallel.forward:"


def part(tokens: Operand, *, group: dist.ProcessGroup | None = None) -> PartOfBatch:
    """This process's part of a batch of token ids, which all processes have: consecutive ones, with rows that are cut anywhere.

    Args:
        tokens: (N,) one text, (B, N), or Ragged with values (N,).
        group: as in `attention`.

    Returns:
        Its rows as Ragged with values (n,), and which token of the batch the first one is.

    Raises:
        ValueError: tokens of more than two dimensions; no process group.
    """
    own = Group.of(group)
    return part_of(_ragged(tokens), own.rank, own.size)


def forward(model: nn.Module, tokens: Operand, *, group: dist.ProcessGroup | None = None, **options: Any) -> Any:
    """What a model returns of this process's part of the tokens, where attention is over all of them.

    All processes call this together, with the same weights and tokens. The outputs of a model of `uwaga.models` have the bits of
    one process. Gradients of weights are those of this process's tokens: add them up over the group.

    Args:
        model: of `uwaga.models`; or of transformers, with attn_implementation="uwaga" and an argument position_ids. Linear maps of
            transformers' models have the bits of one process after `uwaga.integrations.pack_linear(model)`.
        tokens: ids (N,), (B, N), or Ragged with values (N,), the whole in every process. transformers' models take no Ragged.
        group: as in `attention`.
        options: for the model. Its decoder_ids, the whole as well, are cut as the tokens are.

    Returns:
        The model's output. Of `uwaga.models` it is Ragged, with the rows of `part`; of transformers (B, n, ...), the same positions of
        each row.

    Raises:
        ValueError: a model of transformers with another implementation of attention, or that takes no position_ids.
        ShapeError, ValueError, ProcessGroupError, NotImplementedError: as the model, and `attention`.
    """
    own = Group.of(group)
    if hasattr(getattr(model, "config", None), "_attn_implementation"):
        return _forward_of_transformers(model, tokens, own, options)
    whole = _ragged(tokens)
    rows, first_token = part_of(whole, own.rank, own.size)
    if (decoder_ids := options.get("decoder_ids")) is not None:
        options["decoder_ids"] = part_of(_ragged(decoder_ids), own.rank, own.size, like=whole).rows
    with sequence_parallel(own.group), rows_from(first_token):
        return model(rows, **options)


def _forward_of_transformers(model: Any, tokens: Operand, group: Group, options: dict[str, Any]) -> Any:
    name = type(model).__name__
    if isinstance(tokens, Ragged):
        raise ValueError(f"{_AT} {name} takes no Ragged tokens")
    if model.config._attn_implementation != "uwaga":
        raise ValueError(
            f"{_AT} {name} has attn_implementation={model.config._attn_implementation!r}; only 'uwaga' is computed by several processes"
        )
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ValueError(f"{_AT} {name} takes no position_ids: a part of a text would be read as its beginning")
    if given := [x for x in ("attention_mask", "position_ids", "past_key_values") if options.get(x) is not None]:
        raise ValueError(f"{_AT} {given[0]} is not divided over processes: give texts of one length, without padding")
    ids = tokens[None] if tokens.dim() == 1 else tokens
    first, last = (ids.shape[1] * n // group.size for n in (group.rank, group.rank + 1))
    positions = torch.arange(first, last, device=ids.device) + _first_position(model)
    if "use_cache" in inspect.signature(model.forward).parameters:
        options.setdefault("use_cache", False)
    with sequence_parallel(group.group):
        return model(input_ids=ids[:, first:last], position_ids=positions.expand(len(ids), -1), **options)


def _first_position(model: nn.Module) -> int:
    """0; in RoBERTa's family the position after that of padding."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(cast(int, module.padding_idx)) + 1
    return 0


def _ragged(tokens: Operand) -> Ragged:
    if isinstance(tokens, Ragged):
        return tokens
    if not isinstance(tokens, Tensor) or not 1 <= tokens.dim() <= 2:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"uwaga.sequence_parallel: tokens must be ids (N,) or (B, N), or Ragged, not {shape}")
    rows = tokens[None] if tokens.dim() == 1 else tokens
    offsets = torch.arange(len(rows) + 1, device=tokens.device) * rows.shape[1]
    return Ragged(rows.flatten(), offsets, max_length=rows.shape[1])
