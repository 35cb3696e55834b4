"""patch_torch: PyTorch's own doors give what they gave, run through this engine, and come back.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel, varlen

import uwaga
from uwaga import Causal, KeyLengths, Ragged, Window, attention
from uwaga._base import native
from uwaga.integrations import patch_torch, sdpa
from uwaga.integrations import varlen as uwaga_varlen

pytestmark = pytest.mark.skipif(native.reason_unavailable() is not None, reason=str(native.reason_unavailable()))
SDPA, VARLEN = F.scaled_dot_product_attention, varlen.varlen_attn


def _x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The engines that the patched doors asked for."""
    calls = []
    for module, name in ((sdpa, "attention"), (uwaga_varlen, "attention_and_lse")):
        original = getattr(module, name)

        def record(*args, original=original, **options):
            calls.append(options.get("impl"))
            return original(*args, **options)

        monkeypatch.setattr(module, name, record)
    return calls


Q, K, V = _x(2, 4, 5, 8), _x(2, 4, 7, 8, seed=1), _x(2, 4, 7, 6, seed=2)
CALLS = {
    "plain": lambda f: f(Q, K, V),
    "causal, upper left": lambda f: f(Q, K, V, is_causal=True),
    "bool mask": lambda f: f(Q, K, V, attn_mask=_x(5, 7).tril().bool()),
    "float mask": lambda f: f(Q, K, V, _x(2, 1, 5, 7)),
    "scale": lambda f: f(Q, K, V, scale=0.3),
    "grouped": lambda f: f(Q, K[:, :2], V[:, :2], enable_gqa=True),
    "one key head, by broadcasting": lambda f: f(Q, K[:, :1], V[:, :1]),
    "one batch, by broadcasting": lambda f: f(Q, K[:1], V[:1]),
    "three dimensions": lambda f: f(Q[0], K[0], V[0]),
    "five dimensions": lambda f: f(Q[None], K[None], V[None]),
    "strided": lambda f: f(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (Q, K, V))),
    "bfloat16": lambda f: f(Q.bfloat16(), K.bfloat16(), V.bfloat16()),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_served_gives_what_pytorch_gives(served: list, name: str) -> None:
    expected = CALLS[name](SDPA)
    with patch_torch():
        found = CALLS[name](F.scaled_dot_product_attention)
    assert served == ["cpu"]
    torch.testing.assert_close(found, expected)


ELSEWHERE = {
    "float64": lambda f: f(Q.double(), K.double(), V.double()),
    "meta": lambda f: f(Q.to("meta"), K.to("meta"), V.to("meta")),
    "all dropped": lambda f: f(Q, K, V, dropout_p=1.0),
    "a scale that is a tensor": lambda f: f(Q, K, V, scale=torch.tensor(0.5)),
    "an infinite scale": lambda f: f(Q, K, V, scale=float("inf")),
    "values of no width": lambda f: f(Q, K, V[..., :0]),
    "less than no dropout": lambda f: f(Q, K, V, dropout_p=-0.1),
    "no heads": lambda f: f(Q[:, :0], K[:, :0], V[:, :0]),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_not_served_goes_to_pytorch(served: list, name: str) -> None:
    with patch_torch():
        found = ELSEWHERE[name](F.scaled_dot_product_attention)
    expected = ELSEWHERE[name](SDPA)
    assert served == []
    assert found.shape == expected.shape
    assert found.device == expected.device
    if found.device.type == "cpu":
        torch.testing.assert_close(found, expected, equal_nan=True)


def test_a_kernel_that_was_asked_for_is_left_to_pytorch(served: list) -> None:
    with patch_torch(), sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(Q, K, V)
    assert served == []


ERRORS = {
    "widths": lambda f: f(Q, K[..., :3], V),
    "lengths": lambda f: f(Q, K, V[:, :, :3]),
    "two masks": lambda f: f(Q, K, V, attn_mask=torch.ones(5, 7, dtype=torch.bool), is_causal=True),
    "a mask that does not fit": lambda f: f(Q, K, V, attn_mask=torch.ones(3, 7, dtype=torch.bool)),
    "heads": lambda f: f(Q, K[:, :3], V[:, :3], enable_gqa=True),
    "a mask that is a number": lambda f: f(Q, K, V, attn_mask=torch.tensor(0.5)),
    "a mask of keys alone": lambda f: f(Q, K, V, attn_mask=torch.ones(7, dtype=torch.bool)),
    "causal by a number": lambda f: f(Q, K, V, is_causal=1),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_pytorch_refuses_is_refused_in_its_words(name: str) -> None:
    with pytest.raises((RuntimeError, IndexError, TypeError)) as expected:
        ERRORS[name](SDPA)
    with patch_torch(), pytest.raises((RuntimeError, IndexError, TypeError)) as found:
        ERRORS[name](F.scaled_dot_product_attention)
    assert found.type is expected.type
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_gradients_and_dropout_go_through(served: list) -> None:
    query = Q.clone().requires_grad_()
    with patch_torch():
        torch.manual_seed(0)
        out = F.scaled_dot_product_attention(query, K, V, dropout_p=0.5)
        out.sum().backward()
    torch.manual_seed(0)
    torch.testing.assert_close(out, attention(Q, K, V, dropout=0.5, impl="cpu"))
    assert query.grad.isfinite().all()


def test_autocast_casts_as_pytorch_does(served: list) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        expected = SDPA(Q, K, V, _x(5, 7))
        with patch_torch():
            found = F.scaled_dot_product_attention(Q, K, V, _x(5, 7))
    assert served == ["cpu"]
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


def test_modules_gain_without_change(served: list) -> None:
    layer = torch.nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x, memory = _x(2, 5, 16), _x(2, 7, 16, seed=1)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    expected = layer(x, memory, tgt_mask=mask)
    with patch_torch():
        found = layer(x, memory, tgt_mask=mask)
    assert served == ["cpu", "cpu"]
    torch.testing.assert_close(found, expected)


def test_a_compiled_program_gains_too() -> None:
    torch.compiler.reset()
    with patch_torch():
        compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, K, V), fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(Q), SDPA(Q, K, V))


