"""Write and read recordings: one safetensors file, whose metadata describes it as JSON.

The tensors are queries, keys and values, the tensors of masks, biases and sinks, and the numbers of token strings. A tensor that
several layers share is written once. The metadata `uwaga` is a JSON object:

    format, version   "recording" and 1
    model             the name of the model
    stacks            by "encoder" and "decoder", per row: the number of tokens (lengths) and of tokens from before the first pass
                      (starts), the token strings, whose numbers are a tensor, and the text, with a tensor of the characters
                      [start, end) of each token
    attentions        kind, layer; query, key and value as operands; heads; the options of the map

A tensor is described as {"tensor": name}, a ragged operand as {"values": name, "offsets": name}, a mask or a bias by its type and
fields.

Letters: R rows, H query heads, G key/value heads, K keys, D query/key width, E value width, N packed tokens.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from operator import le
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import torch
from annotated_types import Ge, Lt, MinLen
from torch import Tensor

from uwaga._base import durable, safetensors_files, untrusted
from uwaga._base.arguments import check
from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.options import Integer, ListOf, Real, Text, options, read
from uwaga._base.terminal import printable, short
from uwaga.inspect.recordings.copies import VectorBias
from uwaga.inspect.recordings.passes import HeadSelection, PassSlice, RecordedAttention, as_batch, heads_of, lengths
from uwaga.maps.map import AttentionMap, MapOptions
from uwaga.nn.attention_id import AttentionId
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.masks import Both, Causal, DenseMask, Documents, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_KEY = "uwaga"  # of the file's metadata
_VERSION = 1
_MASKS: tuple[type, ...] = (Causal, Window, KeyLengths, Documents, DenseMask, Both, Either)
_BIASES: tuple[type, ...] = (AlibiBias, RelativeBias, VectorBias)
_MAX_INTEGER = 1 << 59


def is_recording(path: Path) -> bool:
    """Return whether a file begins like a safetensors file: the length of a JSON header, and a brace. Raises OSError."""
    with untrusted.open_regular(path) as file:
        beginning = file.read(9)
    return len(beginning) == 9 and beginning[8:] == b"{" and 0 < int.from_bytes(beginning[:8], "little") < 1 << 32


# A text, and the characters [start, end) of it that each token stands for.
Source = tuple[str, Sequence[tuple[int, int]]]


class StackTexts(NamedTuple):
    """Hold the attentions of one stack over its texts."""

    attentions: dict[AttentionId, RecordedAttention]
    starts: list[int]  # per row, the number of tokens from before the first pass
    lengths: list[int]  # per row, the number of tokens
    old: list[int]  # per row of the first pass, the number of tokens from before it
    paths: list[list[PassSlice]] | None = None  # per row; None if there is one pass
    tokens: list[list[str]] | None = None  # per row, a string per token
    written: list[Source] | None = None  # per row, the text and the characters of its tokens


# The contents of a file: the name of the model, and the stacks by "encoder" and "decoder".
Saved = tuple[str, Mapping[str, StackTexts]]


def save(saved: Saved, path: Path) -> None:
    """Write a recording; see `Recording.save`."""
    from safetensors.torch import save_file

    writer = _Writer()
    described = writer.described(saved)
    metadata = {"format": "pt", _KEY: _json(described)}
    _check_header(metadata, writer.tensors)
    with durable.atomic_replace(path) as file:
        file.close()
        save_file(writer.tensors, file.name, metadata=metadata)


def load(path: Path) -> Saved:
    """Read a recording; see `Recording.load`. Each stack has one pass."""
    try:
        return _Reader(path).saved()
    except DataError:
        raise
    except CheckpointError as error:  # of the file's header
        raise DataError(str(error)) from error
    except (ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:  # of operands, masks and biases
        raise DataError(f"{path}: not a recording that can be read: {printable(str(error))}") from error


def _json(value: object) -> str:
    try:
        result = json.dumps(value, ensure_ascii=False, allow_nan=False)
        result.encode()
    except UnicodeEncodeError as error:
        raise ValueError("Recording.save: a token or a name is not valid Unicode: it has a lone surrogate") from error
    return result


def _check_header(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError if `load` would reject the header."""
    entries = {
        name: {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [1 << 60] * 2} for name, x in tensors.items()
    }
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    try:
        if len(header) > untrusted.JSON_BYTES:
            raise CheckpointError(f"more than {untrusted.JSON_BYTES:,} bytes")
        untrusted.json_of(header, "a header that")
        untrusted.json_of(metadata[_KEY].encode(), "a description that")
    except CheckpointError as error:
        rule = f"masks, rows and token strings take too long a description: {error}"
        raise ValueError(f"Recording.save: {rule}; record fewer rows, or without a tokenizer") from error


