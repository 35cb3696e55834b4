"""From what the user passed to a Call, and back. Every check of the arguments is made here.

The common case must stay cheap: its shapes are compared once, and only a failure builds the error message.
Letters as in api.py.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, bind, shape_error
from uwaga._base.tracing import is_readable
from uwaga.ops.attention import relative_bias
from uwaga.ops.attention.call import Call, Options, compute_dtype
from uwaga.ops.biases import DistanceBias
from uwaga.ops.masks import Mask, as_mask
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.score_shape import ScoreShape
from uwaga.ops.validation import check_same_device, check_strided, invalid


class _Operands(NamedTuple):
    """Query, key and value as a Call has them."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_offsets: Tensor | None
    key_offsets: Tensor | None
    max_queries: int
    max_keys: int


DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_OPERANDS = ("query", "key", "value")
_Operand = TypeVar("_Operand")


class AttentionOptions(NamedTuple):
    """The arguments of `attention` besides operands and engine, as the user gave them."""

    mask: Mask | Tensor | None = None
    bias: DistanceBias | Tensor | None = None
    scale: float | None = None
    normalize: str | None = "softmax"
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0


def make_call(
    query: Operand,
    key: Operand,
    value: Operand | None,
    options: AttentionOptions,
    *,
    wants_lse: bool,
    whole: Mapping[str, Any] | None = None,
) -> Call:
    """Return the validated call.

    With value=None, as for a map of weights, the call's value has width E = 0. `whole`: query, key and value are parts of longer ones, and
    mask and bias are over all of it: the fields of its `ScoreShape` that are others than those of the parts.
    """
    mask, bias, scale, normalize, softcap, sinks, dropout = options
    if isinstance(query, Ragged) or isinstance(key, Ragged) or isinstance(value, Ragged):
        operands = _ragged_operands(query, key, value, is_part=whole is not None)
    else:
        operands = _dense_operands(query, key, value)
    q = operands.query
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[3])
    _check_options(scale, normalize, softcap, sinks, dropout)

    of_call: dict[str, Any] = {}
    of_options: dict[str, Any] = {}
    if mask is not None or bias is not None or sinks is not None:
        shape = _score_shape(query, key, value, operands)
        if whole is not None:
            shape = replace(shape, **whole)
        of_call, of_options = _extras(mask, bias, sinks, shape, q)
    return Call(
        query=q,
        key=operands.key,
        value=operands.value,
        query_offsets=operands.query_offsets,
        key_offsets=operands.key_offsets,
        seed=torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu") if dropout else None,
        options=Options(
            scale=float(scale),
            softcap=float(softcap or 0.0),
            softmax=normalize is not None,
            dropout=float(dropout),
            max_queries=operands.max_queries,
            max_keys=operands.max_keys,
            wants_lse=wants_lse,
            **of_options,
        ),
        **of_call,
    )


def _dense_operands(query: Tensor, key: Tensor, value: Tensor | None) -> _Operands:
    _check_dense(query, key, value)
    q, k = to_4d(query), to_4d(key)
    v = k[..., :0] if value is None else to_4d(value)
    return _Operands(q, k, v, None, None, q.shape[2], k.shape[2])


def _ragged_operands(query: Operand, key: Operand, value: Operand | None, *, is_part: bool) -> _Operands:
    query, key, value = _checked_ragged(query, key, value)
    if not is_part and any(x is not None and x.first is not None for x in (query, key, value)):
        raise ValueError(
            "attention: the first row of this part of a batch began in another process: call it inside uwaga.sequence_parallel"
        )
    q, k = packed(query.values), packed(key.values)
    v = k[..., :0] if value is None else packed(value.values)
    return _Operands(q, k, v, query.offsets, key.offsets, query.max_length, key.max_length)


def unflatten_output(query: Operand, output_BHQE: Tensor) -> Operand:
    """Return the output with the query's own dimensions."""
    if isinstance(query, Ragged):
        values = output_BHQE[0].transpose(0, 1)
        return query.with_values(values if query.values.dim() == 3 else values[:, 0])
    rank = query.dim()
    if rank == 4:
        return output_BHQE
    return output_BHQE[(0,) * (4 - rank)] if rank < 4 else output_BHQE.unflatten(0, query.shape[:-3])


