"""What can be seen in one process: what the graph holds, and what is told where nobody answers."""

import pytest
import torch
from torch import Tensor

import uwaga

pytestmark = pytest.mark.usefixtures("process_group")


def test_the_graph_saves_its_tensors_where_hooks_see_them() -> None:
    """So that they can be moved (`torch.autograd.graph.save_on_cpu`), and are freed by the backward pass."""
    options = {"mask": uwaga.Causal()}
    saved: list[Tensor] = []

    def pack(x: Tensor) -> int:
        saved.append(x.clone())
        return len(saved) - 1

    query, key, value = (torch.randn(1, 2, 400, n, requires_grad=True) for n in (8, 8, 12))
    expected = uwaga.attention(query, key, value, **options, impl="cpu")
    with torch.autograd.graph.saved_tensors_hooks(pack, saved.__getitem__):
        output = uwaga.sequence_parallel.attention(query, key, value, **options)
    # Query and key, and the query again piece by piece; value and output.
    for width, count in ((8, 3), (12, 2)):
        assert sum(x.numel() for x in saved if x.shape[-1] == width) == count * 2 * 400 * width
    gradients = torch.autograd.grad(output.sum(), [query, key, value])
    for mine, theirs in zip(gradients, torch.autograd.grad(expected.sum(), [query, key, value]), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(RuntimeError, match="through the graph a second time"):
        output.sum().backward()


def test_results_are_detached() -> None:
    query, key, sinks = (torch.randn(*sizes, requires_grad=True) for sizes in ((1, 2, 9, 4), (1, 2, 9, 4), (2,)))
    m = uwaga.sequence_parallel.attention_map(query, key, sinks=sinks)
    weights = torch.ones(9, requires_grad=True)
    for x in (m.lse, m.entropy(), m.received(weights=weights), m.row(0), m.sink().learned):
        assert not x.requires_grad


def test_a_query_with_distances_and_without_keys() -> None:
    table = torch.randn(16, 2, requires_grad=True)
    query, key = torch.randn(1, 2, 1, 8, requires_grad=True), torch.randn(1, 2, 0, 8, requires_grad=True)
    output = uwaga.sequence_parallel.attention(query, key, key, bias=uwaga.RelativeBias(table))
    gradients = torch.autograd.grad(output.sum(), [query, key, table])
    assert not output.any()
    assert [x.shape for x in gradients] == [query.shape, key.shape, table.shape]
    assert not any(x.any() for x in gradients)


def test_a_call_is_explained_without_the_other_processes() -> None:
    x = torch.randn(1, 2, 6, 4)
    with uwaga.sequence_parallel.sequence_parallel():
        state = torch.get_rng_state()
        choice = uwaga.explain(x, x, x, dropout=0.5)
        assert torch.equal(torch.get_rng_state(), state)
        with pytest.raises(ValueError, match="impl must be None or 'cpu', not 'torch'"):
            uwaga.explain(x, x, x, impl="torch")
    assert choice.reason == "native kernels on the CPU, in each of 1 processes, which exchange keys and values"
    assert "torch" in choice.refused
