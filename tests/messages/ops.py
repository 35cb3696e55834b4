"""Calls of operations that raise: attention, masks, biases, ragged batches, linear maps, norms, engine profiles.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width.
"""

import json
import os
from collections.abc import Callable
from functools import reduce
from operator import and_, or_
from pathlib import Path

import processors
import pytest
import torch
from torch import Tensor, zeros
from torch.utils.flop_counter import FlopCounterMode

from uwaga import (
    AlibiBias,
    Causal,
    Documents,
    KeyLengths,
    Ragged,
    RelativeBias,
    Window,
    attention,
    linear,
    sequence_parallel,
)
from uwaga.ops import attention_and_lse
from uwaga.ops.activations import gelu
from uwaga.ops.dropout import dropout, rows_from
from uwaga.ops.engine_profile import read, write
from uwaga.ops.maxsim import maxsim
from uwaga.ops.norms import Lookup, embedding_norm, residual_norm

Q, K, V = zeros(2, 4, 5, 8), zeros(2, 2, 7, 8), zeros(2, 2, 7, 6)
VALUES, OFFSETS = torch.arange(20.0).reshape(5, 2, 2), torch.tensor([0, 2, 2, 5])
X, W, B, R = zeros(2, 6), zeros(5, 6), zeros(5), zeros(2, 5)  # of a linear map: input, weight, bias, residual
LOOKUP = Lookup(zeros(5, 4), torch.tensor([0, 5]))
MEASURED = {
    "attention": {"float32": {"cpu": {"128 tokens": 0.5}, "torch": {"128 tokens": 1.0}}},
    "linear": {"float32": {"onednn": {"384 to 384": 1.25}, "torch": {"384 to 384": 1.0}}},
}


class Marked(Tensor):
    """A subclass of torch.Tensor."""


def ragged(*lengths: int, heads: int = 2) -> Ragged:
    return Ragged.from_list([zeros(n, heads, 4) for n in lengths])


def rows(*lengths: int, width: int = 6) -> Ragged:
    return Ragged.from_list([zeros(n, width) for n in lengths])


def replaced_offsets(offsets: list[int]) -> object:
    """A batch of which the offsets are replaced after they were checked."""
    batch = ragged(3, 1)
    batch.offsets = torch.tensor(offsets)
    return attention(batch, batch, batch)


def resized(x: Tensor, size: int) -> Tensor:
    x.untyped_storage().resize_(size)
    return x


def vmapped(call: Callable[[Tensor], object]) -> object:
    return torch.func.vmap(call, randomness="same")(zeros(3, 2, 4, 5, 8))


def squares(x: Tensor) -> Tensor:
    return attention(x, x, x).square().sum()


def counted(call: Callable[[], object]) -> object:
    with FlopCounterMode(display=False):
        return call()


def of_a_part(call: Callable[[], object]) -> object:
    with rows_from(0):
        return call()


def by_environment(patch: pytest.MonkeyPatch, engine: str) -> object:
    """A linear map in a process that was started with UWAGA_LINEAR."""
    try:
        patch.setenv("UWAGA_LINEAR", engine)
        processors.forget()
        return linear(X, W)
    finally:
        patch.undo()
        processors.forget()


def profile(folder: Path, *keys: str, to: object) -> object:
    """Read an engine profile with one value changed."""
    path = folder / "engines.json"
    write(path, MEASURED, threads=2)
    table = json.loads(path.read_text())
    reduce(dict.__getitem__, keys[:-1], table)[keys[-1]] = to
    path.write_text(json.dumps(table))
    return read(path)


def filled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def piped(path: Path) -> Path:
    os.mkfifo(path)
    return path


def linked(path: Path) -> Path:
    path.symlink_to(path.with_name("gone"))
    return path


