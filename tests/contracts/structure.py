"""The structure of the package, from its own imports: modules with one importer, import circles.

    python tests/contracts/structure.py

Relations counted: every `import` of a module inside `uwaga`, at the top of a file or inside a function, and those that only a
type checker sees. The lazy public names of a package's __init__.py are no relation of a circle: they are how users come in.
"""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

# A module with one importer and fewer lines than this usually belongs to its importer (CONTRIBUTING, rule 10).
SMALL = 75
ROOT = Path(__file__).parents[2]


def modules() -> dict[str, Path]:
    """Return every Python module of the package by its dotted name; a package stands for its __init__.py."""
    source = ROOT / "src"
    results = {}
    for path in sorted((source / "uwaga").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        results[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return results


def is_lazy(path: Path) -> bool:
    return path.name == "__init__.py" and "_base.lazy" in path.read_text(encoding="utf-8")


def imports() -> dict[str, set[str]]:
    """Return for each module the modules of the package that it imports, other than packages that it lies in."""
    graph = grimp.build_graph("uwaga", cache_dir=None)
    return {
        name: {
            target
            for target in graph.find_modules_directly_imported_by(name)
            if not f"{name}.".startswith(f"{target}.")
        }
        for name in graph.modules
    }


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import each other in a circle, the first one again at the end; nothing if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def circle_of_the_package() -> list[str]:
    paths = modules()
    return circle({name: targets for name, targets in imports().items() if not is_lazy(paths[name])})


def small_with_one_importer() -> dict[str, str]:
    """Return modules under SMALL lines that one other module imports, with their importer; packages are no modules."""
    found = imports()
    results = {}
    for name, path in modules().items():
        importers = [other for other, targets in found.items() if name in targets]
        is_module = path.name not in ("__init__.py", "__main__.py")
        if is_module and len(importers) == 1 and path.read_text(encoding="utf-8").count("\n") < SMALL:
            results[name] = importers[0]
    return results


if __name__ == "__main__":
    if found := circle_of_the_package():
        print(f"circle: {', '.join(found)}")
    for name, importer in small_with_one_importer().items():
        print(f"{name} has one importer, {importer}")
