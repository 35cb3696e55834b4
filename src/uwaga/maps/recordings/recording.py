"""What was recorded of a model's attention: queries and keys, from which every weight can be read afterwards.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from uwaga.maps.base import format_bytes
from uwaga.maps.map import AttentionMap
from uwaga.maps.recordings.copies import HeadSelection, MapOptions, tensors
from uwaga.maps.recordings.passes import Segment
from uwaga.maps.recordings.stack import AttentionId, Stack
from uwaga.ops.ragged import Operand, Ragged

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
        self._converters = {
            kind: _converter(tokenizer.get(kind) if isinstance(tokenizer, Mapping) else tokenizer)
            for kind in ("encoder", "decoder")
        }
        self._given = tokens

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
        return None if ids is None else [self._converters[kind](row) for row in ids]

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
            found = f"{[len(row) for row in listed]}, and {lengths} were recorded"
            raise ValueError(f"watch: tokens must be one string per token of the {kind}, but rows have {found}")
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

    maps: from (kind, layer) to an AttentionMap, with kind "encoder", "decoder" or "cross"; created when first read.
    tokens: from "encoder" and "decoder" to a list per row with a string per token; kinds without known tokens are missing.
        The queries of cross-attention are the decoder's tokens, its keys the encoder's.
    """

    def __init__(
        self,
        *,
        heads: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        strings: TokenStrings | None = None,
    ) -> None:
        self._heads = None if heads is None else tuple(heads)
        self._strings = TokenStrings(None, None) if strings is None else strings
        self._stacks = {"encoder": Stack(dtype), "decoder": Stack(dtype)}
        self._chosen: list[list[Segment]] | None = None  # of the decoder
        self.maps: Mapping[tuple[str, int], AttentionMap] = Maps(self)

    @property
    def tokens(self) -> dict[str, list[list[str]]]:
        """See the class. Raises ValueError if the given strings are not one per token, and as `maps` after a beam search."""
        kinds = [kind for kind, stack in self._stacks.items() if stack.passes]
        found = {}
        for kind in kinds:
            stack, paths = self._stacks[kind], self._paths(kind)
            strings = self._strings.of(kind, stack.tokens(paths), stack.ids_of_paths(paths), kinds)
            if strings is not None:
                found[kind] = strings
        return found

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
        chosen._chosen, chosen.maps = paths, Maps(chosen)
        return chosen

    def record(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, ids: Tensor | None) -> bool:
        """Note a call of attention, whether its map is wanted or not. Returns whether a pass begins with it."""
        stack = self._stack(where)
        begins = stack.begins(where)
        if begins and stack.begin(where, _batched(query), _batched(key), options, ids) and where.kind == "encoder":
            self._stacks["decoder"].forget()
        stack.note_call(where, _batched(key))
        return begins

    def store(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions) -> None:
        """Copy the operands of a call that was noted by `record`.

        Raises:
            ValueError: a head that does not exist; passes that cannot be joined.
        """
        query_heads, key_heads = (x.values.shape[1] if isinstance(x, Ragged) else x.shape[-3] for x in (query, key))
        self._stack(where).store(
            where, query, key, options, HeadSelection.of(str(where), self._heads, query_heads, key_heads)
        )

    def close(self) -> None:
        """Release the model's own tensors."""
        for stack in self._stacks.values():
            stack.close()

    def __repr__(self) -> str:
        return f"Recording({describe_layers(self.maps)}; {format_bytes(self.nbytes)})"

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

    def _map(self, where: AttentionId) -> AttentionMap:
        stack = self._stack(where)
        return stack.attentions[where].map(
            self._paths("encoder" if where.kind == "encoder" else "decoder"), stack.old_lengths()
        )

    def _paths(self, kind: str) -> list[list[Segment]] | None:
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


def _batched(x: Operand) -> Operand:
    """(B, H, Q, D) from (..., H, Q, D)."""
    return x if isinstance(x, Ragged) else x.reshape(-1, *x.shape[-3:])


class Maps(Mapping[tuple[str, int], AttentionMap]):
    """The maps of a recording, each created when it is first read."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._made: dict[AttentionId, tuple[object, AttentionMap]] = {}

    def __getitem__(self, name: tuple[str, int]) -> AttentionMap:
        if name not in set(self):
            raise KeyError(f"Recording: there is no map of {name!r}; there are {describe_layers(self)}")
        where = AttentionId(*name)
        state = self._recording._stack(where).state()
        if where not in self._made or self._made[where][0] != state:
            self._made[where] = (state, self._recording._map(where))
        return self._made[where][1]

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return (
            (where.kind, where.layer)
            for stack in self._recording._stacks.values()
            for where in sorted(stack.attentions)
        )

    def __len__(self) -> int:
        return sum(len(stack.attentions) for stack in self._recording._stacks.values())

    def __repr__(self) -> str:
        return f"Maps({describe_layers(self)})"


def describe_layers(names: Collection[tuple[str, int]]) -> str:
    """The layers by kind, such as "encoder 0, 1, 2; cross 1"."""
    layers: dict[str, list[int]] = {}
    for kind, layer in sorted(names, key=lambda name: (["encoder", "decoder", "cross"].index(name[0]), name[1])):
        layers.setdefault(kind, []).append(layer)
    return "; ".join(f"{kind} {', '.join(map(str, numbers))}" for kind, numbers in layers.items()) or "none"
