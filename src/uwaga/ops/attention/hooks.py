"""Hooks around a layer's request for attention, before it is validated: `hook(asked, where, proceed) -> output`.

`uwaga.nn.MultiHeadAttention` and `uwaga_attention`, for layers of transformers, call the hooks that stand around them. Hooks act where
`uwaga._base.threads` says: in the thread that installed them and in tasks that begin in their block, until it ends.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from uwaga._base import threads
from uwaga.ops.ragged import Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a layer asks of attention: operands and options as the layer has them."""

    query: Operand
    key: Operand
    value: Operand
    options: dict[str, Any]  # of `uwaga.attention`, by name
    start: Tensor | int | None = (
        None  # of each row, the position of its first query; None: the last one is at the last key
    )
    has_positions: bool = True  # False: one row of several documents
    is_repeat: bool = False  # a further call for the same tokens, which nobody records
    whole_batch: "Callable[[], Asked] | None" = None  # where this is a packed form of a padded batch

    def whole(self) -> "Asked":
        """Return the same over the padded batch, whose positions are the user's."""
        return self if self.whole_batch is None else self.whole_batch()


Proceed = Callable[[Asked], Operand]
Hook = Callable[[Asked, Any, Proceed], Operand]


def hooked(hooks: Mapping[Any, Hook], *, only_look: bool = False) -> AbstractContextManager[object]:
    """Return a context in which these hooks stand around the attention of layers, the one that began last outermost.

    Args:
        hooks: by layer.
        only_look: they change nothing, and are innermost, so that they see what all others have changed.
    """
    return threads.block(((where, threads.untraced(hook)) for where, hook in hooks.items()), first=only_look)


def hooks_of(where: object) -> tuple[Hook, ...]:
    """Return the hooks of a layer in this thread and task, the innermost first."""
    return threads.acting(where)


def run_hooks(hooks: tuple[Hook, ...], asked: Asked, where: object, compute: Proceed) -> Operand:
    """Return what `compute` gives, with the hooks around it."""
    for hook in hooks:
        compute = partial(_call, hook, where, compute)
    return compute(asked)


def _call(hook: Hook, where: object, proceed: Proceed, asked: Asked) -> Operand:
    return hook(asked, where, proceed)


def looking(look: Callable[[Asked, Any], object]) -> Hook:
    """Return the hook that only looks, once at each call, at the operands of the user's batch."""

    def hook(asked: Asked, where: object, proceed: Proceed) -> Operand:
        if not asked.is_repeat:
            look(asked.whole(), where)
        return proceed(asked)

    return hook
