"""generate() with attn_implementation="uwaga" chooses the tokens that it chooses with eager attention."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

register_with_transformers()

IDS = tiny.tokens(3, 6)
LEFT = (torch.arange(6) >= 6 - torch.tensor([6, 4, 1])[:, None]).long()
PADDED = (False, True)
WAYS = {
    "greedy": {"do_sample": False},
    "beams": {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
    "drawn": {"do_sample": True, "top_k": 8},
    "static cache": {"do_sample": False, "cache_implementation": "static", "disable_compile": True},
    "no cache": {"do_sample": False, "use_cache": False},
}


def generated(model: nn.Module, mask: Tensor, **options: object) -> Tensor:
    torch.manual_seed(0)
    return model.generate(
        IDS, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, no_repeat_ngram_size=2, **options
    )


def check(model: nn.Module, mask: Tensor, **options: object) -> None:
    theirs = generated(model, mask, **options)
    model.set_attn_implementation("uwaga")
    assert torch.equal(generated(model, mask, **options), theirs)
    assert len(theirs[:, -8:].unique()) > 2


def in_gate(family: str, way: str, is_padded: bool) -> bool:
    """Return whether a case is one of a plain decoder, or of one with windows or a pair with the two kinds of cache."""
    if family == "llama":
        return is_padded or way == "greedy"
    return family in ("gemma2", "t5") and is_padded and way in ("greedy", "static cache")


@pytest.mark.slow
@pytest.mark.gate(only=lambda family, way, is_padded: in_gate(family, way, is_padded))
@pytest.mark.parametrize(("family", "way", "is_padded"), list(product(tiny.DECODERS | tiny.PAIRS, WAYS, PADDED)))
def test_the_tokens_are_those_of_eager_attention(family: str, way: str, is_padded: bool) -> None:
    maker = transformers.AutoModelForSeq2SeqLM if family in tiny.PAIRS else transformers.AutoModelForCausalLM
    mask = (LEFT.flip(1) if family in tiny.PAIRS else LEFT) if is_padded else torch.ones_like(LEFT)
    check(tiny.make(family, (tiny.DECODERS | tiny.PAIRS)[family], maker), mask, **WAYS[way])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["greedy", "static cache", "no cache"])
@pytest.mark.gate(only=lambda family: family == "gemma2")
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_padding_on_the_right(family: str, way: str) -> None:
    """transformers warns of it, and goes on behind the padding; every cache gives the scores of eager attention."""
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModelForCausalLM)
    mask = (torch.arange(6) < torch.tensor([6, 5, 4])[:, None]).long()

    def run(model: nn.Module) -> Tensor:
        scores: list[Tensor] = []  # of the model's type; `generate` gives those of float64 in float32
        head = model.get_output_embeddings()
        hook = head.register_forward_hook(lambda module, arguments, made: scores.append(made[:, -1]))
        generated(model, mask, **WAYS[way])
        hook.remove()
        return torch.stack(scores)

    tiny.agrees(model, run)


@pytest.mark.parametrize("how", ["a prompt's own words", "a smaller model"])
@pytest.mark.gate(only=lambda family: family == "llama")
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_assisted_generation(family: str, how: str) -> None:
    """Drafts are read several at a time behind a cache, which forgets those that are refused."""
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModelForCausalLM)
    smaller = tiny.make(family, tiny.DECODERS[family], transformers.AutoModelForCausalLM, num_hidden_layers=1)
    drafts = {"prompt_lookup_num_tokens": 3} if how == "a prompt's own words" else {"assistant_model": smaller}
    prompt = tiny.tokens(1, 8).repeat(1, 2)
    texts = []
    for name in ("eager", "uwaga"):
        model.set_attn_implementation(name)
        smaller.set_attn_implementation(name)
        texts.append(model.generate(prompt, max_new_tokens=10, min_new_tokens=10, do_sample=False, **drafts))
    assert torch.equal(*texts)


def test_attention_changes_over_and_back() -> None:
    """By name and by dict; each gives the same bits whatever came before."""
    model = tiny.make("bart", tiny.PAIRS["bart"], transformers.AutoModelForSeq2SeqLM)
    ids = {"input_ids": IDS, "attention_mask": LEFT, "decoder_input_ids": IDS}
    results: dict[str, Tensor] = {}
    for name in ("eager", "uwaga", "sdpa", "uwaga", "eager", "sdpa"):
        model.set_attn_implementation(name if len(results) < 2 else {"": name})
        assert tiny.implementation_of(model) == name
        with torch.no_grad():
            logits = model(**ids).logits
        assert torch.equal(results.setdefault(name, logits), logits)


@pytest.mark.stress
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_generation_with_a_static_cache_is_two_graphs(family: str) -> None:
    """Of the prompt, and of each further token."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list) -> Callable:
        graphs.append(module)
        return module.forward

    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModelForCausalLM, num_hidden_layers=1)
    theirs = generated(model, LEFT, **WAYS["static cache"])
    model.set_attn_implementation("uwaga")
    torch.compiler.reset()
    model.forward = torch.compile(model.forward, backend=backend, dynamic=False, fullgraph=True)
    assert torch.equal(generated(model, LEFT, **WAYS["static cache"]), theirs)
    assert len(graphs) == 2
