"""uwaga.inspect.score_attribution: why a head looks there.

Letters: C scores, Q queries, K keys.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from uwaga.inspect.attribution.reading import BYTES, NAME, Operand, Reader
from uwaga.inspect.attribution.scores import ScoreAttribution, index, positive
from uwaga.inspect.attribution.streams import stacks
from uwaga.inspect.recordings.recording import Recording
from uwaga.inspect.watching import watch
from uwaga.integrations.transformers.inside import outermost
from uwaga.maps.base import integer
from uwaga.maps.engines import reference
from uwaga.maps.map import AttentionMap
from uwaga.maps.spec import Selection
from uwaga.models.attention_layers import name_of
from uwaga.models.checkpoints import load_save
from uwaga.models.families import model_types
from uwaga.models.transformer import Transformer
from uwaga.nn.attention_id import AttentionId, describe_layers
from uwaga.ops.attention.call import Call

_FIRST = 8  # weights of each query that are compared before any query's others
_CELLS = 256  # that are read at once, of the outer product of their queries and keys
# Options of a model that change which keys are seen, and not what a token writes.
_MASKS = ("lengths", "attention_mask", "key_lengths")
_TYPES = ("token_types", "token_type_ids")


class UnknownFamilyError(ValueError):
    """A model whose parts are not known."""


@torch.no_grad()
def score_attribution(
    model: nn.Module,
    inputs: Any,
    layer: int,
    head: int,
    i: int | Sequence[int] | None = None,
    j: int | Sequence[int] | None = None,
    *,
    than: int | Sequence[int] | None = None,
    kind: str | None = None,
    row: int = 0,
    most: int = 100,
    ids: Any = None,
    **options: Any,
) -> ScoreAttribution:
    """A score s_ij = q_i . k_j * scale as the sum of what each pair of parts of the model contributes to it.

        why = score_attribution(model, ids, 1, 2, i=40, j=17)
        why.top(3)                                      # [Share(query=Part("token"), key=Part("head", "decoder", 0, 1), share=5.1), ...]
        why.back(why.top(1)[0].key, "key")              # the tokens from which that head brought it

    The query and the key are linear maps of residual streams, and these are sums of what was written into them: the embeddings, every
    earlier head through W_O, every earlier feed-forward layer, and constants. A norm is taken as the linear map that it is with its mean
    and scale as they are at that token (Elhage et al., "A Mathematical Framework for Transformer Circuits", 2021), the norms of a
    post-norm stack one after another, and the norms of queries and keys. So the contributions sum to the score, exactly but for rounding: no
    gradient, no approximation, nothing trained. A norm's scale is itself made of all parts: what a score were without a part is
    another question, which `activation_patching` answers.

    Softmax does not change when all scores of a query do by one number: a contribution that is equal for all keys explains no choice
    among them. With `than` the difference of the scores of two keys is split, in which it is 0.

    With a recording, nothing runs but the feed-forward layers below, at the tokens that are asked for: O(N) for each score and head
    below, at any length. Without one, the model runs once and is recorded.

    Args:
        model: of uwaga.models, or of transformers of a family that `uwaga.models.load` knows, in evaluation mode.
        inputs: a Recording of it, from `uwaga.watch(model, values=True)` outside of `uwaga.edit`; or what the model is called with: ids
            (R, N) or Ragged (N,), and of an encoder and a decoder a tuple of both.
        layer, head: of the score, from 0.
        i, j: the query and the key, from 0, negative ones from the end; or as many of each, in lists, arrays or tensors. None for the
            `most` largest weights: of a row where i is given, of a column where j is given, of the head where neither is.
        than: another key, or one for each score: s_ij - s_i,than is split in place of s_ij.
        kind: "encoder", "decoder" or "cross"; None: the decoder's self-attention where there is a decoder, else the encoder's.
        row: of the batch.
        most: how many scores where i or j is None; fewer where fewer keys are seen.
        ids: of a recording that has no token ids, as one that was read from a file: those of its rows, (R, N), Ragged (N,) or lists, or
            (N,) of a text without a batch; of an encoder and a decoder a tuple of both.
        options: token_types (or token_type_ids) of BERT, also with a recording; without one the model's lengths, attention_mask or
            key_lengths too.

    Raises:
        ValueError: another family of models, a model in training mode or on another device than the CPU; a layer, head, row, query or key
            that does not exist, or a key that the mask hides from the query; a recording that lacks values, layers, heads or token ids, or has other ids; or one of
            another model or text, whose queries and keys are farther from the sums of their parts than rounding takes them. In half
            precision that is 5 to 20 per cent of them, with many layers more, and a model or text that differs by less is not found out
            (`bound` beside the score says how sharp it is). Positions other than 0, 1, ... (`position_ids` of a text that is padded on
            the left) and rotary scaling that changes with the length are not supported, and look like another model.
    """
    own = _of_this_package(model)
    unknown = sorted(set(options) - set(_TYPES) - set(() if isinstance(inputs, Recording) else _MASKS))
    if unknown:
        raise ValueError(f"{NAME}: unknown options: {', '.join(unknown)}")
    where = _where(own, kind, layer, name_of(model))
    recording = inputs if isinstance(inputs, Recording) else _recorded(model, inputs, where, options)
    if where not in recording.maps:
        raise ValueError(
            f"{NAME}: the recording has no {where.kind} {layer}; there are {describe_layers(recording.maps)}"
        )
    shape = recording.maps[where].shape
    rows = shape[0] if len(shape) == 4 else 1  # (H, Q, K) is of one text
    row = index(row, rows, "row", f"rows are 0 to {rows - 1}")
    types = next((options[name] for name in _TYPES if options.get(name) is not None), None)
    # Norms of transformers compute in float32 whatever they are given.
    finest = torch.float64 if own is model else torch.float32
    reader = Reader(own, recording, row, types, finest, ids)
    heads = reader.map(where).shape[0]
    head = index(head, heads, "head", f"heads are 0 to {heads - 1}")
    m = reader.map(where, head)
    cells = _cells(m, i, j, most)
    return _attribution(reader, where, head, cells, _than(than, len(cells), m.shape[1]), m)


def _attribution(
    reader: Reader, where: AttentionId, head: int, cells: list[tuple[int, int]], than: list[int] | None, m: AttentionMap
) -> ScoreAttribution:
    of_query, of_key = [i for i, _ in cells], [j for _, j in cells]
    queries, keys = sorted(set(of_query)), sorted({*of_key, *(than or ())})
    if where.kind != "cross":  # both are tokens of one text, which is read once
        queries = keys = sorted({*queries, *keys})
    query, key = reader.operand(where, "query", head, queries), reader.operand(where, "key", head, keys)
    call = m._call
    query_T, key_T = (_rounding(reader, where, x, of) for x, of in ((query, call.query), (key, call.key)))
    scale, at_query, at_key = (
        float(call.options.scale),
        [queries.index(i) for i in of_query],
        [keys.index(j) for j in of_key],
    )
    distance, k_CD = _distances(call, cells), call.key[0, 0, of_key].double()
    q_CPD, k_CSD, rounding_C = query.values[at_query], key.values[at_key], key_T[at_key]
    if than is not None:
        at_than = [keys.index(j) for j in than]
        distance = distance - _distances(call, list(zip(of_query, than, strict=True)))
        k_CD = k_CD - call.key[0, 0, than].double()
        k_CSD, rounding_C = k_CSD - key.values[at_than], rounding_C + key_T[at_than]
    norm_C, of_query_C = k_CSD.sum(1).norm(dim=-1), query_T[at_query]
    return ScoreAttribution(
        kind=where.kind,
        layer=where.layer,
        head=head,
        row=reader.row,
        cells=tuple(cells),
        than=None if than is None else tuple(than),
        scores=(call.query[0, 0, of_query].double() * k_CD).sum(-1) * scale + distance,
        weights=_weights(m, cells),
        query_parts=query.parts,
        key_parts=key.parts,
        query=q_CPD,
        key=k_CSD,
        scale=scale,
        distance=distance,
        rounding=(of_query_C * (norm_C + rounding_C) + q_CPD.sum(1).norm(dim=-1) * rounding_C) * abs(scale),
        reader=reader,
    )


def _rounding(reader: Reader, where: AttentionId, operand: Operand, recorded: Tensor) -> Tensor:
    """(T,): how far rounding may take an operand's recorded vectors from the sums of its parts. Raises ValueError: they are farther."""
    right_TD, bound_T = operand.values.sum(1), reader.rounding(where, operand)
    apart_T = (recorded[0, 0, operand.tokens].double() - right_TD).norm(dim=-1)
    for n in (~(apart_T <= bound_T)).nonzero().flatten().tolist():
        raise ValueError(
            f"{NAME}: the recorded {operand.name} of token {operand.tokens[n]} is {float(apart_T[n]):.3g} from the sum of its parts, of "
            f"norm {float(right_TD[n].norm()):.3g}, farther than rounding takes it ({float(bound_T[n]):.3g}): the recording is of another "
            "model, text or token types, was made inside uwaga.edit, or has positions that are not 0, 1, ... (as of position_ids of a text "
            "padded on the left) or rotary scaling that changes with the length, which are not supported"
        )
    return bound_T


