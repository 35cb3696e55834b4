"""What `make wheel` has built, and what a new user does with it: an environment without a compiler, an exact map, a page.

The Makefile names the folder in UWAGA_WHEELS; without it these tests are skipped, or with --no-missing fail.
"""

import os
import subprocess
import sys
import tarfile
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from uwaga._base.languages import LANGUAGES
from uwaga.viewer.page.bundle import FRONT, bundle

pytestmark = [
    pytest.mark.stress,
    pytest.mark.skipif("UWAGA_WHEELS" not in os.environ, reason="make wheel-test builds the wheels that this looks at"),
]

MODELS = "uwaga/models/shipped/"
RECIPES = "src/uwaga/train/recipes"
TEXTS = "src/uwaga/lessons/texts"
LESSON_MODEL = "uwaga/lessons/copyist.safetensors"


@pytest.fixture(scope="module")
def dist() -> Path:
    return Path(os.environ["UWAGA_WHEELS"])


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (result,) = dist.glob("*.whl")
    return result


def test_one_wheel_serves_every_python(wheel: Path) -> None:
    """No Python in the tags: the library is loaded by ctypes. glibc 2.28 is that of Debian 10, RHEL 8 and Ubuntu 18.10."""
    python, abi, platform = wheel.stem.split("-")[2:]
    assert (python, abi) == ("py3", "none")
    assert "manylinux_2_28" in platform if sys.platform == "linux" else platform != "any"


def test_the_sizes(wheel: Path, dist: Path, record_property) -> None:
    with zipfile.ZipFile(wheel) as archive:
        sizes = {file.filename: file.compress_size for file in archive.infolist()}
    models = sum(size for name, size in sizes.items() if name.startswith(MODELS))
    (source,) = dist.glob("*.tar.gz")
    for name, size in {"wheel": sum(sizes.values()), "models": models, "sdist": source.stat().st_size}.items():
        record_property(f"{name} in MB", f"{size / 1e6:.2f}")
    assert {name.split("/")[3] for name in sizes if name.startswith(MODELS) and not name.endswith("/")} == {
        "bard",
        "copyist",
        "speller",
    }
    assert sum(sizes.values()) - models - sizes[LESSON_MODEL] < 2 * 2**20


def test_the_recipes_of_train_and_the_texts_of_the_lesson_are_in_the_wheel(wheel: Path, root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {f"src/{name}" for name in archive.namelist() if name.endswith(".toml")}
    folders = (RECIPES, TEXTS)
    assert inside == {f"{folder}/{path.name}" for folder in folders for path in (root / folder).glob("*.toml")}
    assert {f"{TEXTS}/{language}.toml" for language in LANGUAGES} < inside


def test_the_packed_page_is_that_of_the_sources(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "/front/" in name]
        archive.extract("uwaga/viewer/front.json.bz2", tmp_path)
    packed = tmp_path / "uwaga/viewer/front.json.bz2"
    for lesson in (False, True):
        assert bundle(packed, lesson=lesson) == bundle(FRONT, lesson=lesson)


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF, the format of Linux")
def test_no_second_openmp_is_inside(wheel: Path, tmp_path: Path) -> None:
    """Two OpenMP libraries in one process have two thread pools, which wait for each other's cores. The library has none: it is
    handed PyTorch's GOMP_parallel while it runs."""
    from elftools.elf.elffile import ELFFile

    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".so" in Path(name).name]
        assert libraries == ["uwaga/_native/libuwaga_native.so"]
        archive.extract(libraries[0], tmp_path)
    with (tmp_path / libraries[0]).open("rb") as file:
        elf = ELFFile(file)
        needed = {
            tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"
        }
        symbols = {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
    allowed = {"libstdc++", "libm", "libgcc_s", "libc", "libpthread", "ld-linux-x86-64"}
    assert {name.split(".so")[0] for name in needed} <= allowed
    assert not [name for name in symbols if name.startswith(("GOMP_", "omp_", "__kmpc_"))]


def test_the_source_distribution_has_every_source(dist: Path, root: Path) -> None:
    """What CMake and the package are built from; `pip wheel` of it is what a platform without a wheel does."""
    tracked = subprocess.run(["git", "ls-files", "src", "native"], cwd=root, capture_output=True, text=True, check=True)
    expected = {name for name in tracked.stdout.splitlines() if "/front/tests/" not in name}
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert expected | {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc")) or name.startswith(("tests/", "docs/"))]


def required(distribution: str, result: set[str]) -> set[str]:
    """The names of what a distribution of this environment needs, without extras, and what that needs, itself included."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    if (name := canonicalize_name(distribution)) not in result:
        result.add(name)
        for requirement in map(Requirement, metadata.requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                required(requirement.name, result)
    return result


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a new environment that has the wheel, and of this one links to exactly what the wheel asks for."""
    folder = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in required("uwaga", set()) - {"uwaga"}:
        distribution = metadata.distribution(name)
        for top in {Path(file).parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", str(wheel)],
        check=True,
    )
    return python


def first_minutes(python: Path, root: Path, folder: Path) -> str:
    done = subprocess.run(
        [str(python), str(root / "tests" / "contracts" / "first_minutes.py")],
        env={"PATH": str(python.parent), "HOME": str(folder)}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_first_minutes_without_a_compiler(python: Path, root: Path, tmp_path: Path, record_property) -> None:
    said = first_minutes(python, root, tmp_path)
    record_property("first minutes", said)
    assert said.startswith("engine cpu;")


@pytest.mark.timing
def test_the_first_minutes_are_less_than_one(python: Path, root: Path, tmp_path: Path) -> None:
    begun = time.perf_counter()
    first_minutes(python, root, tmp_path)
    assert time.perf_counter() - begun < 60
