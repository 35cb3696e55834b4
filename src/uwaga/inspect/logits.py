"""Logit lens, and direct logit attribution: the share of each part of a language model in a logit.

A pre-norm model writes into a residual stream: x = embedding + sum over layers of (heads W_O + b_O) + feed-forward. At the final x
the norm is a linear map, so a logit is the sum of the shares of these parts (Elhage et al., "A Mathematical
Framework for Transformer Circuits", 2021; Wang et al., "Interpretability in the Wild", 2022, section 3.1).

Letters: B batch, H query heads, Q tokens, E value width, L layers, M model width, V vocabulary, T most likely tokens.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check, choice, integer
from uwaga._base.threads import calling_here
from uwaga.inspect.attribution.streams import Scale
from uwaga.inspect.editing import hooking
from uwaga.models.transformer import Transformer
from uwaga.nn import MultiHeadAttention
from uwaga.ops.attention.hooks import Asked, Hook, Proceed
from uwaga.ops.linear.api import linear_map
from uwaga.ops.ragged import Operand

_SUPPORTED = (
    "a pre-norm uwaga.models.Transformer with a decoder, except Gemma, and of transformers GPT-2 and Llama-like models"
)


_AT = "logit_lens and logit_attribution:"
# A layer of a residual stream, its attentions as ((kind, layer), the attention, its output map), and its feed-forward layer.
Block = tuple[nn.Module, Sequence[tuple[tuple[str, int], nn.Module, Any]], nn.Module]


class ResidualStream(NamedTuple):
    """Hold the parts of a pre-norm language model."""

    blocks: Sequence[Block]
    norm: nn.Module  # the final one
    weight_VM: Tensor  # of the logits
    bias_V: Tensor | None
    scale: float  # of the final hidden state before the logits

    @staticmethod
    def of(model: nn.Module) -> "ResidualStream":
        """Return the parts of a model. Raises ValueError: a model of another architecture."""
        result = _of_this_package(model) if isinstance(model, Transformer) else _of_transformers(model)
        if result is None:
            raise ValueError(
                f"{_AT} {type(model).__name__} has no known residual stream with one final norm before its logits; "
                f"supported are {_SUPPORTED}"
            )
        return result

    def logits(self, x: Tensor) -> Tensor:
        """Compute logits (..., V) from the residual stream (..., M), through the final norm."""
        return linear_map(self.norm(x) * self.scale, self.weight_VM, self.bias_V)

    def share(self, x_BQM: Tensor, direction_BM: Tensor) -> tuple[Tensor, Tensor]:
        """Return the map (B, Q, M) from a part of x to its share of <direction, norm(x)>, and the constant (B, Q)."""
        norm, scaled_BM = Scale.of(self.norm, x_BQM), direction_BM * self.scale
        rest = 0.0 if norm.bias is None else (scaled_BM * norm.bias).sum(-1)[:, None]
        return norm.before(scaled_BM[:, None]) * norm.factor_T[..., None], torch.zeros_like(x_BQM[..., 0]) + rest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitLens:
    """Hold the predictions of a model that would end after each layer (nostalgebraist, "interpreting GPT: the logit lens", 2020).

    The first entry is the embedding's prediction, the last one the model's own.
    """

    tokens: Tensor  # (L+1, B, Q, T) int64: the most likely ids
    probabilities: Tensor  # (L+1, B, Q, T)
    chosen: Tensor | None  # (L+1, B, Q): the probability of `ids`
    entropy: Tensor  # (L+1, B, Q), of the whole distribution, in nats


@torch.no_grad()
def logit_lens(model: nn.Module, *inputs: Any, top: int = 5, ids: Tensor | None = None, **options: Any) -> LogitLens:
    """Compute the most likely next tokens after every layer, by the model's final norm and logits.

    One pass through the model, and one product with the vocabulary for each layer: O(B Q (V + L M)) memory.

    Args:
        model: a pre-norm `uwaga.models.Transformer` with a decoder, except Gemma; or of transformers, GPT-2 or a Llama-like model.
        inputs, options: the arguments of `model(*inputs, **options)`, a padded batch.
        top: T, the number of tokens.
        ids: (B, Q), one id at each position whose probability is returned as `chosen`; None: no ids.

    Raises:
        ValueError: a model of another architecture, or top outside 1 to V.
    """
    stream = ResidualStream.of(model)
    top = integer(top, "logit_lens: top", 1, len(stream.weight_VM))
    with _residuals(stream) as (states, _):
        model(*inputs, **options)
    results = []
    for x in states:
        log = stream.logits(x).float().log_softmax(-1)
        most = log.topk(top)
        entropy = -(log.exp() * log).nan_to_num(0.0).sum(-1)
        chosen = None if ids is None else log.gather(-1, ids[..., None]).squeeze(-1).exp()
        results.append((most.indices, most.values.exp(), entropy, chosen))
    tokens, probabilities, entropies, of_ids = zip(*results, strict=True)
    return LogitLens(
        tokens=torch.stack(tokens),
        probabilities=torch.stack(probabilities),
        entropy=torch.stack(entropies),
        chosen=None if ids is None else torch.stack(of_ids),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogitAttribution:
    """Hold the shares of all parts of a model in a logit, or in the difference of two logits."""

    heads: dict[tuple[str, int], Tensor]  # by (kind, layer), (B, H, Q)
    feed_forward: dict[int, Tensor]  # by layer, (B, Q)
    embedding: Tensor  # (B, Q)
    bias: Tensor  # (B, Q): the biases of attention's output maps, the final norm and the logits
    logits: Tensor  # (B, Q): the logit or the difference, as the model computes it

    def total(self) -> Tensor:
        """Return the sum of all shares, (B, Q); it equals `logits` up to rounding."""
        parts = [x.sum(1) for x in self.heads.values()] + list(self.feed_forward.values())
        return torch.stack([*parts, self.embedding, self.bias]).sum(0)

    def of_heads(self, kind: str, row: int = 0, position: int = -1) -> Tensor:
        """Return the shares (L, H) of all heads of a kind in one row at one position, for `uwaga.plots.heatmap`."""
        choice(kind, "LogitAttribution: kind", sorted({name for name, _ in self.heads}))
        return torch.stack([x[row, :, position] for (name, _), x in sorted(self.heads.items()) if name == kind])


@torch.no_grad()
def logit_attribution(
    model: nn.Module, *inputs: Any, answer: int | Tensor, other: int | Tensor | None = None, **options: Any
) -> LogitAttribution:
    """Compute the share of each part of the model in the logit of `answer` (direct logit attribution).

    The parts are the heads, the feed-forward layers and the embedding. With `other`, the shares are those in the difference of the
    logits of `answer` and `other`. There is a share at every position.

    The shares are exact: the final norm is a linear map at the model's own hidden state, and all shares sum to the logit.

    Args:
        model, inputs, options: as in `logit_lens`; in an encoder-decoder, only the decoder's parts have shares.
        answer, other: token ids, one for all rows or (B,).

    Raises:
        ValueError: a model of another architecture; ids outside the vocabulary, or not one for each row.
    """
    stream = ResidualStream.of(model)
    outputs: dict[nn.Module, Operand] = {}  # (B, H, Q, E) by attention

    def keep(asked: Asked, module: Any, proceed: Proceed) -> Operand:
        outputs[module] = output = proceed(asked.whole())
        return output

    hooks: dict[nn.Module, Hook] = {module: keep for _, attentions, _ in stream.blocks for _, module, _ in attentions}
    with _residuals(stream) as (states, feed_forwards), hooking(model, hooks):
        model(*inputs, **options)
    last = states[-1]
    check(last.dim() == 3, "logit_attribution: the model needs a padded batch (B, Q), not a ragged one")
    direction, bias = _direction(stream, "answer", answer, len(last))
    if other is not None:
        less, less_bias = _direction(stream, "other", other, len(last))
        direction, bias = direction - less, bias - less_bias
    share_BQM, rest = stream.share(last, direction)
    result, feed_forward = {}, {}
    rest = rest + bias[:, None]
    for n, (_, attentions, _) in enumerate(stream.blocks):
        for where, module, output in attentions:
            z_BHQE = _plain(outputs[module])
            # (H E, M): of torch.nn.Linear transposed, of transformers' Conv1D as it is.
            weight = output.weight.T if isinstance(output, nn.Linear) else output.weight
            weight_HEM = weight.unflatten(0, (z_BHQE.shape[1], -1))
            # <z W_O^h, share> as <z, W_O^h share>: nothing of size H x M is made for each token.
            result[where] = torch.einsum("bhqe,hem,bqm->bhq", z_BHQE, weight_HEM, share_BQM)
            output_bias = getattr(output, "bias", None)
            if output_bias is not None:
                rest = rest + share_BQM @ output_bias
        feed_forward[n] = (feed_forwards[n] * share_BQM).sum(-1)
    logits = (stream.norm(last) * direction[:, None] * stream.scale).sum(-1) + bias[:, None]
    return LogitAttribution(
        heads=result,
        feed_forward=feed_forward,
        embedding=(states[0] * share_BQM).sum(-1),
        bias=rest,
        logits=logits,
    )


def _direction(stream: ResidualStream, name: str, ids: int | Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the rows of the vocabulary (B, M) and their biases (B,)."""
    vocabulary = stream.weight_VM.shape[0]
    ids_B = torch.as_tensor(ids, device=stream.weight_VM.device)
    if ids_B.dtype.is_floating_point or ids_B.dtype == torch.bool or ids_B.shape not in ((), (rows,)):
        raise ValueError(f"logit_attribution: {name} must be a token id or one for each of {rows} rows, not {ids!r}")
    check(
        not ((ids_B < 0) | (ids_B >= vocabulary)).any(),
        f"logit_attribution: {name} must be ids of the {vocabulary} tokens, not {ids!r}",
    )
    ids_B = ids_B.long().expand(rows)
    bias = stream.weight_VM.new_zeros(rows) if stream.bias_V is None else stream.bias_V[ids_B]
    return stream.weight_VM[ids_B], bias


