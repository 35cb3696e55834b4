"""Texts as the vectors of their tokens: answers are `uwaga.maxsim` of all rows, bit for bit.

Letters: Q queries, S rows, k listed rows, D width.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import store
from drawn import draw_rows
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from uwaga import Ragged, SoftDatabase, TextEncoder, maxsim
from uwaga._base.errors import SoftDatabaseError
from uwaga.store import AddedFiles, TokenDatabase, add_files, ask, encoder_of, model_name, stored
from uwaga.store.segments import TOKEN_CHUNK

D = 8


LENGTHS = [1 + n * 7 % 13 for n in range(3 * TOKEN_CHUNK)]
ROWS, QUERIES = draw_rows(LENGTHS, D), draw_rows([4, 1, 9], D, seed=1)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[TokenDatabase]:
    """Rows in three segments."""
    with TokenDatabase.create(tmp_path / "db", width=D) as made:
        rows, records = ROWS.to_list(), [{"n": n, "even": (n % 2 == 0 and "yes") or "no"} for n in range(len(ROWS))]
        for part in (slice(0, 5), slice(5, 150), slice(150, None)):
            made.append(Ragged.from_list(rows[part]), records=records[part])
        yield made


def brute_force(rows: dict[int, torch.Tensor], k: int, queries: Ragged = QUERIES) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids and scores of the best rows."""
    scores = maxsim(queries, Ragged.from_list(list(rows.values()))).double()
    order = torch.argsort(-scores, dim=1, stable=True)[:, :k]
    return torch.tensor(list(rows))[order], scores.gather(1, order)


def test_answers_are_those_of_brute_force(db: TokenDatabase) -> None:
    for k in (1, 7, 10**6):
        expected, top = brute_force(dict(enumerate(ROWS.to_list())), k), db.search(QUERIES, k)
        assert torch.equal(top.ids, expected[0])
        assert torch.equal(top.scores, expected[1])
        assert top.weights.isnan().all()
        assert [[record["n"] for record in row] for row in top.records] == top.ids.tolist()


def test_blocks_within_a_segment(tmp_path: Path) -> None:
    """A block has 2^25 bytes of vectors, here eight rows of one token."""
    rows = torch.arange(10.0)[:, None].expand(10, 2**20).contiguous()
    with TokenDatabase.create(tmp_path / "wide", width=2**20) as db:
        db.append(Ragged.from_list(list(rows[:, None])))
        top = db.search(Ragged.from_list([torch.ones(1, 2**20)]), 4)
    assert top.ids.tolist() == [[9, 8, 7, 6]]
    assert top.scores.tolist() == [[n * 2.0**20 for n in (9, 8, 7, 6)]]


def test_deleted_rows_are_in_no_answer_and_compacting_changes_no_bit(db: TokenDatabase) -> None:
    gone = [0, 3, 70, 71, 149, 150, 191]
    db.delete(gone)
    kept = {n: row for n, row in enumerate(ROWS.to_list()) if n not in gone}
    expected = brute_force(kept, 30)
    for _ in range(2):
        top = db.search(QUERIES, 30)
        assert torch.equal(top.ids, expected[0])
        assert torch.equal(top.scores, expected[1])
        rows = list(db)
        assert [row.id for row in rows] == list(kept)
        assert all(torch.equal(row.tokens, kept[row.id]) for row in rows)
        assert all(row.record["n"] == row.id for row in rows)
        freed = db.compact()
        assert db.stats()["segments"] == 1
        assert db.check() == []
    assert freed == 0
    with TokenDatabase.open(db.path) as reader:
        assert torch.equal(reader.search(QUERIES, 30).scores, expected[1])
    with pytest.raises(ValueError, match=re.escape(f"TokenDatabase.tokens: row 70 is not in {db.path}")):
        db.tokens(70)


def test_a_condition_selects_rows(db: TokenDatabase) -> None:
    top = db.search(QUERIES, 10, where="even = ? AND n < ?", parameters=("no", 9))
    expected = brute_force({n: row for n, row in enumerate(ROWS.to_list()) if n % 2 and n < 9}, 10)
    assert torch.equal(top.ids, expected[0])
    assert torch.equal(top.scores, expected[1])


def test_equal_rows_are_listed_by_id_and_no_rows_are_none(tmp_path: Path) -> None:
    row = torch.randn(3, D)
    with TokenDatabase.create(tmp_path / "same", width=D) as db:
        assert db.search(QUERIES, 3).ids.shape == (3, 0)
        assert list(db) == []
        assert db.append(Ragged(torch.zeros(0, D), torch.zeros(1, dtype=torch.int64))) == range(0)
        for _ in range(3):
            db.append(Ragged.from_list([row] * 3))
        assert db.search(QUERIES, 5).ids.tolist() == [[0, 1, 2, 3, 4]] * 3


