"""What was recorded of a model's attention: queries and keys, from which every weight can be read afterwards.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from uwaga.inspect.recordings import files
from uwaga.inspect.recordings.copies import Budget, HeadSelection, tensors
from uwaga.inspect.recordings.passes import PassSlice, as_batch
from uwaga.inspect.recordings.stack import RecordedAttention, Stack
from uwaga.maps.base import format_bytes
from uwaga.maps.map import AttentionMap, MapOptions
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.ops.ragged import Operand, Ragged

_T = TypeVar("_T")
TokenLists = Sequence[str] | Sequence[Sequence[str]]


class TokenStrings:
    """The strings of a recording's tokens.

    Args:
        tokenizer: one of transformers or tokenizers, or a function from a list of ids to a list of strings; None: a
            token's string is its id. A dict by "encoder" and "decoder" if they have different ones.
        tokens: the strings themselves, of one row or a list per row; of an encoder and a decoder a dict of both.
    """

    def __init__(self, tokenizer: object, tokens: TokenLists | Mapping[str, TokenLists] | None) -> None:
        if tokenizer is not None and tokens is not None:
            raise ValueError("watch: tokenizer and tokens cannot be combined: pass one of them")
        self._tokenizers = {
            kind: tokenizer.get(kind) if isinstance(tokenizer, Mapping) else tokenizer
            for kind in ("encoder", "decoder")
        }
        for each in self._tokenizers.values():
            _converter(each)  # raises ValueError
        self._given = tokens
        self._patches: list[str] = []

    def name_patches(self, names: list[str]) -> None:
        """The names of an encoder's tokens that have no ids: those of a picture."""
        self._patches = names

    def of(
        self, kind: str, lengths: list[int], ids: list[list[int]] | None, kinds: list[str]
    ) -> list[list[str]] | None:
        """The strings of every row; None if they are unknown.

        Args:
            kind: "encoder" or "decoder".
            lengths: the number of tokens per row.
            ids: the token ids per row, or None.
            kinds: the recorded kinds.
        """
        if self._given is not None:
            return self._checked(kind, lengths, kinds)
        if ids is None:
            is_picture = kind == "encoder" and self._patches and set(lengths) == {len(self._patches)}
            return [list(self._patches) for _ in lengths] if is_picture else None
        strings = _converter(self._tokenizers[kind])
        return [strings(row) for row in ids]

    def _checked(self, kind: str, lengths: list[int], kinds: list[str]) -> list[list[str]] | None:
        given = self._given
        if isinstance(given, Mapping):
            if kind not in given:
                return None
            given = given[kind]
        elif len(kinds) > 1:
            raise ValueError(
                'watch: an encoder and a decoder were recorded: pass tokens as {"encoder": ..., "decoder": ...}'
            )
        assert given is not None
        listed = [list(given)] if all(isinstance(token, str) for token in given) else [list(row) for row in given]
        if [len(row) for row in listed] != lengths:
            actual = f"{[len(row) for row in listed]}, and {lengths} were recorded"
            raise ValueError(f"watch: tokens must be one string per token of the {kind}, but rows have {actual}")
        return [[str(token) for token in row] for row in listed]