@contextmanager
def _residuals(stream: ResidualStream) -> Iterator[tuple[list[Tensor], dict[int, Tensor]]]:
    """Collect the residual stream (B, Q, M) before every layer and the final norm, and the feed-forward outputs by layer."""
    states: list[Tensor] = []
    feed_forwards: dict[int, Tensor] = {}

    with ExitStack() as stack:
        here = stack.enter_context(calling_here())

        @here
        def before(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
            states.append(_plain(arguments[0] if arguments else options["hidden_states"]))

        for n, (layer, _, feed_forward) in enumerate(stream.blocks):
            stack.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            hook = here(lambda _, __, output, n=n: feed_forwards.__setitem__(n, _plain(output)))
            stack.callback(feed_forward.register_forward_hook(hook).remove)
        stack.callback(stream.norm.register_forward_pre_hook(before, with_kwargs=True).remove)
        yield states, feed_forwards
    check(
        len(states) == len(stream.blocks) + 1,
        f"{_AT} one pass over {len(stream.blocks)} layers has {len(stream.blocks) + 1} states, not {len(states)}",
    )


def _plain(x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise ValueError(f"{_AT} the model needs a padded batch (B, Q), not a ragged one")
    return x


def _of_this_package(model: Transformer) -> ResidualStream | None:
    decoder, head = model.decoder, model.lm_head
    # An encoder's logits belong to the token itself, and norms of outputs are between a head and the stream.
    if decoder is None or decoder.norm is None or head is None or model.config.output_norms:
        return None
    blocks: list[Block] = []
    layer: Any
    for n, layer in enumerate(decoder.layers):
        modules = {"decoder": layer.attention, "cross": getattr(layer, "cross_attention", None)}
        attentions = [((kind, n), x, x.output) for kind, x in modules.items() if isinstance(x, MultiHeadAttention)]
        blocks.append((layer, attentions, layer.feed_forward))
    words = model.output_embeddings.token_embedding.weight if head.decoder is None else head.decoder.weight
    return ResidualStream(blocks, decoder.norm, words, head.bias, head.factor)


def _of_transformers(model: Any) -> ResidualStream | None:
    head = getattr(model, "lm_head", None)
    if not isinstance(head, nn.Linear):
        return None
    inner: Any = getattr(model, "transformer", None)
    if inner is not None and type(model).__name__ == "GPT2LMHeadModel":
        if getattr(model.config, "add_cross_attention", False):
            return None
        blocks = [
            (layer, [(("decoder", n), layer.attn, layer.attn.c_proj)], layer.mlp) for n, layer in enumerate(inner.h)
        ]
        return ResidualStream(blocks, inner.ln_f, head.weight, head.bias, 1.0)
    inner = getattr(model, "model", None)
    names = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
    layers = list(getattr(inner, "layers", []))
    # These four are all parts of a Llama-like layer: one with further norms or factors is another architecture.
    if not layers or any([name for name, _ in layer.named_children()] != list(names) for layer in layers):
        return None
    if not hasattr(inner.norm, "variance_epsilon") or hasattr(model.config, "logits_scaling"):
        return None
    blocks = [
        (layer, [(("decoder", n), layer.self_attn, layer.self_attn.o_proj)], layer.mlp)
        for n, layer in enumerate(layers)
    ]
    return ResidualStream(blocks, inner.norm, head.weight, head.bias, 1.0)
