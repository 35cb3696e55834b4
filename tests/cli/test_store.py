"""`uwaga store`: what it adds, that it resumes and adds nothing twice, and what it says."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import store
from typer.testing import CliRunner

from uwaga import SoftDatabase, TextEncoder
from uwaga.cli import app
from uwaga.viewer.service import ViewService
from uwaga.viewer.shown import Question, View

TEXTS = [
    "the cat sat on the mat .",
    "a dog ran away",
    "it sat on the house",
    "un believ able",
    "then it ran",
    "the mat",
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    (folder / "a.md").write_text("\n\n".join(TEXTS[:3]))
    rows = [{"id": "d1", "text": f"{TEXTS[3]}\n \n{TEXTS[4]}"}, {"id": "d2", "text": TEXTS[5]}]
    (folder / "below" / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "notes.rtf").write_text("is no text file")
    return folder


def add(*arguments: object) -> tuple[int, int]:
    """Add documents; return how many passages are new, and how many were there."""
    said = re.fullmatch(r".*: (\d+) passages added, (\d+) were there already\n", store("add", *arguments))
    assert said is not None
    return int(said[1]), int(said[2])


def test_passages_are_added_once_and_asked(model: Path, files: Path, tmp_path: Path) -> None:
    db = tmp_path / "db"
    assert add(db, files, "--model", model) == (6, 0)
    assert add(db, files, "--model", model) == (0, 6)
    with SoftDatabase.open(db) as opened:
        records = opened.records(range(6))
        assert [record["text"] for record in records] == TEXTS
        assert records[4]["document"] == "d1"
        assert records[4]["source"] == str(files / "below" / "b.jsonl")
        vectors = TextEncoder.load(model).encode(TEXTS)
        assert torch.equal(torch.stack([row.key for row in opened]), torch.from_numpy(vectors))
        answer = opened.attend(torch.from_numpy(vectors[1]), scale=20.0, top=2)
    parsed = json.loads(store("ask", db, TEXTS[1], "--model", model, "--top", 2, "--json"))
    assert [passage["share"] for passage in parsed["passages"]] == answer.top.weights.tolist()
    assert parsed["passages"][0]["record"]["text"] == TEXTS[1]
    assert parsed["unlisted_weight"] == answer.unlisted_weight.item()
    assert len(json.loads(store("ask", db, "cat", "--model", model, "--top", 10**8, "--json"))["passages"]) == 6
    said = store("ask", db, TEXTS[1], "--model", model, "--top", 1, "--where", "document = 'd2'").splitlines()
    assert said[0].split()[0] == "100.0%"
    assert said[1].strip() == TEXTS[5]
    assert said[2].startswith("  0.0%  on 0 other passages")


def test_a_command_that_adds_nothing_joins_what_a_killed_one_left(model: Path, files: Path, tmp_path: Path) -> None:
    db = tmp_path / "db"
    assert add(db, files, "--model", model) == (6, 0)
    with SoftDatabase.open(db) as opened:
        opened.delete([5])
        opened.append(torch.ones(1, 16))
    assert json.loads(store("stats", db, "--json"))["segments"] == 2
    assert add(db, files / "a.md", "--model", model) == (0, 3)
    assert json.loads(store("stats", db, "--json"))["segments"] == 1


def test_invalid_documents_are_told_or_left_out(model: Path, tmp_path: Path) -> None:
    db, folder = tmp_path / "db", tmp_path / "texts"
    folder.mkdir()
    rows = [{"text": TEXTS[0]}, {"other": 1}, {"text": "\u0007"}, {"text": TEXTS[1]}]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "b.txt").write_bytes(TEXTS[2].encode() + b"\n\n\xff")
    (folder / "c.txt").write_bytes(b"")
    (folder / "d.txt").write_text(TEXTS[3])
    store("add", db, folder, "--model", model, code=1)
    for added in (4, 0):
        result = CliRunner().invoke(
            app, ["store", "add", str(db), str(folder), "--model", str(model), "--skip-invalid"]
        )
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"{db}: {added} passages added, {4 - added} were there already, ")
        told = [line.removeprefix("uwaga store add: left out ") for line in result.stderr.splitlines()]
        assert f"{folder}/a.jsonl:2: there is no field 'text'; the fields are 'other'" in told
        assert any(line.startswith(f"{folder}/b.txt:3: is not UTF-8") for line in told)
        assert f"{folder}/c.txt: is empty" in told
    with SoftDatabase.open(db) as opened:
        assert [record["text"] for record in opened.records(range(4))] == TEXTS[:4]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other names and devices")
def test_what_is_no_file_is_left_out(model: Path, tmp_path: Path) -> None:
    """A folder whose name ends as that of a file is a folder."""
    db, folder = tmp_path / "db", tmp_path / "texts"
    (folder / "c.txt").mkdir(parents=True)
    (folder / "a.txt").write_text(TEXTS[0])
    (folder / "c.txt" / "d.txt").write_text(TEXTS[2])
    os.mkfifo(folder / "b.txt")
    Path(os.fsdecode(os.fsencode(folder) + b"/b\xff.txt")).write_text(TEXTS[1])
    result = CliRunner().invoke(app, ["store", "add", str(db), str(folder), "--model", str(model), "--skip-invalid"])
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(": 2 passages added, 0 were there already, 2 left out\n")
    assert result.stderr.count(f"uwaga store add: left out {folder}/b") == 2


def test_a_database_follows_its_model(
    model: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_model: Callable[..., Path]
) -> None:
    """The fingerprint says which model it is; the spelling of its path does not."""
    db = tmp_path / "db"
    monkeypatch.chdir(tmp_path)
    store("add", db, files / "a.md", "--model", "model")
    monkeypatch.chdir(model)
    for spelling in (".", "../model", model):
        store("ask", db, "the cat", "--model", spelling)
    model.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path)
    assert add(db, files, "--model", "moved") == (3, 3)
    other = write_model(tmp_path / "other", seed=1)
    assert "its keys were made by model@" in store("ask", db, "the cat", "--model", other, code=1)
    assert "was made with model; give --model" in store("ask", db, "the cat", code=1)


def test_check_stats_compact_and_export(model: Path, files: Path, tmp_path: Path) -> None:
    db = tmp_path / "db"
    store("add", db, files, "--model", model, "--dtype", "bfloat16")
    assert json.loads(store("stats", db, "--json"))["dtype"] == "bfloat16"
    assert "rows         6\n" in store("stats", db)
    assert store("compact", db) == f"{db}: 0 bytes freed\n"
    assert store("export", db, tmp_path / "out.parquet") == f"{tmp_path}/out.parquet: 6 rows\n"
    assert store("check", db) == "6 rows: no damage\n"
    (segment,) = (db / "segments").iterdir()
    content = bytearray(segment.read_bytes())
    content[-2] ^= 1
    segment.write_bytes(content)
    result = CliRunner().invoke(app, ["store", "check", str(db)])
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{db}/{segment.name}: rows 0 to 5: ")
    assert json.loads(CliRunner().invoke(app, ["store", "check", str(db), "--json"]).stdout)[0]["file"] == segment.name


def test_a_question_is_viewed(model: Path, files: Path, tmp_path: Path) -> None:
    """The map that the page shows has the shares that `ask` says, each by its whole passage: those of the page come from scores in
    float32, and differ by their rounding."""
    db, page = tmp_path / "db", tmp_path / "page.html"
    store("add", db, files, "--model", model)
    with SoftDatabase.open(db) as opened:
        shown = View.of_question(Question(opened, TEXTS[1], model=str(model)))
        keys = torch.stack([row.key for row in opened]).double()
    query = torch.from_numpy(TextEncoder.load(model).encode([TEXTS[1]])).double()
    exact = (20 * query @ keys.T).softmax(-1)[0].tolist()
    (side,) = shown.sides
    weights = side.maps["cross", 0].to_dense()[0]
    parsed = json.loads(store("ask", db, TEXTS[1], "--model", model, "--top", 6, "--json"))["passages"]
    rounding = 20 * (16 + 2) * 2.0**-23
    assert [passage["share"] for passage in parsed] == [
        pytest.approx(exact[passage["id"]], rel=rounding) for passage in parsed
    ]
    shares = [pytest.approx(passage["share"], rel=rounding) for passage in parsed]
    assert [weights[passage["id"]].item() for passage in parsed] == shares
    assert side.token_text("encoder").labels == TEXTS
    assert side.token_text("encoder").breaks == dict.fromkeys(range(1, 6), 2)
    about = ViewService(shown).answer({"request": "about"}).meta
    assert about["sides"][0]["kinds"] == {"cross": {"queries": "decoder", "keys": "encoder"}}
    # The page opens with the answer: the same passages in the same order, whole.
    answer = about["answer"]
    assert (answer["question"], answer["others"], answer["unlisted"]) == (TEXTS[1], 0, 0.0)
    assert [passage["key"] for passage in answer["passages"]] == [passage["id"] for passage in parsed]
    assert [passage["text"] for passage in answer["passages"]] == [passage["record"]["text"] for passage in parsed]
    assert [passage["share"] for passage in answer["passages"]] == shares
    assert {passage["origin"] for passage in answer["passages"]} == {"a.md", "b.jsonl d1", "b.jsonl d2"}
    result = CliRunner().invoke(app, ["view", str(db), "--ask", TEXTS[1], "--model", str(model), "--save", str(page)])
    assert result.exit_code == 0, result.output
    assert page.stat().st_size > 100_000
