"""A packed batch equals its documents one by one, bit for bit, in what every family gives.

It does in float32 and bfloat16 on the CPU. Two things are PyTorch's: float64, and "gelu_tanh" and "silu" in float32, which
it computes in another way where a vector is not full. No vector is left unfilled where the hidden width is a multiple of
64, as in all published models, and one or two threads share the work.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from uwaga import Ragged
from uwaga.models import (
    BertModel,
    GPT2Config,
    GPT2Model,
    RotaryConfig,
    RotaryModel,
    T5Config,
    T5Model,
    Transformer,
    TransformerConfig,
    load,
)
from uwaga.models.bert.config import BertConfig

# Fewer than four, not in fours, and more than a block of keys.
LENGTHS = (1, 2, 3, 5, 7, 9, 11, 31, 64, 1, 100, 4, 257)
DECODER_LENGTHS = (3, 1, 2, 9, 5, 7, 1, 1, 10, 33, 6, 90, 2)
_SIZES = {"vocab_size": 60, "d_model": 24, "num_layers": 2, "num_heads": 4, "d_ff": 64}
_PAIR = _SIZES | {"num_decoder_layers": 2}
_LABELS = ("no", "yes", "perhaps")


def _bert(model_type: str, *outputs: str, type_vocab_size: int = 1, **more) -> BertModel:
    config = BertConfig(
        model_type=model_type,
        max_position_embeddings=300,
        outputs=outputs,
        labels=_LABELS,
        type_vocab_size=type_vocab_size,
        **(_SIZES | more),
    )
    return BertModel(config)


def _rotary(model_type: str, *, num_kv_heads: int = 4, **more) -> RotaryModel:
    settings = _SIZES | {"max_position_embeddings": 300, "num_kv_heads": num_kv_heads} | more
    return RotaryModel(RotaryConfig(model_type=model_type, **settings))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: _bert("bert", "pooled", "masked_lm", "next_sentence"),
    "bert of sequences": lambda: _bert("bert", "pooled", "sequence", d_ff=40),
    "roberta": lambda: _bert("roberta", "sequence"),
    "distilbert": lambda: _bert("distilbert", "tokens", type_vocab_size=0, activation="relu", d_ff=28),
    "mpnet": lambda: _bert("mpnet", "pooled", "masked_lm", type_vocab_size=0, num_buckets=32, pad_token_id=1),
    "gpt2": lambda: GPT2Model(GPT2Config(max_position_embeddings=300, band=8, **_SIZES)),
    "modernbert": lambda: _rotary("modernbert", activation="gelu", has_lm_head=False, windows=(None, 5), d_k=6),
    "gemma3": lambda: _rotary("gemma3_text", num_kv_heads=2, d_k=6, windows=(None, 5), activation="gelu_tanh"),
    "embedding gemma": lambda: _rotary(
        "gemma3_text", d_k=6, windows=(9, 5), activation="gelu_tanh", bidirectional=True
    ),
    "llama": lambda: _rotary("llama", num_kv_heads=2, d_k=6),
    "mistral": lambda: _rotary("mistral", num_kv_heads=1, windows=(9, 9), d_k=8, d_ff=128),
    "qwen2": lambda: _rotary("qwen2", num_kv_heads=2, qkv_bias=True, windows=(None, 9), d_k=6),
    "qwen3": lambda: _rotary("qwen3", num_kv_heads=2, d_k=10, tie_word_embeddings=True),
    "t5": lambda: T5Model(T5Config(**(_PAIR | {"d_model": 20, "num_heads": 3, "d_kv": 6, "d_ff": 28}))),
    "t5 gated": lambda: T5Model(T5Config(gated=True, activation="gelu_tanh", **_PAIR)),
    "transformer": lambda: Transformer(TransformerConfig(**_PAIR)),
    "marian": lambda: Transformer(
        TransformerConfig(activation="silu", sinusoid_layout="halves", lm_head_bias=True, **_PAIR)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_packed_batch_equals_its_documents_one_by_one(name: str, dtype: torch.dtype, threads: int) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype).eval()
    torch.set_num_threads(threads)  # put back by a fixture of all tests of models
    batch = [[torch.randint(3, 60, (length,)) for length in LENGTHS]]
    if hasattr(model, "decode"):
        batch.append([torch.randint(3, 60, (length,)) for length in DECODER_LENGTHS])
    together = model(*map(Ragged.from_list, batch), output_hidden_states=True)
    for row in range(len(LENGTHS)):
        alone = model(*(Ragged.from_list(documents[row : row + 1]) for documents in batch), output_hidden_states=True)
        for field, value, expected in zip(together._fields, together, alone, strict=True):
            for ours, theirs in zip(_tensors(value, row), _tensors(expected, 0), strict=True):
                assert torch.equal(ours, theirs), (field, LENGTHS[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("only", ["first", "last"])
@pytest.mark.parametrize(
    "name", [name for name, model in MODELS.items() if isinstance(model(), BertModel | RotaryModel)]
)
@torch.no_grad()
def test_a_token_of_each_row_alone_has_the_bits_that_it_has_among_all(name: str, only: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype).eval()
    ids = Ragged.from_list([torch.randint(3, 60, (length,)) for length in LENGTHS])
    whole = model(ids, outputs=()).last_hidden_state.values
    expected = whole[ids.offsets[:-1] if only == "first" else ids.offsets[1:] - 1]
    rows = _rows_of_the_last_layer(model)
    assert torch.equal(model(ids, outputs=(), only=only).last_hidden_state.values, expected)
    assert rows == [len(LENGTHS)]


@pytest.mark.parametrize("name", ["bert", "bert of sequences", "roberta"])
@torch.no_grad()
def test_heads_of_the_first_token_have_their_bits_where_nothing_else_is_computed(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    wanted = [each for each in model.config.outputs if each != "masked_lm"]
    ids = Ragged.from_list([torch.randint(3, 60, (length,)) for length in LENGTHS])
    alone, among = model(ids, outputs=wanted, only="first"), model(ids, outputs=wanted)
    assert all(torch.equal(getattr(alone, each), getattr(among, each)) for each in wanted)


def _rows_of_the_last_layer(model: nn.Module) -> list[int]:
    """Filled with the number of tokens that the last layer's feed-forward sublayer is called with."""
    layers, rows = model.encoder.layers if isinstance(model, BertModel) else model.layers, list[int]()
    layers[-1].feed_forward.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0].values)))
    return rows


@torch.no_grad()
def test_real_weights_do_so_too(minilm: Path) -> None:
    model = load(minilm)
    torch.manual_seed(0)
    documents = [torch.randint(1000, 20000, (length,)) for length in (1, 2, 7, 9, 33, 130)]
    together = model(Ragged.from_list(documents)).last_hidden_state.to_list()
    for document, value in zip(documents, together, strict=True):
        assert torch.equal(model(Ragged.from_list([document])).last_hidden_state.values, value)


def _tensors(field, row: int) -> list[Tensor]:
    """What a field of an output says of a row."""
    if field is None:
        return []
    if isinstance(field, tuple):
        return [tensor for each in field for tensor in _tensors(each, row)]
    return [field.to_list()[row] if isinstance(field, Ragged) else field[row]]
