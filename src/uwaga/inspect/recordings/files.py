"""Recordings in files: one safetensors file, whose metadata describes it as JSON.

Tensors: queries and keys of each attention, values where they were kept, and what masks, biases and sinks hold, each once
however many layers share it; the numbers of token strings. The metadata `uwaga` is a JSON object:

    format, version   "recording" and 1
    model             the name of the model
    stacks            by "encoder" and "decoder": per row the number of tokens (lengths) and of those from before the first
                      pass (starts), and the token strings, whose numbers are a tensor; what was written, as texts and a
                      tensor of the characters [start, end) of each token
    attentions        kind, layer; query, key and value as operands; heads; the options of the map

A tensor is described as {"tensor": name}, a ragged operand as {"values": name, "offsets": name}, a mask or a bias as its
type and fields.

Letters: R rows, H query heads, G key/value heads, K keys, D query/key width, E value width, N packed tokens.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from uwaga._base import durable, json_files, safetensors_files, untrusted
from uwaga._base.errors import CheckpointError, DataError
from uwaga._base.terminal import printable
from uwaga.inspect.recordings.copies import VectorBias
from uwaga.inspect.recordings.passes import HeadSelection, PassSlice, RecordedAttention, as_batch, lengths
from uwaga.maps.map import AttentionMap, MapOptions
from uwaga.nn.attention_id import KINDS, AttentionId
from uwaga.ops.biases import AlibiBias, DistanceBias, RelativeBias
from uwaga.ops.masks import Both, Causal, DenseMask, Documents, Either, KeyLengths, Mask, Window
from uwaga.ops.ragged import Operand, Ragged

_KEY = "uwaga"  # of the file's metadata
_VERSION = 1
_STACKS = ("encoder", "decoder")
_MASKS: tuple[type, ...] = (Causal, Window, KeyLengths, Documents, DenseMask, Both, Either)
_BIASES: tuple[type, ...] = (AlibiBias, RelativeBias, VectorBias)
_MAX_INTEGER = 1 << 59


def is_recording(path: Path) -> bool:
    """Whether a file begins as a safetensors file, as no text does: with the length of a JSON header, and a brace. Raises OSError."""
    with untrusted.open_regular(path) as file:
        beginning = file.read(9)
    return len(beginning) == 9 and beginning[8:] == b"{" and 0 < int.from_bytes(beginning[:8], "little") < 1 << 32


# A text, and the characters [start, end) of it that each token stands for.
Source = tuple[str, Sequence[tuple[int, int]]]


class Texts(NamedTuple):
    """The attentions of one stack over its texts."""

    attentions: dict[AttentionId, RecordedAttention]
    starts: list[int]  # per row, the number of tokens from before the first pass
    lengths: list[int]  # per row, the number of tokens
    old: list[int]  # starts, per row of the first pass
    paths: list[list[PassSlice]] | None = None  # of its rows; None if there is one pass
    tokens: list[list[str]] | None = None  # per row a string per token
    written: list[Source] | None = None  # per row what was written


# What a file has: the name of the model, and what was recorded by "encoder" and "decoder".
Saved = tuple[str, Mapping[str, Texts]]


def save(saved: Saved, path: Path) -> None:
    """See `Recording.save`."""
    from safetensors.torch import save_file

    writer = _Writer()
    described = writer.described(saved)
    metadata = {"format": "pt", _KEY: _json(described)}
    _check_header(metadata, writer.tensors)
    with durable.atomic_replace(path) as file:
        file.close()
        save_file(writer.tensors, file.name, metadata=metadata)


def load(path: Path) -> Saved:
    """See `Recording.load`; each stack has one pass."""
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
    """Raises ValueError where `load` would refuse the header."""
    entries = {
        name: {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [1 << 60] * 2} for name, x in tensors.items()
    }
    header = json.dumps({"__metadata__": metadata, **entries}).encode()
    try:
        if len(header) > untrusted.JSON_BYTES:
            raise CheckpointError(f"more than {untrusted.JSON_BYTES:,} bytes")
        json_files.parse(header, "a header that")
        json_files.parse(metadata[_KEY].encode(), "a description that")
    except CheckpointError as error:
        rule = f"masks, rows and token strings take too long a description: {error}"
        raise ValueError(f"Recording.save: {rule}; record fewer rows, or without a tokenizer") from error


class _Writer:
    """The tensors of a file by name, and the description of a recording."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []  # so that no other tensor gets the id of one of them

    def described(self, saved: Saved) -> dict[str, object]:
        """Raises ValueError."""
        model, of_stack = saved
        if not any(texts.attentions for texts in of_stack.values()):
            raise ValueError("Recording.save: nothing was recorded")
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
        if rows is None or [len(offsets) for _, offsets in rows] != list(counts):  # the model went on to generate
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
            # Of its own memory: the library writes no two tensors that share some.
            plain = x.detach().to("cpu").contiguous()
            is_whole = plain.untyped_storage().nbytes() == plain.nbytes
            self.tensors[name] = plain if is_whole else plain.clone()
        return {"tensor": self._names[id(x)]}

    def _part(self, part: object, name: str, types: tuple[type, ...]) -> object:
        """A mask, a bias or a field of one. Raises ValueError for another type."""
        if part is None or isinstance(part, bool):
            return part
        if isinstance(part, Tensor):
            return self._tensor(part, name)
        if type(part) in types:
            fields = {
                each.name: self._part(getattr(part, each.name), f"{name}.{each.name}", types)
                for each in dataclasses.fields(cast("Any", part))
            }
            return {"type": type(part).__name__, **fields}
        try:
            return int(cast("Any", part))
        except (TypeError, ValueError):
            which, known = name.split(".")[2], ", ".join(each.__name__ for each in types if each is not VectorBias)
            raise ValueError(
                f"Recording.save: {' '.join(name.split('.')[:2])}: a {which} of the type {type(part).__name__} cannot be "
                f"written; {known} and tensors can"
            ) from None


