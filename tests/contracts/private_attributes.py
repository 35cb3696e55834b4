"""Uses of private attributes (`x._y`) in tests, by file. private_attributes.txt beside this file lists how many each file may have.

python tests/contracts/private_attributes.py     # write the list again after some were removed: no number rises
"""

import ast
import re
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
ROOT = Path(__file__).parents[2]


def uses() -> dict[str, int]:
    """Return the number of uses in each file that has one."""
    counted = {path: _count(path) for path in sorted((ROOT / "tests").rglob("*.py"))}
    return {path.relative_to(ROOT).as_posix(): number for path, number in counted.items() if number}


def _count(path: Path) -> int:
    text = path.read_text(encoding="utf-8")
    if not re.search(r"\._(?!_|base\b)", text):  # to parse every file takes seconds
        return 0
    names = [node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    return sum(name.startswith("_") and not name.startswith("__") for name in names)


def listed() -> dict[str, int]:
    lines = (line.split() for line in LIST.read_text(encoding="utf-8").splitlines())
    return {path: int(number) for number, path in lines}


def main() -> None:
    most = listed()
    left = {path: min(number, most[path]) for path, number in uses().items() if path in most}
    LIST.write_text("".join(f"{number:3} {path}\n" for path, number in left.items()), encoding="utf-8")


if __name__ == "__main__":
    main()
