"""Attention to a database beside a layer's own: its result and its gradients are those of plain attention over the rows."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from tolerance import assert_as_exact
from torch import Tensor

from uwaga import SoftDatabase
from uwaga.nn import MemoryAttention

ROWS, WIDTH = 5000, 8


def rows(heads: int, width: int, seed: int) -> Tensor:
    return torch.randn(ROWS, heads, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=[1, 2], ids=["one head", "two heads"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SoftDatabase]:
    """In two segments, with every seventh row deleted."""
    heads = request.param
    with SoftDatabase.create(tmp_path / "db", key_width=WIDTH, value_width=3, heads=heads) as made:
        key, value = (x if heads > 1 else x[:, 0] for x in (rows(heads, WIDTH, 1), rows(heads, 3, 2)))
        made.append(key[:3000], value[:3000])
        made.append(key[3000:], value[3000:])
        made.delete(range(0, ROWS, 7))
        yield made


def expected(layer: MemoryAttention, query: Tensor, local: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The result and the gradients of its sum of sines, by attention over the live rows in this dtype."""
    heads = len(layer.gate)
    live = torch.arange(ROWS) % 7 > 0
    key, value = (rows(heads, *of)[live].transpose(0, 1).to(dtype) for of in ((WIDTH, 1), (3, 2)))
    inputs = [x.detach().to(dtype).requires_grad_() for x in (query, local, layer.log_scale, layer.gate)]
    query, local, log_scale, gate = inputs
    scores = (query * log_scale.exp()[:, None, None]) @ key.mT
    output = scores.softmax(-1) @ value
    share = gate.sigmoid()[:, None, None]
    result = share * output + (1 - share) * local
    return [result, *torch.autograd.grad(result.sin().sum(), inputs)]


def test_result_and_gradients_are_those_of_attention_over_the_rows(database: SoftDatabase) -> None:
    layer = MemoryAttention(database, gate=0.3)
    heads = len(layer.gate)
    query = (2 * torch.randn(2, heads, 5, WIDTH, generator=torch.Generator().manual_seed(3))).requires_grad_()
    local = torch.randn(2, heads, 5, 3, generator=torch.Generator().manual_seed(4)).requires_grad_()
    result = layer(query, local)
    results = [result, *torch.autograd.grad(result.sin().sum(), [query, local, layer.log_scale, layer.gate])]
    in_float64 = partial(expected, layer, query, local, torch.float64)
    exact, peer = in_float64(), expected(layer, query, local, torch.float32)
    assert [x.shape for x in results] == [x.shape for x in exact]
    assert_as_exact(results[1], peer[1], lambda: in_float64()[1])  # of the query
    for mine, other in zip(results, exact, strict=True):
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=1e-6)


def test_more_queries_than_share_a_pass_have_the_gradients_of_each_alone(tmp_path: Path) -> None:
    with SoftDatabase.create(tmp_path / "db", key_width=WIDTH) as db:
        db.append(rows(1, WIDTH, 1)[:, 0])
        query = torch.randn(300, WIDTH, generator=torch.Generator().manual_seed(5)).requires_grad_()
        (whole,) = torch.autograd.grad(db.attend(query, top=0).value.square().sum(), query)
        (last,) = torch.autograd.grad(db.attend(query[299:], top=0).value.square().sum(), query)
        torch.testing.assert_close(whole[299], last[299], rtol=1e-5, atol=1e-7)
        assert not db.attend(query.detach()).value.requires_grad
        assert db.attend(query, top=2).lse.requires_grad is False
    with SoftDatabase.create(tmp_path / "empty", key_width=WIDTH, value_width=3) as db:
        local = torch.ones(1, 1, 5, 3)
        assert torch.equal(MemoryAttention(db, gate=0.0)(torch.ones(1, 1, 5, WIDTH), local), 0.5 * local)


@pytest.mark.slow
@pytest.mark.gate(only=lambda database: database == 2)
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch.compile's own, where a graph ends
def test_a_layer_and_a_function_that_reads_can_be_compiled(database: SoftDatabase) -> None:
    """After a call that is not; every part of the answer is the same, and so are gradients."""
    layer = MemoryAttention(database)
    heads = len(layer.gate)
    query, local = torch.randn(2, heads, 5, WIDTH).requires_grad_(), torch.randn(2, heads, 5, 3)

    def ask(x: Tensor) -> Tensor:
        x = (2 * x).transpose(1, 2)
        x = x if heads > 1 else x[:, :, 0]
        return database.attend(x, top=3).value.sin().sum() + database.search(x.detach(), 2).scores.sum()

    for function in (lambda x: layer(x, local).sin().sum(), ask):
        plain = function(query)
        compiled = torch.compile(function, backend="eager")
        for _ in range(2):
            result = compiled(query)
            assert torch.equal(result, plain)
            parts = [torch.autograd.grad(output, query, retain_graph=True)[0] for output in (result, plain)]
            assert torch.equal(*parts)
