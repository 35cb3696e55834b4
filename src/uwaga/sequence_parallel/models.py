"""A model over a long text by several processes, each of which has a part of its tokens.

Letters: B batch, N tokens of the whole, n tokens of one process.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga.ops.ragged import Operand, PartOfBatch, Ragged, part_of
from uwaga.sequence_parallel.agreement import Refusal, agree, check_equal, checksum_of
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.sequence import sequence_parallel

_AT = "uwaga.sequence_parallel.forward:"
# Options of models that are about no single token.
_OPTIONS = ("decoder_ids", "outputs", "output_hidden_states")


def part(tokens: Operand, *, group: dist.ProcessGroup | None = None) -> PartOfBatch:
    """Return this process's part of a batch of token ids, which all processes have: consecutive ones, with rows that are cut anywhere.

    Args:
        tokens: (N,) one text, (B, N), or Ragged with values (N, ...): operands of attention, too.
        group: as in `attention`.

    Returns:
        Its rows as Ragged with values (n, ...), and which token of the batch the first one is.

    Raises:
        ValueError: tokens of more than two dimensions; no process group.
    """
    processes = Group.of(group)
    return part_of(_ragged(tokens), processes.rank, processes.size)


def forward(model: nn.Module, tokens: Operand, *, group: dist.ProcessGroup | None = None, **options: Any) -> Any:
    """Compute a model's output for this process's part of the tokens, with attention over all of them.

    All processes call this together, with the same weights and tokens. The outputs have the bits of one process. Gradients of weights are those
    of this process's tokens: add them up over the group. What is wrong in one process's arguments is an error in all; where the model fails in
    one process alone, the others raise ProcessGroupError with its rank and its error, and the group is of no more use.

    Args:
        model: of `uwaga.models`. Call a model of transformers inside `sequence_parallel`, with the position_ids of this part.
        tokens: ids (N,), (B, N), or Ragged with values (N,), the whole in every process.
        group: as in `attention`.
        options: for the model: decoder_ids, the whole as well, which are cut as the tokens are, outputs of every token, output_hidden_states.

    Returns:
        The model's output, Ragged, with the rows of `part`.

    Raises:
        ValueError: another model or option; outputs of single tokens; tokens that differ between processes; decoder_ids with another number of rows.
        NotImplementedError: hidden states are dropped (a model in training with dropout).
        ShapeError, ValueError, ProcessGroupError, NotImplementedError: as the model, and `attention`.
    """
    processes = Group.of(group)
    number, refusal = processes.next_call(), Refusal()
    header, rows = [0], None
    with refusal:
        rows, header = _prepared(model, tokens, processes, options)
    headers = agree(processes, "the tokens of a model", number, header, refusal.error)
    check_equal("tokens or decoder_ids (checksums)", [x[0] for x in headers])
    with sequence_parallel(processes.group), processes.errors_reported():
        return model(rows, **options)


def _prepared(model: Any, tokens: Operand, group: Group, options: dict[str, Any]) -> tuple[Ragged, list[int]]:
    """Return this process's part, and the checksum of what all processes must have. `options` gets the part of decoder_ids."""
    whole, name = _ragged(tokens), type(model).__name__
    check(hasattr(model, "reads_first_tokens"), f"{_AT} model must be one of uwaga.models, not {name}")
    for option, value in options.items():
        check(value is None or option in _OPTIONS, f"{_AT} {option} is not divided over processes")
    check(
        not model.reads_first_tokens(options.get("outputs")),
        f"{_AT} {name} has outputs of single tokens: pass outputs=() or the names of others",
    )
    if any(isinstance(x, nn.Dropout) and x.training and x.p > 0 for x in model.modules()):
        raise NotImplementedError(f"{_AT} {name} drops hidden states: call eval(), or set its dropout to 0")
    _check_ids(name, "tokens", whole, model.config.vocab_size, model.config.max_tokens)
    checksum = _checksum(whole, 0)
    if (decoder_ids := options.get("decoder_ids")) is not None:
        others = _ragged(decoder_ids)
        _check_ids(name, "decoder_ids", others, model.config.vocab_size)
        options["decoder_ids"] = part_of(others, group.rank, group.size, like=whole).rows
        checksum = _checksum(others, checksum)
    return part_of(whole, group.rank, group.size).rows, [checksum]


def _check_ids(model: str, name: str, ids: Ragged, size: int, max_tokens: int | None = None) -> None:
    """Check ids as the model does, which would find an error only in the process that has the token."""
    if ids.values.numel() and not 0 <= int(ids.values.min()) <= int(ids.values.max()) < size:
        raise ValueError(f"{_AT} {name} of {model} must lie between 0 and {size - 1}")
    longest = int(ids.lengths.max()) if len(ids) else 0
    check(
        max_tokens is None or longest <= max_tokens,
        f"{_AT} a row has {longest} tokens; {model} has {max_tokens} positions",
    )


def _checksum(ids: Ragged, checksum: int) -> int:
    return checksum_of(ids.offsets, checksum_of(ids.values, checksum))


def _ragged(tokens: Operand) -> Ragged:
    if isinstance(tokens, Ragged):
        return tokens
    if not isinstance(tokens, Tensor) or not 1 <= tokens.dim() <= 2:
        shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        raise ValueError(f"uwaga.sequence_parallel: tokens must be ids (N,) or (B, N), or Ragged, not {shape}")
    rows = tokens[None] if tokens.dim() == 1 else tokens
    offsets = torch.arange(len(rows) + 1, device=tokens.device) * rows.shape[1]
    return Ragged(rows.flatten(), offsets, max_length=rows.shape[1])
