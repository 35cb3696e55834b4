"""BERT: a post-norm encoder over embeddings of tokens, positions and token types, with its pooler and heads.

Letters: B batch, Q tokens, M model width, N packed tokens, R ragged rows, V vocabulary, C classes.
"""

from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga._base.tracing import is_plain_eager
from uwaga.models.bert.config import CLASSIFIES_POOLED, BertConfig
from uwaga.models.layer_stack import StackOutput, check_only, run_layers
from uwaga.models.tokenizers import token_ids
from uwaga.nn import Encoder, LayerSpec, LearnedPositions, RelativePositions, RotaryPositions
from uwaga.nn.batch_invariant import apply_linear
from uwaga.nn.operand import map_values, tokens_of_rows, values_of
from uwaga.nn.plain_modules import apply_dropout, is_plain
from uwaga.nn.positions import roberta_positions, token_positions
from uwaga.ops.linear.api import linear_map
from uwaga.ops.masks import Mask
from uwaga.ops.norms import Lookup, embedding_norm
from uwaga.ops.ragged import Operand, Ragged

_NAME = "BertModel"
_OF_FIRST_TOKEN = {"pooled", "next_sentence", "sequence"}  # outputs


class BertOutput(NamedTuple):
    """The outputs of a BertModel: Ragged where the ids are, None where the model has no such head or it was not requested."""

    last_hidden_state: Operand  # (B, Q, M), after the last layer
    pooled: Tensor | None = None  # (B, M), or (R, M)
    masked_lm: Operand | None = None  # (B, Q, V), logits, as are all below
    next_sentence: Tensor | None = None  # (B, 2)
    sequence: Tensor | None = None  # (B, C)
    tokens: Operand | None = None  # (B, Q, C)
    replaced: Operand | None = None  # (B, Q), that the token is not the text's own
    hidden_states: tuple[Operand, ...] | None = None  # of the embeddings and of every layer


