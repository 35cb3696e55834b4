"""Change a model's heads, links, weights, queries, keys, values and outputs inside a `with` block.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, P positions, D query/key width, E value width, N packed
tokens, R ragged rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check, integer
from uwaga.inspect.edits import Ablation, Edits, HeadKey, Links, Patch, WeightChange, Where
from uwaga.inspect.recordings.passes import heads_of, start_of
from uwaga.integrations.transformers.inside import computing
from uwaga.models.attention_layers import attention_layers, name_of
from uwaga.nn import MultiHeadAttention
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.nn.operand import values_of
from uwaga.ops.attention.hooks import Asked, Hook, Proceed, hooked, hooks_of
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Both, DenseMask, Documents, Either, KeyLengths, Mask, as_mask
from uwaga.ops.ragged import Operand, Ragged

_OF_QUERIES = ("query", "output")  # operands with the positions of queries
MAX_NESTED = 128  # contexts of this thread; each calls the next one, and Python has a thousand frames
MANY_LINKS = 256  # if a head has more links, they are joined
# The most bytes for the masks of one layer's blocked links, and for a dense mask in place of many links, which is read in one step.
MAX_MASK_BYTES, SMALL_MASK_BYTES = 1 << 30, 1 << 24


@contextmanager
def edit(
    model: nn.Module,
    edits: Edits | None = None,
    *,
    heads: Mapping[HeadKey, Ablation] | None = None,
    scores: Mapping[HeadKey, Links | Sequence[Links]] | None = None,
    weights: Mapping[HeadKey, WeightChange | Sequence[WeightChange]] | None = None,
    patch: Mapping[HeadKey, Patch | Sequence[Patch]] | None = None,
) -> Iterator[Edits]:
    """Change the model's attention inside a `with` block; an exception ends the changes too.

        with uwaga.edit(model, heads={("decoder", 4, 5): 0.0}):
            model(ids)                                          # as if that head gave zeros

    `Edits` describes the changes. Layers and heads count as in `uwaga.watch`, which in the same block shows the changed queries, keys
    and links. Changes of weights after softmax show in later layers, but not in maps.

    A model keeps its fast path: scaling a head multiplies its output before W_O, and blocked links are masks of O(Q + K) memory. Links
    that are weakened after softmax take one more pass of the layer's attention for each set of queries. A model of transformers computes
    with attn_implementation="uwaga" inside the context, as in `uwaga.watch`.

    Positions count from the beginning of the text, also in a generation with a KV cache; in a padded batch of transformers they are
    columns of the batch. Up to 128 contexts may be nested; the inner one changes operands first and results last. Other threads
    compute as before.

    Raises:
        ValueError: as `Edits`; a layer or head that the model does not have; a patch or matrix that does not fit; a position that
            no pass had; no attention was computed in the block; more than 128 nested contexts.
    """
    by_name = {"heads": heads, "scores": scores, "weights": weights, "patch": patch}
    named = {name: value for name, value in by_name.items() if value is not None}
    if edits is not None and named:
        raise ValueError(f"edit: give an Edits or {', '.join(named)}, not both")
    edits = Edits(**named) if edits is None else edits  # type: ignore[arg-type]
    layers = attention_layers(model, "edit")
    _check_heads(model, edits, layers)
    start: dict[str, Tensor | int] = {}
    follows_decoder = any(where.kind == "cross" for where in edits.wheres())  # for the positions of its queries
    editors = {module: LayerEditor(edits, where, start) for module, where in layers.items()}
    hooks = {
        module: editor
        for module, editor in editors.items()
        if editor.is_changed or (follows_decoder and editor.layer.kind == "decoder")
    }
    with hooking(model, hooks):
        yield edits
    changed = [editor for editor in editors.values() if editor.is_changed]
    check(
        not changed or any(editor.queries for editor in changed),
        f"edit: nothing was changed: {name_of(model)} did not compute the edited attentions in this thread inside the block",
    )
    for editor in changed:
        editor.check()


@contextmanager
def hooking(model: nn.Module, hooks: Mapping[nn.Module, Hook]) -> Iterator[None]:
    """Install hooks around attention layers in a `with` block. Raises ValueError: a layer has MAX_NESTED hooks."""
    check(
        all(len(hooks_of(layer)) < MAX_NESTED for layer in hooks),
        f"edit: more than {MAX_NESTED} edits are nested; make the changes by one Edits",
    )
    with computing(model, "edit"), hooked(hooks):
        yield


def _check_heads(model: nn.Module, edits: Edits, layers: Mapping[nn.Module, AttentionId]) -> None:
    name, modules = name_of(model), {where: module for module, where in layers.items()}
    check(
        modules,
        f"edit: {name} has no attention that can be edited: neither uwaga.nn.MultiHeadAttention nor a model of "
        "transformers that offers attn_implementation",
    )
    for where in edits.wheres():
        module = modules.get(AttentionId(where.kind, where.layer))
        if module is None:
            raise ValueError(
                f"edit: {name} has no layer {where.kind!r} {where.layer}; there are {describe_layers(modules)}"
            )
        if isinstance(module, MultiHeadAttention):
            _check_head(where, module.num_heads)


def _check_head(where: Where, heads: int, of: str = "") -> None:
    if where.head is not None:
        integer(where.head, f"edit: a {of}head of {where.kind} {where.layer}", 0, heads - 1)


class LayerEditor:
    """Apply the changes of one attention layer, as a `Hook`.

    decoder_start: shared by all layers; its "decoder" is the position of the first query in the last self-attention of a decoder.
    """

    def __init__(self, edits: Edits, layer: AttentionId, decoder_start: dict[str, Tensor | int]) -> None:
        def changes_here(changes: Mapping[HeadKey, Any]) -> list[tuple[Where, Any]]:
            pairs = [(Where(*where), value) for where, value in changes.items() if where[:2] == layer]
            return [(where, x) for where, value in pairs for x in (value if isinstance(value, tuple) else (value,))]

        self.layer, self.decoder_start = layer, decoder_start
        self.heads: list[tuple[Where, Ablation]] = changes_here(edits.heads)
        self.scores: list[tuple[Where, Links]] = changes_here(edits.scores)
        self.weights: list[tuple[Where, WeightChange]] = changes_here(edits.weights)
        self.patch: list[tuple[Where, Patch]] = changes_here(edits.patch)
        needs_more = self.scores or self.weights or self.patch
        self.is_changed = bool(self.heads or needs_more)
        # Whether more than the output changes, or positions or padding matter.
        self.needs_operands = (
            bool(needs_more)
            or not self.is_changed
            or any(value == "mean" for _, value in self.heads if isinstance(value, str))
        )
        self.queries = self.keys = 0  # the number of positions that any pass had

    def __call__(self, asked: Asked, _: object, proceed: Proceed) -> Operand:
        if self.needs_operands:
            asked = asked.whole()
            check(
                asked.has_positions,
                "edit: a packed batch (cu_seq_lens_q) has no positions of texts; only outputs of heads can be edited in it",
            )
        query, key, value, options, start = asked.query, asked.key, asked.value, asked.options, asked.start
        first = self._start(query, key, options["mask"], start) if self.needs_operands else 0
        if self.layer.kind == "decoder":
            self.decoder_start["decoder"] = first
        if not self.is_changed:
            return proceed(asked)
        tokens = _Tokens(query, key, first)
        if self.needs_operands:
            self.queries, self.keys = max(self.queries, tokens.most_queries), max(self.keys, tokens.most_keys)
        else:
            self.queries = self.keys = 1
        for changes in (self.heads, self.scores, self.weights):
            for where, _ in changes:
                _check_head(where, tokens.heads)
        operands: dict[str, Any] = {"query": query, "key": key, "value": value}
        self._put_patches(operands, tokens)
        if self.scores:
            links = _links_mask(self.scores, tokens)
            mask = options["mask"]
            options = options | {"mask": links if mask is None else as_mask(mask) & links}
        asked = replace(asked, **operands, options=options)
        results = {"output": self._with_weights(proceed(asked), proceed, asked, tokens)}
        self._put_patches(results, tokens)
        output = results["output"]
        return _with_heads(self.heads, output, tokens, options["mask"]) if self.heads else output

    def _put_patches(self, operands: dict[str, Any], tokens: "_Tokens") -> None:
        """Replace vectors of these operands by those of the patches."""
        for where, patch in self.patch:
            if (name := patch.operand) in operands:
                positions = tokens.query_positions if name in _OF_QUERIES else tokens.key_positions
                operands[name] = _patched(where, patch, operands[name], positions)

    def check(self) -> None:
        """Raise ValueError if no pass that computed this layer had a position."""
        named: list[tuple[Where, str, Any, bool]] = []  # with whether the positions are of queries
        for where, links in (*self.scores, *self.weights):
            if isinstance(links, Links):
                named += [(where, "queries", links.queries, True), (where, "keys", links.keys, False)]
        for where, patch in self.patch:
            named.append((where, f"a patched {patch.operand}", patch.positions, patch.operand in _OF_QUERIES))
        for where, name, positions, is_of_queries in named:
            tokens = self.queries if is_of_queries else self.keys
            if self.queries and positions and max(positions) >= tokens:
                raise ValueError(
                    f"edit: {where}: there was no position {max(positions)} of {name}; the longest text had {tokens} tokens"
                )

    def _start(
        self, query: Operand, key: Operand, mask: Mask | Tensor | None, start: Tensor | int | None
    ) -> Tensor | int:
        """Return the position of the first query of each row: a number, or (B,)."""
        if self.layer.kind == "cross":
            return self.decoder_start.get("decoder", 0)
        if start is None:
            start = start_of(mask)
        if start is not None:
            return start
        if isinstance(query, Ragged) and isinstance(key, Ragged):
            return 0 if query.offsets is key.offsets else key.lengths - query.lengths
        return values_of(key).shape[-2] - values_of(query).shape[-2]

    def _with_weights(self, output: Operand, proceed: Proceed, asked: Asked, tokens: "_Tokens") -> Operand:
        links = [(where, change) for where, change in self.weights if isinstance(change, Links)]
        if links and asked.options["dropout"]:
            raise ValueError("edit: weights cannot be changed with dropout of the attention weights; use model.eval()")
        if links:

            def again(scaled: Operand) -> Operand:
                return proceed(replace(asked, value=scaled, is_repeat=True))

            output = _with_factors(links, output, asked.value, again, tokens)
        for where, change in self.weights:
            if isinstance(change, Tensor):
                output = _with_matrix(where, change, output, asked.value, tokens)
        return output


class _Tokens:
    """Compute the positions of the queries and keys of one call, (N,) in the order of `_packed`."""

    def __init__(self, query: Operand, key: Operand, start: Tensor | int) -> None:
        self.query, self.key, self.start = query, key, start
        self.heads = heads_of(query)

    @property
    def most_queries(self) -> int:
        start = int(self.start.max()) if isinstance(self.start, Tensor) and self.start.numel() else self.start
        return _longest(self.query) + int(start)

    @property
    def most_keys(self) -> int:
        return _longest(self.key)

    @property
    def query_positions(self) -> Tensor:
        return _positions(self.query, self.start)

    @property
    def key_positions(self) -> Tensor:
        return _positions(self.key, 0)

    def grids(self) -> tuple[Tensor, Tensor]:
        """Return positions as dense masks need them: queries (Q,) or, if rows start differently, (B, Q); keys (K,)."""
        device = values_of(self.query).device
        queries = torch.arange(_longest(self.query), device=device)
        start = self.start[:, None] if isinstance(self.start, Tensor) else self.start
        return queries + start, torch.arange(self.most_keys, device=device)


def _longest(x: Operand) -> int:
    return x.max_length if isinstance(x, Ragged) else x.shape[-2]


def _rows(x: Operand) -> Tensor:
    """Return the row of each token, (N,)."""
    if isinstance(x, Ragged):
        return torch.repeat_interleave(x.lengths, output_size=x.values.shape[0])
    return torch.arange(x.shape[:-3].numel(), device=x.device).repeat_interleave(x.shape[-2])


def _positions(x: Operand, start: Tensor | int) -> Tensor:
    rows = _rows(x)
    if isinstance(x, Ragged):
        first = x.offsets[:-1]
    else:
        first = torch.arange(x.shape[:-3].numel(), device=x.device) * x.shape[-2]
    return torch.arange(len(rows), device=rows.device) - (first - start)[rows]


def _packed(x: Operand) -> Tensor:
    """Return the tokens of all rows, one row after another, (N, H, D)."""
    return x.values if isinstance(x, Ragged) else x.movedim(-3, -2).flatten(0, -3)


def _like(values: Tensor, x: Operand) -> Operand:
    """Undo `_packed`: return values (N, H, D) as an operand in the form of x."""
    if isinstance(x, Ragged):
        return x.with_values(values)
    return values.unflatten(0, (*x.shape[:-3], x.shape[-2])).movedim(-2, -3)


def _inside(positions: Tensor, chosen: Any) -> Tensor:
    """Return which positions are chosen, as bools; None chooses all."""
    if chosen is None:
        return torch.ones_like(positions, dtype=torch.bool)
    return torch.isin(positions, torch.tensor(chosen, dtype=positions.dtype, device=positions.device))


def _of_head(head: int | None, heads: int, device: torch.device) -> Tensor:
    """Return which heads are chosen, (H, 1) bool; None chooses all."""
    numbers = torch.arange(heads, device=device)[:, None]
    return numbers >= 0 if head is None else numbers == head


def _links_mask(links: Sequence[tuple[Where, Links]], tokens: _Tokens) -> Mask:
    """Return the mask of all pairs except these links, in O(H (Q + K)) memory for each link.

    A pair is visible if its query or its key is not in the link. Many links become a dense mask if that is smaller, or small.
    """
    queries, keys = tokens.grids()
    by_head = [[link for where, link in links if where.head in (None, head)] for head in range(tokens.heads)]
    is_many = max(map(len, by_head)) > MANY_LINKS
    if is_many:
        by_head = list(map(_joined, by_head))
    count = max(map(len, by_head))
    dense = tokens.heads * queries.numel() * keys.shape[-1]
    apart = tokens.heads * count * (queries.numel() + keys.shape[-1])
    is_dense = is_many and dense <= max(apart, SMALL_MASK_BYTES)
    if is_many and (size := dense if is_dense else apart) > MAX_MASK_BYTES:
        raise ValueError(
            f"edit: {count} links that differ in queries and keys, in {tokens.heads} heads over {queries.shape[-1]} queries and "
            f"{keys.shape[-1]} keys, need {size:,} bytes of masks; the limit is {MAX_MASK_BYTES:,}"
        )
    masks: list[Mask] = []
    bits: Tensor | None = None
    for n in range(count):
        nth = [of_head[n] if n < len(of_head) else Links((), ()) for of_head in by_head]
        rows = torch.stack([~_inside(queries, link.queries) for link in nth], -2)[..., None]  # (..., H, Q, 1)
        columns = torch.stack([~_inside(keys, link.keys) for link in nth])[:, None]  # (H, 1, K)
        if not is_dense:
            masks.append(Either(left=DenseMask(bits=rows), right=DenseMask(bits=columns)))
        elif bits is None:
            bits = rows | columns
        else:
            bits &= rows | columns
    return _all_of(masks) if bits is None else DenseMask(bits=bits)


def _joined(links: list[Links]) -> list[Links]:
    """Join links with equal queries, then links with equal keys."""
    for same, other in (("queries", "keys"), ("keys", "queries")):
        groups: dict[Any, list[Any]] = {}
        for link in links:
            groups.setdefault(getattr(link, same), []).append(getattr(link, other))
        links = [
            Links(**{same: positions, other: None if None in parts else tuple(dict.fromkeys(chain(*parts)))})
            for positions, parts in groups.items()
        ]
    return links


def _all_of(masks: Sequence[Mask]) -> Mask:
    """Combine masks by & in a tree of logarithmic depth, since masks are read by recursion."""
    if len(masks) == 1:
        return masks[0]
    half = len(masks) // 2
    return _all_of(masks[:half]) & _all_of(masks[half:])


def _patched(where: Where, patch: Patch, x: Operand, positions: Tensor) -> Operand:
    """Return the operand with the patch's vectors at its positions."""
    _check_head(where, heads_of(x), "key " if patch.operand in ("key", "value") else "")
    values, source = values_of(x), patch.source
    if source.shape[-1] != values.shape[-1]:
        raise ValueError(
            f"edit: patch {where}: the {patch.operand} is {values.shape[-1]} wide, and the source {tuple(source.shape)}"
        )
    rows = len(x) if isinstance(x, Ragged) else (x.shape[0] if x.dim() == 4 else None)
    if source.dim() == 3 and source.shape[0] != rows:
        raise ValueError(
            f"edit: patch {where}: the source {tuple(source.shape)} is of {source.shape[0]} texts, the batch of {rows}"
        )
    patched = torch.tensor(patch.positions, dtype=torch.int64, device=values.device)
    source = source.to(values)
    if not len(patched):
        return x
    ascending, order = patched.sort()
    at = torch.searchsorted(ascending, positions).clamp(max=len(patched) - 1)
    inside, index = ascending[at] == positions, order[at]
    vectors = source[index] if source.dim() == 2 else source[_rows(x), index]
    chosen = inside[:, None, None] & _of_head(where.head, heads_of(x), values.device)
    return _like(torch.where(chosen, vectors[:, None], _packed(x)), x)


