"""Every file that the package reads, spoiled in every way: one table, run in full; see test_readers.py.

A program: `python readers.py FOLDER [KIND ...]` makes the files in the folder, and writes what became of each cell of the table to
FOLDER/results.json. A cell runs in a fork of its own, which ends after some seconds of the processor's time, so that waiting for a
processor counts for nothing, and which cannot take all memory.

A new reader of files gets a row in KINDS.
"""

import gzip
import hashlib
import inspect
import json
import os
import random
import resource
import shutil
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from itertools import cycle, islice
from os import _exit
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file
from tiny_tokenizer import SPECIAL, WORDS, write_tokenizer
from tiny_transformer import tiny
from tiny_vision import write_photo

from uwaga._base import untrusted
from uwaga.data.documents import DocumentFile
from uwaga.data.tokenizers import TextTokenizer
from uwaga.encode import chat_template, vector_files
from uwaga.encode.encoder import TextEncoder
from uwaga.inspect import images
from uwaga.inspect.recordings.recording import Recording
from uwaga.inspect.watching import watch
from uwaga.models import Transformer, load, save
from uwaga.models.checkpoints import directories, sentence_files
from uwaga.models.checkpoints.directories import fingerprint
from uwaga.models.tokenizers.loading import load_target_tokenizer
from uwaga.nn.attention_id import AttentionId
from uwaga.ops.biases import AlibiBias
from uwaga.ops.masks import Causal, Documents
from uwaga.ops.ragged import Ragged
from uwaga.serve.app import read_keys
from uwaga.store import SoftDatabase, add_files
from uwaga.train import checkpoint, sources
from uwaga.train.checkpoint import TrainingState
from uwaga.train.config import Config
from uwaga.train.corpus import Corpus
from uwaga.train.logger import open_metrics, read_losses
from uwaga.viewer.inputs import of_file

SECONDS = 10  # of the processor, for a file
_WAITING_SECONDS = (
    300  # of the clock: only a file that is waited for, such as a pipe that nobody writes to, takes so long
)
# Beyond what the program has: a cell that asks for more is stopped, before the machine is.
_HARD_LIMIT = 3 * 2**30
_CPU_SECONDS = 60
_TOML = """
objective = "language-model"
model = {family = "gpt2", num_layers = 1, num_heads = 2, d_model = 16, d_ff = 32, max_position_embeddings = 64}
data = {kind = "KIND", train = ["FILE"], context_length = 16, validation_fraction = 0.5}
schedule = {steps = 1}
run = {output_dir = "unused", sample_prompts = ["a", "b"], threads = 1}
optimizer = {lr = 0.001}
"""

# The functions by which files of strangers are opened, and which functions of the package have called one, as module:function.
READERS = [
    "open_regular", "read_file", "read_file_if_exists", "open_decompressed", "read_lines", "stat_regular", "sha256", "read_stream", "parse_json",
    "ParquetRows",
]  # fmt: skip
COVERED: set[str] = set()


def _noted(reader: Callable[..., object], *arguments: object, **named: object) -> object:
    """What the reader returns; notes who calls it."""
    frame = inspect.currentframe().f_back  # type: ignore[union-attr]
    module = frame.f_globals["__name__"]
    while frame.f_code.co_name.startswith("<") and frame.f_back is not None:  # a lambda or generator of a function
        frame = frame.f_back
    if module != untrusted.__name__:
        COVERED.add(f"{module}:{frame.f_code.co_name}")
    return reader(*arguments, **named)


# What is attacked


class Kind(NamedTuple):
    """A file that is read.

    Attributes:
        file: in its template, which is a folder of KINDS' maker.
        make: writes the template.
        read: what a user calls; raises errors of the package alone.
        faults: which of FAULTS it gets beside the common ones.
        names: what a message must name, one of them: the file, or a file that it contradicts.
    """

    file: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    faults: str  # "json", "lines", "gzip", "toml", "parquet" or "binary"
    names: tuple[str, ...] = ()


