"""The order of engines for dense work on the CPU, by processor: what was measured where, and what is assumed.

Dense attention is softmax attention in which every query sees every key, without biases: PyTorch's kernel computes
nothing in vain, and which is faster depends on the processor. So it does for the linear map x W^T + b. All other calls of
attention do not come here: PyTorch would compute what a mask hides, or pad a ragged batch.

The native kernels come first, also where nothing was measured: a row has the same bits alone and in any batch by them alone. MKL
and oneDNN choose a kernel by the number of rows on some processors (`has_batch_invariant_rows` in ops/linear/choose.py), and other
libraries may. So on a processor that was never measured the promise is kept, and the speed is unknown: Apple's own library reaches
matrix units that the native kernels do not, and below AVX2 these are scalar; `uwaga bench --save` measures it there. The one
exception is bfloat16 on Intel's processors with AMX. Both PyTorch's libraries and the native kernels (level amx) multiply tiles
there, and the speed of the native ones is not measured yet. PyTorch's kernels come first, and `explain` and `uwaga doctor` say what that costs.

The order is a function of processor and dtype, so that two runs have the same bits. It is no function of the number of rows: a
token's result must not depend on how many others are in its batch. An engine profile of this machine (`engine_profile`)
comes before this table.

To add a processor, run `uwaga bench --save` on it, and add a row with the file's orders and the report that shows them.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from uwaga._base import processor
from uwaga._base.processor import Processor
from uwaga.ops import engine_profile


class EnginePreference(NamedTuple):
    """An order of engines, and the report or log entry that shows it; None: it is assumed."""

    engines: tuple[str, ...]
    source: str | None = None


class Preference(NamedTuple):
    """An order of engines, and the reason for it.

    Attributes:
        engines: by name, the preferred one first.
        why: "measured on ...", "assumed for ..., not measured: ...", or which profile.
        is_measured: whether it was measured, on this kind of processor or on this machine.
    """

    engines: tuple[str, ...]
    why: str
    is_measured: bool


_LOG = "docs/log.md"
_AVX2 = "benchmarks/results/2026-11-22-avx2.md"
_ZEN_4 = "benchmarks/results/2026-11-22-zen4-engines.md"
Rules = Mapping[str, EnginePreference]  # by dtype


def _all(*engines: str, source: str | None = None) -> Rules:
    """The same order for every dtype."""
    return dict.fromkeys(engine_profile.DTYPES, EnginePreference(engines, source))


_ATTENTION, _LINEAR, _ONEDNN = _all("cpu", "torch"), _all("cpu", "torch", "onednn"), _all("cpu", "onednn", "torch")


def _measured(source: str) -> Rules:
    """The order of attention, measured but for float16."""
    return {**_all("cpu", "torch", source=source), "float16": EnginePreference(("cpu", "torch"))}


class ProcessorEntry(NamedTuple):
    """The rules of one kind of processor."""

    name: str
    matches: Callable[[Processor], bool]
    attention: Rules = _ATTENTION
    linear: Rules = _LINEAR


# The first row that matches applies.
ROWS: tuple[ProcessorEntry, ...] = (
    ProcessorEntry(
        "AMD Zen 3 (AVX2)",
        lambda here: here.vendor == "AMD" and here.family == 25 and "avx512f" not in here.flags,
        attention=_measured(_AVX2),
    ),
    ProcessorEntry(
        "AMD Zen 4 (AVX-512 with bf16)",
        lambda here: here.vendor == "AMD" and here.family == 25,
        attention=_all("cpu", "torch", source=_ZEN_4),
        linear=_all("cpu", "onednn", "torch", source=_LOG),
    ),
    ProcessorEntry(
        "AMD Zen 5 (AVX-512 with bf16)",
        # Family 26 is Zen 5 and Zen 6; the models as in Linux's arch/x86/kernel/cpu/amd.c.
        lambda here: here.vendor == "AMD" and here.family == 26 and here.model < 0x80 and not 0x50 <= here.model < 0x60,
        attention=_measured(_LOG),
        linear=_ONEDNN,
    ),
    # Older and newer ones, taken for the nearest that was measured.
    ProcessorEntry(
        "AMD processors with AVX-512 that were not measured",
        lambda here: here.vendor in ("AMD", "Hygon") and "avx512f" in here.flags,
        linear=_ONEDNN,
    ),
    ProcessorEntry(
        "AMD processors with AVX2 that were not measured",
        lambda here: here.vendor in ("AMD", "Hygon") and "avx2" in here.flags,
    ),
    # MKL is tuned for Intel: where the native library is missing, PyTorch's linear map comes before oneDNN's.
    ProcessorEntry(
        "Intel processors with AMX",
        lambda here: here.vendor == "Intel" and {"amx_tile", "amx_bf16"} <= here.flags,
        # In bfloat16 PyTorch was faster than the level avx512_bf16. The speed of the level amx is not measured yet.
        attention={**_ATTENTION, "bfloat16": EnginePreference(("torch", "cpu"))},
        linear={
            **_LINEAR,
            "float32": EnginePreference(("cpu", "torch", "onednn"), _LOG),
            "bfloat16": EnginePreference(("torch", "onednn", "cpu")),
        },
    ),
    ProcessorEntry(
        "Intel processors with AVX2 or AVX-512, without AMX",
        lambda here: here.vendor == "Intel" and "avx2" in here.flags,
    ),
    ProcessorEntry("Apple processors", lambda here: here.architecture == "arm" and here.vendor == "Apple"),
    ProcessorEntry("ARM processors", lambda here: here.architecture == "arm"),
    ProcessorEntry("processors that are not known here", lambda here: True),
)


def row(here: Processor | None = None) -> ProcessorEntry:
    """The row of a processor; None: of this machine's.

    >>> row(Processor(architecture="arm", vendor="Apple")).name
    'Apple processors'
    """
    here = processor.detect() if here is None else here
    return next(each for each in ROWS if each.matches(here))


def engines(operation: str, dtype: torch.dtype) -> tuple[str, ...]:
    """The engines of `preference`, a constant for torch.compile."""
    return preference(operation, dtype).engines


# As torch.compiler.assume_constant_result (see ops/attention/choose.py): torch.compile does not trace into the reading of a file.
vars(engines)["_dynamo_marked_constant"] = True


def other_bits(keeps: str | None) -> str:
    """What `explain` adds to the reason where another engine than the native kernels serves a call on the CPU, to be appended.

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