class _Reader:
    """A file that was opened. Everything in it may be anything."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = safetensors_files.open_file(path)
        text = self._file.metadata.get(_KEY)
        if text is None:
            raise DataError(f"{path}: a safetensors file, but no recording of uwaga")
        self._described = json_files.parse(text.encode(), f"{path}: the description of the recording")
        if self._described.get("format") != "recording" or self._described.get("version") != _VERSION:
            said = printable(repr(self._described.get("version")))
            raise DataError(f"{path}: a recording in version {said} of the format; this uwaga reads version {_VERSION}")
        self._tensors: dict[str, Tensor] = {}
        self._parts: dict[str, object] = {}

    def _bad(self, what: str) -> DataError:
        """What is wrong in the description."""
        return DataError(f"{self._path}: not a recording that can be read: {what}")

    def saved(self) -> Saved:
        described = self._object(self._described, "stacks")
        if not set(described) <= set(_STACKS):
            raise self._bad("it has a stack that is neither encoder nor decoder")
        sizes = {kind: self._sizes(self._object(described, kind), kind) for kind in described}
        tokens = {
            kind: rows
            for kind, (_, counts) in sizes.items()
            if (rows := self._tokens(described[kind].get("tokens"), counts)) is not None
        }
        of_stack: dict[str, dict[AttentionId, RecordedAttention]] = {kind: {} for kind in sizes}
        for each in self._list(self._described, "attentions"):
            if not isinstance(each, dict):
                raise self._bad("an attention is not an object")
            where = AttentionId(self._one_of(each, "kind", KINDS), self._integer(each, "layer"))
            kind = "encoder" if where.kind == "encoder" else "decoder"
            if kind not in of_stack or where in of_stack[kind]:
                raise self._bad(f"{where} is there twice, or without its stack")
            of_stack[kind][where] = self._attention(each, where, sizes)
        if not any(of_stack.values()):
            raise self._bad("it has no attentions")
        model = self._described.get("model")
        if not isinstance(model, str):
            raise self._bad("model is not a string")
        stacks = {
            kind: Texts(
                attentions=of_stack[kind],
                starts=starts,
                lengths=counts,
                old=starts,
                tokens=tokens.get(kind),
                written=self._written(described[kind].get("written"), counts),
            )
            for kind, (starts, counts) in sizes.items()
        }
        return model, stacks

    def _sizes(self, stack: dict, kind: str) -> tuple[list[int], list[int]]:
        """starts and lengths."""
        starts, counts = (self._integers(stack, name) for name in ("starts", "lengths"))
        if len(starts) != len(counts) or any(not 0 <= start <= n for start, n in zip(starts, counts, strict=True)):
            raise self._bad(f"starts and lengths of the {kind} contradict each other")
        return starts, counts

    def _tokens(self, described: object, counts: Sequence[int]) -> list[list[str]] | None:
        if described is None or not counts:
            return None
        if not isinstance(described, dict):
            raise self._bad("tokens is not an object")
        strings = self._list(described, "strings")
        numbers = self._tensor(described.get("numbers"), torch.int32)
        if numbers.shape != (sum(counts),) or not all(isinstance(each, str) for each in strings):
            raise self._bad("token strings are not one per token")
        listed = numbers.tolist()
        if listed and not 0 <= min(listed) <= max(listed) < len(strings):
            raise self._bad("token numbers are out of range")
        names, rows, at = [strings[number] for number in listed], [], 0
        for count in counts:
            rows.append(names[at : at + count])
            at += count
        return rows

    def _written(self, described: object, counts: Sequence[int]) -> list[Source] | None:
        if described is None or not counts:
            return None
        if not isinstance(described, dict):
            raise self._bad("written is not an object")
        texts = self._list(described, "texts")
        offsets = self._tensor(described.get("offsets"), torch.int32)
        if offsets.shape != (sum(counts), 2) or len(texts) != len(counts):
            raise self._bad("offsets are not two per token, or texts not one per row")
        rows: list[Source] = []
        for text, pairs in zip(texts, offsets.split(list(counts)), strict=True):
            if (
                not isinstance(text, str)
                or ((pairs < 0) | (pairs > len(text))).any()
                or (pairs[:, 0] > pairs[:, 1]).any()
            ):
                raise self._bad("offsets are not of their text")
            rows.append((text, [(start, end) for start, end in pairs.tolist()]))
        return rows

    def _attention(
        self, each: dict, where: AttentionId, sizes: Mapping[str, tuple[list[int], list[int]]]
    ) -> RecordedAttention:
        pairs, heads, key_heads = (
            None if each.get(name) is None else self._integers(each, name) for name in ("pairs", "heads", "key_heads")
        )
        attention = RecordedAttention(where, HeadSelection(heads, key_heads, pairs))
        query, key = self._operand(each.get("query")), self._operand(each.get("key"))
        value = None if each.get("value") is None else self._operand(each.get("value"))
        groups = key.values.shape[1] if isinstance(key, Ragged) else key.shape[-3]
        if pairs is not None and not all(pair < groups for pair in pairs):
            raise self._bad(f"pairs of {where} are out of range")
        if value is not None and _sizes(value) != _sizes(key):
            raise self._bad(f"the values of {where} do not fit its keys")
        attention.queries, attention.keys, attention.values = [query], [key], [] if value is None else [value]
        mask, bias = self._part(each.get("mask"), _MASKS), self._part(each.get("bias"), _BIASES)
        if not (mask is None or isinstance(mask, Mask | Tensor)) or not (
            bias is None or isinstance(bias, DistanceBias | Tensor)
        ):
            raise self._bad(f"the mask or bias of {where} is none")
        attention.options = MapOptions(
            mask=mask,
            bias=bias,
            scale=self._number(each, "scale"),
            softcap=self._number(each, "softcap"),
            sinks=None if each.get("sinks") is None else self._tensor(each.get("sinks")),
        )
        starts, counts = sizes["encoder" if where.kind == "encoder" else "decoder"]
        attention.starts = [0] * len(counts) if where.kind == "cross" else starts
        if lengths(as_batch(query)) != [n - start for start, n in zip(starts, counts, strict=True)]:
            raise self._bad(f"the queries of {where} are not those of its texts")
        AttentionMap(query, attention.of_pairs(key), **attention.options)  # checks operands and options
        return attention

    def _operand(self, described: object) -> Operand:
        if isinstance(described, dict) and "values" in described:
            values, offsets = (self._tensor({"tensor": described.get(name)}) for name in ("values", "offsets"))
            if values.dim() != 3:
                raise self._bad("a ragged operand has another shape than (N, H, D)")
            return Ragged(values, offsets)
        result = self._tensor(described)
        if result.dim() < 3:
            raise self._bad("an operand has another shape than (..., H, Q, D)")
        return result

    def _part(self, described: object, types: tuple[type, ...]) -> Any:
        """A mask, a bias, or a field of one. Equal descriptions give the same object, as layers share them."""
        if described is None or isinstance(described, bool):
            return described
        if isinstance(described, int):
            if abs(described) > _MAX_INTEGER:
                raise self._bad("an integer is out of range")
            return described
        if not isinstance(described, dict):
            raise self._bad("a mask or a bias is described by something else than an object")
        if "tensor" in described:
            return self._tensor(described)
        name = json.dumps(described, sort_keys=True)
        if name not in self._parts:
            self._parts[name] = self._made(described, types)
        return self._parts[name]

    def _made(self, described: dict, types: tuple[type, ...]) -> object:
        of = next((each for each in types if each.__name__ == described.get("type")), None)
        names = set() if of is None else {each.name for each in dataclasses.fields(of)}
        if of is None or set(described) != {"type", *names}:
            raise self._bad(f"{printable(repr(described.get('type')))} is no mask or bias with these fields")
        fields = {each: self._part(described[each], types) for each in names}
        allowed: Mapping[str, Callable[[object], bool]] = {
            "left": lambda x: isinstance(x, Mask) or of is Window,
            "right": lambda x: isinstance(x, Mask) or of is Window,
            "bits": lambda x: isinstance(x, Tensor) and x.dtype == torch.bool,
            "bidirectional": lambda x: isinstance(x, bool),
            "lowest": lambda x: type(x) is int,
            "values": lambda x: isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point() and x.shape[1] > 0,
        }
        for each, value in fields.items():
            if each in allowed and not allowed[each](value):
                raise self._bad(f"the field {each} of a {of.__name__} is something else")
        return of(**fields)

    def _tensor(self, described: object, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor in mapped memory."""
        name = described.get("tensor") if isinstance(described, dict) else None
        if not isinstance(name, str) or name not in self._file.stored:
            raise self._bad(f"there is no tensor {printable(repr(name))}")
        if name not in self._tensors:
            self._tensors[name] = self._file.get(name)
        tensor = self._tensors[name]
        if dtype is not None and tensor.dtype != dtype:
            raise self._bad(f"the tensor {printable(name)} is {tensor.dtype}, not {dtype}")
        return tensor

    def _object(self, of: dict, name: str) -> dict:
        if not isinstance(of.get(name), dict):
            raise self._bad(f"{name} is not an object")
        return of[name]

    def _list(self, of: dict, name: str) -> list:
        if not isinstance(of.get(name), list):
            raise self._bad(f"{name} is not a list")
        return of[name]

    def _integers(self, of: dict, name: str) -> list[int]:
        listed = self._list(of, name)
        if not all(type(each) is int and 0 <= each < _MAX_INTEGER for each in listed):
            raise self._bad(f"{name} has something else than positions")
        return listed

    def _integer(self, of: dict, name: str) -> int:
        if type(of.get(name)) is not int or not 0 <= of[name] < _MAX_INTEGER:
            raise self._bad(f"{name} is not a number of a layer")
        return of[name]

    def _number(self, of: dict, name: str) -> float | None:
        if of.get(name) is not None and type(of[name]) not in (int, float):
            raise self._bad(f"{name} is not a number")
        return None if of.get(name) is None else float(of[name])

    def _one_of(self, of: dict, name: str, values: Sequence[str]) -> str:
        if of.get(name) not in values:
            raise self._bad(f"{name} is none of {', '.join(values)}")
        return of[name]


def _sizes(x: Operand) -> object:
    """Everything but the width of a key or a value."""
    return (x.values.shape[:-1], x.offsets.tolist()) if isinstance(x, Ragged) else x.shape[:-1]
