"""The structure that structure.py measures: no import circles, no small modules that belong to their only importer."""

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `import structure`: the tests are no package

import structure

# Small modules with one importer that stay, and why.
ON_THEIR_OWN = {
    "uwaga.cli.train": "a command, each of which has a module",
    "uwaga.integrations.transformers.packed_conv1d": "a class of transformers' Conv1D, which pickles find by its name; "
    "transformers is imported with it",
    "uwaga.ops.rotary": "the native library is called from ops alone, as for norms and dropout",
}
# Modules that name model types outside of the tables, and what for.
NAME_MODEL_TYPES = {
    "models/checkpoints/sentence_files.py": "old names of settings files in sentence-transformers",
    "encode/reranker.py": "the chat template of Qwen3-Reranker's card, and families whose token types transformers reads in pairs",
    "train/corpus.py": "names in a TOML",
    "train/model.py": "names in a TOML",
}
# Names that made readers ask "which one?".
SAYS_NOTHING = {
    "each", "given", "own", "known", "listed", "wanted", "foreign", "spoiled", "around", "shallow", "recut", "telling", "wall", "stage",
}  # fmt: skip


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and those for type checkers count: a circle that they hide is one."""
    assert structure.circle_of_the_package() == []


def test_a_small_module_with_one_importer_belongs_to_it() -> None:
    result = structure.small_with_one_importer()
    assert {name: importer for name, importer in result.items() if name not in ON_THEIR_OWN} == {}
    assert ON_THEIR_OWN.keys() <= result.keys()


def test_only_the_tables_name_model_types(root: Path) -> None:
    """Nobody else asks which model type it has."""
    from uwaga.models.families import model_types

    source, types, found = root / "src/uwaga", {*model_types()}, set()
    for path in source.rglob("*.py"):
        name, text = path.relative_to(source).as_posix(), path.read_text(encoding="utf-8")
        if not name.startswith("models/families/") and any(model_type in text for model_type in types):
            constants = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
            found |= {name} if constants & types else set()
    assert found == NAME_MODEL_TYPES.keys()


def test_no_variable_has_a_name_that_says_nothing(root: Path) -> None:
    """Of variables, arguments, functions, classes and attributes: STYLE wants what they are."""
    found = set()
    for path in (path for part in ("src/uwaga", "tests", "benchmarks") for path in (root / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # An import without "as" names nothing here, such as hypothesis.given.
            is_read = isinstance(getattr(node, "ctx", None), ast.Load) or isinstance(node, ast.keyword | ast.alias)
            names = (getattr(node, kind, None) for kind in ("id", "attr", "arg", "name") if not is_read)
            names = (*names, getattr(node, "asname", None))
            found |= {f"{path}: {x}" for x in names if isinstance(x, str) and x.strip("_").lower() in SAYS_NOTHING}
    assert found == set()
