"""`uwaga encode`: what it writes, that it resumes after anything, and its messages about bad input."""

import errno
import gzip
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import commands
import numpy as np
import pyarrow as pa
import pytest
import torch
from opened import when_opened
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from uwaga import TextEncoder
from uwaga.cli import app
from uwaga.data.documents import Document
from uwaga.encode.shards import SHARD_CHARACTERS, SHARD_DOCUMENTS, digest, groups
from uwaga.models.checkpoints import directories

TEXTS = [f"{a} {b} on the mat ." for a in ("the cat", "a dog", "it") for b in ("sat", "ran away", "then sat")]
SKIP = "--skip-invalid leaves out such documents and lists them"
LONG = "the cat sat on the mat and then it ran away from the house"
SHARDS = 3  # of TEXTS, by the fixture below


@pytest.fixture(autouse=True)
def _three_documents(shard_size: Callable[[int, int], None]) -> None:
    """In a shard, until a test gives other limits."""
    shard_size(3, 999)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write(tmp_path / "docs.jsonl", TEXTS)


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"id": f"d{number}", "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


def run(corpus: Path, output: Path, model: Path, *options: object) -> str:
    return commands.run("encode", corpus, "-o", output, "--model", model, *options)


def refusal(corpus: Path, output: Path, model: Path, *options: object) -> str:
    return commands.refusal("encode", corpus, "-o", output, "--model", model, *options)


def test_the_file_has_a_row_for_each_document_with_its_vector(
    corpus: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UWAGA_DATA", str(tmp_path / "data"))
    said = run(corpus, tmp_path / "out.parquet", model)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["id"].to_pylist() == [f"d{number}" for number in range(len(TEXTS))]
    assert table["document"].to_pylist() == list(range(len(TEXTS)))
    assert table["stop"].to_pylist() == table["characters"].to_pylist() == [len(text) for text in TEXTS]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 16)
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    encoder = TextEncoder.load(model)
    expected = np.concatenate([part.vectors for part in encoder.stream(TEXTS)])
    assert np.array_equal(vectors, expected)
    tokens = sum(table["tokens"].to_pylist())
    assert said.endswith(f"out.parquet: documents: {len(TEXTS)}; tokens: {tokens}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "docs.jsonl",
        "model",
        "out.parquet",
    ]  # no shared weights


def test_every_option_reaches_the_encoder(model: Path, tmp_path: Path) -> None:
    corpus = write(tmp_path / "docs.jsonl", [LONG])
    options = "--overflow mean --overlap 1 --normalize --tokens-per-batch 5 --truncate-dim 6 --dtype bfloat16"
    run(corpus, tmp_path / "out.parquet", model, *options.split(), "--prompt", "and ")
    (row,) = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    expected = TextEncoder.load(model, dtype=torch.bfloat16).encode(
        [LONG], overflow="mean", overlap=1, normalize=True, prompt="and ", tokens_per_batch=5, truncate_dim=6
    )
    assert np.array_equal(np.array([row["vector"]], dtype=np.float32), expected)


@pytest.mark.parametrize("late", [False, True])
def test_windows_and_spans_say_which_characters_they_are_of(model: Path, tmp_path: Path, late: bool) -> None:
    texts = ["the cat sat. a dog ran.", LONG]
    corpus = write(tmp_path / "docs.jsonl", texts)
    spans = ["--spans", "sentence"] if late else []
    run(corpus, tmp_path / "out.parquet", model, "--overflow", "windows", "--overlap", "2", *spans)
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    parts = [(row["id"], texts[row["document"]][row["start"] : row["stop"]]) for row in table]
    if late:
        assert parts == [("d0", "the cat sat. "), ("d0", "a dog ran."), ("d1", LONG)]
    else:
        windows = ["the cat sat on the mat and then", "and then it ran away from the house"]
        assert parts == [("d0", texts[0]), *(("d1", window) for window in windows)]
    expected = TextEncoder.load(model).encode(texts, spans="sentence" if late else None, overflow="windows", overlap=2)
    vectors = np.array([row["vector"] for row in table], np.float32)
    assert np.array_equal(vectors, expected.values.numpy() if late else expected)


