"""What a database says, keeps and refuses."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from tolerance import assert_as_exact
from torch import Tensor

import uwaga
from uwaga import AttentionMap, SoftDatabase
from uwaga._base import durable, safetensors_files
from uwaga._base.errors import SoftDatabaseError
from uwaga.store import reading, segments
from uwaga.store.catalog import Catalog
from uwaga.store.reading import LiveRows, PassOptions


@pytest.fixture
def db(tmp_path: Path) -> Iterator[SoftDatabase]:
    """5,000 rows in three segments, with records."""
    with SoftDatabase.create(tmp_path / "db", key_width=8, value_width=3, model="m1") as made:
        for first, last in ((0, 100), (100, 3000), (3000, 5000)):
            numbers = torch.arange(first, last)
            records = [{"text": f"row {n}", "part": n % 7, "half": n / 2} for n in numbers.tolist()]
            made.append(keys(numbers), values(numbers), records)
        yield made


def keys(numbers: Tensor) -> Tensor:
    return (numbers[:, None] * torch.arange(1, 9) * 0.7).sin()


def values(numbers: Tensor) -> Tensor:
    return torch.stack([numbers.float(), -numbers.float(), torch.ones(len(numbers))], dim=1)


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
    torch.testing.assert_close(answer.effective_count.view(40), whole.effective_count(order=1), atol=0, rtol=1e-5)
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
        for query in (key[0], *torch.randn(40, 8)):
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


@pytest.mark.parametrize(
    "where",
    [
        "1) UNION SELECT 0 WHERE (1", "1) UNION ALL SELECT id FROM records WHERE (1", "1) EXCEPT SELECT 1 WHERE (1",
        "0) OR (1", "1)) OR ((1", "1) ORDER BY (1", "1) LIMIT (1", "1) GROUP BY (n", "1) HAVING (1",
        "1) WINDOW w AS (PARTITION BY n", "1) --", "1) /*", "1 /*", "1; SELECT 0", "1;", "", "-- 1", "1, 2", "1 AS x", "'", "1 ORDER BY 1",
        "1) THEN 1 END UNION SELECT 0 WHERE CASE WHEN (1", "1 THEN 1 END UNION SELECT 0 WHERE CASE WHEN 1", "1 THEN 1 WHEN 1",
        "SELECT 0", "(SELECT 0)", "EXISTS (SELECT 1)", "n IN (SELECT n FROM records)", "n IN (VALUES (1))", "n IN records",
        "WITH x AS (SELECT 1) SELECT 1", "count(*)", "max(n)", "row_number() OVER ()", "raise(ABORT, 'x')", "1\0",
    ],
)  # fmt: skip
def test_a_condition_is_one_expression_over_the_fields_of_a_row(three: SoftDatabase, where: str) -> None:
    said = refused(lambda: three.attend(torch.ones(3), where=where))
    assert said.startswith("SoftDatabase: the condition ")
    assert " cannot be used: " in said


@pytest.mark.parametrize(
    ("where", "ids"),
    [
        ("1", [1, 2]), ("n > 1 -- ) of no effect", [2]), ("/* ) */ n = 1", [1]), ("t = ')' OR n = 1", [1]),
        ("n BETWEEN 0 AND 1", [1]), ("n IN (0, 2)", [2]), ("(n, t) = (1, 'row 1')", [1]), ("t LIKE 'ROW%' AND n % 2 = 0", [2]),
        ("CASE WHEN n THEN n - 1 ELSE 1 END", [2]), ("length(t) + max(n, 1) = 6", [1]), ("id = 2", [2]), ("id IN (0, 1)", [1]),
        ("t GLOB '*[2-9]' COLLATE NOCASE", [2]), ("n IS NULL", []),
    ],
)  # fmt: skip
def test_what_a_condition_may_be(three: SoftDatabase, where: str, ids: list[int]) -> None:
    answer = three.attend(torch.ones(3), where=where)
    assert answer.rows == len(ids)
    assert answer.top.ids[answer.top.ids >= 0].tolist() == ids


def test_parameters_of_patterns_and_of_a_condition_that_is_used_again(three: SoftDatabase) -> None:
    """SQLite compiles a statement again for the value of a pattern."""
    for _ in range(2):
        for where, parameters, ids in (
            ("t LIKE ? AND n > ?", ("row %", 1), [2]),
            ("t LIKE :a OR t LIKE :b OR t GLOB :c", {"a": "x%", "b": "%2", "c": "*1"}, [1, 2]),
            ("t LIKE ? AND n > ?", ("row 1%", 0), [1]),
        ):
            result = three.attend(torch.ones(3), where=where, parameters=parameters).top.ids
            assert result[result >= 0].tolist() == ids


def test_a_record_of_a_deleted_row_brings_it_not_back(three: SoftDatabase) -> None:
    """As a damaged catalog may have it."""
    three.close()
    catalog = Catalog(three.path, write=True)
    with catalog.transaction():
        catalog.add_records(0, [{"n": 0, "t": "row 0"}])
    catalog.close()
    with SoftDatabase.open(three.path) as again:
        assert again.attend(torch.ones(3), where="n < 2").top.ids.tolist()[:2] == [1, -1]


@pytest.mark.parametrize(
    "zero", [0, False, *(kind(0) for kind in (np.int32, np.float64, np.bool_, np.array)), torch.tensor(0.0)]
)
def test_a_number_of_numpy_is_a_number(three: SoftDatabase, zero: object) -> None:
    assert three.attend(torch.ones(3), where="n > ?", parameters=[zero]).rows == 2
    assert three.attend(torch.ones(3), where="n > :least", parameters={"least": zero}).rows == 2
    assert three.search(torch.ones(3), 1, where="t = ?", parameters=(np.str_("row 1"),)).ids.tolist() == [1]


def test_ids_and_options_are_numbers_of_their_kind(three: SoftDatabase) -> None:
    assert three.records([2**70, -1, 2]) == [{}, {}, {"n": 2, "t": "row 2"}]
    query = torch.ones(3)
    assert three.attend(query, top=np.int64(1), scale=np.float32(1), tolerance=np.float32(0)).top.ids.shape == (1,)
    three.delete(torch.tensor([1]))
    three.delete(np.array([2]))
    assert len(three) == 0


@pytest.mark.parametrize("width", [None, 5])
def test_the_value_of_no_rows_has_the_width_of_values(tmp_path: Path, width: int | None) -> None:
    """Empty, with every row deleted, and compacted after it."""
    with SoftDatabase.create(tmp_path / "db", key_width=3, value_width=width, heads=2) as db:
        steps = (
            lambda: None,
            lambda: db.append(torch.ones(4, 2, 3), None if width is None else torch.ones(4, 2, 5)),
            lambda: db.delete(range(4)),
            db.compact,
        )
        for step in steps:
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
                assert (
                    db.search(query, 2).records == [[[None] * answer.top.ids.shape[2]] * 2] * 7
                    or db.stats()["segments"]
                )


def test_listed_rows_are_at_most_those_of_the_database(three: SoftDatabase, tmp_path: Path) -> None:
    answer = three.attend(torch.ones(2, 3), top=10**12)
    assert answer.top.ids.tolist() == [[1, 2, -1]] * 2
    assert answer.top.weights.tolist() == [[0.5, 0.5, 0.0]] * 2
    assert three.search(torch.ones(3), 10**12, where="n = 2").ids.tolist() == [2, -1, -1]
    assert three.attend(torch.ones(3), top=0).top.ids.shape == (0,)
    with SoftDatabase.create(tmp_path / "empty", key_width=3) as empty:
        assert empty.attend(torch.ones(2, 3), top=10**12).top.ids.tolist() == [[-1]] * 2


@pytest.mark.parametrize("size", [1e15, 1e37, -1e25])
@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_scores_of_any_size_that_float32_has_are_told_apart(tmp_path: Path, size: float, tolerance: float) -> None:
    with SoftDatabase.create(tmp_path / "db", key_width=2) as db:
        db.append(torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]).repeat(2000, 1)[:5999])
        best = 2 if size > 0 else 0
        query = torch.tensor([size, 0.0])
        answer = db.attend(query, scale=1.0, top=1, tolerance=tolerance)
        assert answer.value.tolist() == [best + 1.0, 0.0]
        assert answer.top.ids.tolist() == [best]
        assert answer.lse.item() == pytest.approx((best + 1) * float(query[0]), rel=2.0**-23)
        assert db.search(query, 1).ids.tolist() == [best]


def test_a_score_beyond_float32_is_an_error_with_its_row(tmp_path: Path) -> None:
    with SoftDatabase.create(tmp_path / "db", key_width=3) as db:
        db.append(torch.ones(3000, 3))
        db.append(torch.tensor([[1e30, 0.0, 0.0]]))
        db.delete([7])
        queries = torch.tensor([[0.0, 1.0, 0.0], [1e30, 0.0, 0.0]])
        for ask in (lambda s: db.attend(queries, scale=s), lambda s: db.attend(queries, scale=s, tolerance=0.1)):
            assert "row 3000 for query 1 is 1e+60" in refused(lambda ask=ask: ask(1.0))
        said = refused(lambda: db.search(queries, 1, scale=-1e38))
        assert re.match(r"SoftDatabase: the score of row (0|3000) for query 1 is -1e\+", said)


def clusters(rows: int) -> LiveRows:
    """20 clusters far apart, each in neighbouring rows."""
    torch.manual_seed(0)
    centres = 10 * torch.randn(20, 8).repeat_interleave(rows // 20, 0)
    key = (centres + 0.1 * torch.randn(rows, 8)).view(rows, 1, 8)
    entry = segments.Entry(0, rows - 1, rows, "", b"")
    bounds = zip(*map(segments.bound, key.split(segments.CHUNK)), strict=True)
    return LiveRows([segments.SegmentFile(entry, key, key, None, *(torch.stack(bound) for bound in bounds))], [None])


@pytest.mark.parametrize("attention", [True, False])
def test_rows_that_cannot_matter_are_skipped_and_no_bit_changes(attention: bool) -> None:
    live, query = clusters(40960), torch.randn(3, 1, 8)
    result, all_read = (reading.read(live, query, PassOptions(5.0, 5, attention, skip=skip)) for skip in (True, False))
    assert result.skipped > 20000
    assert all_read.skipped == 0
    assert torch.equal(result.value, all_read.value)
    for name in ("lse", "entropy", "top_ids", "top_scores"):
        assert getattr(result, name).tobytes() == getattr(all_read, name).tobytes()


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


def test_what_a_tolerance_leaves_out_is_certified() -> None:
    live, query = clusters(40960), torch.randn(2, 1, 8)
    result = reading.read(live, query, PassOptions(0.5, 3, True, tolerance=1e-3))
    key = live.segments[0].keys[:, 0].double()
    weights = (0.5 * query[:, 0].double() @ key.T).softmax(-1)
    left = 1 - torch.from_numpy(result.lse).exp() / (0.5 * query[:, 0].double() @ key.T).exp().sum(-1)
    assert result.skipped > 10000
    assert (torch.from_numpy(result.skipped_weight_bound) <= 1e-3).all()
    assert (left <= torch.from_numpy(result.skipped_weight_bound) + 1e-5).all()
    assert (result.value - weights @ key).abs().max() <= 2 * result.skipped_weight_bound.max() * key.abs().max() + 1e-4


def test_a_reader_keeps_what_it_opened_until_it_refreshes(db: SoftDatabase) -> None:
    with SoftDatabase.open(db.path) as reader:
        before = reader.attend(QUERY)
        db.delete(before.top.ids.tolist())
        db.compact()
        again = reader.attend(QUERY)
        assert torch.equal(before.value, again.value)
        assert again.top.records == before.top.records
        assert len(reader) == 5000
        reader.refresh()
        assert len(reader) == 4990
        assert torch.equal(reader.attend(QUERY).value, db.attend(QUERY).value)


def test_a_reader_opens_while_the_writer_compacts(db: SoftDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, calls, open_file = db.attend(QUERY), [], safetensors_files.open_file

    def compacted_before(path: Path) -> object:
        """Between the reader's look at the catalog and its opening of the first file."""
        calls.append(path)
        if len(calls) == 1:
            db.compact()
        return open_file(path)

    monkeypatch.setattr(safetensors_files, "open_file", compacted_before)
    with SoftDatabase.open(db.path) as reader:
        assert reader.damaged == []
        assert reader.stats()["segments"] == 1
        assert torch.equal(reader.attend(QUERY).value, answer.value)


