"""ZeroCenteredRMSNorm is an RMS norm by 1 + weight, in layers and alone, forward and backward."""

import torch
from torch import nn

from uwaga.nn.plain_modules import ZeroCenteredRMSNorm, residual_norm


def drawn() -> tuple[ZeroCenteredRMSNorm, nn.RMSNorm]:
    torch.manual_seed(0)
    norm, plain = ZeroCenteredRMSNorm(12, eps=1e-6), nn.RMSNorm(12, eps=1e-6)
    assert not norm.weight.any()
    with torch.no_grad():
        norm.weight.normal_()
        plain.weight.copy_(1 + norm.weight)
    return norm, plain


def test_it_is_the_norm_by_one_more_than_its_weight() -> None:
    norm, plain = drawn()
    x, added = torch.randn(5, 12), torch.randn(5, 12)
    assert torch.equal(norm(x), plain(x))
    drop = nn.Dropout(0.0)
    ours, theirs = (residual_norm(module, drop, x, added, wants_sum=True) for module in (norm, plain))
    assert torch.equal(ours.output, theirs.output)
    for result in (ours, theirs):
        result.output.square().sum().backward()
    assert torch.equal(norm.weight.grad, plain.weight.grad)


def test_in_half_precision_the_factor_is_not_rounded() -> None:
    norm, _ = drawn()
    half, x = norm.bfloat16(), torch.randn(5, 12).bfloat16()
    exact = nn.functional.rms_norm(x.float(), (12,), 1 + half.weight.float(), 1e-6)
    assert torch.equal(half(x), exact.bfloat16())
    both = residual_norm(half, nn.Dropout(0.0), x, x, wants_sum=False).output
    assert torch.equal(both, half(x + x))
