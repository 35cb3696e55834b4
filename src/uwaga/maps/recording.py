"""What was seen of a model's attention: queries and keys, from which every weight can be read afterwards.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, N packed tokens.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from uwaga.maps.map import AttentionMap
from uwaga.maps.reading import readable
from uwaga.maps.recorded.keeping import Heads, Options, tensors
from uwaga.maps.recorded.lineage import Piece
from uwaga.maps.recorded.stack import Stack, Where
from uwaga.maps.recorded.strings import Strings
from uwaga.ops.ragged import Operand, Ragged


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
        strings: Strings | None = None,
    ) -> None:
        self._heads = None if heads is None else tuple(heads)
        self._strings = Strings(None, None) if strings is None else strings
        self._stacks = {"encoder": Stack(dtype), "decoder": Stack(dtype)}
        self._chosen: list[list[Piece]] | None = None  # of the decoder
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

    def record(self, where: Where, query: Operand, key: Operand, options: Options, ids: Tensor | None) -> bool:
        """Tell of a call of attention that is wanted, or that tells of the pass. Whether a pass begins with it."""
        stack = self._stack(where)
        begins = stack.begins(where)
        if begins and stack.begin(where, _batched(query), _batched(key), options, ids) and where.kind == "encoder":
            self._stacks["decoder"].forget()
        stack.ask(where, _batched(key))
        return begins

    def keep(self, where: Where, query: Operand, key: Operand, options: Options) -> None:
        """Copy what an attention was asked, of the pass that was told of.

        Raises:
            ValueError: a head that there is not; passes that cannot be joined.
        """
        query_heads, key_heads = (x.values.shape[1] if isinstance(x, Ragged) else x.shape[-3] for x in (query, key))
        self._stack(where).keep(where, query, key, options, Heads.of(str(where), self._heads, query_heads, key_heads))

    def close(self) -> None:
        """Let go of the model's own tensors."""
        for stack in self._stacks.values():
            stack.close()

    def __repr__(self) -> str:
        return f"Recording({listed(self.maps)}; {readable(self.nbytes)})"

    def _stack(self, where: Where) -> Stack:
        return self._stacks["encoder" if where.kind == "encoder" else "decoder"]

    def _roots(self, text: int, texts: int) -> range:
        """The rows of the decoder's first pass that a text may have begun as: beside an encoder those of one text there."""
        encoder, roots = self._stacks["encoder"], len(self._stacks["decoder"].old())
        rows = len(encoder.old()) if encoder.passes else 1
        if texts % rows:
            raise ValueError(f"Recording.of: {texts} texts of the decoder for {rows} of the encoder")
        row, each = text * rows // texts, roots // rows
        return range(row * each, (row + 1) * each)

    def _map(self, where: Where) -> AttentionMap:
        stack = self._stack(where)
        return stack.trails[where].map(self._paths("encoder" if where.kind == "encoder" else "decoder"), stack.old())

    def _paths(self, kind: str) -> list[list[Piece]] | None:
        """Where the rows are; None: as they were in the one pass that there is."""
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
        self._made: dict[Where, tuple[object, AttentionMap]] = {}

    def __getitem__(self, name: tuple[str, int]) -> AttentionMap:
        if name not in set(self):
            raise KeyError(f"Recording: there is no map of {name!r}; there are {listed(self)}")
        where = Where(*name)
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
        return f"Maps({listed(self)})"


def listed(names: Collection[tuple[str, int]]) -> str:
    """Which layers there are, such as "encoder 0, 1, 2; cross 1"."""
    layers: dict[str, list[int]] = {}
    for kind, layer in sorted(names, key=lambda name: (["encoder", "decoder", "cross"].index(name[0]), name[1])):
        layers.setdefault(kind, []).append(layer)
    return "; ".join(f"{kind} {', '.join(map(str, numbers))}" for kind, numbers in layers.items()) or "none"
