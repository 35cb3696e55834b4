"""The kinds of processors; tests/messages/explain.txt has what `explain` says on each."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from largest import Largest
from processors import GENOA, M2, MILAN, SAPPHIRE_RAPIDS, TURIN, x86

from uwaga import Causal, KeyLengths, Window, attention, explain
from uwaga.ops import engine_table
from uwaga.ops.masks import Mask

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


ROWS = {
    "AMD Zen 3 (AVX2)": MILAN,
    "AMD Zen 4 (AVX-512 with bf16)": GENOA,
    "AMD Zen 5 (AVX-512 with bf16)": TURIN,
    "Intel processors with AMX": SAPPHIRE_RAPIDS,
    "other processors": M2,
}


def test_every_row_is_found() -> None:
    assert [row.name for row in engine_table.ROWS] == list(ROWS)
    for name, here in ROWS.items():
        row = engine_table.row(here)
        assert row.name == name
        reports = {*row.attention.values(), *row.linear.values()}
        assert all((Path(__file__).parents[2] / report).is_file() for report in reports)
    for here in (
        x86("AMD", 26, 0x50, "avx2", "avx512f"),
        x86("Hygon", 24, 0, "avx2"),
        x86("Intel", 6, 106, "avx2", "avx512f"),
    ):
        assert engine_table.row(here).name == "other processors"


def _described(reports: Mapping[str, str]) -> str:
    """The dtypes that were measured, as docs/reference/performance.md has them."""
    measured = [dtype for dtype in DTYPES if dtype in reports]
    return "all" if len(measured) == len(DTYPES) else ", ".join(measured) or "not measured"


def test_the_page_on_speed_has_this_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "performance.md").read_text(encoding="utf-8")
    expected = [f"| {row.name} | {_described(row.attention)} | {_described(row.linear)} |" for row in engine_table.ROWS]
    start = page.index("| processor | dense attention | linear map |")
    assert page[start:].partition("\n\n")[0].splitlines()[2:] == expected


@pytest.mark.parametrize("mask", [None, Causal(), Window(5, 0), KeyLengths(torch.tensor([3]))], ids=str)
def test_a_matrix_is_made_for_sdpa_where_explain_says_so(mask: Mask | None) -> None:
    x = torch.randn(1, 1, 99, 8)
    with Largest() as seen:
        attention(x, x, x, impl="torch", mask=mask)
    is_made = "matrix" in explain(x, x, x, impl="torch", mask=mask).reason
    assert is_made == (seen.bytes >= 99 * 99)