def _listed(x: Any) -> list[Any] | None:
    """Several numbers, or None of one."""
    x = x.tolist() if hasattr(x, "tolist") else x
    return list(x) if isinstance(x, Sequence) and not isinstance(x, str) else None


def _than(than: Any, count: int, keys: int) -> list[int] | None:
    if than is None:
        return None
    listed = _listed(than)
    listed = [than] * count if listed is None else listed
    if len(listed) != count:
        raise ValueError(f"{NAME}: than must be one key, or one for each of {count} scores, not {len(listed)}")
    return [_key(each, keys) for each in listed]


def _cells(m: AttentionMap, i: Any, j: Any, most: int) -> list[tuple[int, int]]:
    """The queries and keys that are asked for, or the `most` largest weights."""
    queries, keys = m.shape
    if i is not None and j is not None:
        of_i, of_j = ([x] if (several := _listed(x)) is None else several for x in (i, j))
        if len(of_i) != len(of_j) or not of_i:
            raise ValueError(f"{NAME}: i and j must be as many, and at least one, not {len(of_i)} and {len(of_j)}")
        return [(_query(a, queries), _key(b, keys)) for a, b in zip(of_i, of_j, strict=True)]
    most = positive("most", most)
    for name, given in (("i", i), ("j", j)):
        if _listed(given) is not None:
            raise ValueError(f"{NAME}: where {name} is a list, the other must be one too")
    if i is not None:
        i = _query(i, queries)
        weights, at = _tensor(m[i]).topk(min(most, keys))
        found = [(weight, i, key) for weight, key in zip(weights.tolist(), at.tolist(), strict=True)]
    elif j is not None:
        j = _key(j, keys)
        weights, at = _tensor(m[:, j]).topk(min(most, queries))
        found = [(weight, query, j) for weight, query in zip(weights.tolist(), at.tolist(), strict=True)]
    else:
        found = _strongest(m, most)
    result = [(query, key) for weight, query, key in sorted(found, key=lambda x: (-x[0], *x[1:])) if weight > 0]
    if not result:
        raise ValueError(f"{NAME}: no key is seen there")
    return result


