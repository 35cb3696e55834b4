"""Hidden states without padding give what the plain tensors give, through operations that they know and others.

Letters: B batch, N tokens of a sequence, T tokens that are no padding, D width.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from drawn import draw
from torch import Tensor

from uwaga.integrations.transformers.packed_states import PackedStates, Packing, plain

TOKENS = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 0]]).bool()
B, N, D, T = 3, 4, 6, 6


def states(packing: Packing | None = None, seed: int = 0) -> PackedStates:
    return PackedStates.of(packing or Packing.of(TOKENS), draw(T, D, seed=seed))


WEIGHT, POSITIONS, SCALE = draw(5, D, seed=1), draw(1, N, D, seed=2), draw(D, seed=3)

# Operations after which the states are still without padding.
STAY: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(x, WEIGHT),
    "layer norm": lambda x: F.layer_norm(x, (D,)),
    "rms norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "gemma's norm": lambda x: (x.float() * (1.0 + SCALE)).type_as(x),
    "gelu": F.gelu,
    "dropout": lambda x: F.dropout(x, 0.5, False),
    "residual": lambda x: x + F.silu(x),
    "positions": lambda x: x + POSITIONS,
    "scale": lambda x: SCALE * x / 2,
    "dtype": lambda x: x.to(torch.bfloat16).to(torch.float32),
    "gate": lambda x: (lambda a, b: a * F.gelu(b))(*x.chunk(2, dim=-1)),
    "heads": lambda x: x.view(B, N, 2, 3).transpose(1, 2),
    "heads and back": lambda x: x.view(B, N, -1, 3).transpose(1, 2).transpose(1, 2).reshape(B, N, -1).contiguous(),
}

# And those that need all of them: padding is zero there.
TURN_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "sum over tokens": lambda x: x.sum(1),
    "mean over tokens": lambda x: x.mean(1, keepdim=True),
    "first token": lambda x: x[:, 0],
    "softmax": lambda x: x.softmax(1),
    "joined": lambda x: torch.cat((x, x), 1),
    "matrix product": lambda x: x @ x.transpose(1, 2),
    "flat": lambda x: x.view(-1, D),
    "chunks of tokens": lambda x: x.chunk(2, dim=1)[0],
    "norm over tokens": lambda x: F.layer_norm(x.transpose(1, 2), (N,)),
    "heads with others": lambda x: x.view(B, N, 2, 3).transpose(1, 2) + torch.ones(N, 3),
    "heads with a scale of each": lambda x: (
        x.view(B, N, 2, 3).transpose(1, 2) * torch.tensor([2.0, 3.0])[:, None, None]
    ),
    "heads one behind the other": lambda x: x.view(B, N, 2, 3).transpose(1, 2).contiguous(),
    "a linear layer by name": lambda x: F.linear(input=x, weight=WEIGHT),
    "other bits": lambda x: x.view(torch.int32),
    "norm over tokens and width": lambda x: F.layer_norm(x, (N, D)),
    "mean over tokens without a width": lambda x: F.linear(x, SCALE).mean(-1, keepdim=True),
}


@pytest.mark.parametrize("name", STAY)
def test_operations_on_tokens(name: str) -> None:
    packed, run = states(), STAY[name]
    whole = packed.packing.unpack(packed.values)
    result, expected = run(packed), run(whole)
    assert isinstance(result, PackedStates)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    seen = TOKENS[:, None, :, None] if result.heads_first else TOKENS.reshape(B, N, *[1] * (expected.dim() - 2))
    torch.testing.assert_close(torch.where(seen, result.plain(), 0), torch.where(seen, expected, 0))


@pytest.mark.parametrize("name", TURN_PLAIN)
def test_operations_on_everything(name: str) -> None:
    packed, run = states(), TURN_PLAIN[name]
    whole = packed.packing.unpack(packed.values)
    result = run(packed)
    assert type(result) is Tensor
    assert torch.equal(result, run(whole))


def test_in_place() -> None:
    packed, other = states(), states(seed=4)
    expected = packed.values + packed.packing.pack(other.plain()) * 2
    other = packed.like(packed.packing.pack(other.plain()))
    other *= 2
    packed += other
    assert isinstance(packed, PackedStates)
    assert torch.equal(packed.values, expected)


def test_what_is_written_into_the_plain_tensor_counts() -> None:
    """Some models clear what they think is padding."""
    packed = states()
    packed[:, 0] = 1.0
    assert torch.equal((packed + 0)[:, 0], torch.ones(B, D))


# What may lie between the states that are written to and those that are read.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "view": lambda x: x.view(B, N, 2, 3),
    "heads": lambda x: x.view(B, N, 2, 3).transpose(1, 2),
    "piece": lambda x: x.chunk(2, dim=-1)[1],
    "heads of a piece": lambda x: x.chunk(2, -1)[0].view(B, N, 3, 1),
    "copy of heads": lambda x: x.view(B, N, 2, 3).transpose(1, 2).contiguous(),
    "copy of a piece": lambda x: x.chunk(2, dim=-1)[0].contiguous(),
    "copy of pieces of heads": lambda x: x.view(B, N, 2, 3).chunk(3, -1)[0].reshape(B, N, 2),
}
WRITES: dict[str, Callable[[Tensor], object]] = {
    "first": lambda x: x.__setitem__((slice(None), 0), 9.0),
    "last": lambda x: x.__setitem__((..., -1), 9.0),
    "sum and all": lambda x: (x.mul_(3.0), x.zero_()),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("into", ["view", "base"])
def test_what_is_written_into_a_view_is_in_its_base_and_the_other_way_round(view: str, write: str, into: str) -> None:
    packed = states()
    whole = packed.packing.unpack(packed.values)
    for x in (packed, whole):
        seen = VIEWS[view](x)
        WRITES[write](seen if into == "view" else x)
        x.late = seen
    for value, expected in ((packed, whole), (packed.late, whole.late)):
        rows = TOKENS.reshape(B, N, *[1] * (expected.dim() - 2))
        if expected.shape[1] != N:  # heads first
            rows = rows.transpose(1, 2)
        assert torch.equal(torch.where(rows, plain(value), 0), torch.where(rows, expected, 0))


def test_states_of_other_tokens_meet_as_plain_tensors() -> None:
    other = Packing.of(torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]).bool())
    left, right = states(), states(other, seed=5)
    result = left + right
    assert type(result) is Tensor
    assert torch.equal(result, left.plain() + right.plain())


def test_all_states_turn_plain_in_the_last_layer() -> None:
    packing = Packing.current(TOKENS)
    packed = states(packing)
    assert Packing.current(TOKENS.clone()) is packing
    Packing.close_current()
    assert not packed.is_packed
    assert type(F.gelu(packed)) is Tensor
    assert Packing.current(TOKENS) is not packing
    Packing.close_current()
