"""Scores of heads against their definition on the dense matrix, and against heads built to do what is scored."""

import pytest
import torch

import uwaga
from uwaga.inspect.heads.scores import duplicate_token, induction, previous_token
from uwaga.maps.map import AttentionMap

TOKENS = torch.tensor([3, 5, 3, 3, 7, 5, 9, 3])
HIDDEN = torch.ones(8, 8, dtype=torch.bool).tril()
HIDDEN[5] = False  # a query that sees nothing


def random_map(*batch: int, queries: int = 8, mask=HIDDEN) -> AttentionMap:
    query, key = torch.randn(*batch, 2, queries, 4).double(), torch.randn(*batch, 2, 8, 4).double()
    return AttentionMap(query, key, mask=mask)


def patterns(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """What TransformerLens's head detector draws for one sequence: (K, K) bool."""
    equal = tokens[:, None] == tokens
    earlier = equal & torch.ones_like(equal).tril(-1)
    after = torch.zeros_like(equal)
    after[:, 1:] = earlier[:, :-1]
    return {"duplicate": earlier, "induction": after, "previous": torch.ones_like(equal).tril(-1).triu(-1)}


def scores(m: AttentionMap, tokens) -> dict[str, torch.Tensor]:
    return {"duplicate": duplicate_token(m, tokens), "induction": induction(m, tokens), "previous": previous_token(m)}


def expected(name: str, dense: list[torch.Tensor], rows: list[torch.Tensor]) -> torch.Tensor:
    """(H,): the mean over the queries of all sequences that see a key and have one in the pattern."""
    results = []
    for dense_HQK, tokens in zip(dense, rows, strict=True):
        pattern_QK = patterns(tokens)[name][len(tokens) - dense_HQK.shape[1] :]
        counted = pattern_QK.any(-1) & (dense_HQK[0].sum(-1) > 0)
        results.append((dense_HQK * pattern_QK).sum(-1)[:, counted])
    return torch.cat(results, -1).mean(-1)


@pytest.mark.parametrize(
    "m",
    [random_map(mask=None), random_map(mask=uwaga.Causal()), random_map(queries=3, mask=uwaga.Causal()), random_map()],
    ids=["all", "causal", "queries of a cache", "a query that sees nothing"],
)
def test_scores_are_the_mean_weight_on_their_pattern(m: AttentionMap) -> None:
    for name, score in scores(m, TOKENS).items():
        torch.testing.assert_close(score, expected(name, [m.to_dense()], [TOKENS]), msg=name)
        shifted = scores(m, TOKENS + torch.iinfo(torch.int64).min + 5)[name]  # text may hold any integers
        assert torch.equal(shifted, score)


def test_every_query_of_a_batch_counts_once_whatever_its_sequence() -> None:
    tokens = torch.stack((TOKENS, torch.arange(8) // 3))
    m = random_map(2, mask=uwaga.Causal())
    for name, score in scores(m, tokens).items():
        torch.testing.assert_close(score, expected(name, list(m.to_dense()), list(tokens)), msg=name)


def test_ragged_scores_pool_the_queries_of_all_sequences() -> None:
    lengths, tokens = [3, 0, 5], torch.tensor([4, 4, 1, 6, 4, 6, 6, 4])
    query, key = ([torch.randn(n, 2, 4).double() for n in lengths] for _ in range(2))
    m = AttentionMap(uwaga.Ragged.from_list(query), uwaga.Ragged.from_list(key), mask=uwaga.Causal())
    rows = list(tokens.split(lengths))
    for name, score in scores(m, tokens).items():
        torch.testing.assert_close(score, expected(name, [part.to_dense() for part in m], rows), msg=name)
        assert torch.equal(scores(m, uwaga.Ragged.from_list(rows))[name], score)


def test_a_head_that_does_nothing_else_scores_one() -> None:
    """Repeated random tokens, as Olsson et al. use them, and heads made by hand: keys that their queries pick out."""
    tokens = torch.randperm(20).repeat(2)
    place, code = torch.eye(40) * 30, torch.nn.functional.one_hot(tokens).float() * 30
    none = torch.zeros_like(code[:1])
    for score, query, key in (
        (previous_token, place, place.roll(-1, 0)),
        (lambda m: duplicate_token(m, tokens), code, code),
        (lambda m: induction(m, tokens), code, torch.cat((none, code[:-1]))),
    ):
        strictly_past = AttentionMap(query, key, mask=uwaga.Causal(include_self=False))
        torch.testing.assert_close(score(strictly_past), torch.ones(1).double())


def test_no_repetition_gives_nan_and_not_zero() -> None:
    assert induction(random_map(), torch.arange(8)).isnan().all()
