"""FlexAttention's block masks, kernels and place among the engines. What it computes, the conformance suite tests.

On the CPU PyTorch compiles no FlexAttention that gives the lse or a gradient: kernels are traced here, as for a GPU, and run
by PyTorch's own form of the operator. Tensors of a GPU are fake ones.
"""

import pytest
import torch
from torch import Tensor

from uwaga import AlibiBias, Causal, Documents, KeyLengths, Ragged, Window, attention
from uwaga.ops.attention.arguments import AttentionOptions, make_call
from uwaga.ops.attention.call import Call
from uwaga.ops.attention.engines import flex
from uwaga.ops.mask_program import visible
from uwaga.ops.masks import Mask

N = 300
BLOCKS = 3
EMPTY, PARTIAL, FULL = range(3)  # what a mask does to a block
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


def _call(mask: Mask | Tensor | None, **options) -> Call:
    x = torch.zeros(2, 2, N, 16)
    return make_call(x, x, x, AttentionOptions(mask, **options), wants_lse=True)


@pytest.mark.parametrize("name", MASKS)
def test_empty_blocks_hide_all_and_full_ones_nothing(name: str) -> None:
    call = _call(MASKS[name])
    tensors: list[Tensor] = []
    node = flex._node(call, tensors)
    assert node is not None
    states = flex._states(node, tensors, N, N)
    seen = visible(call.options.mask_program, call.mask_tensors, N, N, "cpu").expand(2, 2, N, N)
    for x in range(BLOCKS):
        for y in range(BLOCKS):
            inside = seen[..., x * 128 : (x + 1) * 128, y * 128 : (y + 1) * 128].flatten(2)
            state = states.expand(2, 2, BLOCKS, BLOCKS)[..., x, y]
            assert not inside[state == EMPTY].any()
            assert inside[state == FULL].all()


def test_causal_tests_the_diagonal_alone_and_computes_nothing_above_it() -> None:
    tensors: list[Tensor] = []
    node = flex._node(_call(Causal()), tensors)
    assert node is not None
    # The last blocks of 44 tokens are tested, too.
    expected = [[PARTIAL, EMPTY, EMPTY], [FULL, PARTIAL, EMPTY], [PARTIAL, PARTIAL, PARTIAL]]
    assert flex._states(node, tensors, N, N)[0, 0].tolist() == expected


def test_documents_of_a_ragged_batch_meet_in_no_block_but_their_own() -> None:
    batch = Ragged.from_list([torch.zeros(n, 2, 16) for n in (256, 0, 128, 300)])
    call = make_call(batch, batch, batch, AttentionOptions(Causal()), wants_lse=False)
    tensors: list[Tensor] = []
    node = flex._node(call, tensors)
    assert isinstance(node, flex._Interval)  # the documents and the mask are one test
    states = flex._states(node, tensors, 684, 684)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in states] == [[0], [0, 1], [2], [3], [3, 4], [3, 4, 5]]


def test_the_mask_of_a_model_is_made_once_and_anew_where_it_changes() -> None:
    lengths = torch.tensor([40, 200])
    mask = KeyLengths(lengths)
    first = flex._mask(_call(mask))
    assert flex._mask(_call(mask)) is first
    lengths[0] = 41
    assert flex._mask(_call(mask)) is not first


@pytest.mark.slow
def test_the_kernel_is_one_graph_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    def compiled(form, node, *arguments):
        key = form, node
        if key not in kernels:
            kernels[key] = torch.compile(lambda *x: flex._flex(form, node, *x), fullgraph=True, backend=backend)
        return kernels[key](*arguments)

    kernels: dict = {}
    monkeypatch.setattr(flex, "_unfused", compiled)
    options = {"softcap": 3.0, "sinks": torch.tensor([0.5, -1.0]), "bias": AlibiBias(torch.tensor([0.5, 0.25]))}
    for n in (300, 200, 150):
        values = [torch.randn(n, 2, 24) for _ in range(3)]
        operands = [Ragged(x, torch.tensor([0, 40, n])) for x in values]
        mask = Window(50, 10) & KeyLengths(torch.tensor([40, n - 50]))
        with torch.no_grad():
            torch.manual_seed(n)
            output = attention(*operands, mask=mask, dropout=0.2, impl="flex", **options)
            torch.manual_seed(n)
            expected = attention(*operands, mask=mask, dropout=0.2, impl="reference", **options)
        torch.testing.assert_close(output.values, expected.values)
    # The kernel of the lse and the kernel of the weights that dropout keeps: of one length, and of any.
    assert len(kernels) == 2
    assert len(graphs) <= 4


@pytest.mark.slow
def test_it_is_a_part_of_what_a_user_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "refusal", lambda call: None)  # as on a GPU

    @torch.compile(fullgraph=True, backend="eager")
    def run(query: Tensor, key: Tensor, lengths: Tensor) -> Tensor:
        return attention(query, key, key, mask=Causal() & KeyLengths(lengths), softcap=2.0, impl="flex")

    query, key, lengths = torch.randn(2, 4, 200, 16), torch.randn(2, 2, 200, 16), torch.tensor([150, 200])
    with torch.no_grad():
        result = run(query, key, lengths)
    mask = Causal() & KeyLengths(lengths)
    torch.testing.assert_close(result, attention(query, key, key, mask=mask, softcap=2.0, impl="reference"))


@pytest.mark.slow
def test_kernels_are_compiled_by_form_and_kind_and_the_search_for_triton_is_no_part_of_a_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile, backends = torch.compile, []
    monkeypatch.setattr(flex, "_unfused", lambda form, node, *x: flex._compiled(form, node, x[0].dtype)(*x))
    monkeypatch.setattr(torch, "compile", lambda f, **how: backends.append(how) or compile(f, backend="eager", **how))
    flex._compiled.cache_clear()
    x = torch.randn(1, 2, 20, 16)
    with torch.no_grad():
        for _ in range(2):
            output = attention(x, x, x, mask=Window(4, 0), softcap=3.0, impl="flex")
        attention(x, x, x, mask=Window(4, 0), softcap=2.0, impl="flex")
    flex._compiled.cache_clear()
    assert backends == [{"fullgraph": True}] * 2
    torch.testing.assert_close(output, attention(x, x, x, mask=Window(4, 0), softcap=3.0, impl="reference"))
    assert compile(lambda x: x + (flex.why_not_on_cuda() is None), fullgraph=True, backend="eager")(x).shape == x.shape


@pytest.mark.slow
def test_the_choice_on_another_device_is_traced_for_any_length() -> None:
    @torch.compile(fullgraph=True, backend="eager", dynamic=True)
    def run(x: Tensor) -> Tensor:
        return attention(x, x, x, mask=Window(5, 0)) + attention(x, x, x, mask=Causal())

    for n in (20, 30):
        assert run(torch.zeros(2, 2, n, 16, device="meta")).shape == (2, 2, n, 16)
