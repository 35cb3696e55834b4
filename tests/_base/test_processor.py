"""The processor from what each operating system says of it."""

import pytest

from uwaga._base.processor import Processor, from_cpuinfo, from_identifier

ZEN_4 = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9554 64-Core Processor
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16

processor\t: 1
vendor_id\t: AuthenticAMD
model name\t: another
"""


def test_linux() -> None:
    assert from_cpuinfo(ZEN_4) == Processor(
        vendor="AMD",
        family=25,
        model=17,
        name="AMD EPYC 9554 64-Core Processor",
        flags=frozenset({"fpu", "sse2", "avx2", "avx512f", "avx512_bf16"}),
    )


@pytest.mark.parametrize("text", ["", "\n\n", "vendor_id AuthenticAMD", "cpu family\t: many\nmodel : -\nflags\t:"])
def test_what_is_missing_or_garbled_stays_empty(text: str) -> None:
    assert from_cpuinfo(text) == Processor()


def test_windows() -> None:
    result = from_identifier("AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD")
    assert (result.vendor, result.family, result.model) == ("AMD", 25, 33)
    assert result.flags == frozenset()
    assert from_identifier("arm") == Processor(name="arm")
