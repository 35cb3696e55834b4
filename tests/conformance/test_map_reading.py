"""Every kind of map is an array: whatever is read of it has the bits of its dense matrix.

Letters: B sequences, H query heads, Q queries, K keys.
"""

from collections.abc import Callable

import numpy
import pytest
import torch
from drawn import draw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from uwaga import AttentionMap, Causal, Ragged, Window
from uwaga.inspect import ScaledMap
from uwaga.maps import DifferenceMap, WordMap
from uwaga.maps.base import WeightMap

SHAPE = (2, 4, 9, 13)
LENGTHS = [9, 0, 3]


def _attention(engine: str, seed: int = 0) -> AttentionMap:
    operands = draw(2, 4, 9, 8, seed=seed), draw(2, 2, 13, 8, seed=seed + 1)
    return AttentionMap(*operands, mask=Causal() & Window(8, None), impl=engine)


def _ragged(engine: str, seed: int = 0) -> AttentionMap:
    batch = Ragged.from_list([draw(n, 4, 8, seed=seed + n) for n in LENGTHS])
    return AttentionMap(batch, batch, mask=Causal(), impl=engine)


KINDS: dict[str, Callable[[str], WeightMap]] = {
    "attention": _attention,
    "attention, five dimensions": lambda engine: AttentionMap(
        draw(2, 3, 4, 9, 8, seed=0), draw(2, 3, 2, 13, 8, seed=1), mask=Causal(), impl=engine
    ),
    "attention, one head": lambda engine: AttentionMap(draw(9, 8, seed=0), draw(13, 8, seed=1), impl=engine),
    "difference": lambda engine: DifferenceMap(_attention(engine), _attention(engine, seed=5)),
    "scaled": lambda engine: ScaledMap(_attention(engine), draw(2, 4, 13, seed=7)),
    "words": lambda engine: WordMap(_attention(engine), [(0, 2), (2, 3), (3, 9)], [(0, 1), (1, 5), (5, 6), (6, 13)]),
}
INDICES = {
    "everything": (...,),
    "an entry": (..., 2, 1),
    "from the end": (..., -1, -2),
    "a row": (..., 1, slice(None)),
    "a column": (..., 3),
    "a rectangle": (..., slice(1, 3), slice(0, 2)),
    "backwards, by two": (..., slice(None, None, -2), slice(3, None, -1)),
    "nothing": (..., slice(2, 2), slice(None)),
    "lists": (..., [2, 0, 2, -1], [1, 1]),
    "a bool tensor": (..., torch.tensor([True, False, True]), slice(None)),
    "a tensor": (..., torch.tensor([1, 2]), 0),
    "numpy": (..., numpy.array([2, 0]), numpy.int64(1)),
    "an empty list": (..., [], slice(None)),
}


def _expected(dense: Tensor, index: tuple) -> Tensor:
    """The same index of a tensor: one dimension after the other, from the last, so that lists make an outer product."""
    rest = [part for part in index if part is not Ellipsis]
    for dimension, part in zip(range(-1, -len(rest) - 1, -1), reversed(rest), strict=True):
        size = dense.shape[dimension]
        if isinstance(part, slice):
            positions = list(range(*part.indices(size)))
        elif torch.is_tensor(part) and part.dtype == torch.bool:
            positions = part.nonzero().flatten().tolist()
        else:
            positions = [int(x) % size for x in (part if hasattr(part, "__len__") else [part])]
        dense = dense.index_select(dimension, torch.tensor(positions, dtype=torch.int64))
    dropped = [at - len(rest) for at, part in enumerate(rest) if hasattr(part, "__index__") and not _is_list(part)]
    return dense.squeeze([dense.dim() + at for at in dropped]) if dropped else dense


def _is_list(part: object) -> bool:
    return isinstance(part, list) or getattr(part, "ndim", 0) == 1


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_reads_what_the_matrix_holds(map_engine: str, kind: str, index: str) -> None:
    made, at = KINDS[kind], INDICES[index]
    if index == "a bool tensor":
        at = (..., torch.arange(made(map_engine).shape[-2]) % 2 == 0, slice(None))
    dense = made(map_engine).to_dense()
    # A map of its own, which knows nothing yet, and one that knows everything.
    for m in (made(map_engine), _warm(made(map_engine))):
        result = m[at]
        assert torch.equal(result, _expected(dense, at))
        assert result.dtype == m.dtype


def _warm(m: WeightMap) -> WeightMap:
    m.to_dense()
    return m