@pytest.mark.parametrize("kind", ["txt.gz", "parquet"])
def test_documents_come_from_files_with_and_without_columns(kind: str, model: Path, tmp_path: Path) -> None:
    corpus = tmp_path / f"docs.{kind}"
    if kind == "parquet":
        parquet.write_table(pa.table({"body": TEXTS, "n": range(len(TEXTS)), "other": [None] * len(TEXTS)}), corpus)
    else:
        corpus.write_bytes(gzip.compress(("\ufeff" + "\r\n".join(TEXTS)).encode()))
    run(corpus, tmp_path / "out.parquet", model, *(() if "txt" in kind else ("--text", "body", "--id", "n")))
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["characters"].to_pylist() == [len(text) for text in TEXTS]
    names = table["id"].to_pylist() if "id" in table.schema.names else None
    assert names == (None if "txt" in kind else [str(number) for number in range(len(TEXTS))])


def test_a_finished_file_is_left_alone(corpus: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    run(corpus, output, model)
    before = output.stat()
    assert run(corpus, output, model) == f"{output}: finished already\n"
    assert output.stat().st_mtime_ns == before.st_mtime_ns
    write(corpus, TEXTS[1:])
    assert f"was made from other documents than {corpus} holds; --update" in refusal(corpus, output, model)


FULL = OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def interrupted(*, after: int, error: BaseException = FULL) -> Iterator[None]:
    """Fail at the given sync of a file to the disk; each finished file takes two."""
    real, calls = os.fsync, 0

    def fsync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise error
        real(file)

    # Digests of the model's files are not kept, which a slow machine would sync.
    with mock.patch.multiple(os, fsync=fsync), mock.patch.object(directories, "_SETTLED_NS", 1 << 62):
        yield


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every group that the model is given; a test clears what it gave before."""
    real, groups = TextEncoder.stream, list[list[str]]()

    def stream(self, parts, **how):
        return real(self, (groups.append(part) or part for part in parts), **how)

    monkeypatch.setattr(TextEncoder, "stream", stream)
    return groups


def digest_of(shard: int) -> str:
    """The name of a shard of TEXTS."""
    numbered = enumerate(TEXTS[3 * shard : 3 * shard + 3], start=3 * shard)
    return digest([Document(place="", pieces=(text,), id=f"d{number}") for number, text in numbered])


@pytest.fixture
def begun(corpus: Path, model: Path, tmp_path: Path) -> Path:
    """An output that the disk was too small for: the settings and two of three shards are finished."""
    output = tmp_path / "out.parquet"
    with interrupted(after=12):
        said = refusal(corpus, output, model)
    assert said.startswith(f"{output}: No space left on device. ")
    parts = sorted(path.name for path in (tmp_path / "out.parquet.parts").iterdir())
    names = [f"{digest_of(shard)}.{suffix}" for shard in range(2) for suffix in ("arrow", "sha256")]
    assert parts == sorted([".uwaga", *names, "lock", "settings.json"])
    return output


OTHERS = [
    TEXTS[0],
    "another cat",
    *TEXTS[2:],
    TEXTS[0],
]  # one of the first three is another one, and one is new at the end


@pytest.mark.parametrize(
    ("texts", "unchecked", "left"),
    [
        (TEXTS, None, [TEXTS[6:]]),
        # As of a version that wrote no checksum, or of a command that was killed between the two files.
        (TEXTS, 1, [TEXTS[3:6], TEXTS[6:]]),
        (OTHERS, None, [OTHERS[:3], OTHERS[6:9], OTHERS[9:]]),
    ],
)
def test_after_a_full_disk_nothing_is_done_twice_and_the_bytes_are_the_same(
    begun: Path, corpus: Path, model: Path, read: list, texts: list[str], unchecked: int | None, left: list
) -> None:
    write(corpus, texts)
    if unchecked is not None:
        (begun.with_name("out.parquet.parts") / f"{digest_of(unchecked)}.sha256").unlink()
    run(corpus, begun, model)
    assert read == left
    again = begun.with_name("again.parquet")
    run(corpus, again, model)
    assert again.read_bytes() == begun.read_bytes()


def test_stopped_at_the_keyboard(corpus: Path, model: Path, tmp_path: Path) -> None:
    with interrupted(after=6, error=KeyboardInterrupt()):
        result = CliRunner().invoke(
            app, ["encode", str(corpus), "-o", str(tmp_path / "o.parquet"), "--model", str(model)]
        )
    assert result.exit_code == 130
    assert result.stderr.endswith("uwaga encode: interrupted; the same command resumes\n")
    run(corpus, tmp_path / "o.parquet", model)


def test_two_models_or_ways_never_meet_in_one_file(
    begun: Path, corpus: Path, model: Path, write_model: Callable[..., Path], tmp_path: Path
) -> None:
    other = write_model(tmp_path / "other", seed=1)
    for place in (begun.with_name("out.parquet.parts"), begun):
        what = "was begun with other options" if place != begun else "exists already and was made with other options"
        said = refusal(corpus, begun, other, "--truncate-dim", "3").splitlines()
        assert said[0] == f"{place} {what}:"
        assert [line.split(":")[0] for line in said[1:-1]] == ["  model", "  truncate_dim"]
        assert said[2] == "  truncate_dim: None there, 3 now"
        assert said[3] == (
            "give the same options, or another output file, or move the file away"
            if place == begun
            else f"give the same options, another output file, or remove {place} to begin again"
        )
        run(corpus, begun, model)
    assert not begun.with_name("out.parquet.parts").exists()


def test_no_file_has_a_vector_that_is_not_finite(corpus: Path, model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    for name, x in weights.items():
        if name.endswith("intermediate.dense.weight"):
            x.fill_(3e38)
    save_file(weights, model / "model.safetensors")
    output = tmp_path / "out.parquet"
    for more, advice in (("--dtype", "bfloat16"), "set --dtype to float32"), ((), "use another model"):
        said = refusal(corpus, output, model, *more)
        assert said.startswith(f"{corpus}:1: has a vector that is NaN or infinite")
        assert said.endswith(f"; {advice}\n{SKIP}")
        assert not output.exists()
        output = tmp_path / "other.parquet"
    said = refusal(corpus, tmp_path / "third.parquet", model, "--skip-invalid")
    assert said.startswith(f"none of {len(TEXTS)} documents can be encoded; the first, {corpus}:1: has a vector ")


def test_a_pyarrow_that_cannot_be_loaded_is_named(
    corpus: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('DLL load failed')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.delitem(sys.modules, name)
    said = refusal(corpus, tmp_path / "out.parquet", model)
    assert said.startswith("pyarrow cannot be imported: DLL load failed; ")


@pytest.mark.parametrize("options", [["--overflow", "windows", "--overlap", "2"], ["--skip-invalid"]], ids=" ".join)
def test_what_a_message_advises_resumes_the_run_and_gives_the_same_bytes(
    model: Path, tmp_path: Path, options: list[str], read: list[list[str]]
) -> None:
    """A document that is too long ends the command with the advice to set --overflow, or --skip-invalid."""
    corpus, output = write(tmp_path / "docs.jsonl", [*TEXTS, LONG]), tmp_path / "out.parquet"
    assert "; set --overflow to truncate, mean or windows" in refusal(corpus, output, model)
    read.clear()
    run(corpus, output, model, *options)
    assert read == [[LONG]]
    whole = tmp_path / "whole.parquet"
    run(corpus, whole, model, *options)
    assert whole.read_bytes() == output.read_bytes()


@pytest.mark.parametrize("is_finished", [False, True])
def test_what_was_left_out_is_encoded_with_the_option_that_its_reason_names(
    model: Path, tmp_path: Path, is_finished: bool
) -> None:
    corpus, output = write(tmp_path / "docs.jsonl", [TEXTS[0], LONG, *TEXTS[1:]]), tmp_path / "out.parquet"
    mean, update = ["--skip-invalid", "--overflow", "mean"], []
    if is_finished:
        run(corpus, output, model, "--skip-invalid")
        assert "set --overflow to truncate, mean or windows" in (tmp_path / "out.parquet.skipped.jsonl").read_text()
        said = refusal(corpus, output, model, *mean)
        assert "1 documents were left out by the options that it was made with; --update" in said
        update = ["--update"]
    else:
        with interrupted(after=12):
            refusal(corpus, output, model, "--skip-invalid")
    # One that is killed before it has encoded again what was left out leaves no shard without it.
    with interrupted(after=4):
        refusal(corpus, output, model, *mean, *update)
    run(corpus, output, model, *mean, *update)
    whole = tmp_path / "whole.parquet"
    run(corpus, whole, model, *mean)
    assert whole.read_bytes() == output.read_bytes()
    skipped = tmp_path / "out.parquet.skipped.jsonl"
    assert not skipped.exists() or not skipped.read_text()
    assert "overflow: 'mean' there, 'error' now" in refusal(corpus, output, model, "--skip-invalid")


def test_blank_lines_of_a_text_are_no_documents(model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join([TEXTS[0], "", " \t", TEXTS[1], ""]) + "\n")
    output = tmp_path / "out.parquet"
    assert run(lines, output, model).startswith(f"{output}: documents: 2;")
    assert parquet.read_table(output)["document"].to_pylist() == [0, 1]
    assert "finished already" in run(lines, output, model)
    # Listed as before where documents are left out and listed.
    assert "skipped: 3" in run(lines, tmp_path / "listed.parquet", model, "--skip-invalid")


def test_fewer_documents_than_shards_that_are_finished(begun: Path, corpus: Path, model: Path) -> None:
    write(corpus, [*TEXTS, ""])
    assert refusal(corpus, begun, model) == f"{corpus}:10: is empty\n{SKIP}"
    write(corpus, TEXTS[:3])
    run(corpus, begun, model)
    assert parquet.read_metadata(begun).num_rows == 3
    assert not begun.with_name("out.parquet.parts").exists()


def test_a_finished_file_is_updated_where_documents_are_new_or_others(
    corpus: Path, model: Path, tmp_path: Path, read: list[list[str]]
) -> None:
    output, again = tmp_path / "out.parquet", tmp_path / "again.parquet"
    run(corpus, output, model)
    assert run(corpus, output, model, "--update") == f"{output}: finished already\n"
    texts = [*TEXTS[:3], "another cat", *TEXTS[4:], TEXTS[0], "a dog"]
    write(corpus, texts)
    read.clear()
    before = output.read_bytes()
    with interrupted(after=8):
        refusal(corpus, output, model, "--update")
    assert output.read_bytes() == before
    run(corpus, output, model, "--update")
    assert read.count(texts[3:6]) == 1
    assert read[-1] == texts[9:]
    assert all(group in (texts[3:6], texts[9:]) for group in read)
    run(corpus, again, model)
    assert output.read_bytes() == again.read_bytes()


def test_a_finished_file_that_is_another_one_meanwhile_is_not_read(corpus: Path, model: Path, tmp_path: Path) -> None:
    """As by another `--update`: its shards are others, or stand in another order."""
    output, other = tmp_path / "out.parquet", tmp_path / "other.parquet"
    run(corpus, output, model)
    run(write(tmp_path / "turned.jsonl", TEXTS[::-1]), other, model)
    write(corpus, [*TEXTS, "a dog"])
    with when_opened(corpus.__eq__, lambda: other.replace(output)):
        assert f"{output} was changed meanwhile" in refusal(corpus, output, model, "--update")


def test_a_damaged_page_of_a_finished_file_is_found(corpus: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    run(corpus, output, model)
    content = bytearray(output.read_bytes())
    vector = parquet.read_table(output)["vector"][0].values.to_numpy().tobytes()
    content[content.index(vector) + 5] ^= 1
    output.write_bytes(content)
    write(corpus, [*TEXTS, "a dog"])
    assert refusal(corpus, output, model, "--update").startswith(f"{output} is damaged: ")
    assert output.read_bytes() == bytes(content)


def test_what_was_left_out_is_tried_again(model: Path, tmp_path: Path, read: list[list[str]]) -> None:
    corpus, output, again = tmp_path / "docs.jsonl", tmp_path / "out.parquet", tmp_path / "again.parquet"
    write(corpus, [*TEXTS[:4], LONG, *TEXTS[4:]])
    run(corpus, output, model, "--skip-invalid")
    assert list(left_out(output)) == [f"{corpus}:5"]
    read.clear()
    assert "skipped: 1" in run(corpus, output, model, "--skip-invalid", "--update")  # nothing has changed
    assert read == [[TEXTS[3], LONG, TEXTS[4]]]
    write(corpus, [*TEXTS[:4], LONG[:20], *TEXTS[4:]])
    assert "skipped" not in run(corpus, output, model, "--skip-invalid", "--update")
    assert len(read) == 2
    assert left_out(output) == {}
    run(corpus, again, model, "--skip-invalid")
    assert output.read_bytes() == again.read_bytes()


def _flip(path: Path) -> None:
    """One bit of the vectors, which no format checks."""
    content = bytearray(path.read_bytes())
    result = pa.ipc.open_file(pa.memory_map(str(path))).read_all()["vector"].combine_chunks().flatten().to_numpy()
    content[bytes(content).index(result.tobytes())] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_of_a_finished_shard_is_told_and_not_joined(begun: Path, corpus: Path, model: Path) -> None:
    parts = begun.with_name("out.parquet.parts")
    shard = parts / f"{digest_of(0)}.arrow"
    content = shard.read_bytes()
    said = f"{shard} is damaged: its SHA-256 is another than when it was written; remove it, and run the command again"
    _flip(shard)
    assert refusal(corpus, begun, model) == said
    shard.write_bytes(content)
    # While the last shard is written, after the others were checked.
    with when_opened(lambda path: digest_of(2)[:20] in path.name, lambda: _flip(shard)):
        assert refusal(corpus, begun, model) == said
    assert not begun.exists()
    shard.write_bytes(content)
    checksum = shard.with_suffix(".sha256")
    checksum.write_text("0\n")
    assert f"{digest_of(0)}.sha256 has no size and SHA-256" in refusal(corpus, begun, model)


def test_one_command_at_a_time(begun: Path, corpus: Path, model: Path) -> None:
    import fcntl

    parts = begun.with_name("out.parquet.parts")
    with (parts / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert refusal(corpus, begun, model).startswith(f"{parts} is locked: ")
    run(corpus, begun, model)


def test_a_file_of_somebody_else_is_left_alone(corpus: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    for content in (b"mine", b""):
        output.write_bytes(content)
        assert f"{output} exists already and was not made by uwaga encode" in refusal(corpus, output, model)
        assert output.read_bytes() == content
    for metadata in (None, b"{", b"\xff", b'{"settings": 7, "digest": "x"}', b'{"settings": {}}'):
        table = pa.table({"mine": [1]})
        parquet.write_table(table.replace_schema_metadata(metadata and {"uwaga": metadata}), output)
        assert f"{output} exists already and was not made by uwaga encode" in refusal(corpus, output, model)


@pytest.mark.parametrize("name", ["notes.txt", "settings.json"])
def test_a_folder_of_somebody_else_is_left_alone(corpus: Path, model: Path, tmp_path: Path, name: str) -> None:
    """Whether the documents can be encoded or not."""
    parts = tmp_path / "out.parquet.parts"
    parts.mkdir()
    (parts / name).write_text("mine")
    for texts in (corpus, write(tmp_path / "other.jsonl", [LONG])):
        assert "not a folder that uwaga made" in refusal(texts, tmp_path / "out.parquet", model)
        assert [(path.name, path.read_text()) for path in parts.iterdir()] == [(name, "mine")]


def test_a_file_put_into_the_folder_stays(begun: Path, corpus: Path, model: Path) -> None:
    parts = begun.with_name("out.parquet.parts")
    (parts / "notes.txt").write_text("mine")
    run(corpus, begun, model)
    assert sorted(path.name for path in parts.iterdir()) == [".uwaga", "notes.txt"]
    assert (parts / "notes.txt").read_text() == "mine"
    assert "finished already" in run(corpus, begun, model)
    assert (parts / "notes.txt").read_text() == "mine"


def test_links_in_the_way_are_not_followed(begun: Path, corpus: Path, model: Path, tmp_path: Path) -> None:
    parts, mine = begun.with_name("out.parquet.parts"), tmp_path / "mine.txt"
    mine.write_text("mine")
    (parts / "lock").unlink()
    (parts / "lock").symlink_to(mine)
    said = f"{parts / 'lock'} cannot be used: it is a link or a folder, not a file"
    assert refusal(corpus, begun, model) == said
    (parts / "lock").unlink()
    (parts / "settings.json.unfinished").symlink_to(mine)
    run(corpus, begun, model)
    assert mine.read_text() == "mine"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "b.parquet.parts").symlink_to(elsewhere)
    assert "cannot be used" in refusal(corpus, tmp_path / "b.parquet", model)
    (tmp_path / "c.parquet").symlink_to(tmp_path / "nowhere.parquet")
    assert "exists already" in refusal(corpus, tmp_path / "c.parquet", model)
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "c.parquet").is_symlink()


def test_a_file_that_came_while_documents_were_read_is_not_replaced(corpus: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with when_opened(corpus.__eq__, lambda: output.write_text("mine")):
        assert refusal(corpus, output, model).startswith(f"{output}: cannot be used: it already exists. ")
    assert output.read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that cannot be written")
def test_a_folder_that_cannot_be_written(corpus: Path, model: Path) -> None:
    said = refusal(corpus, Path("/proc/self/out.parquet"), model)
    assert said.startswith("/proc/self/out.parquet.parts: ")
    assert said.endswith(". Finished shards are kept; the same command resumes")


# Documents that are invalid, as lines of JSON, and a word of the reason; tests/messages has all reasons.
INVALID = {
    b"": "is not JSON",
    b'{"id": "x"}': "no field 'text'",
    b'{"id": "x", "text": " "}': "is empty",
    b'{"id": "x", "text": "\\u0007"}': "it has no tokens",
    b'{"id": "x", "text": "\xff"}': "is not UTF-8",
    b'{"id": null, "text": "a"}': "field 'id' must be",
    b'{"id": "x", "text": "%s"}' % LONG.encode(): "has 14 tokens",
}


def write_with_invalid(path: Path, texts: list[str], *, every: int) -> dict[str, str]:
    """Write the texts with an invalid line after so many, and more such lines than a shard has at the end; their reasons by place."""
    lines, reasons, kinds = [], {}, itertools.cycle(INVALID.items())
    for number, text in enumerate(texts):
        lines.append(json.dumps({"id": f"d{number}", "text": text}).encode())
        if number % every == every - 1:
            line, reason = next(kinds)
            lines.append(line)
            reasons[f"{path}:{len(lines)}"] = reason
    for line, reason in INVALID.items():
        lines.append(line)
        reasons[f"{path}:{len(lines)}"] = reason
    path.write_bytes(b"\n".join(lines) + b"\n")
    return reasons


def left_out(output: Path) -> dict[str, str]:
    """What was left out, by place."""
    lines = (output.parent / f"{output.name}.skipped.jsonl").read_text().splitlines()
    return {entry["place"]: entry["reason"] for entry in map(json.loads, lines)}


def test_invalid_documents_are_left_out_and_listed(model: Path, tmp_path: Path) -> None:
    corpus, output = tmp_path / "docs.jsonl", tmp_path / "out.parquet"
    texts = TEXTS * 3
    reasons = write_with_invalid(corpus, texts, every=2)
    said = run(corpus, output, model, "--skip-invalid")
    table = parquet.read_table(output)
    assert table["id"].to_pylist() == [f"d{number}" for number in range(len(texts))]
    assert table["document"].to_pylist() == [number + number // 2 for number in range(len(texts))]  # lines of the file
    vectors = np.array(table["vector"].to_pylist(), dtype=np.float32)
    assert np.allclose(vectors, TextEncoder.load(model).encode(texts), atol=1e-6)
    assert left_out(output).keys() == reasons.keys()
    assert all(reason in left_out(output)[place] for place, reason in reasons.items())
    assert said.endswith(f"; skipped: {13 + len(INVALID)}, listed in {output}.skipped.jsonl\n")
    assert run(corpus, output, model, "--skip-invalid") == f"{output}: finished already\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a name is Unicode")
def test_names_of_files_that_are_not_utf8(model: Path, tmp_path: Path) -> None:
    corpus, output = (tmp_path / os.fsdecode(b"\xff" + end) for end in (b".parquet", b"out.parquet"))
    with corpus.open("wb") as file:
        parquet.write_table(pa.table({"id": ["a", "b"], "text": ["the cat", ""]}), file)
    shown = str(output).replace("\udcff", "<U+DCFF>")
    said = run(corpus, output, model, "--skip-invalid")
    assert said.startswith(f"{shown}: documents: 1; tokens: 4; skipped: 1, listed in {shown}.skipped.jsonl\n")
    assert left_out(output) == {f"{corpus}: row 1": "is empty"}
    assert run(corpus, output, model, "--skip-invalid") == f"{shown}: finished already\n"
    assert run(corpus, output, model, "--skip-invalid", "--update").startswith(f"{shown}: documents: 1; ")


def test_an_interrupted_run_lists_what_both_runs_left_out(model: Path, tmp_path: Path) -> None:
    corpus, output, again = tmp_path / "docs.jsonl", tmp_path / "out.parquet", tmp_path / "again.parquet"
    reasons = write_with_invalid(corpus, TEXTS * 3, every=2)
    with interrupted(after=20):
        refusal(corpus, output, model, "--skip-invalid")
    assert 2 < len(list((tmp_path / "out.parquet.parts").glob("*.arrow"))) < 13
    run(corpus, output, model, "--skip-invalid")
    run(corpus, again, model, "--skip-invalid")
    assert left_out(output) == left_out(again)
    assert left_out(output).keys() == reasons.keys()
    assert output.read_bytes() == again.read_bytes()


def test_the_first_documents_alone(corpus: Path, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    said = run(corpus, output, model, "--limit", "4")
    assert "documents: 4;" in said
    assert parquet.read_table(output)["id"].to_pylist() == ["d0", "d1", "d2", "d3"]
    assert refusal(corpus, output, model).splitlines()[1] == "  limit: 4 there, None now"
    run(corpus, tmp_path / "all.parquet", model, "--limit", str(10**30))
    assert parquet.read_metadata(tmp_path / "all.parquet").num_rows == len(TEXTS)


def test_the_bar_of_a_resumed_run_begins_where_it_was(
    begun: Path, corpus: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[float, int, int, float]] = []  # how full, documents, tokens, and how full by earlier runs

    @contextmanager
    def bar(total):
        assert total == 1.0
        yield lambda progress, done, earlier=0.0: seen.append((done, progress.documents, progress.tokens, earlier))

    monkeypatch.setattr("uwaga.encode.progress.bar", bar)
    run(corpus, begun, model, "--tokens-per-batch", "2048")
    assert seen.pop(0) == (0.0, 0, 0, 0.0)
    assert [documents for _, documents, _, _ in seen] == [3, 6, 9]
    assert [tokens > 0 for _, _, tokens, _ in seen] == [False, False, True]
    assert [done for done, _, _, _ in seen] == [seen[0][3], seen[1][3], 1.0]
    assert seen[1][3] == seen[2][3]  # the estimate is made of what comes after it


def test_shards_after_an_added_document_are_soon_the_same_again(shard_size: Callable[[int, int], None]) -> None:
    shard_size(SHARD_DOCUMENTS, SHARD_CHARACTERS)  # the package's own
    texts = [f"{number:04} " * 300 for number in range(600)]
    before, after = (
        [group.shard.digest for group in groups(Document(place="a line", pieces=(text,)) for text in corpus)]
        for corpus in (texts, ["new " * 300, *texts])
    )
    assert len(before) > 12
    assert after[-8:] == before[-8:]
