"""Calls that raise where the parts below all operations check: options by name, shapes, files of strangers, the environment."""

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import torch
from annotated_types import Ge, Gt, Le
from small_options import Inner, Outer

import uwaga
from uwaga import AttentionMap
from uwaga._base import env, untrusted
from uwaga._base.options import Count, FractionBelow1, Real, Size, Switch, read
from uwaga._base.shapes import NamedShape, bind
from uwaga.nn import MultiHeadAttention

X = torch.eye(3)
LAYER = MultiHeadAttention(3, 1)


def inner(**options: Any) -> None:
    read(Outer, {"inner": options})


def threads(patch: pytest.MonkeyPatch, text: str) -> int | None:
    patch.setenv("UWAGA_THREADS", text)
    return env.threads()


def profile(patch: pytest.MonkeyPatch, text: str) -> bool:
    patch.setenv("UWAGA_PROFILE", text)
    return env.profile()


def piped(path: Path) -> Path:
    os.mkfifo(path)
    return path


def linked(path: Path, to: str) -> Path:
    path.symlink_to(to)
    return path


def filled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


CALLS = {
    "uwaga: unknown name": lambda: uwaga.atention,
    "keywords of PyTorch: is_causal": lambda: AttentionMap(X, X, is_causal=True),
    "keywords of PyTorch: attn_mask": lambda: uwaga.attention(X, X, X, attn_mask=None),
    "keywords of PyTorch: dropout_p": lambda: uwaga.attend(X, X, X, dropout_p=0.1),
    "keywords of PyTorch: enable_gqa": lambda: uwaga.explain(X, X, X, enable_gqa=True),
    "keywords of PyTorch: need_weights": lambda: LAYER(X, X, X, need_weights=True),
    "keywords of PyTorch: kdim": lambda: MultiHeadAttention(3, 1, kdim=3),
    "keywords: a misspelt one": lambda: uwaga.attention(X, X, X, casual=True),
    "shapes: a width": lambda: bind("attention", [NamedShape.of("query", (2, 12, 128, 64), "B H Q D"), NamedShape.of("key", (2, 12, 512, 80), "B G K D")]),
    "shapes: a rank": lambda: bind("f", [NamedShape.of("x", (2, 5), "B M"), NamedShape.of("y", (5,), "M F")]),
    "options: a table that is missing": lambda: read(Outer, {}),
    "options: a number in place of a table": lambda: read(Outer, {"inner": 1}),
    "options: a number in place of tables": lambda: read(Outer, {"inner": {}, "tables": 1}),
    "options: an unknown key of a named table": lambda: read(Outer, {"inner": {}, "tables": {"x": {"sise": 1}}}),
    "options: an unknown key of any table": lambda: read(dict[str, Inner], {"x": {"sise": 1}}),
    "options: an unknown key": lambda: inner(sise=1, rate=0),
    "options: a key that is a number": lambda: read(Outer, {"inner": {5: 1}}),
    "options: a whole number that is 0": lambda: inner(size=0),
    "options: a whole number that is a bool": lambda: inner(size=True),
    "options: a whole number that is a fraction": lambda: inner(size=1.0),
    "options: a whole number that is a string": lambda: inner(size="1"),
    "options: a whole number of 63 bits": lambda: inner(size=2**62),
    "options: a whole number of 5,000 digits": lambda: inner(size=10**5000),
    "options: a number that is NaN": lambda: inner(rate=math.nan),
    "options: a number that is infinite": lambda: inner(rate=math.inf),
    "options: a number beyond float64": lambda: inner(rate=10**400),
    "options: a number in a list of names": lambda: inner(names=["x", 3]),
    "options: a string in place of a list": lambda: inner(names="x"),
    "options: a list in place of a word": lambda: inner(kind=[]),
    "options: 0 in place of a size or null": lambda: inner(limit=0),
    "options: a list of a union": lambda: inner(either=[1, 0]),
    "options: words of their own": lambda: inner(digits="x"),
    "options: a rule between fields": lambda: inner(size=7),
    "options: of a caller in Python": lambda: Inner(size=0),
    "options: an unknown key of a caller in Python": lambda: Inner(sise=0),
    "options: a rule between fields of a caller in Python": lambda: Inner(size=7),
    "options: words of a switch": lambda: read(Switch, 1, path="x"),
    "options: words of a count": lambda: read(Count, -1, path="x"),
    "options: words of two limits": lambda: read(Annotated[Real, Gt(0), Le(1)], 0, path="x"),
    "options: words of a range": lambda: read(Annotated[Real, Ge(1), Le(1_000_000)], 0, path="x"),
    "options: words of a share below 1": lambda: read(FractionBelow1, 1, path="x"),
    "options: words of one choice": lambda: read(Literal["x"], "y", path="x"),
    "options: words of a table": lambda: read(dict[str, Any], 1, path="x"),
    "options: words of a pair": lambda: read(tuple[Size, Size], 1, path="x"),
    "JSON: nested too deeply": lambda: untrusted.json_of(b"[" * 200_000, "a.json"),
    "JSON: invalid": lambda: untrusted.json_of(b"{", "a.json"),
    "JSON: a list in place of an object": lambda: untrusted.json_of(b"[]", "a.json"),
    "JSON: NaN": lambda: untrusted.json_of(b'{"a": NaN}', "a.json"),
    "JSON: a key twice": lambda: untrusted.json_of(b'{"a": 1, "a": 2}', "a.json"),
    "JSON: an infinite number": lambda: untrusted.json_of(b'{"a": 1e999}', "a.json"),
    "JSON: a lone surrogate": lambda: untrusted.json_of(b'{"a": "\\ud800"}', "a.json"),
    "JSON: no file": lambda folder: untrusted.read_json(folder / "a.json"),
    "lines: no file": lambda folder: list(untrusted.read_lines(folder / "a.txt", 10)),
    "lines: too long": lambda folder: list(untrusted.read_lines(filled(folder / "a.txt", b"x" * 11), 10)),
    "lines: damaged gzip": lambda folder: list(untrusted.read_lines(filled(folder / "a.gz", b"x" * 11), 10)),
    "Parquet: no file": lambda folder: untrusted.ParquetRows(folder / "a.parquet", ["text"]),
    "UWAGA_THREADS: 0": lambda patch: threads(patch, "0"),
    "UWAGA_THREADS: below 0": lambda patch: threads(patch, "-1"),
    "UWAGA_THREADS: a word": lambda patch: threads(patch, "two"),
    "UWAGA_THREADS: half a thread": lambda patch: threads(patch, "1.5"),
    "UWAGA_THREADS: too many": lambda patch: threads(patch, "4097"),
    "UWAGA_PROFILE: a word": lambda patch: profile(patch, "off"),
    "a file of a stranger: a pipe": lambda folder: untrusted.read_file(piped(folder / "a"), 10),
    "a file of a stranger: a device": lambda folder: untrusted.read_file(linked(folder / "a", "/dev/zero"), 10),
    "a file of a stranger: a link to itself": lambda folder: untrusted.read_file(linked(folder / "a", "a"), 10),
    "a file of a stranger: a folder": lambda folder: untrusted.read_file(folder, 10),
    "a file of a stranger: missing": lambda folder: untrusted.read_file(folder / "a", 10),
    "a file of a stranger: a zero in its name": lambda: untrusted.read_file(Path("a\0b"), 10),
    "a file of a stranger: a lone surrogate in its name": lambda: untrusted.read_file(Path("\ud800"), 10),
    "a file of a stranger: too long": lambda folder: untrusted.read_file(filled(folder / "a", b"x" * 11), 10),
    "TOML: a key of many parts": lambda: untrusted.check_toml_size("a." * 32 + "a = 1"),
    "TOML: a quoted key of many parts": lambda: untrusted.check_toml_size('"a" . ' * 32 + "'b' = 1"),
    "TOML: a number of many digits": lambda: untrusted.check_toml_size("a = 0x" + "f" * 300),
    "TOML: too long": lambda: untrusted.check_toml_size("#" * 2**18 + "#"),
}  # fmt: skip
