"""The states of ragged texts by a model of transformers, where a text has the same bits in any batch.

All texts go through the model in one row if that is sure to change no text, else one after another. It is sure if

- attention is uwaga's, which keeps the texts of a row apart, and linear maps are those of `pack_linear`, by native kernels;
- every other operator that the model calls computes a row of its operands as it does alone (`_BY_ROW`), or each number by itself: PyTorch
  computes activations differently in a partial vector, so that these get whole vectors (`_InFullVectors`);
- and the states of a few short texts have the same bits alone, together, and next to a text that was edited.

Letters: N tokens of all texts, M width.
"""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from uwaga._base import native
from uwaga._base.errors import CheckpointError
from uwaga.integrations.packed_linear import is_packed, pack_linear, unpack_linear
from uwaga.integrations.transformers import inside
from uwaga.integrations.transformers.inside import example_text, is_close, keeps_apart, packed_row, position_padding
from uwaga.integrations.transformers.register import NAME, register_with_transformers
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.engine_choice import Choice
from uwaga.ops.linear import choose
from uwaga.ops.ragged import Ragged

PACKED, ONE_BY_ONE = "transformers, packed", "transformers, one by one"
# Operators of PyTorch whose result for a row, or a number, is the same whatever other rows there are: they move numbers, compute each
# of them by an exact rule (IEEE arithmetic and roots), or reduce the last dimension of each row by itself.
_BY_ROW = frozenset({
    "_fused_rms_norm", "_local_scalar_dense", "_to_copy", "abs", "add", "add_", "alias", "all", "any", "arange", "as_strided",
    "as_strided_", "bitwise_and", "bitwise_not", "bitwise_or", "cat", "clamp", "clamp_", "clone", "copy_", "cumsum", "detach", "detach_",
    "diff", "div", "div_", "embedding", "empty", "empty_like", "empty_strided", "eq", "equal", "expand", "fill_", "floor", "full",
    "full_like", "gather", "ge", "gt", "index", "index_select", "is_same_size", "le", "lift_fresh", "logical_and", "logical_not",
    "logical_or", "lt", "masked_fill", "masked_fill_", "max", "maximum", "mean", "min", "minimum", "mul", "mul_", "native_layer_norm", "ne",
    "neg", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "nonzero", "ones", "ones_like", "permute", "pow",
    "reciprocal", "relu", "relu_", "repeat_interleave", "rsqrt", "rsub", "searchsorted", "select", "slice", "split", "split_with_sizes",
    "sqrt", "squeeze", "stack", "sub", "sub_", "sum", "t", "transpose", "unbind", "unsafe_split", "unsqueeze", "view", "where", "zero_",
    "zeros", "zeros_like",
})  # fmt: skip
# Numbers that PyTorch computes at a time, in two vectors of the narrowest kind of the widest processor.
_VECTORS = 64
# Numbers of the smallest share of a thread: at::internal::GRAIN_SIZE, and that of functions of MKL.
_GRAINS = (32768, 2048)
# What a model may raise of tokens alone, or of another attention.
CANNOT = (TypeError, ValueError, NotImplementedError, RuntimeError, IndexError, AttributeError)
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # functions of the position alone


