"""MaxSim over ragged tokens: the equation, the same bits alone, and gradients."""

import torch
from drawn import draw_rows
from torch import Tensor

from uwaga import Ragged, maxsim


def by_equation(queries: Ragged, documents: Ragged) -> Tensor:
    rows = [[(q @ d.T).amax(1).sum() for d in documents.to_list()] for q in queries.to_list()]
    return torch.stack([torch.stack(row) for row in rows])


QUERIES, DOCUMENTS = draw_rows([3, 1, 32, 7], 24), draw_rows([5, 1, 90, 17, 2], 24, seed=1)


def test_scores_and_gradients_are_those_of_the_equation() -> None:
    queries, documents = (rows.with_values(rows.values.double().requires_grad_()) for rows in (QUERIES, DOCUMENTS))
    expected, result = by_equation(queries, documents), maxsim(queries, documents)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    weights = torch.arange(20.0, dtype=torch.float64).reshape(4, 5)
    grads = [torch.autograd.grad((x * weights).sum(), (queries.values, documents.values)) for x in (result, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_score_has_the_same_bits_alone_and_among_more_than_are_in_memory_at_a_time() -> None:
    together = maxsim(QUERIES, DOCUMENTS)
    for row, query in enumerate(QUERIES.to_list()):
        for column, document in enumerate(DOCUMENTS.to_list()):
            alone = maxsim(Ragged.from_list([query]), Ragged.from_list([document]))
            assert torch.equal(alone[0, 0], together[row, column])
    many = maxsim(
        QUERIES, Ragged.from_list(DOCUMENTS.to_list() * 1200)
    )  # of 138,000 tokens; 131,072 are compared at a time
    assert torch.equal(many, together.repeat(1, 1200))