def test_matches_say_which_tokens_make_a_score(db: TokenDatabase) -> None:
    top = db.search(QUERIES, 5)
    for query, ids, scores in zip(QUERIES.to_list(), top.ids.tolist(), top.scores.tolist(), strict=True):
        for number, score in zip(ids, scores, strict=True):
            matches = db.matches(query, number)
            assert matches.score == score
            assert matches.products.cumsum(0)[-1].item() == score
            exact = query.double() @ ROWS.to_list()[number].double().T
            assert matches.tokens.tolist() == exact.argmax(1).tolist()
            torch.testing.assert_close(matches.products.double(), exact.amax(1), rtol=1e-5, atol=1e-5)
    same = torch.ones(3, D)
    assert db.append(Ragged.from_list([same])).start == len(ROWS)
    assert db.matches(torch.ones(1, D), len(ROWS)).tokens.tolist() == [0]  # the first of equal ones


@pytest.mark.parametrize("has_tokens", [True, False])
def test_large_appends_are_cut_into_segments_of_which_each_is_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_tokens: bool
) -> None:
    monkeypatch.setattr(stored, "SEGMENT_BYTES", 3 * 2048 * D * 4)
    if has_tokens:
        db, rows = TokenDatabase.create(tmp_path / "db", width=D), draw_rows([4096, 2048, 6144], D)
    else:
        db, rows = SoftDatabase.create(tmp_path / "db", key_width=D), torch.randn(2 * 3 * 2048, D)
    db.append(rows)
    db.close()
    lost, kept = sorted((db.path / "segments").iterdir())
    if has_tokens:
        assert torch.equal(load_file(kept)["keys"], rows.values[6144:])
    lost.unlink()
    with type(db).open(db.path) as writer, pytest.raises(SoftDatabaseError, match="there is no such file"):
        writer.compact()
    assert kept.exists()


