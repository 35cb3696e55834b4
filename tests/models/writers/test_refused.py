"""What configs and models that write text refuse: the whole text."""

from collections.abc import Callable

import pytest
import torch

from uwaga import Ragged
from uwaga.models import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    T5Config,
    T5Model,
    Transformer,
    TransformerConfig,
    generate,
)

PACKED = Ragged(torch.tensor([3, 4, 5]), torch.tensor([0, 2, 3]))
_T5 = {"vocab_size": 20, "d_model": 8, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "d_kv": 4, "d_ff": 16}
_BERT = {"vocab_size": 20, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16}
_GPT2 = {"vocab_size": 20, "d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 16, "max_position_embeddings": 4}
_BOTH = {"vocab_size": 30, "d_model": 16, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "d_ff": 32}
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "heads that do not divide": (
        lambda: GPT2Config(**(_GPT2 | {"num_heads": 3})),
        "GPT2Config: d_model 8 is not a multiple of num_heads 3",
    ),
    "a model that continues no text": (
        lambda: generate(BertModel(BertConfig(**_BERT)).eval(), ["a text"]),
        "generate: BertModel (bert) does not continue texts; a GPT2Model, T5Model, Transformer, or a RotaryModel of a decoder does",
    ),
    "a band of nothing": (
        lambda: GPT2Config(band=0),
        "GPT2Config: band must be a whole number from 1 to 268,435,456, not 0",
    ),
    "a start that is no word": (
        lambda: T5Config(**_T5, decoder_start_token_id=20),
        "T5Config: decoder_start_token_id 20 is not in the vocabulary of 20",
    ),
    "no layers": (
        lambda: TransformerConfig(num_layers=0, num_decoder_layers=0),
        "TransformerConfig: num_layers and num_decoder_layers are both 0: the model has no layers",
    ),
    "an odd width": (
        lambda: TransformerConfig(d_model=9, num_heads=3),
        "TransformerConfig: d_model 9 must be even for sinusoidal positions",
    ),
    "heads of the decoder": (
        lambda: TransformerConfig(d_model=16, num_heads=2, num_decoder_heads=3),
        "TransformerConfig: d_model 16 is not a multiple of 3 heads",
    ),
    "a slope below 0": (
        lambda: TransformerConfig(position_encoding="alibi", num_heads=2, alibi_slopes=(1.0, -1.0)),
        "TransformerConfig: alibi_slopes[1] must be a number from 0 to 1,024, not -1.0",
    ),
    "slopes of other heads": (
        lambda: TransformerConfig(position_encoding="alibi", num_heads=2, alibi_slopes=(1.0, 0.5, 0.0)),
        "TransformerConfig: alibi_slopes has 3 slopes for 2 heads",
    ),
    "slopes of positions that have none": (
        lambda: TransformerConfig(d_model=16, num_heads=2, alibi_slopes=(1.0, 0.0)),
        "TransformerConfig: alibi_slopes is for position_encoding 'alibi', not 'sinusoidal'",
    ),
    "two vocabularies of one stack": (
        lambda: TransformerConfig(num_layers=0, decoder_vocab_size=5),
        "TransformerConfig: decoder_vocab_size needs an encoder and a decoder",
    ),
    "a start of another vocabulary": (
        lambda: TransformerConfig(decoder_vocab_size=5, decoder_start_token_id=5),
        "TransformerConfig: decoder_start_token_id 5 is not in the vocabulary of 5",
    ),
    "more tokens than positions": (
        lambda: GPT2Model(GPT2Config(**_GPT2))(torch.ones(1, 5).long()),
        "GPT2Model: a row has 5 tokens; the model has 4 positions",
    ),
    "logits without a head": (
        lambda: GPT2Model(GPT2Config(**_GPT2, tie_word_embeddings=False, has_lm_head=False))(PACKED, logits=True),
        "GPT2Model: this model has no head for logits",
    ),
    "half a pair packed": (
        lambda: T5Model(T5Config(**_T5))(PACKED, torch.ones(2, 1).long()),
        "T5Model: ids and decoder_ids must both be Ragged, or neither",
    ),
    "rows of a pair": (
        lambda: Transformer(TransformerConfig(**_BOTH))(torch.ones(2, 3).long(), torch.ones(3, 3).long()),
        "Transformer: ids and decoder_ids must have the same rows, not (2,) and (3,)",
    ),
    "an answer of an encoder": (
        lambda: T5Model(T5Config(**(_T5 | {"num_decoder_layers": 0})))(PACKED, PACKED),
        "T5Model: this model has only an encoder, and cannot decode",
    ),
    "an answer of a decoder alone": (
        lambda: Transformer(TransformerConfig(**(_BOTH | {"num_layers": 0})))(PACKED, PACKED),
        "Transformer: this model has only a decoder, which reads ids: decoder_ids must be None",
    ),
    "an unknown word of the answer": (
        lambda: T5Model(T5Config(**_T5))(PACKED, PACKED.with_values(PACKED.values + 17)),
        "T5Model: decoder_ids must lie between 0 and 19, but range from 20 to 22",
    ),
    "a mask of packed texts": (
        lambda: Transformer(TransformerConfig(**_BOTH))(PACKED, lengths=torch.tensor([2, 1])),
        "Transformer: lengths and attention_mask are for padded ids; Ragged ids have no padding",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError) as caught:
        call()
    assert str(caught.value) == message
