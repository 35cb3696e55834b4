"""A model over a long text by several processes, each of which has a part of its tokens.

Letters: B batch, N tokens of the whole, n tokens of one process.
"""

import inspect
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga._base.tracing import is_autocast
from uwaga.ops.dropout import rows_from
from uwaga.ops.ragged import Operand, PartOfBatch, Ragged, part_of
from uwaga.sequence_parallel.agreement import Refusal, agree, check_equal, checksum_of
from uwaga.sequence_parallel.exchange import Group
from uwaga.sequence_parallel.sequence import sequence_parallel

_AT = "uwaga.sequence_parallel.forward:"
# What all processes must have, as checksums in their headers.
_SAME = (
    "tokens, decoder_ids or only (checksums)",
    "the state of torch's random generator, by which hidden states are dropped (checksums)",
)
# Options of models that are about no single token.
_OPTIONS = ("decoder_ids", "only", "outputs", "output_hidden_states")
_OPTIONS_OF_TRANSFORMERS = ("output_hidden_states", "return_dict", "use_cache")
# Heads of transformers that read each token alone; sequence classifiers, say, read the last one, or the first.
_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForTokenClassification")


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

    All processes call this together, with the same weights and tokens. The outputs of a model of `uwaga.models` have the bits of
    one process, dropout too where all have the same torch.manual_seed. Gradients of weights are those of this process's tokens: add them up
    over the group. What is wrong in one process's arguments is an error in all; where the model fails in one process alone, the others raise
    ProcessGroupError with its rank and its error, and the group is of no more use.

    Args:
        model: of `uwaga.models`; or of transformers, with attn_implementation="uwaga" and an argument position_ids, without a head or with one
            that reads each token alone (ForCausalLM, ForMaskedLM, ForTokenClassification). Linear maps of transformers' models have the
            bits of one process after `uwaga.integrations.pack_linear(model)`.
        tokens: ids (N,), (B, N), or Ragged with values (N,), the whole in every process. transformers' models take no Ragged.
        group: as in `attention`.
        options: for the model: decoder_ids, the whole as well, which are cut as the tokens are, only, outputs, output_hidden_states; of
            transformers output_hidden_states. `only` and outputs of first tokens where no row lies with two processes.

    Returns:
        The model's output. Of `uwaga.models` it is Ragged, with the rows of `part`; of transformers (B, n, ...), the same positions of
        each row, without pooler_output.

    Raises:
        ValueError: another option; a model of transformers with another implementation of attention, another head, or that takes no
            position_ids; tokens that differ between processes; decoder_ids with another number of rows.
        NotImplementedError: hidden states are dropped (a model in training with dropout) under torch.autocast, with decoder_ids, with outputs of
            single tokens, or in a model of transformers.
        ShapeError, ValueError, ProcessGroupError, NotImplementedError: as the model, and `attention`.
    """
    processes = Group.of(group)
    prepare = _of_transformers if hasattr(getattr(model, "config", None), "_attn_implementation") else _of_uwaga
    number, refusal = processes.next_call(), Refusal()
    header, call = [0] * len(_SAME), None
    with refusal:
        call, header = prepare(model, tokens, processes, options)
    headers = agree(processes, "the tokens of a model", number, header, refusal.error)
    for name, checksums in zip(_SAME, zip(*headers, strict=True), strict=False):
        check_equal(name, checksums)
    assert call is not None
    with sequence_parallel(processes.group), processes.errors_reported():
        return call()


# The call of a model with this process's part, and what all processes must have (_SAME).
_Prepared = tuple[Callable[[], Any], list[int]]


def _of_uwaga(model: Any, tokens: Operand, group: Group, options: dict[str, Any]) -> _Prepared:
    name, drops, whole = type(model).__name__, _drops_hidden_states(model), _ragged(tokens)
    _check_options(options, _OPTIONS)
    _check_ids(name, "tokens", whole, model.config.vocab_size, getattr(model.config, "max_tokens", None))
    checksum = _checksum(whole, zlib.crc32(repr(options.get("only")).encode()))
    rows, first_token = part_of(whole, group.rank, group.size)
    if (decoder_ids := options.get("decoder_ids")) is not None:
        others = _ragged(decoder_ids)
        _check_ids(name, "decoder_ids", others, model.config.vocab_size)
        options["decoder_ids"] = part_of(others, group.rank, group.size, like=whole).rows
        checksum = _checksum(others, checksum)
    reads = getattr(model, "reads_first_tokens", None)
    is_single = options.get("only") is not None or (reads is not None and reads(options.get("outputs")))
    if is_single:
        _check_uncut(name, whole, group.size)
    causes = (
        ("torch.autocast", is_autocast("cpu")),
        ("decoder_ids", decoder_ids is not None),
        ("outputs of single tokens", is_single),
    )
    if drops and (with_these := [cause for cause, is_there in causes if is_there]):
        raise NotImplementedError(
            f"{_AT} {name} drops hidden states, which with {with_these[0]} does not have the bits of one process: call eval(), or set its "
            "dropout to 0"
        )

    def call() -> Any:
        with rows_from(first_token):
            return model(rows, **options)

    return call, [checksum, checksum_of(torch.get_rng_state(), 0) if drops else 0]


def _of_transformers(model: Any, tokens: Operand, group: Group, options: dict[str, Any]) -> _Prepared:
    name, arguments = type(model).__name__, inspect.signature(model.forward).parameters
    if isinstance(tokens, Ragged):
        raise ValueError(f"{_AT} {name} takes no Ragged tokens")
    check(
        model.config._attn_implementation == "uwaga",
        f"{_AT} {name} has attn_implementation={model.config._attn_implementation!r}; only 'uwaga' is computed by several processes",
    )
    check(
        "position_ids" in arguments,
        f"{_AT} {name} takes no position_ids: a part of a text would be read as its beginning",
    )
    check(
        getattr(model, "base_model", model) is model or name.endswith(_HEADS),
        f"{_AT} {name} has a head that may read single tokens; served are {', '.join(_HEADS)}, and models without a head",
    )
    _check_options(options, _OPTIONS_OF_TRANSFORMERS)
    if _drops_hidden_states(model):
        raise NotImplementedError(
            f"{_AT} {name} drops hidden states by PyTorch's random numbers: call eval(), or set its dropouts to 0"
        )
    whole = _ragged(tokens)
    ids = tokens[None] if tokens.dim() == 1 else tokens
    check(
        ids.shape[1] >= group.size,
        f"{_AT} texts of length {ids.shape[1]} are too short for {group.size} processes; each process needs a token",
    )
    _check_ids(name, "tokens", whole, model.get_input_embeddings().num_embeddings)
    first, last = (ids.shape[1] * n // group.size for n in (group.rank, group.rank + 1))
    positions = _positions(model, ids)[:, first:last]
    options["return_dict"] = True
    if "use_cache" in arguments:
        options["use_cache"] = False

    def call() -> Any:
        output = model(input_ids=ids[:, first:last], position_ids=positions, **options)
        return replace(output, pooler_output=None) if "pooler_output" in output else output

    return call, [_checksum(whole, 0), 0]


def _positions(model: nn.Module, ids: Tensor) -> Tensor:
    """Return (B, N): from 0 on; in RoBERTa's family those of tokens follow that of padding, which is any token with the id of padding."""
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            padding: Any = module.padding_idx
            is_token = ids != padding
            return is_token.cumsum(1) * is_token + padding
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def _drops_hidden_states(model: nn.Module) -> bool:
    return any(isinstance(x, nn.Dropout) and x.training and x.p > 0 for x in model.modules())


