"""The structure of a source tree, from its own imports: modules with one importer, import circles.

    python tests/contracts/structure.py [ROOT ...]

Relations counted: every `import` of a module inside `uwaga`, at the top of a file or inside a function, and those that only a
type checker sees. The lazy public names of a package's __init__.py are no relation: they are how users come in.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

Graph = Mapping[str, set[str]]

# A module with one importer and fewer lines than this usually belongs to its importer (CONTRIBUTING, rule 10).
SMALL = 75


def modules(root: Path) -> dict[str, Path]:
    """Every Python module of the package by its dotted name; a package stands for its __init__.py."""
    source = root / "src"
    results = {}
    for path in sorted((source / "uwaga").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        results[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return results


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def imports(root: Path) -> dict[str, set[str]]:
    """For each module the modules of the package that it imports, other than packages that it lies in."""
    known = modules(root)
    return {name: set() if is_lazy(path) else _imports(name, path, known) for name, path in known.items()}


def is_lazy(path: Path) -> bool:
    return path.name == "__init__.py" and "_base.lazy" in path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> list[ast.AST]:
    """Every node of a file."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(name: str, path: Path, known: Mapping[str, Path]) -> set[str]:
    targets = {target for node in tree(path) for target in _targets(node, known)}
    return {target for target in targets if target != name and not name.startswith(target + ".")}


def _targets(node: ast.AST, known: Mapping[str, Path]) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name in known]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module in known:
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        return [each if each in known else node.module for each in inner]
    return []


def circles(graph: Graph) -> list[list[str]]:
    """Groups of more than one node that all reach each other: strongly connected components (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    results = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            at = stack.index(node)
            group, stack[at:] = stack[at:], []
            if len(group) > 1:
                results.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return sorted(results)


def small_with_one_importer(root: Path) -> dict[str, str]:
    """Modules under SMALL lines that one other module imports, by name with their importer; packages are no modules."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports(root).items():
        for target in targets:
            importers[target].add(name)
    known = modules(root)
    for name, path in known.items():
        for target in _imports(name, path, known) if is_lazy(path) else ():
            importers[target].add(name)  # the home of a lazy public name
    return {
        name: next(iter(importers[name]))
        for name, path in modules(root).items()
        if path.name not in ("__init__.py", "__main__.py") and len(importers[name]) == 1 and lines(path) < SMALL
    }


if __name__ == "__main__":
    for each in sys.argv[1:] or ["."]:
        root = Path(each)
        for circle in circles(imports(root)):
            print(f"{root}: circle: {', '.join(circle)}")
        for name, importer in small_with_one_importer(root).items():
            print(f"{root}: {name} has one importer, {importer}")
