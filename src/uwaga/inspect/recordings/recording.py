"""Recordings of a model's attention: queries and keys, from which every weight can be computed afterwards.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uwaga._base.arguments import check
from uwaga.inspect.recordings import files
from uwaga.inspect.recordings.copies import Copier, tensors
from uwaga.inspect.recordings.passes import (
    HeadSelection,
    Pass,
    PassSlice,
    RecordedAttention,
    SequenceTree,
    as_batch,
    heads_of,
    lengths,
    start_of,
)
from uwaga.maps.base import format_bytes
from uwaga.maps.map import AttentionMap
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.ops.ragged import Operand, Ragged

TokenLists = Sequence[str] | Sequence[Sequence[str]]


class TokenStrings:
    """Hold the tokenizers or the strings of a recording's tokens.

    Args:
        tokenizer, tokens: as in `uwaga.watch`.
    """

    def __init__(self, tokenizer: object, tokens: TokenLists | Mapping[str, TokenLists] | None) -> None:
        check(tokenizer is None or tokens is None, "watch: tokenizer and tokens cannot be combined: pass one of them")
        self._tokenizers = {
            kind: tokenizer.get(kind) if isinstance(tokenizer, Mapping) else tokenizer
            for kind in ("encoder", "decoder")
        }
        for of_stack in self._tokenizers.values():
            _converter(of_stack)  # raises ValueError
        self._strings = tokens
        self.patches: list[str] = []  # the names of the tokens of an image, which have no ids

    def of(
        self, kind: str, lengths: list[int], ids: list[list[int]] | None, kinds: list[str]
    ) -> list[list[str]] | None:
        """Return the strings of every row; None if they are unknown.

        Args:
            kind: "encoder" or "decoder".
            lengths: the number of tokens per row.
            ids: the token ids per row, or None.
            kinds: the recorded kinds.
        """
        if self._strings is not None:
            return self._checked(kind, lengths, kinds)
        if ids is None:
            is_image = kind == "encoder" and self.patches and set(lengths) == {len(self.patches)}
            return [list(self.patches) for _ in lengths] if is_image else None
        strings = _converter(self._tokenizers[kind])
        return [strings(row) for row in ids]

    def _checked(self, kind: str, lengths: list[int], kinds: list[str]) -> list[list[str]] | None:
        strings = self._strings
        if isinstance(strings, Mapping):
            if kind not in strings:
                return None
            strings = strings[kind]
        elif len(kinds) > 1:
            raise ValueError(
                'watch: an encoder and a decoder were recorded: pass tokens as {"encoder": ..., "decoder": ...}'
            )
        assert strings is not None
        is_single_row = all(isinstance(token, str) for token in strings)
        rows = [[str(token) for token in row] for row in ([strings] if is_single_row else strings)]
        if (counts := [len(row) for row in rows]) != lengths:
            actual = f"{counts}, and {lengths} were recorded"
            raise ValueError(f"watch: tokens must be one string per token of the {kind}, but rows have {actual}")
        return rows


def _converter(tokenizer: object) -> Callable[[list[int]], list[str]]:
    if tokenizer is None:
        return lambda ids: list(map(str, ids))
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return lambda ids: [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    if hasattr(tokenizer, "id_to_token"):

        def by_id(ids: list[int]) -> list[str]:
            names = map(tokenizer.id_to_token, ids)
            return [str(token) if name is None else name for token, name in zip(ids, names, strict=True)]

        return by_id
    if callable(tokenizer):
        return lambda ids: [str(token) for token in tokenizer(ids)]
    if hasattr(tokenizer, "backend"):  # uwaga.models.tokenizers.Tokenizer
        return _converter(tokenizer.backend)
    kinds = "a tokenizer of uwaga, tokenizers or transformers, or a function from a list of ids to strings"
    raise ValueError(f"watch: tokenizer must be {kinds}, not {type(tokenizer).__name__}")


class RecordedStack:
    """Record the forward passes over one batch of texts: one pass, or the passes of a generation.

    A pass begins with a call of an attention that was already called in the present pass. It continues the texts if its
    queries follow keys that were recorded. Any other pass starts new texts, and drops the recorded ones.
    """

    def __init__(
        self,
        kind: str = "",
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        max_bytes: int | None = None,
        taken: dict[str, int] | None = None,
    ) -> None:
        self.copier = Copier(dtype, device, max_bytes, {} if taken is None else taken, kind, self.forget)
        self.forget()

    def forget(self) -> None:
        """Drop everything that was recorded."""
        self.copier.forget()
        self.attentions: dict[AttentionId, RecordedAttention] = {}
        self.tree: SequenceTree | None = None
        self.passes: list[Pass] = []
        self.ids: list[Operand | None] = []  # per pass, (R, Q) or Ragged (N,)
        self._called: set[AttentionId] = set()

    def begins(self, where: AttentionId) -> bool:
        """Return whether a call of this attention begins a pass."""
        return not self.passes or where in self._called

    def begin(
        self, where: AttentionId, query: Operand, key: Operand, options: Mapping[str, Any], ids: Tensor | None
    ) -> bool:
        """Begin a pass, and return whether it starts new texts."""
        query, key = as_batch(query), as_batch(key)
        start = 0 if where.kind == "cross" else start_of(options["mask"])
        this = Pass.of(query, key, start)
        goes_on = any(this.starts) and self.tree is not None and self.tree.extend(key, this.starts, this.queries)
        if goes_on:
            self._called = set()
            self.copier.end_pass()
        else:
            self.forget()
            self.tree = SequenceTree(query if where.kind == "cross" else key, this)
        self.passes.append(this)
        self.ids.append(_as_rows(ids, query))
        return not goes_on

    def note_call(self, where: AttentionId, key: Operand) -> None:
        """Note a call of this attention in the present pass."""
        if where.kind == "cross" and self.tree is not None and not any(other.kind == "cross" for other in self._called):
            self.tree.match_memory(key := as_batch(key), lengths(key))
        self._called.add(where)

    @staticmethod
    def of_one_pass(
        starts: list[int], lengths: list[int], attentions: dict[AttentionId, RecordedAttention]
    ) -> "RecordedStack":
        """Make a stack whose texts were read in one pass, from the numbers of earlier keys and of tokens per row."""
        made = RecordedStack()
        made.attentions = attentions
        made.passes = [Pass(starts=starts, queries=[n - start for n, start in zip(lengths, starts, strict=True)])]
        made.ids = [None]
        return made

    def old_lengths(self) -> list[int]:
        """Return the number of keys from before the first pass, per row."""
        return self.passes[0].starts

    def ids_of_paths(self, paths: list[list[PassSlice]] | None) -> list[list[int]] | None:
        """Return the token ids of each path, or of each row if there is one pass; None if they are unknown."""
        if any(ids is None for ids in self.ids) or any(self.old_lengths()):
            return None
        known_ids = (ids for ids in self.ids if ids is not None)
        by_pass = [[row.tolist() for row in (x.to_list() if isinstance(x, Ragged) else x)] for x in known_ids]
        if paths is None:
            return by_pass[0]
        return [[x for p in path for x in by_pass[p.step][p.row][: p.tokens]] for path in paths]

    def tokens(self, paths: list[list[PassSlice]] | None) -> list[int]:
        """Return the number of tokens of each path, or of each row if there is one pass."""
        if paths is not None:
            return [sum(p.tokens for p in path) for path in paths]
        return self.passes[0].tokens


def _as_rows(ids: Tensor | None, query: Operand) -> Operand | None:
    """Copy the ids in the shape of the query's rows; None unless there is one id per query token."""
    if ids is None:
        return None
    if isinstance(query, Ragged):
        return query.with_values(ids.flatten().clone()) if ids.numel() == query.values.shape[0] else None
    batch, queries = query.shape[:-3].numel(), query.shape[-2]
    return ids.reshape(batch, queries).clone() if ids.numel() == batch * queries else None


