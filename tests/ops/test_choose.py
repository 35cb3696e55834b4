"""The choice of an engine; explain says what attention would do."""

import pytest
import torch

from uwaga import AlibiBias, Causal, KeyLengths, Ragged, Window, attention, explain
from uwaga._base import native
from uwaga.ops.attention.engines import torch_fused
from uwaga.ops.engine_choice import Choice, named, refusals

needs_native = pytest.mark.skipif(native.reason_unavailable() is not None, reason=str(native.reason_unavailable()))


def test_refusals_are_those_of_the_engines_that_cannot_serve() -> None:
    why = {"cpu": "no library", "torch": "no softcap"}
    assert refusals(("cpu", "torch", "reference"), why.get) == why


def test_a_named_engine_runs_or_raises() -> None:
    names = ("cpu", "linear")
    assert named("cpu", names, {}.get, function="attention") == "cpu"
    for name in ("linear", "gpu"):
        with pytest.raises(ValueError, match=name):
            named(name, names, {"linear": "softmax"}.get, function="attention")


@needs_native
def test_the_order_of_the_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 4, 8)
    refused = {"linear": "softmax cannot be reassociated"}
    assert explain(x, x, x, mask=Causal()) == Choice("cpu", "native kernels on the CPU", refused)
    assert explain(x, x, x, normalize=None).engine == "linear"
    assert explain(x, x, x, normalize=None, softcap=1.0).engine == "cpu"
    double = x.double()
    assert explain(double, double, double).reason.startswith("float64 is computed by the reference")
    monkeypatch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    assert explain(x, x, x, mask=Causal()).engine == "torch"
    assert explain(x, x, x, softcap=1.0).engine == "reference"


def test_explain_names_what_each_option_rules_out() -> None:
    x = torch.zeros(2, 4, 8)
    refused = explain(x, x, x, softcap=2.0, dropout=0.1).refused
    assert refused["torch"] == "PyTorch's kernels have no softcap"
    assert refused["linear"] == "softmax cannot be reassociated"
    assert explain(x, x, x, sinks=torch.zeros(2)).refused["torch"] == "PyTorch's kernels have no sinks"
    assert explain(x, x, x, normalize=None, mask=Causal()).engine == "linear"
    assert explain(x, x, x, normalize=None, softcap=1.0).refused["linear"] == (
        "softcap, dropout and biases act on each score"
    )
    assert explain(x.double(), x.double(), x.double()).engine == "reference"


def test_explain_draws_no_random_number() -> None:
    x, before = torch.zeros(2, 4, 8), torch.get_rng_state()
    explain(x, x, x, dropout=0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_on_another_device_goes_to_pytorch() -> None:
    x = torch.zeros(2, 4, 8, device="meta")
    choice = explain(x, x, x)
    assert choice.engine == "torch"
    assert "meta" in choice.refused["cpu"]


@pytest.mark.parametrize(
    ("sizes", "options", "reason"),
    [
        ((2, 4, 8), {}, "PyTorch's own fused kernels"),
        ((2, 4, 8), {"mask": Causal()}, "PyTorch's own fused kernels"),
        (
            (3, 2, 100, 8),
            {"mask": Window(5, 0)},
            "PyTorch's own fused kernels; this mask or bias becomes a matrix (Q, K) of 10000 bytes, one for each sequence and "
            "head that has its own",
        ),
        (
            (3, 2, 100, 8),
            {"mask": Causal(), "bias": AlibiBias(torch.ones(2, device="meta"))},
            "PyTorch's own fused kernels; this mask or bias becomes a matrix (Q, K) of 40000 bytes, one for each sequence and "
            "head that has its own",
        ),
        (
            (3, 2, 100, 8),
            {"softcap": 5.0},
            "no faster engine serves this call; it stores all scores, (3, 2, 100, 100) in float32: 240000 bytes and more",
        ),
        (
            (3, 2, 100, 8),
            {"sinks": torch.zeros(2, device="meta")},
            "no faster engine serves this call; it stores all scores, (3, 2, 100, 100) in float32: 240000 bytes and more",
        ),
    ],
    ids=["plain", "causal", "window", "alibi", "softcap", "sinks"],
)
def test_explain_says_what_a_call_costs_for_which_another_device_has_no_kernel(
    sizes: tuple[int, ...], options: dict, reason: str
) -> None:
    x = torch.zeros(sizes, device="meta")
    assert explain(x, x, x, **options).reason == reason


@needs_native
def test_explain_says_where_a_row_may_have_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2, 4, 8)
    note = "; a row may have other bits in another batch"
    assert explain(x, x, x, impl="torch").reason == f'named by the caller{note}: impl="cpu" keeps them'
    product = "without softmax, Q (K^T V) costs O(N D E)"
    assert explain(x, x, x, normalize=None).reason == f'{product}{note}: impl="cpu" keeps them'
    half = x.bfloat16()
    packed = Ragged(torch.zeros(4, 2, 8), torch.tensor([0, 1, 4]))
    assert explain(x, x, x, normalize=None, mask=Causal()).reason == product
    assert explain(half, half, half, normalize=None).reason == product
    assert explain(packed, packed, packed, normalize=None).reason == product
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert note not in explain(*[x.to(dtype)] * 3, mask=Causal()).reason
    monkeypatch.setattr(native, "reason_unavailable", lambda: "it was left at home")
    cannot = ", and the native kernels, which keep them, cannot serve this call"
    assert explain(x, x, x).reason == f"PyTorch's own fused kernels{note}{cannot}"
    assert explain(x, x, x, normalize=None).reason == f"{product}{note}{cannot}"
    assert note not in explain(*[x.double()] * 3).reason


def test_explain_says_what_ragged_calls_cost_without_a_kernel() -> None:
    batch = Ragged.from_list([torch.zeros(n, 2, 8) for n in (30, 100)])
    other_bits = 'a row may have other bits in another batch: impl="cpu" keeps them'
    assert explain(batch, batch, batch, impl="torch").reason == (
        f"named by the caller; one sequence after another; {other_bits}"
    )
    assert explain(batch, batch, batch, impl="reference").reason == (
        "named by the caller; it stores all scores, one sequence after another, (1, 2, 100, 100) in float32: 80000 bytes and more; "
        f"{other_bits}"
    )
    double = batch.with_values(batch.values.double())
    assert explain(double, double, double).reason == (
        "float64 is computed by the reference; it stores all scores, one sequence after another, (1, 2, 100, 100) in float64: "
        "160000 bytes and more"
    )


@pytest.mark.parametrize("name", ["plain", "causal", "window", "lengths", "bias"])
def test_a_matrix_is_made_for_sdpa_where_explain_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "plain": {},
        "causal": {"mask": Causal()},
        "window": {"mask": Window(5, 0)},
        "lengths": {"mask": KeyLengths(torch.tensor([3]))},
        "bias": {"bias": torch.zeros(9, 9)},
    }[name]
    x, given = torch.randn(1, 2, 9, 8), []
    sdpa = torch_fused.scaled_dot_product_attention
    monkeypatch.setattr(
        torch_fused, "scaled_dot_product_attention", lambda *x, **how: given.append(len(x) > 3) or sdpa(*x, **how)
    )
    attention(x, x, x, impl="torch", **options)
    assert given == ["matrix" in explain(x, x, x, impl="torch", **options).reason]
