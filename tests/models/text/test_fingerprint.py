import shutil
from pathlib import Path

from uwaga.models.text.fingerprint import fingerprint


def test_copies_have_one_fingerprint_wherever_they_lie(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(folder, copy)
    (copy / "README.md").write_text("words about the model")
    assert fingerprint(copy, copy) == fingerprint(folder)


def test_any_file_that_vectors_depend_on_changes_it(folder: Path, describe) -> None:
    describe(folder)
    seen = {fingerprint(folder)}
    for name in ("config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json"):
        path = folder / name
        path.write_bytes(path.read_bytes() + b" ")
        seen.add(fingerprint(folder))
    assert len(seen) == 6