def test_a_flipped_bit_is_found_by_its_rows(db: TokenDatabase) -> None:
    path = sorted((db.path / "segments").iterdir())[1]
    content = path.read_bytes()
    for place in ("offsets", "keys"):
        data, damaged = load_file(path)[place].numpy().tobytes(), bytearray(content)
        damaged[content.index(data) + (len(data) // 2 & ~7)] ^= 1
        path.write_bytes(damaged)
        with TokenDatabase.open(db.path) as reader:
            damages = reader.check()
            assert {damage.file for damage in damages} == {path.name}
        path.write_bytes(content if place == "offsets" else damaged)
    ((first, last),) = [(damage.first_id, damage.last_id) for damage in damages]
    assert last - first < TOKEN_CHUNK
    db.close()
    with TokenDatabase.open(db.path) as writer:
        with pytest.raises(SoftDatabaseError, match="some rows differ from their checksum"):
            writer.compact()
        writer.delete(range(first, last + 1))
        writer.compact()
        assert writer.check() == []


def test_offsets_of_a_stranger_read_nothing_beyond_the_vectors(tmp_path: Path) -> None:
    with TokenDatabase.create(tmp_path / "db", width=D) as made:
        made.append(draw_rows([5, 4, 11], D))
    (path,) = (tmp_path / "db" / "segments").iterdir()
    tensors = load_file(path)
    for offsets in ([0, 9, 3, 20], [1, 2, 3, 20], [0, 5, 5, 20], [0, 5, 9, 2**62], [0, 5, 9, 19], [-5, 5, 9, 20]):
        save_file(tensors | {"offsets": torch.tensor(offsets)}, path, {"format": "uwaga.memory 1"})
        with TokenDatabase.open(tmp_path / "db") as db:
            assert db.damaged == [f"{path} (rows 0 to 2): is damaged: its offsets do not rise from 0 to 20"]
            with pytest.raises(SoftDatabaseError, match="its offsets do not rise from 0 to 20"):
                db.search(QUERIES, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_any_dtype_are_scored_in_float32_and_exported(tmp_path: Path, dtype: torch.dtype) -> None:
    many = draw_rows([1 + n % 3 for n in range(300)], D, seed=3)
    with TokenDatabase.create(tmp_path / "db", width=D, dtype=dtype) as db:
        db.append(many, records=[{"n": n, "even": "yes"} for n in range(300)])
        db.delete([0])
        db.export(tmp_path / "out.parquet")
        table = parquet.read_table(tmp_path / "out.parquet")
        assert table.column_names == ["id", "tokens", "record"]
        assert table["tokens"].to_pylist() == [row.tokens.tolist() for row in db]
        expected = brute_force({n: row.to(dtype) for n, row in enumerate(many.to_list()) if n}, 9)
        assert torch.equal(db.search(QUERIES, 9).ids, expected[0])
        assert torch.equal(db.search(QUERIES, 9).scores, expected[1])
        assert db.tokens(4).dtype == dtype


# Texts.


TEXTS = [
    "the cat sat on the mat .",
    "a dog ran away from the house .",
    "the unbelievable cat and then the dog , a mat and a house .",
]


@pytest.fixture
def colbert(write_model: Callable[..., Path], tmp_path: Path) -> Path:
    """A directory of ColBERT's own code: BERT, a projection to 8 numbers, queries of 8 tokens, documents of 12."""
    settings = {"model_max_length": 32, "mask_token": "[MASK]"}
    folder = write_model(tmp_path / "colbert", positions=32, tokenizer=settings)
    text = (folder / "tokenizer.json").read_text()
    for word, marker in (("un", "[unused0]"), ("it", "[unused1]")):
        text = text.replace(f'"{word}":', f'"{marker}":')
    (folder / "tokenizer.json").write_text(text)
    weights = {f"bert.{name}": x for name, x in load_file(folder / "model.safetensors").items()}
    torch.manual_seed(2)
    save_file(weights | {"linear.weight": torch.randn(D, 16)}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "artifact.metadata").write_text(json.dumps({"query_maxlen": 9, "doc_maxlen": 12}))
    return folder


def test_files_are_added_and_asked(colbert: Path, tmp_path: Path) -> None:
    """The last text is longer than the model's documents: it has the vectors of its windows."""
    encoder, file = TextEncoder.load(colbert), tmp_path / "a.txt"
    file.write_text("\n\n".join(TEXTS))
    with TokenDatabase.create(tmp_path / "db", width=D, model=model_name(colbert)) as db:
        assert add_files(db, [file], encoder_of(db, colbert)) == AddedFiles(3, 0, [])
        assert add_files(db, [file], encoder) == AddedFiles(0, 3, [])
        documents = encoder.encode(TEXTS, output="tokens", task="document", overflow="windows")
        assert encoder.report.document.tolist() == [0, 1, 2, 2]
        assert torch.equal(torch.cat([row.tokens for row in db]), documents.values)
        answer = ask(db, "a cat ran", encoder, top=2)
        query = encoder.encode(["a cat ran"], output="tokens", task="query")
        top = db.search(query, 2)
        assert torch.equal(answer.top.ids, top.ids[0])
        assert torch.equal(answer.top.scores, top.scores[0])
        for matches, number, record, score in zip(
            answer.matches, *answer.top[:1], answer.top.records, answer.top.scores, strict=True
        ):
            tokens = "[CLS] [unused0] a cat ran [SEP] [MASK] [MASK] [MASK]"
            assert " ".join(match.token for match in matches) == tokens
            names = encoder.token_strings(record["text"], task="document", overflow="windows")
            assert len(names) == len(db.tokens(int(number)))
            assert "." not in names
            assert {match.found for match in matches} <= set(names)
            np.testing.assert_allclose(sum(match.product for match in matches), score, rtol=1e-6)
        with pytest.raises(ValueError, match="set the option overflow"):
            ask(db, " ".join(TEXTS), encoder)
        with pytest.raises(ValueError, match="late chunking gives one vector"):
            add_files(db, [], encoder, late_chunking=True)


def test_the_command_takes_a_colbert_directory(colbert: Path, tmp_path: Path) -> None:
    db, file = tmp_path / "db", tmp_path / "a.txt"
    file.write_text("\n\n".join(TEXTS))
    said = store("add", db, file, "--model", colbert, "--dtype", "bfloat16")
    assert said == f"{db}: 3 passages added, 0 were there already\n"
    parsed = json.loads(store("ask", db, "a cat ran", "--model", colbert, "--top", 2, "--json"))["passages"]
    with TokenDatabase.open(db) as opened:
        answer = ask(opened, "a cat ran", encoder_of(opened, colbert), top=2)
        assert opened.schema.dtype == "bfloat16"
    assert [(passage["id"], passage["score"]) for passage in parsed] == list(
        zip(answer.top.ids.tolist(), answer.top.scores.tolist(), strict=True)
    )
    assert parsed[0]["matches"][3]["token"] == "cat"
    said = store("ask", db, "a cat ran", "--model", colbert, "--top", 1, "--where", "part = 1").splitlines()
    assert said[0].endswith(f"  {file}")
    assert said[1].strip() == TEXTS[1]
    assert re.fullmatch(r" +a: \S+ -?\d\.\d\d, cat: \S+ -?\d\.\d\d, ran: \S+ -?\d\.\d\d", said[2])
    assert store("ask", db, "cat", "--model", colbert, "--where", "part = 9") == "no passage meets the condition\n"
    assert "--scale multiplies cosines" in store("ask", db, "cat", "--model", colbert, "--scale", 3, code=1)
    assert store("check", db) == "3 rows: no damage\n"
    assert "tokens" in store("stats", db)
