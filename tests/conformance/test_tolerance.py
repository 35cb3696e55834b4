"""The bound itself: the derived error carries it where the plain computation is as good as can be, and what is wrong exceeds it."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import oracle
import pytest
import test_exactness as exactness
import torch
from torch import Tensor

CASES = [
    ("plain", "random", "float32"),
    ("one query", "adversarial", "float32"),  # failed by the error of plain PyTorch on an Intel processor with AMX
    ("width 128", "outliers", "float32"),
    ("everything", "random", "bfloat16"),
    ("sinks, some rows empty", "adversarial", "float16"),
    ("grouped", "random", "float16"),
]


def _rounded_once(exact: list[oracle.Result], operands: dict[str, Tensor]) -> list[list[oracle.Result]]:
    """A plain computation whose only rounding is that of its results: no processor has a better one."""
    dtype = operands["query"].dtype

    def rounded(x: oracle.Result) -> oracle.Result:
        gradients = {name: y.to(operands[name].dtype) for name, y in x.gradients.items()}
        lse = None if x.lse is None else x.lse.float()
        return oracle.Result(output=x.output.to(dtype), lse=lse, gradients=gradients)

    return [[rounded(x)] for x in exact]


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_an_engine_is_as_exact_with_a_perfect_peer(cpu: str, case: tuple[str, str, str]) -> None:
    draws, build = exactness.draws_of(*case), exactness.build_of(case[0])
    exact, _ = exactness.exact_and_plain(*case, True)
    results = [oracle.measure(oracle.run_engine(cpu), x, build) for x in draws]
    derive = partial(exactness.derived_of, *case, True)
    oracle.assert_as_exact(results, exact, _rounded_once(exact, draws[0]), derive)


# Small mistakes: each changes the exact computation, in float64, in one thing alone.

Weights = Callable[[Tensor], Tensor]


def _computed(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float = 1.0, weights: Weights = lambda s: s.softmax(-1)
) -> tuple[Tensor, Tensor]:
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    scores = query @ key.mT * (scale * query.shape[-1] ** -0.5)
    return weights(scores) @ value, scores.logsumexp(-1)


def _coarse_exp(scores: Tensor) -> Tensor:
    """With a relative error of at most 1e-5, as a polynomial of too few terms has."""
    e = (scores - scores.amax(-1, keepdim=True)).exp() * (1 + 1e-5 * (97 * scores).sin())
    return e / e.sum(-1, keepdim=True)


def _one_key_less(scores: Tensor) -> Tensor:
    hidden = torch.arange(scores.shape[-1]) == scores.shape[-1] - 1
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


MISTAKES = {
    "weights in float16": partial(_computed, weights=lambda s: s.softmax(-1).half().to(s.dtype)),
    "scores in float16": partial(_computed, weights=lambda s: s.half().to(s.dtype).softmax(-1)),
    "exp of 1e-5": partial(_computed, weights=_coarse_exp),
    "a key less": partial(_computed, weights=_one_key_less),
    "scale of 1e-4 more": partial(_computed, scale=1 + 1e-4),
    "scale of 1e-5 more": partial(_computed, scale=1 + 1e-5),
}


@pytest.mark.parametrize("name", ["plain", "width 128", "one query"])
@pytest.mark.parametrize("mistake", [None, *MISTAKES])
def test_a_small_mistake_is_found_and_no_mistake_is_not(mistake: str | None, name: str) -> None:
    case = (name, "random", "float32", True)
    (operands,), build = exactness.draws_of(*case[:3]), exactness.build_of(name)
    exact, plains = exactness.exact_and_plain(*case)
    result = oracle.measure(MISTAKES.get(mistake, _computed), oracle.to_float64(operands), build)
    with pytest.raises(AssertionError, match=r"^output: error .*, allowed") if mistake else nullcontext():
        oracle.assert_as_exact([result], exact, plains, partial(exactness.derived_of, *case))
