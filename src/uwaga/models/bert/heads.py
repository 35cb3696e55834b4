"""What stands on top of BERT's hidden states. Letters: B Q N M V as everywhere, C classes.

The three kinds of models differ here: BERT has a pooler, whose output its classifier of sequences reads; RoBERTa and
DistilBERT classify the first token's state through a layer of their own.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from uwaga.models.bert.config import BertConfig
from uwaga.nn.batch_invariant import apply_linear
from uwaga.nn.feed_forward import ACTIVATIONS


class Pooler(nn.Module):
    """tanh(dense(the first token's state)), (B, M). Submodule: dense."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)

    def forward(self, first_BM: Tensor) -> Tensor:
        return torch.tanh(apply_linear(self.dense, first_BM))


class MaskedLMHead(nn.Module):
    """Scores of the words, (..., V), from states (..., M) (Devlin et al. 2019, section 3.1).

    Submodules: dense, norm, bias (V), and decoder.weight (V, M), None where the embedding of words stands for it.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)
        self.decoder = None if config.tie_word_embeddings else nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.activate = ACTIVATIONS["gelu" if config.is_roberta else config.activation]

    def forward(self, x: Tensor, embedding_VM: Tensor) -> Tensor:
        x = self.norm(self.activate(apply_linear(self.dense, x)))
        decoder_VM = embedding_VM if self.decoder is None else self.decoder.weight
        return apply_linear(lambda x: functional.linear(x, decoder_VM, self.bias), x)


class SequenceHead(nn.Module):
    """Scores of the classes of a whole sequence, (B, C). Submodules: dense (None in BERT), output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = None if config.model_type == "bert" else nn.Linear(config.d_model, config.d_model)
        self.output = nn.Linear(config.d_model, len(config.labels))
        self.activate = torch.tanh if config.is_roberta else torch.relu
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.input_dropout = nn.Dropout(config.classifier_dropout if config.is_roberta else 0.0)

    def forward(self, first_BM: Tensor, pooled_BM: Tensor | None) -> Tensor:
        """From the first token's state, or in BERT from the pooled one."""
        if self.dense is None:
            assert pooled_BM is not None
            return apply_linear(self.output, self.dropout(pooled_BM))
        dense_BM = self.activate(apply_linear(self.dense, self.input_dropout(first_BM)))
        return apply_linear(self.output, self.dropout(dense_BM))


class TokenHead(nn.Module):
    """Scores of the classes of each token, (..., C), from states (..., M). Submodule: output."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.output = nn.Linear(config.d_model, len(config.labels))
        # DistilBERT's setting of that name is for sequences alone.
        self.dropout = nn.Dropout(config.dropout if config.model_type == "distilbert" else config.classifier_dropout)

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.output, self.dropout(x))
