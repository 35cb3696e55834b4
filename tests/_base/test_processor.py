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
GRAVITON_3 = """\
processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd bf16 i8mm sve
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
"""
RASPBERRY_PI = """\
processor\t: 0
model name\t: ARMv7 Processor rev 3 (v7l)
Features\t: half thumb neon vfpv4
CPU implementer\t: 0x41
CPU part\t: 0xd08
"""


def test_linux() -> None:
    assert from_cpuinfo(ZEN_4, "x86") == Processor(
        architecture="x86",
        vendor="AMD",
        family=25,
        model=17,
        name="AMD EPYC 9554 64-Core Processor",
        flags=frozenset({"fpu", "sse2", "avx2", "avx512f", "avx512_bf16"}),
    )
    assert from_cpuinfo(GRAVITON_3, "arm") == Processor(
        architecture="arm",
        vendor="Arm",
        model=0xD40,
        name="Arm part 0xd40",
        flags=frozenset({"fp", "asimd", "bf16", "i8mm", "sve"}),
    )
    assert from_cpuinfo(RASPBERRY_PI, "arm").name == "ARMv7 Processor rev 3 (v7l)"


@pytest.mark.parametrize("text", ["", "\n\n", "vendor_id AuthenticAMD", "cpu family\t: many\nmodel : -\nflags\t:"])
def test_what_is_missing_or_garbled_stays_empty(text: str) -> None:
    assert from_cpuinfo(text, "x86") == Processor(architecture="x86")
    assert from_cpuinfo(text, "arm") == Processor(architecture="arm")


def test_windows() -> None:
    result = from_identifier("AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD", "x86")
    assert (result.architecture, result.vendor, result.family, result.model) == ("x86", "AMD", 25, 33)
    assert result.flags == frozenset()
    assert from_identifier("", "riscv64") == Processor(architecture="riscv64")
