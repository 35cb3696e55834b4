"""The folders of native/ are layers: base below kernels, kernels below drivers, and no file includes from a layer above its own."""

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# What the files of a folder may include from native/; the C interface alone, native/c_api.cc, includes all.
ALLOWED = {
    "base": {"base"},
    "kernels": {
        "base",
        "kernels",
        "uwaga",
        "tests",
    },  # uwaga/c_api.h names the element types; tests: AVX-512 by emulation
    "drivers": {"base", "kernels", "drivers", "uwaga"},
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_layer_includes_none_above_it(folder: str) -> None:
    files = [path for path in (NATIVE / folder).iterdir() if path.suffix in (".h", ".cc")]
    assert files
    results = {
        (path.name, included)
        for path in files
        for included in re.findall(r'^#include "(.+)"', path.read_text(), re.MULTILINE)
    }
    assert [pair for pair in sorted(results) if pair[1].split("/")[0] not in ALLOWED[folder]] == []


def test_only_the_emulation_is_included_from_the_tests() -> None:
    kernels = [path for path in (NATIVE / "kernels").iterdir() if '#include "tests/' in path.read_text()]
    assert sorted(path.name for path in kernels) == ["simd_amx.h", "simd_avx512.h"]
    for path in kernels:
        name = path.stem.removeprefix("simd_")
        assert f'#ifdef UWAGA_EMULATE_AVX512\n#include "tests/emulate_{name}.h"\n#e' in path.read_text()
