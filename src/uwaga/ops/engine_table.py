"""Processors: where the native kernels were measured in dense attention and the linear map x W^T + b, and where their speed is assumed.

The native kernels come first on every processor, because only they give a row the same bits alone and in any batch. MKL and oneDNN
choose a kernel by the number of rows on some processors (`has_batch_invariant_rows` in ops/linear/choose.py), and other libraries may.
On a processor that was never measured the speed is unknown: Apple's own library reaches matrix units that the native kernels do not,
and below AVX2 these are scalar. benchmarks/engines.py measures it.

To add a processor, run benchmarks/engines.py on it, and add a row with the report that shows the figures.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from uwaga._base import processor
from uwaga._base.processor import Processor

DTYPES = ("float32", "bfloat16", "float16")
Reports = Mapping[str, str]  # dtype -> the report or log entry with the figures

_LOG = "docs/log.md"
_ZEN_3 = "benchmarks/results/2026-11-22-avx2.md"
_ZEN_4 = "benchmarks/results/2026-11-22-zen4-engines.md"
_AMX = "benchmarks/results/2026-11-30-intel-amx.md"


class ProcessorEntry(NamedTuple):
    """One kind of processor, and what was measured on it.

    Attributes:
        attention, linear: the reports by dtype; a dtype without a report was not measured.
    """

    name: str
    matches: Callable[[Processor], bool]
    attention: Reports = MappingProxyType({})
    linear: Reports = MappingProxyType({})


# The first row that matches applies.
ROWS: tuple[ProcessorEntry, ...] = (
    ProcessorEntry(
        "AMD Zen 3 (AVX2)",
        lambda here: here.vendor == "AMD" and here.family == 25 and "avx512f" not in here.flags,
        attention=dict.fromkeys(("float32", "bfloat16"), _ZEN_3),
    ),
    ProcessorEntry(
        "AMD Zen 4 (AVX-512 with bf16)",
        lambda here: here.vendor == "AMD" and here.family == 25,
        attention=dict.fromkeys(DTYPES, _ZEN_4),
        linear=dict.fromkeys(DTYPES, _LOG),
    ),
    ProcessorEntry(
        "AMD Zen 5 (AVX-512 with bf16)",
        # Family 26 is Zen 5 and Zen 6; the models as in Linux's arch/x86/kernel/cpu/amd.c.
        lambda here: here.vendor == "AMD" and here.family == 26 and here.model < 0x80 and not 0x50 <= here.model < 0x60,
        attention=dict.fromkeys(("float32", "bfloat16"), _LOG),
    ),
    ProcessorEntry(
        "Intel processors with AMX",
        lambda here: here.vendor == "Intel" and {"amx_tile", "amx_bf16"} <= here.flags,
        attention=dict.fromkeys(DTYPES, _AMX),
        linear=dict.fromkeys(DTYPES, _AMX),
    ),
    ProcessorEntry("other processors", lambda here: True),
)


def row(here: Processor | None = None) -> ProcessorEntry:
    """Return the row of a processor; None: of this machine's.

    >>> row(Processor(vendor="VIA")).name
    'other processors'
    """
    here = processor.detect() if here is None else here
    return next(entry for entry in ROWS if entry.matches(here))


def other_bits(keeps: str | None) -> str:
    """Return what `explain` adds to the reason if another engine than the native kernels serves a call on the CPU.

    keeps: what makes the native kernels serve it; None: they cannot.

    >>> other_bits("UWAGA_LINEAR=cpu keeps them")
    '; a row may have other bits in another batch: UWAGA_LINEAR=cpu keeps them'
    """
    note = "; a row may have other bits in another batch"
    return (
        f"{note}, and the native kernels, which keep them, cannot serve this call"
        if keeps is None
        else f"{note}: {keeps}"
    )


def evidence(operation: str, dtype: str) -> str:
    """Return what is known of the native kernels' speed in "attention" or "linear" on this machine."""
    here = row()
    report = (here.attention if operation == "attention" else here.linear).get(dtype)
    if report is not None:
        return f"measured on {here.name}: {report}"
    return f"assumed for {here.name}, not measured: benchmarks/engines.py measures it"