def _bert(**settings: object) -> Transformer:
    return tiny("bert", seed=0, d_model=8, num_layers=1, num_heads=2, d_ff=16, max_position_embeddings=12, **settings)


def _model(folder: Path) -> None:
    save(_bert(vocab_size=len(SPECIAL + WORDS), outputs=()), folder)
    write_tokenizer(folder, mask_token="[MASK]")
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    _write(folder / "special_tokens_map.json", names)
    _write(folder / "added_tokens.json", {"[MASK]": SPECIAL.index("[MASK]")})
    _write(folder / "generation_config.json", {"eos_token_id": 3})
    shutil.copy(folder / "tokenizer.json", folder / "target_tokenizer.json")
    shutil.copy(folder / "tokenizer_config.json", folder / "target_tokenizer_config.json")


def _sentence_model(folder: Path) -> None:
    _model(folder)
    kinds = {"0": "Transformer", "1": "Pooling"}
    modules = [
        {"name": n, "path": "" if n == "0" else "1_Pooling", "type": f"sentence_transformers.models.{kind}"}
        for n, kind in kinds.items()
    ]
    _write(folder / "modules.json", modules)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 10, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"prompts": {"a": "the "}, "default_prompt_name": "a"})
    (folder / "1_Pooling").mkdir()
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True})


def _sharded_model(folder: Path) -> None:
    _model(folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    names = load_file(folder / "model-1.safetensors")
    _write(folder / "model.safetensors.index.json", {"weight_map": dict.fromkeys(names, "model-1.safetensors")})


def _pickled_model(folder: Path) -> None:
    _model(folder)
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _encode(folder: Path) -> None:
    TextEncoder.load(folder).encode(["the cat", "sat"])


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _texts(name: str, content: bytes | Callable[[Path], object]) -> Callable[[Path], None]:
    """Return what makes a folder with one file: its bytes, or what writes it."""

    def make(folder: Path) -> None:
        folder.mkdir()
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            content(folder / name)

    return make


_ROWS = [{"text": f"the cat {n} sat", "id": str(n), "source": f"a{n}", "target": f"b{n}"} for n in range(40)]
_TEMPLATE = "".join(
    f'{{{{- messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first -}}}}\n'
    for role in ("query", "document")
)


def _read_template(folder: Path) -> str | None:
    chat = chat_template.read(folder, sentence_files.read(folder, is_module=False), is_listed=False)
    return None if chat is None else chat.text("a cat", "a dog", prompt="Find it")


_LINES = "".join(f"{row['text']}\n" for row in _ROWS).encode()
_PACKED = gzip.compress(_LINES)
_parquet = partial(parquet.write_table, pa.Table.from_pylist(_ROWS))
_OBJECTS = "".join(json.dumps(row) + "\n" for row in _ROWS).encode()


def _config(folder: Path, name: str, kind: str, *overrides: str) -> Config:
    text = _TOML.replace("KIND", kind).replace('"FILE"', json.dumps(str(folder / name)))
    return Config.parse(text, overrides)


def _training(name: str, kind: str, *overrides: str) -> Callable[[Path], object]:
    return lambda folder: Corpus.prepare(_config(folder, name, kind, *overrides), folder / "run")


_PAIRS = (
    "objective=encoder-decoder",
    "model={family='transformer', num_layers=1, num_decoder_layers=1, num_heads=2, d_model=16, d_ff=32}",
)


def _prepared(folder: Path) -> None:
    """Of pairs: with answers. The times of the files are part of the name of the folder."""
    folder.mkdir()
    (folder / "a.tsv").write_text("".join(f"{row['source']}\t{row['target']}\n" for row in _ROWS))
    os.utime(folder / "a.tsv", (0, 0))


def _of_prepared(name: str, folder: Path) -> Path:
    Corpus.prepare(_config(folder, "a.tsv", "pairs", *_PAIRS), folder / "run")
    return next((folder / "run").glob("data-*")) / name


def _reopen(folder: Path) -> None:
    corpus = Corpus.prepare(_config(folder, "a.tsv", "pairs", *_PAIRS), folder / "run")
    list(corpus.questions())


def _checkpoint(folder: Path) -> None:
    _model(folder / "step-000001")
    step = folder / "step-000001"
    state = TrainingState(step=1, tokens=9, seconds=1.0, best=None, metrics=0, seed=0, data="x")
    (step / "training.json").write_text(json.dumps(asdict(state)))
    save_file({"a": torch.zeros(3)}, step / "optimizer.safetensors")
    (step / "config.toml").write_text(_config(folder, "a", "text").text())
    (folder / "last").write_text("step-000001\n")
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "kind": "train", "loss": 2.0}\n{"step": 1, "kind": "validation", "loss": NaN}\n'
    )


