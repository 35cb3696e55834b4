"""Record queries and keys of a model's attention, and values on request, while the model keeps its fast path.

Letters: Q queries, K keys, N packed tokens.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from uwaga._base import threads
from uwaga._base.arguments import check
from uwaga.inspect import vision
from uwaga.inspect.recordings.recording import Recording, TokenLists, TokenStrings
from uwaga.integrations.transformers.inside import computing
from uwaga.models.attention_layers import attention_layers, name_of, select, token_embeddings
from uwaga.nn.operand import values_of
from uwaga.ops.attention.hooks import Asked, hooked, looking
from uwaga.ops.ragged import Operand, Ragged


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Collection[int] | None = None,
    kinds: Collection[str] | None = None,
    heads: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    values: bool = False,
    max_bytes: int | None = None,
    device: torch.device | str | int | None = None,
    tokenizer: object = None,
    tokens: TokenLists | Mapping[str, TokenLists] | None = None,
) -> Iterator[Recording]:
    """Record queries and keys of the model's attention in a `with` block; weights are computed later.

        with uwaga.watch(model) as recording:
            model(ids)
        recording.maps[("encoder", 0)][..., 3, :]       # what token 3 looks at, in every sequence and head

    A model of this package is not changed. A model of transformers, or one that is a part of another model, computes with
    attn_implementation="uwaga" inside the context; other threads that run it keep its own implementation.

    The recording holds the last pass through the model, or the last generation: its passes are joined, and each map covers
    the whole text. See `Recording`. Copies are kept, without gradients: Q and K of the selected layers
    and heads. Nothing of size Q x K is stored, except dense masks and biases of the model that are no function of the distance.
    Contexts may be nested; each records separately. What is recorded is computed in this thread, or in a task that began in the context.

    Args:
        model: with attention of `uwaga.nn`, or of transformers, anywhere inside.
        layers: the layers to record, from 0; None for all.
        kinds: any of "encoder", "decoder" (self-attention that continues a text) and "cross"; None for all.
        heads: the query heads to record, in every layer; None for all. With grouped heads, the keys that these heads read are recorded.
        dtype: the dtype of the stored queries and keys; None for their own. torch.bfloat16 takes half the memory of float32.
        values: keep the values too, as `recording.values`.
        max_bytes: the largest `recording.nbytes` that is allowed; None for no limit. Queries, keys and values are
            counted before they are copied.
        device: the device that keeps the copies and computes the maps: None for the model's own; "cpu" for the host's memory, into
            which a GPU copies them while it goes on computing (`torch.cuda`: pinned memory, a stream of its own).
        tokenizer, tokens: the strings of tokens (a picture's are the class token, registers, and patches by row and column, as
            `uwaga.inspect.patch_grid` names them, unless `tokens` says otherwise): a tokenizer (of uwaga, transformers or tokenizers, or a function from a list of
            ids to strings), or as strings: a list for one row, or a list of lists. A dict by "encoder" and "decoder" of
            either, where these have different ones.

    Raises:
        ValueError: a model without attention that can be watched, a layer, kind or head that does not exist, a device that is none, or
            attention that ran without being recorded; in the forward pass, more to keep than max_bytes; a model of transformers that computes attention by itself.
    """
    found = attention_layers(model)
    chosen = select(found.values(), name_of(model), layers, kinds)
    strings = TokenStrings(tokenizer, tokens)
    # The directory or hub id of a model of transformers.
    name = getattr(getattr(model, "config", None), "name_or_path", "")
    recording = Recording(
        heads=heads,
        dtype=dtype,
        max_bytes=max_bytes,
        device=device,
        strings=strings,
        model=name if isinstance(name, str) and name else name_of(model),
    )
    embedded_ids: list[Tensor] = []  # the last ids that the model has embedded, until a pass begins with them

    def record(asked: Asked, module: nn.Module) -> None:
        where, query, key, options = found[module], asked.query, asked.key, asked.options
        ids = embedded_ids[-1] if embedded_ids and module not in of_pictures else None
        begins = recording.record(where, query, key, options, ids)
        if begins and ids is not None and (where.kind != "encoder" or _number_of_tokens(query) == ids.numel()):
            embedded_ids.clear()
        if where in chosen:
            recording.store(where, query, key, options, asked.value if values else None)

    with ExitStack() as stack:
        stack.callback(recording.close)
        here = stack.enter_context(threads.calling_here())

        @here
        def on_embedding(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            embedded_ids.append(values_of(arguments[0]))

        for embedding in token_embeddings(model):
            stack.callback(embedding.register_forward_pre_hook(on_embedding).remove)
        # A model of text and pictures embeds the text before its vision tower runs, which takes none of these ids.
        of_pictures = stack.enter_context(vision.naming(model, strings.name_patches))
        stack.enter_context(computing(model))
        stack.enter_context(hooked(dict.fromkeys(found, looking(record)), only_look=True))
        # transformers removes rejected candidates from its cache without a forward pass.
        generating = [module for module in model.modules() if hasattr(module, "_get_candidate_generator")]
        note = partial(setattr, recording, "has_candidates", True)
        stack.enter_context(threads.block([(module, note) for module in generating]))
        yield recording
    check(
        recording.maps,
        f"watch: nothing was recorded: {name_of(model)} computed no attention in this thread, outside "
        "torch.compile, while it was watched",
    )


def _number_of_tokens(query: Operand) -> int:
    return len(query.values) if isinstance(query, Ragged) else query.shape[:-3].numel() * query.shape[-2]
