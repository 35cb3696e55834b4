"""python .ci/cross_test.py [PLATFORM ...]: the C++ tests of other platforms on this one, built by Zig's compiler (PyPI: ziglang).

ARM runs under qemu-aarch64, which emulates its instructions, those of every level; Windows under wine, where this processor's own
instructions run, and levels that it lacks are left out. The fuzzer follows, with random calls of the C interface for some seconds, from
recorded ones on (`make build/fuzz/recorded`). The exit status is 1 where a test failed, or an emulator is missing.
"""

import argparse
import os
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
    emulators: tuple[str, ...]  # the first that is installed runs it, with these options
    options: tuple[str, ...]
    package: str  # of Debian


PLATFORMS = {
    # musl: one static program, which needs no libraries of that platform here.
    "arm": Platform("aarch64-linux-musl", "", ("qemu-aarch64", "qemu-aarch64-static"), ("-cpu", "max"), "qemu-user"),
    "windows": Platform("x86_64-windows-gnu", ".exe", ("wine64", "wine"), (), "wine64"),
}


def run(name: str, platform: Platform) -> str:
    """Builds and runs the tests; their counts, in words. Raises SystemExit where one failed."""
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
    settings = [f"-D{key}={value}" for key, value in define.items()]
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", *settings], check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", "native_tests", "fuzz_c_api"], check=True)

    def emulated(program: str, *arguments: str) -> str:
        """What it prints, which is also shown."""
        command = [emulator, *platform.options, str(folder / f"{program}{platform.suffix}"), *arguments]
        environment = os.environ | {"WINEDEBUG": "-all"}  # what wine lacks is no matter
        lines = []
        # The fuzzer leaves an input that ends the process in its working folder.
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as process:
            for line in process.stdout or ():
                sys.stdout.write(line)
                sys.stdout.flush()
                lines.append(line)
        if process.returncode != 0:
            sys.exit(f"{name}: {program} ended with {process.returncode}")
        return "".join(lines)

    count = re.search(r"^\d+ passed, 0 failed$", emulated("native_tests"), re.MULTILINE)
    if count is None:
        sys.exit(f"{name}: native_tests ended without the number of tests")
    inputs = ROOT / "build" / "fuzz" / "inputs"
    recorded = len(list(inputs.iterdir())) if inputs.is_dir() else 0
    emulated("fuzz_c_api", str(FUZZ_SECONDS), "1", *([str(inputs)] if recorded else []))
    return f"{name}: {count[0]}; fuzzed for {FUZZ_SECONDS} s from {recorded} recorded calls on"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("platforms", nargs="*", choices=[*PLATFORMS, []], metavar="PLATFORM", help="arm, windows; both")
    results = []
    for name in parser.parse_args().platforms or PLATFORMS:
        results.append(run(name, PLATFORMS[name]))
    sys.stdout.write("".join(f"{line}\n" for line in results))


if __name__ == "__main__":
    main()