def _source(folder: Path) -> None:
    os.environ["UWAGA_DATA"] = str(folder)
    digest = sources.sha256(Path(__file__))
    source = f"data.sources.play={{sha256='{digest}', url='https://example.org', files=['a.txt.gz']}}"
    sources.find("play", _config(folder, "a", "text", source).data)


_SHARD = vector_files.Shard(64 * "d", 1)


def _begun(folder: Path) -> vector_files.VectorFile:
    made = vector_files.VectorFile(folder / "v.parquet", {"model": "m"})
    made.begin()
    made.expect(_SHARD)
    return made


def _vectors(folder: Path, *, is_whole: bool = True) -> None:
    folder.mkdir()
    made = _begun(folder)
    made.add(_SHARD, {"document": [0]}, np.zeros((1, 2), np.float32))
    if is_whole:
        list(made.finish())
    made.leave()


def _resumed_with_checksum(folder: Path) -> None:
    """By someone who knows the bytes: the SHA-256 is that of the spoiled shard."""
    shard = folder / "v.parquet.parts" / f"{_SHARD.digest}.arrow"
    if shard.is_file() and not shard.is_symlink() and shard.stat().st_size < 2**20:
        content = shard.read_bytes()
        shard.with_suffix(".sha256").write_text(f"{len(content)} {hashlib.sha256(content).hexdigest()}\n")
    _resumed(folder)


def _resumed(folder: Path) -> None:
    made = _begun(folder)
    if made.stored(_SHARD) is not None:
        list(made.finish())


def _updated(folder: Path) -> None:
    made = vector_files.VectorFile(folder / "v.parquet", {"model": "m"})
    finished = made.finished()
    if finished is None or finished[1] is None:
        return
    made.begin(finished[1])
    try:
        for shard in finished[1]:
            made.expect(shard)
            if made.stored(shard) is None:
                return
        list(made.finish())
    finally:
        made.leave()


def _recording(folder: Path) -> None:
    """Of a model with masks, biases, values and tokens; every part of the description is there."""
    folder.mkdir()
    model = _bert(vocab_size=8)
    lists = [torch.tensor([2, 5, 6]), torch.tensor([2, 7])]
    with torch.no_grad(), watch(model, values=True, tokens=[list("abc"), list("de")]) as recording:
        model(Ragged.from_list(lists))
    options = recording._stacks["encoder"].attentions[AttentionId("encoder", 0)].options
    options["mask"] = Causal() & Documents(torch.zeros(5, dtype=torch.int64))
    options["bias"], options["sinks"] = AlibiBias(torch.ones(2)), torch.ones(2)
    recording.save(folder / "a.safetensors")


_SEGMENT = f"{0:012d}-{'0' * 16}.safetensors"


def _database(folder: Path) -> None:
    with mock.patch("secrets.token_hex", return_value="0" * 16), SoftDatabase.create(folder / "db", key_width=2) as db:
        db.append(torch.rand(70, 2), records=[{"text": f"row {n}", "part": n} for n in range(70)])


def _read_database(folder: Path) -> None:
    with SoftDatabase.open(folder / "db") as db:
        db.check()
        db.attend(torch.ones(2), where="part > 7")
        list(db)
        db.attend(torch.ones(2))
        db.delete([3])
        db.append(torch.ones(1, 2))
        db.compact()


