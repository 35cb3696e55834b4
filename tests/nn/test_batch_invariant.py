"""Linear maps whose rows keep their bits among any others."""

from collections.abc import Callable

import pytest
import torch
from processors import GENOA, M2, SAPPHIRE_RAPIDS
from torch import nn

from uwaga._base.processor import Processor
from uwaga.nn.plain_modules import apply_linear


def test_rows_of_a_replaced_module_are_padded_where_that_suffices(on: Callable[[Processor], None]) -> None:
    seen = []
    for here in (GENOA, SAPPHIRE_RAPIDS, M2):
        on(here)
        apply_linear(lambda x: seen.append(len(x)) or x, torch.ones(3, 6))
    assert seen == [4, 3, 3]


def test_an_observed_map_has_the_bits_of_a_plain_one_and_hooks_see_its_rows_alone() -> None:
    torch.manual_seed(0)
    linear, x, seen = nn.Linear(1536, 384), torch.randn(7, 1536), []
    plain = {rows: apply_linear(linear, x[:rows]) for rows in (1, 2, 3, 5, 7)}

    def hook(_: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        seen.append((len(inputs[0]), nn.functional.linear(inputs[0], torch.ones_like(linear.weight)).shape))

    linear.register_forward_hook(hook)
    for rows, expected in plain.items():
        assert torch.equal(apply_linear(linear, x[:rows]), expected)
    assert seen == [(rows, (rows, 384)) for rows in plain]


def _hook(linear: nn.Linear) -> nn.Module:
    linear.register_forward_hook(lambda _, __, output: output + 1)
    return linear


def _wrapped(linear: nn.Linear) -> nn.Module:
    """As LoRA and quantized layers: another class with the same parameters."""

    class Added(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + 1

    linear.__class__ = Added
    return linear


def _own_forward(linear: nn.Linear) -> nn.Module:
    forward = linear.forward
    linear.forward = lambda x: forward(x) + 1  # type: ignore[method-assign]
    return linear


def _weight_norm(linear: nn.Linear) -> nn.Module:
    with torch.no_grad():
        linear.bias.add_(1)
    return nn.utils.parametrizations.weight_norm(linear)


@pytest.mark.parametrize("change", [_hook, _wrapped, _own_forward, _weight_norm])
def test_a_module_that_is_more_than_its_weights_is_called(change: Callable[[nn.Linear], nn.Module]) -> None:
    linear, x = nn.Linear(6, 5), torch.randn(3, 6)
    expected = linear(x) + 1
    changed = change(linear)
    torch.testing.assert_close(apply_linear(changed, x), expected)
    torch.testing.assert_close(apply_linear(changed, x, activation="relu"), expected.relu())


def test_a_hook_of_all_modules_is_called() -> None:
    seen, linear = [], nn.Linear(6, 5)
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        apply_linear(linear, torch.ones(3, 6))
    finally:
        handle.remove()
    assert seen == [linear]
