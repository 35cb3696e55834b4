"""Packed batches: the documents of one row never see each other, and each gives what it gives alone.

Letters: N tokens of the row, R documents.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
register_with_transformers()

LENGTHS = (5, 1, 8)
DOCUMENTS = [tiny.tokens(1, length, seed=length) for length in LENGTHS]
ROW = torch.cat(DOCUMENTS, 1)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
OFFSETS = torch.tensor([0, 5, 6, 14], dtype=torch.int32)
OF_FLASH = {"cu_seq_lens_q": OFFSETS, "cu_seq_lens_k": OFFSETS, "max_length_q": 8, "max_length_k": 8}


def alone(model: nn.Module) -> Tensor:
    """(N, width) document by document."""
    with torch.no_grad():
        return torch.cat([model(input_ids=ids, use_cache=False)[0][0] for ids in DOCUMENTS])


def agrees(model: nn.Module, packed: Callable[[nn.Module], Tensor]) -> None:
    """The row against its documents: eager attention takes these one by one."""

    def run(model: nn.Module) -> Tensor:
        return packed(model) if model.config._attn_implementation == "uwaga" else alone(model)

    exact = tiny.oracle(model)
    tiny.agrees(model, run, lambda: alone(exact))


# The model of gpt_oss does not tell its mask function of positions: packed so, its documents see each other with eager
# attention too.
@pytest.mark.parametrize("family", sorted(tiny.DECODERS.keys() - {"gpt_oss"}))
def test_positions_that_start_again(family: str) -> None:
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModel)

    def packed(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(input_ids=ROW, position_ids=POSITIONS, use_cache=False)[0][0]

    agrees(model, packed)


@pytest.mark.parametrize("family", [*tiny.DECODERS, "bert", "electra", "modernbert"])
def test_offsets(family: str) -> None:
    """As DataCollatorWithFlattening gives them to FlashAttention."""
    model = tiny.make(family, (tiny.DECODERS | tiny.ENCODERS)[family], transformers.AutoModel)
    arguments = {"input_ids": ROW, "position_ids": POSITIONS, **OF_FLASH}

    def packed(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(**arguments, use_cache=False)[0][0]

    agrees(model, packed)


def test_several_rows_of_packed_documents() -> None:
    model = tiny.make("llama", tiny.DECODERS["llama"], transformers.AutoModel)
    rows, positions = torch.cat((ROW, ROW.flip(1))), torch.cat((POSITIONS, POSITIONS))

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(input_ids=rows, position_ids=positions, use_cache=False)[0]

    tiny.agrees(model, run)


def test_gradients() -> None:
    model = tiny.make("llama", tiny.DECODERS["llama"], transformers.AutoModel)

    def run(model: nn.Module) -> Tensor:
        model.zero_grad()
        model(input_ids=ROW, position_ids=POSITIONS, use_cache=False)[0].square().sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    tiny.agrees(model, run)
