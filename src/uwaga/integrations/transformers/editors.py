"""Editors of the attention calls of transformers' models, with attn_implementation="uwaga", "eager" or "sdpa".

An eager or sdpa model gets the name of an implementation that calls the former one with changed operands, mask and result. Watching gives
it another name too, so one registry has both.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
    with switched(configs):
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


@dataclass(slots=True, kw_only=True)
class _Switched:
    """A config whose model is watched or edited."""

    config: Any
    own: str | None  # the user's name
    given: str | None  # the one that the contexts put there; another one was chosen by the user since, and stays
    watched: str | None = None  # the one while it is watched
    watches: int = 0
    edits: int = 0

    def count(self, by: int, *, is_watch: bool) -> None:
        if is_watch:
            self.watches += by
        else:
            self.edits += by

    def switch(self) -> None:
        """Put the name there that the contexts need."""
        name = self.watched if self.watches else self.own
        if self.edits:
            base = name or "eager"
            if base not in (*_EDITABLE, UWAGA):  # it was edited only since it was watched
                base = name = UWAGA
            if base != UWAGA or _may_be_compiled():
                _register(base)
                name = base + _SUFFIX
        self.given = self.config._attn_implementation_internal = name


_SWITCHED: dict[int, _Switched] = {}  # by the id of the config


@contextmanager
def switched(configs: Iterable[Any], choose: Callable[[], None] | None = None) -> Iterator[None]:
    """A context in which configs have the names that watching or editing needs. Contexts may end in any order; after the last one a
    config has the user's name again.

    Args:
        choose: chooses the implementation of models that are watched; None: they are edited.
    """
    configs, is_watch, is_chosen = list(configs), choose is not None, False
    with _LOCK:
        for config in configs:
            name = config._attn_implementation_internal
            result = _SWITCHED.setdefault(id(config), _Switched(config=config, own=name, given=name))
            if name != result.given:
                result.own = result.given = name
            result.count(1, is_watch=is_watch)
        try:
            if choose is not None:
                choose()
                for config in configs:
                    _SWITCHED[id(config)].watched = config._attn_implementation_internal
            for config in configs:
                _SWITCHED[id(config)].switch()
            is_chosen = True
        finally:
            if not is_chosen:
                _switch_back(configs, is_watch=is_watch, always=True)
    try:
        yield
    finally:
        with _LOCK:
            _switch_back(configs, is_watch=is_watch)


def _switch_back(configs: Iterable[Any], *, is_watch: bool, always: bool = False) -> None:
    """always: also where the name is not that which was given."""
    for config in configs:
        result = _SWITCHED[id(config)]
        result.count(-1, is_watch=is_watch)
        if always or config._attn_implementation_internal == result.given:
            result.switch()
        if not (result.watches or result.edits):
            del _SWITCHED[id(config)]


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