class BertModel(nn.Module):
    """BERT (Devlin et al., "BERT", 2019), RoBERTa (Liu et al. 2019), DistilBERT (Sanh et al. 2019), MPNet (Song et al. 2020), ELECTRA
    (Clark et al. 2020), ALBERT (Lan et al. 2020), and with rotary positions GTE (Zhang et al. 2024), NomicBERT (Nussbaum et al. 2024) and
    Jina v3 (Sturua et al. 2024), by config.

    Submodules: embeddings, embedding_projection (None unless config.projects_embeddings), encoder, relative_positions (None but in MPNet), and
    pooler, masked_lm, next_sentence, sequence, tokens, replaced, each None unless it is in config.outputs. Where ALBERT's layers share
    weights, each is a module, and their parameters are the same.

    >>> import torch, uwaga
    >>> config = BertConfig(vocab_size=20, d_model=8, num_layers=2, num_heads=2, d_ff=16, max_position_embeddings=10)
    >>> model = BertModel(config).eval()
    >>> documents = uwaga.Ragged.from_list([torch.tensor([3, 4, 5]), torch.tensor([6])])
    >>> output = model(documents)
    >>> output.last_hidden_state.values.shape, output.pooled.shape
    (torch.Size([4, 8]), torch.Size([2, 8]))
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        has = config.outputs.__contains__
        self.embeddings = BertEmbeddings(config)
        projects = config.projects_embeddings
        self.embedding_projection = nn.Linear(config.embedding_width, config.d_model) if projects else None
        self.encoder = Encoder(_layer(config), len(config.layer_weights))
        if config.num_hidden_groups is not None:
            _share_weights(self)
            self.register_load_state_dict_post_hook(_share_weights)
        buckets = config.num_buckets
        self.relative_positions = RelativePositions(config.num_heads, num_buckets=buckets) if buckets else None
        self._rotary = None
        if config.rotary_base is not None:
            width = config.d_k or config.d_model // config.num_heads
            self._rotary = RotaryPositions(
                width, base=config.rotary_base, layout="halves", scaling=config.rotary_scaling
            )
        self.pooler = Pooler(config) if has("pooled") else None
        self.masked_lm = MaskedLMHead(config) if has("masked_lm") else None
        self.next_sentence = nn.Linear(config.d_model, 2) if has("next_sentence") else None
        self.sequence = SequenceHead(config) if has("sequence") else None
        self.tokens = TokenHead(config) if has("tokens") else None
        self.replaced = ReplacedHead(config) if has("replaced") else None

    def forward(
        self,
        ids: Operand,
        *,
        token_types: Operand | None = None,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
        key_lengths: Tensor | None = None,
        outputs: Collection[str] | None = None,
        output_hidden_states: bool = False,
        only: str | None = None,
    ) -> BertOutput:
        """The hidden states, and the outputs of the heads.

        Args:
            ids: token ids (B, Q), or Ragged with values (N,): documents one after another, without padding.
            token_types: integers of the shape of ids; None: all 0.
            lengths: (B,) the number of tokens of each row of padded ids. Padding comes after them; no token attends to it,
                and its own hidden states are meaningless.
            attention_mask: (B, Q) bool, True is a token; an alternative to lengths. The first token is pooled. Positions
                are counted from the start of the row, as in transformers (RoBERTa: from the first token).
            key_lengths: (R,) of Ragged ids: the first so many tokens of each row are seen; those after them see these and are seen by
                none, as the mask tokens that lengthen a query of ColBERT.
            outputs: which of config.outputs to compute; None: all of them, (): only the hidden states.
            output_hidden_states: also return the hidden states of the embeddings and of every layer.
            only: "first" or "last", of Ragged ids: last_hidden_state has this token of each row alone, Ragged with values (R, M) and the
                same bits, and the last layer computes no other.

        Raises:
            ShapeError, ValueError: ids of a wrong shape, dtype or range; rows longer than config.max_tokens; outputs that are not in
                config.outputs; an empty row where the first token is pooled; `only` with padded ids, with outputs of other tokens or
                with output_hidden_states.
        """
        wanted = self._wanted(outputs)
        check_only(_NAME, only, ids, output_hidden_states)
        if others := sorted(set(wanted) - _OF_FIRST_TOKEN) if only == "first" else wanted if only else ():
            raise ValueError(f"{_NAME}: with only={only!r} there is no output {', '.join(others)}, of other tokens")
        self._check(ids, token_types)
        mask = token_ids.padding_mask(_NAME, ids, lengths, attention_mask, key_lengths)
        embedded = self.embeddings(ids, token_types)
        if self.embedding_projection is not None:
            embedded = map_values(partial(apply_linear, self.embedding_projection), embedded)
        encoded = self._encode(embedded, mask, output_hidden_states, only)
        result = self._heads(encoded.last, wanted, attention_mask)
        return BertOutput(
            last_hidden_state=encoded.last,
            hidden_states=encoded.states,
            **{name: result[name] for name in wanted},
        )

    def _encode(self, x: Operand, mask: Mask | Tensor | None, states: bool, only: str | None) -> StackOutput:
        bias = None if self.relative_positions is None else self.relative_positions()

        rotary = None if self._rotary is None else self._rotary(x)

        def call(layer: nn.Module, _: int, x: Operand, **last: str) -> Operand:
            return layer(x, mask=mask, bias=bias, rotary=rotary, **last)

        return run_layers(self.encoder.layers, self.encoder.norm, x, call, states=states, only=only)

    def _heads(self, hidden: Operand, wanted: Collection[str], attention_mask: Tensor | None) -> dict[str, Any]:
        """The wanted outputs by name, and those that they are computed from."""
        results: dict[str, Any] = {}
        if _OF_FIRST_TOKEN & set(wanted):
            first_BM = _first_tokens(hidden, attention_mask)
            pooled_BM = None if self.pooler is None else self.pooler(first_BM)
            results["pooled"] = pooled_BM
        if "masked_lm" in wanted and self.masked_lm is not None:
            results["masked_lm"] = map_values(
                partial(self.masked_lm, embedding_VM=self.embeddings.token_embedding.weight), hidden
            )
        if "next_sentence" in wanted and self.next_sentence is not None and pooled_BM is not None:
            results["next_sentence"] = apply_linear(self.next_sentence, pooled_BM)
        if "sequence" in wanted and self.sequence is not None:
            results["sequence"] = self.sequence(first_BM, pooled_BM)
        if "tokens" in wanted and self.tokens is not None:
            results["tokens"] = map_values(self.tokens, hidden)
        if "replaced" in wanted and self.replaced is not None:
            results["replaced"] = map_values(self.replaced, hidden)
        return results

    def reads_first_tokens(self, outputs: Collection[str] | None) -> bool:
        """Whether one of these outputs of `forward` is of the first token of each row. Raises ValueError for unknown ones."""
        return not _OF_FIRST_TOKEN.isdisjoint(self._wanted(outputs))

    def _wanted(self, outputs: Collection[str] | None) -> Collection[str]:
        if outputs is None:
            return self.config.outputs
        absent = sorted(set(outputs) - set(self.config.outputs))
        if absent:
            has = ", ".join(self.config.outputs) or "none"
            raise ValueError(f"{_NAME}: the model has no output {', '.join(absent)}; its outputs: {has}")
        return outputs

    def _check(self, ids: Operand, token_types: Operand | None) -> None:
        token_ids.check_ids(_NAME, "ids", ids, self.config.vocab_size)
        token_ids.check_length(_NAME, ids, self.config.max_tokens)
        if token_types is None:
            return
        if self.embeddings.token_types is None:
            raise ValueError(f"{_NAME}: a {self.config.model_type} model has no token types")
        token_ids.check_same_shape(_NAME, ids, "token_types", token_types)
        token_ids.check_ids(_NAME, "token_types", token_types, self.config.type_vocab_size)


def _share_weights(model: BertModel, _: object = None) -> None:
    """Give layers with one number in config.layer_weights the same parameters; after loading too, which may replace them."""
    first: dict[int, nn.Module] = {}
    for layer, number in zip(model.encoder.layers, model.config.layer_weights, strict=True):
        for path, parameter in first.setdefault(number, layer).named_parameters():
            module, _, name = path.rpartition(".")
            setattr(layer.get_submodule(module), name, parameter)


def _layer(config: BertConfig) -> LayerSpec:
    has_bias = config.model_type != "nomic_bert"
    return LayerSpec(
        d_model=config.d_model,
        num_heads=config.num_heads,
        d_ff=config.d_ff,
        d_k=config.d_k,
        gated=config.is_gated,
        qkv_bias=has_bias,
        output_bias=has_bias,
        feed_forward_bias=not config.is_gated,
        down_bias=has_bias,
        norm="post",
        norm_eps=config.norm_eps,
        activation=config.activation,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )


class BertEmbeddings(nn.Module):
    """norm(token embedding + token type embedding + position embedding) (Devlin et al., "BERT", 2019, figure 2).

    Submodules: token_embedding (V, M), positions (None where they are rotary), token_types (None in DistilBERT and MPNet), norm.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.token_embedding = nn.Embedding(config.vocab_size, width)
        learned = config.rotary_base is None
        self.positions = LearnedPositions(config.max_position_embeddings, width) if learned else None
        self.token_types = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        # RoBERTa's first position is one after this; padding tokens have this position.
        self.padding_position = config.pad_token_id if config.is_roberta else None

    def forward(self, ids: Operand, token_types: Operand | None) -> Operand:
        """(..., Q, M), or Ragged (N, M), from ids (..., Q), or Ragged (N,). token_types None: all 0."""
        if self._is_plain():
            return map_values(partial(apply_dropout, self.dropout), self._embed(ids, token_types))
        x = map_values(self.token_embedding, ids)
        if self.token_types is not None:
            types = map_values(torch.zeros_like, ids) if token_types is None else token_types
            x = map_values(torch.add, x, map_values(self.token_types, types))
        return map_values(lambda values: apply_dropout(self.dropout, self.norm(values)), self._with_positions(x, ids))

    def _is_plain(self) -> bool:
        """Whether the submodules may be computed by one operation: nobody replaced them, hooked into them or traces them."""
        tables = [self.token_embedding] if self.token_types is None else [self.token_embedding, self.token_types]
        return (
            is_plain_eager()
            and all(is_plain(x, nn.Embedding) and not (x.max_norm or x.sparse or x.scale_grad_by_freq) for x in tables)
            and all(x.padding_idx is None for x in tables)
            and self.positions is not None
            and is_plain(self.positions, LearnedPositions)
            and is_plain(self.norm, nn.LayerNorm)
        )

    def _embed(self, ids: Operand, token_types: Operand | None) -> Operand:
        """The norm of the sum of the embeddings, in one operation."""
        assert self.positions is not None
        if self.padding_position is None:
            shape = values_of(ids).shape
            at = token_positions("BertEmbeddings", map_values(lambda values: values[..., None], ids), 0).expand(shape)
        else:
            at = values_of(roberta_positions(ids, self.padding_position))
        types, positions = None, self.positions.weight
        if self.token_types is not None:
            types = Lookup(self.token_types.weight, None if token_types is None else values_of(token_types))
        return map_values(
            lambda values: embedding_norm(
                Lookup(self.token_embedding.weight, values),
                types,
                Lookup(positions, at),
                weight=self.norm.weight,
                bias=self.norm.bias,
                eps=self.norm.eps,
            ),
            ids,
        )

    def _with_positions(self, x: Operand, ids: Operand) -> Operand:
        if self.positions is None:
            return x
        if self.padding_position is None:
            return self.positions(x)
        weight, positions = self.positions.weight, roberta_positions(ids, self.padding_position)
        return map_values(torch.add, x, map_values(lambda at: functional.embedding(at, weight), positions))


