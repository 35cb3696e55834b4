"""Attention over 1 to 4 processes: the bits of one process; what each process is told where another one fails."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from running import by_cases, job_of, run
from sequence_cases import CASES, GATE, attend, check_sums, gradients_of

import uwaga
from uwaga._base import native

FAULTS = {"killed:3": 10.0, "stopped:3": 30.0}  # seconds within which it is told

# What a process waits for while blocks travel, by where one fails.
WITHIN = {
    "forward": "keys and values",
    "queries": "keys and values of the backward pass",
    "keys": "queries of the backward pass",
    "rows": "keys",
    "received": "queries",
    "cells": "keys",
    "Ragged": "keys",
}
KILLED_WITHIN = ["killed 1 in queries:3", "killed 0 in cells:3"]
# What the others wait for where one has an error.
FAILS = {
    "fails in model:3": "call 4, its operands",
    "fails in forward:3": "call 1, keys and values",
    "fails in backward:3": "call 1, keys and values of the backward pass",
}
FAILS_IN_GATE = ["fails in model:3", "fails in backward:3"]
IN_GATE = ["cases:2", "doctor:2", "levels:2", *FAULTS, *KILLED_WITHIN, *FAILS_IN_GATE, "fails in end:2"]
GROUP_ERROR = "ProcessGroupError: uwaga.sequence_parallel:"

pytestmark = pytest.mark.slow


@by_cases(CASES, GATE, (1, 2, 3, 4), 2)
def test_parts_have_the_bits_of_one_process(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    by_rank = [of_rank[name] for of_rank in result(f"{job_of('cases', name, GATE)}:{size}")]
    assert len(by_rank) == size
    parts = list(zip(*by_rank, strict=True))
    case = CASES[name]()
    ends = 0, case.query.shape[-2], 0, case.key.shape[-2]
    expected = gradients_of(case, partial(attend, impl="cpu"), *ends)
    for what, pieces, exact in zip(("output", "lse", "query", "key", "value"), parts, expected, strict=False):
        joined = torch.cat(pieces, dim=-1 if what == "lse" else -2)
        assert torch.equal(joined, exact), what
    for pieces, exact in zip(parts[5:], expected[5:], strict=True):  # gradients of parameters add up
        check_sums(torch.stack(pieces), exact, ends[1] + ends[3])
        assert size == 1 or not torch.equal(pieces[0], exact)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_process_that_fails_is_named(fault: str, result: Callable[[str], list[Any]]) -> None:
    told = result(fault)
    assert len(told) == 2
    for message, _ in told:
        # One that was told, and has ended, may be named beside it.
        expected = r"ranks? (\d, )?2 ended or did not answer within the group's timeout \(call 1, its backward pass\): "
        assert re.match(f"ProcessGroupError: uwaga.sequence_parallel: {expected}", message), message


def check_named(job: str, told: list[str], size: int) -> None:
    """All others name the one that failed, and nobody else."""
    _, victim, _, place = job.split(":")[0].split()
    assert len(told) == size - 1
    call = "call 2" if place == "Ragged" else "call 1"  # that of a row
    for message in told:
        expected = f" rank {victim} ended or did not answer within the group's timeout ({call}, {WITHIN[place]}): "
        assert message.startswith(GROUP_ERROR + expected), message


@pytest.mark.parametrize("job", KILLED_WITHIN)
def test_a_process_that_ends_while_blocks_travel_is_named_by_all(job: str, result: Callable[[str], list[Any]]) -> None:
    check_named(job, result(job), 3)


@pytest.mark.stress
@pytest.mark.parametrize("place", WITHIN)
@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_whoever_fails_while_blocks_travel_is_named_by_all(fault: str, place: str, tmp_path: Path) -> None:
    jobs = [f"{fault} {victim} in {place}:4" for victim in range(4)]
    read = run(tmp_path, jobs)
    for job in jobs:
        check_named(job, read(job), 4)


@pytest.mark.gate(only=lambda job: job in FAILS_IN_GATE)
@pytest.mark.parametrize("job", FAILS)
def test_an_error_of_one_process_alone_is_told_to_the_others(job: str, result: Callable[[str], list[Any]]) -> None:
    """At once: the group's timeout is longer than the test's."""
    (first,), (failed,), (last,) = result(job)
    assert failed == "IndexError: index 80 is out of range"
    expected = f"{GROUP_ERROR} rank 1 failed ({FAILS[job]}): IndexError: index 80 is out of range"
    assert (first, last) == (expected, expected)


def test_an_error_after_the_last_exchange_is_told_at_the_next_call(result: Callable[[str], list[Any]]) -> None:
    told = result("fails in end:2")
    again = f"{GROUP_ERROR} rank 1 failed (call 6, the tokens of a model): IndexError: index 80 is out of range"
    assert told == [["no error", again], ["IndexError: index 80 is out of range", again]]


@pytest.mark.timing
@pytest.mark.parametrize("fault", FAULTS)
def test_a_process_that_fails_is_named_within_the_timeout(fault: str, result: Callable[[str], list[Any]]) -> None:
    assert max(took for _, took in result(fault)) < FAULTS[fault]


def test_doctor_says_who_is_there(result: Callable[[str], list[Any]]) -> None:
    told = result("doctor:2")
    said, _ = told[0]
    assert all(of_rank[0] == said for of_rank in told)
    by_rank = [uwaga.sequence_parallel.Process(*x) for x in said]
    assert [x.rank for x in by_rank] == [0, 1]
    assert [x.pid for x in by_rank] == [of_rank[1] for of_rank in told]
    assert {(x.backend, x.level, x.threads) for x in by_rank} == {("gloo", native.level(), 1)}
    assert by_rank[0].megabytes_per_second == 0 < min(x.megabytes_per_second for x in by_rank[1:])
    assert all(x.has_same_bits for x in by_rank)


@pytest.mark.skipif(native.level() == "scalar", reason="this processor has one instruction set")
def test_doctor_finds_another_instruction_set(result: Callable[[str], list[Any]]) -> None:
    first, second = (uwaga.sequence_parallel.Process(*x) for x in result("levels:2")[0][0])
    assert second.level == "scalar" != first.level
    assert not second.has_same_bits