CALLS = {
    "attention: head width of keys": lambda: attention(Q, zeros(2, 2, 7, 9), V),
    "attention: keys of values": lambda: attention(Q, K, zeros(2, 2, 6, 6)),
    "attention: batch of keys": lambda: attention(Q, zeros(1, 2, 7, 8), V),
    "attention: heads of keys": lambda: attention(Q, zeros(2, 3, 7, 8), zeros(2, 3, 7, 6)),
    "attention: rank of keys": lambda: attention(Q, K[0], V),
    "attention: vectors": lambda: attention(zeros(8), zeros(8), zeros(8)),
    "attention: head width 0": lambda: attention(zeros(3, 0), zeros(3, 0), zeros(3, 2)),
    "attention: five dimensions": lambda: attention(zeros(2, 3, 4, 5, 8), zeros(2, 2, 4, 5, 8), zeros(2, 3, 4, 5, 8)),
    "attention: shape of lengths": lambda: attention(Q, K, V, mask=KeyLengths(torch.tensor([1, 2, 3]))),
    "attention: shape of a mask": lambda: attention(Q, K, V, mask=zeros(5, 5, dtype=torch.bool)),
    "attention: shape of a bias": lambda: attention(Q, K, V, bias=zeros(3, 5, 7)),
    "attention: slopes of other heads": lambda: attention(Q, K, V, bias=AlibiBias(zeros(2))),
    "attention: sinks of other heads": lambda: attention(Q, K, V, sinks=zeros(2)),
    "attention: shape of ids": lambda: attention(Q, K, V, mask=Documents(torch.zeros(5, dtype=torch.int64))),
    "attention: ragged rows": lambda: attention(ragged(1, 2), ragged(3), ragged(3)),
    "attention: ragged values": lambda: attention(ragged(1, 2), ragged(1, 2), ragged(2, 1)),
    "attention: ragged heads": lambda: attention(ragged(1, 2), ragged(1, 2, heads=3), ragged(1, 2, heads=3)),
    "attention: dtypes": lambda: attention(Q, K.half(), V),
    "attention: integers": lambda: attention(Q.int(), K.int(), V.int()),
    "attention: devices": lambda: attention(Q, K.to("meta"), V),
    "attention: no tensor": lambda: attention(Q, None, V),
    "attention: half ragged": lambda: attention(ragged(2), K, V),
    "attention: normalize": lambda: attention(Q, K, V, normalize="relu"),
    "attention: scale": lambda: attention(Q, K, V, scale=float("nan")),
    "attention: a scale that is a tensor": lambda: attention(Q, K, V, scale=torch.tensor(0.5)),
    "attention: a softcap that is a tensor": lambda: attention(Q, K, V, softcap=torch.tensor(0.5)),
    "attention: a dropout that is a tensor": lambda: attention(Q, K, V, dropout=torch.tensor(0.5)),
    "attention: a scale that is a word": lambda: attention(Q, K, V, scale="0.5"),
    "attention: a dropout that is a word": lambda: attention(Q, K, V, dropout="0.5"),
    "attention: sinks that are a list": lambda: attention(Q, K, V, sinks=[0.0] * 4),
    "Window: left as a tensor": lambda: Window(torch.tensor(1), 0),
    "Window: half a right": lambda: Window(1, 0.5),
    "Causal: half a start": lambda: Causal(start=1.5),
    "Causal: start far away": lambda: Causal(start=2**63),
    "AlibiBias: start far before": lambda: AlibiBias(zeros(4), start=-(2**59) - 1),
    "attention: starts far away": lambda: attention(Q, K, V, mask=Causal(start=torch.tensor([2**62, 0]))),
    "attention: starts of a bias far away": lambda: attention(Q, K, V, bias=AlibiBias(zeros(4), start=torch.tensor(-(2**63)))),
    "Window: left far away": lambda: Window(2**63, 0),
    "Window: right far ahead": lambda: Window(0, 2**59 + 1),
    "Window: left far behind": lambda: Window(-(2**63), 0),
    "Causal: start that is a bool": lambda: Causal(start=True),
    "Window: left that is a bool": lambda: Window(True, None),
    "attention: floating starts": lambda: attention(Q, K, V, mask=Window(1, 0, start=zeros(2))),
    "attention: starts that are bools": lambda: attention(Q, K, V, mask=Causal(start=zeros(2).bool())),
    "attention: ids that are bools": lambda: attention(Q, K, V, mask=Documents(zeros(7).bool())),
    "attention: lengths without a sign": lambda: attention(Q, K, V, mask=KeyLengths(zeros(2).to(torch.uint64))),
    "attention: starts of a bias elsewhere": lambda: attention(Q, K, V, bias=AlibiBias(zeros(4), start=torch.zeros(2, dtype=torch.int64, device="meta"))),
    "attention: a sparse mask": lambda: attention(Q, K, V, mask=zeros(5, 7).bool().to_sparse()),
    "attention: a sparse bias": lambda: attention(Q, K, V, bias=zeros(5, 7).to_sparse()),
    "attention: sparse sinks": lambda: attention(Q, K, V, sinks=zeros(4).to_sparse()),
    "KeyLengths: sparse lengths": lambda: KeyLengths(zeros(2).long().to_sparse()),
    "Causal: sparse starts": lambda: Causal(start=zeros(2).long().to_sparse()),
    "Causal: include_self as a number": lambda: Causal(5),
    "KeyLengths: lengths that are a list": lambda: KeyLengths([1, 2]),
    "Documents: ids that are a list": lambda: Documents([1, 2]),
    "attention: a sparse operand": lambda: attention(zeros(5, 8).to_sparse(), zeros(5, 8), zeros(5, 8)),
    "attention: softcap": lambda: attention(Q, K, V, softcap=0.0),
    "attention: dropout": lambda: attention(Q, K, V, dropout=1.0),
    "attention: sinks without softmax": lambda: attention(Q, K, V, normalize=None, sinks=zeros(4)),
    "attention: lse without softmax": lambda: attention_and_lse(Q, K, V, normalize=None),
    "attention: integer sinks": lambda: attention(Q, K, V, sinks=zeros(4).int()),
    "attention: float mask": lambda: attention(Q, K, V, mask=zeros(5, 7)),
    "attention: integer mask": lambda: attention(Q, K, V, mask=zeros(5, 7).int()),
    "attention: no mask": lambda: attention(Q, K, V, mask="causal"),
    "attention: bool bias": lambda: attention(Q, K, V, bias=zeros(5, 7).bool()),
    "attention: no bias": lambda: attention(Q, K, V, bias=1.0),
    "attention: bias of another dtype": lambda: attention(Q.half(), K.half(), V.half(), bias=zeros(5, 7, dtype=torch.bfloat16)),
    "attention: mask elsewhere": lambda: attention(Q, K, V, mask=zeros(5, 7, dtype=torch.bool, device="meta")),
    "attention: floating lengths": lambda: attention(Q, K, V, mask=KeyLengths(zeros(2))),
    "attention: lengths too long": lambda: attention(Q, K, V, mask=KeyLengths(torch.tensor([-1, 9]))),
    "attention: too many queries for documents": lambda: attention(zeros(2, 4, 9, 8), K, V, mask=Documents(torch.zeros(7, dtype=torch.int64))),
    "attention: unknown engine": lambda: attention(Q, K, V, impl="flash"),
    "attention: engine without the option": lambda: attention(Q, K, V, softcap=1.0, impl="torch"),
    "attention: engine without the dtype": lambda: attention(Q.double(), K.double(), V.double(), impl="linear"),
    "attention: a misspelt option": lambda: attention(Q, K, V, is_causal=True),
    "attention: engine torch with dropout": lambda: attention(Q, K, V, dropout=0.1, impl="torch"),
    "attention: engine torch with sinks": lambda: attention(Q, K, V, sinks=zeros(4), impl="torch"),
    "attention: engine linear with a window": lambda: attention(Q, K, V, normalize=None, mask=Window(1, 1), impl="linear"),
    "attention: engine linear with a softcap": lambda: attention(Q, K, V, normalize=None, softcap=1.0, impl="linear"),
    "attention: engine cpu with a large scale": lambda: attention(Q, K, V, scale=1e300, impl="cpu"),
    "attention: engine cpu with a small softcap": lambda: attention(Q, K, V, softcap=1e-300, impl="cpu"),
    "attention: engine cpu without a head": lambda: attention(zeros(1, 0, 3, 4), zeros(1, 1, 3, 4), zeros(1, 1, 3, 4), impl="cpu"),
    "attention: engine cpu on another device": lambda: attention(*[zeros(2, 4, 8, device="meta")] * 3, impl="cpu"),
    "attention: engine flex in torch.func": lambda: torch.func.grad(lambda x: attention(x, x, x, impl="flex").sum())(zeros(2, 4, 8)),
    "attention: lengths too long in a ragged batch": lambda: attention(*[ragged(2, 3)] * 3, mask=KeyLengths(torch.tensor([-1, 3]))),
    "attention: vmap over a ragged batch": lambda: vmapped(lambda x: attention(*[Ragged(x[0].mT, torch.tensor([0, 5]))] * 3)),
    "attention: vmap with dropout": lambda: vmapped(lambda x: attention(x, x, x, dropout=0.5)),
    "attention: vmap over a start": lambda: vmapped(lambda x: attention(x, x, x, bias=AlibiBias(torch.ones(4), start=x[:, 0, 0, 0].long()))),
    "attention: vmap over sinks": lambda: vmapped(lambda x: attention(x, x, x, sinks=x[0, :, 0, 0])),
    "attention: forward mode": lambda: torch.func.jvp(lambda x: attention(x, x, x), (zeros(2, 3, 4),), (zeros(2, 3, 4),)),
    "attention: vmap over second derivatives": lambda: torch.func.jacrev(torch.func.jacrev(squares))(zeros(2, 3, 4)),
    "attention: memory of a query gone": lambda: attention(resized(zeros(1, 2, 6, 8), 0), *[zeros(1, 2, 6, 8)] * 2),
    "attention: memory of a key cut": lambda: attention(zeros(1, 2, 6, 8), resized(zeros(1, 2, 6, 8), 380), zeros(1, 2, 6, 8)),
    "attention: sinks without memory": lambda: attention(Q, K, V, sinks=torch._efficientzerotensor((4,))),
    "offsets: start far away": lambda: replaced_offsets([10**9, 10**9 + 2, 10**9 + 4]),
    "offsets: start past the rows": lambda: replaced_offsets([2000, 2002, 2004]),
    "offsets: reach too far": lambda: replaced_offsets([0, 2, 2004]),
    "offsets: end early": lambda: replaced_offsets([0, 2, 3]),
    "offsets: fall": lambda: replaced_offsets([0, 3, 2]),
    "offsets: fall below 0": lambda: replaced_offsets([0, -1, 4]),
    "offsets: reach beyond int32": lambda: replaced_offsets([0, 2, 2**62]),
    "sequence_parallel: no process group": lambda: sequence_parallel.attention(X, X, X),
    "sequence_parallel: a block without a process group": lambda: sequence_parallel.sequence_parallel().__enter__(),
    "AlibiBias: slopes that are a list": lambda: AlibiBias([0.5, 0.25]),
    "AlibiBias: complex slopes": lambda: AlibiBias(zeros(2) * 1j),
    "AlibiBias: half a start": lambda: AlibiBias(zeros(2), start=1.5),
    "AlibiBias: a matrix of slopes": lambda: AlibiBias(zeros(2, 2)),
    "RelativeBias: complex table": lambda: RelativeBias(zeros(32, 2) * 1j),
    "RelativeBias: max_distance NaN": lambda: RelativeBias(zeros(32, 2), max_distance=float("nan")),
    "RelativeBias: a table of one dimension": lambda: RelativeBias(zeros(2)),
    "RelativeBias: a table of two rows": lambda: RelativeBias(zeros(2, 4)),
    "Window: left before 0": lambda: Window(-1, 2),
    "masks: nested too deeply by and": lambda: reduce(and_, [Window(2, 0)] * 201, Causal()),
    "masks: nested too deeply by or": lambda: reduce(or_, [Window(2, 0)] * 201, Causal()),
    "Ragged: offsets that start late": lambda: Ragged(VALUES, torch.tensor([1, 5])),
    "Ragged: offsets that fall": lambda: Ragged(VALUES, torch.tensor([0, 4, 2, 5])),
    "Ragged: offsets that end early": lambda: Ragged(VALUES, torch.tensor([0, 2, 4])),
    "Ragged: dtype of offsets": lambda: Ragged(VALUES, OFFSETS.int()),
    "Ragged: a row longer than max_length": lambda: Ragged(VALUES, OFFSETS, max_length=2),
    "Ragged: new values of other tokens": lambda: Ragged(VALUES, OFFSETS).with_values(VALUES[1:]),
    "Ragged: offsets that are a list": lambda: Ragged(VALUES, [0, 5]),
    "Ragged: half a max_length": lambda: Ragged(VALUES, OFFSETS, max_length=5.5),
    "Ragged: first below 0": lambda: Ragged(VALUES, OFFSETS, first=-1),
    "Ragged: one number": lambda: Ragged(torch.tensor(1.0), OFFSETS),
    "Ragged: offsets elsewhere": lambda: Ragged(VALUES, OFFSETS.to("meta")),
    "Ragged.to_padded: length of a shorter row": lambda: Ragged(VALUES, OFFSETS).to_padded(length=1),
    "Ragged.from_padded: lengths of other rows": lambda: Ragged.from_padded(VALUES, torch.tensor([1, 2])),
    "Ragged.from_padded: lengths beyond the rows": lambda: Ragged.from_padded(VALUES, torch.tensor([1, 2, 3, 0, 0])),
    "Ragged.from_padded: lengths that are a list": lambda: Ragged.from_padded(VALUES, [1, 2, 2, 0, 0]),
    "Ragged.from_list: no rows": lambda: Ragged.from_list([]),
    "Ragged.from_nested: a ragged dimension of its own": lambda: Ragged.from_nested(torch.nested.nested_tensor([zeros(2, 3), zeros(4, 3)], layout=torch.jagged).transpose(1, 2)),
    "Ragged.from_nested: a plain tensor": lambda: Ragged.from_nested(VALUES),
    "linear: width of a weight": lambda: linear(X, zeros(5, 7), B, residual=R),
    "linear: width of a bias": lambda: linear(X, W, zeros(6), residual=R),
    "linear: batch of a residual": lambda: linear(X, W, B, residual=zeros(3, 5)),
    "linear: a number": lambda: linear(torch.tensor(0.0), W, B, residual=R),
    "linear: dtype of a weight": lambda: linear(X, W.double(), B, residual=R),
    "linear: dtype of a bias": lambda: linear(X, W, B.double(), residual=R),
    "linear: dtype of a residual": lambda: linear(X, W, B, residual=R.double()),
    "linear: device of a weight": lambda: linear(X, W.to("meta"), B, residual=R),
    "linear: device of a bias": lambda: linear(X, W, B.to("meta"), residual=R),
    "linear: device of a residual": lambda: linear(X, W, B, residual=R.to("meta")),
    "linear: weight that is a list": lambda: linear(X, [[1.0]], B),
    "linear: bias that is a number": lambda: linear(X, W, 1.0),
    "linear: unknown activation": lambda: linear(X, W, activation="tanh"),
    "linear: list of activations": lambda: linear(X, W, activation=["gelu"]),
    "linear: residual of other rows": lambda: linear(rows(2, 3), W, residual=rows(3, 2, width=5)),
    "linear: residual that is no Ragged": lambda: linear(rows(2, 3), W, residual=zeros(5, 5)),
    "linear: residual that is Ragged": lambda: linear(zeros(5, 6), W, residual=rows(2, 3, width=5)),
    "linear: unknown engine": lambda: linear(X, W, impl="mkl"),
    "linear: list of engines": lambda: linear(X, W, impl=["cpu"]),
    "linear: engine onednn in float64": lambda: linear(X.double(), W.double(), impl="onednn"),
    "linear: engine cpu in float64": lambda: linear(X.double(), W.double(), impl="cpu"),
    "linear: engine onednn on another device": lambda: linear(X.to("meta"), W.to("meta"), impl="onednn"),
    "linear: engine cpu of a subclass": lambda: linear(X.as_subclass(Marked), W, impl="cpu"),
    "linear: engine cpu without rows": lambda: linear(zeros(0, 6), W, impl="cpu"),
    "linear: engine cpu under a dispatch mode": lambda: counted(lambda: linear(X, W, impl="cpu")),
    "linear: unknown engine in the environment": lambda patch: by_environment(patch, "mkl"),
    "dropout: probability below 0": lambda: dropout(zeros(2), -0.1),
    "dropout: rows of a part": lambda: of_a_part(lambda: dropout(zeros(4, 8).double(), 0.5)),
    "gelu: unknown approximation": lambda: gelu(zeros(2), "erf"),
    "residual_norm: unknown kind": lambda: residual_norm(X, X, kind="batch", weight=None, eps=1e-5),
    "residual_norm: bias of an RMS norm": lambda: residual_norm(X, X, kind="rms", weight=None, bias=zeros(6), eps=1e-5),
    "residual_norm: probability above 1": lambda: residual_norm(X, X, kind="rms", weight=None, eps=1e-5, p=1.5),
    "embedding_norm: index past a table": lambda: embedding_norm(LOOKUP, None, LOOKUP, weight=None, bias=None, eps=1e-5),
    "maxsim: queries that are no Ragged": lambda: maxsim(zeros(2, 6), rows(2, 3)),
    "maxsim: query without tokens": lambda: maxsim(rows(2, 0), rows(2, 3)),
    "maxsim: widths": lambda: maxsim(rows(2, 1, width=8), rows(2, 3)),
    "maxsim: vectors of one number": lambda: maxsim(Ragged(zeros(3), torch.tensor([0, 3])), rows(2, 3)),
    "maxsim: integers": lambda: maxsim(rows(2, 1).with_values(zeros(3, 6).int()), rows(2, 3)),
    "maxsim: NaN in a document": lambda: maxsim(rows(2, 1), rows(1, 2).with_values(torch.tensor([0.0, 0.0, torch.nan])[:, None].expand(3, 6))),
    "engine profile: format of the future": lambda folder: profile(folder, "format", to=2),
    "engine profile: format that is a bool": lambda folder: profile(folder, "format", to=True),
    "engine profile: date that is a number": lambda folder: profile(folder, "date", to=20261122),
    "engine profile: unknown key": lambda folder: profile(folder, "program", to="rm"),
    "engine profile: attention that is a list": lambda folder: profile(folder, "attention", to=[]),
    "engine profile: unknown dtype": lambda folder: profile(folder, "attention", to={"int8": {}}),
    "engine profile: no ratios": lambda folder: profile(folder, "linear", "float32", to={"order": ["torch"]}),
    "engine profile: unknown engine": lambda folder: profile(folder, "linear", "float32", "order", to=["gpu"]),
    "engine profile: engine of another operation": lambda folder: profile(folder, "attention", "float32", "order", to=["onednn"]),
    "engine profile: engine that is a list": lambda folder: profile(folder, "attention", "float32", "order", to=[["cpu"]]),
    "engine profile: no engine": lambda folder: profile(folder, "attention", "float32", "order", to=[]),
    "engine profile: engine named twice": lambda folder: profile(folder, "attention", "float32", "order", to=["cpu", "cpu"]),
    "engine profile: too long": lambda folder: profile(folder, "about", to="\033[2J" * 20_000),
    "engine profile: empty": lambda folder: read(filled(folder / "engines.json", b"")),
    "engine profile: not UTF-8": lambda folder: read(filled(folder / "engines.json", b"\xff")),
    "engine profile: duplicate key": lambda folder: read(filled(folder / "engines.json", b'{"format": 1, "format": 1}')),
    "engine profile: infinite number": lambda folder: read(filled(folder / "engines.json", b'{"format": 1e999}')),
    "engine profile: a list": lambda folder: read(filled(folder / "engines.json", b"[]")),
    "engine profile: a pipe": lambda folder: read(piped(folder / "engines.json")),
    "engine profile: a broken link": lambda folder: read(linked(folder / "engines.json")),
}  # fmt: skip
