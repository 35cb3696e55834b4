"""Scores of heads against their definition on the dense matrix, and against heads built to do what is scored."""

import pytest
import torch

import uwaga
from uwaga.inspect.heads.scores import duplicate_token, induction, previous_token
from uwaga.maps.map import AttentionMap

TOKENS = torch.tensor([3, 5, 3, 3, 7, 5, 9, 3])


def random_map(*batch: int, queries: int = 8, **options) -> AttentionMap:
    query, key = torch.randn(*batch, 2, queries, 4).double(), torch.randn(*batch, 2, 8, 4).double()
    return AttentionMap(query, key, **{"mask": uwaga.Causal()} | options)


def patterns(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """What TransformerLens's head detector draws for one sequence: (K, K) bool."""
    equal = tokens[:, None] == tokens
    earlier = equal & torch.ones_like(equal).tril(-1)
    after = torch.zeros_like(equal)
    after[:, 1:] = earlier[:, :-1]
    return {"duplicate": earlier, "induction": after, "previous": torch.ones_like(equal).tril(-1).triu(-1)}


def expected(dense_HQK: torch.Tensor, pattern_QK: torch.Tensor) -> torch.Tensor:
    has_key = pattern_QK.any(-1)
    return (dense_HQK * pattern_QK).sum(-1)[..., has_key].mean(-1)


def scores(m: AttentionMap, tokens) -> dict[str, torch.Tensor]:
    return {"duplicate": duplicate_token(m, tokens), "induction": induction(m, tokens), "previous": previous_token(m)}


@pytest.mark.parametrize("mask", [None, uwaga.Causal()], ids=["all", "causal"])
def test_scores_are_the_mean_weight_on_their_pattern(mask) -> None:
    m = random_map(mask=mask)
    for name, score in scores(m, TOKENS).items():
        torch.testing.assert_close(score, expected(m.to_dense(), patterns(TOKENS)[name]), msg=name)


def test_every_query_of_a_batch_counts_once_whatever_its_sequence() -> None:
    tokens = torch.stack((TOKENS, torch.arange(8) // 3))
    m = random_map(2)
    for name, score in scores(m, tokens).items():
        pattern = torch.stack([patterns(row)[name] for row in tokens])
        mass = (m.to_dense() * pattern[:, None]).sum(-1)
        counted = pattern.any(-1)
        torch.testing.assert_close(score, mass.transpose(0, 1)[:, counted].mean(-1), msg=name)


def test_ragged_scores_pool_the_queries_of_all_sequences() -> None:
    lengths, tokens = [3, 0, 5], torch.tensor([4, 4, 1, 6, 4, 6, 6, 4])
    query, key = ([torch.randn(n, 2, 4).double() for n in lengths] for _ in range(2))
    m = AttentionMap(uwaga.Ragged.from_list(query), uwaga.Ragged.from_list(key), mask=uwaga.Causal())
    rows = tokens.split(lengths)
    for name, score in scores(m, tokens).items():
        results = [
            (part.to_dense() * patterns(row)[name]).sum(-1)[:, patterns(row)[name].any(-1)]
            for part, row in zip(m, rows, strict=True)
        ]
        torch.testing.assert_close(score, torch.cat(results, dim=-1).mean(-1), msg=name)
        packed = uwaga.Ragged.from_list(list(rows))
        torch.testing.assert_close(scores(m, packed)[name], score, rtol=0, atol=0)


def test_queries_of_a_cache_are_the_last_positions() -> None:
    m = random_map(queries=3)
    for name, score in scores(m, TOKENS).items():
        torch.testing.assert_close(score, expected(m.to_dense(), patterns(TOKENS)[name][-3:]), msg=name)


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


def test_queries_that_see_nothing_do_not_count() -> None:
    visible = torch.ones(8, 8, dtype=torch.bool).tril()
    visible[5] = False
    m = random_map(mask=visible)
    pattern = patterns(TOKENS)["duplicate"].clone()
    pattern[5] = False
    torch.testing.assert_close(duplicate_token(m, TOKENS), expected(m.to_dense(), pattern))


def test_no_repetition_gives_nan_and_not_zero() -> None:
    assert induction(random_map(), torch.arange(8)).isnan().all()


def test_text_may_hold_any_integers() -> None:
    m = random_map()
    shifted = TOKENS + torch.iinfo(torch.int64).min + 5
    assert torch.equal(induction(m, shifted), induction(m, TOKENS))
