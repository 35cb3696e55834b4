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
    """What the tokens of a recording are called.

    Args:
        tokenizer: has `convert_ids_to_tokens`, as those of transformers, or `id_to_token`, as those of tokenizers; or is a
            function from a list of ids to a list of strings. None: a token is called by its id. Of an encoder and a decoder
            that do not share one: a dict of both.
        tokens: the strings themselves: of one row, or a list for each row; of an encoder and a decoder a dict of both.
    """

    def __init__(self, tokenizer: object, tokens: TokenLists | Mapping[str, TokenLists] | None) -> None:
        if tokenizer is not None and tokens is not None:
            raise ValueError("watch: tokenizer and tokens both say what tokens are called: give one of them")
        self._callers = {
            kind: _caller(tokenizer.get(kind) if isinstance(tokenizer, Mapping) else tokenizer)
            for kind in ("encoder", "decoder")
        }
        self._given = tokens

    def of(
        self, kind: str, lengths: list[int], ids: list[list[int]] | None, kinds: list[str]
    ) -> list[list[str]] | None:
        """The strings of every row; None where nothing is known.

        Args:
            kind: "encoder" or "decoder".
            lengths: tokens per row.
            ids: per row, where they are known.
            kinds: those that were recorded.
        """
        if self._given is not None:
            return self._checked(kind, lengths, kinds)
        return None if ids is None else [self._callers[kind](row) for row in ids]

    def _checked(self, kind: str, lengths: list[int], kinds: list[str]) -> list[list[str]] | None:
        given = self._given
        if isinstance(given, Mapping):
            if kind not in given:
                return None
            given = given[kind]
        elif len(kinds) > 1:
            raise ValueError(
                'watch: an encoder and a decoder were recorded: give tokens as {"encoder": ..., "decoder": ...}'
            )
        assert given is not None
        listed = [list(given)] if all(isinstance(token, str) for token in given) else [list(row) for row in given]
        if [len(row) for row in listed] != lengths:
            found = f"{[len(row) for row in listed]}, and {lengths} were recorded"
            raise ValueError(f"watch: tokens must be one string per token of the {kind}, but rows have {found}")
        return [[str(token) for token in row] for row in listed]