def native_attention(dtype: torch.dtype) -> str:
    """What makes the native kernels serve dense attention, where the table prefers another engine: for `other_bits`."""
    name, profile = str(dtype).removeprefix("torch."), engine_profile.active().profile
    if profile is not None and name in profile.orders["attention"] and row().attention[name].engines[0] == "cpu":
        return 'impl="cpu" keeps them, and UWAGA_PROFILE=0 in all calls'
    return 'impl="cpu" keeps them, and "cpu" first in the engine profile of `uwaga bench --save` in all calls'


@functools.cache
def preference(operation: str, dtype: torch.dtype) -> Preference:
    """The order of the engines for "attention" that is dense ("cpu" and "torch"), or for "linear", the linear map, on this machine's CPU."""
    name, here = str(dtype).removeprefix("torch."), row()
    if name not in engine_profile.DTYPES:
        return Preference(("torch",), f"no other engine computes in {name}", True)
    profile = engine_profile.active().profile
    rules = here.attention if operation == "attention" else here.linear
    order, source = rules[name]
    if profile is not None and name in profile.orders[operation]:
        first = profile.orders[operation][name]
        rest = tuple(engine for engine in order if engine not in first)
        return Preference((*first, *rest), f"measured on this machine on {profile.date} ({profile.path})", True)
    if source is not None:
        return Preference(order, f"measured on {here.name}: {source}", True)
    return Preference(
        order, f"assumed for {here.name}, not measured: `uwaga bench --save` measures it", is_measured=False
    )
