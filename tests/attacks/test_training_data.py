"""Training data made to harm, or harmed: every file ends in an error that names the place, or is read in bounded memory."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from uwaga.train.config import Config
from uwaga.train.data.corpus import Corpus
from uwaga.train.errors import DataError

_MODELS = {
    "language-model": "{family='gpt2', num_layers=1, num_heads=2, d_model=16, d_ff=32, max_position_embeddings=64}",
    "encoder-decoder": "{family='transformer', num_layers=1, num_decoder_layers=1, num_heads=2, d_model=16, d_ff=32}",
    "masked-language-model": "{family='bert', num_layers=1, num_heads=2, d_model=16, d_ff=32, max_position_embeddings=64}",
}
_TEN_MEGABYTES = 10_000_000
_BYTE_PAIR = "tokenizer={kind='byte-pair', vocab_size=400}"


def _config(objective: str, kind: str, path: Path, *overrides: str) -> Config:
    text = f"""
        objective = "{objective}"
        model = {_MODELS[objective]}
        data = {{kind = "{kind}", train = {json.dumps([str(path)])}, context_length = 64, validation_fraction = 0.5}}
        schedule = {{steps = 1}}
        run = {{output_dir = "unused"}}
        """
    return Config.parse(text, overrides)


def _message(config: Config, folder: Path) -> str:
    with pytest.raises(DataError) as raised:
        Corpus.prepare(config, folder)
    return str(raised.value)


def _long_line(kind: str) -> str:
    word = {"words": "to be or not to be, ", "one word": "abcdefghij", "one letter": "a"}[kind]
    return (word * (_TEN_MEGABYTES // len(word) + 1))[:_TEN_MEGABYTES]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "kind", "tokens"),
    [
        ("text", "words", _BYTE_PAIR),
        ("text", "one letter", _BYTE_PAIR),
        ("jsonl", "one word", _BYTE_PAIR),
        ("jsonl", "words", "tokenizer.kind=characters"),
    ],
)
def test_a_line_of_ten_megabytes_is_cut_into_rows(file: str, kind: str, tokens: str, tmp_path: Path) -> None:
    line, path = _long_line(kind), tmp_path / "a"
    rows = [line, "short", "lines", "of a", "file", "on either", "split"]
    path.write_text("\n".join(json.dumps({"text": row}) if file == "jsonl" else row for row in rows) + "\n")
    document = ["data.document=line"] if file == "text" else []
    corpus = Corpus.prepare(_config("language-model", file, path, tokens, *document), tmp_path / "run")
    split = max(corpus.train, corpus.validation, key=len)
    assert max(split.batch(micro).ids.max_length for micro in split.micro_batches(0)) == 64
    stored = max((tmp_path / "run").glob("data-*/*.tokens"), key=lambda path: path.stat().st_size)
    text = corpus.tokenizer.backend.decode(np.fromfile(stored, "<u2").tolist(), skip_special_tokens=True)
    assert line in text


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process has had")
def test_the_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    # One process for each file, forked after PyTorch is loaded.
    program = """
import os, sys
from pathlib import Path
from uwaga.train.config import Config
from uwaga.train.data.corpus import Corpus
for name in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    Corpus.prepare(Config.read(Path(name + ".toml")), Path(name))
    # Not getrusage's, which begins with what the process had that started this one.
    status = Path("/proc/self/status").read_text()
    print(status.partition("VmHWM:")[2].split()[0], flush=True)
    os._exit(0)
"""
    names = []
    for megabytes in (6, 30):
        name = tmp_path / str(megabytes)
        with Path(f"{name}.txt").open("w") as file:
            for number in range(megabytes):
                file.write(f"{number} and so on, for ever " * (10**6 // 24))
        config = _config("language-model", "text", Path(f"{name}.txt"), "data.windows=true")
        Path(f"{name}.toml").write_text(config.text())
        names.append(str(name))
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=True)
    small, large = (int(line) * 1024 for line in done.stdout.splitlines())
    # The larger text alone would take 24 million bytes more, and its tokens as Python integers ten times as much.
    assert large - small < 8_000_000, (small, large)


@pytest.mark.parametrize("kind", ["text", "jsonl", "pairs"])
@pytest.mark.parametrize("packed", [False, True])
def test_an_empty_file_is_named(kind: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(b"") if packed else b"")
    objective = "encoder-decoder" if kind == "pairs" else "language-model"
    assert _message(_config(objective, kind, path), tmp_path / "run") == f"{path}: is empty"


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows", ["data.windows=true", "data.document=file", "data.document=line", "data.document=paragraph"]
)
def test_invalid_utf8_is_named_by_its_line_in_any_text(windows: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good line\n" * 150_000 + b"bad \xf0\x28 line\n" + b"good line\n" * 9)
    message = _message(_config("language-model", "text", path, windows), tmp_path / "run")
    assert message == f"{path}:150001: is not UTF-8: byte 0xf0 at byte 5"


def test_nesting_without_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": ' + "[" * 100_000 + "\n")
    message = _message(_config("language-model", "jsonl", path), tmp_path / "run")
    assert message.startswith(f"{path}:1: is not JSON: ")


def test_a_pair_file_with_unequal_fields_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n" * 1000 + "a\tb\tc\n")
    message = _message(_config("encoder-decoder", "pairs", path), tmp_path / "run")
    assert message == f"{path}:1001: a pair must have 2 fields, separated by a tab, not 3"


def test_parallel_files_with_unequal_lines_are_named(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("a\n" * 1000)
    target.write_text("b\n" * 999)
    files = ("data.pair_format=parallel", f"data.target_files=['{target}']")
    message = _message(_config("encoder-decoder", "pairs", source, *files), tmp_path / "run")
    assert message == (
        f"{source}:1000: there is no such line in {target}, which ends after 999: "
        "line n of one file must answer line n of the other"
    )


@pytest.mark.slow
def test_a_pair_of_ten_megabytes_is_refused_by_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n" + "a" * _TEN_MEGABYTES + "\tb\n")
    message = _message(_config("encoder-decoder", "pairs", path), tmp_path / "run")
    assert message == f"{path}:2: the source has 10,000,001 tokens with the special ones, and data.context_length is 64"


def test_a_bomb_of_gzip_is_stopped_by_the_limit_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uwaga.data.documents.MAX_LINE_BYTES", 10**6)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"a" * 10**8))
    message = _message(_config("language-model", "jsonl", path), tmp_path / "run")
    assert message == f"{path}:1: the line is longer than 1,000,000 bytes"


def test_special_tokens_in_a_text_end_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(f"{n} <|endoftext|> [MASK] </s> [SEP]" for n in range(40)))
    for objective in ("language-model", "masked-language-model"):
        given = _config(objective, "text", path, "data.document=line", _BYTE_PAIR)
        corpus = Corpus.prepare(given, tmp_path / objective)
        folder = next((tmp_path / objective).glob("data-*"))
        tokens, offsets = np.fromfile(folder / "train.tokens", "<u2"), np.fromfile(folder / "train.offsets", "<i8")
        special = np.isin(tokens, list(corpus.tokenizer.special.ids()))
        assert special.sum() == (2 * (len(offsets) - 1) if objective == "language-model" else 0)
