"""patch_torch: PyTorch's own doors give what they gave, run through this engine, and come back.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens.
"""

import contextlib
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch._C import DisableTorchFunctionSubclass
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, bias, sdpa_kernel, varlen
from torch.overrides import TorchFunctionMode, get_testing_overrides
from torch.testing._internal.two_tensor import TwoTensor

import uwaga
from uwaga import Causal, KeyLengths, Ragged, Window, attention
from uwaga._base import native
from uwaga.integrations import patch_torch, torch_patch

pytestmark = pytest.mark.skipif(native.reason_unavailable() is not None, reason=str(native.reason_unavailable()))
SDPA, VARLEN = F.scaled_dot_product_attention, varlen.varlen_attn


def _x(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The engines that the patched doors asked for."""
    calls = []
    for module, name in ((torch_patch, "attention"), (torch_patch, "attention_and_lse")):
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
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_served_gives_what_pytorch_gives(served: list, name: str) -> None:
    expected = CALLS[name](SDPA)
    with patch_torch():
        result = CALLS[name](F.scaled_dot_product_attention)
    assert served == ["cpu"]
    torch.testing.assert_close(result, expected)


HALF = [x.bfloat16() for x in (Q, K, V)]


ELSEWHERE = {
    "float64": lambda f: f(Q.double(), K.double(), V.double()),
    "meta": lambda f: f(Q.to("meta"), K.to("meta"), V.to("meta")),
    "all dropped": lambda f: f(Q, K, V, dropout_p=1.0),
    "an infinite scale": lambda f: f(Q, K, V, scale=float("inf")),
    "values of no width": lambda f: f(Q, K, V[..., :0]),
    "strided nested tensors": lambda f: f(*(torch.nested.nested_tensor([x[0], x[1]]) for x in (Q, K, K))).values(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_is_not_served_goes_to_pytorch(served: list, name: str) -> None:
    with patch_torch():
        result = ELSEWHERE[name](F.scaled_dot_product_attention)
    expected = ELSEWHERE[name](SDPA)
    assert served == []
    assert result.shape == expected.shape
    assert result.device == expected.device
    if result.device.type == "cpu":
        torch.testing.assert_close(result, expected, equal_nan=True)


def test_a_kernel_that_was_asked_for_is_left_to_pytorch(served: list) -> None:
    with patch_torch(), sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(Q, K, V)
    assert served == []


ERRORS = {
    "widths": lambda f: f(Q, K[..., :3], V),
    "two masks": lambda f: f(Q, K, V, attn_mask=torch.ones(5, 7, dtype=torch.bool), is_causal=True),
    "heads": lambda f: f(Q, K[:, :3], V[:, :3], enable_gqa=True),
    "a query that is a list": lambda f: f([1.0], K, V),
    "a sparse query": lambda f: f(Q.to_sparse(), K, V),
    "a scale by its position": lambda f: f(Q, K, V, None, 0.0, False, 0.5),
    "an unknown option": lambda f: f(Q, K, V, causal=True),
    # PyTorch's fused kernel has no such derivatives either.
    "forward mode": lambda f: torch.func.jvp(lambda q: f(q, K, K), (Q,), (Q,)),
    "a Hessian": lambda f: torch.func.hessian(lambda q: f(q, K, K).sum())(Q),
    "dropout in vmap": lambda f: torch.func.vmap(lambda q: f(q, K, K, dropout_p=0.5))(Q[None]),
}


def _loss(query: torch.Tensor, **options) -> torch.Tensor:
    key, value = K.to(query.dtype), V.to(query.dtype)
    return F.scaled_dot_product_attention(query, key, value, **options).square().sum()


MASK = _x(5, 7, seed=3)
ROWS = torch.stack((Q, -Q))  # for vmap
TRANSFORMED = {
    "gradients": lambda: torch.func.grad(_loss)(Q),
    "gradients, causal": lambda: torch.func.grad(lambda q: _loss(q, is_causal=True))(Q),
    "a Jacobian": lambda: torch.func.jacrev(lambda q: F.scaled_dot_product_attention(q, K, V).sum((0, 1)))(Q),
    "vmap": lambda: torch.func.vmap(F.scaled_dot_product_attention)(Q, K, V),
    "vmap over masks": lambda: torch.func.vmap(lambda m: F.scaled_dot_product_attention(Q, K, V, m))(
        torch.stack((MASK, -MASK))
    ),
    "vmap of gradients": lambda: torch.func.vmap(torch.func.grad(_loss))(ROWS),
}
SMALL = Q[:1, :1, :2]
# Values of another width than the keys go to PyTorch's kernel made of operations, which has all derivatives.
TRANSFORMED_BY_PYTORCH = {
    "functionalize": lambda: torch.func.functionalize(_loss)(Q),
    "dropout in vmap, the same": lambda: torch.func.vmap(lambda q: _loss(q, dropout_p=0.5), randomness="same")(ROWS),
    "dropout in vmap, different": lambda: torch.func.vmap(lambda q: _loss(q, dropout_p=0.5), randomness="different")(
        ROWS
    ),
    "jvp": lambda: torch.func.jvp(_loss, (Q,), (Q,))[1],
    "jacfwd": lambda: torch.func.jacfwd(_loss)(SMALL),
    "a Hessian": lambda: torch.func.hessian(_loss)(SMALL),
    "a Hessian in bfloat16": lambda: torch.func.hessian(lambda q: _loss(q.bfloat16()))(SMALL),
    "reverse mode of forward mode": lambda: torch.func.jacrev(torch.func.jacfwd(_loss))(SMALL),
    "dual numbers": lambda: _tangent(Q, None),
    "dual numbers as a mask": lambda: _tangent(Q, MASK),
}


def _tangent(query: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The tangent of the output along the mask, or else along the query."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(*[query if mask is None else mask] * 2)
        given = (dual, K, V) if mask is None else (query, K, V, dual)
        tangent = forward_ad.unpack_dual(F.scaled_dot_product_attention(*given)).tangent
        assert tangent is not None
        return tangent


@pytest.mark.parametrize("name", [*TRANSFORMED, *TRANSFORMED_BY_PYTORCH])
def test_what_transforms_see_is_what_pytorch_shows_them(served: list, name: str) -> None:
    transformed = {**TRANSFORMED, **TRANSFORMED_BY_PYTORCH}[name]
    torch.manual_seed(0)
    expected = transformed()
    with patch_torch():
        torch.manual_seed(0)
        result = transformed()
    assert bool(served) == (name in TRANSFORMED)
    torch.testing.assert_close(result, expected)


def test_gradients_and_dropout_go_through(served: list) -> None:
    query = Q.clone().requires_grad_()
    with patch_torch():
        torch.manual_seed(0)
        out = F.scaled_dot_product_attention(query, K, V, dropout_p=0.5)
        out.sum().backward()
    torch.manual_seed(0)
    torch.testing.assert_close(out, attention(Q, K, V, dropout=0.5, impl="cpu"))
    assert query.grad.isfinite().all()


def test_autocast_casts_as_pytorch_does(served: list, assert_as_exact) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        expected = SDPA(Q, K, V, _x(5, 7))
        with patch_torch():
            output = F.scaled_dot_product_attention(Q, K, V, _x(5, 7))
    assert served == ["cpu"]
    assert output.dtype == expected.dtype == torch.bfloat16
    assert_as_exact(output, expected, lambda: SDPA(*(x.double() for x in (*HALF, _x(5, 7).bfloat16()))))


def test_modules_gain_without_change(served: list) -> None:
    layer = torch.nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x, memory = _x(2, 5, 16), _x(2, 7, 16, seed=1)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(5)
    expected = layer(x, memory, tgt_mask=mask)
    with patch_torch():
        result = layer(x, memory, tgt_mask=mask)
    assert served == ["cpu", "cpu"]
    torch.testing.assert_close(result, expected)


class _Noted(torch.Tensor):
    """Notes down the functions that it is asked to carry out."""

    functions: list = []  # noqa: RUF012  (of the test that runs)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.functions.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


class _Listed(torch.Tensor):
    """Looks functions up in a table, as PyTorch's documents do."""

    overrides: dict = {}  # noqa: RUF012  (of the test that runs)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in cls.overrides:
            return cls.overrides[function]
        return super().__torch_function__(function, types, args, kwargs or {})


class _Calling(torch.Tensor):
    """Calls the function by its name, with overrides off."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        with DisableTorchFunctionSubclass():
            return F.scaled_dot_product_attention(*args, **(kwargs or {})).neg()


SUBCLASSES = {
    "causal, upper left": lambda: F.scaled_dot_product_attention(Q, K, V, bias.causal_upper_left(5, 7)),
    "causal, lower right": lambda: F.scaled_dot_product_attention(Q, K, V, bias.causal_lower_right(5, 7)),
    "jagged nested tensors": lambda: F.scaled_dot_product_attention(
        *(
            torch.nested.nested_tensor([x[0], x[1, :3]], layout=torch.jagged).transpose(1, 2)
            for x in [_x(2, 5, 4, 8)] * 3
        )
    ).values(),
    "a subclass that listens": lambda: F.scaled_dot_product_attention(Q.as_subclass(_Noted), K, V),
    "a subclass that calls": lambda: F.scaled_dot_product_attention(Q, K.as_subclass(_Calling), V),
    "a subclass of the dispatcher": lambda: F.scaled_dot_product_attention(*(TwoTensor(x, x) for x in (Q, K, V))).a,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize("name", SUBCLASSES)
def test_tensor_subclasses_give_what_they_gave(name: str) -> None:
    expected = SUBCLASSES[name]()
    with patch_torch():
        result = SUBCLASSES[name]()
    assert type(result) is type(expected)
    torch.testing.assert_close(result.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda *_: None, bias.causal_upper_left, bias.causal_lower_right])
def test_a_compiled_program_gains_too(make) -> None:
    torch.compiler.reset()
    mask = make(5, 7)
    with patch_torch():
        compiled = torch.compile(
            lambda q: F.scaled_dot_product_attention(q, K, V, mask), fullgraph=True, backend="aot_eager"
        )
        result = compiled(Q)
    torch.testing.assert_close(result, SDPA(Q, K, V, mask))


def test_overrides_see_the_function_that_has_the_name(served: list) -> None:
    class Noting(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            functions.append(function)
            return function(*args, **(kwargs or {}))

    functions: list = []
    with patch_torch():
        with Noting():
            F.scaled_dot_product_attention(Q, K, V)
        assert functions == [F.scaled_dot_product_attention]
        assert served == ["cpu"]
        _Noted.functions.clear()
        F.scaled_dot_product_attention(Q.as_subclass(_Noted), K, V)
        assert _Noted.functions == [F.scaled_dot_product_attention]
        assert _Noted.functions[0] is F.scaled_dot_product_attention


@pytest.mark.parametrize("is_made_under_the_patch", [False, True])
def test_tables_of_overrides_find_either_function(is_made_under_the_patch: bool) -> None:
    def call() -> object:
        return F.scaled_dot_product_attention(Q.as_subclass(_Listed), K, V)

    with patch_torch() if is_made_under_the_patch else contextlib.nullcontext():
        _Listed.overrides = {F.scaled_dot_product_attention: "overridden"}
    assert call() == "overridden"
    with patch_torch():
        assert call() == "overridden"
        assert pickle.loads(pickle.dumps(F.scaled_dot_product_attention)) is F.scaled_dot_product_attention
        assert F.scaled_dot_product_attention in get_testing_overrides()
    assert F.scaled_dot_product_attention in get_testing_overrides()


class Scripted(torch.nn.Module):
    def forward(self, query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, query, query, is_causal=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_modules_are_scripted_under_the_patch_and_after_it() -> None:
    expected = SDPA(Q, Q, Q, is_causal=True)
    mha = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    x = _x(2, 5, 16)
    with patch_torch():
        scripted = torch.jit.script(Scripted())
        assert torch.equal(scripted(Q), expected)
        alone = torch.jit.script(mha)(x, x, x, need_weights=False)[0]
    assert torch.equal(scripted(Q), expected)
    assert torch.equal(torch.jit.script(Scripted())(Q), expected)
    torch.testing.assert_close(alone, mha(x, x, x, need_weights=False)[0])


def test_a_graph_of_torch_fx_names_pytorchs_function() -> None:
    with patch_torch():
        graph = torch.fx.symbolic_trace(Scripted())
    file = io.BytesIO()
    torch.save(graph, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert SDPA in [node.target for node in loaded.graph.nodes]
    assert torch.equal(loaded(Q), SDPA(Q, Q, Q, is_causal=True))


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
        given = PACKED, KEYS, KEYS, OFFSETS, KEY_OFFSETS, 6, 4
        out, lse = varlen.varlen_attn(*given, enable_gqa=True, return_aux=varlen.AuxRequest(True), **options)
    assert served == ["cpu"]
    assert lse.shape == (4, 9)
    torch.testing.assert_close(out, _ragged(mask))


VARLEN_ERRORS = {
    "fewer key heads": lambda f: f(PACKED, KEYS, KEYS, OFFSETS, KEY_OFFSETS, 6, 4),
    "three windows": lambda f: f(PACKED, PACKED, PACKED, OFFSETS, OFFSETS, 6, 6, window_size=(1, 2, 3)),
    "float64, packed": lambda f: f(PACKED.double(), PACKED.double(), PACKED.double(), OFFSETS, OFFSETS, 6, 6),
    "forward mode, packed": lambda f: torch.func.jvp(
        lambda x: f(x, x, x, OFFSETS, OFFSETS, 6, 6), (PACKED,), (PACKED,)
    ),
}


@pytest.mark.parametrize("name", [*ERRORS, *VARLEN_ERRORS])
def test_what_pytorch_refuses_is_refused_in_its_words(name: str) -> None:
    call, original = (ERRORS[name], SDPA) if name in ERRORS else (VARLEN_ERRORS[name], VARLEN)
    kinds = (ValueError, RuntimeError, IndexError, TypeError)
    with pytest.raises(kinds) as expected:
        call(original)
    with patch_torch(), pytest.raises(kinds) as result:
        call(F.scaled_dot_product_attention if original is SDPA else varlen.varlen_attn)
    assert result.type is expected.type
    assert str(result.value).splitlines()[0] == str(expected.value).splitlines()[0]


def test_offsets_that_lie_are_an_error() -> None:
    with patch_torch(), pytest.raises(uwaga.ShapeError, match="offsets must end at"):
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
        with pytest.raises(RuntimeError, match="has been replaced by other code since"):
            patch.undo()
    patch.undo()
    assert F.scaled_dot_product_attention is SDPA


def test_the_torch_engine_stays_pytorchs_own(served: list) -> None:
    with patch_torch():
        attention(Q, K, V, impl="torch")
    assert served == []
