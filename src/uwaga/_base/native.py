"""Loads the native library, checks its version and struct layouts, and gives access to its functions.

The library is plain C behind ctypes (native/include/uwaga/c_api.h): it is loaded on first use, not on import, and
where it cannot be loaded the reason is stored for `uwaga doctor` and `uwaga.explain`.
"""

import ctypes
import functools
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from uwaga._base import env, native_layout

ABI_VERSION = 8  # UWAGA_ABI_VERSION of c_api.h
STATUS_OK, STATUS_BAD_ARGUMENT, STATUS_OUT_OF_MEMORY = 0, 1, 2
# The functions that take structs, packed as bytes, and return a status, by how many structs they take.
_BY_POINTERS = {
    1: "uwaga_matmul uwaga_activation_backward uwaga_embed uwaga_rotate",
    2: "uwaga_forward uwaga_backward uwaga_linear_forward uwaga_norm_forward uwaga_norm_backward",
    3: "uwaga_forward_part uwaga_backward_part uwaga_diagonal_sums uwaga_diagonal_sums_part uwaga_pool",
    4: "uwaga_rows uwaga_rows_part uwaga_received uwaga_pool_part",
    5: "uwaga_weights uwaga_received_part",
}


class NativeUnavailable(RuntimeError):
    """The native library cannot be used here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    path: Path
    functions: ctypes.CDLL
    shares_threads: bool  # with PyTorch
    why_threads: str  # why it does or does not


def default_path() -> Path:
    """Return where the build puts the library: inside the package, in one of the folders that it is made of.

    An editable installation has two, the sources and one among the installed packages for what was built.
    """
    suffix = {"darwin": "dylib", "win32": "dll"}.get(sys.platform, "so")
    paths = [Path(folder) / "_native" / f"libuwaga_native.{suffix}" for folder in sys.modules["uwaga"].__path__]
    return next((path for path in paths if path.is_file()), paths[0])


@functools.cache
def load() -> Library | str:
    """Return the loaded library, or a text that says why it cannot be used."""
    path, level = env.library(), env.level()
    path = path or default_path()
    if not path.is_file():
        return f"there is no native library at {path}"
    if (missing := _missing_bytes(path)) is not None:
        return f"the native library at {path} is incomplete, {missing}: install the package again"
    try:
        functions = ctypes.CDLL(str(path))
        _declare(functions)
    except (OSError, AttributeError) as error:
        return f"the native library at {path} cannot be loaded: {error}"
    if (result := functions.uwaga_abi_version()) != ABI_VERSION:
        return f"the native library at {path} has interface {result}, and this package needs {ABI_VERSION}"
    if (name := _misplaced_struct(functions)) is not None:
        return f"the native library at {path} has another layout of struct {name} than this package"
    if level is not None and functions.uwaga_set_level(level.encode()) != STATUS_OK:
        return (
            f"UWAGA_LEVEL is {level!r}, and this machine can run {', '.join(_levels(functions, supported_only=True))}"
        )
    shares_threads, why = _share_thread_pool(functions)
    return Library(path=path, functions=functions, shares_threads=shares_threads, why_threads=why)


def _missing_bytes(path: Path) -> str | None:
    """Return a text with the size of an incomplete ELF file and the size that its headers need; None for other files.

    The loader would map pages that an incomplete file does not have, and SIGBUS would end the process."""
    # Elf64_Ehdr: e_phoff, e_shoff, e_phentsize, e_phnum, e_shentsize, e_shnum after the magic, class and byte order
    header, programs = struct.Struct("<4s2B26xQQ6x4H2x"), struct.Struct("<8xQ16xQ16x")  # Elf64_Phdr: p_offset, p_filesz
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = file.read(header.size)
            if not head.startswith(b"\x7fELF\x02\x01"):
                return None
            *_, program_at, section_at, program_size, count, section_size, sections = header.unpack(
                head.ljust(64, b"\0")
            )
            file.seek(program_at)
            table = file.read(programs.size * count)
    except OSError:
        return None  # the loader says why
    ends = [header.size, program_at + program_size * count, section_at + section_size * sections]
    if len(table) == programs.size * count:
        ends += [start + length for start, length in programs.iter_unpack(table)]
    return f"with {size:,} bytes in place of at least {max(ends):,}" if max(ends) > size else None


def _declare(functions: ctypes.CDLL) -> None:
    pointer, text, int64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64
    for count, names in _BY_POINTERS.items():
        for name in names.split():
            getattr(functions, name).argtypes = (pointer,) * count  # the result is an int
    signatures = {
        "uwaga_mass": (ctypes.c_int, (pointer, pointer, pointer, int64, pointer)),
        "uwaga_mass_part": (ctypes.c_int, (pointer, pointer, pointer, int64, pointer, pointer)),
        "uwaga_last_error": (text, ()),
        "uwaga_abi_version": (ctypes.c_int, ()),
        "uwaga_struct_layout": (ctypes.POINTER(int64), (text,)),
        "uwaga_level_name": (text, (ctypes.c_int,)),
        "uwaga_level_supported": (ctypes.c_int, (ctypes.c_int,)),
        "uwaga_level": (text, ()),
        "uwaga_set_level": (ctypes.c_int, (text,)),
        "uwaga_set_gomp_parallel": (None, (pointer,)),
        "uwaga_measure_peak": (ctypes.c_double, (ctypes.c_int, ctypes.c_double)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments


def _misplaced_struct(functions: ctypes.CDLL) -> str | None:
    """Return the name of a struct whose layout in the library differs from native_layout (padding, pointer size), or None."""
    for name in native_layout.STRUCTS:
        ours = native_layout.layout(name)
        theirs = functions.uwaga_struct_layout(name.encode())
        if not theirs or theirs[: len(ours) + 1] != [*ours, -1]:
            return name
    return None


def _share_thread_pool(functions: ctypes.CDLL) -> tuple[bool, str]:
    """Pass the library the GOMP_parallel that PyTorch is bound to. Return whether both run on one thread pool, and why.

    Looked up through libtorch_cpu's handle: the lookup follows that library's own dependencies, so it finds
    the OpenMP that PyTorch uses, whatever the name of its file, and no second copy.
    """
    import torch

    folder = Path(torch.__file__).parent / "lib"
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    if sys.platform == "win32" or not (folder / name).is_file():
        return False, f"PyTorch has no {name} to look in"
    try:
        symbol = ctypes.CDLL(str(folder / name)).GOMP_parallel
    except (OSError, AttributeError):
        return False, "PyTorch's OpenMP offers no GOMP_parallel"
    functions.uwaga_set_gomp_parallel(ctypes.cast(symbol, ctypes.c_void_p))
    return True, "GOMP_parallel of PyTorch's OpenMP"


def library() -> Library:
    """Return the loaded library. Raises NativeUnavailable."""
    loaded = load()
    if isinstance(loaded, str):
        raise NativeUnavailable(loaded)
    return loaded


def reason_unavailable() -> str | None:
    """Return why the native library cannot be used, or None if it can."""
    loaded = load()
    return loaded if isinstance(loaded, str) else None


def check(status: int) -> None:
    """Raise the exception of a status other than OK: MemoryError or ValueError, with the library's message."""
    if status == STATUS_OK:
        return
    message = library().functions.uwaga_last_error().decode()
    if status == STATUS_OUT_OF_MEMORY:
        raise MemoryError(f"uwaga native library: {message}")
    raise ValueError(f"uwaga native library: {message}")