class Recording:
    """Hold the queries and keys of one pass through a model, or of one generation, as `uwaga.watch` recorded them.

    A pass whose queries follow the keys of the pass before continues it. Any other pass starts new texts and drops the recorded
    ones; a new pass of an encoder also drops its decoder's. Maps that were read before stay valid.

    Attributes:
        maps: from (kind, layer) to an AttentionMap, with kind "encoder", "decoder" or "cross"; created when first read.
        tokens: from "encoder" and "decoder" to a list per row with a string per token; kinds without known tokens are missing.
            The queries of cross-attention are the decoder's tokens, its keys the encoder's.
        values: from (kind, layer) to the values, (R, G, K, E) or Ragged (N, G, E), of `uwaga.watch(model, values=True)`; else empty.
            If heads were selected, it has the values that belong to the keys of the map.
        model: the directory or hub id of a model of transformers, else the name of the model's class; "" if it is unknown.
        written: from "encoder" and "decoder" to, for each row, the text that was read and the characters [start, end) of it that
            each token stands for; empty if unknown. `uwaga.view` of a text sets it.
    """

    def __init__(
        self,
        *,
        heads: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        max_bytes: int | None = None,
        device: torch.device | str | int | None = None,
        strings: TokenStrings | None = None,
        model: str = "",
    ) -> None:
        self._heads = None if heads is None else tuple(heads)
        self._strings = TokenStrings(None, None) if strings is None else strings
        taken: dict[str, int] = {}
        place = None if device is None else _device(device)
        self._stacks = {kind: RecordedStack(kind, dtype, place, max_bytes, taken) for kind in ("encoder", "decoder")}
        # The maps, and with True the values, that were read since a call.
        self._read: dict[tuple[AttentionId, bool], Any] = {}
        self.has_candidates = False  # whether speculative decoding may have read candidate tokens that were rejected
        self.model = model
        self.written: dict[str, list[tuple[str, Sequence[tuple[int, int]]]]] = {}
        self.maps: Mapping[tuple[str, int], AttentionMap] = _OfLayers(self, is_values=False)
        self.values: Mapping[tuple[str, int], Operand] = _OfLayers(self, is_values=True)

    @property
    def tokens(self) -> dict[str, list[list[str]]]:
        """See the class. Raises ValueError: not one string per token; as `maps` after a beam search."""
        kinds = [kind for kind, stack in self._stacks.items() if stack.passes]
        results = {}
        for kind in kinds:
            stack, paths = self._stacks[kind], self._paths(kind)
            strings = self._strings.of(kind, stack.tokens(paths), stack.ids_of_paths(paths), kinds)
            if strings is not None:
                results[kind] = strings
        return results

    def token_ids(self, kind: str) -> list[list[int]] | None:
        """Return the token ids that "encoder" or "decoder" has read, per row; None if they are unknown.

        They are unknown in a recording from a file and after keys that were not recorded. Raises ValueError: as `maps` after a beam search.
        """
        stack = self._stacks[kind]
        return stack.ids_of_paths(self._paths(kind)) if stack.passes else None

    @property
    def nbytes(self) -> int:
        """The bytes of all stored tensors; a tensor that several layers share counts once."""
        kept = tensors([[attention.kept for attention in stack.attentions.values()] for stack in self._stacks.values()])
        return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values())

    def save(self, path: str | Path) -> None:
        """Write the recording to one safetensors file, with the same bits; an existing file is replaced atomically.

        The file has queries, keys and values, masks and biases as data, tokens and texts, and the name of the model. Passes are joined
        first. The file takes `nbytes` and some bytes per token.

        Raises:
            ValueError: a mask or a bias of another package's type, token strings or descriptions that are too long for a file, or as
                `maps` after a beam search; nothing is written then.
            OSError: the file cannot be written.
        """
        tokens, stacks = self.tokens, {}
        for kind, stack in self._stacks.items():
            if stack.passes:
                paths, old = self._paths(kind), stack.old_lengths()
                stack.copier.wait()
                stacks[kind] = files.StackTexts(
                    attentions=stack.attentions,
                    starts=old if paths is None else [old[path[0].row] for path in paths],
                    lengths=stack.tokens(paths),
                    old=old,
                    paths=paths,
                    tokens=tokens.get(kind),
                    written=self.written.get(kind),
                )
        files.save((self.model, stacks), Path(path))

    @staticmethod
    def load(path: str | Path) -> "Recording":
        """Read a file that `save` wrote. Operands are mapped into memory, and read when a weight needs them.

        Raises:
            DataError: the file is not a recording, or is damaged; the message begins with the path.
        """
        model, stacks = files.load(Path(path))
        tokens = {kind: texts.tokens for kind, texts in stacks.items() if texts.tokens is not None}
        result = Recording(strings=TokenStrings(None, tokens), model=model)
        result.written = {kind: texts.written for kind, texts in stacks.items() if texts.written is not None}
        result._stacks |= {
            kind: RecordedStack.of_one_pass(texts.starts, texts.lengths, texts.attentions)
            for kind, texts in stacks.items()
        }
        return result

    def record(
        self, where: AttentionId, query: Operand, key: Operand, options: Mapping[str, Any], ids: Tensor | None
    ) -> bool:
        """Note a call of attention with its options by name, and return whether it begins a pass.

        Calls of layers that are not recorded are noted too.
        """
        self._read.clear()
        stack = self._stack(where)
        begins = stack.begins(where)
        if begins and stack.begin(where, query, key, options, ids) and where.kind == "encoder":
            self._stacks["decoder"].forget()
        stack.note_call(where, key)
        return begins

    def store(
        self, where: AttentionId, query: Operand, key: Operand, options: Mapping[str, Any], value: Operand | None = None
    ) -> None:
        """Copy the operands of a call that was noted by `record`; the value is None if it is not kept.

        Raises:
            ValueError: a head that does not exist; passes that cannot be joined; more than max_bytes.
        """
        heads = HeadSelection.of(where, self._heads, heads_of(query), heads_of(key))
        stack = self._stack(where)
        attention = stack.attentions.setdefault(where, RecordedAttention(where, heads))
        attention.store(query, key, value, options, stack.copier)

    def close(self) -> None:
        """Release the model's own tensors."""
        for stack in self._stacks.values():
            stack.copier.end_pass()

    def __repr__(self) -> str:
        return f"Recording({describe_layers(self.maps)}; {format_bytes(self.nbytes)})"

    def picked_heads(self, where: AttentionId) -> list[int] | None:
        """Return the numbers of a map's heads in the model if `watch(heads=...)` picked some; None if the map has all."""
        return self._stack(where).attentions[where].heads.query

    def _stack(self, where: AttentionId) -> RecordedStack:
        return self._stacks[where.stacks[0]]

    def _paths(self, kind: str) -> list[list[PassSlice]] | None:
        """Return the path of each row's text; None if there is one pass."""
        stack = self._stacks[kind]
        check(
            kind != "decoder" or not self.has_candidates,
            "Recording: speculative decoding (assisted generation) read candidate tokens that may have been rejected; "
            "record one pass over the whole text instead",
        )
        if len(stack.passes) < 2:
            return None
        assert stack.tree is not None
        paths = stack.tree.paths()
        if paths is None:
            raise ValueError(
                "Recording: a beam search continued one text in several ways; record one pass over the whole text instead"
            )
        return paths


