"""What can be wrong with a call, and the words for it. Letters as in api.py."""

import math
from numbers import Real

import torch
from torch import Tensor

from uwaga._base.shapes import NamedShape, bind, shape_error
from uwaga._base.tracing import is_readable
from uwaga.ops.biases import DistanceBias
from uwaga.ops.ragged import Ragged
from uwaga.ops.score_shape import ScoreShape
from uwaga.ops.validation import need_strided

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_OPERANDS = ("query", "key", "value")


def dense(query: Tensor, key: Tensor, value: Tensor | None) -> None:
    """ValueError or ShapeError unless three tensors fit together, or two where there is no value."""
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
        _explain(_given(query, key, value))


def ragged(query: Ragged, key: Ragged, value: Ragged | None) -> None:
    """The same for three ragged batches."""
    try:
        whole = key if value is None else value
        q, k, v = query.values, key.values, whole.values
        q_sizes, k_sizes, v_sizes = q.shape, k.shape, v.shape
        fits = (
            len(q_sizes) == len(k_sizes) == len(v_sizes) == 3
            and k_sizes[:2] == v_sizes[:2]
            and q_sizes[2] == k_sizes[2] > 0
            and k_sizes[1] > 0
            and q_sizes[1] % k_sizes[1] == 0
            and _same_kind(q, k, v)
            and query.offsets.shape == key.offsets.shape
            and (key.offsets is whole.offsets or not _differ(key.offsets, whole.offsets))
        )
    except AttributeError:  # not all of them are Ragged
        fits = False
    if not fits:
        _explain_ragged(query, key, value)


def _explain_ragged(query: Ragged, key: Ragged, value: Ragged | None) -> None:
    """What does not fit in three ragged batches, if anything does not."""
    given = _given(query, key, value)
    kinds = {name: type(x).__name__ for name, x in given.items()}
    if any(kind != "Ragged" for kind in kinds.values()):
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise ValueError(f"attention: {_listed(given)} must all be Ragged or none of them, but {listed}")
    _explain({name: x.values for name, x in given.items()}, is_ragged=True)
    offsets = [NamedShape.of(f"{name}.offsets", x.offsets.shape, "R+1") for name, x in given.items()]
    bind("attention", offsets)
    if value is not None and _differ(key.offsets, value.offsets):
        rule = "key and value must have the same offsets"
        raise shape_error("attention", rule, offsets[1:], "value.offsets", "holds other numbers")


def options(scale: float, normalize: str | None, softcap: float | None, sinks: Tensor | None, dropout: float) -> None:
    """ValueError unless each plain option has a meaning."""
    if normalize not in ("softmax", None):
        raise ValueError(f"attention: normalize must be 'softmax' or None, not {normalize!r}")
    if not _is_number(scale) or not -math.inf < scale < math.inf:
        raise ValueError(f"attention: scale must be a finite number or None, not {scale!r}")
    if softcap is not None and (not _is_number(softcap) or not 0.0 < softcap < math.inf):
        raise ValueError(f"attention: softcap must be a positive number or None, not {softcap!r}")
    if not _is_number(dropout) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"attention: dropout must be at least 0 and less than 1, not {dropout!r}")
    if normalize is None and sinks is not None:
        raise ValueError("attention: sinks are part of the softmax's denominator; normalize=None has none")


def _is_number(x: object) -> bool:
    return type(x) is float or isinstance(x, Real | torch.SymFloat | torch.SymInt)


def sinks(sinks: Tensor, sizes: ScoreShape, query: Tensor) -> None:
    """ShapeError or ValueError unless sinks are (H,) floating numbers."""
    if not isinstance(sinks, Tensor):
        raise ValueError(f"attention: sinks must be a tensor (H,), not {type(sinks).__name__}")
    need_strided("attention", "sinks", sinks)
    if sinks.shape != (sizes.heads,):
        culprit = NamedShape(name="sinks", shape=tuple(sinks.shape), letters=("",) * sinks.dim())
        rule = f"sinks must be one per query head, ({sizes.heads},)"
        raise shape_error("attention", rule, (*sizes.operands(), culprit), "sinks", "is not (H,)")
    if not sinks.dtype.is_floating_point:
        raise ValueError(f"attention: sinks must be floating, not {sinks.dtype}")
    same_device("sinks", sinks, query)


