"""python .ci/wheels.py [PLATFORM ...]: a wheel for each platform in dist/, all of them built on this Linux machine.

The library knows neither Python nor PyTorch, so that a wheel for another platform differs in one file, which Zig's C++ compiler makes
(PyPI: ziglang; it brings the headers and libraries of every platform). The wheel of x86-64 Linux is that of `make wheel`, by gcc. Each
is checked: one library of the right format that needs nothing but what its system has, tags, at most 2 MiB without the models, and
that pip of that platform chooses and installs it.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DIST, BUILD = ROOT / "dist", ROOT / "build"
MODELS = "uwaga/models/shipped/"
MAX_SIZE = 2 * 2**20  # bytes of a wheel without the bundled models and the decoder of the lesson
LIBRARY = "uwaga/_native/libuwaga_native"


class Platform(NamedTuple):
    """A platform by the tag of its wheel."""

    target: str | None  # of Zig; None: by this machine's compiler
    suffix: str  # of a shared library
    needs: frozenset[str]  # what the library may ask its system for, in lower case


_GLIBC = frozenset(
    {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
)
_MACOS = frozenset({"/usr/lib/libsystem.b.dylib", "@rpath/libuwaga_native.dylib"})
# The universal C runtime is a part of Windows 10.
_WINDOWS = frozenset({"kernel32.dll", "ntdll.dll", "advapi32.dll"})

PLATFORMS = {
    "manylinux_2_28_x86_64": Platform(None, ".so", _GLIBC | {"libstdc++.so.6", "libgcc_s.so.1"}),
    "manylinux_2_28_aarch64": Platform("aarch64-linux-gnu.2.28", ".so", _GLIBC),
    "macosx_11_0_arm64": Platform("aarch64-macos.11.0", ".dylib", _MACOS),
    "macosx_11_0_x86_64": Platform("x86_64-macos.11.0", ".dylib", _MACOS),
    "win_amd64": Platform("x86_64-windows-gnu", ".dll", _WINDOWS),
}


def build(tag: str, target: str) -> Path:
    """The wheel for a platform, by Zig."""
    folder = BUILD / "cross" / tag
    for old in (folder / "wheel").glob("*.whl"):
        old.unlink()
    define = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "native" / "zig.cmake",
        "UWAGA_TARGET": target,
        "UWAGA_PYTHON": sys.executable,
        "UWAGA_TESTS": "ON",  # one build folder for the library and its tests
    }
    settings = [f"-Ccmake.define.{name}={value}" for name, value in define.items()]
    settings += [f"-Cbuild-dir={folder / 'build'}", "-Cbuild.targets=uwaga_native"]
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder / "wheel"), *settings]
    _run(command, UWAGA_BUILD_NATIVE="1")
    (plain,) = (folder / "wheel").glob("*.whl")
    _run([sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(plain)])
    (tagged,) = (folder / "wheel").glob(f"*{tag}.whl")
    return tagged.rename(DIST / tagged.name)


def check(wheel: Path, platform: Platform) -> str:
    """Its sizes, in words. Raises ValueError for a wheel that would not work."""
    with zipfile.ZipFile(wheel) as archive:
        sizes = {each.filename: each.compress_size for each in archive.infolist()}
        libraries = [name for name in sizes if name.startswith("uwaga/_native/") and not name.endswith("/")]
        if libraries != [LIBRARY + platform.suffix]:
            raise ValueError(f"{wheel.name}: has {libraries}, not {LIBRARY}{platform.suffix}")
        library = archive.read(libraries[0])
        metadata = next(name for name in sizes if name.endswith(".dist-info/WHEEL"))
        tag = wheel.stem.partition("-py3-none-")[2]
        if f"Tag: py3-none-{tag}" not in archive.read(metadata).decode().splitlines():
            raise ValueError(f"{wheel.name}: its file WHEEL has another tag")
    if more := {
        name for name in needed(library, platform.suffix) if name.lower() not in platform.needs and not _is_crt(name)
    }:
        raise ValueError(f"{wheel.name}: the library needs {', '.join(sorted(more))}")
    size = sum(
        size for name, size in sizes.items() if not name.startswith(MODELS) and not name.endswith(".safetensors")
    )
    if size > MAX_SIZE:
        raise ValueError(f"{wheel.name}: {size:,} bytes without the models, more than {MAX_SIZE:,}")
    return f"{wheel.name}: {size:,} bytes without the models, library {len(library):,} bytes"


def install(wheel: Path, tag: str) -> None:
    """Lets pip choose among all wheels in dist/ as on that platform. Raises ValueError where it installs another one or none."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-index",
            "--find-links",
            str(DIST),
        ]
        command += [
            "--platform",
            tag,
            "--python-version",
            "3.11",
            "--only-binary=:all:",
            "--no-deps",
            "--target",
            folder,
            "uwaga",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ValueError(f"{wheel.name}: pip does not install it on {tag}: {done.stderr.strip()}")
        name = LIBRARY + PLATFORMS[tag].suffix
        installed = Path(folder) / name
        if not installed.is_file() or installed.read_bytes() != archive.read(name):
            raise ValueError(f"{wheel.name}: pip installs another wheel on {tag}")


def _is_crt(name: str) -> bool:
    return name.lower().startswith("api-ms-win-crt-")


def needed(library: bytes, suffix: str) -> set[str]:
    """The names of the libraries that one asks its system for."""
    import io

    if suffix == ".so":
        from elftools.elf.elffile import ELFFile

        dynamic = ELFFile(io.BytesIO(library)).get_section_by_name(".dynamic")
        return {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}
    if suffix == ".dll":
        import pefile

        return {entry.dll.decode() for entry in pefile.PE(data=library).DIRECTORY_ENTRY_IMPORT}
    from macholib.MachO import MachO

    with tempfile.NamedTemporaryFile(suffix=suffix) as file:
        file.write(library)
        file.flush()
        return {name for header in MachO(file.name).headers for _, _, name in header.walkRelocatables()}


def _run(command: Sequence[str], **environment: str) -> None:
    import os

    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"of {', '.join(PLATFORMS)}; all")
    chosen = parser.parse_args().platforms or list(PLATFORMS)
    if unknown := set(chosen) - set(PLATFORMS):
        parser.error(f"unknown platform {', '.join(sorted(unknown))}: choose of {', '.join(PLATFORMS)}")
    DIST.mkdir(exist_ok=True)
    for tag in chosen:
        platform = PLATFORMS[tag]
        if platform.target is not None:
            for old in DIST.glob(f"*-{tag}.whl"):
                old.unlink()
            wheel = build(tag, platform.target)
        else:
            (wheel,) = DIST.glob(f"*{tag}*.whl")  # by `make wheel`
        described = check(wheel, platform)
        install(wheel, tag)
        sys.stdout.write(f"{described}; pip installs it\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
