"""Ragged batches over 1 to 3 processes, with rows that are cut anywhere, and models over parts of texts: the bits of one process."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ragged_cases import (
    CASES,
    GATE,
    HEADS,
    MODELS,
    OF_TRANSFORMERS,
    classifier_and_ids,
    foreign_model_and_ids,
    gradients_of_ragged,
    model_and_inputs,
    output_of,
)
from running import by_cases, job_of
from sequence_cases import check_sums

import uwaga
from uwaga.ops.ragged import part_of

# What each of two processes is told where their arguments differ or are refused: told.txt, which `make error-messages` writes.
FILE = Path(__file__).with_name("told.txt")
TOLD = ["disagreements:2", "refused_models:2"]
IN_GATE = ["ragged:2", "models:2", *TOLD]
SIZES = (1, 2, 3)

pytestmark = pytest.mark.slow


@by_cases(CASES, GATE, (1, 2, 3), 2)
def test_parts_have_the_bits_of_one_process(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    call = CASES[name]()
    whole = gradients_of_ragged([call.query, call.key, call.value], call, slice(None), impl="cpu")
    by_rank = [of_rank[name] for of_rank in result(f"{job_of('ragged', name, GATE)}:{size}")]
    assert len(by_rank) == size
    parts = list(zip(*by_rank, strict=True))
    for what, pieces, exact in zip(("output", "lse", "query", "key", "value"), parts, whole, strict=False):
        assert torch.equal(torch.cat(pieces), exact), what
    for pieces, exact in zip(parts[5:], whole[5:], strict=True):
        check_sums(torch.stack(pieces), exact, len(call.query.values) + len(call.key.values))


@pytest.mark.gate(only=lambda size: size == 2)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_bits_of_one_process(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    """In training, with dropout where the model has any."""
    model, tokens, options = model_and_inputs(name)
    torch.manual_seed(5)
    output = output_of(model(tokens, **options))
    gradients = torch.autograd.grad(output.values.square().sum(), list(model.parameters()), allow_unused=True)
    values, by_process = zip(*(of_rank["own", name] for of_rank in result(f"models:{size}")), strict=True)
    assert torch.equal(torch.cat(values), output.values)
    for exact, *parts in zip(gradients, *by_process, strict=True):
        if exact is not None:
            torch.testing.assert_close(torch.stack(parts).sum(0), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.gate(only=lambda size: size == 2)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*OF_TRANSFORMERS, *HEADS])
def test_models_of_transformers_have_the_bits_of_one_process(
    name: str, size: int, result: Callable[[str], list[Any]]
) -> None:
    """And RoBERTa with heads of tokens."""
    model, ids = foreign_model_and_ids("roberta", name) if name in HEADS else foreign_model_and_ids(name)
    with torch.no_grad():
        exact = model(input_ids=ids)[0]
    assert torch.equal(torch.cat([of_rank[name] for of_rank in result(f"models:{size}")], dim=1), exact)


@pytest.mark.gate(only=lambda size: size == 2)
@pytest.mark.parametrize("size", SIZES)
def test_outputs_of_first_tokens_where_each_row_lies_with_one_process(
    size: int, result: Callable[[str], list[Any]]
) -> None:
    model, ids = classifier_and_ids()
    rows = uwaga.Ragged.from_list(list(ids))
    with torch.no_grad():
        exact = model(rows, only="first", outputs=("sequence",))
    states, logits = zip(*(of_rank["first"] for of_rank in result(f"models:{size}")), strict=True)
    assert torch.equal(torch.cat(states), exact.last_hidden_state.values)
    assert torch.equal(torch.cat(logits), exact.sequence)


def test_parts_of_a_batch_follow_one_another() -> None:
    batch = uwaga.Ragged(torch.arange(11), torch.tensor([0, 0, 3, 3, 10, 11, 11]))
    others = uwaga.Ragged(torch.arange(4), torch.tensor([0, 1, 1, 2, 4, 4, 4]))
    for count in (1, 2, 3, 5, 20):
        for rows, like in ((batch, None), (others, batch)):
            parts = [part_of(rows, n, count, like=like) for n in range(count)]
            assert torch.cat([x.rows.values for x in parts]).tolist() == rows.values.tolist()
            assert all(x.rows.values.tolist()[:1] in ([], [x.first_token]) for x in parts)
            assert sum(len(x.rows) - (x.rows.first is not None) for x in parts) == len(rows)


def test_what_two_processes_are_told(result: Callable[[str], list[Any]]) -> None:
    """Where one process alone finds an error, the other one is told too: one that went on would wait for it until the timeout."""
    told = []
    for job in TOLD:
        first, second = result(job)
        told += [f"[{job.partition(':')[0]}: {name}]\n{lasting(first[name], second[name])}\n" for name in first]
    if "UWAGA_RECORD_MESSAGES" in os.environ:
        FILE.write_text("\n".join(told), encoding="utf-8")
    assert told == re.split(r"\n(?=\[)", FILE.read_text(encoding="utf-8"))


def lasting(first: str | None, second: str | None) -> str:
    """Both texts without what differs between runs: checksums, and which calls there were before."""
    texts = [
        re.sub(r"(?<=has )\d+(?=,|$)", "CHECKSUM", text) if "checksum" in text else text
        for text in map(str, (first, second))
    ]
    calls = [int(number) for text in texts for number in re.findall(r"\bcall (\d+)", text)]
    texts = [re.sub(r"\bcall (\d+)", lambda found: f"call N + {int(found[1]) - min(calls)}", text) for text in texts]
    return f"both: {texts[0]}" if texts[0] == texts[1] else f"rank 0: {texts[0]}\nrank 1: {texts[1]}"