def threads() -> int:
    """Return how many threads a call uses: UWAGA_THREADS, else PyTorch's own number."""
    fixed = _fixed_threads()
    if fixed is not None:
        return fixed
    import torch

    return torch.get_num_threads()


@functools.cache
def _fixed_threads() -> int | None:
    return env.threads()


def _levels(functions: ctypes.CDLL, *, supported_only: bool) -> tuple[str, ...]:
    names, index = [], 0
    while (name := functions.uwaga_level_name(index)) is not None:
        if not supported_only or functions.uwaga_level_supported(index):
            names.append(name.decode())
        index += 1
    return tuple(names)


def levels() -> tuple[str, ...]:
    """Return the instruction-set levels of this build, lowest first."""
    return _levels(library().functions, supported_only=False)


def supported_levels() -> tuple[str, ...]:
    """Return the levels of this build that this processor supports, lowest first."""
    return _levels(library().functions, supported_only=True)


def level() -> str:
    """Return the level in use."""
    return library().functions.uwaga_level().decode()


def set_level(name: str | None) -> None:
    """Select a level by name, for tests and benchmarks; None: the best supported one. Raises ValueError."""
    if library().functions.uwaga_set_level(None if name is None else name.encode()) != STATUS_OK:
        raise ValueError(f"level must be one of {', '.join(supported_levels())}, not {name!r}")


def measure_peak(threads: int, seconds: float) -> float:
    """Return the measured peak of float32 multiply-adds at the current level, in GFLOP/s, over so many seconds."""
    return library().functions.uwaga_measure_peak(threads, seconds)
