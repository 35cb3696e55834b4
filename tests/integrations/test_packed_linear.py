"""pack_linear and unpack_linear: the linear maps of foreign models by uwaga.linear.

Letters: B batch, N tokens, V vocabulary.
"""

import copy
import pickle
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from tolerance import assert_as_exact
from torch import Tensor, nn

from uwaga.integrations import pack_linear, unpack_linear
from uwaga.integrations.packed_linear import PackedLinear

transformers = pytest.importorskip("transformers", minversion="5")
from tiny_models import DECODERS, ENCODERS, PAIRS, make, oracle, tokens  # noqa: E402
from transformers.pytorch_utils import Conv1D  # noqa: E402

from uwaga.integrations.transformers.packed_conv1d import PackedConv1D  # noqa: E402

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


@pytest.mark.gate(only=lambda family: family in ("bert", "gpt2"))
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


def _doubled(module: nn.Linear) -> dict[str, Tensor]:
    return {"weight": module.weight.detach() * 2, "bias": module.bias.detach()}


CHANGES: dict[str, Callable[[nn.Linear], object]] = {
    "in place": lambda module: module.weight.data.mul_(2),
    "load by assignment": lambda module: module.load_state_dict(_doubled(module), assign=True),
    "replace": lambda module: setattr(module, "weight", nn.Parameter(_doubled(module)["weight"])),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_weight_counts_at_once(change: str) -> None:
    module = nn.Linear(16, 8)
    pack_linear(module)
    before = module(X) - module.bias
    CHANGES[change](module)
    torch.testing.assert_close(module(X) - module.bias, 2 * before)


class Doubled(nn.Linear):
    """Stands for the quantized maps of other packages, which are subclasses of nn.Linear."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_subclasses_and_replaced_forwards_are_left_alone() -> None:
    """Those of PyTorch's quantization too."""
    quantized = torch.ao.nn.quantized.dynamic.Linear(16, 8)
    model = nn.Sequential(Doubled(16, 16), nn.Linear(16, 16), nn.MultiheadAttention(16, 2), quantized)
    replaced = model[1]
    replaced.forward = lambda x: x + 1  # type: ignore[method-assign]
    had = classes(model)
    assert pack_linear(model) == 0
    assert classes(model) == had
    assert torch.equal(replaced(X), X + 1)


@pytest.mark.parametrize(
    ("family", "copied"), [("bert", copy.deepcopy), ("gpt2", lambda model: pickle.loads(pickle.dumps(model)))]
)
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


@pytest.mark.usefixtures("process_group")
def test_under_fsdp() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = feed_forward()
    expected = model(X)
    pack_linear(model[:1])
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    assert pack_linear(model) == 1
    result = model(X)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert unpack_linear(model) == 2
    torch.testing.assert_close(model(X), expected)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # which peft asks for
@pytest.mark.parametrize(
    ("family", "targets", "packed_first"), [("bert", ["query", "value"], True), ("gpt2", ["c_attn"], False)]
)
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


@pytest.mark.stress
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_torch_compile(family: str) -> None:
    """One graph, also when the model is packed after it was compiled."""
    model = model_of(family)
    expected, exact = run(model), oracle(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    run(compiled)
    pack_linear(compiled)
    assert_as_exact(run(compiled), expected, lambda: run(exact))


def _checkpointed(model: nn.Module) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    model.zero_grad()
    checkpoint(model, X, use_reentrant=False).square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _traced(model: nn.Module) -> Tensor:
    """A trace has operators of PyTorch, so that it runs elsewhere."""
    traced = torch.jit.trace(model, X[:2])
    assert not any("uwaga" in node.kind() for node in traced.inlined_graph.nodes())
    return traced(X)


WAYS = {
    "activation checkpointing": _checkpointed,
    "a trace": _traced,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_computing(way: str) -> None:
    model = feed_forward()
    expected = WAYS[way](model)
    assert pack_linear(model) == 2
    torch.testing.assert_close(WAYS[way](model), expected)