def _passages(folder: Path) -> None:
    _model(folder / "m")
    (folder / "passages.txt").write_text("a b a. b a b.\n\na")


def _digests(folder: Path) -> None:
    os.environ["UWAGA_DATA"] = str(folder)
    _model(folder / "m")
    with mock.patch("uwaga.models.checkpoints.directories._SETTLED_NS", 0):
        fingerprint(folder / "m")


def _add_passages(folder: Path) -> None:
    encoder = TextEncoder.load(folder / "m")
    with SoftDatabase.create(folder / "db", key_width=encoder.embedding_dim) as db:
        add_files(db, [folder / "passages.txt"], encoder, split="sentence")


def _in(read: Callable[..., object], name: str, *more: object) -> Callable[[Path], object]:
    """Read the file of this name."""
    return lambda folder: read(folder / name, *more)


def _documents(name: str, content: bytes | Callable[[Path], object], faults: str) -> Kind:
    return Kind(name, _texts(name, content), lambda folder: deque(DocumentFile(folder / name), 0), faults)


_STEP = Path("step-000001")
KINDS = {
    **{
        name: Kind(name, _model, _encode, "json")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json")
    },
    **{
        name: Kind(name, _sentence_model, _encode, "json")
        for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json")
    },
    "target_tokenizer.json": Kind("target_tokenizer.json", _model, load_target_tokenizer, "json"),
    "special_tokens_map.json": Kind(
        "special_tokens_map.json", _model, lambda folder: TextTokenizer.load(folder, "masked-language-model"), "json"
    ),
    "generation_config.json": Kind("generation_config.json", _model, fingerprint, "json"),
    "digests.json": Kind("digests.json", _digests, _in(fingerprint, "m"), "json"),
    "model.safetensors": Kind("model.safetensors", _model, _encode, "binary"),
    "index of safetensors": Kind("model.safetensors.index.json", _sharded_model, _encode, "json"),
    "shard of safetensors": Kind("model-1.safetensors", _sharded_model, _encode, "binary"),
    "pytorch_model.bin": Kind("pytorch_model.bin", _pickled_model, _encode, "binary"),
    "configuration of training": Kind(
        "a.toml", _texts("a.toml", _TOML.replace("KIND", "text").encode()), _in(Config.read, "a.toml"), "toml"
    ),
    "training text": Kind("a.txt", _texts("a.txt", _LINES), _training("a.txt", "text", "data.document=line"), "lines"),
    "training text in pieces": Kind(
        "a.txt.gz", _texts("a.txt.gz", _PACKED), _training("a.txt.gz", "text", "data.windows=true", "batch.tokens_per_batch=16"), "gzip"
    ),
    "training jsonl": Kind("a.jsonl", _texts("a.jsonl", _OBJECTS), _training("a.jsonl", "jsonl"), "lines"),
    "training parquet": Kind("a.parquet", _texts("a.parquet", _parquet), _training("a.parquet", "parquet"), "parquet"),
    "pairs": Kind("a.tsv", _prepared, _reopen, "lines"),
    "source of data": Kind(
        "a.txt.gz", _texts("a.txt.gz", gzip.compress(Path(__file__).read_bytes())), _source, "gzip",
        names=("a.txt.gz", "play"),
    ),
    "last": Kind("last", _checkpoint, lambda folder: directories.read_pointer(folder, directories.LAST), "binary"),
    "training.json": Kind(f"{_STEP}/training.json", _checkpoint, _in(TrainingState.read, f"{_STEP}"), "json"),
    "optimizer.safetensors": Kind(f"{_STEP}/optimizer.safetensors", _checkpoint, lambda folder: checkpoint.read_optimizer(folder / _STEP, {"a": torch.empty(3)}), "binary"),
    "weights of a checkpoint": Kind(f"{_STEP}/model.safetensors", _checkpoint, lambda folder: checkpoint.read_model(folder / _STEP, load(folder / _STEP)), "binary"),
    "metrics.jsonl": Kind("metrics.jsonl", _checkpoint, lambda folder: read_losses(folder, "train"), "lines"),
    "metrics.jsonl of a resumed run": Kind("metrics.jsonl", _checkpoint, lambda folder: open_metrics(folder, 9).close(), "binary"),
    "documents txt": _documents("a.txt", _LINES, "lines"),
    "documents txt.gz": _documents("a.txt.gz", _PACKED, "gzip"),
    "documents jsonl": _documents("a.jsonl", _OBJECTS, "lines"),
    "documents parquet": _documents("a.parquet", _parquet, "parquet"),
    "recording": Kind("a.safetensors", _recording, lambda folder: [m.entropy() for m in Recording.load(folder / "a.safetensors").maps.values()], "binary"),
    "recording of view": Kind("a.safetensors", _recording, _in(of_file, "a.safetensors"), "binary"),
    "keys of serve": Kind(
        "keys.txt", _texts("keys.txt", b"# of the team\n" + b"k" * 40 + b"\n"), _in(read_keys, "keys.txt"), "lines"
    ),
    "chat_template.jinja": Kind(
        "chat_template.jinja", _texts("chat_template.jinja", _TEMPLATE.encode()), _read_template, "lines"
    ),
    "text of view": Kind("a.txt", _texts("a.txt", _LINES), _in(of_file, "a.txt"), "lines"),
    "picture": Kind("a.png", _texts("a.png", write_photo), _in(lambda path: (images.is_image(path), images.read_image(path)), "a.png"), "binary"),
    "finished vectors": Kind(
        "v.parquet", _vectors, lambda folder: vector_files.VectorFile(folder / "v.parquet", {"model": "m"}).finished(), "parquet"
    ),
    "finished vectors, updated": Kind("v.parquet", _vectors, _updated, "parquet"),
    "catalog of a soft database": Kind("db/catalog.sqlite", _database, _read_database, "binary", names=("db",)),
    "segment of a soft database": Kind(f"db/segments/{_SEGMENT}", _database, _read_database, "binary"),
    "file of passages": Kind("passages.txt", _passages, _add_passages, "lines"),
    "settings of vectors": Kind(
        "v.parquet.parts/settings.json", partial(_vectors, is_whole=False), _resumed, "json", names=("v.parquet.parts was begun with other options",)
    ),
    "shard of vectors": Kind("v.parquet.parts/00000000.arrow", partial(_vectors, is_whole=False), _resumed_with_checksum, "binary"),
    "checksum of a shard of vectors": Kind("v.parquet.parts/00000000.sha256", partial(_vectors, is_whole=False), _resumed, "binary", names=("00000000",)),
}  # fmt: skip
_PREPARED = {
    "metadata.json": "json", "train.tokens": "binary", "train.offsets": "binary", "validation-targets.offsets": "binary", "answers.jsonl": "lines",
    "tokenizer.json": "json",
}  # fmt: skip
PREPARED = {
    name: Kind(name, _prepared, _reopen, faults, names=(".tokens", ".offsets", "cannot be used", name))
    for name, faults in _PREPARED.items()
}

