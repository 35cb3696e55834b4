"""The order of engines of every kind of processor, and that calls of attention obey it; tests/messages/explain.txt has what `explain` says."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from engines import needs_native
from largest import Largest
from processors import GENOA, M2, MILAN, SAPPHIRE_RAPIDS, TURIN, forget, x86
from torch import Tensor

from uwaga import Causal, KeyLengths, Ragged, Window, attention, explain
from uwaga._base import processor
from uwaga._base.processor import Processor
from uwaga.ops import attention_and_lse, engine_profile, engine_table
from uwaga.ops.engine_profile import ProfileError, read, write
from uwaga.ops.masks import Mask

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


ROWS = {
    "AMD Zen 3 (AVX2)": MILAN,
    "AMD Zen 4 (AVX-512 with bf16)": GENOA,
    "AMD Zen 5 (AVX-512 with bf16)": TURIN,
    "AMD processors with AVX-512 that were not measured": x86("AMD", 26, 0x50, "avx2", "avx512f"),
    "AMD processors with AVX2 that were not measured": x86("AMD", 23, 49, "avx2"),
    "Intel processors with AMX": SAPPHIRE_RAPIDS,
    "Intel processors with AVX2 or AVX-512, without AMX": x86("Intel", 6, 106, "avx2", "avx512f"),
    "Apple processors": M2,
    "ARM processors": Processor(architecture="arm", vendor="Arm", model=0xD40),
    "processors that are not known here": Processor(architecture="riscv64"),
}


def test_every_row_is_found_and_has_every_engine_the_native_kernels_first() -> None:
    assert [row.name for row in engine_table.ROWS] == list(ROWS)
    for name, here in ROWS.items():
        row = engine_table.row(here)
        assert row.name == name
        for operation, reports in {"attention": row.attention, "linear": row.linear}.items():
            order = row.order(operation)
            assert order[0] == "cpu"
            assert sorted(order) == sorted(engine_profile.ENGINES[operation])
            assert all((Path(__file__).parents[2] / report).is_file() for report in reports.values())
    assert engine_table.row(x86("Hygon", 24, 0, "avx2")).name == "AMD processors with AVX2 that were not measured"
    assert engine_table.row(x86("Intel", 6, 60)).name == "processors that are not known here"


def _described(reports: Mapping[str, str]) -> str:
    """The dtypes that were measured, as docs/reference/performance.md has them."""
    measured = [dtype for dtype in DTYPES if dtype in reports]
    return "all" if len(measured) == len(DTYPES) else ", ".join(measured) or "not measured"


def test_the_page_on_speed_has_this_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "performance.md").read_text(encoding="utf-8")
    expected = [f"| {row.name} | {_described(row.attention)} | {_described(row.linear)} |" for row in engine_table.ROWS]
    start = page.index("| processor | dense attention | linear map |")
    assert page[start:].partition("\n\n")[0].splitlines()[2:] == expected


MEASURED = {
    "attention": {
        "float32": {"cpu": {"128 tokens": 0.5, "512 tokens": 0.8}, "torch": {"128 tokens": 1.0, "512 tokens": 1.0}},
        "bfloat16": {"cpu": {"128 tokens": 1.5}, "torch": {"128 tokens": 1.0}},
    },
    "linear": {"float32": {"onednn": {"384 to 384": 1.25}, "torch": {"384 to 384": 1.0}}},
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on: Callable[[processor.Processor], None]) -> Iterator[Path]:
    """Where the profile of this process, on a Zen 4, is; nothing is there yet."""
    on(dataclasses.replace(GENOA, name="Zen 4"))
    monkeypatch.setenv("UWAGA_PROFILE", "1")
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    forget()
    yield tmp_path / "data" / "engines.json"
    forget()


@pytest.fixture
def torch_first(path: Path) -> None:
    """A profile that prefers PyTorch's kernels for every dtype."""
    ratios = {"cpu": {"128 tokens": 0.5}, "onednn": {"128 tokens": 0.6}, "torch": {"128 tokens": 1.0}}
    measured = {
        operation: {dtype: {engine: ratios[engine] for engine in engines} for dtype in DTYPES}
        for operation, engines in engine_profile.ENGINES.items()
    }
    write(path, measured, threads=2)


# Calls of attention.


def _operands(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, 9, 8, generator=generator).to(dtype) for _ in range(3)]


