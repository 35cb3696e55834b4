"""python .ci/cross_test.py [PLATFORM ...]: the C++ tests of other platforms on this one, built by Zig's compiler (PyPI: ziglang).

ARM runs under qemu-aarch64, which emulates its instructions; Windows under wine, where this processor's own instructions run. The fuzzer
follows, with random calls of the C interface for some seconds, where calls were recorded (`make build/fuzz/recorded`).
"""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FUZZ_SECONDS = 60


class Platform(NamedTuple):
    target: str  # of Zig
    suffix: str  # of a program
    emulators: tuple[str, ...]  # the first that is installed runs it
    package: str  # of Debian


PLATFORMS = {
    # musl: one static program, which needs no libraries of that platform here.
    "arm": Platform("aarch64-linux-musl", "", ("qemu-aarch64", "qemu-aarch64-static"), "qemu-user"),
    "windows": Platform("x86_64-windows-gnu", ".exe", ("wine64", "wine"), "wine64"),
}


def run(name: str, platform: Platform) -> str:
    """Builds and runs the tests; the number of them that passed, in words. Raises SystemExit where one failed."""
    emulator = next(filter(None, map(shutil.which, platform.emulators)), None)
    if emulator is None:
        sys.exit(f"{platform.emulators[0]} is not installed (Debian: {platform.package})")
    folder = ROOT / "build" / "cross" / name
    define = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "native" / "zig.cmake",
        "CMAKE_BUILD_TYPE": "Release",
        "UWAGA_TARGET": platform.target,
        "UWAGA_PYTHON": sys.executable,
        "UWAGA_TESTS": "ON",
    }
    options = [f"-D{key}={value}" for key, value in define.items()]
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *options], check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", "native_tests", "fuzz_c_api"], check=True)
    done = subprocess.run(
        [emulator, str(folder / f"native_tests{platform.suffix}")], capture_output=True, text=True, check=False
    )
    sys.stdout.write(done.stdout[-4000:] + done.stderr[-4000:])
    if done.returncode != 0:
        sys.exit(f"{name}: the C++ tests ended with {done.returncode}")
    inputs = ROOT / "build" / "fuzz" / "inputs"
    if inputs.is_dir():
        subprocess.run(
            [emulator, str(folder / f"fuzz_c_api{platform.suffix}"), str(FUZZ_SECONDS), "1", str(inputs)], check=True
        )
    count = re.search(r"(\d+)[^\n]*passed", done.stdout)
    return f"{name}: {count[0] if count else 'passed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("platforms", nargs="*", choices=[*PLATFORMS, []], metavar="PLATFORM", help="arm, windows; both")
    for name in parser.parse_args().platforms or PLATFORMS:
        sys.stdout.write(f"{run(name, PLATFORMS[name])}\n")


if __name__ == "__main__":
    main()
