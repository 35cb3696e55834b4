"""Editors of the attention calls of transformers' models, with attn_implementation="uwaga", "eager" or "sdpa".

The config of an eager or sdpa model answers with the name of an implementation that calls its own with changed operands, mask and result; that
of a watched one with "uwaga". It does so in the context that edits or watches alone: another thread may be inside a forward pass, whose
masks were made for the model's own implementation.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uwaga.nn.attention import Attend, Editor
from uwaga.ops.masks import Both, Causal, DenseMask, Mask
from uwaga.ops.ragged import Operand
from uwaga.ops.score_shape import ScoreShape

UWAGA = "uwaga"
_SUFFIX = "+uwaga.edit"
_EDITABLE = ("eager", "sdpa")

_HERE = threading.local()  # .editors: of this thread, the outermost first
_LOCK = threading.Lock()


def editors_of(module: nn.Module) -> tuple[Editor, ...]:
    """The editors of a layer in this thread, the outermost first."""
    contexts: tuple[Mapping[nn.Module, Editor], ...] = getattr(_HERE, "editors", ())
    return tuple(each[module] for each in contexts if module in each) if contexts else ()


@contextmanager
def editing(configs: Iterable[Any], editors: Mapping[nn.Module, Editor]) -> Iterator[None]:
    """A context in which layers of this thread have these editors, and the configs an implementation that calls them.

    Raises:
        ValueError: a config with another implementation, or that computes attention outside of it.
    """
    configs = list(configs)
    for config in configs:
        _check(config)
    with switched(configs, is_watch=False):
        _HERE.editors = (*getattr(_HERE, "editors", ()), editors)
        try:
            yield
        finally:  # others of this thread may have begun, and not ended, since
            _HERE.editors = tuple(each for each in _HERE.editors if each is not editors)


def around(editors: Iterable[Editor], attend: Attend, start: Tensor | int | None) -> Callable[..., Operand]:
    """`attend` with the editors around it, the last one outermost."""
    result: Any = attend
    for editor in editors:
        result = partial(_call, editor, result, start)
    return result


def _call(
    editor: Editor,
    attend: Attend,
    start: Tensor | int | None,
    *operands: Any,
    is_first: bool = True,
) -> Operand:
    query, key, value, options = operands
    return editor(attend if is_first else partial(attend, is_first=False), query, key, value, options, start)


def start_of_dense(visible: Tensor) -> int:
    """The position of the first query of causal attention among the keys, from a mask (..., Q, K): a query that is no padding is at
    the last key that it sees. A cache of fixed size has more keys than tokens."""
    queries, keys = visible.shape[-2:]
    last = torch.where(visible, torch.arange(keys, device=visible.device), -1).amax(-1)
    last = last - torch.arange(queries, device=visible.device)
    seen = visible.any(-1)
    return int(last[seen].max()) if bool(seen.any()) else keys - queries


def _check(config: Any) -> None:
    name = (config._attn_implementation_internal or "eager").removesuffix(_SUFFIX)
    if name not in (*_EDITABLE, UWAGA):
        raise ValueError(
            f"edit: attn_implementation={name!r} cannot be edited; use one of {', '.join((*_EDITABLE, UWAGA))}"
        )
    if name == "eager" and getattr(config, "reorder_and_upcast_attn", False):
        raise ValueError(
            "edit: eager attention with reorder_and_upcast_attn=True is computed by the model itself; use attn_implementation='sdpa'"
        )


@dataclass(slots=True, kw_only=True, eq=False)
class _Switch:
    """A context in which configs answer with other names than their own."""

    configs: dict[int, Any]  # by id; they are kept, so that no other object gets the id
    is_watch: bool  # else they are edited
    is_on: bool = True  # False: it has ended, in another context than the one in which it began


_SWITCHES: ContextVar[tuple[_Switch, ...]] = ContextVar("uwaga_switches", default=())
# How many contexts of all threads switch a config, by its id: torch.compile guards this, and breaks its graph at a ContextVar.
_SWITCHED: dict[int, int] = {}
_NAME = "_attn_implementation_internal"


@contextmanager
def switched(configs: Iterable[Any], *, is_watch: bool) -> Iterator[None]:
    """A context in which configs answer with the names that watching or editing needs. Contexts may end in any order. A name that is set
    meanwhile is the config's own."""
    from transformers import PreTrainedConfig

    switch = _Switch(configs={id(config): config for config in configs}, is_watch=is_watch)
    with _LOCK:
        if _NAME not in vars(PreTrainedConfig):
            setattr(PreTrainedConfig, _NAME, property(_name, _set_name))
        for name in (*_EDITABLE, UWAGA) if not is_watch else ():
            _register(name)
        for config in switch.configs:
            _SWITCHED[config] = _SWITCHED.get(config, 0) + 1
    _SWITCHES.set((*_SWITCHES.get(), switch))
    try:
        yield
    finally:
        switch.is_on = False
        _SWITCHES.set(tuple(each for each in _SWITCHES.get() if each.is_on))
        with _LOCK:
            for config in switch.configs:
                _SWITCHED[config] -= 1
                if not _SWITCHED[config]:
                    del _SWITCHED[config]


def own_name(config: Any) -> str | None:
    """The implementation of a config's model where it is neither watched nor edited."""
    return vars(config).get(_NAME)


def _name(config: Any) -> str | None:
    if _NAME not in config.__dict__:
        raise AttributeError(_NAME)
    own: str | None = config.__dict__[_NAME]
    return _answer(config, own) if id(config) in _SWITCHED else own


