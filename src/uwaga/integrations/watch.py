"""Record queries and keys of a model's attention, while the model keeps its fast path.

Letters: Q queries, K keys, N packed tokens.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from uwaga.integrations.watching import builtin, huggingface
from uwaga.integrations.watching.attention_layers import AttentionLayers, token_embeddings
from uwaga.integrations.watching.huggingface import SpeculativeRecording, detect_speculative_decoding
from uwaga.maps.recordings.copies import MapOptions
from uwaga.maps.recordings.recording import Recording, TokenLists, TokenStrings
from uwaga.ops.ragged import Operand


@contextmanager
def watch(
    model: nn.Module,
    *,
    layers: Collection[int] | None = None,
    kinds: Collection[str] | None = None,
    heads: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: object = None,
    tokens: TokenLists | Mapping[str, TokenLists] | None = None,
) -> Iterator[Recording]:
    """Within it, queries and keys of the model's attention are recorded, and give its weights at any time.

        with uwaga.watch(model) as recording:
            model(ids)
        recording.maps[("encoder", 0)][..., 3, :]       # what token 3 looks at, in every sequence and head

    A model of this package is left as it is. One of transformers attends with attn_implementation="uwaga" meanwhile, and
    as before afterwards, also after an exception; so do its parts in a model of somebody else's.

    What is recorded is the last pass through the model, or the last generation: its passes are joined, and each map is that
    of one pass over the whole text. See `Recording`. Copies are kept, without gradients: Q and K of what is asked for, and
    nothing of size Q x K but masks and biases that a model makes so itself and that do not depend on the distance alone.
    Watches may be nested, and each records for itself. Other threads are not watched, nor is what torch.compile has made.

    Args:
        model: with attention of `uwaga.nn`, or of transformers, anywhere inside.
        layers: which, from 0; None for all.
        kinds: of "encoder", "decoder" (self-attention that continues a text) and "cross"; None for all.
        heads: which query heads, in every layer; None for all. Of grouped heads, the keys that these read.
        dtype: that queries and keys are stored in; None for their own. torch.bfloat16 takes half of float32.
        tokenizer, tokens: what tokens are called, by a tokenizer (of transformers or tokenizers, or a function from a list of
            ids to strings), or as strings: a list for one row, or a list of lists. A dict by "encoder" and "decoder" of
            either, where they are not called alike.

    Raises:
        ValueError: a model without attention that can be watched, a layer, kind or head that it has not, or attention that
            ran without being seen; a model of transformers that computes attention by itself.
    """
    found = AttentionLayers.of([*builtin.find_attentions(model), *huggingface.find_attentions(model)])
    wanted = found.select(type(model).__name__, layers, kinds)
    recording = SpeculativeRecording(heads=heads, dtype=dtype, strings=TokenStrings(tokenizer, tokens))
    embedded_ids: list[Tensor] = []  # the last ids that the model has embedded, until a pass begins with them

    def on_call(module: nn.Module, query: Operand, key: Operand, options: Mapping) -> None:
        where = found.ids.get(module)
        if where is None:
            return
        map_options = MapOptions(
            mask=options["mask"],
            bias=options["bias"],
            scale=options["scale"],
            softcap=options["softcap"],
            sinks=options["sinks"],
        )
        if recording.record(where, query, key, map_options, embedded_ids[-1] if embedded_ids else None):
            embedded_ids.clear()
        if where in wanted:
            recording.store(where, query, key, map_options)

    with ExitStack() as stack:
        for embedding in token_embeddings(model):
            stack.callback(embedding.register_forward_pre_hook(lambda _, given: embedded_ids.append(given[0])).remove)
        stack.enter_context(builtin.watching(found.ids, on_call))
        stack.enter_context(huggingface.watching(model, on_call))
        stack.enter_context(detect_speculative_decoding(model, recording))
        stack.callback(recording.close)
        yield recording
    if not recording.maps:
        raise ValueError(
            f"watch: nothing was recorded: {type(model).__name__} computed no attention in this thread, outside "
            "torch.compile, while it was watched"
        )