OFFSETS, KEY_OFFSETS = torch.tensor([0, 3, 3, 9], dtype=torch.int32), torch.tensor([0, 4, 6, 8], dtype=torch.int32)
PACKED, KEYS = _x(9, 4, 8), _x(8, 2, 8, seed=1)


def _ragged(mask) -> torch.Tensor:
    query, key = Ragged(PACKED, OFFSETS.long()), Ragged(KEYS, KEY_OFFSETS.long())
    return attention(query, key, key, mask=mask, impl="reference").values


@pytest.mark.parametrize(
    ("options", "mask"),
    [
        ({}, None),
        ({"window_size": (-1, 0)}, Causal()),
        ({"window_size": (1, 2), "num_splits": 1}, Window(1, 2)),
        ({"seqused_k": torch.tensor([2, 2, 1], dtype=torch.int32)}, KeyLengths(torch.tensor([2, 2, 1]))),
    ],
)
def test_varlen_works_on_the_cpu(served: list, options: dict, mask) -> None:
    with patch_torch():
        out, lse = varlen.varlen_attn(
            PACKED,
            KEYS,
            KEYS,
            OFFSETS,
            KEY_OFFSETS,
            6,
            4,
            enable_gqa=True,
            return_aux=varlen.AuxRequest(True),
            **options,
        )
    assert served == ["cpu"]
    assert lse.shape == (4, 9)
    torch.testing.assert_close(out, _ragged(mask))


def test_varlen_refuses_as_before() -> None:
    with patch_torch(), pytest.raises(ValueError, match="Try setting enable_gqa=True"):
        varlen.varlen_attn(PACKED, KEYS, KEYS, OFFSETS, KEY_OFFSETS, 6, 4)


def test_offsets_that_lie_are_an_error() -> None:
    with patch_torch(), pytest.raises(uwaga.ShapeError, match="offsets must end at the number of packed tokens N"):
        varlen.varlen_attn(PACKED, PACKED, PACKED, OFFSETS * 2, OFFSETS * 2, 12, 12)


def test_a_plain_call_lasts_until_its_undo() -> None:
    patch = patch_torch()
    assert F.scaled_dot_product_attention is not SDPA
    patch.undo()
    patch.undo()
    assert F.scaled_dot_product_attention is SDPA
    assert varlen.varlen_attn is VARLEN


def test_patches_nest_in_any_order() -> None:
    first, second = patch_torch(), patch_torch()
    first.undo()
    assert F.scaled_dot_product_attention is not SDPA
    with patch_torch():
        second.undo()
        assert F.scaled_dot_product_attention is not SDPA
    assert F.scaled_dot_product_attention is SDPA


def test_patches_of_many_threads() -> None:
    def work() -> None:
        for _ in range(100):
            with patch_torch():
                assert F.scaled_dot_product_attention is not SDPA

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert F.scaled_dot_product_attention is SDPA


def test_a_later_patch_of_someone_else_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    patch = patch_torch()
    with monkeypatch.context() as other:
        other.setattr(F, "scaled_dot_product_attention", lambda *_: None)
        with pytest.raises(RuntimeError) as error:
            patch.undo()
    assert str(error.value) == (
        "patch_torch: torch.nn.functional.scaled_dot_product_attention was replaced by someone else since; undo that first"
    )
    patch.undo()
    assert F.scaled_dot_product_attention is SDPA


def test_the_torch_engine_stays_pytorchs_own(served: list) -> None:
    with patch_torch():
        attention(Q, K, V, impl="torch")
    assert served == []