def _with_factors(
    links: Sequence[tuple[Where, Links]],
    output: Operand,
    value: Operand,
    again: Callable[[Operand], Operand],
    tokens: _Tokens,
) -> Operand:
    """Return the output with the weights of links multiplied: sum_j a_ij (f_j v_j) for their queries, with factors f_j.

    Queries in the same links share a call of attention, and so do heads with different keys and values.
    """
    queries, keys = tokens.query_positions, tokens.key_positions
    sets = list(dict.fromkeys(link.queries for _, link in links))
    member = torch.stack([_inside(queries, positions) for positions in sets], -1)  # (N, sets)
    heads, group = heads_of(output), heads_of(output) // heads_of(value)
    results, values = _packed(output), _packed(value)
    for signature in member.unique(dim=0):
        active = [(where, link) for where, link in links if bool(signature[sets.index(link.queries)])]
        if not active:
            continue
        at = (member == signature).all(-1)[:, None, None]
        for slot in range(group):
            factors, meant = [], []
            for head in range(slot, heads, group):
                of_head = [link for where, link in active if where.head in (None, head)]
                factor = torch.ones(keys.shape, dtype=values.dtype, device=keys.device)
                for link in of_head:
                    factor = torch.where(_inside(keys, link.keys), factor * link.factor, factor)
                factors.append(factor)
                meant += [head] if of_head else []
            if not meant:
                continue
            factor_NG1 = torch.stack(factors, -1)[..., None]
            # A product with 0 would keep an infinite value or NaN.
            scaled = (values * factor_NG1).masked_fill(factor_NG1 == 0, 0.0)
            changed = _packed(again(_like(scaled, value)))
            for head in meant:
                results = torch.where(at & _of_head(head, heads, keys.device), changed, results)
    return _like(results, output)


