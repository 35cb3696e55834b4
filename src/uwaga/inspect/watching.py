"""Record queries and keys, and optionally values, of a model's attention while the model keeps its fast path.

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
    the whole text. See `Recording`. It keeps copies of Q and K of the selected layers and heads, without gradients. Nothing of
    size Q x K is stored, except dense masks and biases of the model that depend on more than the distance.
    Contexts may be nested; each records separately. Only calls in this thread, and in tasks that begin in the context, are recorded.

    Args:
        model: a module that contains attention of `uwaga.nn` or of transformers.
        layers: the layers to record, from 0; None for all.
        kinds: any of "encoder", "decoder" (self-attention that continues a text) and "cross"; None for all.
        heads: the query heads to record, in every layer; None for all. With grouped heads, the keys that these heads read are recorded.
        dtype: the dtype of the stored queries and keys; None for their own. torch.bfloat16 takes half the memory of float32.
        values: keep the values as `recording.values`.
        max_bytes: the largest `recording.nbytes` that is allowed; None for no limit. Queries, keys and values are
            counted before they are copied.
        device: the device that keeps the copies and computes the maps; None for the model's own. With "cpu", a GPU copies to pinned
            memory on a separate stream while it goes on computing.
        tokenizer: gives the strings of tokens: a tokenizer of uwaga, transformers or tokenizers, a function from a list of ids to
            strings, or a dict of these by "encoder" and "decoder". None: the ids. Tokens of an image are named by `patch_grid`.
        tokens: the strings themselves, in place of a tokenizer: a list for one row, a list of lists, or a dict of these by
            "encoder" and "decoder".

    Raises:
        ValueError: a model without attention that can be watched; a layer, kind, head or device that does not exist; no attention
            ran in the context; in the forward pass, more to keep than max_bytes, or a model of transformers that computes attention by
            itself.
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
    vision_transformers = vision.vision_models(model)
    of_images = {module for transformer in vision_transformers for module in transformer.modules()}

    def record(asked: Asked, module: nn.Module) -> None:
        where, query, key, options = found[module], asked.query, asked.key, asked.options
        # A model of text and images embeds the text before its vision transformer runs, which takes none of these ids.
        ids = embedded_ids[-1] if embedded_ids and module not in of_images else None
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

        @here
        def on_image(module: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            strings.patches = vision.token_names(module, arguments, options) or strings.patches

        for embedding in token_embeddings(model):
            stack.callback(embedding.register_forward_pre_hook(on_embedding).remove)
        for transformer in vision_transformers:
            stack.callback(transformer.register_forward_pre_hook(on_image, with_kwargs=True).remove)
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
