"""The order of an epoch: every row once, full micro-batches, and nothing but (seed, epoch) in it."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uwaga.train.data.counter import bits, permutation
from uwaga.train.data.order import Order, filled

_LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=60)


@given(_LENGTHS, st.integers(0, 3), st.integers(0, 3))
def test_every_row_is_there_once(lengths: list[int], seed: int, epoch: int) -> None:
    order = Order(np.array(lengths), 20, seed, epoch)
    rows = [row for micro in range(len(order)) for row in order.rows(micro)]
    assert sorted(rows) == list(range(len(lengths)))


@given(_LENGTHS)
def test_a_micro_batch_ends_where_the_next_row_does_not_fit(lengths: list[int]) -> None:
    starts = filled(np.array(lengths), 20).tolist()
    for micro, (start, stop) in enumerate(pairwise(starts)):
        size = sum(lengths[start:stop])
        assert size <= 20
        assert micro == len(starts) - 2 or size + lengths[stop] > 20


def test_another_epoch_or_seed_is_another_order() -> None:
    lengths = np.full(100, 5)
    orders = {(seed, epoch): Order(lengths, 500, seed, epoch).rows(0) for seed in range(3) for epoch in range(3)}
    assert len(set(orders.values())) == 9
    assert Order(lengths, 500, 2, 1).rows(0) == orders[2, 1]


def test_the_bits_are_those_of_every_machine() -> None:
    assert bits(2, "order", 0, 1).tolist() == [258815424940938134, 7331967237378934650]
    assert permutation(6, "order", 1, 0).tolist() == [1, 5, 0, 4, 3, 2]


def test_every_order_of_four_is_about_as_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(4800):
        found = tuple(permutation(4, "test", epoch).tolist())
        counts[found] = counts.get(found, 0) + 1
    assert len(counts) == 24
    # 200 each; five standard deviations of a binomial count are 69.
    assert all(abs(count - 200) < 69 for count in counts.values())