def _with_matrix(where: Where, matrix: Tensor, output: Operand, value: Operand, tokens: _Tokens) -> Operand:
    """Return the output with a head's weights replaced by a matrix."""
    if isinstance(output, Ragged) or isinstance(value, Ragged) or isinstance(tokens.start, Tensor):
        raise ValueError(
            f"edit: weights {where}: a matrix takes the place of the weights of padded rows of one length, not of ragged ones"
        )
    first, queries, keys = tokens.start, output.shape[-2], value.shape[-2]
    batch = output.shape[0] if output.dim() == 4 else None
    if (
        matrix.shape[-2] < first + queries
        or matrix.shape[-1] < keys
        or (matrix.dim() == 3 and matrix.shape[0] != batch)
    ):
        raise ValueError(
            f"edit: weights {where}: a matrix {tuple(matrix.shape)} does not cover queries {first} to {first + queries - 1} and "
            f"{keys} keys of {batch} texts"
        )
    rows = matrix[..., first : first + queries, :keys].to(value)
    results = list(output.unbind(-3))
    for head in range(len(results)) if where.head is None else (where.head,):
        results[head] = _weighted(rows, value[..., head * heads_of(value) // len(results), :, :])
    return torch.stack(results, -3)


def _weighted(rows: Tensor, value: Tensor) -> Tensor:
    """Return rows @ value, (..., Q, E), by `uwaga.linear` for each text, so that its bits do not depend on the batch."""
    if value.dim() == 2:
        return linear_map(rows, value.mT)
    result = value.new_empty((len(value), rows.shape[-2], value.shape[-1]))
    for b, (weights, text) in enumerate(zip(rows.expand(len(value), -1, -1), value, strict=True)):
        result[b] = linear_map(weights, text.mT)
    return result


def _with_heads(
    heads: Sequence[tuple[Where, Ablation]], output: Operand, tokens: _Tokens, mask: Mask | Tensor | None
) -> Operand:
    """Return the output with heads scaled or replaced; other heads keep their bits."""
    values, count = _packed(output), heads_of(output)
    scale = [1.0] * count
    for where, value in heads:
        if isinstance(value, float):
            for head in range(count) if where.head is None else (where.head,):
                scale[head] *= value
            continue
        if isinstance(value, Tensor) and value.shape[0] != values.shape[-1]:
            raise ValueError(
                f"edit: heads {where}: the output is {values.shape[-1]} wide, and the vector {tuple(value.shape)}"
            )
        vector = value.to(values) if isinstance(value, Tensor) else _mean(where, output, tokens, mask)
        values = torch.where(_of_head(where.head, count, values.device), vector, values)
    factors = torch.tensor(scale, dtype=values.dtype, device=values.device)[:, None]
    if any(factor != 1.0 for factor in scale):
        values = values * factors
    if 0.0 in scale:
        values = values.masked_fill(factors == 0, 0.0)
    return _like(values, output)


def _mean(where: Where, output: Operand, tokens: _Tokens, mask: Mask | Tensor | None) -> Tensor:
    """Return the mean output of each head over all tokens of the batch except padding, (H, E)."""
    if isinstance(output, Ragged):
        return output.values.mean(0)
    values, real = _packed(output), _real_tokens(where, mask, tokens)
    if real is None:
        return values.mean(0)
    is_real = real.expand(output.shape[:-3].numel(), -1)[_rows(output), tokens.query_positions]
    return values[is_real].mean(0)


def _real_tokens(where: Where, mask: Mask | Tensor | None, tokens: _Tokens) -> Tensor | None:
    """Return the keys that some query sees, (B, K) bool, or None for all; in self-attention they are its tokens."""
    check(
        where.kind != "cross",
        f'edit: heads {where}: "mean" cannot find padding of the decoder in cross-attention; pass the vector',
    )
    if mask is None:
        return None
    mask = as_mask(mask)
    if isinstance(mask, Both):
        parts = [part for side in (mask.left, mask.right) if (part := _real_tokens(where, side, tokens)) is not None]
        return None if not parts else parts[0] & parts[-1]
    if isinstance(mask, KeyLengths):
        return torch.arange(tokens.most_keys, device=mask.lengths.device) < mask.lengths.reshape(-1, 1)
    if isinstance(mask, DenseMask):
        bits = mask.bits.expand(*mask.bits.shape[:-1], tokens.most_keys)
        bits = bits.reshape(-1, *bits.shape[-3:]) if bits.dim() > 2 else bits.expand(1, 1, -1, -1)
        return bits.flatten(1, 2).any(1)
    if isinstance(mask, Documents):
        rows, ids = _longest(tokens.query), mask.ids.reshape(-1, mask.ids.shape[-1])
        seen = ids[:, -rows:] if mask.query_ids is None else mask.query_ids.reshape(-1, rows)
        texts = max(len(ids), len(seen))
        pairs = zip(ids.expand(texts, -1), seen.expand(texts, -1), strict=True)
        return torch.stack([torch.isin(of_keys, of_queries) for of_keys, of_queries in pairs])
    return None