def _device(device: torch.device | str | int) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"watch: device must be a device of PyTorch's, such as 'cpu', or None, not {device!r}"
        ) from None


class _OfLayers(Mapping[tuple[str, int], Any]):
    """Map each attention of a recording to its map, or to its values, which are created when first read."""

    def __init__(self, recording: Recording, *, is_values: bool) -> None:
        self._recording, self._is_values = recording, is_values

    def __getitem__(self, name: tuple[str, int]) -> Any:
        if name not in set(self):
            raise KeyError(self._missing(name))
        where, recording = AttentionId(*name), self._recording
        if (where, self._is_values) not in recording._read:
            stack, paths = recording._stack(where), recording._paths(where.stacks[0])
            stack.copier.wait()
            attention = stack.attentions[where]
            query, key, value, options = attention.joined(paths, stack.old_lengths())
            x = value if self._is_values else key
            assert x is not None
            x = attention.of_pairs(x)
            recording._read[where, self._is_values] = x if self._is_values else AttentionMap(query, x, **options)
        return recording._read[where, self._is_values]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return (
            (where.kind, where.layer)
            for stack in self._recording._stacks.values()
            for where in sorted(stack.attentions)
            if stack.attentions[where].values or not self._is_values
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"{'Values' if self._is_values else 'Maps'}({describe_layers(self)})"

    def _missing(self, name: object) -> str:
        if not self._is_values:
            return f"Recording: there is no map of {name!r}; there are {describe_layers(self)}"
        advice = "" if len(self) else "; uwaga.watch(model, values=True) keeps them"
        return f"Recording: there are no values of {name!r}; there are {describe_layers(self)}{advice}"
