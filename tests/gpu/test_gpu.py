"""What runs on a GPU computes there what it computes on the CPU: `make gpu` on one, every other run with tensors that are pretended to be
on one, without its kernels and streams."""

import copy
import inspect
from pathlib import Path

import pytest
import torch
from processors import pretend_cuda
from tiny_transformer import tiny
from torch import Tensor
from torch.nn.attention import varlen

import uwaga
from uwaga import AlibiBias, Causal, Documents, KeyLengths, Ragged, RelativeBias, Window, attention, explain
from uwaga.inspect import PatchGrid
from uwaga.models import generate
from uwaga.ops.attention.engines import torch_fused
from uwaga.train import fit
from uwaga.train.config import Config

N = 40
LENGTHS, SLOPES, TABLE = torch.tensor([30, 40]), torch.tensor([0.5, 0.25, 0.1, 0.0]), torch.randn(8, 4)
BITS = torch.rand(N, N) < 0.5
FORMS = {
    "plain": ("torch", lambda on: {}),
    "causal": ("torch", lambda on: {"mask": Causal()}),
    "window and lengths": ("flex", lambda on: {"mask": Window(5, 0) & KeyLengths(on(LENGTHS)), "softcap": 3.0}),
    "documents": ("flex", lambda on: {"mask": Documents(on(torch.arange(N) // 9)), "sinks": on(SLOPES)}),
    "alibi": ("flex", lambda on: {"mask": Causal(), "bias": AlibiBias(on(SLOPES))}),
    "relative": ("flex", lambda on: {"bias": RelativeBias(on(TABLE))}),
    "bits": ("flex", lambda on: {"mask": Documents(on(torch.arange(N) // 9)) & on(BITS), "softcap": 3.0}),
    "or": ("flex", lambda on: {"mask": Causal() | on(BITS), "softcap": 3.0}),
    "dropout": ("flex", lambda on: {"dropout": 0.2}),
    "no softmax": ("linear", lambda on: {"normalize": None, "mask": Causal()}),
    "no softmax, softcap": ("reference", lambda on: {"normalize": None, "softcap": 2.0}),
}


def _there(x: Tensor) -> Tensor:
    return x.detach().to("cuda").requires_grad_(x.requires_grad)


def _compare(result: Tensor, expected: Tensor) -> None:
    """Up to the rounding of a few thousand float32 operations on numbers of about this size."""
    atol = 64 * torch.finfo(torch.float32).eps * float(expected.detach().abs().max())
    torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=atol)


def _operands() -> list[Tensor]:
    return [torch.randn(2, heads, N, 16).requires_grad_() for heads in (4, 2, 2)]


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_attention_and_their_gradients(gpu, name: str) -> None:
    engine, options = FORMS[name]
    results = []
    operands = _operands()
    for on in (lambda x: x, _there):
        leaves = [on(x) for x in operands]
        torch.manual_seed(0)
        output = attention(*leaves, **options(on))
        gradients = torch.autograd.grad(output.square().sum(), leaves)
        results.append([output, *gradients])
    assert explain(*leaves, **options(_there)).engine == engine
    for x, y in zip(*results, strict=True):
        assert gpu.has(y)
        _compare(y, x)


def test_where_patches_look(gpu) -> None:
    operands = torch.randn(2, 4, 12, 8)
    m, there = (uwaga.AttentionMap(*on(operands)) for on in (lambda x: x, _there))
    grid = PatchGrid(rows=3, columns=4)
    assert gpu.has(grid.looks_at(there, 0))
    _compare(grid.looks_at(there, 0), grid.looks_at(m, 0))


def test_ragged_batches_and_their_maps(gpu) -> None:
    offsets = torch.tensor([0, 7, 7, N])
    values = [x[0].transpose(0, 1).detach() for x in _operands()]
    here, there = ([Ragged(on(x), on(offsets)) for x in values] for on in (lambda x: x, _there))
    options = {"mask": Causal(), "entropy": True, "topk": 3}
    one, other = uwaga.attend(*here, **options), uwaga.attend(*there, **options)
    assert gpu.has(other.output.values)
    _compare(other.output.values, one.output.values)
    _compare(other.map.entropy().values, one.map.entropy().values)
    _compare(other.map[2].received(), one.map[2].received())


@pytest.mark.parametrize("heads", [2, 4])
def test_varlen_attn_serves_ragged_batches_as_far_as_it_can(gpu, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cuda(monkeypatch, get_device_capability=lambda _: (9, 0))
    torch_fused.varlen_kernels.cache_clear()
    values = _there(torch.zeros(9, heads, 16, dtype=torch.bfloat16))
    # PyTorch 2.11 knows no groups; and offsets are a dimension of the kernels' grid.
    has_groups = "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters
    for offsets, engine in (
        (torch.tensor([0, 5, 9]), "torch" if has_groups or heads == 2 else "flex"),
        (torch.arange(1 << 17).clamp(max=9), "flex"),
    ):
        query, key = (Ragged(x, _there(offsets)) for x in (values, values[:, :2]))
        assert explain(query, key, key).engine == engine
    nothing = Ragged(values[:0], _there(torch.tensor([0])))
    assert attention(nothing, nothing, nothing).values.shape == (0, heads, 16)
    torch_fused.varlen_kernels.cache_clear()


MODELS = {
    "gpt2": lambda: tiny("gpt2", max_position_embeddings=64),
    "bert": lambda: tiny("bert", max_position_embeddings=64),
    "t5": lambda: tiny("t5"),
    "transformer": lambda: tiny("uwaga-transformer", num_decoder_layers=2),
}


@pytest.mark.gate(only=lambda name, kind: (name, kind) in (("gpt2", "padded"), ("bert", "ragged")))
@pytest.mark.parametrize("kind", ["padded", "ragged"])
@pytest.mark.parametrize("name", MODELS)
def test_models(gpu, name: str, kind: str) -> None:
    model = MODELS[name]()
    ids = torch.tensor([[5, 6, 7, 8], [9, 5, 6, 7]])
    inputs = [ids if kind == "padded" else Ragged.from_list([ids[0], ids[1, :2]])] * (2 - (name in ("gpt2", "bert")))
    there = [_there(x) if kind == "padded" else Ragged(_there(x.values), _there(x.offsets)) for x in inputs]
    with torch.no_grad():
        expected = _hidden(model(*inputs))
        result = _hidden(copy.deepcopy(model).to("cuda")(*there))
    _compare(result, expected)


def _hidden(output) -> Tensor:
    hidden = output.last_hidden_state if output.logits is None else output.logits
    return hidden.values if isinstance(hidden, Ragged) else hidden


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"do_sample": True, "seed": 1}], ids=str)
def test_generation_from_lists_of_ids(gpu, options: dict) -> None:
    model = MODELS["gpt2"]()
    expected = generate(model, [[5, 6, 7], [8]], max_new_tokens=5, **options)
    assert generate(model.to("cuda"), [[5, 6, 7], [8]], max_new_tokens=5, **options) == expected


def test_maps_of_a_watched_model_are_computed_where_it_is(gpu) -> None:
    model, ids = MODELS["gpt2"]().eval(), torch.tensor([[5, 6, 7, 8]])
    results = []
    for on in (lambda x: x, lambda x: x.to("cuda")):
        with uwaga.watch(on(model)) as recording, torch.no_grad():
            model(on(ids))
        results.append(recording)
    one, other = (recording.maps[("decoder", 1)] for recording in results)
    assert results[1].tokens == results[0].tokens
    assert gpu.has(other.lse)
    for name in ("entropy", "received", "distance"):
        _compare(getattr(other, name)(), getattr(one, name)())
    _compare(other[..., 2, :], one[..., 2, :])


def test_texts_become_vectors(gpu, write_model, tmp_path: Path) -> None:
    encoder = uwaga.TextEncoder.load(write_model(tmp_path / "model"))
    texts = ["the cat sat", "a dog ran away from the house .", "the mat"]
    expected, tokens = encoder.encode(texts, normalize=True), encoder.encode(texts, output="tokens")
    encoder.model.to("cuda")
    _compare(torch.from_numpy(encoder.encode(texts, normalize=True)), torch.from_numpy(expected))
    result = encoder.encode(texts, output="tokens")
    assert gpu.has(result.values)
    _compare(result.values, tokens.values)


RECIPES = {
    "gpt2": "family='gpt2', num_layers=1, num_heads=2, d_model=16, d_ff=32, max_position_embeddings=64, embedding_dropout=0.0",
    "transformer": "family='transformer', num_layers=1, num_decoder_layers=1, num_heads=2, d_model=16, d_ff=32",
}
OBJECTIVES = {"gpt2": "language-model", "transformer": "encoder-decoder"}


@pytest.mark.stress
@pytest.mark.parametrize("family", RECIPES)
def test_a_training_run(gpu, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not gpu.is_real:
        there = {"is_available": lambda: True, "current_device": lambda: 0, "default_generators": [torch.Generator()]}
        pretend_cuda(monkeypatch, **there)
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran away\n" * 60)
    (tmp_path / "pairs.tsv").write_text("cat\tsat\nmat\tdog\n" * 100)
    kind, file = ("pairs", "pairs.tsv") if family == "transformer" else ("text", "text.txt")
    losses = []
    for device in ("cpu", "cuda"):
        config = Config.parse(
            f"""
            objective = "{OBJECTIVES[family]}"
            model = {{{RECIPES[family]}, dropout=0.0}}
            data = {{kind = "{kind}", train = ["{tmp_path / file}"], validation = ["{tmp_path / file}"], context_length = 16}}
            batch = {{tokens_per_batch = 64}}
            schedule = {{steps = 4}}
            run = {{output_dir = "{tmp_path / device}", device = "{device}"}}
            """
        )
        losses.append(fit(config).losses[4])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