class _Writer:
    """Collect the tensors of a file by name, and describe a recording."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []  # so that no other tensor gets the id of one of them

    def described(self, saved: Saved) -> dict[str, object]:
        """Return the description. Raises ValueError: see `Recording.save`."""
        model, of_stack = saved
        check(any(texts.attentions for texts in of_stack.values()), "Recording.save: nothing was recorded")
        stacks, attentions = {}, []
        for kind, texts in of_stack.items():
            stacks[kind] = {
                "starts": texts.starts,
                "lengths": texts.lengths,
                "tokens": self._tokens(kind, texts.tokens),
                "written": self._written(kind, texts.written, texts.lengths),
            }
            attentions += [
                self._attention(where, texts.attentions[where], texts.paths, texts.old)
                for where in sorted(texts.attentions)
            ]
        return {
            "format": "recording",
            "version": _VERSION,
            "model": model,
            "stacks": stacks,
            "attentions": attentions,
        }

    def _tokens(self, kind: str, rows: list[list[str]] | None) -> dict[str, object] | None:
        if rows is None:
            return None
        numbers: dict[str, int] = {}
        of_tokens = [numbers.setdefault(token, len(numbers)) for row in rows for token in row]
        return {
            "strings": list(numbers),
            "numbers": self._tensor(torch.tensor(of_tokens, dtype=torch.int32), f"{kind}.tokens"),
        }

    def _written(self, kind: str, rows: list[Source] | None, counts: Sequence[int]) -> dict[str, object] | None:
        if rows is None or [len(offsets) for _, offsets in rows] != list(counts):  # The model generated more tokens.
            return None
        offsets = torch.tensor([pair for _, offsets in rows for pair in offsets], dtype=torch.int32).reshape(-1, 2)
        return {"texts": [text for text, _ in rows], "offsets": self._tensor(offsets, f"{kind}.offsets")}

    def _attention(
        self, where: AttentionId, attention: RecordedAttention, paths: list[list[PassSlice]] | None, old: list[int]
    ) -> dict[str, object]:
        query, key, value, options = attention.joined(paths, old)
        name = f"{where.kind}.{where.layer}"
        return {
            "kind": where.kind,
            "layer": where.layer,
            "query": self._operand(query, f"{name}.query"),
            "key": self._operand(key, f"{name}.key"),
            "value": None if value is None else self._operand(value, f"{name}.value"),
            "heads": attention.heads.query,
            "key_heads": attention.heads.key,
            "pairs": attention.heads.pairs,
            "mask": self._part(options["mask"], f"{name}.mask", _MASKS),
            "bias": self._part(options["bias"], f"{name}.bias", _BIASES),
            "scale": None if options["scale"] is None else float(options["scale"]),
            "softcap": None if options["softcap"] is None else float(options["softcap"]),
            "sinks": None if options["sinks"] is None else self._tensor(options["sinks"], f"{name}.sinks"),
        }

    def _operand(self, x: Operand, name: str) -> dict[str, str]:
        if isinstance(x, Tensor):
            return self._tensor(x, name)
        values, offsets = self._tensor(x.values, name), self._tensor(x.offsets, f"{name}.offsets")
        return {"values": values["tensor"], "offsets": offsets["tensor"]}

    def _tensor(self, x: Tensor, name: str) -> dict[str, str]:
        if id(x) not in self._names:
            self._names[id(x)] = name
            self._kept.append(x)
            # safetensors does not write tensors that share memory.
            plain = x.detach().to("cpu").contiguous()
            is_whole = plain.untyped_storage().nbytes() == plain.nbytes
            self.tensors[name] = plain if is_whole else plain.clone()
        return {"tensor": self._names[id(x)]}

    def _part(self, part: object, name: str, types: tuple[type, ...]) -> object:
        """Describe a mask, a bias or a field of one. Raises ValueError: another type."""
        if part is None or isinstance(part, bool):
            return part
        if isinstance(part, Tensor):
            return self._tensor(part, name)
        if type(part) in types:
            fields = {
                field.name: self._part(getattr(part, field.name), f"{name}.{field.name}", types)
                for field in dataclasses.fields(cast("Any", part))
            }
            return {"type": type(part).__name__, **fields}
        try:
            return int(cast("Any", part))
        except (TypeError, ValueError):
            kind, layer, which, *_ = name.split(".")
            written = ", ".join(x.__name__ for x in types if x is not VectorBias)
            raise ValueError(
                f"Recording.save: {kind} {layer}: a {which} of the type {type(part).__name__} cannot be "
                f"written; {written} and tensors can"
            ) from None


# The types of the description, by which it is read.
_Position = Annotated[Integer, Ge(0), Lt(_MAX_INTEGER)]
_Positions = ListOf[_Position]


@options
class _SavedTensor:
    tensor: Text


@options
class _SavedRagged:
    values: Text
    offsets: Text


@options
class _SavedTokens:
    strings: ListOf[Text]
    numbers: _SavedTensor


@options
class _SavedTexts:
    texts: ListOf[Text]
    offsets: _SavedTensor


@options
class _SavedStack:
    starts: _Positions
    lengths: _Positions
    tokens: _SavedTokens | None = None
    written: _SavedTexts | None = None


@options
class _SavedAttention:
    kind: Literal["encoder", "decoder", "cross"]
    layer: _Position
    query: _SavedTensor | _SavedRagged
    key: _SavedTensor | _SavedRagged
    value: _SavedTensor | _SavedRagged | None = None
    heads: _Positions | None = None
    key_heads: _Positions | None = None
    pairs: _Positions | None = None
    mask: Any = None
    bias: Any = None
    scale: Real | None = None
    softcap: Real | None = None
    sinks: _SavedTensor | None = None


@options
class _SavedStacks:
    encoder: _SavedStack | None = None
    decoder: _SavedStack | None = None


@options
class _SavedRecording:
    format: Literal["recording"]
    version: Literal[1]
    model: Text
    stacks: _SavedStacks
    attentions: Annotated[ListOf[_SavedAttention], MinLen(1)]


class _Reader:
    """Read an open file, which is untrusted: a broken rule raises ValueError, and `load` completes the message."""

    def __init__(self, path: Path) -> None:
        self._file = safetensors_files.open_file(path)
        text = self._file.metadata.get(_KEY)
        if text is None:
            raise DataError(f"{path}: a safetensors file, but not a recording of uwaga")
        table = untrusted.json_of(text.encode(), f"{path}: the description of the recording")
        if table.get("format") != "recording" or table.get("version") != _VERSION:
            version = printable(repr(table.get("version")))
            raise DataError(
                f"{path}: a recording in version {version} of the format; this uwaga reads version {_VERSION}"
            )
        self._described: _SavedRecording = read(_SavedRecording, table)
        self._tensors: dict[str, Tensor] = {}
        self._parts: dict[str, object] = {}

    def saved(self) -> Saved:
        described = {kind: getattr(self._described.stacks, kind) for kind in ("encoder", "decoder")}
        stacks = {kind: self._texts(kind, stack) for kind, stack in described.items() if stack is not None}
        for saved in self._described.attentions:
            where = AttentionId(saved.kind, saved.layer)
            texts = stacks.get(where.stacks[0])
            if texts is None or where in texts.attentions:
                raise ValueError(f"{where} is listed twice, or without its stack")
            texts.attentions[where] = self._attention(saved, where, texts)
        return self._described.model, stacks

    def _texts(self, kind: str, stack: _SavedStack) -> StackTexts:
        starts, counts = stack.starts, stack.lengths
        check(
            len(starts) == len(counts) and all(map(le, starts, counts)),
            f"starts and lengths of the {kind} contradict each other",
        )
        tokens = None if stack.tokens is None or not counts else self._tokens(stack.tokens, counts)
        written = None if stack.written is None or not counts else self._written(stack.written, counts)
        return StackTexts({}, starts, counts, starts, tokens=tokens, written=written)

    def _tokens(self, described: _SavedTokens, counts: list[int]) -> list[list[str]]:
        numbers = self._numbers(described.numbers, sum(counts))
        check(((numbers >= 0) & (numbers < len(described.strings))).all(), "token numbers are out of range")
        return [[described.strings[number] for number in row] for row in _rows(numbers, counts)]

    def _written(self, described: _SavedTexts, counts: list[int]) -> list[Source]:
        offsets = self._numbers(described.offsets, sum(counts), 2)
        check(len(described.texts) == len(counts), "written texts are not one per row")
        rows: list[Source] = []
        for text, pairs in zip(described.texts, _rows(offsets, counts), strict=True):
            check(all(0 <= start <= end <= len(text) for start, end in pairs), "offsets are not of their text")
            rows.append((text, [(start, end) for start, end in pairs]))
        return rows

    def _attention(self, saved: _SavedAttention, where: AttentionId, texts: StackTexts) -> RecordedAttention:
        attention = RecordedAttention(where, HeadSelection(saved.heads, saved.key_heads, saved.pairs))
        query, key = self._operand(saved.query), self._operand(saved.key)
        value = None if saved.value is None else self._operand(saved.value)
        check(all(pair < heads_of(key) for pair in saved.pairs or ()), f"pairs of {where} are out of range")
        check(value is None or _sizes(value) == _sizes(key), f"the values of {where} do not fit its keys")
        attention.queries, attention.keys, attention.values = [query], [key], [] if value is None else [value]
        mask, bias = self._part(saved.mask, _MASKS), self._part(saved.bias, _BIASES)
        check(mask is None or isinstance(mask, Mask | Tensor), f"the mask of {where} is not a mask")
        check(bias is None or isinstance(bias, DistanceBias | Tensor), f"the bias of {where} is not a bias")
        sinks = None if saved.sinks is None else self._tensor(saved.sinks.tensor)
        attention.options = MapOptions(mask=mask, bias=bias, scale=saved.scale, softcap=saved.softcap, sinks=sinks)
        attention.starts = [0] * len(texts.lengths) if where.kind == "cross" else texts.starts
        counts = [n - start for start, n in zip(texts.starts, texts.lengths, strict=True)]
        check(lengths(as_batch(query)) == counts, f"the queries of {where} do not fit its texts")
        AttentionMap(query, attention.of_pairs(key), **attention.options)  # checks operands and options
        return attention

    def _operand(self, described: _SavedTensor | _SavedRagged) -> Operand:
        if isinstance(described, _SavedRagged):
            values = self._tensor(described.values)
            check(values.dim() == 3, "a ragged operand has another shape than (N, H, D)")
            return Ragged(values, self._tensor(described.offsets))
        result = self._tensor(described.tensor)
        check(result.dim() >= 3, "an operand has another shape than (..., H, Q, D)")
        return result

    def _part(self, described: Any, types: tuple[type, ...]) -> Any:
        """Read a mask, a bias, or a field of one. Equal descriptions give the same object, as layers share them."""
        if not isinstance(described, dict):
            is_plain = described is None or (isinstance(described, int) and abs(described) <= _MAX_INTEGER)
            check(is_plain, f"{printable(short(described))} is not a mask, a bias or a field of one")
            return described
        if "tensor" in described:
            return self._tensor(described["tensor"])
        name = json.dumps(described, sort_keys=True)
        if name not in self._parts:
            self._parts[name] = self._made(described, types)
        return self._parts[name]

    def _made(self, described: dict, types: tuple[type, ...]) -> object:
        of = next((x for x in types if x.__name__ == described.get("type")), None)
        names = set() if of is None else {field.name for field in dataclasses.fields(of)}
        if of is None or set(described) != {"type", *names}:
            raise ValueError(f"{printable(repr(described.get('type')))} is not a mask or a bias with these fields")
        fields = {name: self._part(described[name], types) for name in names}
        allowed: Mapping[str, Callable[[object], bool]] = {
            "left": lambda x: isinstance(x, Mask) or of is Window,
            "right": lambda x: isinstance(x, Mask) or of is Window,
            "bits": lambda x: isinstance(x, Tensor) and x.dtype == torch.bool,
            "bidirectional": lambda x: isinstance(x, bool),
            "lowest": lambda x: type(x) is int,
            "values": lambda x: isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point() and x.shape[1] > 0,
        }
        for name, value in fields.items():
            fits = name not in allowed or allowed[name](value)
            check(fits, f"the field {name} of a {of.__name__} has another type")
        return of(**fields)

    def _numbers(self, described: _SavedTensor, *sizes: int) -> Tensor:
        """Read an int32 tensor of this shape."""
        numbers = self._tensor(described.tensor)
        fits = numbers.dtype == torch.int32 and numbers.shape == sizes
        check(fits, f"the tensor {printable(described.tensor)} is not one number, or two, for each token")
        return numbers

    def _tensor(self, name: object) -> Tensor:
        """Return a tensor in mapped memory."""
        if not isinstance(name, str) or name not in self._file.stored:
            raise ValueError(f"there is no tensor {printable(repr(name))}")
        if name not in self._tensors:
            self._tensors[name] = self._file.get(name)
        return self._tensors[name]


def _rows(x: Tensor, counts: list[int]) -> list[Any]:
    return [part.tolist() for part in x.split(counts)]


def _sizes(x: Operand) -> object:
    """Return all sizes of a key or a value except its width."""
    return (x.values.shape[:-1], x.offsets.tolist()) if isinstance(x, Ragged) else x.shape[:-1]