def unflatten_lse(query: Operand, lse_BHQ: Tensor) -> Operand:
    """Return the lse with the query's own dimensions, without the last one."""
    if isinstance(query, Ragged):
        return unflatten_output(query, lse_BHQ)
    restored = unflatten_output(query, lse_BHQ[..., None])
    assert isinstance(restored, Tensor)
    return restored.squeeze(-1)


def to_4d(x: Tensor) -> Tensor:
    """Return (B, H, Q, D), a view wherever the leading dimensions allow it."""
    x = x.resolve_neg()
    rank = x.dim()
    if rank == 4:
        return x
    return x[(None,) * (4 - rank)] if rank < 4 else x.flatten(0, -4)


def packed(values: Tensor) -> Tensor:
    """Return (1, H, N, D), a view of (N, H, D) or (N, D)."""
    values = values.resolve_neg()
    return values.transpose(0, 1)[None] if values.dim() == 3 else values[None, None]


def score_shape(query: Operand, key: Operand, call: Call) -> ScoreShape:
    """Return the shape of the scores of a call without a value, for a second mask over the same scores."""
    options = call.options
    offsets = (call.query_offsets, call.key_offsets)
    operands = _Operands(call.query, call.key, call.value, *offsets, options.max_queries, options.max_keys)
    return _score_shape(query, key, None, operands)


def _score_shape(query: Operand, key: Operand, value: Operand | None, operands: _Operands) -> ScoreShape:
    named = partial(_named_shapes, query, key, value)
    heads = operands.query.shape[1]
    if isinstance(query, Ragged):
        return ScoreShape(
            queries=operands.max_queries,
            keys=operands.max_keys,
            batch=(len(query),),
            heads=heads,
            query_offsets=operands.query_offsets,
            key_offsets=operands.key_offsets,
            query_tokens=operands.query.shape[2],
            key_tokens=operands.key.shape[2],
            operands=named,
        )
    return ScoreShape(
        queries=operands.max_queries,
        keys=operands.max_keys,
        batch=tuple(query.shape[:-3]),
        heads=heads,
        matrix=query.dim() == 2,
        operands=named,
    )