def _caller(tokenizer: object) -> Callable[[list[int]], list[str]]:
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

    A pass whose queries stand behind the keys of the pass before goes on with it. Any other pass begins anew, and what was
    recorded before is forgotten; an encoder's pass forgets its decoder's too. Maps that were taken out stay as they are.

    maps: from (kind, layer) to an AttentionMap, kind "encoder", "decoder" or "cross"; made when first read.
    tokens: from "encoder" and "decoder" to a list for each row, with a string for each token; without what is not known.
        Cross-attention's queries are the decoder's tokens, and its keys the encoder's.
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
        """See the class. Raises ValueError: strings were given that are not one per token; as `maps` after beams."""
        kinds = [kind for kind, stack in self._stacks.items() if stack.passes]
        found = {}
        for kind in kinds:
            stack, paths = self._stacks[kind], self._paths(kind)
            strings = self._strings.of(kind, stack.tokens(paths), stack.words(paths), kinds)
            if strings is not None:
                found[kind] = strings
        return found

    @property
    def nbytes(self) -> int:
        """What is stored; a tensor that several layers share counts once."""
        kept = tensors([[trail.kept for trail in stack.trails.values()] for stack in self._stacks.values()])
        return sum({x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in kept}.values())

    def of(self, texts: Sequence[Sequence[int]] | Ragged | Tensor) -> "Recording":
        """The recording of these texts of the decoder alone: after beams, those that were followed; else any of them.

        Args:
            texts: the ids that the decoder reads and writes, prompt (or start token) and new ones, without padding behind
                them; lists, Ragged (N,) or a tensor (R, T). The last token of a text need not have been read. Beside an
                encoder as many for each of its rows, in their order.

        Raises:
            ValueError: a text that was not followed to its last token but one, or ids that were not seen.
        """
        stack = self._stacks["decoder"]
        if not stack.passes or stack.words([]) is None:
            raise ValueError("Recording.of: the ids of a decoder's tokens were not seen")
        listed = [list(map(int, text)) for text in (texts.to_list() if isinstance(texts, Ragged) else texts)]
        paths = []
        for number, ids in enumerate(listed):
            path, same = stack.follow(ids, self._roots(number, len(listed)))
            if same < max(len(ids) - 1, 1):
                raise ValueError(f"Recording.of: text {number} was followed for {same} of its {len(ids)} tokens")
            paths.append(path)
        chosen = copy(self)
        chosen._stacks = {kind: copy(each) for kind, each in self._stacks.items()}
        chosen._chosen, chosen.maps = paths, Maps(chosen)
        return chosen

    def record(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions, ids: Tensor | None) -> bool:
        """Tell of a call of attention that is wanted, or that tells of the pass. Whether a pass begins with it."""
        stack = self._stack(where)
        begins = stack.begins(where)
        if begins and stack.begin(where, _batched(query), _batched(key), options, ids) and where.kind == "encoder":
            self._stacks["decoder"].forget()
        stack.ask(where, _batched(key))
        return begins

    def store(self, where: AttentionId, query: Operand, key: Operand, options: MapOptions) -> None:
        """Copy what an attention was asked, of the pass that was told of.

        Raises:
            ValueError: a head that there is not; passes that cannot be joined.
        """
        query_heads, key_heads = (x.values.shape[1] if isinstance(x, Ragged) else x.shape[-3] for x in (query, key))
        self._stack(where).keep(
            where, query, key, options, HeadSelection.of(str(where), self._heads, query_heads, key_heads)
        )

    def close(self) -> None:
        """Let go of the model's own tensors."""
        for stack in self._stacks.values():
            stack.close()

    def __repr__(self) -> str:
        return f"Recording({describe_layers(self.maps)}; {format_bytes(self.nbytes)})"

    def _stack(self, where: AttentionId) -> Stack:
        return self._stacks["encoder" if where.kind == "encoder" else "decoder"]

    def _roots(self, text: int, texts: int) -> range:
        """The rows of the decoder's first pass that a text may have begun as: beside an encoder those of one text there."""
        encoder, roots = self._stacks["encoder"], len(self._stacks["decoder"].old())
        rows = len(encoder.old()) if encoder.passes else 1
        if texts % rows:
            raise ValueError(f"Recording.of: {texts} texts of the decoder for {rows} of the encoder")
        row, each = text * rows // texts, roots // rows
        return range(row * each, (row + 1) * each)

    def _map(self, where: AttentionId) -> AttentionMap:
        stack = self._stack(where)
        return stack.trails[where].map(self._paths("encoder" if where.kind == "encoder" else "decoder"), stack.old())

    def _paths(self, kind: str) -> list[list[Segment]] | None:
        """AttentionId the rows are; None: as they were in the one pass that there is."""
        stack = self._stacks[kind]
        if kind == "decoder" and self._chosen is not None:
            return self._chosen
        if len(stack.passes) < 2:
            return None
        ends = stack.ends()
        if ends is None:
            raise ValueError(
                "Recording: a beam search followed several texts from one; recording.of(texts) has those that you name, "
                "by all ids that the decoder read and wrote"
            )
        return ends


def _batched(x: Operand) -> Operand:
    """(B, H, Q, D) from (..., H, Q, D)."""
    return x if isinstance(x, Ragged) else x.reshape(-1, *x.shape[-3:])


class Maps(Mapping[tuple[str, int], AttentionMap]):
    """The maps of a recording, each made when it is first read."""

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
            (where.kind, where.layer) for stack in self._recording._stacks.values() for where in sorted(stack.trails)
        )

    def __len__(self) -> int:
        return sum(len(stack.trails) for stack in self._recording._stacks.values())

    def __repr__(self) -> str:
        return f"Maps({describe_layers(self)})"


def describe_layers(names: Collection[tuple[str, int]]) -> str:
    """Which layers there are, such as "encoder 0, 1, 2; cross 1"."""
    layers: dict[str, list[int]] = {}
    for kind, layer in sorted(names, key=lambda name: (["encoder", "decoder", "cross"].index(name[0]), name[1])):
        layers.setdefault(kind, []).append(layer)
    return "; ".join(f"{kind} {', '.join(map(str, numbers))}" for kind, numbers in layers.items()) or "none"