class Pooler(nn.Module):
    """tanh(dense(hidden state of the first token)), (B, M). Submodule: dense.

    Only BERT and ALBERT have it where they classify sequences; the others have a layer in SequenceHead instead.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)

    def forward(self, first_BM: Tensor) -> Tensor:
        return torch.tanh(apply_linear(self.dense, first_BM))


class MaskedLMHead(nn.Module):
    """Logits of the vocabulary, (..., V), from hidden states (..., M) (Devlin et al. 2019, section 3.1).

    Submodules: dense, which gives the width of the embeddings, norm, bias (V), and decoder.weight, of the shape of the token embedding;
    decoder is None where it is tied to that.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.embedding_width
        self.dense = nn.Linear(config.d_model, width)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.decoder = None if config.tie_word_embeddings else nn.Linear(width, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.activation = "gelu" if config.has_roberta_lm_head else config.activation

    def forward(self, x: Tensor, embedding_VM: Tensor) -> Tensor:
        x = self.norm(apply_linear(self.dense, x, activation=self.activation))
        decoder_VM = embedding_VM if self.decoder is None else self.decoder.weight
        return linear_map(x, decoder_VM, self.bias)


class SequenceHead(nn.Module):
    """Logits of the classes of a sequence, (B, C). Submodules: dense (None in BERT and ALBERT), output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        reads_pooled, is_electra = config.model_type in CLASSIFIES_POOLED, config.model_type == "electra"
        is_roberta = config.is_roberta or config.model_type == "jina_embeddings_v3"
        self.dense = None if reads_pooled else nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, len(config.labels))
        self.activate = torch.tanh if is_roberta else functional.gelu if is_electra else torch.relu
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.input_dropout = nn.Dropout(config.classifier_dropout if is_roberta or is_electra else 0.0)

    def forward(self, first_BM: Tensor, pooled_BM: Tensor | None) -> Tensor:
        """(B, C) from the hidden state of the first token, or in BERT from the pooler's output."""
        if self.dense is None:
            assert pooled_BM is not None
            return apply_linear(self.output, apply_dropout(self.dropout, pooled_BM))
        dense_BM = self.activate(apply_linear(self.dense, self.input_dropout(first_BM)))
        return apply_linear(self.output, apply_dropout(self.dropout, dense_BM))


class TokenHead(nn.Module):
    """Logits of the classes of each token, (..., C), from hidden states (..., M). Submodule: output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.d_model, len(config.labels))
        # DistilBERT's seq_classif_dropout is used for sequences only.
        self.dropout = nn.Dropout(config.dropout if config.model_type == "distilbert" else config.classifier_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.output, apply_dropout(self.dropout, x))


class ReplacedHead(nn.Module):
    """The logit that a token was replaced, (...), from hidden states (..., M) (Clark et al., "ELECTRA", 2020, section 2). Submodules: dense,
    output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, 1)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.output, apply_linear(self.dense, x, activation=self.activation)).squeeze(-1)


def _first_tokens(x: Operand, attention_mask: Tensor | None) -> Tensor:
    """(..., M): the hidden state of the first token of each row of (..., Q, M); (R, M) for Ragged (N, M)."""
    if isinstance(x, Ragged):
        return x.values[tokens_of_rows(_NAME, x, "first")]
    if x.shape[-2] == 0:
        raise ValueError(f"{_NAME}: the rows are empty: they have no first token to pool")
    if attention_mask is None:
        return x[..., 0, :]
    first = attention_mask.int().argmax(-1)[..., None, None]
    return x.take_along_dim(first, -2).squeeze(-2)