def _converter(tokenizer: object) -> Callable[[list[int]], list[str]]:
    if tokenizer is None:
        return lambda ids: [str(each) for each in ids]
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return lambda ids: [str(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    if hasattr(tokenizer, "id_to_token"):

        def by_id(ids: list[int]) -> list[str]:
            names = ((each, tokenizer.id_to_token(each)) for each in ids)
            return [str(each) if name is None else name for each, name in names]

        return by_id
    if callable(tokenizer):
        return lambda ids: [str(token) for token in tokenizer(ids)]
    kinds = "a tokenizer of tokenizers or transformers, or a function from a list of ids to strings"
    raise ValueError(f"watch: tokenizer must be {kinds}, not {type(tokenizer).__name__}")


class Recording:
    """What `uwaga.watch` recorded: queries and keys of one pass through a model, or of one generation.

    A pass whose queries follow the keys of the pass before continues it. Any other pass starts new texts, and drops what was
    recorded before; a new pass of an encoder drops its decoder's too. Maps that were read before stay valid.

    Attributes:
        maps: from (kind, layer) to an AttentionMap, with kind "encoder", "decoder" or "cross"; created when first read.
        tokens: from "encoder" and "decoder" to a list per row with a string per token; kinds without known tokens are missing.
            The queries of cross-attention are the decoder's tokens, its keys the encoder's.
        values: from (kind, layer) to the values, (R, G, K, E) or Ragged (N, G, E), where `uwaga.watch(model, values=True)` kept them;
            empty otherwise. Of selected heads, the values that belong to the keys of the map.
        model: the directory or hub id of a model of transformers, else the name of the model's class; "" if it is unknown.
        written: from "encoder" and "decoder" to, for each row, the text that was read and the characters [start, end) of it that
            each token stands for; empty where that is not known. `uwaga.view` of a text sets it.
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
        budget = Budget(max_bytes)
        place = None if device is None else _device(device)
        self._stacks = {kind: Stack(dtype, budget, place) for kind in ("encoder", "decoder")}
        self._chosen: list[list[PassSlice]] | None = None  # of the decoder
        self.model = model
        self.written: dict[str, list[tuple[str, Sequence[tuple[int, int]]]]] = {}
        self.maps: Mapping[tuple[str, int], AttentionMap] = Maps(self)
        self.values: Mapping[tuple[str, int], Operand] = Values(self)

    @property
    def tokens(self) -> dict[str, list[list[str]]]:
        """See the class. Raises ValueError if the given strings are not one per token, and as `maps` after a beam search."""
        kinds = [kind for kind, stack in self._stacks.items() if stack.passes]
        results = {}
        for kind in kinds:
            stack, paths = self._stacks[kind], self._paths(kind)
            strings = self._strings.of(kind, stack.tokens(paths), stack.ids_of_paths(paths), kinds)
            if strings is not None:
                results[kind] = strings
        return results

    def token_ids(self, kind: str) -> list[list[int]] | None:
        """Per row, the ids of the tokens that "encoder" or "decoder" has read; None where they are unknown, as in a recording from a
        file, and after keys that were not recorded. Raises ValueError as `maps` after a beam search."""
        stack = self._stacks[kind]
        return stack.ids_of_paths(self._paths(kind)) if stack.passes else None

    @property
    def nbytes(self) -> int:
        """The bytes of all stored tensors; one that several layers share counts once."""
        kept = tensors([[attention.kept for attention in stack.attentions.values()] for stack in self._stacks.values()])
        return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values())

    def of(self, texts: Sequence[Sequence[int]] | Ragged | Tensor) -> "Recording":
        """A recording of the given texts of the decoder only: after a beam search the beams that were chosen, else any texts.

        Args:
            texts: the token ids of the decoder, prompt (or start token) and generated ones, without padding; lists,
                Ragged (N,) or a tensor (R, T). The last token of a text need not have been read. With an encoder the same
                number of texts for each of its rows, in their order.

        Raises:
            ValueError: a text of which more than the last token was not recorded, or unknown token ids.
        """
        stack = self._stacks["decoder"]
        if not stack.passes or stack.ids_of_paths([]) is None:
            raise ValueError("Recording.of: the token ids of the decoder are unknown")
        listed = [list(map(int, text)) for text in (texts.to_list() if isinstance(texts, Ragged) else texts)]
        paths = []
        for number, ids in enumerate(listed):
            path, same = stack.follow(ids, self._first_pass_rows(number, len(listed)))
            if same < max(len(ids) - 1, 1):
                raise ValueError(f"Recording.of: text {number} was recorded for {same} of its {len(ids)} tokens")
            paths.append(path)
        chosen = copy(self)
        chosen._stacks = {kind: copy(each) for kind, each in self._stacks.items()}
        chosen._chosen, chosen.maps, chosen.values = paths, Maps(chosen), Values(chosen)
        return chosen

    def save(self, path: str | Path) -> None:
        """Write the recording to one safetensors file: queries and keys, values where they were kept, masks and biases as data,
        tokens and what was written, and the name of the model. Passes are joined first. A file of that name is replaced when the new one is complete.

        The file has the bits of what was recorded, and is as large as `nbytes`, and some bytes per token more.

        Raises:
            ValueError: a mask or a bias that is of none of this package's types, token strings or descriptions that are too
                long for a file, or as `maps` after a beam search; nothing is written then.
            OSError: the file cannot be written.
        """
        tokens = self.tokens
        stacks = {
            kind: files.Texts(stack, self._paths(kind), tokens.get(kind), self.written.get(kind))
            for kind, stack in self._stacks.items()
            if stack.passes
        }
        files.save(files.Saved(self.model, stacks), Path(path))

    @staticmethod
    def load(path: str | Path) -> "Recording":
        """The recording of a file that `save` wrote. Queries, keys and values are mapped into memory: a part of the file is read
        when a weight that needs it is. `of` is not available: the texts were chosen before it was saved.

        Raises:
            DataError: no recording, or a damaged one; the message begins with the path.
        """
        model, stacks = files.load(Path(path))
        tokens = {kind: texts.tokens for kind, texts in stacks.items() if texts.tokens is not None}
        result = Recording(strings=TokenStrings(None, tokens), model=model)
        result.written = {kind: texts.written for kind, texts in stacks.items() if texts.written is not None}
        result._stacks |= {kind: texts.stack for kind, texts in stacks.items()}
        return result

    def record(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, ids: Tensor | None) -> bool:
        """Note a call of attention, whether its map is wanted or not. Returns whether a pass begins with it."""
        stack = self._stack(where)
        begins = stack.begins(where)
        if begins and stack.begin(where, as_batch(query), as_batch(key), options, ids) and where.kind == "encoder":
            self._stacks["decoder"].forget()
        stack.note_call(where, as_batch(key))
        return begins

    def store(
        self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, value: Operand | None = None
    ) -> None:
        """Copy the operands of a call that was noted by `record`; the value is None where none is wanted.

        Raises:
            ValueError: a head that does not exist; passes that cannot be joined; more than max_bytes.
        """
        query_heads, key_heads = (x.values.shape[1] if isinstance(x, Ragged) else x.shape[-3] for x in (query, key))
        heads = HeadSelection.of(str(where), self._heads, query_heads, key_heads)
        self._stack(where).store(where, query, key, options, heads, value)

    def close(self) -> None:
        """Release the model's own tensors."""
        for stack in self._stacks.values():
            stack.close()

    def __repr__(self) -> str:
        return f"Recording({describe_layers(self.maps)}; {format_bytes(self.nbytes)})"

    def picked_heads(self, where: AttentionId) -> list[int] | None:
        """The numbers in the model of the heads of a map, where `watch(heads=...)` picked some; None where it has all."""
        return self._stack(where).attentions[where].heads.query

    def _stack(self, where: AttentionId) -> Stack:
        return self._stacks["encoder" if where.kind == "encoder" else "decoder"]

    def _first_pass_rows(self, text: int, texts: int) -> range:
        """The rows of the decoder's first pass that a text may continue: with an encoder those of the same encoder row."""
        encoder, first_rows = self._stacks["encoder"], len(self._stacks["decoder"].old_lengths())
        rows = len(encoder.old_lengths()) if encoder.passes else 1
        if texts % rows:
            raise ValueError(
                f"Recording.of: {texts} texts of the decoder cannot belong to {rows} rows of the encoder, the same number to each"
            )
        row, each = text * rows // texts, first_rows // rows
        return range(row * each, (row + 1) * each)

    def _texts(self, where: AttentionId) -> tuple[list[list[PassSlice]] | None, list[int]]:
        """The paths and the old lengths, with which an attention's passes are joined."""
        return self._paths("encoder" if where.kind == "encoder" else "decoder"), self._stack(where).old_lengths()

    def _paths(self, kind: str) -> list[list[PassSlice]] | None:
        """The segments of each row's text; None if there is one pass."""
        stack = self._stacks[kind]
        if kind == "decoder" and self._chosen is not None:
            return self._chosen
        if len(stack.passes) < 2:
            return None
        ends = stack.ends()
        if ends is None:
            raise ValueError(
                "Recording: a beam search continued one text in several ways; recording.of(texts) gives the recording of "
                "the texts that you pass, with all token ids of the decoder"
            )
        return ends


def _device(device: torch.device | str | int) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"watch: device must be a device of PyTorch's, such as 'cpu', or None, not {device!r}"
        ) from None


class _OfLayers(Mapping[tuple[str, int], _T], Generic[_T]):
    """Something of each attention of a recording, created when it is first read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._made: dict[AttentionId, tuple[object, _T]] = {}

    def _make(self, where: AttentionId) -> _T:
        raise NotImplementedError

    def _has(self, attention: RecordedAttention) -> bool:
        raise NotImplementedError

    def _missing(self, name: object) -> str:
        raise NotImplementedError

    def __getitem__(self, name: tuple[str, int]) -> _T:
        if name not in set(self):
            raise KeyError(self._missing(name))
        where = AttentionId(*name)
        state = self._recording._stack(where).state()
        if where not in self._made or self._made[where][0] != state:
            self._made[where] = (state, self._make(where))
        return self._made[where][1]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return (
            (where.kind, where.layer)
            for stack in self._recording._stacks.values()
            for where in sorted(stack.attentions)
            if self._has(stack.attentions[where])
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe_layers(self)})"


class Maps(_OfLayers[AttentionMap]):
    """The maps of a recording."""

    def _make(self, where: AttentionId) -> AttentionMap:
        return self._recording._stack(where).attentions[where].map(*self._recording._texts(where))

    def _has(self, attention: RecordedAttention) -> bool:
        return True

    def _missing(self, name: object) -> str:
        return f"Recording: there is no map of {name!r}; there are {describe_layers(self)}"


class Values(_OfLayers[Operand]):
    """The values of a recording."""

    def _make(self, where: AttentionId) -> Operand:
        value = self._recording._stack(where).attentions[where].value(*self._recording._texts(where))
        assert value is not None
        return value

    def _has(self, attention: RecordedAttention) -> bool:
        return bool(attention.values)

    def _missing(self, name: object) -> str:
        advice = "" if len(self) else "; uwaga.watch(model, values=True) keeps them"
        return f"Recording: there are no values of {name!r}; there are {describe_layers(self)}{advice}"
