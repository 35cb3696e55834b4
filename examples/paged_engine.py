"""A small engine that serves a model of uwaga.models as vLLM does, and asks of every step where each request looks.

    python examples/paged_engine.py

Keys and values lie in blocks of a cache that all requests share. Requests with a common beginning share its blocks; long prompts are read in
chunks, beside requests that generate; one that ends frees its blocks, and the next one begins. `AttentionMap.of_paged` reads the
keys where they are. The attention itself copies them together, since this engine is about the signals.

Letters: R requests of a step, P blocks, S tokens of a block, H query heads, G key/value heads, D and E widths, N new tokens of a step.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from uwaga import AttentionMap, Ragged
from uwaga.maps import RequestSignals, request_signals
from uwaga.maps.map import map_options
from uwaga.nn import MultiHeadAttention
from uwaga.nn.kv_cache import CrossAttentionCache, KVView, LayerCache, SelfAttentionCache
from uwaga.ops.attention.hooks import Asked, hooked, looking
from uwaga.ops.ragged import Operand


@dataclass
class Request:
    """A prompt, what has been generated after it, and where its keys are."""

    ids: list[int]
    max_new_tokens: int
    spans: list[tuple[int, int]] = field(default_factory=list)  # of its prompt, whose share is asked for
    new: list[int] = field(default_factory=list)
    cached: int = 0  # tokens whose keys are in the cache
    blocks: list[int] = field(default_factory=list)

    @property
    def waiting(self) -> list[int]:
        """The tokens that the model has not read."""
        return [*self.ids, *self.new][self.cached :]


class Blocks:
    """Which blocks are free, and which hold a beginning that a later request may share."""

    def __init__(self, count: int, size: int) -> None:
        self.size, self._free, self._users = size, list(range(count)), [0] * count
        self._beginnings: dict[tuple[int, ...], int] = {}  # a block by all tokens up to its end

    @property
    def free(self) -> int:
        return len(self._free)

    def total(self, request: Request) -> int:
        """How many blocks the request has at its end, its own and those that it shares."""
        return -(-(len(request.ids) + request.max_new_tokens) // self.size)

    def needed(self, request: Request) -> int:
        """How many free blocks the request needs to its end, beside those that it shares."""
        return self.total(request) - len(self._shared(request))

    def take(self, request: Request) -> None:
        shared = self._shared(request)
        request.blocks = [*shared, *(self._free.pop() for _ in range(self.needed(request)))]
        request.cached = len(shared) * self.size
        for block in request.blocks:
            self._users[block] += 1

    def note_beginning(self, request: Request) -> None:
        """Its full blocks, whose keys have been written, can be shared from now on."""
        tokens = [*request.ids, *request.new]
        for n in range(request.cached // self.size):
            self._beginnings.setdefault(tuple(tokens[: (n + 1) * self.size]), request.blocks[n])

    def give_back(self, request: Request) -> None:
        for block in request.blocks:
            self._users[block] -= 1
        unused = {block for block in request.blocks if not self._users[block]}
        self._free += sorted(unused)
        self._beginnings = {tokens: block for tokens, block in self._beginnings.items() if block not in unused}

    def _shared(self, request: Request) -> list[int]:
        """The blocks of its beginning that another request has written; its last token is always read again, for its logits."""
        blocks: list[int] = []
        for end in range(self.size, len(request.ids), self.size):
            if (block := self._beginnings.get(tuple(request.ids[:end]))) is None:
                break
            blocks.append(block)
        return blocks


class PagedLayer(SelfAttentionCache):
    """One layer's keys and values: (P, S, G, D) and (P, S, G, E)."""

    def __init__(self, layer: MultiHeadAttention, blocks: Blocks, count: int) -> None:
        super().__init__()
        self.key = torch.zeros(count, blocks.size, layer.num_kv_heads, layer.d_k)
        self.value = torch.zeros(count, blocks.size, layer.num_kv_heads, layer.d_v)
        self._size = blocks.size

    def begin(self, table: Tensor, start_R: Tensor) -> None:
        """The next step is of requests with these blocks, (R, T), and so many tokens in the cache."""
        self.table, self.start = table, start_R

    @property
    def is_empty(self) -> bool:  # so that the batch stays packed
        return True

    @property
    def lengths(self) -> Tensor:
        return torch.as_tensor(self.start)

    def append(self, key: Operand, value: Operand) -> KVView:
        assert isinstance(key, Ragged)
        assert isinstance(value, Ragged)
        row_N = torch.repeat_interleave(torch.arange(len(key)), key.lengths)
        position_N = torch.arange(len(row_N)) - key.offsets[row_N] + self.lengths[row_N]
        at = self.table[row_N, position_N // self._size], position_N % self._size
        self.key[at], self.value[at] = key.values, value.values
        self.start = self.lengths + key.lengths
        keys = self._gathered(self.key)
        return KVView(keys, keys.with_values(self._gathered(self.value).values))

    def _gathered(self, stored: Tensor) -> Ragged:
        return Ragged.from_list(
            [
                stored[blocks].flatten(0, 1)[:length]
                for blocks, length in zip(self.table, self.lengths.tolist(), strict=True)
            ]
        )


class PagedCache(list[LayerCache]):
    """The caches of all layers, in the place of a KeyValueCache."""

    def begin(self, requests: list[Request]) -> None:
        longest = max(len(request.blocks) for request in requests)
        table = torch.tensor([request.blocks + [-1] * (longest - len(request.blocks)) for request in requests])
        start_R = torch.tensor([request.cached for request in requests])
        for layer in self:
            assert isinstance(layer.attention, PagedLayer)
            layer.attention.begin(table, start_R)

    @property
    def start(self) -> int | Tensor:
        return self[0].attention.start


@dataclass(frozen=True)
class Step:
    """What one step of the engine did: a request, its new tokens, and by layer where they looked."""

    request: Request
    tokens: int
    signals: list[RequestSignals]


class Engine:
    """Serves requests in steps of at most `tokens_per_step` tokens.

    Args:
        model: a decoder of uwaga.models without an encoder, in evaluation mode.
        blocks, block_size: of the cache.

    Raises:
        ValueError: a number below 1.
    """

    def __init__(self, model: Any, *, blocks: int = 256, block_size: int = 16, tokens_per_step: int = 128) -> None:
        if min(blocks, block_size, tokens_per_step) < 1:
            raise ValueError(
                f"blocks, block_size and tokens_per_step must be at least 1, not {blocks}, {block_size} and {tokens_per_step}"
            )
        self._model, self._tokens_per_step = model, tokens_per_step
        self._attentions = [layer for layer in model.modules() if isinstance(layer, MultiHeadAttention)]
        self.blocks = Blocks(blocks, block_size)
        layers = [PagedLayer(layer, self.blocks, blocks) for layer in self._attentions]
        self._cache = PagedCache(LayerCache(layer, CrossAttentionCache()) for layer in layers)
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    def add(self, ids: list[int], *, max_new_tokens: int, spans: list[tuple[int, int]] | None = None) -> Request:
        """A request; read `new` when `run` is through. Raises ValueError: it has no token, writes none, or needs more than the cache.

        What it could share now does not count: that may be gone when its turn comes."""
        request = Request(ids, max_new_tokens, spans or [])
        if not ids or max_new_tokens < 1 or self.blocks.total(request) > len(self.blocks._users):
            raise ValueError(
                f"a request needs a token, a new one, and at most all {len(self.blocks._users)} blocks of the cache"
            )
        self._waiting.append(request)
        return request

    @torch.no_grad()
    def run(self) -> Iterator[list[Step]]:
        """Step by step, until no request is left."""
        while self._waiting or self._running:
            while self._waiting and self.blocks.needed(self._waiting[0]) <= self.blocks.free:
                self.blocks.take(self._waiting[0])
                self._running.append(self._waiting.popleft())
            yield self._step()

    def _step(self) -> list[Step]:
        # Those that generate come first, one token each; chunks of prompts take what is left.
        left, batch, chunks = self._tokens_per_step, [], []
        for request in sorted(self._running, key=lambda request: len(request.waiting)):
            chunk = request.waiting[:left]
            if chunk:
                left -= len(chunk)
                batch.append(request)
                chunks.append(torch.tensor(chunk))
        self._cache.begin(batch)
        found: dict[nn.Module, list[RequestSignals]] = {}
        caches = dict(zip(self._attentions, self._cache, strict=True))

        def look(asked: Asked, layer: nn.Module) -> None:
            found[layer] = self._signals(asked, caches[layer].attention, [request.spans for request in batch])

        ids = Ragged.from_list(chunks)
        with hooked(dict.fromkeys(caches, looking(look)), only_look=True):
            hidden_NM = self._states(ids)
        logits_RV = self._model.logits(hidden_NM[ids.offsets[1:] - 1])
        by_request = zip(*(found[layer] for layer in self._attentions), strict=True)
        steps = [
            Step(request, len(chunk), list(signals))
            for request, chunk, signals in zip(batch, chunks, by_request, strict=True)
        ]
        for request, chunk, logits_V in zip(batch, chunks, logits_RV, strict=True):
            request.cached += len(chunk)
            self.blocks.note_beginning(request)
            if request.waiting:
                continue
            request.new.append(int(logits_V.argmax()))
            if len(request.new) == request.max_new_tokens:
                self._running.remove(request)
                self.blocks.give_back(request)
        return steps

    def _states(self, ids: Ragged) -> Tensor:
        """(N, M): the model's last hidden states."""
        states: Tensor = self._model.decode(ids, cache=self._cache).values
        return states

    @staticmethod
    def _signals(asked: Asked, cache: PagedLayer, spans: list[list[tuple[int, int]]]) -> list[RequestSignals]:
        """The signals of the queries as the model has them, with keys where they are in the cache."""
        options = map_options(asked.options)
        m = AttentionMap.of_paged(asked.query, cache.key, cache.table, cache.lengths, **options)
        # A span that the request has not read whole counts as far as it has.
        cut = [
            [(min(first, n), min(last, n)) for first, last in own]
            for own, n in zip(spans, cache.lengths.tolist(), strict=True)
        ]
        return request_signals(m, cut, sinks=1, top=1)


def main() -> None:
    """Requests that repeat a text; its induction head finds where, and its share of the text says how sure it is."""
    from uwaga.models import load, tokenizer

    model, words, head = load("copyist"), tokenizer("copyist"), 2  # of the last layer
    text = "The red fox sleeps in the barn. A grey owl lives in the tower. The old cat waits at the door. "
    beginning = len(words.encode(text.rstrip()).ids)
    engine = Engine(model, blocks=64, block_size=8, tokens_per_step=32)
    requests = [
        engine.add(words.encode(text + question).ids, max_new_tokens=6, spans=[(0, beginning)])
        for question in ("The red fox", "A grey owl", "The old cat")
    ]
    for number, steps in enumerate(engine.run()):
        for step in steps:
            signals, request = step.signals[-1], step.request
            position = int(signals.top.positions[head, -1, 0])
            print(
                f"step {number:2}, request {requests.index(request)}, {step.tokens:2} tokens: "
                f"{words.decode([[*request.ids, *request.new][position]])!r:8} "
                f"text {float(signals.spans[head, -1, 0]):.2f}, entropy {float(signals.entropy[head, -1]):.2f}"
            )
    for request in requests:
        print(repr(words.decode(request.ids[beginning:])), "->", repr(words.decode(request.new)))


if __name__ == "__main__":
    main()
