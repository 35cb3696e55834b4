"""The processor of this machine, as the operating system describes it: vendor, family, model, instruction sets.

What the native kernels can use is asked of the processor itself (`native.supported_levels`). This module is for choices that
depend on the processor's design: which bits PyTorch's own kernels give on it, and where kernels were measured.
"""

import functools
import platform
import re
import subprocess
from dataclasses import dataclass

# Machines that PyTorch is built for, by platform.machine() in lower case.
_ARCHITECTURES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}
_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon"}
# "CPU implementer" of /proc/cpuinfo: the field Implementer of ARM's register MIDR_EL1.
_ARM_VENDORS = {
    0x41: "Arm", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x51: "Qualcomm", 0x61: "Apple", 0x6D: "Microsoft", 0xC0: "Ampere"
}  # fmt: skip
_CPUINFO_BYTES = 2**16  # of the first processor; each has less than 4 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One processor of this machine; on a machine with several kinds of cores, the first.

    Attributes:
        architecture: "x86", "arm", or the name that the system has for another one.
        vendor: "AMD", "Intel", "Apple", "Arm" ...; empty if the system does not say.
        family, model: on x86 as the vendor counts them; on ARM 0 and the part number.
        name: the model name for people; empty if the system has none.
        flags: instruction sets, named as in Linux's /proc/cpuinfo; empty if the system does not list them.
    """

    architecture: str
    vendor: str = ""
    family: int = 0
    model: int = 0
    name: str = ""
    flags: frozenset[str] = frozenset()


def model_name() -> str:
    """Return the model name of the processor for people, as the system reports it."""
    return detect().name or platform.processor() or platform.machine()


@functools.cache
def detect() -> Processor:
    """Return the processor of this machine; read once."""
    system, machine = platform.system(), platform.machine().lower()
    architecture = _ARCHITECTURES.get(machine, machine)
    if system == "Linux":
        return from_cpuinfo(_first_processor(), architecture)
    if system == "Darwin":  # PyTorch's builds for macOS run on Apple's processors alone
        return Processor(architecture=architecture, vendor="Apple", name=_brand())
    return from_identifier(platform.processor(), architecture)


def from_cpuinfo(text: str, architecture: str) -> Processor:
    """Read Linux's /proc/cpuinfo, the lines of the first processor or of all."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name", "")
    if architecture != "arm":
        return Processor(
            architecture=architecture,
            vendor=_vendor(fields.get("vendor_id", "")),
            family=_number(fields.get("cpu family", "")),
            model=_number(fields.get("model", "")),
            name=name,
            flags=frozenset(fields.get("flags", "").split()),
        )
    vendor, part = _ARM_VENDORS.get(_number(fields.get("CPU implementer", "")), ""), fields.get("CPU part", "")
    return Processor(
        architecture=architecture,
        vendor=vendor,
        model=_number(part),
        name=name or (f"{vendor or 'ARM'} part {part}" if part else ""),
        flags=frozenset(fields.get("Features", "").split()),
    )


def from_identifier(identifier: str, architecture: str) -> Processor:
    """Read platform.processor(), which has no flags: on Windows "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD"."""
    match = re.search(r"Family (\d{1,4}) Model (\d{1,4})", identifier)
    return Processor(
        architecture=architecture,
        vendor=_vendor(identifier.rpartition(", ")[2]),
        family=int(match[1]) if match else 0,
        model=int(match[2]) if match else 0,
        name=identifier,
    )


def _vendor(name: str) -> str:
    return _VENDORS.get(name, name)


def _number(text: str) -> int:
    """Return a decimal or hexadecimal number, 0 for any other text."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


def _first_processor() -> str:
    """Return the lines of /proc/cpuinfo up to the first empty one: Linux spends milliseconds on those of hundreds of processors."""
    lines: list[str] = []
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            while (line := file.readline(_CPUINFO_BYTES)).strip():
                lines.append(line)
    except OSError:  # /proc is not mounted
        return ""
    return "".join(lines)


def _brand() -> str:
    try:
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
