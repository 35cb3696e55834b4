"""python tests/integrations/transformers_suite.py FOLDER: transformers' own tests of models, with sdpa and with this attention.

Downloads the source distribution of the installed transformers into FOLDER, runs its ModelTesterMixin for 16 families of small models
(transformers_suite_cases.py) with either as the default implementation, and prints how many passed and which differ. What needs tests that
are in no distribution (generation, export) or several processes, and what compiles, is left out. The exit status is 1 where another test
fails than `test_sdpa_can_dispatch_non_composite_models`, which demands the name "sdpa".
"""

import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from importlib.metadata import version
from pathlib import Path

LEFT_OUT = ("compile", "export", "generat", "tensor_parallel", "fsdp", "overfit", "tp_", "cuda_graph")
NAMED_SDPA = "test_sdpa_can_dispatch_non_composite_models"
# Modules of transformers' tests that its source distribution lacks, and what is imported from them.
STUBS = {"generation/test_utils.py": "GenerationTesterMixin", "exporters/test_export.py": "ExportTesterMixin"}


def download(folder: Path) -> Path:
    """The folder that holds transformers' package `tests`."""
    name = f"transformers-{version('transformers')}"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    if not (folder / name).exists():
        no_wheel = ["--no-deps", "--no-build-isolation", "--no-binary", "transformers", "--dest", str(folder)]
        subprocess.run([*pip, "download", *no_wheel, name.replace("-", "==")], check=True)
        with tarfile.open(folder / f"{name}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    for path, mixin in STUBS.items():
        stub = folder / name / "tests" / path
        stub.parent.mkdir(exist_ok=True)
        (stub.parent / "__init__.py").touch()
        stub.write_text(f"class {mixin}: pass\n")
    subprocess.run([*pip, "install", "--upgrade", "--target", str(folder / "packages"), "parameterized"], check=True)
    return folder / name


def outcomes(suite: Path, implementation: str) -> dict[str, str]:
    """By test: "passed", "failed" or "skipped"."""
    report = suite.parent / f"{implementation}.xml"
    ini = suite.parent / "pytest.ini"
    ini.write_text("[pytest]\njunit_family = xunit1\n")
    cases = Path(__file__).with_name("transformers_suite_cases.py")
    paths = os.pathsep.join([str(suite.parent / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])])
    quietly = ["-q", "-W", "ignore", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *quietly, "-c", str(ini), str(cases)]
    command += ["-k", f"Test_ and not ({' or '.join(LEFT_OUT)})", f"--junitxml={report}"]
    given = {"UWAGA_SUITE": str(suite), "SUITE_IMPLEMENTATION": implementation, "PYTHONPATH": paths}
    subprocess.run(command, env=os.environ | given, check=False)
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        results[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return results


def main(folder: str) -> int:
    Path(folder).mkdir(parents=True, exist_ok=True)
    suite = download(Path(folder).resolve())
    by_name = {name: outcomes(suite, name) for name in ("sdpa", "uwaga")}
    for name, tests in by_name.items():
        counts = [f"{list(tests.values()).count(kind):,} {kind}" for kind in ("passed", "failed", "skipped")]
        sys.stdout.write(f"{name}: {', '.join(counts)}\n")
    others = sorted(
        test for test, how in by_name["uwaga"].items() if how == "failed" and by_name["sdpa"].get(test) == "passed"
    )
    sys.stdout.write("".join(f"passed with sdpa alone: {test}\n" for test in others))
    return int(any(not test.endswith(NAMED_SDPA) for test in others))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
