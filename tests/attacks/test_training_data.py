"""Training data made to harm is read in bounded memory. tests/data and tests/train have the errors of files that are damaged."""

import json
import sys
from pathlib import Path

import forked
import numpy as np
import pytest

from uwaga.train.config import Config
from uwaga.train.corpus import Corpus

_MODELS = {
    "language-model": "{family='gpt2', num_layers=1, num_heads=2, d_model=16, d_ff=32, max_position_embeddings=64}",
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


def _long_line(kind: str) -> str:
    word = {"words": "to be or not to be, ", "one word": "abcdefghij", "one letter": "a"}[kind]
    return (word * (_TEN_MEGABYTES // len(word) + 1))[:_TEN_MEGABYTES]


@pytest.mark.stress
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


def test_special_tokens_in_a_text_end_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("\n".join(f"{n} <|endoftext|> [MASK] </s> [SEP]" for n in range(40)))
    for objective in ("language-model", "masked-language-model"):
        config = _config(objective, "text", path, "data.document=line", _BYTE_PAIR)
        corpus = Corpus.prepare(config, tmp_path / objective)
        folder = next((tmp_path / objective).glob("data-*"))
        tokens, offsets = np.fromfile(folder / "train.tokens", "<u2"), np.fromfile(folder / "train.offsets", "<i8")
        special = np.isin(tokens, list(corpus.tokenizer.special.ids()))
        assert special.sum() == (2 * (len(offsets) - 1) if objective == "language-model" else 0)


_PREPARE = """
import sys
from pathlib import Path
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus

name = Path(sys.argv[1])
Corpus.prepare(Config.read(name.with_suffix(".toml")), name.with_suffix(".run"))
# Not getrusage's, which begins with what the process had that started this one.
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.timing
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how much memory a process has had")
def test_the_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    bytes_of = {}
    for megabytes in (6, 30):
        name = tmp_path / f"{megabytes}"
        lines = (f"{number} and so on, for ever " * (10**6 // 24) for number in range(megabytes))
        name.with_suffix(".txt").write_text("".join(lines))
        config = _config("language-model", "text", name.with_suffix(".txt"), "data.windows=true")
        name.with_suffix(".toml").write_text(config.text())
        bytes_of[megabytes] = int(forked.run(_PREPARE, name)) * 1024
    # The larger text alone would take 24 million bytes more, and its tokens as Python integers ten times as much.
    assert bytes_of[30] - bytes_of[6] < 8_000_000, bytes_of