def test_what_a_writer_has_replaced_is_no_damage(db: SoftDatabase) -> None:
    with SoftDatabase.open(db.path) as reader:
        db.compact()
        assert reader.check() == []
        reader.refresh()
        segment_files(db)[0].unlink()
        (damage,) = reader.check()
        assert damage.reason == "there is no such file"


def test_the_map_of_a_database_is_an_attention_map(db: SoftDatabase) -> None:
    db.delete([7])
    queries = torch.stack([QUERY, -QUERY])
    m, answer = db.map(queries, scale=1.0), db.attend(queries, scale=1.0, top=3)
    assert m.shape == (2, 4999)
    assert torch.equal(db.ids()[m.topk(3).positions], answer.top.ids)
    torch.testing.assert_close(m.received().sum(), torch.tensor(2.0))


def test_parquet_brings_back_every_row(db: SoftDatabase, tmp_path: Path) -> None:
    db.export(tmp_path / "rows.parquet")
    with SoftDatabase.create(tmp_path / "copy", key_width=8, value_width=3) as copy:
        assert copy.append_parquet(tmp_path / "rows.parquet") == range(5000)
        assert torch.equal(copy.attend(QUERY).value, db.attend(QUERY).value)
        assert [row.record for row in copy] == [row.record for row in db]


