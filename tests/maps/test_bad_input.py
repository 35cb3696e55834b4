"""Bad input is refused at the door of a map: the whole text of each message.

Letters: B batch, H query heads, G key heads, Q queries, K keys, D query/key width.
"""

from collections.abc import Callable
from functools import reduce
from operator import or_
from textwrap import dedent

import pytest
import torch
from torch import Tensor

from uwaga import AttentionMap, Causal, Ragged, attend
from uwaga._base import native
from uwaga.inspect import rollout
from uwaga.maps import DifferenceMap, SubsetMap


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


Q, K = _x(2, 4, 5, 8), _x(2, 2, 7, 8)
OFFSETS = torch.tensor([0, 2, 5])
RAGGED = Ragged(_x(5, 2, 8), OFFSETS)


def _map() -> AttentionMap:
    return AttentionMap(Q, K)


SHAPES: dict[str, tuple[Callable[[], object], str]] = {
    "widths": (
        lambda: AttentionMap(Q, _x(2, 2, 7, 9)),
        """
        attention: key and query disagree on head width D
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 9)   B=2  G=2  K=7  D=9   <- D was 8 from query
        """,
    ),
    "heads": (
        lambda: AttentionMap(Q, _x(2, 3, 7, 8)),
        """
        attention: query heads H must be a multiple of key heads G
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 3, 7, 8)   B=2  G=3  K=7  D=8   <- H=4 is not a multiple of G=3
        """,
    ),
    "a mask": (
        lambda: AttentionMap(Q, K, mask=_x(5, 5, dtype=torch.bool)),
        """
        attention: mask must broadcast to the scores (2, 4, 5, 7)
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          mask   (5, 5)                              <- does not broadcast
        """,
    ),
    "a second mask": (
        lambda: _map().mass(_x(6, 7, dtype=torch.bool)),
        """
        attention: mask must broadcast to the scores (2, 4, 5, 7)
          query  (2, 4, 5, 8)   B=2  H=4  Q=5  D=8
          key    (2, 2, 7, 8)   B=2  G=2  K=7  D=8
          mask   (6, 7)                              <- does not broadcast
        """,
    ),
    "ragged widths": (
        lambda: AttentionMap(RAGGED, Ragged(_x(5, 2, 9), OFFSETS)),
        """
        attention: key and query disagree on head width D
          query  (5, 2, 8)   N1=5 H=2  D=8
          key    (5, 2, 9)   N2=5 G=2  D=9   <- D was 8 from query
        """,
    ),
    "sequences": (
        lambda: AttentionMap(RAGGED, Ragged(_x(5, 2, 8), torch.tensor([0, 5]))),
        """
        attention: key.offsets and query.offsets disagree on row offsets R+1
          query.offsets  (3,)   R+1=3
          key.offsets    (2,)   R+1=2   <- R+1 was 3 from query.offsets
        """,
    ),
    "an lse": (
        lambda: AttentionMap(Q, K, lse=_x(2, 4, 1)),
        """
        AttentionMap: lse must be (2, 4, 5), one value per query
          query  (2, 4, 5, 8)
          lse    (2, 4, 1)         <- is not
        """,
    ),
    "a ragged lse": (
        lambda: AttentionMap(RAGGED, RAGGED, lse=RAGGED.with_values(_x(5))),
        """
        AttentionMap: lse must be (5, 2), one value per query
          query  (5, 2, 8)
          lse    (5,)           <- is not
        """,
    ),
    "weights of rows": (
        lambda: _map().received(weights=_x(4)),
        """
        AttentionMap: weights must broadcast to (2, 4, 5), one value per query
          query    (2, 4, 5, 8)
          weights  (4,)              <- does not broadcast
        """,
    ),
}

VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "no tensor": (lambda: AttentionMap(Q, [1.0]), "attention: key must be a tensor or Ragged, not list"),
    "one ragged": (
        lambda: AttentionMap(RAGGED, K),
        "attention: query and key must all be Ragged or none of them, but query is Ragged, key is Tensor",
    ),
    "dtypes": (
        lambda: AttentionMap(Q, K.double()),
        "attention: query and key must have one dtype, not torch.float32, torch.float64",
    ),
    "devices": (
        lambda: AttentionMap(Q, K.to("meta")),
        "attention: query and key must be on one device, not cpu, meta",
    ),
    "integers": (
        lambda: AttentionMap(Q.int(), K.int()),
        "attention: query must be float32, bfloat16, float16 or float64, not torch.int32",
    ),
    "scale": (lambda: AttentionMap(Q, K, scale=torch.inf), "attention: scale must be a finite number or None, not inf"),
    "softcap": (
        lambda: AttentionMap(Q, K, softcap=0.0),
        "attention: softcap must be a positive number or None, not 0.0",
    ),
    "engine": (
        lambda: AttentionMap(Q, K, impl="torch"),
        "AttentionMap: impl must be one of 'cpu', 'reference', 'triton' or None, not 'torch'",
    ),
    "engine of an attend": (
        lambda: attend(Q, K, K, impl="linear"),
        "AttentionMap: impl must be one of 'cpu', 'reference', 'triton' or None, not 'linear'",
    ),
    "lse of another dtype": (
        lambda: AttentionMap(Q, K, lse=_x(2, 4, 5, dtype=torch.float64)),
        "AttentionMap: lse must be torch.float32, not torch.float64",
    ),
    "lse that is not ragged": (
        lambda: AttentionMap(RAGGED, RAGGED, lse=_x(5, 2)),
        "AttentionMap: lse must be Ragged where the query is, but lse is Tensor, query Ragged",
    ),
    "lse of other offsets": (
        lambda: AttentionMap(RAGGED, RAGGED, lse=Ragged(_x(5, 2), torch.tensor([0, 3, 5]))),
        "AttentionMap: lse must have the query's offsets",
    ),
    "lse that is none": (lambda: AttentionMap(Q, K, lse=1.0), "AttentionMap: lse must be a tensor, not float"),
    "lse elsewhere": (
        lambda: AttentionMap(Q, K, lse=_x(2, 4, 5).to("meta")),
        "attention: lse is on meta, query on cpu",
    ),
    "integer weights": (
        lambda: _map().received(weights=torch.arange(5)),
        "AttentionMap: weights must be floating, not torch.int64",
    ),
    "no last queries": (
        lambda: _map().received(last=0),
        "AttentionMap.received: last must be at least 1, not 0",
    ),
    "half a query": (
        lambda: _map().received(last=0.5),
        "AttentionMap.received: last must be at least 1, not 0.5",
    ),
    "no k": (lambda: _map().topk(0), "AttentionMap.topk: k must be at least 1, not 0"),
    "order": (lambda: _map().effective_count(order=3), "AttentionMap.effective_count: order must be 1 or 2, not 3"),
    "mask": (lambda: _map().mass("causal"), "attention: mask must be a mask or a bool tensor, not str"),
    "mask elsewhere": (
        lambda: _map().mass(_x(5, 7, dtype=torch.bool).to("meta")),
        "attention: mask is on meta, query on cpu",
    ),
    "a mask of many parts": (
        lambda: AttentionMap(Q, K, impl="cpu").mass(reduce(or_, [Causal()] * 20)),
        "AttentionMap: a mask has more than 32 parts",
    ),
    "start": (
        lambda: _map().distance(start=torch.tensor([0.5, 1.0])),
        "AttentionMap.distance: start must be integers, not torch.float32",
    ),
    "half a start": (
        lambda: _map().distance(start=1.5),
        "AttentionMap.distance: start must be an integer, not 1.5",
    ),
    "a start far away": (
        lambda: _map().distance(start=1 << 63),
        "AttentionMap.distance: start must lie between -1099511627776 and 1099511627776, not 9223372036854775808",
    ),
    "half an offset": (
        lambda: _map().diagonal(1.5),
        "AttentionMap.diagonal: offset must be an integer, not 1.5",
    ),
    "an offset that is true": (
        lambda: _map().diagonal(True),
        "AttentionMap.diagonal: offset must be an integer, not True",
    ),
    "an offset of floats": (
        lambda: _map().diagonal(torch.tensor(1.0)),
        "AttentionMap.diagonal: offset must be an integer, not tensor(1.)",
    ),
    "a start by name": (
        lambda: _map().diagonal(start="first"),
        "AttentionMap.diagonal: start must be an integer, not 'first'",
    ),
    "half an offset of any map": (
        lambda: SubsetMap(_map(), [1, 2]).diagonal(0.5),
        "SubsetMap.diagonal: offset must be an integer, not 0.5",
    ),
    "half a start of any map": (
        lambda: SubsetMap(_map(), [1, 2]).diagonal(start=0.5),
        "SubsetMap.diagonal: start must be an integer, not 0.5",
    ),
    "half starts of any map": (
        lambda: SubsetMap(_map(), [1, 2]).diagonal(start=torch.tensor([0.5, 1.0])),
        "SubsetMap.diagonal: start must be integers, not torch.float32",
    ),
    "starts of other sequences": (
        lambda: SubsetMap(_map(), [1, 2]).diagonal(start=torch.tensor([0, 1, 2])),
        "SubsetMap.diagonal: start must broadcast to the batch dimensions (2,), not be (3,)",
    ),
    "starts of other ragged sequences": (
        lambda: DifferenceMap(*[AttentionMap(RAGGED, RAGGED)] * 2).diagonal(start=torch.tensor([0, 1, 2])),
        "DifferenceMap.diagonal: start must broadcast to the batch dimensions (2,), not be (3,)",
    ),
    "half a k": (lambda: _map().topk(1.5), "AttentionMap.topk: k must be an integer, not 1.5"),
    "half a top": (lambda: _map().prepare(topk=1.5), "AttentionMap.prepare: topk must be an integer, not 1.5"),
    "a top below none": (
        lambda: _map().prepare(topk=-1),
        "AttentionMap.prepare: topk must be at least 0, not -1",
    ),
    "half a part": (lambda: _map().select(1.5), "AttentionMap.select: an index must be an integer, not 1.5"),
    "half a token": (
        lambda: rollout([AttentionMap(K, K)], 1.5),
        "rollout: token must be an integer, not 1.5",
    ),
    "half tokens": (
        lambda: rollout([AttentionMap(K, K)], torch.tensor([0.5, 1.0])),
        "rollout: token must be integers, not torch.float32",
    ),
    "tokens of other sequences": (
        lambda: rollout([AttentionMap(K, K)], torch.tensor([0, 1, 2])),
        "rollout: token must broadcast to the batch dimensions (2,), not be (3,)",
    ),
    "pooling": (
        lambda: _map().pool(2, 2, pooling="mean"),
        "AttentionMap.pool: pooling must be 'sum' or 'max', not 'mean'",
    ),
    "no rows": (lambda: _map().pool(0, 2), "AttentionMap.pool: rows must be at least 1, not 0"),
    "descending edges": (
        lambda: _map().pool([0, 3, 2], 2),
        "AttentionMap.pool: edges of rows must be ascending, not [0, 3, 2]",
    ),
    "edges outside": (
        lambda: _map().pool(2, [0, 8]),
        "AttentionMap.pool: edges of cols must lie in 0..7 of sequence 0, not 8",
    ),
    "edges outside one sequence": (
        lambda: AttentionMap(RAGGED, RAGGED).pool([0, 3], 1),
        "AttentionMap.pool: edges of rows must lie in 0..2 of sequence 0, not 3",
    ),
    "edges before the first": (
        lambda: AttentionMap(_x(5, 8), _x(7, 8)).pool([-1, 3], 1),
        "AttentionMap.pool: edges of rows must lie in 0..5, not -1",
    ),
    "no edges": (lambda: _map().pool([], 1), "AttentionMap.pool: edges of rows must be (n+1,) or (2, n+1), not (0,)"),
    "edges of other sequences": (
        lambda: _map().pool(_x(3, 2, dtype=torch.int64), 1),
        "AttentionMap.pool: edges of rows must be (n+1,) or (2, n+1), not (3, 2)",
    ),
    "fractions of rows": (
        lambda: _map().pool([0.5, 1.0], 1),
        "AttentionMap.pool: rows must be a number or a list of ascending edges, of integers, not torch.float32",
    ),
    "rows by name": (
        lambda: _map().pool("all", 1),
        "AttentionMap.pool: rows must be a number or a list of ascending edges, not 'all'",
    ),
    "spans that are none": (
        lambda: _map().between([1, 2]),
        "AttentionMap.between: spans must be pairs (start, stop), (S, 2), not of the shape (2,)",
    ),
    "spans of different lengths": (
        lambda: _map().between([(0, 1), (2,)]),
        "AttentionMap.between: spans must be pairs (start, stop), not [(0, 1), (2,)]",
    ),
    "spans backwards": (
        lambda: _map().between([(3, 1)]),
        "AttentionMap.between: spans must be pairs (start, stop) with start <= stop, not [[3, 1]]",
    ),
    "spans outside": (
        lambda: _map().between([(0, 2)], [(0, 8)]),
        "AttentionMap.between: key_spans must lie in 0..7 of sequence 0, not 8",
    ),
    "no softmax": (
        lambda: attend(Q, K, K, normalize=None),
        "attend: a map needs softmax weights, which normalize=None does not have",
    ),
    "no top": (lambda: attend(Q, K, K, topk=0), "attend: topk must be at least 1 or None, not 0"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_do_not_fit(name: str) -> None:
    call, message = SHAPES[name]
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == dedent(message).strip()


@pytest.mark.parametrize("name", VALUES)
def test_values_that_do_not_fit(name: str) -> None:
    call, message = VALUES[name]
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.skipif(native.reason_unavailable() is not None, reason=str(native.reason_unavailable()))
def test_a_named_engine_that_cannot_serve_says_why() -> None:
    with pytest.raises(ValueError) as caught:
        AttentionMap(Q.double(), K.double(), impl="cpu")
    assert str(caught.value) == (
        "AttentionMap: engine 'cpu' cannot serve this map: it computes float32, bfloat16 and float16, not float64"
    )


def test_a_new_number_of_sequences_is_noticed() -> None:
    with pytest.raises(ValueError) as caught:
        AttentionMap(RAGGED, RAGGED, mask=Causal()).between(torch.zeros(3, 1, 2, dtype=torch.int64))
    assert str(caught.value) == (
        "AttentionMap.between: spans must be pairs (start, stop), (S, 2), not of the shape (3, 1, 2)"
    )


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ((0, 0, 0), "AttentionMap.select: 3 indices for the leading dimensions (2, 4)"),
        ((2,), "AttentionMap.select: index 2 is out of range for axis 0 of size 2"),
        ((0, -5), "AttentionMap.select: index -5 is out of range for axis 1 of size 4"),
    ],
)
def test_a_part_that_is_not_there_cannot_be_selected(at: tuple[int, ...], message: str) -> None:
    x = torch.zeros(2, 4, 3, 8)
    with pytest.raises(IndexError) as raised:
        AttentionMap(x, x).select(*at)
    assert str(raised.value) == message
