"""Reranker: how relevant passages are to a query, by a cross-encoder that reads both together.

Letters: N packed tokens, P passages.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from uwaga._base import json_files
from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import printable
from uwaga.models.bert.model import BertModel
from uwaga.models.checkpoints import directories, load_save
from uwaga.models.text.preprocessing import batches
from uwaga.models.tokenizers.loading import Tokenizer, library_errors
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.ragged import Ragged

# As of TextEncoder: activations of so many tokens stay in the cache of the processor.
_TOKENS_PER_BATCH = 2048
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}  # of torch.nn, by the last part of their names


class Ranking(NamedTuple):
    """Passages, the most relevant first; of equal scores, the first passage comes first."""

    indices: np.ndarray  # (P,) int64, into the passages
    scores: np.ndarray  # (P,) float32, descending


class Reranker:
    """A cross-encoder: BERT, RoBERTa or a relative with a classifier of one label, as sentence-transformers' CrossEncoder reads it.
    Not safe to call from two threads at once, but for `tokenize`. Pairs are packed without padding, and a pair has the same bits in any batch.

    Attributes:
        model: a BertModel with the output "sequence".
        max_tokens: the most tokens of a pair that the model reads, special ones included.
        has_sigmoid: whether scores are between 0 and 1, as the model's configuration says.
    """

    def __init__(self, model: BertModel, tokenizer: Tokenizer, *, max_tokens: int, has_sigmoid: bool) -> None:
        self.model, self._tokenizer = model, tokenizer
        self.max_tokens, self.has_sigmoid = max_tokens, has_sigmoid
        # One of its own: a tokenizer that truncates for a moment would do so for other threads too.
        self._truncating = Backend.from_str(tokenizer.backend.to_str())
        self._truncating.enable_truncation(max_tokens, strategy="longest_first")

    @classmethod
    def load(
        cls, path_or_hub_id: str | os.PathLike[str], *, dtype: torch.dtype | None = None, revision: str | None = None
    ) -> "Reranker":
        """Load a directory that sentence-transformers or transformers wrote, or a hub id.

        Args:
            path_or_hub_id, revision: as uwaga.models.load.
            dtype: of weights and arithmetic; None for the dtype that the weights are stored in.

        Raises:
            CheckpointError: files that are wrong, or a model without a classifier of one label.
        """
        folder = directories.transformer(directories.find(path_or_hub_id, revision))
        model = load_save.load(folder, dtype=dtype)
        if not isinstance(model, BertModel) or "sequence" not in model.config.outputs:
            raise CheckpointError(
                f"{folder} is not a cross-encoder of the BERT family: it has no classifier of sequences; "
                "an embedding model is loaded by TextEncoder"
            )
        if len(model.config.labels) != 1:
            raise CheckpointError(
                f"{folder} classifies sequences into {len(model.config.labels)} labels; a reranker has one"
            )
        return cls(
            model,
            Tokenizer.load(folder),
            max_tokens=_max_length(folder, model.config.max_tokens),
            has_sigmoid=_has_sigmoid(folder),
        )

    def rank(self, query: str, passages: Sequence[str], *, top: int | None = None, overflow: str = "error") -> Ranking:
        """The passages by their relevance to the query.

        Args:
            query: a text.
            passages: texts; none may be empty.
            top: return the best so many; None: all.
            overflow: what to do with pairs of more than `max_tokens` tokens: "error" raises; "truncate" takes tokens from the end
                of the longer text, as sentence-transformers does.

        Raises:
            ValueError: an empty query, a passage that is empty or with the query too long, whose number is in the message, or a wrong
                option.
        """
        if isinstance(passages, str):
            raise ValueError("Reranker: passages must be a sequence of strings, not one string")
        if top is not None and top < 1:
            raise ValueError(f"Reranker: top must be at least 1, or None, not {top}")
        scores = self.scores([(query, passage) for passage in passages], overflow=overflow)
        order = np.argsort(-scores, kind="stable")[:top]
        return Ranking(order, scores[order])

    def scores(self, pairs: Sequence[tuple[str, str]], *, overflow: str = "error", raw: bool = False) -> np.ndarray:
        """(P,) float32: a score for each pair of a query and a passage. raw: without the sigmoid. The rest as `rank`."""
        if overflow not in ("error", "truncate"):
            raise ValueError(f"Reranker: overflow must be 'error' or 'truncate', not {overflow!r}")
        encodings = self.tokenize(pairs)
        for number, encoding in enumerate(encodings):
            if len(encoding) > self.max_tokens:
                if overflow == "error":
                    counts = (
                        f"has {len(encoding):,} tokens with the query, and the model takes at most {self.max_tokens:,}"
                    )
                    raise ValueError(f"Reranker: passage {number} {counts}; set the option overflow to truncate")
                encodings[number] = self._truncated(pairs[number])
        logits = [torch.zeros(0)]
        for batch in batches([len(each) for each in encodings], _TOKENS_PER_BATCH):
            logits.append(self._logits(encodings[batch]))
        scores = torch.cat(logits).numpy()
        return sigmoid(scores) if self.has_sigmoid and not raw else scores

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> list[Encoding]:
        """The tokens of each pair, special ones included, however many. Raises ValueError."""
        for number, (query, passage) in enumerate(pairs):
            if not isinstance(query, str) or not query or query.isspace():
                raise ValueError("Reranker: the query must be a string that is not empty")
            if not isinstance(passage, str):
                raise ValueError(f"Reranker: passage {number} must be a string, not {type(passage).__name__}")
            if not passage or passage.isspace():
                raise ValueError(f"Reranker: passage {number} is empty")
        with library_errors(self._tokenizer.path):
            return self._tokenizer.backend.encode_batch_fast(list(pairs))

    def _truncated(self, pair: tuple[str, str]) -> Encoding:
        with library_errors(self._tokenizer.path):
            return self._truncating.encode(*pair)

    def _logits(self, encodings: Sequence[Encoding]) -> torch.Tensor:
        """(P,) float32 of P pairs, in one pass."""
        device = next(self.model.parameters()).device
        offsets = torch.tensor([0, *np.cumsum([len(each) for each in encodings])], device=device)
        ids, types = (
            Ragged(torch.tensor([number for each in columns for number in each], device=device), offsets)
            for columns in ([each.ids for each in encodings], [each.type_ids for each in encodings])
        )
        has_types = self.model.config.type_vocab_size > 1
        with evaluation_mode(self.model):
            result = self.model(ids, token_types=types if has_types else None, outputs=("sequence",)).sequence
        return result[:, 0].float().cpu()


def sigmoid(scores_P: np.ndarray) -> np.ndarray:
    """(P,) float32, one number after another: an array at a time, a number would have other last bits at other places."""
    each_P = [1 / (1 + math.exp(-x)) if x > -80 else math.exp(x) for x in scores_P.tolist()]
    return np.array(each_P, np.float32)


def _max_length(folder: Path, most: int) -> int:
    """Of tokenizer_config.json, and no more than `most`."""
    length = (json_files.optional(folder / "tokenizer_config.json") or {}).get("model_max_length")
    if not isinstance(length, int | float) or isinstance(length, bool) or not 0 < length < most:
        return most
    return int(length)


def _has_sigmoid(folder: Path) -> bool:
    """The activation that sentence-transformers applies to the logit of one label: what the files say, of any of its versions, or
    a sigmoid."""
    config = json_files.read(folder / "config.json")
    own = json_files.optional(folder / "config_sentence_transformers.json") or {}
    nested = config.get("sentence_transformers")
    name = (
        own.get("activation_fn")
        or (nested.get("activation_fn") if isinstance(nested, dict) else None)
        or config.get("sbert_ce_default_activation_function")
        or "Sigmoid"
    )
    last = str(name).rpartition(".")[2]
    if last not in _ACTIVATIONS:
        raise CheckpointError(
            f"{folder}: its activation_fn is {printable(str(name))}; Reranker has Sigmoid and Identity"
        )
    return _ACTIVATIONS[last]