class Packing:
    """A model of transformers that reads tokens, with uwaga's attention, where it can be given that, and linear maps, until `undo`.

    Attributes:
        model: the model, whose attention, linear maps and activations are changed.
        choice: whether it runs "transformers, packed" or "transformers, one by one", and why.
        width: M.

    Args:
        model: in evaluation mode.
        types: the token types of the special tokens before and after a text, whose own type is 0; None: the model gets no types.

    Raises:
        CheckpointError: a model that does not read tokens alone, or whose states are not the same twice.
    """

    def __init__(self, model: Any, *, types: tuple[Sequence[int], Sequence[int]] | None = None) -> None:
        self.model = model
        self._types = types if inside.takes(model, "token_type_ids") else None
        self._options = inside.without_cache(model)
        self._padding = position_padding(model)
        self._most = inside.max_tokens(model) or sys.maxsize
        vocabulary = inside.vocab_size(model)
        if vocabulary is None:
            raise CheckpointError(f"{type(model).__name__} of transformers does not read tokens")
        self._implementation = model.config._attn_implementation
        with evaluation_mode(model):
            self.width = self._prepare(vocabulary)
            why_not = self._why_not_packed(vocabulary)
        attention = "uwaga's attention" if self._own_attention is None else "its own attention"
        self.choice = (
            Choice(PACKED, "a text has the same bits alone and beside others, which was checked", {})
            if why_not is None
            else Choice(ONE_BY_ONE, f"with {attention} and uwaga's linear maps", {PACKED: why_not})
        )

    def undo(self) -> None:
        """Give the model its own attention, linear maps and activations again."""
        if self._own_attention is None:
            self.model.set_attn_implementation(self._implementation)
        unpack_linear(self.model)
        for parent in list(self.model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, _InFullVectors | _RotationsInFullVectors):
                    setattr(parent, name, child.module)

    def states(self, ids: Ragged, token_types: Tensor | None = None) -> Ragged:
        """Compute the states (N, M) of ids (N,); no text may be empty.

        token_types: (N,), for a model that reads token types; None: the types of its special tokens.
        """
        if self.choice.engine == PACKED:
            return ids.with_values(self._together(ids, token_types))
        types = [None] * len(ids) if token_types is None else ids.with_values(token_types).to_list()
        alone = [self.states_alone(text, of_text) for text, of_text in zip(ids.to_list(), types, strict=True)]
        return ids.with_values(torch.cat(alone))

    def states_alone(self, ids_N: Tensor, token_types: Tensor | None = None) -> Tensor:
        """Compute the states (N, M) of one text, as the model itself computes them."""
        row = {"input_ids": ids_N[None], "attention_mask": torch.ones_like(ids_N)[None]}
        return self._states(row, Ragged.from_list([ids_N]), token_types)

    def _together(self, ids: Ragged, token_types: Tensor | None = None) -> Tensor:
        """Compute the states (N, M) of all texts, in one row."""
        return self._states(packed_row(ids, self._padding), ids, token_types)

    def _states(self, row: dict[str, Any], ids: Ragged, token_types: Tensor | None) -> Tensor:
        """Compute the states (N, M) of the texts in one row. row: what the model takes by keyword, except token types."""
        if self._types is not None:
            row["token_type_ids"] = self._token_types(ids) if token_types is None else token_types[None]
        states: Tensor = self.model(**row, **self._options)[0][0]
        return states

    def _token_types(self, ids: Ragged) -> Tensor:
        """Return the types of the special tokens, and 0 for all other tokens, (1, N)."""
        assert self._types is not None
        result = torch.zeros_like(ids.values)
        before, behind = self._types
        for at, kind in enumerate(before):
            result[ids.offsets[:-1] + at] = kind
        for at, kind in enumerate(reversed(behind)):
            result[ids.offsets[1:] - 1 - at] = kind
        return result[None]

    def _prepare(self, vocabulary: int) -> int:
        """Give the model our attention and linear maps; M."""
        model, text = self.model, torch.tensor(example_text(min(7, self._most), vocabulary), device=self.model.device)
        try:
            expected = self.states_alone(text)
        except CANNOT as error:
            raise CheckpointError(
                f"{type(model).__name__} of transformers cannot read tokens alone: {error}"
            ) from error
        if expected.dim() != 2 or len(expected) != len(text):
            raise CheckpointError(f"{type(model).__name__} of transformers does not give a state to every token")
        self._own_attention = self._take_attention(text, expected)
        with contextlib.suppress(ValueError):  # it has no linear map
            pack_linear(model)
        _give_full_vectors(model)
        states = self.states_alone(text)
        if not torch.equal(states, self.states_alone(text)):
            raise CheckpointError(f"{type(model).__name__} of transformers gives a text other states every time")
        return expected.shape[1]

    def _take_attention(self, text: Tensor, expected: Tensor) -> str | None:
        """Switch to uwaga's attention; None, or why the model keeps its own."""
        model, name = self.model, type(self.model).__name__
        register_with_transformers()
        if not model._can_set_attn_implementation():
            return f"{name} computes attention by itself"
        before = model.config._attn_implementation
        try:
            model.set_attn_implementation(NAME)
            if is_close(self.states_alone(text), expected):
                return None
            why = f"{name} has other states with uwaga's attention"
        except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            why = f"{name} cannot use uwaga's attention: {error}"
        model.set_attn_implementation(before)
        return why

    def _why_not_packed(self, vocabulary: int) -> str | None:
        """Return why texts cannot be computed in one row, or None if they can."""
        model, name = self.model, type(self.model).__name__
        if self._own_attention is not None:
            return self._own_attention
        engine = choose.eager_engine(model.dtype, None)
        is_invariant = engine is not None and choose.has_batch_invariant_rows(engine, model.dtype)
        if native.reason_unavailable() is not None or not is_invariant:
            return "without the native linear map a text may have other bits beside others"
        if not (model.is_backend_compatible() and model._supports_flash_attn):
            return f"{name} makes a bias of the whole row, or cannot tell the texts of a row apart"

        def together(texts: Sequence[list[int]]) -> Tensor:
            return self._together(Ragged.from_list([torch.tensor(ids, device=model.device) for ids in texts]))

        if not keeps_apart(
            lambda ids: {"states": self.states_alone(ids[0])},
            lambda texts: {"states": together(texts)},
            model.device,
            vocabulary,
        ):
            return f"{name} mixes the texts of a row"
        # More tokens than some blocks of keys, so that texts begin anywhere in a block.
        lengths = (min(length, self._most) for length in (3, 17, 1, 8, 5) * 6)
        texts = [example_text(length, vocabulary, seed) for seed, length in enumerate(lengths)]
        with _operators(model) as names:
            together(texts)
        if strange := sorted(names - _BY_ROW):
            return f"{name} calls {', '.join(strange)}, which may give a text other bits beside others"
        states = together(texts).split([len(text) for text in texts])
        edited = [example_text(len(texts[0]), vocabulary, 9), *texts[1:]]
        others = together(edited).split([len(text) for text in edited])
        alone = [together([text]) for text in texts]
        if not all(map(torch.equal, states, alone)) or not all(map(torch.equal, states[1:], others[1:])):
            return f"{name} gives a text other bits beside others"
        return None