def _set_name(config: Any, name: str | None) -> None:
    # A model that is made of a config sets the name that it reads there, which is no choice of the user's.
    if id(config) not in _SWITCHED or name != _answer(config, own_name(config)):
        config.__dict__[_NAME] = name


def _answer(config: Any, own: str | None) -> str | None:
    """The name that the contexts of this thread need."""
    switches = [each for each in _SWITCHES.get() if each.is_on and id(config) in each.configs]
    name = UWAGA if any(each.is_watch for each in switches) else own
    if all(each.is_watch for each in switches):
        return name
    # Another name was chosen inside, or it was edited only since it was watched.
    base = (name or "eager") if name in (None, *_EDITABLE) else UWAGA
    return base if base == UWAGA and not _may_be_compiled() else base + _SUFFIX


def _may_be_compiled() -> bool:
    """Whether torch.compile was used in this process: then another name makes compiled models trace their attention anew."""
    return "torch._dynamo" in sys.modules


def _register(name: str) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    edited: Callable = AttentionInterface()[UWAGA] if name == UWAGA else partial(_edited, name)
    if _may_be_compiled():  # called between two graphs; importing the compiler takes seconds
        edited = torch.compiler.disable(edited)
    AttentionInterface.register(name + _SUFFIX, edited)
    AttentionMaskInterface.register(name + _SUFFIX, AttentionMaskInterface()[name])


def _edited(
    name: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of transformers called `name`, with the editors of this thread around it."""
    forward = _function(name, module)
    editors = editors_of(module)
    if not editors:
        return forward(module, query, key, value, attention_mask, **others)
    weights: list[Tensor | None] = []
    whole: Mask | None = None
    start: int | None = None
    if any(getattr(editor, "needs_operands", True) for editor in editors):
        whole, start = _own_mask(module, query, key, attention_mask, others)

    def attend(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any], *, is_first: bool = True) -> Tensor:
        mask, empty = _dense(options["mask"], whole, attention_mask, query, key)
        output, result = forward(module, query, key, value, mask, **others)
        if is_first:
            weights.append(result)
        output_BHQE = output.transpose(1, 2)
        return output_BHQE if empty is None else torch.where(empty, 0.0, output_BHQE)

    options = {"mask": whole, "dropout": others.get("dropout", 0.0)}
    output = around(editors, attend, start)(query, key, value, options)  # type: ignore[arg-type]
    assert isinstance(output, Tensor)
    return output.transpose(1, 2).contiguous(), weights[0]


def _function(name: str, module: nn.Module) -> Callable:
    """The attention function that the layer would call without an edit."""
    if name != "eager":
        from transformers import AttentionInterface

        return AttentionInterface()[name]
    value = inspect.unwrap(type(module).forward).__globals__.get("eager_attention_forward")
    if value is None:
        raise ValueError(
            f"edit: {type(module).__name__} has no eager_attention_forward to edit; use attn_implementation='sdpa' or 'uwaga'"
        )
    return value


def _own_mask(
    module: nn.Module, query: Tensor, key: Tensor, attention_mask: Tensor | None, others: Mapping[str, Any]
) -> tuple[Mask | None, int | None]:
    """The mask that the layer has without an edit, and the position of the first query where the mask says it."""
    is_causal = others.get("is_causal")
    is_causal = bool(getattr(module, "is_causal", False)) if is_causal is None else bool(is_causal)
    if attention_mask is None:
        # Only sdpa leaves out a causal mask: then the first query is at the first key.
        return (Causal(start=0), 0) if is_causal and query.shape[2] > 1 else (None, None)
    visible = attention_mask[..., : key.shape[2]]
    if visible.dtype != torch.bool:
        visible = visible > torch.finfo(visible.dtype).min / 2
    return DenseMask(bits=visible), start_of_dense(visible) if is_causal else None


def _dense(
    mask: Mask | None, whole: Mask | None, attention_mask: Tensor | None, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The mask for the attention function: its own, with the links blocked that `mask` has beside `whole`; and the rows (B, H, Q, 1)
    that see no key because of it."""
    if mask is whole:
        return attention_mask, None
    batch, heads, queries, _ = query.shape
    shape = ScoreShape(queries=queries, keys=key.shape[2], batch=(batch,), heads=heads)
    allowed = mask if whole is None else _beside(mask, whole)
    assert allowed is not None
    visible = allowed.dense(shape, str(query.device))
    before = torch.ones_like(visible) if whole is None else whole.dense(shape, str(query.device))
    none_left = before.any(-1, keepdim=True) & ~(before & visible).any(-1, keepdim=True)
    visible = visible | none_left  # eager attention would spread such a row over all keys; its output is set to 0
    if attention_mask is None:
        bits = before & visible
        lowest = torch.finfo(query.dtype).min
        return torch.where(bits, torch.zeros((), dtype=query.dtype, device=query.device), lowest), none_left
    own = attention_mask[..., : key.shape[2]]
    if own.dtype == torch.bool:
        return own & visible, none_left
    return torch.where(visible, own, torch.finfo(own.dtype).min), none_left


def _beside(mask: Mask | None, whole: Mask) -> Mask | None:
    """What & has added to a mask."""
    added: Mask | None = None
    while isinstance(mask, Both) and mask is not whole:
        added = mask.right if added is None else mask.right & added
        mask = mask.left
    assert mask is whole
    return added
