"""Models with attn_implementation="uwaga" compile whole, and give what they give without the compiler."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

register_with_transformers()


def padded(*lengths: int) -> Tensor:
    return (torch.arange(6) < torch.tensor(lengths)[:, None]).long()


@pytest.mark.stress
@pytest.mark.parametrize("compiled", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("family", ["bert", "llama"])
def test_layers_one_by_one(family: str, compiled: tuple[int, ...]) -> None:
    """Beside layers that are not compiled, and for batches that come in turn."""
    model = tiny.make(family, (tiny.ENCODERS | tiny.DECODERS)[family], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    ids, masks = tiny.tokens(3, 6), (padded(6, 4, 1), padded(6, 6, 6), padded(2, 6, 3))

    def run() -> list[Tensor]:
        with torch.no_grad():
            made = [model(input_ids=ids, attention_mask=mask).last_hidden_state for mask in masks]
        assert {type(states) for states in made} == {Tensor}
        return [states[mask.bool()] for states, mask in zip(made, masks, strict=True)]

    plain = run()
    layers = model.layers if family == "llama" else model.encoder.layer
    torch.compiler.reset()
    for index in compiled:
        layers[index].compile(backend="aot_eager")
    torch.testing.assert_close(run(), plain)


def counting() -> tuple[Callable, list[int]]:
    """A backend that runs graphs as they are, and the number of nodes of each. `generate` copies its options: an object that
    counts would be another one there."""
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(len(module.graph.nodes))
        return module.forward

    return backend, graphs


def on_the_cpu(**compiler: object) -> object:
    """Options of a compiler that `generate` uses on the CPU too."""
    config = transformers.CompileConfig(**compiler, mode=None)
    config._compile_all_devices = True
    return config


def generated(model: torch.nn.Module, side: str, **options: object) -> Tensor:
    lengths = (6, 6, 6) if side == "none" else (6, 4, 1)
    return model.generate(
        tiny.tokens(3, 6), attention_mask=padded(*lengths).flip(1), max_new_tokens=20, min_new_tokens=20,
        do_sample=False, cache_implementation="static", **options,
    )  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize(
    ("family", "whose", "side"),
    [("llama", "generate", "none"), ("llama", "user", "left"), ("gpt2", "generate", "left"), ("gpt2", "user", "none")],
)
def test_a_generation_with_a_static_cache_is_one_graph(family: str, whose: str, side: str) -> None:
    """Compiled by `generate`, which leaves the prompt alone, or by the caller, prompt and all."""
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModelForCausalLM, num_hidden_layers=1)
    theirs = generated(model, side, disable_compile=True)
    model.set_attn_implementation("uwaga")
    backend, graphs = counting()
    compiler = {"backend": backend, "dynamic": False, "fullgraph": True}
    torch.compiler.reset()
    if whose == "user":
        model.forward = torch.compile(model.forward, **compiler)
        result = generated(model, side)
    else:
        result = generated(model, side, compile_config=on_the_cpu(**compiler))
    assert len(graphs) == (2 if whose == "user" else 1)
    assert torch.equal(result, theirs)
