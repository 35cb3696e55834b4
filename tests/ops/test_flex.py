"""FlexAttention over several blocks, and its place among the engines. Short calls are in the conformance suite.

On the CPU PyTorch compiles no FlexAttention that gives the lse or a gradient: kernels are run by PyTorch's own form of the operator.
"""

import pytest
import torch
from torch import Tensor

from uwaga import Causal, Documents, KeyLengths, Ragged, Window, attention

N = 300
_BITS = torch.zeros(2, 1, N, N, dtype=torch.bool)
_BITS[:, :, :128, :128] = True
_BITS[0, 0, 200, 290] = True
MASKS = {
    "causal": Causal(),
    "strictly past": Causal(include_self=False),
    "window": Window(100, 20),
    "one start per row": Causal(start=torch.tensor([-40, 500])),
    "start beyond int32": Window(3, None, start=2**40),
    "lengths": KeyLengths(torch.tensor([0, 130])),
    "documents": Documents(torch.arange(N) // 128),
    "dense": _BITS,
    "and": Causal() & KeyLengths(torch.tensor([40, 200])) & Documents(torch.arange(N) // 50),
    "or": Window(5, 5) | KeyLengths(torch.tensor([9, 0])) | _BITS,
}


@pytest.mark.gate(only=lambda name: name in ("causal", "and", "ragged"))
@pytest.mark.parametrize("name", [*MASKS, "ragged"])
@torch.no_grad()
def test_blocks_that_a_mask_hides_or_shows_as_a_whole_change_nothing(name: str) -> None:
    query, key, value = torch.randn(3, 2, 2, N, 16, generator=torch.Generator().manual_seed(0))
    operands: tuple[Tensor | Ragged, ...] = query, key, value
    if name == "ragged":
        lengths = torch.tensor([0, 256, 256, 384, 2 * N])
        operands = tuple(Ragged(x.transpose(1, 2).flatten(0, 1), lengths) for x in operands)
    output, expected = (
        attention(*operands, mask=MASKS.get(name, Causal()), impl=impl) for impl in ("flex", "reference")
    )
    values = [x.values if isinstance(x, Ragged) else x for x in (output, expected)]
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_mask_that_was_written_to_is_read_again() -> None:
    x, lengths = torch.randn(2, 2, N, 16), torch.tensor([40, 200])
    mask = KeyLengths(lengths)
    for length in (40, 290):
        lengths[0] = length
        results = [attention(x, x, x, mask=mask, impl=impl) for impl in ("flex", "reference")]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.stress
def test_the_choice_on_another_device_is_traced_for_any_length() -> None:
    @torch.compile(fullgraph=True, backend="eager", dynamic=True)
    def run(x: Tensor) -> Tensor:
        return attention(x, x, x, mask=Window(5, 0)) + attention(x, x, x, mask=Causal())

    for n in (20, 30):
        assert run(torch.zeros(2, 2, n, 16, device="meta")).shape == (2, 2, n, 16)