def _check_options(options: Mapping[str, Any], served: Collection[str]) -> None:
    for name, value in options.items():
        if value is not None and name not in served:
            why = ": give texts of one length, without padding" if name in ("attention_mask", "lengths") else ""
            raise ValueError(f"{_AT} {name} is not divided over processes{why}")


def _check_ids(model: str, name: str, ids: Ragged, size: int, max_tokens: int | None = None) -> None:
    """Check ids as the model does, which would find an error only in the process that has the token."""
    if ids.values.numel() and not 0 <= int(ids.values.min()) <= int(ids.values.max()) < size:
        raise ValueError(f"{_AT} {name} of {model} must lie between 0 and {size - 1}")
    longest = int(ids.lengths.max()) if len(ids) else 0
    check(
        max_tokens is None or longest <= max_tokens,
        f"{_AT} a row has {longest} tokens; {model} has {max_tokens} positions",
    )


def _check_uncut(model: str, whole: Ragged, size: int) -> None:
    """Raise ValueError unless every row lies with one process, and has a token."""
    for rank in range(size):
        check(
            part_of(whole, rank, size).rows.first is None,
            f"{_AT} outputs of single tokens of {model} need rows that lie with one process; the first row of rank {rank} began before",
        )
    if bool((is_empty := whole.lengths == 0).any()):
        raise ValueError(
            f"{_AT} row {int(is_empty.int().argmax())} is empty: it has no token for {model}'s outputs of single tokens"
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
