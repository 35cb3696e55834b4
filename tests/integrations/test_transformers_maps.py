"""output_attentions=True gives maps of the weights that eager attention gives, of what hooks are told.

Letters: B batch, H heads, Q queries, K keys, N tokens of a sequence.
"""

from collections.abc import Callable, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from uwaga import AttentionMap

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

register_with_transformers()

LENGTHS, LENGTH = (7, 4, 2), 7
RIGHT = (torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]).long()
MASKS = {"none": torch.ones_like(RIGHT), "right": RIGHT, "left": RIGHT.flip(1)}
IDS = tiny.tokens(len(LENGTHS), LENGTH)
ONE_STACK = tiny.ENCODERS | tiny.DECODERS


def weights(maps: Sequence, tokens: Tensor) -> Tensor:
    """(layers, H, queries that are tokens, K)."""
    dense = [x if isinstance(x, Tensor) else x.to_dense() for x in maps]
    return torch.stack([x.transpose(1, 2)[tokens.bool()] for x in dense])


def asked(model: nn.Module, **inputs: object) -> object:
    with torch.no_grad():
        return model(**inputs, output_attentions=True)


def agree(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> None:
    """As tiny.agrees; the oracle is eager too, since no other gives weights."""
    exact = tiny.oracle(model)
    exact.set_attn_implementation("eager")
    tiny.agrees(model, run, lambda: run(exact))


IN_GATE = {
    *(("bert", side) for side in MASKS), *(("llama", side) for side in MASKS), ("modernbert", "left"), ("gemma2", "none"),
    ("gpt_oss", "right"), ("t5", "left"), ("bart", "right"),
}  # fmt: skip


@pytest.mark.gate(only=lambda family, side: (family, side) in IN_GATE)
@pytest.mark.parametrize(("family", "side"), list(product(ONE_STACK, MASKS)))
def test_the_weights_of_every_layer(family: str, side: str) -> None:
    model = tiny.make(family, ONE_STACK[family], transformers.AutoModel)
    mask = MASKS[side]
    positions = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if family in tiny.DECODERS else {}

    def run(model: nn.Module) -> Tensor:
        return weights(asked(model, input_ids=IDS, attention_mask=mask, **positions).attentions, mask)

    if side == "none" or not (family in tiny.DECODERS or family == "modernbert"):
        agree(model, run)
        return
    # Rows that see nothing make nan of float64, so what is right comes from each sequence alone.
    oracle = tiny.oracle(model)
    oracle.set_attn_implementation("eager")

    def exact() -> Tensor:
        of_all, first = torch.zeros(model.config.num_hidden_layers, int(mask.sum()), 4, LENGTH, dtype=torch.float64), 0
        for row, ids in enumerate(tiny.alone(IDS, mask)):
            ones = torch.ones_like(ids)
            rows = torch.arange(first, first := first + ids.shape[1])
            columns = mask[row].nonzero().squeeze(1)
            of_all[:, rows[:, None, None], torch.arange(4)[None, :, None], columns] = weights(
                asked(oracle, input_ids=ids).attentions, ones
            )
        return of_all

    tiny.agrees(model, run, exact)


@pytest.mark.gate(only=lambda family, side: (family, side) in IN_GATE)
@pytest.mark.parametrize(("family", "side"), list(product(tiny.PAIRS, MASKS)))
def test_the_weights_of_encoder_decoder_and_between(family: str, side: str) -> None:
    model = tiny.make(family, tiny.PAIRS[family], transformers.AutoModel)
    of_decoder = RIGHT[:, :5]
    inputs = {"input_ids": IDS, "attention_mask": MASKS[side], "decoder_attention_mask": of_decoder}
    inputs["decoder_input_ids"] = tiny.tokens(3, 5, seed=1)

    def run(kind: str, tokens: Tensor) -> Callable[[nn.Module], Tensor]:
        return lambda model: weights(getattr(asked(model, **inputs), f"{kind}_attentions"), tokens)

    agree(model, run("encoder", MASKS[side]))
    agree(model, run("decoder", of_decoder))
    agree(model, run("cross", of_decoder))


def test_a_map_says_what_it_is_of() -> None:
    model = tiny.make("bert", tiny.ENCODERS["bert"], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    made = asked(model, input_ids=IDS, attention_mask=RIGHT)
    assert len(made.attentions) == 3
    for attention in made.attentions:
        assert isinstance(attention, AttentionMap)
        assert attention.shape == (3, 4, 7, 7)
        assert attention[1, :, :, 4:].count_nonzero() == 0
        torch.testing.assert_close(attention[1, :, :4].sum(-1), torch.ones(4, 4))
    with torch.no_grad():
        without = model(input_ids=IDS, attention_mask=RIGHT)
    assert "attentions" not in without
    assert torch.equal(made.last_hidden_state, without.last_hidden_state)


@pytest.mark.parametrize(("family", "is_causal"), [("bert", False), ("llama", True)])
def test_the_maps_of_a_batch_packed_by_offsets(family: str, is_causal: bool) -> None:
    """cu_seq_lens_q, as FlashAttention takes it: eager attention would look beyond the documents."""
    model = tiny.make(family, ONE_STACK[family], transformers.AutoModel)
    offsets = torch.tensor([0, 3, 7], dtype=torch.int32)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    documents = [IDS[:1, :3], IDS[:1, 3:]]
    alone = [asked(model, input_ids=ids).attentions for ids in documents]
    model.set_attn_implementation("uwaga")
    packed = asked(
        model, input_ids=IDS[:1], position_ids=positions, cu_seq_lens_q=offsets, cu_seq_lens_k=offsets
    ).attentions
    for layer, attention in enumerate(packed):
        dense = torch.block_diag(*(x[layer][0, 1] for x in alone))
        torch.testing.assert_close(attention[0, 1], dense)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_the_maps_of_a_cached_step(family: str) -> None:
    """The last tokens against all, padded on the left."""
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModelForCausalLM)
    mask = MASKS["none"]

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            cache = model(input_ids=IDS[:, :5], attention_mask=mask[:, :5], use_cache=True).past_key_values
        made = asked(model, input_ids=IDS[:, 5:], attention_mask=mask, **tiny.cached(model, cache))
        return torch.cat([x.flatten() for x in (weights([one], mask[:, 5:]) for one in made.attentions)])

    agree(model, run)


def test_maps_come_out_of_generate() -> None:
    model = tiny.make("bart", tiny.PAIRS["bart"], transformers.AutoModelForSeq2SeqLM)
    model.set_attn_implementation("uwaga")
    made = model.generate(
        IDS, attention_mask=MASKS["left"], max_new_tokens=3, do_sample=False, return_dict_in_generate=True,
        output_attentions=True,
    )  # fmt: skip
    assert all(isinstance(attention, AttentionMap) for step in made.decoder_attentions for attention in step)
    last = made.decoder_attentions[2][0]
    assert last.shape == (3, 4, 1, 3)
    torch.testing.assert_close(last.to_dense().sum(-1), torch.ones(3, 4, 1))
    assert made.cross_attentions[2][1].shape == (3, 4, 1, LENGTH)
    assert made.encoder_attentions[0].shape == (3, 4, LENGTH, LENGTH)