# How it is attacked. Each leaves something else at the path.

Fault = Callable[[Path], object]


def _instead(make: Callable[[Path], object]) -> Fault:
    return lambda path: (path.unlink(), make(path))


def _linked(target: str) -> Fault:
    return _instead(lambda path: path.symlink_to(target))


def _of_bytes(change: Callable[[bytes], bytes]) -> Fault:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def _flipped(seed: int, data: bytes) -> bytes:
    chance, result = random.Random(seed), bytearray(data)
    for _ in range(seed % 3 + 1):
        result[chance.randrange(len(result))] ^= 1 << chance.randrange(8)
    return bytes(result)


def _sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(2**40)


def _replaced(*texts: str) -> dict[str, Fault]:
    return {text[:20]: (lambda path, text=text: path.write_text(text)) for text in texts}


COMMON: dict[str, Fault] = {
    "missing": Path.unlink,
    "empty": _of_bytes(lambda data: b""),
    "directory": _instead(Path.mkdir),
    "FIFO": _instead(os.mkfifo),
    "device": _linked("/dev/zero"),
    "terminal": _linked("/dev/null"),
    "dangling": _linked("nowhere"),
    "looping": lambda path: _linked(path.name)(path),
    "BOM": _of_bytes(lambda data: b"\xef\xbb\xbf" + data),
    "UTF-16": _of_bytes(lambda data: data.decode("latin-1").encode("utf-16")),
    "not UTF-8": _of_bytes(lambda data: b"\xff" + data),
    "zeros": _of_bytes(lambda data: bytes(2**20)),
    "noise": _of_bytes(lambda data: random.Random(0).randbytes(2**16)),
    "more behind": _of_bytes(lambda data: data + b"\0garbage"),
    **{f"cut {part}/5": _of_bytes(lambda data, part=part: data[: len(data) * part // 5]) for part in range(1, 5)},
    "cut by one": _of_bytes(lambda data: data[:-1]),
    **{f"flip {seed}": _of_bytes(partial(_flipped, seed)) for seed in range(4)},
}  # fmt: skip
if os.geteuid():  # root may read everything
    COMMON["permission"] = lambda path: path.chmod(0)

_BIG, _REPEATED = "[" * 100_000, ", ".join(f'"k{n}": 0' for n in range(50_000))
JSON_FAULTS: dict[str, Fault] = {
    "sparse": _sparse,
    **_replaced("[]", "{}", "7", "null", '"text"', "NaN", "[[]]", "[{}]", _BIG, '{"a":' * 100_000),
    "repeated": lambda path: path.write_text(f'{{{_REPEATED}, "k49999": 1}}'),
    "many lists": lambda path: path.write_text('{"a": [' + "[]," * 5_000_000 + "0]}"),
    "many numbers": lambda path: path.write_text("[" + "0," * 7_900_000 + "0]"),
}
VALUES = [
    None, True, -1, 0, 1, 2**31, 10**400, 1e300, 0.5, "", "x", "\ud800", "a\0b", "\x1b[2J", [], ["x"], {}, {"a": [1]},
]  # fmt: skip
LINE_FAULTS: dict[str, Fault] = {
    "long line": lambda path: path.write_bytes(b"a" * (untrusted.LINE_BYTES + 1)),
    "deep line": lambda path: path.write_text('{"text": ' + _BIG + "\n"),
    **_replaced(
        "[]\n", "7\n", "{}\n", "null\n", '{"text": NaN}\n', '{"text": "\\ud800"}\n', '{"text": ["a"]}\n', "a\0b\tc\n"
    ),
    '{"kind": 1': lambda path: path.write_text(
        '{"kind": "train", "step": "1", "loss": []}\n{"source": [], "targets": 7}\n'
    ),
    "repeated": lambda path: path.write_text(f'{{{_REPEATED}, "k49999": 1}}\n'),
    "huge number": lambda path: path.write_text('{"text": 1' + "0" * 100_000 + ', "source": 1e400}\n'),
}


def _repeated(path: Path, piece: bytes) -> None:
    """A gzip file of 300 such pieces."""
    with gzip.open(path, "wb", 1) as file:
        for _ in range(300):
            file.write(piece)


GZIP_FAULTS: dict[str, Fault] = {
    "bomb of one line": lambda path: _repeated(path, bytes(2**20)),
    "bomb of lines": lambda path: _repeated(path, b"a b " * 2**18 + b"\n"),
    "many members": lambda path: path.write_bytes(gzip.compress(b"") * 10_000),
    "not gzip": lambda path: path.write_bytes(b"plain"),
}
TOML_FAULTS: dict[str, Fault] = {
    "sparse": _sparse,
    **_replaced("x = " + _BIG, "a." * 300_000 + "a = 1", "x = 0x" + "f" * 900_000, "run = 1", "[[data]]", "x = 1" + "0" * 9000),
    "dotted in quotes": lambda path: path.write_text('"a".' * 200_000 + "a = 1"),
    "a long key": lambda path: path.write_text("a" * 900_000 + " = 1"),
    "many tables": lambda path: path.write_text("".join(f"[a{n}]\n" for n in range(100_000))),
    **{
        change: lambda path, change=change: path.write_text(path.read_text().replace(*change.split(" -> ")))
        for change in (
            "num_layers = 1 -> num_layers = 100000000", "0.001 -> 1e999", "0.001 -> nan", f"0.001 -> 1{'0' * 400}", '"a" -> "\\u0000"',
            '"unused" -> "a\\u0000b"', "steps = 1 -> steps = 99999999999999999999", "d_model = 16 -> d_model = 0",
        )
    },
}  # fmt: skip


def _long_texts(path: Path) -> None:
    """A text that many rows repeat, and that the file has once."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), pa.array(["a b " * 2**20]))
    parquet.write_table(pa.table({"text": text}), path, compression="zstd")


def _page_bomb(path: Path) -> None:
    """One text that is 80 million times the same character."""
    texts = pa.array([" " * (80 * 2**20)])
    parquet.write_table(pa.table({"text": texts}), path, compression="zstd", use_dictionary=False)


def _with_metadata(value: bytes, path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "id": ["1", "2"]}).replace_schema_metadata({"uwaga": value})
    parquet.write_table(table, path)


# Files whose making takes more memory than their reading may. They are made once, and copied.
MADE = {"long texts": _long_texts, "page bomb": _page_bomb}


PARQUET_FAULTS: dict[str, Fault] = {
    "two columns": lambda path: parquet.write_table(
        pa.Table.from_arrays([pa.array(["a", "b"])] * 2, ["text"] * 2), path
    ),
    **{name: lambda path, name=name: shutil.copy(Path(sys.argv[1]) / name, path) for name in MADE},
    "dates": lambda path: parquet.write_table(pa.table({"text": pa.array([2**62], pa.timestamp("s"))}), path),
    "no rows": lambda path: parquet.write_table(pa.table({"text": pa.array([], pa.string())}), path),
    "no columns": lambda path: parquet.write_table(pa.table({}), path),
    "nested": lambda path: parquet.write_table(pa.table({"text": [{"text": "a"}]}), path),
    **{
        f"metadata {value[:12]!r}": partial(_with_metadata, value)
        for value in (
            b"",
            b"[]",
            b"{}",
            b"\xff",
            b"[" * 100_000,
            b'{"settings": 7, "digest": "x"}',
            b'{"settings": {}}',
        )
    },
}
FAULTS = {
    "json": JSON_FAULTS, "lines": LINE_FAULTS, "gzip": GZIP_FAULTS, "toml": TOML_FAULTS, "parquet": PARQUET_FAULTS,
    "binary": {"sparse": _sparse},
}  # fmt: skip


def _changed(value: object) -> Iterator[tuple[str, object]]:
    """A JSON value with one place in it of another kind; the kinds in turn, three for each of the first places."""
    places: list[tuple] = []

    def walk(inside: object, path: tuple) -> None:
        if len(places) < 30 and len(path) < 6:
            items = (
                inside.items() if isinstance(inside, dict) else enumerate(inside) if isinstance(inside, list) else ()
            )
            for key, inner in list(items)[:20]:
                places.append((*path, key))
                walk(inner, (*path, key))

    walk(value, ())
    others = cycle(VALUES)
    for place in places[:30]:
        for other in islice(others, 3):
            copy = json.loads(json.dumps(value))
            inside = copy
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = other
            yield f"{'.'.join(map(str, place))} = {other!r:.20}", copy


# The run


def _cells(kind: Kind, path: Path) -> Iterator[tuple[str, dict[str, Fault]]]:
    """The faults of a kind, those that are small several at once."""
    yield "common", COMMON
    if kind.faults == "json":
        others = _changed(json.loads(path.read_text()))
        yield "values", {name: _of_bytes(lambda _, value=value: json.dumps(value).encode()) for name, value in others}
    for name, fault in FAULTS[kind.faults].items():
        yield name, {name: fault}


def _outcome(kind: Kind, folder: Path, file: Path, fault: Fault) -> str:
    """ "" where all is well."""
    fault(file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.read(folder)
    except BaseException as error:  # noqa: BLE001  # a panic of a library is no Exception
        said = f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
        is_ours = type(error).__module__.startswith("uwaga.")
        if not is_ours or not isinstance(error, ValueError | RuntimeError | OSError):
            return f"foreign: {said}"
        if not any(name in str(error) for name in (file.name, *kind.names)):
            return f"nameless: {said}"
    return ""


def _forked(work: Callable[[Callable[[str], object]], object]) -> tuple[str, float, float]:
    """What the work says, in how many seconds of the processor and megabytes. What it said last is what it was ended at."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        os.close(receive)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + _HARD_LIMIT,) * 2)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS,) * 2)  # for code that runs no handler of signals
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries' panics
        try:
            say = lambda text: os.write(send, (text + "\n").encode("utf-8", "backslashreplace"))  # noqa: E731
            say(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
            work(say)
        finally:
            _exit(0)
    os.close(send)
    said = b""
    while piece := os.read(receive, 65536):
        said += piece
    os.close(receive)
    _, status, usage = os.wait4(child, 0)
    before, _, result = said.decode().partition("\n")
    ended = f"ended by status {status}" if status else ""
    return result.strip() + ended, usage.ru_utime + usage.ru_stime, (usage.ru_maxrss - int(before or 0)) / 1024


def _try(
    kind: Kind, template: Path, cell: Path, file: Path, faults: dict[str, Fault], say: Callable[[str], object]
) -> None:
    for name, spoil in faults.items():
        for number, what in ((signal.SIGPROF, "takes too long"), (signal.SIGALRM, "waits for ever")):
            signal.signal(number, lambda *_, name=name, what=what: (say(f"{name}: {what}"), _exit(1)))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # user and system time of this process
        signal.alarm(_WAITING_SECONDS)
        shutil.rmtree(cell, ignore_errors=True)
        shutil.copytree(template, cell)
        if said := _outcome(kind, cell, file, spoil):
            say(f"{name}: {said}")


def run(root: Path, only: list[str]) -> Iterator[dict[str, object]]:
    """Every cell, or those of some kinds."""
    templates = {name: (kind, lambda folder, kind=kind: folder / kind.file) for name, kind in KINDS.items()}
    templates |= {f"prepared {name}": (kind, partial(_of_prepared, name)) for name, kind in PREPARED.items()}
    cell = root / "cell"
    for name, make in MADE.items():
        _forked(lambda say, make=make, name=name: make(root / name))
    for name, (kind, find) in templates.items():
        if only and name not in only:
            continue
        template = root / "template"
        # In the place where it is read: prepared data knows the path of its files.
        kind.make(cell)
        path = find(cell)
        refused = _outcome(kind, cell, path, lambda path: None)
        assert not refused, f"{name} is refused as it is: {refused}"
        shutil.rmtree(cell)
        kind.make(cell)
        file = find(cell)
        shutil.copytree(cell, template)
        for fault, faults in list(_cells(kind, file)):
            said, seconds, megabytes = _forked(partial(_try, kind, template, cell, file, faults))
            yield {
                "kind": name, "fault": fault, "count": len(faults), "said": said, "seconds": seconds, "megabytes": megabytes,
            }  # fmt: skip
        shutil.rmtree(cell)
        shutil.rmtree(template)


if __name__ == "__main__":
    output = Path(sys.argv[1])
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(1)
    for reader in READERS:
        setattr(untrusted, reader, partial(_noted, getattr(untrusted, reader)))
    results = list(run(output, sys.argv[2:]))
    (output / "results.json").write_text(json.dumps({"cells": results, "readers": READERS, "covered": sorted(COVERED)}))
