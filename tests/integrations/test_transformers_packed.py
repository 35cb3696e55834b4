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
from uwaga.integrations.transformers import layer_call  # noqa: E402

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
        return packed(model) if tiny.implementation_of(model) == "uwaga" else alone(model)

    exact = tiny.oracle(model)
    tiny.agrees(model, run, lambda: alone(exact))


IN_GATE = ("llama", "gemma2", "mistral", "bert", "modernbert")


@pytest.mark.gate(only=lambda family: family in IN_GATE)
@pytest.mark.parametrize("family", [*tiny.DECODERS, "bert", "electra", "modernbert"])
def test_offsets(family: str) -> None:
    """As DataCollatorWithFlattening gives them to FlashAttention."""
    model = tiny.make(family, (tiny.DECODERS | tiny.ENCODERS)[family], transformers.AutoModel)
    arguments = {"input_ids": ROW, "position_ids": POSITIONS, **OF_FLASH}

    def packed(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(**arguments, use_cache=False)[0][0]

    agrees(model, packed)


# The model of gpt_oss does not tell its mask function of positions: packed so, its documents see each other with eager
# attention too.
@pytest.mark.gate(only=lambda family: family in IN_GATE)
@pytest.mark.parametrize(
    ("family", "with_mask", "with_cache", "rows"),
    [
        ("llama", False, False, 1),
        ("llama", True, False, 2),
        *((family, True, True, 1) for family in sorted(tiny.DECODERS.keys() - {"gpt_oss"})),
    ],
)
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


PADDED = torch.ones_like(ROW).index_fill(1, torch.tensor([12, 13]), 0)
UNTOLD: dict[str, Callable[[nn.Module], dict]] = {
    "padding": lambda model: {"attention_mask": PADDED},
    "a cache of fixed size": lambda model: tiny.cached(
        model, transformers.StaticCache(config=model.config, max_cache_len=20)
    ),
    "a cache with tokens": lambda model: tiny.cached(model, model(ROW[:, :3], use_cache=True).past_key_values),
    "no positions for the mask": lambda model: {},
}


@pytest.fixture
def _no_warning_yet() -> None:
    layer_call.warn_once.cache_clear()


@pytest.mark.usefixtures("_no_warning_yet")
@pytest.mark.parametrize("way", UNTOLD)
def test_where_it_cannot_be_told_a_warning_says_so_once(way: str) -> None:
    family = "gpt_oss" if way == "no positions for the mask" else "llama"
    model = tiny.make(family, tiny.DECODERS[family], transformers.AutoModel)
    model.set_attn_implementation("uwaga")

    @torch.no_grad()
    def twice() -> None:
        for _ in range(2):
            model(ROW, position_ids=POSITIONS, **UNTOLD[way](model))

    with pytest.warns(UserWarning, match=r"documents of .* see each other") as warned:
        twice()
    assert len(warned) == 1


@pytest.mark.usefixtures("_no_warning_yet")
def test_positions_of_padding_are_no_documents() -> None:
    """As a padded batch has them: a warning would be an error here."""
    model = tiny.make("llama", tiny.DECODERS["llama"], transformers.AutoModel)
    model.set_attn_implementation("uwaga")
    mask = torch.ones(2, 14, dtype=torch.int64)
    mask[0, :5] = 0
    with torch.no_grad():
        for fill in (0, 1):
            positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, fill)
            model(ROW.expand(2, -1), position_ids=positions, attention_mask=mask)
