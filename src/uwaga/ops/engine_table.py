"""The order of engines for dense work on the CPU, by processor: what was measured where, and what is assumed.

Dense attention is softmax attention in which every query sees every key, without biases: PyTorch's kernel computes
nothing in vain, and which is faster depends on the processor. So it does for the linear map x W^T + b. All other calls of
attention do not come here: PyTorch would compute what a mask hides, or pad a ragged batch.

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


class Rule(NamedTuple):
    """An order of engines, and the report or log entry that shows it; None: it is assumed."""

    engines: tuple[str, ...]
    source: str | None = None


class Row(NamedTuple):
    """The rules of one kind of processor, by dtype."""

    name: str
    matches: Callable[[Processor], bool]
    attention: Mapping[str, Rule]
    linear: Mapping[str, Rule]


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
_HALF = ("bfloat16", "float16")


def _all(*engines: str) -> dict[str, Rule]:
    """The same order for every dtype, assumed."""
    return dict.fromkeys(engine_profile.DTYPES, Rule(engines))


def _is_amd(here: Processor) -> bool:
    return here.vendor in ("AMD", "Hygon")


def _has_amx(here: Processor) -> bool:
    return {"amx_tile", "amx_bf16"} <= here.flags


def _is_zen_5(here: Processor) -> bool:
    # Family 26 is Zen 5 and Zen 6; the models as in Linux's arch/x86/kernel/cpu/amd.c.
    return here.vendor == "AMD" and here.family == 26 and here.model < 0x80 and not 0x50 <= here.model < 0x60


# The first row that matches applies.
ROWS: tuple[Row, ...] = (
    Row(
        "AMD Zen 3 (AVX2)",
        lambda here: here.vendor == "AMD" and here.family == 25 and "avx512f" not in here.flags,
        attention=_all("cpu", "torch") | dict.fromkeys(("float32", "bfloat16"), Rule(("cpu", "torch"), _AVX2)),
        linear=_all("cpu", "torch", "onednn"),
    ),
    Row(
        "AMD Zen 4 (AVX-512 with bf16)",
        lambda here: here.vendor == "AMD" and here.family == 25,
        attention=dict.fromkeys(engine_profile.DTYPES, Rule(("cpu", "torch"), _ZEN_4)),
        linear=dict.fromkeys(engine_profile.DTYPES, Rule(("cpu", "onednn", "torch"), _LOG)),
    ),
    Row(
        "AMD Zen 5 (AVX-512 with bf16)",
        _is_zen_5,
        attention=_all("cpu", "torch") | dict.fromkeys(("float32", "bfloat16"), Rule(("cpu", "torch"), _LOG)),
        linear=_all("cpu", "onednn", "torch"),
    ),
    # Older and newer ones, taken for the nearest that was measured.
    Row(
        "AMD processors with AVX-512 that were not measured",
        lambda here: _is_amd(here) and "avx512f" in here.flags,
        attention=_all("cpu", "torch"),
        linear=_all("cpu", "onednn", "torch"),
    ),
    Row(
        "AMD processors with AVX2 that were not measured",
        lambda here: _is_amd(here) and "avx2" in here.flags,
        attention=_all("cpu", "torch"),
        linear=_all("cpu", "torch", "onednn"),
    ),
    # AMX multiplies tiles of bfloat16 at several times the speed of AVX-512, and PyTorch's kernels use it; MKL is tuned for Intel.
    Row(
        "Intel processors with AMX",
        lambda here: here.vendor == "Intel" and _has_amx(here),
        attention=_all("cpu", "torch") | dict.fromkeys(_HALF, Rule(("torch", "cpu"))),
        linear=_all("torch", "onednn", "cpu"),
    ),
    # PyTorch multiplies float16 by conversion here.
    Row(
        "Intel processors with AVX2 or AVX-512, without AMX",
        lambda here: here.vendor == "Intel" and "avx2" in here.flags,
        attention=_all("cpu", "torch"),
        linear=_all("torch", "cpu", "onednn") | {"float16": Rule(("cpu", "torch", "onednn"))},
    ),
    # Matrix units that only Apple's own library reaches.
    Row(
        "Apple processors",
        lambda here: here.architecture == "arm" and here.vendor == "Apple",
        attention=_all("torch", "cpu"),
        linear=_all("torch", "onednn", "cpu"),
    ),
    Row(
        "ARM processors",
        lambda here: here.architecture == "arm",
        attention=_all("torch", "cpu"),
        linear=_all("torch", "onednn", "cpu"),
    ),
    Row(
        "processors that are not known here",
        lambda here: True,
        attention=_all("torch", "cpu"),
        linear=_all("torch", "onednn", "cpu"),
    ),
)


def row(here: Processor | None = None) -> Row:
    """The row of a processor; None: of this machine's.

    >>> row(Processor(architecture="arm", vendor="Apple")).name
    'Apple processors'
    """
    here = processor.detect() if here is None else here
    return next(each for each in ROWS if each.matches(here))


def dense_attention(dtype: torch.dtype) -> Preference:
    """The order of the engines "cpu" and "torch" for dense attention on this machine's CPU."""
    return _preference("attention", dtype)


def linear(dtype: torch.dtype) -> Preference:
    """The order of the engines "cpu", "onednn" and "torch" for the linear map on this machine's CPU."""
    return _preference("linear", dtype)


def dense_attention_engines(dtype: torch.dtype) -> tuple[str, ...]:
    """`dense_attention(dtype).engines`, a constant for torch.compile."""
    return _preference("attention", dtype).engines


def linear_engines(dtype: torch.dtype) -> tuple[str, ...]:
    """`linear(dtype).engines`, a constant for torch.compile."""
    return _preference("linear", dtype).engines


# As torch.compiler.assume_constant_result (see ops/attention/choose.py): torch.compile does not trace into the reading of a file.
for _function in (dense_attention_engines, linear_engines):
    vars(_function)["_dynamo_marked_constant"] = True


@functools.cache
def _preference(operation: str, dtype: torch.dtype) -> Preference:
    name = str(dtype).removeprefix("torch.")
    if name not in engine_profile.DTYPES:
        return Preference(("torch",), f"no other engine computes in {name}", True)
    profile = engine_profile.active().profile
    here = row()
    rules = here.attention if operation == "attention" else here.linear
    engines, source = rules[name]
    if profile is not None and name in profile.orders[operation]:
        first = profile.orders[operation][name]
        rest = tuple(engine for engine in engines if engine not in first)
        return Preference((*first, *rest), f"measured on this machine on {profile.date} ({profile.path})", True)
    if source is not None:
        return Preference(engines, f"measured on {here.name}: {source}", True)
    return Preference(
        engines, f"assumed for {here.name}, not measured: `uwaga bench --save` measures it", is_measured=False
    )
