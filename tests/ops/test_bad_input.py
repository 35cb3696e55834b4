"""Bad input is refused by the public functions: the whole text of each message, and no partial work.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

from collections.abc import Callable
from textwrap import dedent

import pytest
import torch

import uwaga
from uwaga import AlibiBias, Documents, KeyLengths, Ragged
from uwaga.ops import attention_and_lse


def _x(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


Q, K, V = _x(2, 4, 5, 8), _x(2, 2, 7, 8), _x(2, 2, 7, 6)


def _ragged(*lengths: int, heads: int = 2) -> Ragged:
    return Ragged.from_list([_x(n, heads, 4) for n in lengths])


SHAPES: dict[str, tuple[Callable[[], object], str]] = {
    "widths": (
        lambda: uwaga.attention(Q, _x(2, 2, 7, 9), V),
        """
        attention: key and query disagree on head width D
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 9)   B=2  G=2  K=7  D=9   <- D was 8 from query
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
        """,
    ),
    "keys": (
        lambda: uwaga.attention(Q, K, _x(2, 2, 6, 6)),
        """
        attention: value and key disagree on keys K
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value  (2, 2, 6, 6)   B=2  G=2  K=6  E=6   <- K was 7 from key
        """,
    ),
    "batch": (
        lambda: uwaga.attention(Q, _x(1, 2, 7, 8), V),
        """
        attention: key and query disagree on batch B
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (1, 2, 7, 8)   B=1  G=2  K=7  D=8   <- B was 2 from query
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
        """,
    ),
    "heads": (
        lambda: uwaga.attention(Q, _x(2, 3, 7, 8), _x(2, 3, 7, 6)),
        """
        attention: query heads H must be a multiple of key heads G
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 3, 7, 8)   B=2  G=3  K=7  D=8   <- H=4 is not a multiple of G=3
          value  (2, 3, 7, 6)   B=2  G=3  K=7  E=6
        """,
    ),
    "rank": (
        lambda: uwaga.attention(Q, K[0], V),
        """
        attention: key needs 4 dimensions (B, G, K, D)
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 7, 8)                           <- has rank 3
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
        """,
    ),
    "vector": (
        lambda: uwaga.attention(_x(8), _x(8), _x(8)),
        """
        attention: query must be (..., H, Q, D) or (Q, D)
          query  (8,)      <- has rank 1
          key    (8,)
          value  (8,)
        """,
    ),
    "no width": (
        lambda: uwaga.attention(_x(3, 0), _x(3, 0), _x(3, 2)),
        """
        attention: head width D must be at least 1
          query  (3, 0)   Q=3  D=0   <- has D=0
          key    (3, 0)   K=3  D=0
          value  (3, 2)   K=3  E=2
        """,
    ),
    "five dimensions": (
        lambda: uwaga.attention(_x(2, 3, 4, 5, 8), _x(2, 2, 4, 5, 8), _x(2, 3, 4, 5, 8)),
        """
        attention: key and query disagree on batch B2
          query  (2, 3, 4, 5, 8)   B1=2 B2=3 H=4  Q=5  D=8
          key    (2, 2, 4, 5, 8)   B1=2 B2=2 G=4  K=5  D=8   <- B2 was 3 from query
          value  (2, 3, 4, 5, 8)   B1=2 B2=3 G=4  K=5  E=8
        """,
    ),
    "lengths": (
        lambda: uwaga.attention(Q, K, V, mask=KeyLengths(torch.tensor([1, 2, 3]))),
        """
        attention: KeyLengths must broadcast to the batch dimensions (2,)
          query       (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key         (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value       (2, 2, 7, 6)   B=2  G=2  K=7  E=6
          KeyLengths  (3,)                                <- does not broadcast
        """,
    ),
    "mask": (
        lambda: uwaga.attention(Q, K, V, mask=_x(5, 5, dtype=torch.bool)),
        """
        attention: mask must broadcast to the scores (2, 4, 5, 7)
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
          mask   (5, 5)                              <- does not broadcast
        """,
    ),
    "bias": (
        lambda: uwaga.attention(Q, K, V, bias=_x(3, 5, 7)),
        """
        attention: bias must broadcast to the scores (2, 4, 5, 7)
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
          bias   (3, 5, 7)                           <- does not broadcast
        """,
    ),
    "slopes": (
        lambda: uwaga.attention(Q, K, V, bias=AlibiBias(_x(2))),
        """
        attention: AlibiBias must be made for 4 query heads
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
          bias   (2,)                                <- is made for 2
        """,
    ),
    "sinks": (
        lambda: uwaga.attention(Q, K, V, sinks=_x(2)),
        """
        attention: sinks must be one per query head, (4,)
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value  (2, 2, 7, 6)   B=2  G=2  K=7  E=6
          sinks  (2,)                                <- is not (H,)
        """,
    ),
    "ids": (
        lambda: uwaga.attention(Q, K, V, mask=Documents(torch.zeros(5, dtype=torch.int64))),
        """
        attention: Documents ids must have the shape (7,) or (2, 7)
          query          (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key            (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          value          (2, 2, 7, 6)   B=2  G=2  K=7  E=6
          Documents ids  (5,)                                <- has neither
        """,
    ),
    "ragged rows": (
        lambda: uwaga.attention(_ragged(1, 2), _ragged(3), _ragged(3)),
        """
        attention: key.offsets and query.offsets disagree on row offsets R+1
          query.offsets  (3,)   R+1=3
          key.offsets    (2,)   R+1=2   <- R+1 was 3 from query.offsets
          value.offsets  (2,)   R+1=2
        """,
    ),
    "ragged values": (
        lambda: uwaga.attention(_ragged(1, 2), _ragged(1, 2), _ragged(2, 1)),
        """
        attention: key and value must have the same offsets
          key.offsets    (3,)   R+1=3
          value.offsets  (3,)   R+1=3   <- differs from key.offsets
        """,
    ),
    "ragged heads": (
        lambda: uwaga.attention(_ragged(1, 2), _ragged(1, 2, heads=3), _ragged(1, 2, heads=3)),
        """
        attention: query heads H must be a multiple of key heads G
          query  (3, 2, 4)   N1=3 H=2  D=4
          key    (3, 3, 4)   N2=3 G=3  D=4   <- H=2 is not a multiple of G=3
          value  (3, 3, 4)   N2=3 G=3  E=4
        """,
    ),
}

VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "dtypes": (
        lambda: uwaga.attention(Q, K.half(), V),
        "attention: query, key and value must have one dtype, not torch.float32, torch.float16, torch.float32",
    ),
    "integers": (
        lambda: uwaga.attention(Q.int(), K.int(), V.int()),
        "attention: query must be float32, bfloat16, float16 or float64, not torch.int32",
    ),
    "devices": (
        lambda: uwaga.attention(Q, K.to("meta"), V),
        "attention: query, key and value must be on one device, not cpu, meta, cpu",
    ),
    "no tensor": (lambda: uwaga.attention(Q, None, V), "attention: key must be a tensor or Ragged, not NoneType"),
    "half ragged": (
        lambda: uwaga.attention(_ragged(2), K, V),
        "attention: query, key and value must all be Ragged or none of them, but query is Ragged, key is Tensor, value is Tensor",
    ),
    "normalize": (
        lambda: uwaga.attention(Q, K, V, normalize="relu"),
        "attention: normalize must be 'softmax' or None, not 'relu'",
    ),
    "scale": (
        lambda: uwaga.attention(Q, K, V, scale=float("nan")),
        "attention: scale must be a finite number or None, not nan",
    ),
    "a scale that is a tensor": (
        lambda: uwaga.attention(Q, K, V, scale=torch.tensor(0.5)),
        "attention: scale must be a finite number or None, not tensor(0.5000)",
    ),
    "a softcap that is a tensor": (
        lambda: uwaga.attention(Q, K, V, softcap=torch.tensor(0.5)),
        "attention: softcap must be a positive number or None, not tensor(0.5000)",
    ),
    "a dropout that is a tensor": (
        lambda: uwaga.attention(Q, K, V, dropout=torch.tensor(0.5)),
        "attention: dropout must be at least 0 and less than 1, not tensor(0.5000)",
    ),
    "a scale that is a word": (
        lambda: uwaga.attention(Q, K, V, scale="0.5"),
        "attention: scale must be a finite number or None, not '0.5'",
    ),
    "a dropout that is a word": (
        lambda: uwaga.attention(Q, K, V, dropout="0.5"),
        "attention: dropout must be at least 0 and less than 1, not '0.5'",
    ),
    "sinks that are a list": (
        lambda: uwaga.attention(Q, K, V, sinks=[0.0] * 4),
        "attention: sinks must be a tensor (H,), not list",
    ),
    "a window that is a tensor": (
        lambda: uwaga.Window(torch.tensor(1), 0),
        "Window: left must be an integer of at least 0 or None (unbounded), not tensor(1)",
    ),
    "half a window": (
        lambda: uwaga.Window(1, 0.5),
        "Window: right must be an integer of at least 0 or None (unbounded), not 0.5",
    ),
    "half a start": (
        lambda: uwaga.Causal(start=1.5),
        "Causal: start must be an integer, a tensor of them or None, not 1.5",
    ),
    "a start far away": (
        lambda: uwaga.Causal(start=2**63),
        "Causal: start must lie between -2**59 and 2**59, not 9223372036854775808",
    ),
    "a start far before": (
        lambda: AlibiBias(_x(4), start=-(2**59) - 1),
        "AlibiBias: start must lie between -2**59 and 2**59, not -576460752303423489",
    ),
    "starts far away": (
        lambda: uwaga.attention(Q, K, V, mask=uwaga.Causal(start=torch.tensor([2**62, 0]))),
        "attention: start must lie between -2**59 and 2**59, but reaches from 0 to 4611686018427387904",
    ),
    "starts of a bias far away": (
        lambda: uwaga.attention(Q, K, V, bias=AlibiBias(_x(4), start=torch.tensor(-(2**63)))),
        "attention: start must lie between -2**59 and 2**59, but reaches from -9223372036854775808 to -9223372036854775808",
    ),
    "a window far away": (
        lambda: uwaga.Window(2**63, 0),
        "Window: left must lie between -2**59 and 2**59, not 9223372036854775808",
    ),
    "a window far ahead": (
        lambda: uwaga.Window(0, 2**59 + 1),
        "Window: right must lie between -2**59 and 2**59, not 576460752303423489",
    ),
    "a window far behind": (
        lambda: uwaga.Window(-(2**63), 0),
        "Window: left must be an integer of at least 0 or None (unbounded), not -9223372036854775808",
    ),
    "a start that is a bool": (
        lambda: uwaga.Causal(start=True),
        "Causal: start must be an integer, a tensor of them or None, not True",
    ),
    "a window that is a bool": (
        lambda: uwaga.Window(True, None),
        "Window: left must be an integer of at least 0 or None (unbounded), not True",
    ),
    "floating starts": (
        lambda: uwaga.attention(Q, K, V, mask=uwaga.Window(1, 0, start=_x(2))),
        "attention: start must be integers, not torch.float32",
    ),
    "starts that are bools": (
        lambda: uwaga.attention(Q, K, V, mask=uwaga.Causal(start=_x(2).bool())),
        "attention: start must be integers, not torch.bool",
    ),
    "ids that are bools": (
        lambda: uwaga.attention(Q, K, V, mask=Documents(_x(7).bool())),
        "attention: Documents ids must be integers, not torch.bool",
    ),
    "lengths without a sign": (
        lambda: uwaga.attention(Q, K, V, mask=KeyLengths(_x(2).to(torch.uint64))),
        "attention: KeyLengths must be integers, not torch.uint64",
    ),
    "starts of a bias elsewhere": (
        lambda: uwaga.attention(Q, K, V, bias=AlibiBias(_x(4), start=torch.zeros(2, dtype=torch.int64, device="meta"))),
        "attention: bias start is on meta, query on cpu",
    ),
    "a sparse mask": (
        lambda: uwaga.attention(Q, K, V, mask=_x(5, 7).bool().to_sparse()),
        "attention: mask must be a strided tensor, not torch.sparse_coo",
    ),
    "a sparse bias": (
        lambda: uwaga.attention(Q, K, V, bias=_x(5, 7).to_sparse()),
        "attention: bias must be a strided tensor, not torch.sparse_coo",
    ),
    "sparse sinks": (
        lambda: uwaga.attention(Q, K, V, sinks=_x(4).to_sparse()),
        "attention: sinks must be a strided tensor, not torch.sparse_coo",
    ),
    "sparse lengths": (
        lambda: KeyLengths(_x(2).long().to_sparse()),
        "KeyLengths: lengths must be a strided tensor, not torch.sparse_coo",
    ),
    "sparse starts": (
        lambda: uwaga.Causal(start=_x(2).long().to_sparse()),
        "Causal: start must be a strided tensor, not torch.sparse_coo",
    ),
    "include_self as a number": (
        lambda: uwaga.Causal(5),
        "Causal: include_self must be True or False, not 5",
    ),
    "lengths that are a list": (lambda: KeyLengths([1, 2]), "KeyLengths: lengths must be a tensor, not list"),
    "documents that are a list": (lambda: Documents([1, 2]), "Documents: ids must be a tensor, not list"),
    "a sparse operand": (
        lambda: uwaga.attention(_x(5, 8).to_sparse(), _x(5, 8), _x(5, 8)),
        "attention: query must be a strided tensor, not torch.sparse_coo",
    ),
    "softcap": (
        lambda: uwaga.attention(Q, K, V, softcap=0.0),
        "attention: softcap must be a positive number or None, not 0.0",
    ),
    "dropout": (
        lambda: uwaga.attention(Q, K, V, dropout=1.0),
        "attention: dropout must be at least 0 and less than 1, not 1.0",
    ),
    "sinks without softmax": (
        lambda: uwaga.attention(Q, K, V, normalize=None, sinks=_x(4)),
        "attention: sinks need normalize='softmax': they are terms of its denominator",
    ),
    "lse without softmax": (
        lambda: attention_and_lse(Q, K, V, normalize=None),
        "attention: the log-sum-exp needs normalize='softmax'",
    ),
    "float mask": (
        lambda: uwaga.attention(Q, K, V, mask=_x(5, 7)),
        "attention: mask must be bool, not torch.float32; an additive float tensor is a bias: bias=...",
    ),
    "integer mask": (
        lambda: uwaga.attention(Q, K, V, mask=_x(5, 7).int()),
        "attention: mask must be bool (True is visible), not torch.int32",
    ),
    "no mask": (
        lambda: uwaga.attention(Q, K, V, mask="causal"),
        "attention: mask must be a mask or a bool tensor, not str",
    ),
    "bool bias": (
        lambda: uwaga.attention(Q, K, V, bias=_x(5, 7).bool()),
        "attention: bias must be torch.float32, not torch.bool; a bool tensor is a mask: mask=...",
    ),
    "no bias": (
        lambda: uwaga.attention(Q, K, V, bias=1.0),
        "attention: bias must be a floating tensor or a bias, not float",
    ),
    "bias of another dtype": (
        lambda: uwaga.attention(Q.half(), K.half(), V.half(), bias=_x(5, 7, dtype=torch.bfloat16)),
        "attention: bias must be torch.float16 or torch.float32, not torch.bfloat16",
    ),
    "mask elsewhere": (
        lambda: uwaga.attention(Q, K, V, mask=_x(5, 7, dtype=torch.bool, device="meta")),
        "attention: mask is on meta, query on cpu",
    ),
    "floating lengths": (
        lambda: uwaga.attention(Q, K, V, mask=KeyLengths(_x(2))),
        "attention: KeyLengths must be integers, not torch.float32",
    ),
    "lengths too long": (
        lambda: uwaga.attention(Q, K, V, mask=KeyLengths(torch.tensor([-1, 9]))),
        "attention: KeyLengths must lie between 0 and the 7 keys, but they reach from -1 to 9",
    ),
    "too many queries for documents": (
        lambda: uwaga.attention(_x(2, 4, 9, 8), K, V, mask=Documents(torch.zeros(7, dtype=torch.int64))),
        "attention: Documents needs query_ids where a sequence has more queries than keys",
    ),
    "unknown engine": (
        lambda: uwaga.attention(Q, K, V, impl="flash"),
        "attention: impl must be one of 'cpu', 'flex', 'linear', 'reference', 'torch' or None, not 'flash'",
    ),
    "engine without the option": (
        lambda: uwaga.attention(Q, K, V, softcap=1.0, impl="torch"),
        "attention: engine 'torch' cannot serve this call: PyTorch's kernels have no softcap",
    ),
    "engine without the dtype": (
        lambda: uwaga.attention(Q.double(), K.double(), V.double(), impl="linear"),
        "attention: engine 'linear' cannot serve this call: softmax cannot be reassociated",
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(name: str) -> None:
    call, message = SHAPES[name]
    with pytest.raises(uwaga.ShapeError) as error:
        call()
    assert str(error.value) == dedent(message).strip()


@pytest.mark.parametrize("name", VALUES)
def test_values_that_mean_nothing(name: str) -> None:
    call, message = VALUES[name]
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == message


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(
        TypeError, match=r"^attention: is_causal is no option of it; give mask=uwaga\.Causal\(start=0\)$"
    ):
        uwaga.attention(Q, K, V, is_causal=True)


def test_a_refused_call_draws_no_random_number() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ValueError):
        uwaga.attention(Q, K, V, dropout=0.5, softcap=-1.0)
    assert torch.equal(torch.get_rng_state(), before)
