"""Maps over 1 to 4 processes: each statistic has the bits of one process."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import map_cases
import pytest
import ragged_cases
import torch
from running import by_cases, job_of
from sequence_cases import CASES, CASES_OF_MAPS, GATE_OF_MAPS
from torch import Tensor

import uwaga

IN_GATE = ["maps:3", "ragged_maps:2", "attended:2"]
SIZES = (1, 2, 3, 4)

pytestmark = pytest.mark.slow


def check_equal(parts: list[map_cases.Statistics], exact: map_cases.Statistics, join: Callable[..., Tensor]) -> None:
    for name, expected in exact.items():
        for n, whole in enumerate(expected):
            assert torch.equal(join([part[name][n] for part in parts]), whole), (name, n)


@by_cases(CASES_OF_MAPS, GATE_OF_MAPS, SIZES, 3)
def test_statistics_have_the_bits_of_one_process(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    case = CASES[name]()
    m = uwaga.AttentionMap(case.query, case.key, **case.options, impl="cpu")
    queries, keys = m.shape[-2:]
    by_rank = [of_rank[name] for of_rank in result(f"{job_of('maps', name, GATE_OF_MAPS)}:{size}")]
    assert len(by_rank) == size
    of_queries, topk, of_keys, of_all = zip(*by_rank, strict=True)
    with torch.no_grad():
        check_equal(list(of_queries), map_cases.of_queries(m, keys), partial(torch.cat, dim=-1))
        check_equal(list(topk), {"topk": [*m.topk(5)]}, partial(torch.cat, dim=-2))
        check_equal(list(of_keys), map_cases.of_keys(m, queries, slice(None)), partial(torch.cat, dim=-1))
        for of_process in of_all:
            check_equal([of_process], map_cases.of_all(m, queries, keys), lambda only: only[0])


@by_cases(ragged_cases.CASES_OF_MAPS, ragged_cases.GATE_OF_MAPS, SIZES, 2)
def test_statistics_of_ragged_batches(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    call = ragged_cases.CASES[name]()
    m = uwaga.AttentionMap(call.query, call.key, **call.options, impl="cpu")
    job = job_of("ragged_maps", name, ragged_cases.GATE_OF_MAPS)
    of_queries, of_keys = zip(*(of_rank[name] for of_rank in result(f"{job}:{size}")), strict=True)
    assert len(of_keys) == size
    with torch.no_grad():
        check_equal(list(of_queries), map_cases.of_tokens(m, ragged_cases.longest_keys(call)), torch.cat)
        weights = call.query.with_values(ragged_cases.weights_of(call))
        for parts, exact in zip(zip(*of_keys, strict=True), map_cases.of_key_tokens(m, weights), strict=True):
            assert torch.equal(torch.cat(parts), exact)


@by_cases(map_cases.ATTENDED, map_cases.GATE_OF_ATTENDED, SIZES, 2)
def test_attend_within_sequence_parallel(
    name: str | tuple[str, str], size: int, result: Callable[[str], list[Any]]
) -> None:
    case = CASES[name]() if isinstance(name, str) else ragged_cases.CASES[name[1]]()
    exact = map_cases.of_attended(*case[:3], case.options | {"impl": "cpu"})
    job = job_of("attended", name, map_cases.GATE_OF_ATTENDED)
    parts = zip(*(of_rank[name] for of_rank in result(f"{job}:{size}")), strict=True)
    for n, (pieces, expected) in enumerate(zip(parts, exact, strict=True)):
        is_per_token = n % 8 not in (0, 4, 5)
        whole = expected.values if isinstance(expected, uwaga.Ragged) else expected
        dim = 0 if isinstance(expected, uwaga.Ragged) else -1 if is_per_token else -2
        assert torch.equal(torch.cat(pieces, dim=dim), whole), n


@pytest.mark.timing
@pytest.mark.skipif(sys.platform != "linux", reason="memory is asked of Linux")
def test_a_process_holds_its_part_and_two_blocks(result: Callable[[str], list[Any]]) -> None:
    """Of four: the queries that it computes are a part, two blocks a quarter of one; three parts leave room for what else there is, and are less
    than all keys. Beside them the sums of diagonals: 24 bytes each, as many for those of other processes, and twice as many to add them up."""
    of_sums = 4 * 24 * 65535
    for grown, part in result("memory:4"):
        for name, size in grown.items():
            assert size < 3 * part + (of_sums if name == "diagonals" else 0), (name, size / part)
