"""The processor of this machine, as the operating system describes it: vendor, family, model, instruction sets.

What the native kernels can use is asked of the processor itself (`native.supported_levels`). This module is for choices that
depend on the processor's design: how fast PyTorch's own kernels are on it.
"""

import functools
import platform
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon"}
# "CPU implementer" of /proc/cpuinfo: the field Implementer of ARM's register MIDR_EL1.
_ARM_VENDORS = {
    0x41: "Arm",
    0x46: "Fujitsu",
    0x48: "HiSilicon",
    0x4E: "NVIDIA",
    0x51: "Qualcomm",
    0x61: "Apple",
    0x6D: "Microsoft",
    0xC0: "Ampere",
}
_X86 = {"x86_64", "amd64", "i386", "i686"}
_ARM = {"aarch64", "arm64", "armv7l", "armv8l"}
_SYSCTL = ("vendor", "family", "model", "brand_string", "features", "leaf7_features")
_CPUINFO_BYTES = 2**16  # of the first processor; each has less than 4 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One processor of this machine; on a machine with several kinds of cores, the first.

    Attributes:
        architecture: "x86", "arm", or what platform.machine() says.
        vendor: "AMD", "Intel", "Apple", "Arm" ...; empty where the system does not say.
        family, model: of x86 as the vendor counts them; of ARM 0 and the part number.
        name: the model name for people; empty where the system has none.
        flags: instruction sets, named as in Linux's /proc/cpuinfo; empty where the system does not list them.
    """

    architecture: str
    vendor: str = ""
    family: int = 0
    model: int = 0
    name: str = ""
    flags: frozenset[str] = frozenset()


@functools.cache
def detect() -> Processor:
    """The processor of this machine; read once."""
    system, machine = platform.system(), platform.machine()
    if system == "Linux":
        return from_cpuinfo(_first_processor(), machine)
    if system == "Darwin":
        return from_sysctl({name: _sysctl(f"machdep.cpu.{name}") for name in _SYSCTL}, machine)
    return from_identifier(platform.processor(), machine)


def from_cpuinfo(text: str, machine: str) -> Processor:
    """From Linux's /proc/cpuinfo.

    Args:
        text: the lines of the first processor, or of all.
        machine: platform.machine().
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    if _architecture(machine) != "arm":
        return Processor(
            architecture=_architecture(machine),
            vendor=_vendor(fields.get("vendor_id", "")),
            family=_number(fields.get("cpu family", "")),
            model=_number(fields.get("model", "")),
            name=fields.get("model name", ""),
            flags=frozenset(fields.get("flags", "").split()),
        )
    vendor, part = _ARM_VENDORS.get(_number(fields.get("CPU implementer", "")), ""), fields.get("CPU part", "")
    return Processor(
        architecture="arm",
        vendor=vendor,
        model=_number(part),
        name=fields.get("model name", "") or (f"{vendor or 'ARM'} part {part}" if part else ""),
        flags=frozenset(fields.get("Features", "").split()),
    )


def from_sysctl(values: Mapping[str, str], machine: str) -> Processor:
    """From macOS's sysctl.

    Args:
        values: those of machdep.cpu by their last names; empty where this machine has no such value.
        machine: platform.machine().
    """
    name, architecture = values.get("brand_string", ""), _architecture(machine)
    if architecture == "arm":
        return Processor(architecture="arm", vendor="Apple", name=name)
    return Processor(
        architecture=architecture,
        vendor=_vendor(values.get("vendor", "")),
        family=_number(values.get("family", "")),
        model=_number(values.get("model", "")),
        name=name,
        # Linux writes avx2, avx512f; sysctl AVX2, AVX512F.
        flags=frozenset(f"{values.get('features', '')} {values.get('leaf7_features', '')}".lower().split()),
    )


def from_identifier(identifier: str, machine: str) -> Processor:
    """From platform.processor(), which has no flags: on Windows "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD"."""
    match = re.search(r"Family (\d{1,4}) Model (\d{1,4})", identifier)
    return Processor(
        architecture=_architecture(machine),
        vendor=_vendor(identifier.rpartition(", ")[2]),
        family=int(match[1]) if match else 0,
        model=int(match[2]) if match else 0,
        name=identifier,
    )


def _architecture(machine: str) -> str:
    if machine.lower() in _X86:
        return "x86"
    return "arm" if machine.lower() in _ARM else machine


def _vendor(name: str) -> str:
    return _VENDORS.get(name, name)


def _number(text: str) -> int:
    """A decimal or hexadecimal number; 0 where it is none."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _first_processor() -> str:
    """The lines of /proc/cpuinfo up to the first empty one: Linux spends milliseconds on those of hundreds of processors."""
    lines: list[str] = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            while (line := file.readline(_CPUINFO_BYTES)).strip():
                lines.append(line)
    except OSError:  # /proc is not mounted
        return ""
    return "".join(lines)


def _sysctl(name: str) -> str:
    try:
        return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