def bias(bias: DistanceBias | Tensor, sizes: ScoreShape, query: Tensor) -> None:
    """ShapeError or ValueError unless this is a bias of a dtype and a number of heads that fit."""
    if isinstance(bias, Tensor):
        allowed = {query.dtype, torch.float32}
        if bias.dtype not in allowed:
            hint = "; a bool tensor is a mask: mask=..." if bias.dtype == torch.bool else ""
            kinds = " or ".join(sorted(map(str, allowed)))
            raise ValueError(f"attention: bias must be {kinds}, not {bias.dtype}{hint}")
        same_device("bias", bias, query)
        return
    if not isinstance(bias, DistanceBias):
        raise ValueError(f"attention: bias must be a floating tensor or a bias, not {type(bias).__name__}")
    parameter = bias.parameter()
    if bias.heads() != sizes.heads:
        culprit = NamedShape(name="bias", shape=tuple(parameter.shape), letters=("",) * parameter.dim())
        rule = f"{type(bias).__name__} must be made for {sizes.heads} query heads"
        raise shape_error("attention", rule, (*sizes.operands(), culprit), "bias", f"is made for {bias.heads()}")
    same_device("bias", parameter, query)
    if isinstance(bias.start, Tensor):
        same_device("bias start", bias.start, query)


def same_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise ValueError(f"attention: {name} is on {tensor.device}, query on {query.device}")


def named(query: Tensor | Ragged, key: Tensor | Ragged, value: Tensor | Ragged | None) -> tuple[NamedShape, ...]:
    """The operands with their letters."""
    given = _given(query, key, value)
    if isinstance(query, Ragged):
        return _named({name: x.values for name, x in given.items()}, is_ragged=True)
    return _named(given, is_ragged=False)


def _given(query, key, value) -> dict:
    """The operands by name; a map of weights has no value."""
    given = zip(_OPERANDS, (query, key, value), strict=True)
    return {name: x for name, x in given if name != "value" or x is not None}


def _listed(given: dict) -> str:
    *first, last = given
    return f"{', '.join(first)} and {last}"


def _named(given: dict[str, Tensor], *, is_ragged: bool) -> tuple[NamedShape, ...]:
    rank = given["query"].dim()
    letters = zip(_OPERANDS, _letters_ragged(rank) if is_ragged else _letters(rank), strict=True)
    return tuple(NamedShape.of(name, given[name].shape, x) for name, x in letters if name in given)


def _letters(rank: int) -> tuple[str, str, str]:
    if rank == 2:
        return "Q D", "K D", "K E"
    leading = {3: "", 4: "B"}.get(rank, " ".join(f"B{n + 1}" for n in range(rank - 3)))
    return f"{leading} H Q D", f"{leading} G K D", f"{leading} G K E"


def _letters_ragged(rank: int) -> tuple[str, str, str]:
    # The packed tokens of queries and of keys are counted apart: N1 and N2.
    return ("N1 D", "N2 D", "N2 E") if rank == 2 else ("N1 H D", "N2 G D", "N2 G E")


def _explain(given: dict[str, Tensor], *, is_ragged: bool = False) -> None:
    """Check everything slowly, one thing after the other, and raise at the first that is wrong."""
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"attention: {name} must be a tensor or Ragged, not {type(x).__name__}")
    query = given["query"]
    tensors = _named(given, is_ragged=is_ragged)
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
    _check_kinds(given)


def _check_kinds(given: dict[str, Tensor]) -> None:
    dtypes = [str(x.dtype) for x in given.values()]
    if len(set(dtypes)) > 1:
        raise ValueError(f"attention: {_listed(given)} must have one dtype, not {', '.join(dtypes)}")
    if given["query"].dtype not in DTYPES:
        raise ValueError(f"attention: query must be float32, bfloat16, float16 or float64, not {given['query'].dtype}")
    for name, x in given.items():
        need_strided("attention", name, x)
    devices = [str(x.device) for x in given.values()]
    if len(set(devices)) > 1:
        raise ValueError(f"attention: {_listed(given)} must be on one device, not {', '.join(devices)}")


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
