"""A plan in the shape of the mask that models expect: what they hand from the mask function to the attention function.

Letters: B batch, Q queries, K keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from uwaga.integrations.transformers.plan import Plan, Refused
from uwaga.ops.score_shape import ScoreShape

_ARITHMETIC = ("aten::add", "aten::sub", "aten::rsub", "aten::mul")


class PlannedMask(Tensor):
    """A bool tensor (B, 1, Q, K), True where a query sees a key, that does not exist until somebody looks into it.

    Models only hand it on, and attention reads the plan. A model that slices or joins its mask works on plain tensors of
    the dense form, and attention gets what the model made of them.
    """

    plan: Plan | Refused
    row: Tensor | None  # the dense form of a single query, where torch.compile is to read no plan
    settled: Tensor | None  # the dense form, once somebody has a view of it and may write there

    @staticmethod
    def of(plan: Plan | Refused, batch: int, queries: int, keys: int, device: torch.device | str) -> "PlannedMask":
        made = Tensor._make_wrapper_subclass(
            PlannedMask, (batch, 1, queries, keys), dtype=torch.bool, device=torch.device(device)
        )
        made.plan, made.row, made.settled = plan, None, None
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own idiom

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch names its arguments otherwise
        cls, function: Any, types: Sequence[type], args: Sequence = (), kwargs: Mapping | None = None
    ) -> object:
        schema = function._schema
        if schema.name in _ARITHMETIC:
            # Eager attention adds a mask of 0 and -inf; to add True and False would be silently wrong. No TypeError: Python
            # takes one from an operator for "ask the other operand", and says something else in the end.
            raise ValueError(
                f"attn_implementation='uwaga': this model computes with its attention mask itself ({schema.name}), and so "
                "does not hand it to uwaga; load it with attn_implementation='eager'"
            )
        arguments = (args, kwargs or {})
        if any(result.alias_info is not None for result in schema.returns):
            for mask in tree_leaves(arguments):
                if isinstance(mask, PlannedMask):
                    mask.settled = mask.dense()
        args, kwargs = tree_map_only(PlannedMask, PlannedMask.dense, arguments)
        return function(*args, **kwargs)

    def dense(self) -> Tensor:
        """The plain tensor."""
        if self.settled is not None:
            return self.settled
        if self.row is not None:
            return self.row
        batch, _, queries, keys = self.shape
        if self.plan.mask is None:
            return torch.ones(self.shape, dtype=torch.bool, device=self.device)
        sizes = ScoreShape(queries=queries, keys=keys, batch=(batch,))
        return self.plan.mask.dense(sizes, str(self.device)).expand(self.shape).contiguous()

    def __repr__(self) -> str:  # type: ignore[override]  # torch's own has an option of its own
        plan = self.plan
        return f"PlannedMask(shape={tuple(self.shape)}, {plan if isinstance(plan, Refused) else plan.mask})"
