"""Files as passages of a database, the model that made its keys, and questions: as functions, without the command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from uwaga import SoftDatabase, TextEncoder
from uwaga._base.errors import DataError
from uwaga.data.documents import InvalidDocumentError
from uwaga.store import AddedFiles, add_files, ask, encoder_of, model_name

TEXT = "the cat sat. a dog ran away\n\nit sat on the house"


@pytest.fixture
def db(model: Path, tmp_path: Path) -> SoftDatabase:
    with SoftDatabase.create(tmp_path / "db", key_width=16, model=model_name(model)) as made:
        yield made


def test_files_are_added_and_asked(db: SoftDatabase, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXT)
    encoder, before = encoder_of(db, model), 0
    for split, texts in (
        ("paragraph", ["the cat sat. a dog ran away", "it sat on the house"]),
        ("sentence", ["the cat sat.", "a dog ran away", "it sat on the house"]),
        ("line", ["the cat sat. a dog ran away", "it sat on the house"]),
        ("document", [TEXT]),
    ):
        assert add_files(db, [tmp_path / "a.txt"], encoder, split=split) == AddedFiles(len(texts), 0, [])
        records = db.records(range(before, len(db)))
        assert [record["text"] for record in records] == texts
        assert [record["part"] for record in records] == list(range(len(texts)))
        before = len(db)
        assert add_files(db, [str(tmp_path / "a.txt")], encoder, split=split) == AddedFiles(0, len(texts), [])
    answer = ask(db, TEXT, encoder, top=1)
    (vector,) = torch.from_numpy(encoder.encode([TEXT], overflow="mean"))
    expected = db.attend(vector, scale=20.0, top=1)
    assert torch.equal(answer.value, expected.value)
    assert answer.top.records == expected.top.records
    assert ask(db, TEXT, encoder, where="part = ?", parameters=[99]).rows == 0


def test_what_cannot_be_added_is_left_out(db: SoftDatabase, model: Path, tmp_path: Path) -> None:
    file, encoder = tmp_path / "a.jsonl", TextEncoder.load(model)
    file.write_text('{"text": "the cat"}\n{"body": "a dog"}\n')
    why = f"{file}:2: there is no field 'text'; the fields are 'body'"
    assert add_files(db, [file], encoder, skip_invalid=True) == AddedFiles(1, 0, [why])
    assert add_files(db, [file], encoder, skip_invalid=True, text_field="body").added == 1


def test_the_encoder_is_the_one_that_made_the_keys(
    db: SoftDatabase, model: Path, tmp_path: Path, write_model: Callable[..., Path]
) -> None:
    for other in (None, write_model(tmp_path / "other", seed=1)):
        with pytest.raises(DataError):
            encoder_of(db, other)
    moved = model.rename(tmp_path / "moved")
    assert encoder_of(db, moved).embedding_dim == 16


@pytest.fixture
def long_model(write_model: Callable[..., Path], tmp_path: Path) -> Path:
    """Reads 30 tokens."""
    return write_model(tmp_path / "long", positions=32, tokenizer={"model_max_length": 32})


@pytest.mark.parametrize("split", ["paragraph", "sentence"])
def test_late_chunking_reads_documents_whole(long_model: Path, tmp_path: Path, split: str) -> None:
    encoder = TextEncoder.load(long_model)
    long = " ".join([TEXT] * 4)  # in windows
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in (TEXT, long)))
    files = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    with SoftDatabase.create(tmp_path / "late", key_width=16, model=model_name(long_model)) as db:
        add_files(db, files, encoder, split=split)  # the same passages, each alone, are others
        before = len(db)
        added = add_files(db, files, encoder, split=split, late_chunking=True)
        assert added == AddedFiles(before, 0, [])
        expected = encoder.encode([TEXT, TEXT, long], spans=split, overflow="windows", overlap=7)
        rows = list(db)[before:]
        assert torch.equal(torch.stack([row.key for row in rows]), expected.values)
        assert [row.record["text"] for row in rows] == [row.record["text"] for row in list(db)[:before]]
        assert add_files(db, files, encoder, split=split, late_chunking=True) == AddedFiles(0, before, [])


def test_late_chunking_resumes_within_a_document(long_model: Path, tmp_path: Path) -> None:
    """A document without a token in one of its passages is left out whole, and is not taken for what is there."""
    encoder = TextEncoder.load(long_model)
    rows = [{"text": "the cat.\n\n\u0007"}, {"text": "a dog. it ran. a cat."}, {"text": "the mat. it sat."}]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"split": "sentence", "late_chunking": True, "skip_invalid": True}
    with SoftDatabase.create(tmp_path / "late", key_width=16, model=model_name(long_model)) as db:
        assert add_files(db, [file], encoder, **options).added == 5
        db.delete(range(2, 5))  # as if it had been interrupted after a transaction of two passages
        done = add_files(db, [file], encoder, **options)
        assert done.added == 3
        assert done.present == 2
        assert done.skipped == [f"{file}: passage 1: has no token in span 1, from character 10 to 11"]
        expected = encoder.encode([rows[1]["text"], rows[2]["text"]], spans="sentence")
        assert torch.equal(torch.stack([row.key for row in db]), expected.values)
        with pytest.raises(InvalidDocumentError, match="has no token in span 1"):
            add_files(db, [file], encoder, split="paragraph", late_chunking=True)


def test_an_interrupted_call_is_resumed_and_progress_tells_what_was_there(
    db: SoftDatabase, model: Path, tmp_path: Path
) -> None:
    """A transaction has 512 passages."""
    encoder, shares = encoder_of(db, model), []
    file, other = tmp_path / "a.txt", tmp_path / "b.txt"
    file.write_text("\n\n".join(["the cat"] * 1280))
    other.write_text("\n\n".join(["a dog"] * 1280))

    def interrupt(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add_files(db, [file], encoder, progress=interrupt)
    assert len(db) == 512

    def listener(done: float) -> None:
        shares.append((round(done, 1), len(db)))

    assert add_files(db, [file], encoder, progress=listener) == AddedFiles(768, 512, [])
    assert shares == [(0.8, 1024), (1.0, 1280)]
    shares.clear()
    assert add_files(db, [file, other], encoder, progress=listener) == AddedFiles(1280, 1280, [])
    assert shares == [(0.7, 1792), (0.9, 2304), (1.0, 2560)]
    assert db.stats()["segments"] == 1
