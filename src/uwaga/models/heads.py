"""What a Transformer computes from its hidden states. Letters: B batch, M model width, V vocabulary, C classes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga.models.configuration import Config
from uwaga.nn.plain_modules import apply_dropout, apply_linear
from uwaga.ops.linear.api import linear_map

_ACTIVATIONS = {"tanh": torch.tanh, "gelu": functional.gelu, "relu": torch.relu}


class LanguageModelHead(nn.Module):
    """Logits of the vocabulary, (..., V), from hidden states (..., M).

    Submodules: dense, which gives the width of the embeddings, and norm, as in BERT (Devlin et al. 2019, section 3.1) and ModernBERT, else
    None; decoder, None where it is tied to the token embedding; the parameter bias (V) or None.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, activation = config.embedding_width, config.head_activation
        self.dense = nn.Linear(config.d_model, width, bias=config.head_bias) if activation else None
        self.norm = config.norm_of(width) if activation else None
        self.activation = activation
        vocabulary, is_tied = config.output_vocab_size, config.tie_word_embeddings
        self.decoder = None if is_tied else nn.Linear(width, vocabulary, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if config.lm_head_bias else None
        self.factor = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        self.softcap = config.logit_softcap

    def forward(self, x: Tensor, words_VM: Tensor, *, batch_invariant: bool = True) -> Tensor:
        """words_VM: the token embedding."""
        if self.dense is not None and self.norm is not None:
            x = self.norm(apply_linear(self.dense, x, activation=self.activation))
        x = x if self.factor == 1.0 else x * self.factor
        weight_VM = words_VM if self.decoder is None else self.decoder.weight
        return self.cap(linear_map(x, weight_VM, self.bias, batch_invariant=batch_invariant))

    def cap(self, logits: Tensor) -> Tensor:
        """c * tanh(logits / c), where the model has a softcap c."""
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


class Pooler(nn.Module):
    """tanh(dense(hidden state of the first token)), (B, M). Submodule: dense."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)

    def forward(self, first_BM: Tensor) -> Tensor:
        return torch.tanh(apply_linear(self.dense, first_BM))


class SequenceHead(nn.Module):
    """Logits of the classes of a sequence, (B, C). Submodules: dense (None where it reads the pooler's output), output."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        kind, dropout = config.classifier, config.classifier_dropout
        self.dense = None if kind == "pooled" else nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, len(config.labels))
        self.activation: Any = _ACTIVATIONS.get(kind)
        self.dropout = nn.Dropout(dropout)
        self.input_dropout = nn.Dropout(0.0 if kind == "relu" else dropout)

    def forward(self, first_BM: Tensor, pooled_BM: Tensor | None) -> Tensor:
        """(B, C) from the hidden state of the first token, or from the pooler's output."""
        if self.dense is None or self.activation is None:
            assert pooled_BM is not None
            return apply_linear(self.output, apply_dropout(self.dropout, pooled_BM))
        dense_BM = self.activation(apply_linear(self.dense, self.input_dropout(first_BM)))
        return apply_linear(self.output, apply_dropout(self.dropout, dense_BM))


class TokenHead(nn.Module):
    """Logits of the classes of each token, (..., C), from hidden states (..., M). Submodule: output."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.output = nn.Linear(config.d_model, len(config.labels))
        # DistilBERT's seq_classif_dropout is used for sequences only.
        self.dropout = nn.Dropout(config.dropout if config.classifier == "relu" else config.classifier_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.output, apply_dropout(self.dropout, x))