def test_leading_dimensions_are_indexed_too(map_engine: str) -> None:
    m, dense = _attention(map_engine), _attention(map_engine).to_dense()
    assert torch.equal(m[1], dense[1])
    assert torch.equal(m[-1, 2, 3, 4], dense[-1, 2, 3, 4])
    assert torch.equal(m[:, [3, 0], 1], dense[:, [3, 0], 1])
    assert torch.equal(m[::-1, 1:, ..., 5], dense.flip(0)[:, 1:, :, 5])
    five = KINDS["attention, five dimensions"](map_engine)
    assert torch.equal(five[1, [2, 0], -1, :, 3], five.to_dense()[1, [2, 0], -1, :, 3])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_columns_and_diagonals_are_those_of_the_matrix(map_engine: str, kind: str) -> None:
    made = KINDS[kind]
    m, dense = made(map_engine), made(map_engine).to_dense()
    queries, keys = m.shape[-2:]
    for i in (0, queries - 1, -2):
        assert torch.equal(made(map_engine).row(i), dense[..., i, :])
    for j in (0, keys - 1, -2):
        assert torch.equal(made(map_engine).column(j), dense[..., j])
    for offset in (0, -1, 3, keys, -keys - queries):
        for start in (None, 0, 2, -3):
            shift = (keys - queries if start is None else start) + offset
            expected = torch.zeros_like(dense[..., 0])
            for i in range(max(0, -shift), min(queries, keys - shift)):
                expected[..., i] = dense[..., i, i + shift]
            assert torch.equal(made(map_engine).diagonal(offset, start), expected), (offset, start)


def test_a_diagonal_may_start_elsewhere_in_each_sequence(map_engine: str) -> None:
    m = _attention(map_engine)
    result = m.diagonal(-1, start=torch.tensor([0, 4]))
    assert torch.equal(result[0], _shifted(m[0], -1))
    assert torch.equal(result[1], _shifted(m[1], 3))


def _shifted(dense: Tensor, shift: int) -> Tensor:
    padded = torch.nn.functional.pad(dense, (20, 20))
    return torch.stack([padded[..., i, 20 + i + shift] for i in range(dense.shape[-2])], dim=-1)


POSITIONS = st.one_of(
    st.integers(-9, 8),
    st.slices(9),
    st.lists(st.integers(-9, 8), max_size=5),
    st.lists(st.booleans(), min_size=9, max_size=9).map(lambda x: torch.tensor(x)),
)


@given(i=POSITIONS, j=POSITIONS)
@settings(max_examples=100)
def test_any_two_indices_make_an_outer_product(i: object, j: object) -> None:
    x = draw(1, 2, 9, 4, seed=3)
    m = AttentionMap(x, x)
    assert torch.equal(m[..., i, j], _expected(m.to_dense(), (..., i, j)))


RAGGED_KINDS: dict[str, Callable[[str], WeightMap]] = {
    "attention": _ragged,
    "difference": lambda engine: DifferenceMap(_ragged(engine), _ragged(engine, seed=3)),
    "scaled": lambda engine: ScaledMap(_ragged(engine), Ragged.from_list([draw(n, 4, seed=n) for n in LENGTHS])),
    "words": lambda engine: WordMap(_ragged(engine), [[(0, 4), (4, 9)], [], [(0, 1), (1, 3)]]),
}


@pytest.mark.parametrize("kind", RAGGED_KINDS)
def test_a_ragged_map_is_a_sequence_of_maps(map_engine: str, kind: str) -> None:
    m = RAGGED_KINDS[kind](map_engine)
    dense = m.to_dense()
    assert len(m) == len(dense) == 3
    assert [part.shape for part in m] == m.shapes == [tuple(x.shape) for x in dense]
    for r in (0, 1, 2, -1):
        assert torch.equal(m[r].to_dense(), dense[r])
    assert torch.equal(m[2, 1, -1, 0], dense[2][1, -1, 0])
    assert torch.equal(m[0, ..., 1:], dense[0][..., 1:])
    diagonals = m.diagonal(-1)
    for value, part in zip(diagonals.to_list(), m, strict=True):
        assert torch.equal(value.T, part.diagonal(-1))


def test_the_dense_matrix_is_refused_above_a_limit() -> None:
    """Zero strides: a query and a key of 100,000 tokens that take no memory."""
    x = torch.zeros(1).expand(1, 12, 100_000, 64)
    m = AttentionMap(x, x)
    with pytest.raises(ValueError):
        m.to_dense()
    with pytest.raises(ValueError):
        m[:, :, :5000]
    small = _attention("reference")
    assert small.nbytes == 2 * 4 * 9 * 13 * 4
    assert small.to_dense(max_bytes=small.nbytes).shape == SHAPE
    with pytest.raises(ValueError, match="takes 3744 bytes"):
        small.to_dense(max_bytes=small.nbytes - 1)
    ragged = _ragged("reference")
    assert ragged.nbytes == 4 * (81 + 9) * 4
    with pytest.raises(ValueError, match=r"the dense matrix \(3, 4, None, None\) takes 1440 bytes"):
        ragged.to_dense(max_bytes=1439)