def _extras(
    mask: Mask | Tensor | None, bias: DistanceBias | Tensor | None, sinks: Tensor | None, shape: ScoreShape, q: Tensor
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what mask, bias and sinks add to a call: fields of Call, and of its Options."""
    of_call: dict[str, Any] = {}
    of_options: dict[str, Any] = {}
    if mask is not None:
        of_options["mask_program"], of_call["mask_tensors"] = as_mask(mask).over(shape).built("mask", q)
    if bias is not None:
        _check_bias(bias, shape, q)
        if isinstance(bias, Tensor):
            of_call["bias"] = shape.per_score("bias", bias.resolve_neg())
        else:
            vector, starts, places = relative_bias.over(bias, shape, compute_dtype(q.dtype), q.device)
            of_call |= {"relative": vector, "relative_starts": starts}
            of_options |= places
    if sinks is not None:
        _check_sinks(sinks, shape, q)
        of_call["sinks"] = sinks.resolve_neg().to(compute_dtype(q.dtype)).contiguous()
    return of_call, of_options


# Checks, and their error messages.


def _check_dense(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    """Raise ValueError or ShapeError unless three tensors fit together, or two if there is no value."""
    try:
        v = key if value is None else value
        batch, heads, _, width = query.shape
        key_batch, groups, keys, key_width = key.shape
        value_batch, value_groups, value_keys, _ = v.shape
        fits = (
            batch == key_batch == value_batch
            and groups == value_groups
            and keys == value_keys
            and width == key_width > 0
            and groups > 0
            and heads % groups == 0
            and _same_kind(query, key, v)
        )
    except (ValueError, AttributeError):  # another rank, or no tensor
        fits = False
    if not fits:
        _explain(_named_operands(query, key, value))


def _checked_ragged(query: Operand, key: Operand, value: Operand | None) -> tuple[Ragged, Ragged, Ragged | None]:
    """Check three ragged batches in the same way, or two if there is no value."""
    operands = _named_operands(query, key, value)
    if not (isinstance(query, Ragged) and isinstance(key, Ragged) and (value is None or isinstance(value, Ragged))):
        kinds = ", ".join(f"{name} is {type(x).__name__}" for name, x in operands.items())
        raise ValueError(f"attention: {_joined(operands)} must all be Ragged or none of them, but {kinds}")
    if not _fits_ragged(query, key, key if value is None else value):
        _explain_ragged(query, key, value)
    return query, key, value


def _fits_ragged(query: Ragged, key: Ragged, value: Ragged) -> bool:
    q, k, v = query.values, key.values, value.values
    q_sizes, k_sizes, v_sizes = q.shape, k.shape, v.shape
    return (
        len(q_sizes) == len(k_sizes) == len(v_sizes) == 3
        and k_sizes[:2] == v_sizes[:2]
        and q_sizes[2] == k_sizes[2] > 0
        and k_sizes[1] > 0
        and q_sizes[1] % k_sizes[1] == 0
        and _same_kind(q, k, v)
        and query.offsets.shape == key.offsets.shape
        and (key.offsets is value.offsets or not _differ(key.offsets, value.offsets))
    )


def _explain_ragged(query: Ragged, key: Ragged, value: Ragged | None) -> None:
    """Check three ragged batches slowly, one rule after the other, and raise at the first that is broken."""
    operands = _named_operands(query, key, value)
    _explain({name: x.values for name, x in operands.items()}, is_ragged=True)
    offsets = [NamedShape.of(f"{name}.offsets", x.offsets.shape, "R+1") for name, x in operands.items()]
    bind("attention", offsets)
    if value is not None and _differ(key.offsets, value.offsets):
        rule = "key and value must have the same offsets"
        raise shape_error("attention", rule, offsets[1:], "value.offsets", "differs from key.offsets")


def _check_options(
    scale: float, normalize: str | None, softcap: float | None, sinks: Tensor | None, dropout: float
) -> None:
    """Raise ValueError unless each option that is not a tensor has a valid value."""
    if normalize not in ("softmax", None):
        raise invalid("attention", "normalize", "'softmax' or None", repr(normalize))
    if not _is_number(scale) or not -math.inf < scale < math.inf:
        raise invalid("attention", "scale", "a finite number or None", repr(scale))
    if softcap is not None and (not _is_number(softcap) or not 0.0 < softcap < math.inf):
        raise invalid("attention", "softcap", "a positive number or None", repr(softcap))
    if not _is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise invalid("attention", "dropout", "at least 0 and less than 1", repr(dropout))
    if normalize is None and sinks is not None:
        raise ValueError("attention: sinks need normalize='softmax': they are terms of its denominator")


def _is_number(x: object) -> TypeGuard[float]:
    """Return whether it is a real number of Python or NumPy, or a symbolic one of torch.compile."""
    return type(x) is float or isinstance(x, Real | torch.SymFloat | torch.SymInt)


def _check_sinks(sinks: Tensor, shape: ScoreShape, query: Tensor) -> None:
    """Raise ShapeError or ValueError unless sinks are (H,) floating numbers."""
    if not isinstance(sinks, Tensor):
        raise invalid("attention", "sinks", "a tensor (H,)", type(sinks).__name__)
    check_strided("attention", "sinks", sinks)
    if sinks.shape != (shape.heads,):
        culprit = NamedShape(name="sinks", shape=tuple(sinks.shape), letters=("",) * sinks.dim())
        rule = f"sinks must be one per query head, ({shape.heads},)"
        raise shape_error("attention", rule, (*shape.operands(), culprit), "sinks", "is not (H,)")
    if not sinks.dtype.is_floating_point:
        raise invalid("attention", "sinks", "floating", sinks.dtype)
    check_same_device("sinks", sinks, query)


def _check_bias(bias: DistanceBias | Tensor, shape: ScoreShape, query: Tensor) -> None:
    """Raise ShapeError or ValueError unless this is a bias of a dtype and a number of heads that fit."""
    if isinstance(bias, Tensor):
        allowed = {query.dtype, torch.float32}
        if bias.dtype not in allowed:
            hint = "; a bool tensor is a mask: mask=..." if bias.dtype == torch.bool else ""
            kinds = " or ".join(sorted(map(str, allowed)))
            raise invalid("attention", "bias", kinds, f"{bias.dtype}{hint}")
        check_same_device("bias", bias, query)
        return
    if not isinstance(bias, DistanceBias):
        raise invalid("attention", "bias", "a floating tensor or a bias", type(bias).__name__)
    parameter = bias.parameter()
    if bias.heads() != shape.heads:
        culprit = NamedShape(name="bias", shape=tuple(parameter.shape), letters=("",) * parameter.dim())
        rule = f"{type(bias).__name__} must be made for {shape.heads} query heads"
        raise shape_error("attention", rule, (*shape.operands(), culprit), "bias", f"is made for {bias.heads()}")
    check_same_device("bias", parameter, query)
    if isinstance(bias.start, Tensor):
        check_same_device("bias start", bias.start, query)


def _named_shapes(query: Operand, key: Operand, value: Operand | None) -> tuple[NamedShape, ...]:
    """Return the operands with their letters."""
    operands = _named_operands(query, key, value)
    tensors = {name: x.values if isinstance(x, Ragged) else x for name, x in operands.items()}
    return _named(tensors, is_ragged=isinstance(query, Ragged))


def _named_operands(query: _Operand, key: _Operand, value: _Operand | None) -> dict[str, _Operand]:
    """Return the operands by name; value is None for a map of weights."""
    return {"query": query, "key": key} | ({} if value is None else {"value": value})


def _joined(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}"


def _named(operands: dict[str, Tensor], *, is_ragged: bool) -> tuple[NamedShape, ...]:
    letters = zip(_OPERANDS, _letters(operands["query"].dim(), is_ragged=is_ragged), strict=True)
    return tuple(NamedShape.of(name, operands[name].shape, x) for name, x in letters if name in operands)


def _letters(rank: int, *, is_ragged: bool) -> tuple[str, str, str]:
    if is_ragged:  # N1 packed tokens of queries, N2 of keys: cross-attention has different numbers
        return ("N1 D", "N2 D", "N2 E") if rank == 2 else ("N1 H D", "N2 G D", "N2 G E")
    if rank == 2:
        return "Q D", "K D", "K E"
    leading = {3: "", 4: "B"}.get(rank, " ".join(f"B{n + 1}" for n in range(rank - 3)))
    return f"{leading} H Q D", f"{leading} G K D", f"{leading} G K E"


def _explain(operands: dict[str, Tensor], *, is_ragged: bool = False) -> None:
    """Check query, key and value slowly, one rule after the other, and raise at the first that is broken."""
    for name, x in operands.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"attention: {name} must be a tensor or Ragged, not {type(x).__name__}")
    query = operands["query"]
    tensors = _named(operands, is_ragged=is_ragged)
    if query.dim() < 2 or (is_ragged and query.dim() > 3):
        forms = "(N, H, D) or (N, D)" if is_ragged else "(..., H, Q, D) or (Q, D)"
        bare = [NamedShape(name=t.name, shape=t.shape, letters=("",) * len(t.shape)) for t in tensors]
        raise shape_error("attention", f"query must be {forms}", bare, "query", f"has rank {query.dim()}")
    sizes = bind("attention", tensors)
    heads, groups = sizes.get("H", 1), sizes.get("G", 1)
    if groups == 0 or heads % groups:
        rule = "query heads H must be a multiple of key heads G"
        raise shape_error("attention", rule, tensors, "key", f"H={heads} is not a multiple of G={groups}")
    if sizes["D"] == 0:
        raise shape_error("attention", "head width D must be at least 1", tensors, "query", "has D=0")
    _check_kinds(operands)


def _check_kinds(operands: dict[str, Tensor]) -> None:
    dtypes = [str(x.dtype) for x in operands.values()]
    if len(set(dtypes)) > 1:
        raise ValueError(f"attention: {_joined(operands)} must have one dtype, not {', '.join(dtypes)}")
    if operands["query"].dtype not in DTYPES:
        raise ValueError(
            f"attention: query must be float32, bfloat16, float16 or float64, not {operands['query'].dtype}"
        )
    for name, x in operands.items():
        check_strided("attention", name, x)
    devices = [str(x.device) for x in operands.values()]
    if len(set(devices)) > 1:
        raise ValueError(f"attention: {_joined(operands)} must be on one device, not {', '.join(devices)}")


def _same_kind(query: Tensor, key: Tensor, value: Tensor) -> bool:
    dtype, device = query.dtype, query.device
    return (
        dtype is key.dtype is value.dtype
        and dtype in DTYPES
        and device == key.device == value.device
        and query.layout is key.layout is value.layout is torch.strided
    )


def _differ(a: Tensor, b: Tensor) -> bool:
    return is_readable(a) and is_readable(b) and not torch.equal(a, b)
