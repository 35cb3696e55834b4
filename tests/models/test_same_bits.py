"""A packed batch of long and short rows equals its rows one by one, bit for bit, in every model type; test_families.py has short ones.

It does in float32 and bfloat16 on the CPU. Two things are PyTorch's: float64, and "gelu_tanh" and "silu" in float32, which
it computes in another way where a vector is not full. No vector is left unfilled where the hidden width is a multiple of
64, as in all published models, and one or two threads share the work.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny_families
import torch
from tiny_families import BASE, named

from uwaga import Ragged
from uwaga.models import Transformer, load

# Fewer than four, not in fours, and more than a block of keys.
LENGTHS = (1, 2, 3, 5, 7, 9, 11, 31, 64, 1, 100, 4, 257)
DECODER_LENGTHS = (3, 1, 2, 9, 5, 7, 1, 1, 10, 33, 6, 90, 2)
_OTHERS = [
    "bert-BertForSequenceClassification", "distilbert-DistilBertForTokenClassification", "gemma3_text-both-ways", "marian-scaled",
    "qwen2-windows", "roberta-RobertaForSequenceClassification", "t5-1.1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", [*BASE.values(), *_OTHERS])
@torch.no_grad()
def test_a_packed_batch_equals_its_documents_one_by_one(name: str, dtype: torch.dtype, threads: int) -> None:
    torch.manual_seed(0)
    config = tiny_families.twins(name).ours.config
    longest = None if config.max_position_embeddings is None else 300
    model = Transformer(replace(config, max_position_embeddings=longest)).to(dtype).eval()
    torch.set_num_threads(threads)  # put back by a fixture of all tests of models
    rows = [[torch.randint(4, 40, (length,)) for length in LENGTHS]]
    if config.has_both:
        rows.append([torch.randint(4, 40, (length,)) for length in DECODER_LENGTHS])
    batch = [*map(Ragged.from_list, rows)]
    together = named(model(*batch, output_hidden_states=True))
    for n in range(len(LENGTHS)):
        alone = named(model(*(Ragged.from_list(each[n : n + 1]) for each in rows), output_hidden_states=True))
        for field, value in alone.items():
            among = together[field].to_list()[n] if isinstance(value, Ragged) else together[field][n]
            assert torch.equal(among, value.values if isinstance(value, Ragged) else value[0]), (field, LENGTHS[n])
    if not config.has_both:
        states, offsets = model(*batch, outputs=()).last_hidden_state.values, batch[0].offsets
        for only, at in (("first", offsets[:-1]), ("last", offsets[1:] - 1)):
            assert torch.equal(model(*batch, outputs=(), only=only).last_hidden_state.values, states[at])


@torch.no_grad()
def test_real_weights_do_so_too(minilm: Path) -> None:
    model = load(minilm)
    torch.manual_seed(0)
    documents = [torch.randint(1000, 20000, (length,)) for length in (1, 2, 7, 9, 33, 130)]
    together = model(Ragged.from_list(documents)).last_hidden_state.to_list()
    for document, value in zip(documents, together, strict=True):
        assert torch.equal(model(Ragged.from_list([document])).last_hidden_state.values, value)