def _strongest(m: AttentionMap, most: int) -> list[tuple[float, int, int]]:
    """The `most` largest weights of a head, (weight, query, key). Nothing of size Q x K is made: a query whose largest eight are all above
    the most-th of all is read whole, and there are at most most / 8 of these."""
    queries, keys = m.shape
    first = min(_FIRST, keys)
    weights_Qk, positions_Qk = (_tensor(x) for x in m.topk(first))
    count = min(most, weights_Qk.numel())
    least = weights_Qk.flatten().topk(count).values[-1]
    whole = (weights_Qk[:, -1] > least).nonzero().flatten() if count == most and first < keys else torch.arange(0)
    if count < most and first < keys:
        whole = torch.arange(queries)
    weights_Qk = weights_Qk.index_fill(0, whole, 0)  # those of the map are kept in it
    best, at = weights_Qk.flatten().topk(count)
    found = [
        (weight, n // first, int(positions_Qk.flatten()[n]))
        for weight, n in zip(best.tolist(), at.tolist(), strict=True)
    ]
    step = max(1, BYTES // (keys * weights_Qk.element_size()))
    for part in whole.split(step):
        block = _tensor(m[part])
        best, at = block.flatten().topk(min(most, block.numel()))
        found += [
            (weight, int(part[n // keys]), n % keys) for weight, n in zip(best.tolist(), at.tolist(), strict=True)
        ]
    return sorted(found, key=lambda x: (-x[0], *x[1:]))[:most]


def _distances(call: Call, cells: list[tuple[int, int]]) -> Tensor:
    """(C,) float64: the biases of the scores, which are the scores of a query of zeros. Raises ValueError: a key that is hidden."""
    none = replace(call, query=torch.zeros((), dtype=call.query.dtype).expand(call.query.shape))
    results = []
    for first in range(0, len(cells), _CELLS):
        queries, keys = zip(*cells[first : first + _CELLS], strict=True)
        (every_query, at_query), (every_key, at_key) = (
            torch.tensor(each).unique(return_inverse=True) for each in (queries, keys)
        )
        scores = reference.scores(none, Selection((0,), (0,), every_query), every_key)[0, 0]
        results.append(scores[at_query, at_key].double())
    result = torch.cat(results)
    for n in (result == -float("inf")).nonzero().flatten().tolist():
        raise ValueError(f"{NAME}: key {cells[n][1]} is hidden from query {cells[n][0]} by the mask: there is no score")
    return result


def _weights(m: AttentionMap, cells: list[tuple[int, int]]) -> Tensor:
    """(C,)."""
    results = []
    for first in range(0, len(cells), _CELLS):
        queries, keys = (list(x) for x in zip(*cells[first : first + _CELLS], strict=True))
        results.append(_tensor(m[queries, keys]).diagonal())
    return torch.cat(results)


def _of_this_package(model: nn.Module) -> Transformer:
    """The model itself, or one of transformers as the model of this package that it is, with the same weights."""
    found = outermost(model)
    if model.training:
        raise ValueError(
            f"{NAME}: {name_of(model)} is in training mode, in which dropout changes what it computes; call model.eval()"
        )
    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    if device.type != "cpu":
        raise ValueError(
            f"{NAME}: the model must be on the CPU, not on {device}; of a recording, watch(..., device='cpu')"
        )
    if isinstance(model, Transformer):
        return model
    if len(found) == 1:
        own = load_save.of_transformers(found[0][1])
        if own is not None:
            return own
    raise UnknownFamilyError(
        f"{NAME}: {name_of(model)} is of no family that is known here; supported are uwaga.models.Transformer, and of transformers: "
        f"{', '.join(model_types())}"
    )


def _where(model: Transformer, kind: str | None, layer: int, name: str) -> AttentionId:
    known = [each.where for stack in stacks(model).values() for each in stack.sublayers if each.where is not None]
    kinds = {where.kind for where in known}
    kind = kind if kind is not None else "decoder" if "decoder" in kinds else "encoder"
    layer = integer(layer, f"{NAME}: layer")
    if AttentionId(kind, layer) not in known:
        raise ValueError(f"{NAME}: {name} has no layer {layer!r} of kind {kind!r}; there are {describe_layers(known)}")
    return AttentionId(kind, layer)


def _recorded(model: nn.Module, inputs: Any, where: AttentionId, options: dict[str, Any]) -> Recording:
    """One pass through the model, without its head where that may be left out: logits of a long text are large."""
    without: dict[str, Any] = {}
    called: Any = model
    given: tuple[Any, ...] = inputs if isinstance(inputs, tuple) else (inputs,)
    if isinstance(model, Transformer):
        without = {"outputs": ()}
    elif outermost(model):
        called = outermost(model)[0][1].base_model
        if isinstance(inputs, tuple) and len(inputs) == 2:  # their second argument is the mask of the first
            given, without = inputs[:1], {"decoder_input_ids": inputs[1]}
    # What a decoder's head brought from its encoder was written by any layer of that.
    layers = None if isinstance(inputs, tuple) else range(where.layer + 1)
    with watch(model, values=True, layers=layers) as recording:
        called(*given, **options, **without)
    return recording


def _query(value: Any, length: int) -> int:
    return index(value, length, "query", f"queries are 0 to {length - 1}")


def _key(value: Any, length: int) -> int:
    return index(value, length, "key", f"keys are 0 to {length - 1}")


def _tensor(x: Any) -> Tensor:
    assert isinstance(x, Tensor)
    return x
