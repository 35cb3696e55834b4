"""python .ci/changed_versions.py constraints.txt: the packages of this environment whose version is not the locked one.

Exits with 0 whatever it finds: that `make newest` has other versions is its purpose.
"""

import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version


def locked(lines: list[str]) -> dict[str, str]:
    """Versions by canonical name, of the lines that hold for this platform and Python."""
    results = {}
    for line in lines:
        if not line.lstrip().startswith("#"):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                (specifier,) = requirement.specifier
                results[canonicalize_name(requirement.name)] = specifier.version
    return results


def main(path: str) -> None:
    versions = locked(Path(path).read_text(encoding="utf-8").splitlines())
    here = {canonicalize_name(distribution.name): distribution.version for distribution in distributions()}
    rows = [
        (name, versions.get(name, "none"), values)
        for name, values in sorted(here.items())
        if name != "uwaga" and (name not in versions or Version(values).public != versions[name])
    ]
    for name, before, after in [("package", "locked", "here"), *rows]:
        sys.stdout.write(f"{name:<32} {before:<16} {after}\n")
    sys.stdout.write(f"{len(rows)} of {len(here) - 1} packages have another version than the locked one\n")


if __name__ == "__main__":
    main(sys.argv[1])
