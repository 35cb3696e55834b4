"""What a database says, keeps and refuses."""

import json
import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import full_disk
import numpy as np
import pytest
import torch
from pyarrow import parquet
from tolerance import assert_as_exact
from torch import Tensor

import uwaga
from uwaga import AttentionMap, SoftDatabase
from uwaga._base.errors import SoftDatabaseError
from uwaga.store import reading, segments
from uwaga.store.catalog import Parameters
from uwaga.store.reading import LiveRows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of 5,000 rows in three segments, with records."""
    path = tmp_path_factory.mktemp("rows") / "db"
    with SoftDatabase.create(path, key_width=8, value_width=3, model="m1") as made:
        for first, last in ((0, 100), (100, 3000), (3000, 5000)):
            numbers = torch.arange(first, last)
            records = [{"text": f"row {n}", "part": n % 7, "half": n / 2} for n in numbers.tolist()]
            made.append(keys(numbers), values(numbers), records)
    return path


@pytest.fixture
def db(rows: Path, tmp_path: Path) -> Iterator[SoftDatabase]:
    """The writer of a copy of that database."""
    with SoftDatabase.open(shutil.copytree(rows, tmp_path / "db")) as opened:
        opened.append(keys(torch.arange(0)), values(torch.arange(0)))
        yield opened


def keys(numbers: Tensor) -> Tensor:
    return (numbers[:, None] * torch.arange(1, 9) * 0.7).sin()


def values(numbers: Tensor) -> Tensor:
    return torch.stack([numbers.float(), -numbers.float(), torch.ones(len(numbers))], dim=1)


def segment_files(db: SoftDatabase) -> list[Path]:
    return sorted((db.path / "segments").iterdir())


def refused(what: Callable[[], object], kind: type[Exception] = ValueError) -> str:
    with pytest.raises(kind) as caught:
        what()
    return str(caught.value)


QUERY = torch.tensor([0.1, -0.5, 0.2, 0.9, 0.0, 0.3, -0.2, 1.0])


def test_an_answer_is_attention_over_all_rows_and_says_who_gave_it(db: SoftDatabase) -> None:
    queries, everything = torch.randn(20, 2, 8), torch.arange(5000)
    answer = db.attend(queries, scale=2.0, top=4)
    flat, key, value = queries.view(40, 8), keys(everything), values(everything)

    def exact() -> Tensor:
        return uwaga.attention(flat.double(), key.double(), value.double(), scale=2.0)

    plain = torch.softmax(2.0 * flat @ key.T, -1) @ value
    assert answer.value.shape == (20, 2, 3)
    assert_as_exact(answer.value.view(40, 3), plain, exact)
    whole = AttentionMap(flat.double(), key.double(), scale=2.0)
    torch.testing.assert_close(answer.lse.view(40), whole.lse, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(answer.entropy.view(40), whole.entropy(), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(answer.effective_count.view(40), whole.entropy().exp(), atol=0, rtol=1e-5)
    best = whole.topk(4)
    assert torch.equal(answer.top.ids.view(40, 4), best.positions)
    torch.testing.assert_close(answer.top.weights.view(40, 4), best.weights, atol=0, rtol=1e-5)
    torch.testing.assert_close(answer.unlisted_weight, 1 - answer.top.weights.sum(-1), atol=1e-12, rtol=0)
    number = answer.top.ids[3, 1, 2].item()
    assert answer.top.records[3][1][2] == {"text": f"row {number}", "part": number % 7, "half": number / 2}


def test_bits_do_not_depend_on_threads(db: SoftDatabase) -> None:
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(db.attend(QUERY.repeat(9, 1), scale=3.0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0].value, results[1].value)
    assert torch.equal(results[0].lse, results[1].lse)
    assert torch.equal(results[0].top.weights, results[1].top.weights)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6])
def test_weights_descend_as_scores_do_and_copies_have_one_weight(tmp_path: Path, scale: float) -> None:
    """Scores are float64, and the weights within a block float32."""
    torch.manual_seed(0)
    key = torch.randn(5000, 8)
    key[100] = key[3000] = key[4500] = 3 * key[0]
    with SoftDatabase.create(tmp_path / "db", key_width=8) as db:
        db.append(key[:2500])
        db.append(key[2500:])
        for query in (key[0], *torch.randn(10, 8)):
            answer = db.attend(query, scale=scale, top=7)
            weights, scores = answer.top.weights, answer.top.scores
            assert (weights.diff() <= 0).all()
            assert (weights.diff()[scores.diff() == 0] == 0).all()
            torch.testing.assert_close(
                weights.sum() + answer.unlisted_weight, torch.tensor(1.0, dtype=torch.float64), atol=1e-6, rtol=0
            )
        copies = db.attend(key[0], scale=scale, top=3).top
        assert copies.ids.tolist() == [100, 3000, 4500]
        assert len(set(copies.weights.tolist())) == 1


@pytest.fixture
def three(tmp_path: Path) -> Iterator[SoftDatabase]:
    """Rows 0 to 2, of which 0 is deleted."""
    with SoftDatabase.create(tmp_path / "three", key_width=3) as made:
        made.append(torch.eye(3), records=[{"n": n, "t": f"row {n}"} for n in range(3)])
        made.delete([0])
        yield made


def test_a_condition_is_an_expression_over_the_fields_of_a_row(three: SoftDatabase) -> None:
    for where in (
        "1) UNION SELECT 0 WHERE (1", "0) OR (1", "1) LIMIT (1", "1) --", "1 /*", "1; SELECT 0", "1;", "", "-- 1", "1, 2", "1 AS x",
        "'", "1 ORDER BY 1", "SELECT 0", "count(*)", "max(n)", "row_number() OVER ()", "load_extension('x')", "writefile('x', 'y')",
        "1\0", "\ud800",
    ):  # fmt: skip
        said = refused(lambda where=where: three.attend(torch.ones(3), where=where))
        assert said.startswith("SoftDatabase: the condition ")
        assert " cannot be used: " in said
        assert three.check() == []


def test_what_a_condition_may_be(three: SoftDatabase) -> None:
    for where, ids in (
        ("1", [1, 2]), ("n > 1 -- ) of no effect", [2]), ("/* ) */ n = 1", [1]), ("t = ')' OR n = 1", [1]),
        ("n BETWEEN 0 AND 1", [1]), ("n IN (0, 2)", [2]), ("(n, t) = (1, 'row 1')", [1]), ("t LIKE 'ROW%' AND n % 2 = 0", [2]),
        ("CASE WHEN n THEN n - 1 ELSE 1 END", [2]), ("length(t) + max(n, 1) = 6", [1]), ("id = 2", [2]), ("id IN (0, 1)", [1]),
        ("t GLOB '*[2-9]' COLLATE NOCASE", [2]), ("n IS NULL", []),
    ):  # fmt: skip
        assert found(three, where) == ids, where
    for _ in range(2):  # SQLite compiles a statement again for the value of a pattern
        assert found(three, "t LIKE ? AND n > ?", ("row %", 1)) == [2]
        assert found(three, "t LIKE :a OR t LIKE :b OR t GLOB :c", {"a": "x%", "b": "%2", "c": "*1"}) == [1, 2]
        assert found(three, "t LIKE ? AND n > ?", ("row 1%", 0)) == [1]


def found(db: SoftDatabase, where: str, parameters: Parameters = ()) -> list[int]:
    ids = db.attend(torch.ones(3), where=where, parameters=parameters).top.ids
    return ids[ids >= 0].tolist()


def test_numbers_of_numpy_and_torch_are_numbers(three: SoftDatabase) -> None:
    for zero in (0, False, np.int32(0), np.float64(0), np.bool_(0), np.array(0), torch.tensor(0.0)):
        assert found(three, "n > ?", [zero]) == found(three, "n > :least", {"least": zero}) == [1, 2]
    assert found(three, "t = ?", (np.str_("row 1"),)) == [1]
    assert three.records([2**70, -1, 2]) == [{}, {}, {"n": 2, "t": "row 2"}]
    answer = three.attend(torch.ones(3), top=np.int64(1), scale=np.float32(1))
    assert answer.top.ids.shape == (1,)
    three.delete(torch.tensor([1]))
    three.delete(np.array([2]))
    assert len(three) == 0


@pytest.mark.parametrize("width", [None, 5])
def test_the_value_of_no_rows_has_the_width_of_values(tmp_path: Path, width: int | None) -> None:
    """Empty, with every row deleted, and compacted after it."""
    with SoftDatabase.create(tmp_path / "db", key_width=3, value_width=width, heads=2) as db:
        for step in (
            lambda: None,
            lambda: db.append(torch.ones(4, 2, 3), None if width is None else torch.ones(4, 2, 5)),
            lambda: db.delete(range(4)),
            db.compact,
        ):
            step()
            query = torch.ones(7, 2, 3, requires_grad=True)
            answer = db.attend(query)
            assert answer.value.shape == (7, 2, width or 3)
            answer.value.sum().backward()
            assert query.grad.shape == query.shape
            if not len(db):
                assert not answer.value.any()
                assert not query.grad.any()
                assert answer.lse.isneginf().all()


def test_listed_rows_are_at_most_those_that_meet_the_condition(three: SoftDatabase, tmp_path: Path) -> None:
    answer = three.attend(torch.ones(2, 3), top=10**12)
    assert answer.top.ids.tolist() == [[1, 2]] * 2
    assert answer.top.weights.tolist() == [[0.5, 0.5]] * 2
    assert three.search(torch.ones(3), 10**12, where="n = 2").ids.tolist() == [2]
    assert three.search(torch.ones(3), where="n = 9").records == []
    assert three.attend(torch.ones(3), top=0).top.ids.shape == (0,)
    with SoftDatabase.create(tmp_path / "empty", key_width=3) as empty:
        assert empty.attend(torch.ones(2, 3), top=10**12).top.ids.shape == (2, 0)


def test_scores_of_any_size_that_float32_has_are_told_apart(tmp_path: Path) -> None:
    with SoftDatabase.create(tmp_path / "db", key_width=2) as db:
        db.append(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]).repeat(2000, 1)[:5999])
        for size in (1e15, 1e37, -1e25):
            best, query = 2 if size > 0 else 0, torch.tensor([size, 0.0])
            assert db.search(query, 1).ids.tolist() == [best]
            answer = db.attend(query, scale=1.0, top=1)
            assert answer.value.tolist() == [best + 1.0, 0.0]
            assert answer.top.ids.tolist() == [best]
            assert answer.lse.item() == pytest.approx((best + 1) * float(query[0]), rel=2.0**-23)
            assert answer.top.weights.item() == pytest.approx(1 / len(range(best, 5999, 3)))  # of equal rows


def clusters(rows: int) -> LiveRows:
    """20 clusters far apart, each in neighbouring rows."""
    torch.manual_seed(0)
    centres = 10 * torch.randn(20, 8).repeat_interleave(rows // 20, 0)
    key = (centres + 0.1 * torch.randn(rows, 8)).view(rows, 1, 8)
    entry = segments.Entry(0, rows - 1, rows, "", b"")
    bounds = zip(*map(segments.bound, key.split(segments.CHUNK)), strict=True)
    return LiveRows([segments.SegmentFile(entry, key, key, None, *(torch.stack(bound) for bound in bounds))], [None])


def test_a_search_does_not_read_rows_that_cannot_matter() -> None:
    live, query = clusters(40960), torch.randn(1, 1, 8)
    keys = live.segments[0].keys
    scores, ids = (query[0, 0].double() @ keys[:, 0].double().T).topk(5)
    # A block that is read and has such numbers is an error.
    keys[ids[0] // 2048 * 2048 + 4096 :] = keys[: ids[0] // 2048 * 2048 - 2048] = torch.nan
    (result,) = reading.passes(live, query, 1.0, 5, attention=False)
    assert result.top_ids[0].tolist() == ids.tolist()
    np.testing.assert_allclose(result.top_scores[0], scores.numpy(), rtol=1e-14)
    with pytest.raises(SoftDatabaseError, match=r"rows 0 to .* NaN or infinite"):
        reading.passes(live, query, 1.0, 5, attention=True)


@pytest.mark.parametrize("scale", [1.0, 1e14, 1e37])
def test_the_entropy_of_equal_scores_has_no_cancellation(tmp_path: Path, scale: float) -> None:
    with SoftDatabase.create(tmp_path / "db", key_width=2) as db:
        db.append(torch.zeros(2048, 2))
        db.append(torch.tensor([[1.0, 0.0]]).repeat(2048, 1))
        answer = db.attend(torch.tensor([1.0, 0.0]), scale=scale)
        weights = torch.tensor([0.0, scale]).repeat_interleave(2048).double().softmax(0)
        torch.testing.assert_close(answer.entropy, torch.special.entr(weights).sum(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_keys_whose_squares_overflow_or_vanish_are_answered(tmp_path: Path, size: float) -> None:
    key = torch.randn(5000, 4)
    with SoftDatabase.create(tmp_path / "db", key_width=4) as db:
        db.append(size * key)
        for query in (torch.randn(3, 4) / size, torch.zeros(3, 4)):
            answer, weights = db.attend(query, scale=1.0), (query.double() @ (size * key).double().T).softmax(-1)
            torch.testing.assert_close(answer.value / size, (weights @ key.double()).float(), atol=1e-5, rtol=1e-4)
            best = (query.double() @ (size * key).double().T).topk(5)
            torch.testing.assert_close(db.search(query, 5).scores, best.values, atol=1e-6, rtol=1e-6)


def test_a_reader_keeps_what_it_opened_until_it_refreshes(db: SoftDatabase) -> None:
    with SoftDatabase.open(db.path) as reader:
        before = reader.attend(QUERY)
        db.delete(before.top.ids.tolist())
        db.compact()
        again = reader.attend(QUERY)
        assert torch.equal(before.value, again.value)
        assert again.top.records == before.top.records
        assert len(reader) == 5000
        assert reader.check() == []  # of what the database is now
        reader.refresh()
        assert len(reader) == 4990
        assert torch.equal(reader.attend(QUERY).value, db.attend(QUERY).value)


def test_the_map_of_a_database_is_an_attention_map(db: SoftDatabase) -> None:
    db.delete([7])
    queries = torch.stack([QUERY, -QUERY])
    m, answer = db.map(queries, scale=1.0), db.attend(queries, scale=1.0, top=3)
    assert m.shape == (2, 4999)
    assert torch.equal(db.ids()[m.topk(3).positions], answer.top.ids)
    torch.testing.assert_close(m.received().sum(), torch.tensor(2.0))


def test_an_exported_file_has_every_row(db: SoftDatabase, tmp_path: Path) -> None:
    db.export(tmp_path / "rows.parquet")
    table = parquet.read_table(tmp_path / "rows.parquet")
    assert table.column_names == ["id", "key", "value", "record"]
    rows = list(db)
    for name in ("key", "value"):
        assert torch.equal(torch.tensor(table[name].to_pylist()), torch.stack([getattr(row, name) for row in rows]))
    assert table["id"].to_pylist() == [row.id for row in rows]
    assert [json.loads(text) for text in table["record"].to_pylist()] == [row.record for row in rows]


def test_records_are_data(db: SoftDatabase) -> None:
    key, value = keys(torch.arange(2)), values(torch.arange(2))
    hostile = [{}, {'a"; DROP TABLE records; --': "\x00'); --"}]
    db.append(key, value, hostile)
    assert db.records([5000, 5001]) == hostile
    assert db.check() == []


# Files of others: a database removes what its own catalog has named, and nothing else.


def test_a_folder_of_segments_that_is_a_link_is_refused(db: SoftDatabase, tmp_path: Path) -> None:
    """It became a link to that of another database while its writer had it open."""
    before, linked = segment_files(db), SoftDatabase.create(tmp_path / "other", key_width=8, value_width=3)
    linked.append(keys(torch.arange(10)), values(torch.arange(10)))
    (linked.path / "segments").rename(tmp_path / "moved")
    (linked.path / "segments").symlink_to(db.path / "segments")
    for what in (
        lambda: linked.append(keys(torch.arange(10)), values(torch.arange(10))),
        lambda: linked.delete([0]),
        linked.compact,
        linked.refresh,
        linked.check,
        lambda: SoftDatabase.open(linked.path),
    ):
        refused(what, SoftDatabaseError)
    linked.close()
    assert segment_files(db) == before
    assert db.check() == []


def test_a_file_that_looks_like_a_segment_is_not_removed(db: SoftDatabase) -> None:
    db.close()
    folder = db.path / "segments"
    strange = [folder / segments.new_name(7), folder / f".{segments.new_name(7)[:40]}.uwaga-{'0' * 16}"]
    for path in strange:
        path.write_bytes(b"of somebody else")
    with SoftDatabase.open(db.path) as again:
        again.append(keys(torch.arange(9)), values(torch.arange(9)))
        again.delete([1])
        again.compact()
        assert len(segment_files(db)) == again.stats()["segments"] + 2
    assert [path.read_bytes() for path in strange] == [b"of somebody else"] * 2


def test_a_file_to_remove_that_is_a_segment_is_kept(db: SoftDatabase) -> None:
    db.append(keys(torch.arange(1)), values(torch.arange(1)))
    db.close()
    with sqlite3.connect(db.path / "catalog.sqlite") as catalog:
        catalog.execute("UPDATE settings SET value = ? WHERE name = 'unlisted'", (segment_files(db)[0].name,))
    catalog.close()
    with SoftDatabase.open(db.path) as again:
        again.delete([0])
        assert again.check() == []


# Damage: what somebody else, or a failing disk, has done to the files.


def cut(path: Path) -> None:
    os.truncate(path, 100)


def flip(path: Path) -> None:
    """One bit of the last rows."""
    content = bytearray(path.read_bytes())
    content[-20] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [flip, cut])
def test_damage_is_found_by_file_and_rows_and_the_rest_is_read(db: SoftDatabase, spoil: Callable[[Path], None]) -> None:
    path = segment_files(db)[1]
    db.close()
    spoil(path)
    with SoftDatabase.open(db.path) as again:
        (result,) = again.check()
        assert result.file == path.name
        if spoil is flip:
            assert re.search(r"rows 2\d+ to 2999: (.*: )?the rows differ from their checksum", str(result))
            return
        (damaged,) = again.damaged
        assert damaged in refused(lambda: again.attend(QUERY), SoftDatabaseError)
        assert damaged.startswith(f"{path} (rows 100 to 2999): ")
        # Rows elsewhere that a condition selects, and all others once these are deleted.
        assert again.attend(QUERY, where="id < 100").lse.isfinite()
        again.delete(range(100, 3000))
        numbers = torch.cat([torch.arange(100), torch.arange(3000, 5000)])
        exact = uwaga.attention(QUERY[None].double(), keys(numbers).double(), values(numbers).double())[0]
        torch.testing.assert_close(again.attend(QUERY).value, exact.float(), atol=1e-2, rtol=1e-5)


@pytest.mark.parametrize(
    ("spoil", "is_only", "is_open", "has_gaps", "gone"),
    [
        (cut, True, False, True, [1, 5]),
        (Path.unlink, True, True, False, []),
        (Path.unlink, False, False, True, []),
        (flip, True, False, False, []),
        (flip, False, True, True, [1, 5]),
    ],
)
def test_what_check_reports_can_be_removed(
    tmp_path: Path, spoil: Callable[[Path], None], is_only: bool, is_open: bool, has_gaps: bool, gone: list[int]
) -> None:
    """Whether the segment says itself which rows it has or not, and with rows of it deleted before or not."""
    db = SoftDatabase.create(tmp_path / "db", key_width=3)
    db.append(torch.ones(10, 3), records=[{"n": n} for n in range(10)])
    if has_gaps:
        db.delete([3, 4])
        db.compact()
    if not is_only:
        db.append(torch.ones(5, 3), records=[{"n": n} for n in range(10, 15)])
    db.delete(gone)
    spoil(segment_files(db)[0])
    if not is_open:
        db.close()
        db = SoftDatabase.open(tmp_path / "db")
    with db:
        (damage,) = db.check()
        assert (damage.first_id, damage.last_id) == (0, 9)
        if db.damaged:
            said = refused(lambda: db.delete([0, 2]), SoftDatabaseError)
            assert said.endswith(". Restore the file, or delete all of range(0, 10)")
        db.delete(range(10), missing_ok=True)
        left = [] if is_only else list(range(10, 15))
        for _ in range(2):
            assert len(db) == len(left)
            assert db.ids().tolist() == left
            assert db.damaged == []
            assert [row.record for row in db] == [{"n": n} for n in left]
            assert db.attend(torch.ones(3), where="n >= 0").rows == len(left)
            db.compact()
        assert db.check() == []
        assert len(segment_files(db)) == len(left) // 5
        assert db.append(torch.ones(1, 3)) == range(10 + len(left), 11 + len(left))


def test_a_segment_that_was_restored_is_not_removed_as_a_whole(db: SoftDatabase) -> None:
    db.delete([0])
    db.compact()
    path = segment_files(db)[0]
    path.rename(db.path / "away")
    with SoftDatabase.open(db.path) as reader:
        assert len(reader.damaged) == 1
        db.close()
        (db.path / "away").rename(path)
        reader.delete([1])
        assert len(reader) == 4998
        assert reader.damaged == []


def test_a_file_that_is_truncated_while_it_is_open_is_told_before_it_is_read(db: SoftDatabase) -> None:
    """Reading what is gone would end the process by SIGBUS."""
    with SoftDatabase.open(db.path) as reader:
        path, query = segment_files(db)[1], QUERY[None]
        size = path.stat().st_size
        os.truncate(path, size // 2)
        told = f"{path} (rows 100 to 2999): was truncated while it was open, from {size:,} to {size // 2:,} bytes"
        for ask in (
            lambda: reader.attend(query),
            lambda: reader.attend(query, where="part = 1"),
            lambda: reader.search(query, 3),
            lambda: list(reader),
            lambda: reader.map(query),
        ):
            assert told in refused(ask, SoftDatabaseError)
        assert reader.damaged == [told]
        assert [damage.first_id for damage in reader.check()] == [100]
        assert reader.attend(query, where="text = 'row 7'").rows == 1


def test_a_full_disk_leaves_everything_as_it_was(db: SoftDatabase, tmp_path: Path) -> None:
    with full_disk.room_for(100):
        said = refused(lambda: SoftDatabase.create(tmp_path / "new", key_width=3), SoftDatabaseError)
    assert said.startswith(f"{tmp_path}/new: cannot be created: ")
    assert list(tmp_path.iterdir()) == [db.path]
    before, files, many = db.attend(QUERY), segment_files(db), torch.arange(100_000)
    with full_disk.room_for(2**21):
        said = refused(lambda: db.append(keys(many), values(many)), SoftDatabaseError)
    assert said == f"{db.path}/segments: cannot be written: File too large"
    assert segment_files(db) == files
    assert torch.equal(db.attend(QUERY).value, before.value)
    assert db.append(keys(torch.arange(9)), values(torch.arange(9))) == range(5000, 5009)


def test_who_cannot_lock_the_folder_reads_on(db: SoftDatabase) -> None:
    db.close()
    (db.path / "lock").unlink()
    (db.path / "lock").mkdir()
    with SoftDatabase.open(db.path) as reader:
        assert f"{db.path}: cannot be written: " in refused(lambda: reader.delete([0]), SoftDatabaseError)
        assert len(reader) == len(reader.ids()) == 5000
