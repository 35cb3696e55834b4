"""attn_implementation="uwaga" gives what eager attention gives, for every family, and computes no padding on the way.

Letters: B batch, N tokens of a sequence.
"""

import copy
from functools import partial

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402
from engines import needs_native  # noqa: E402

from uwaga.integrations import pack_linear, register_with_transformers  # noqa: E402
from uwaga.integrations.transformers.attention import uwaga_attention  # noqa: E402

register_with_transformers()

AutoModel, CausalLM = transformers.AutoModel, transformers.AutoModelForCausalLM
BATCH, LENGTH = 3, 9
LENGTHS = (9, 5, 2)


def mask_of(side: str) -> Tensor:
    """(B, N), 0 in padding."""
    positions, lengths = torch.arange(LENGTH), torch.tensor(LENGTHS)[:, None]
    if side == "none":
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    return (positions < lengths if side == "right" else positions >= LENGTH - lengths).long()


@torch.no_grad()
def states(ids: Tensor, mask: Tensor, model: nn.Module, **more: Tensor) -> Tensor:
    """The last states of the real tokens."""
    return model(input_ids=ids, attention_mask=mask, **more)[0][mask.bool()]


def counted(model: nn.Module) -> list[int]:
    """How many tokens each linear layer is given from now on."""
    rows: list[int] = []

    def note(layer: nn.Module, arguments: tuple) -> None:
        x = arguments[0]
        values = x.values if hasattr(x, "packing") and x.is_packed else x
        rows.append(values.numel() // values.shape[-1])

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(note)
    return rows


def initialised(model: nn.Module) -> nn.Module:
    model.eval().set_attn_implementation("eager")
    for weight in model.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    return model


def test_layers_that_do_not_say_whether_they_are_causal() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = initialised(transformers.SplinterModel(transformers.SplinterConfig(**sizes, vocab_size=64)))
    ids, mask = tiny.tokens(BATCH, LENGTH), mask_of("right")

    def run(model: nn.Module) -> Tensor:
        if model.dtype == torch.float64:  # it has no attention but this, whose mask of float64 serves whole batches
            model.set_attn_implementation("eager")
        return states(ids, mask, model)

    exact = copy.deepcopy(model).double()
    tiny.agrees(model, run, lambda: run(exact))


def test_cross_attention_without_a_mask() -> None:
    from transformers.models.mllama.configuration_mllama import MllamaTextConfig

    config = MllamaTextConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, cross_attention_layers=[1], pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = initialised(transformers.MllamaForCausalLM(config))
    ids, image = tiny.tokens(BATCH, LENGTH), torch.randn(BATCH, 7, 32)

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            result = model(
                ids, cross_attention_states=image.to(model.dtype), use_cache=False, output_hidden_states=True
            )
        return result.hidden_states[-1]  # the logits are float32 in float64, too

    exact = copy.deepcopy(model).double()
    tiny.agrees(model, run, lambda: run(exact))


def test_a_layer_that_says_it_is_causal_where_the_model_wants_no_mask() -> None:
    """As those of the pictures of Phi-4: eager attention is full there."""
    layer = nn.Identity()
    layer.is_causal = True
    query, key, value = torch.randn(3, 1, 2, 5, 8)
    result, _ = uwaga_attention(layer, query, key, value, None)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    torch.testing.assert_close(result, expected)
    told, _ = uwaga_attention(layer, query, key, value, None, is_causal=True)
    causal = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    torch.testing.assert_close(told, causal)


@pytest.mark.parametrize(("encoder", "decoder"), [(1, 3), (3, 1)])
def test_stacks_of_other_heights(encoder: int, decoder: int) -> None:
    """Whatever the config counts, the last layer of each gives plain states."""
    layers = {"encoder_layers": encoder, "decoder_layers": decoder}
    model = tiny.make("bart", tiny.PAIRS["bart"] | layers, AutoModel)
    model.set_attn_implementation("uwaga")
    ids, mask = tiny.tokens(BATCH, LENGTH), mask_of("right")
    with torch.no_grad():
        made = model(input_ids=ids, attention_mask=mask, decoder_input_ids=ids, decoder_attention_mask=mask)
    assert type(made.last_hidden_state) is type(made.encoder_last_hidden_state) is Tensor


@pytest.mark.parametrize("hole", [(0, 4), (1, 2), (2, 0)])
def test_padding_anywhere(hole: tuple[int, int]) -> None:
    """A token in the middle may be hidden, too: then a sequence is not one piece."""
    model = tiny.make("bert", tiny.ENCODERS["bert"], AutoModel)
    mask = mask_of("right")
    mask[hole] = 0
    tiny.agrees(model, partial(states, tiny.tokens(BATCH, LENGTH), mask))


def test_a_sequence_of_padding_alone_gives_finite_states() -> None:
    """Eager attention spreads its weights over padding there; what others see of it is nothing."""
    model = tiny.make("bert", tiny.ENCODERS["bert"], AutoModel)
    mask = mask_of("right")
    mask[1] = 0
    ids = tiny.tokens(BATCH, LENGTH)
    tiny.agrees(model, partial(states, ids, mask))
    model.set_attn_implementation("uwaga")
    with torch.no_grad():
        assert model(ids, attention_mask=mask).last_hidden_state.isfinite().all()


@needs_native
@pytest.mark.parametrize(
    ("family", "packed", "side"),
    [
        ("bert", False, "right"), ("bert", True, "left"), ("modernbert", True, "right"), ("llama", False, "left"),
        ("gemma3_text", True, "right"),
    ],
)  # fmt: skip
def test_layers_between_attentions_see_no_padding(family: str, packed: bool, side: str) -> None:
    """Those before the first attention and behind the last cannot know of it. Of a causal batch they see the last position. Linear maps by
    uwaga.linear keep it out too."""
    model = tiny.make(family, (tiny.ENCODERS | tiny.DECODERS)[family], AutoModel)
    model.set_attn_implementation("uwaga")
    assert not packed or pack_linear(model)
    rows, mask = counted(model), mask_of(side)
    states(tiny.tokens(BATCH, LENGTH), mask, model)
    if family in tiny.DECODERS:
        mask[:, -1] = 1
    whole, tokens = BATCH * LENGTH, int(mask.sum())
    inner = rows[: rows.index(BATCH)] if BATCH in rows else rows  # without the pooler
    first, last = inner.index(tokens), len(inner) - inner[::-1].index(tokens)
    assert set(inner[:first] + inner[last:]) == {whole}
    assert set(inner[first:last]) == {tokens}
    assert last - first > len(inner) / 2


@pytest.mark.parametrize(
    ("family", "records", "hidden"), [("llama", False, (0, 0)), ("gpt2", True, (0, 0)), ("mistral", False, (2, 1))]
)
def test_the_last_position_is_that_of_eager_attention_though_it_is_padding(
    family: str, records: bool, hidden: tuple[int, int]
) -> None:
    """`generate` reads it. As long as there is a token in each window."""
    model = tiny.make(family, tiny.DECODERS[family], AutoModel)
    ids, mask = tiny.tokens(BATCH, LENGTH), (torch.arange(LENGTH) < torch.tensor([9, 8, 7])[:, None]).long()
    mask[hidden[0], : hidden[1]] = 0

    def run(model: nn.Module) -> Tensor:
        model.zero_grad()
        with torch.set_grad_enabled(records):
            last = model(input_ids=ids, attention_mask=mask)[0][:, -1]
        if not records:
            return last
        last.square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    tiny.agrees(model, run)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_the_states_of_every_layer(family: str) -> None:
    """Plain tensors, which a caller may keep."""
    model = tiny.make(family, (tiny.ENCODERS | tiny.DECODERS)[family], AutoModel)
    ids, mask = tiny.tokens(BATCH, LENGTH), mask_of("right")

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            made = model(ids, attention_mask=mask, output_hidden_states=True)
        assert all(type(x) is Tensor for x in (made.last_hidden_state, *made.hidden_states))
        assert made.last_hidden_state.is_contiguous()
        return torch.stack(made.hidden_states)[:, mask.bool()]

    tiny.agrees(model, run)


def test_half_precision() -> None:
    """Against float64 as everywhere; the same model, rounded first."""
    model = tiny.make("bert", tiny.ENCODERS["bert"], AutoModel).to(torch.bfloat16)
    tiny.agrees(model, partial(states, tiny.tokens(BATCH, LENGTH), mask_of("right")))


def test_autocast() -> None:
    model = tiny.make("llama", tiny.DECODERS["llama"], AutoModel)
    ids, mask = tiny.tokens(BATCH, LENGTH), mask_of("right")
    oracle = tiny.oracle(model)

    def run(model: nn.Module) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return states(ids, mask, model)

    tiny.agrees(model, run, lambda: states(ids, mask, oracle), stored=torch.bfloat16)


def test_masks_of_the_caller() -> None:
    """Four dimensions, bool or added to the scores, are taken as they are."""
    model = tiny.make("llama", tiny.DECODERS["llama"], AutoModel)
    ids = tiny.tokens(BATCH, LENGTH)
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().logical_and(torch.arange(LENGTH) % 3 < 2)
    seen = (seen | torch.eye(LENGTH, dtype=torch.bool)).expand(BATCH, 1, -1, -1)
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)

    def run(model: nn.Module, mask: Tensor) -> Tensor:
        with torch.no_grad():
            return model(ids, attention_mask=mask.to(model.dtype) if mask.is_floating_point() else mask)[0]

    tiny.agrees(model, lambda model: run(model, added))
    model.set_attn_implementation("uwaga")
    torch.testing.assert_close(run(model, seen), run(model, added), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("of_mask", "of_model"),
    [(torch.float32, torch.bfloat16), (torch.float64, torch.float16), (torch.bfloat16, torch.float64)],
)
def test_masks_of_the_caller_of_another_type_than_the_model(of_mask: torch.dtype, of_model: torch.dtype) -> None:
    query, key, value = torch.randn(3, 2, 2, 5, 8, generator=torch.Generator().manual_seed(0)).to(of_model)
    seen = torch.ones(5, 5, dtype=torch.bool).tril()
    added = torch.full((2, 1, 5, 5), 0.5, dtype=of_mask).masked_fill(~seen, torch.finfo(of_mask).min)
    result, _ = uwaga_attention(nn.Identity(), query, key, value, added)
    expected, _ = uwaga_attention(nn.Identity(), query, key, value, seen.expand(2, 1, 5, 5))
    assert result.dtype == of_model
    torch.testing.assert_close(result, expected)


def test_dropout_in_training_is_that_of_the_seed() -> None:
    model = tiny.make("bert", tiny.ENCODERS["bert"], AutoModel, hidden_dropout_prob=0.0)
    model.set_attn_implementation("uwaga")
    quiet = copy.deepcopy(model)
    model.train()
    ids, mask = tiny.tokens(BATCH, LENGTH), mask_of("right")
    run = partial(states, ids, mask)
    first, again, other = (torch.manual_seed(seed) and run(model) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.testing.assert_close(run(model.eval()), run(quiet), rtol=0, atol=0)
