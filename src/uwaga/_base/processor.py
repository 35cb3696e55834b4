"""The processor of this machine, as the operating system describes it: vendor, family, model, instruction sets.

What the native kernels can use is asked of the processor itself (`native.supported_levels`). This module is for choices that
depend on the processor's design: which bits PyTorch's own kernels give on it, and where kernels were measured.
"""

import functools
import platform
import re
from dataclasses import dataclass

_VENDORS = {"AuthenticAMD": "AMD", "GenuineIntel": "Intel", "HygonGenuine": "Hygon"}
_CPUINFO_BYTES = 2**16  # of the first processor; each has less than 4 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """One processor of this machine; on a machine with several kinds of cores, the first.

    Attributes:
        vendor: of an x86 processor, "AMD", "Intel" ...; empty on other processors.
        family, model: as the vendor counts them; 0 on other processors.
        name: the model name for people; empty if the system has none.
        flags: instruction sets, named as in Linux's /proc/cpuinfo; empty if the system does not list them, and on other processors.
    """

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
    if platform.system() == "Linux":
        return from_cpuinfo(_first_processor())
    return from_identifier(platform.processor())


def from_cpuinfo(text: str) -> Processor:
    """Read Linux's /proc/cpuinfo, the lines of the first processor or of all."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return Processor(
        vendor=_vendor(fields.get("vendor_id", "")),
        family=_number(fields.get("cpu family", "")),
        model=_number(fields.get("model", "")),
        name=fields.get("model name", ""),
        flags=frozenset(fields.get("flags", "").split()),
    )


def from_identifier(identifier: str) -> Processor:
    """Read platform.processor(), which has no flags: on Windows "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD"."""
    match = re.search(r"Family (\d{1,4}) Model (\d{1,4})", identifier)
    return Processor(
        vendor=_vendor(identifier.rpartition(", ")[2]) if match else "",
        family=int(match[1]) if match else 0,
        model=int(match[2]) if match else 0,
        name=identifier,
    )


def _vendor(name: str) -> str:
    return _VENDORS.get(name, name)


def _number(text: str) -> int:
    """Return a decimal number, 0 for any other text."""
    try:
        return int(text)
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