def test_records_are_data(db: SoftDatabase) -> None:
    key, value = keys(torch.arange(2)), values(torch.arange(2))
    hostile = [{}, {'a"; DROP TABLE records; --': "\x00'); --"}]
    db.append(key, value, hostile)
    assert db.records([5000, 5001]) == hostile
    assert db.check() == []


# Files of others: a database removes what its own catalog has named, and nothing else.


@pytest.fixture
def linked(db: SoftDatabase, tmp_path: Path) -> SoftDatabase:
    """A writer whose folder of segments became a link to that of `db`."""
    other = SoftDatabase.create(tmp_path / "other", key_width=8, value_width=3)
    other.append(keys(torch.arange(10)), values(torch.arange(10)))
    (other.path / "segments").rename(tmp_path / "moved")
    (other.path / "segments").symlink_to(db.path / "segments")
    return other


def test_a_folder_of_segments_that_is_a_link_is_refused(db: SoftDatabase, linked: SoftDatabase) -> None:
    before = segment_files(db)
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


def test_a_link_in_the_place_of_the_folder_loses_nothing_of_what_it_refers_to(
    db: SoftDatabase, linked: SoftDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it was put there behind the check."""
    before = segment_files(db)
    monkeypatch.setattr(SoftDatabase, "_segment_folder", lambda self: self.path / "segments")
    linked.append(keys(torch.arange(10)), values(torch.arange(10)))
    with suppress(SoftDatabaseError):
        linked.compact()
    linked.close()
    assert set(before) <= set(segment_files(db))
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


def test_what_a_killed_writer_left_is_removed_by_the_next_one(
    db: SoftDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = segment_files(db)
    with monkeypatch.context() as patch:  # as a process that ends before its transaction
        patch.setattr(Catalog, "add_segment", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(SoftDatabase, "_remove_unlisted", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            db.append(keys(torch.arange(9)), values(torch.arange(9)))
    (left,) = set(segment_files(db)) - set(before)
    half = left.with_name(f".{left.name[:40]}.uwaga-{'0' * 16}")
    half.write_bytes(b"half")
    db.close()
    with SoftDatabase.open(db.path) as again:
        again.delete([1])
        assert segment_files(db) == before
        assert again.append(keys(torch.arange(9)), values(torch.arange(9))) == range(5000, 5009)


# Damage: what somebody else, or a failing disk, has done to the files.


def segment_files(db: SoftDatabase) -> list[Path]:
    return sorted((db.path / "segments").iterdir())


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-200] ^= 4
    path.write_bytes(content)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGE = {
    "flipped": (_flip, "rows 2100 to 2999: (.*: )?the rows differ from their checksum", False),
    "truncated": (lambda path: os.truncate(path, 1000), "rows 100 to 2999: .*is not a valid safetensors file", True),
    "missing": (Path.unlink, "rows 100 to 2999: there is no such file", True),
    "symlink": (_link, "rows 100 to 2999: is a symbolic link or not a regular file, which no segment is", True),
    "empty": (lambda path: path.write_bytes(b""), "rows 100 to 2999: .*its header claims 0 bytes", True),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_by_file_and_rows_and_the_rest_is_read(db: SoftDatabase, name: str) -> None:
    spoil, said, unreadable = DAMAGE[name]
    path = segment_files(db)[1]
    db.close()
    spoil(path)
    with SoftDatabase.open(db.path) as again:
        (result,) = again.check()
        assert re.search(said.replace("2100", r"2\d+"), str(result))
        assert result.file == path.name
        if not unreadable:
            return
        (damaged,) = again.damaged
        assert damaged in refused(lambda: again.attend(QUERY), SoftDatabaseError)
        assert f"{path} (rows 100 to 2999): " in damaged
        # Rows elsewhere that a condition selects, and all others once these are deleted.
        assert again.attend(QUERY, where="id < 100").lse.isfinite()
        again.delete(range(100, 3000))
        numbers = torch.cat([torch.arange(100), torch.arange(3000, 5000)])
        exact = uwaga.attention(QUERY[None].double(), keys(numbers).double(), values(numbers).double())[0]
        torch.testing.assert_close(again.attend(QUERY).value, exact.float(), atol=1e-2, rtol=1e-5)


def _flip_key(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("gone", [[], [1, 5]])
@pytest.mark.parametrize(
    ("spoil", "is_only", "is_open", "has_gaps"),
    [
        (lambda path: os.truncate(path, 100), True, False, True),
        (lambda path: os.truncate(path, 100), False, True, False),
        (Path.unlink, True, True, False),
        (Path.unlink, False, False, True),
        (_flip_key, True, False, False),
        (_flip_key, False, True, True),
    ],
)
def test_what_check_reports_can_be_removed(
    tmp_path: Path, spoil: Callable[[Path], None], is_only: bool, is_open: bool, gone: list[int], has_gaps: bool
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
    (path,) = (path for path in segment_files(db) if path.name.startswith("0" * 12))
    spoil(path)
    if not is_open:
        db.close()
        db = SoftDatabase.open(tmp_path / "db")
    with db:
        (damage,) = db.check()
        assert (damage.first_id, damage.last_id) == (0, 9)
        if has_gaps and db.damaged:
            said = refused(lambda: db.delete([0, 2]), SoftDatabaseError)
            assert said.endswith(". Which rows it had is not known: delete all of range(0, 10)")
        db.delete(range(damage.first_id, damage.last_id + 1), missing_ok=True)
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
        before = len(reader.attend(keys(torch.tensor([0]))).top.ids[0])
        path = segment_files(db)[1]
        size = path.stat().st_size
        os.truncate(path, size // 2)
        told = f"{path} (rows 100 to 2999): was truncated while it was open, from {size:,} to {size // 2:,} bytes"
        for ask in (
            lambda: reader.attend(keys(torch.tensor([0]))),
            lambda: reader.attend(keys(torch.tensor([0])), where="part = 1"),
            lambda: reader.search(keys(torch.tensor([0])), 3),
            lambda: list(reader),
            lambda: reader.map(keys(torch.tensor([0]))),
        ):
            message = refused(ask, SoftDatabaseError)
            assert told in message
        assert reader.damaged == [told]
        assert [damage.first_id for damage in reader.check()] == [100]
        assert len(reader.attend(keys(torch.tensor([0])), where="text = 'row 7'").top.ids[0]) == before


def _sql(*statements: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as other:
            for sql in statements:
                other.execute(sql)
        other.close()

    return change


def test_the_names_of_files_to_remove_are_those_of_segments(db: SoftDatabase) -> None:
    db.append(keys(torch.arange(1)), values(torch.arange(1)))
    db.close()
    path = db.path / "catalog.sqlite"
    _sql("INSERT OR REPLACE INTO settings VALUES ('unlisted', '../lock')")(path)
    with SoftDatabase.open(db.path) as again:
        refused(lambda: again.delete([0]), SoftDatabaseError)
    _sql(f"UPDATE settings SET value = '{segment_files(db)[0].name}' WHERE name = 'unlisted'")(path)
    with SoftDatabase.open(db.path) as again:
        again.delete([0])
        assert again.check() == []


def test_a_database_without_a_version_is_of_the_first(db: SoftDatabase) -> None:
    db.close()
    _sql("PRAGMA user_version = 0", "DELETE FROM settings WHERE name = 'unlisted'")(db.path / "catalog.sqlite")
    with SoftDatabase.open(db.path) as again:
        again.append(keys(torch.arange(9)), values(torch.arange(9)))
        again.delete([0])
        again.compact()
        assert len(again) == 5008
        assert again.check() == []


def test_ids_have_a_bound_that_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    with SoftDatabase.create(tmp_path / "db", key_width=2) as db:
        db.append(torch.ones(1, 2))
    _sql(f"UPDATE settings SET value = '{10**12 - 3}' WHERE name = 'next_id'")(tmp_path / "db" / "catalog.sqlite")
    with SoftDatabase.open(tmp_path / "db") as db:
        refused(lambda: db.append(torch.ones(4, 2)))
        assert len(segment_files(db)) == 1
        assert db.append(torch.ones(3, 2)) == range(10**12 - 3, 10**12)
        assert db.append(torch.ones(0, 2)) == range(10**12, 10**12)
    with SoftDatabase.open(tmp_path / "db") as db:
        assert db.ids().tolist() == [0, 10**12 - 3, 10**12 - 2, 10**12 - 1]
        db.compact()
        assert db.check() == []
        refused(lambda: db.append(torch.ones(1, 2)))


@pytest.mark.parametrize("fails", ["fsync", "rename_folder", "catalog"])
def test_a_creation_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(*(Catalog, "create") if fails == "catalog" else (durable, fails), full)
    said = refused(lambda: SoftDatabase.create(tmp_path / "db", key_width=3), SoftDatabaseError)
    assert "cannot be created: No space left" in said
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_fails_leaves_the_database_as_it_was(db: SoftDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    before, files = db.attend(QUERY), segment_files(db)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        said = refused(lambda: db.append(keys(torch.arange(9)), values(torch.arange(9))), SoftDatabaseError)
    assert "cannot be written: No space left" in said
    assert segment_files(db) == files
    assert torch.equal(db.attend(QUERY).value, before.value)
    assert db.append(keys(torch.arange(9)), values(torch.arange(9))) == range(5000, 5009)


def test_who_may_not_write_the_folder_reads_on(db: SoftDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    db.close()
    monkeypatch.setattr(durable, "file_lock", denied)
    with SoftDatabase.open(db.path) as reader:
        assert "cannot be written: Permission denied" in refused(lambda: reader.delete([0]), SoftDatabaseError)
        assert len(reader) == len(reader.ids()) == 5000


def test_damaged_rows_are_not_written_anew(tmp_path: Path) -> None:
    """They would get a checksum of their own, and nothing would say that they were damaged."""
    with SoftDatabase.create(tmp_path / "db", key_width=3) as db:
        db.append(torch.ones(3000, 3))
        db.delete([0])
        (path,) = segment_files(db)
        _flip_key(path)  # of the last chunk, rows 2048 to 2999
        assert "rows 2048 to 2999" in refused(db.compact, SoftDatabaseError)
        assert len(db) == 2999
        db.delete(range(2048, 3000))
        db.compact()
        assert db.check() == []
        assert len(db) == 2047