class _InFullVectors(nn.Module):
    """A module that computes each number by itself, of operands so long that PyTorch computes all of them in whole vectors: a number
    has then the same bits wherever it stands."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        numbers = x.reshape(-1)
        filled = _filled(numbers.numel())
        if filled == numbers.numel():
            result: Tensor = self.module(x.contiguous())
            return result
        longer = numbers.new_zeros(filled)
        longer[: numbers.numel()] = numbers
        return self.module(longer)[: numbers.numel()].view(x.shape)


class _RotationsInFullVectors(nn.Module):
    """The cosines and sines of rotary positions, computed so for more positions than there are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, position_ids: Tensor, *others: Any, **more: Any) -> Any:
        tokens = position_ids.shape[-1]
        longer = position_ids.new_zeros(*position_ids.shape[:-1], _filled(tokens))
        longer[..., :tokens] = position_ids
        cos, sin = self.module(x, longer, *others, **more)
        return cos[..., :tokens, :], sin[..., :tokens, :]


def _filled(count: int) -> int:
    """Return the next count of numbers of which every thread gets whole vectors.

    Threads get equal shares. If the shares would be below a grain, fewer threads get one.
    """
    threads = torch.get_num_threads()
    while True:
        sharing = {threads, *(max(1, min(threads, -(-count // grain))) for grain in _GRAINS)}
        step = _VECTORS * math.lcm(*sharing)
        if count % step == 0:
            return count
        count += -count % step


def _give_full_vectors(model: nn.Module) -> None:
    """Put `_InFullVectors` around activations, and around rotary positions that are functions of the position alone."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_activation(child):
                setattr(parent, name, _InFullVectors(child))
            elif type(child).__name__.endswith("RotaryEmbedding") and _is_fixed(child):
                setattr(parent, name, _RotationsInFullVectors(child))


def _is_activation(module: nn.Module) -> bool:
    home = type(module).__module__
    return (
        home in ("transformers.activations", "torch.nn.modules.activation")
        and not isinstance(module, nn.Softmax | nn.Softmin | nn.LogSoftmax | nn.GLU | nn.MultiheadAttention)
        and not any(True for _ in module.parameters())
    )


def _is_fixed(module: Any) -> bool:
    kinds = getattr(module, "rope_type", None)  # of some models a dict by the type of layer
    every = set(kinds.values()) if isinstance(kinds, dict) else {kinds}
    return every <= {*_FIXED_ROTATIONS} and "position_ids" in inspect.signature(module.forward).parameters


@contextlib.contextmanager
def _operators(model: nn.Module) -> Iterator[set[str]]:
    """Give the names of PyTorch's operators that are called, except inside modules whose rows are independent."""
    kinds = _InFullVectors | _RotationsInFullVectors
    by_row = [module for module in model.modules() if is_packed(module) or isinstance(module, kinds)]
    for module in by_row:
        module.forward = partial(_unseen, module.forward)  # of this instance, until the end
    try:
        with _Noting() as noting:
            yield noting.names
    finally:
        for module in by_row:
            del module.forward


class _Noting(TorchDispatchMode):
    """Notes the names of operators, without our own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function.namespace != "uwaga":
            self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def _unseen(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _disable_current_modes():
        return forward(*args, **kwargs)
