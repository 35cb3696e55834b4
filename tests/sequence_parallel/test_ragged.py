"""Ragged batches over 1 to 3 processes, with rows that are cut anywhere, and models over parts of texts: the bits of one process."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from ragged_cases import (
    CASES,
    FOREIGN,
    HEADS,
    MODELS,
    TEXTS,
    classifier_and_ids,
    foreign_model_and_ids,
    model_and_inputs,
    output_of,
)
from sequence_cases import attend

import uwaga
from uwaga.ops.ragged import part_of

IN_GATE = ["ragged:2", "models:2", "refused_models:2"]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_parts_have_the_bits_of_one_process(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    call = CASES[name]()
    operands = [x.with_values(x.values.requires_grad_()) for x in (call.query, call.key, call.value)]
    output, lse = partial(attend, impl="cpu")(*operands, **call.options)
    loss = (output.values * call.grad_output).sum() + torch.where(lse.values.isfinite(), lse.values, 0.0).sum()
    gradients = torch.autograd.grad(loss, [*(x.values for x in operands), *call.parameters])
    by_rank = [of_rank[name] for of_rank in result(f"ragged:{size}")]
    assert len(by_rank) == size
    parts = list(zip(*by_rank, strict=True))
    names = ("output", "lse", "query", "key", "value")
    for what, pieces, exact in zip(names, parts, (output.values, lse.values, *gradients), strict=False):
        assert torch.equal(torch.cat(pieces), exact), what
    tokens = len(call.query.values) + len(call.key.values)
    for pieces, exact in zip(
        parts[5:], gradients[3:], strict=True
    ):  # sums of so many terms in another order, as in test_sequence.py
        by_process = torch.stack(pieces)
        bound = tokens * torch.finfo(torch.float32).eps / 2 * by_process.abs().sum(0)
        assert ((by_process.sum(0) - exact).abs() <= bound).all()


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_bits_of_one_process(name: str, size: int, result: Callable[[str], list[Any]]) -> None:
    """In training, with dropout where the model has any."""
    for lengths in TEXTS:
        model, tokens, options = model_and_inputs(name, lengths)
        torch.manual_seed(5)
        output = output_of(model(tokens, **options))
        gradients = torch.autograd.grad(output.values.square().sum(), list(model.parameters()), allow_unused=True)
        values, by_process = zip(*(of_rank[name, lengths] for of_rank in result(f"models:{size}")), strict=True)
        assert torch.equal(torch.cat(values), output.values)
        for exact, *parts in zip(gradients, *by_process, strict=True):
            if exact is not None:
                torch.testing.assert_close(torch.stack(parts).sum(0), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", FOREIGN)
def test_models_of_transformers_have_the_bits_of_one_process(
    name: str, size: int, result: Callable[[str], list[Any]]
) -> None:
    model, ids = foreign_model_and_ids(name)
    with torch.no_grad():
        exact = model(input_ids=ids).last_hidden_state
    assert torch.equal(torch.cat([of_rank[name] for of_rank in result(f"models:{size}")], dim=1), exact)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("auto", HEADS)
def test_heads_of_tokens_have_the_bits_of_one_process(auto: str, size: int, result: Callable[[str], list[Any]]) -> None:
    model, ids = foreign_model_and_ids("roberta", auto)
    with torch.no_grad():
        exact = model(input_ids=ids).logits
    assert torch.equal(torch.cat([of_rank[auto] for of_rank in result(f"models:{size}")], dim=1), exact)


@pytest.mark.parametrize("size", [1, 2, 3])
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


AT = "ValueError: uwaga.sequence_parallel"


def test_what_is_refused_says_why(result: Callable[[str], list[Any]]) -> None:
    first, second = result("refused_models:2")
    both = {
        "Ragged": f"{AT}.forward: GPT2Model takes no Ragged tokens",
        "implementation": f"{AT}.forward: GPT2Model has attn_implementation='sdpa'; only 'uwaga' is computed by several processes",
        "mask": f"{AT}.forward: attention_mask is not divided over processes: give texts of one length, without padding",
        "positions": f"{AT}.forward: _WithoutPositions takes no position_ids: a part of a text would be read as its beginning",
        "tokens": f"{AT}: tokens must be ids (N,) or (B, N), or Ragged, not (1, 1, 8)",
        "other rows": f"{AT}: query, key and value must be parts of the same rows: their first rows begin here, or in another process, but "
        "first is {}, {} and 7",
        "a hole": f"{AT}: the first row of rank 1 goes on after 5 queries and 5 keys, and the processes before it have 4 and 4 of it",
        "tensors beside Ragged": f"{AT}: the processes disagree on kind of operands: rank 0 has tensors, rank 1 has Ragged",
    }
    for by_rank, start in ((first, None), (second, 4)):
        assert {name: by_rank[name] for name in both} == {
            name: text.format(start, start) for name, text in both.items()
        }
    assert second["outside"] == (
        "ValueError: attention: the first row of this part of a batch began in another process: call it inside uwaga.sequence_parallel"
    )


NO_DIVISION = "is not divided over processes"
SERVED = "served are ForCausalLM, LMHeadModel, ForMaskedLM, ForTokenClassification, and models without a head"
NOT_ONE = "does not have the bits of one process: call eval(), or set its dropout to 0"
UNCUT = (
    "outputs of single tokens of Transformer need rows that lie with one process; the first row of rank 1 began before"
)
OF_FORWARD = {
    "classifier": f"RobertaForSequenceClassification has a head that may read single tokens; {SERVED}",
    "classifier of last": f"GPT2ForSequenceClassification has a head that may read single tokens; {SERVED}",
    "token types": f"token_type_ids {NO_DIVISION}",
    "labels": f"labels {NO_DIVISION}",
    "key lengths": f"key_lengths {NO_DIVISION}",
    "short": "texts of length 1 are too short for 2 processes, of which each needs a token",
    "last": UNCUT,
    "pooled": UNCUT,
    "empty row": "row 2 is empty: it has no token for Transformer's outputs of single tokens",
    "unknown id": "tokens of Transformer must lie between 0 and 29",
    "too long": "a row has 81 tokens; Transformer has 80 positions",
}
DROPPED = {
    "dropout of transformers": "GPT2Model drops hidden states by PyTorch's random numbers: call eval(), or set its dropouts to 0",
    "autocast": f"Transformer drops hidden states, which with torch.autocast {NOT_ONE}",
    "dropout of a decoder": f"Transformer drops hidden states, which with decoder_ids {NOT_ONE}",
}
ROWS = f"{AT.split(':')[0]}: Ragged: rows that are cut as others must be as many: "


def test_what_forward_cannot_divide_is_refused_in_every_process(result: Callable[[str], list[Any]]) -> None:
    """Before the model runs: one that goes on would wait for the others until the timeout."""
    expected = {name: f"{AT}.forward: {text}" for name, text in OF_FORWARD.items()}
    expected |= {
        name: f"NotImplementedError: uwaga.sequence_parallel.forward: {text}" for name, text in DROPPED.items()
    }
    expected |= {"fewer decoder rows": f"{ROWS}1 are not 2", "more decoder rows": f"{ROWS}2 are not 1"}
    for by_rank in result("refused_models:2"):
        assert {name: by_rank[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *[(f"other {name}", "tokens, decoder_ids or only") for name in ("tokens", "offsets", "decoder", "only")],
        ("other seed", "the state of torch's random generator, by which hidden states are dropped"),
    ],
)
def test_processes_with_another_text_or_seed_are_refused(
    name: str, what: str, result: Callable[[str], list[Any]]
) -> None:
    first, second = (of_rank[name] for of_rank in result("refused_models:2"))
    assert re.fullmatch(
        re.escape(f"{AT}: the processes disagree on {what} (checksums): ") + r"rank 0 has \d+, rank 1 has \d+", first
    )
    assert second == first


def test_parts_of_a_batch_follow_one_another() -> None:
    batch = uwaga.Ragged(torch.arange(11), torch.tensor([0, 0, 3, 3, 10, 11, 11]))
    others = uwaga.Ragged(torch.arange(4), torch.tensor([0, 1, 1, 2, 4, 4, 4]))
    for count in (1, 2, 3, 5, 20):
        for rows, like in ((batch, None), (others, batch)):
            parts = [part_of(rows, n, count, like=like) for n in range(count)]
            assert torch.cat([x.rows.values for x in parts]).tolist() == rows.values.tolist()
            assert all(x.rows.values.tolist()[:1] in ([], [x.first_token]) for x in parts)
            assert sum(len(x.rows) - (x.rows.first is not None) for x in parts) == len(rows)
