"""Packed batches: the documents of one row never see each other, and each gives what it gives alone.

Letters: N tokens of the row, R documents.
"""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers", minversion="5")
import tiny_models as tiny  # noqa: E402

from uwaga.integrations import register_with_transformers  # noqa: E402
from uwaga.integrations.transformers import layer_call  # noqa: E402

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


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("family", sorted(tiny.DECODERS.keys() - {"gpt_oss"}))
def test_positions_with_a_mask_of_ones_and_an_empty_cache(
    family: str, with_mask: bool, with_cache: bool, rows: int
) -> None:
    """As FlashAttention does it in one row; sdpa and eager attention let the documents see each other there."""
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModel)
    more = {"attention_mask": torch.ones(rows, ROW.shape[1], dtype=torch.int64)} if with_mask else {}

    def packed(model: nn.Module) -> Tensor:
        with torch.no_grad():
            made = model(ROW.expand(rows, -1), position_ids=POSITIONS.expand(rows, -1), use_cache=with_cache, **more)
        return made[0][-1]

    agrees(model, packed)


def test_a_document_does_not_change_the_next_one() -> None:
    model = tiny.make("llama", tiny.DECODERS["llama"], transformers.AutoModelForCausalLM)
    model.set_attn_implementation("uwaga")
    other = ROW.clone()
    other[0, :5] = tiny.tokens(1, 5, seed=9)
    with torch.no_grad():
        ours, edited = (
            model(ids, position_ids=POSITIONS, attention_mask=torch.ones_like(ids)).logits[0] for ids in (ROW, other)
        )
    assert torch.equal(ours[5:], edited[5:])
    assert not torch.equal(ours[:5], edited[:5])


@pytest.mark.parametrize(
    "positions",
    [
        range(14),
        range(3, 17),
        [0, 1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 9, 10, 11],
        [0, 1, 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
    ],
    ids=["one document", "a part of one", "repeated", "a gap"],
)
def test_other_positions_are_one_document(positions: list[int]) -> None:
    model = tiny.make("llama", tiny.DECODERS["llama"], transformers.AutoModel)
    mask, positions = torch.ones_like(ROW), torch.tensor([list(positions)])

    def run(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(ROW, position_ids=positions, attention_mask=mask)[0]

    tiny.agrees(model, run)


def _padded(model: nn.Module) -> None:
    mask = torch.ones_like(ROW)
    mask[0, -2:] = 0
    model(ROW, position_ids=POSITIONS, attention_mask=mask)


def _static(model: nn.Module) -> None:
    cache = transformers.StaticCache(config=model.config, max_cache_len=20)
    model(ROW, position_ids=POSITIONS, **tiny.cached(model, cache))


def _continued(model: nn.Module) -> None:
    cache = model(ROW[:, :3], use_cache=True).past_key_values
    model(ROW, position_ids=POSITIONS, **tiny.cached(model, cache))


def _without_positions(model: nn.Module) -> None:
    model(ROW, position_ids=POSITIONS)


@pytest.mark.parametrize(
    ("family", "run"),
    [("llama", _padded), ("llama", _static), ("llama", _continued), ("gpt_oss", _without_positions)],
    ids=["padding", "a cache of fixed size", "a cache with tokens", "no positions for the mask"],
)
def test_where_it_cannot_be_told_a_warning_says_so_once(family: str, run: Callable[[nn.Module], None]) -> None:
    layer_call._warn_once.cache_clear()
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    with torch.no_grad(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(model)
        run(model)
    name = type(model.layers[0].self_attn).__name__
    assert [str(each.message) for each in warned] == [
        "attn_implementation='uwaga': position_ids start again at 0 within a row, but the documents of "
        f"{name} see each other: with padding, with a cache that is not empty or has a fixed size, or where the model gives its "
        "mask no positions, only cu_seq_lens_q and cu_seq_lens_k keep them apart"
    ]


def test_positions_of_padding_are_no_documents() -> None:
    """As a padded batch has them: a warning would be an error here."""
    layer_call._warn_once.cache_clear()
    model = tiny.make("llama", tiny.DECODERS["llama"], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    mask = torch.ones(2, 14, dtype=torch.int64)
    mask[0, :5] = 0
    with torch.no_grad():
        for fill in (0, 1):
            positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, fill)
            model(ROW.expand(2, -1), position_ids=positions, attention_mask=mask)


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