@needs_native
@pytest.mark.usefixtures("torch_first")
def test_a_profile_decides_dense_calls_alone() -> None:
    query, key, value = _operands()
    for options in ({"mask": Causal()}, {"bias": torch.zeros(9, 9)}, {"dropout": 0.1}, {"softcap": 2.0}):
        assert explain(query, key, value, **options)[:2] == ("cpu", "native kernels on the CPU")
    assert explain(query, key[:, :1], value[:, :1]).engine == "cpu"
    assert explain(query, key, value[..., :5]).engine == "cpu"
    assert explain(query.requires_grad_(), key, value).engine == "cpu"
    with torch.no_grad():
        chosen = explain(query, key, value)
    keeps = 'a row may have other bits in another batch: impl="cpu" keeps them, and UWAGA_PROFILE=0 in all calls'
    assert chosen.engine == "torch"
    assert chosen.reason.endswith(keeps)
    rows = [Ragged(x[0].transpose(0, 1), torch.tensor([0, 4, 9])) for x in _operands()]
    assert explain(*rows).engine == "cpu"


@needs_native
@pytest.mark.usefixtures("torch_first")
def test_calls_that_a_profile_gives_to_pytorch_run_there() -> None:
    """The engines' outputs differ in their last bits, so that equal bits show the same engine."""
    operands = query, key, value = _operands()
    for _ in range(2):  # the first call of its kind takes the general path
        assert torch.equal(attention(*operands), attention(*operands, impl="torch"))
    assert torch.equal(attention_and_lse(*operands).output, attention(*operands, impl="cpu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention(*operands), attention(*operands, impl="torch"))
    assert torch.equal(attention(query, key[:, :, :0], value[:, :, :0]), torch.zeros(2, 3, 9, 8))


@pytest.mark.parametrize("mask", [None, Causal(), Window(5, 0), KeyLengths(torch.tensor([3]))], ids=str)
def test_a_matrix_is_made_for_sdpa_where_explain_says_so(mask: Mask | None) -> None:
    x = torch.randn(1, 1, 99, 8)
    with Largest() as seen:
        attention(x, x, x, impl="torch", mask=mask)
    is_made = "matrix" in explain(x, x, x, impl="torch", mask=mask).reason
    assert is_made == (seen.bytes >= 99 * 99)


# The engine profile: what is written is read back, what does not apply is refused, and the choice obeys what applies.


def test_what_was_written_is_read_back(path: Path) -> None:
    orders = write(path, MEASURED, threads=2)
    assert orders == {
        "attention": {"float32": ("torch", "cpu"), "bfloat16": ("cpu", "torch")},
        "linear": {"float32": ("onednn", "torch")},
    }
    profile = read(path)
    assert profile is not None
    assert (profile.path, profile.orders) == (path, orders)
    table = json.loads(path.read_text())
    assert table["date"] == profile.date
    assert table["threads"] == 2
    assert table["attention"]["float32"]["ratios"] == MEASURED["attention"]["float32"]
    path.write_text(json.dumps(table | {"date": "\u001b[2J today"}))
    assert read(path).date == "'\\x1b[2J today'"


def test_the_choice_reads_it_once_and_names_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_profile.active().why == "not measured on this machine; `uwaga bench --save` measures"
    write(path, MEASURED, threads=2)
    engine_table.preference.cache_clear()
    profile = engine_profile.active().profile
    assert profile is not None
    why = f"measured on this machine on {profile.date} ({path})"
    assert engine_table.preference("attention", torch.float32) == (("torch", "cpu"), why, True)
    # Engines and dtypes that the file does not have come as in the table.
    assert engine_table.preference("linear", torch.float32) == (("onednn", "torch", "cpu"), why, True)
    assert engine_table.preference("linear", torch.bfloat16).why != why
    path.unlink()
    assert engine_table.preference("attention", torch.float32).why == why
    monkeypatch.setenv("UWAGA_PROFILE", "0")
    forget()
    assert engine_profile.active() == (None, "UWAGA_PROFILE is 0", False)


def test_one_that_does_not_apply_warns_once_and_the_table_serves(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("[]")
    why = f"{path}: the file must be an object, not []"
    with pytest.warns(UserWarning, match="the file must be an object") as caught:
        orders = engine_table.engines("attention", torch.float32), engine_table.engines("linear", torch.float32)
    assert (orders[0], orders[1][0]) == (("cpu", "torch"), "cpu")
    (warning,) = caught
    assert str(warning.message) == (
        f"{why}. It is not used; `uwaga bench --save` replaces it, UWAGA_PROFILE=0 ignores it"
    )
    assert engine_profile.active() == (None, why, True)


@pytest.mark.parametrize(
    ("name", "value"), [("processor", {"vendor": "AMD"}), ("level", "vax"), ("versions", {"torch": "1.0"})]
)
def test_a_profile_of_another_machine_is_refused(path: Path, name: str, value: object) -> None:
    write(path, MEASURED, threads=2)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ProfileError) as error:
        read(path)
    assert f"{path}: was measured with {name} {json.dumps(value)}, and this is " in str(error.value)
