"""Reranker: how relevant passages are to a query, by a cross-encoder that reads both together.

Letters: N packed tokens, P passages.
"""

import math
import os
import sys
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
from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier
from uwaga.models.bert.model import BertModel
from uwaga.models.bert.names import COLBERT
from uwaga.models.checkpoints import directories, load_save, modules_json
from uwaga.models.checkpoints.modules_json import SentenceModule
from uwaga.models.rotary.model import RotaryModel
from uwaga.models.text import colbert, foreign, logit_score
from uwaga.models.text.logit_score import LogitScore
from uwaga.models.text.preprocessing import batches
from uwaga.models.tokenizers.loading import Tokenizer, library_errors
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.engine_choice import Choice
from uwaga.ops.ragged import Ragged

# As of TextEncoder: activations of so many tokens stay in the cache of the processor.
_TOKENS_PER_BATCH = 2048
_NO_CLASSIFIER = "is no cross-encoder: it has no classifier of sequences; uwaga.TextEncoder, `uwaga encode` and `uwaga serve` take an embedding model"
_NO_INSTRUCTION = "Reranker: an instruction is for causal language models, such as Qwen3-Reranker"
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}  # of torch.nn, by the last part of their names


class Ranking(NamedTuple):
    """Passages, the most relevant first; of equal scores, the first passage comes first."""

    indices: np.ndarray  # (P,) int64, into the passages
    scores: np.ndarray  # (P,) float32, descending


class Reranker:
    """A cross-encoder, as sentence-transformers' CrossEncoder reads it: BERT, RoBERTa or a relative with a classifier of one label, one of
    any other family by transformers, or a causal language model that answers yes or no, such as Qwen3-Reranker, whose score is the
    difference of these tokens' logits.

    Pairs are packed without padding, and a pair has the same bits in any batch. Not safe to call from two threads at once, but for
    `tokenize`.

    Attributes:
        model: a BertModel with the output "sequence", a RotaryModel with logits, or a RaggedClassifier of transformers' model.
        max_tokens: the most tokens of a pair that the model reads, special ones included.
        has_sigmoid: whether scores are between 0 and 1, as the model's configuration says.
        instruction: what a causal language model is told to judge by; None: as its directory or its card says. Set by `load`.
    """

    def __init__(
        self,
        model: BertModel | RotaryModel | RaggedClassifier,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        has_sigmoid: bool,
        logit_score: LogitScore | None = None,
        instruction: str | None = None,
    ) -> None:
        self.model, self._tokenizer = model, tokenizer
        self.max_tokens, self.has_sigmoid = max_tokens, has_sigmoid
        self._logit_score, self.instruction = logit_score, instruction
        # One of its own: a tokenizer that truncates for a moment would do so for other threads too.
        self._truncating = Backend.from_str(tokenizer.backend.to_str())
        self._truncating.enable_truncation(max_tokens, strategy="longest_first")

    @classmethod
    def load(
        cls,
        path_or_hub_id: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        instruction: str | None = None,
    ) -> "Reranker":
        """Load a directory that sentence-transformers or transformers wrote, or a hub id.

        Args:
            path_or_hub_id, revision: as uwaga.models.load.
            dtype: of weights and arithmetic; None for the dtype that the weights are stored in.
            instruction: of a causal language model, what makes a passage relevant, as "Given a question, find its answer".

        Raises:
            CheckpointError: files that are wrong, or a model without a classifier of one label, and no causal language model with
                tokens for yes and no; a classifier of a family that is not uwaga's own, without transformers, or not in safetensors.
            ValueError: an instruction for a model that reads none.
        """
        found = directories.find(path_or_hub_id, revision)
        folder, modules = _modules(found)
        is_classifier = foreign.is_classifier(folder)
        if is_classifier and instruction is not None:
            raise ValueError(_NO_INSTRUCTION)
        if is_classifier:
            classifier = foreign.load_classifier(folder, dtype)
            return cls(
                classifier,
                Tokenizer.load(folder, allows_types=True),
                max_tokens=_max_length(folder, classifier.config.max_tokens or sys.maxsize),
                has_sigmoid=_has_sigmoid(folder),
            )
        if foreign.is_needed(folder):
            raise CheckpointError(f"{folder} {_NO_CLASSIFIER}")
        model = load_save.load(folder, dtype=dtype)
        if isinstance(model, RotaryModel):
            tokenizer = Tokenizer.load(folder)
            score = logit_score.read(folder, modules, model, tokenizer.backend)
            if instruction is not None and not score.template.has_instruction():
                raise ValueError(f"Reranker: the template of {folder} has no place for an instruction")
            return cls(
                model,
                tokenizer,
                max_tokens=_max_length(folder, model.config.max_tokens),
                has_sigmoid=_has_sigmoid(folder),
                logit_score=score,
                instruction=instruction,
            )
        if instruction is not None:
            raise ValueError(_NO_INSTRUCTION)
        if not isinstance(model, BertModel) or "sequence" not in model.config.outputs:
            raise CheckpointError(f"{folder} {_NO_CLASSIFIER}")
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

    def explain(self) -> Choice:
        """What computes the scores: engine "uwaga", a model of ours; "transformers, packed" or "transformers, one by one", as
        `TextEncoder.explain`."""
        if isinstance(self.model, RaggedClassifier):
            return self.model.choice
        return Choice("uwaga", f"{self.model.config.model_type} is a family of uwaga's own", {})

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
                if self._logit_score is None:
                    encodings[number] = self._truncated(pairs[number])
        logits = [torch.zeros(0)]
        for batch in batches([min(len(each), self.max_tokens) for each in encodings], _TOKENS_PER_BATCH):
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
            if self._logit_score is None:
                return self._tokenizer.backend.encode_batch_fast(list(pairs))
            render = self._logit_score.template.render
            texts = [render(query, passage, self.instruction) for query, passage in pairs]
            return self._tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)

    def _truncated(self, pair: tuple[str, str]) -> Encoding:
        with library_errors(self._tokenizer.path):
            return self._truncating.encode(*pair)

    def _whole(self, ids: list[int]) -> list[int]:
        """The tokens of a text that fits the model: where it is too long, its end is cut off, but for what follows the passage."""
        if len(ids) <= self.max_tokens:
            return ids
        assert self._logit_score is not None
        after = self._logit_score.template.after(self.instruction)
        kept = self._tokenizer.backend.encode(after, add_special_tokens=False).ids[-self.max_tokens :]
        return ids[: self.max_tokens - len(kept)] + kept

    def _logits(self, encodings: Sequence[Encoding]) -> torch.Tensor:
        """(P,) float32 of P pairs, in one pass."""
        device = next(self.model.parameters()).device
        if self._logit_score is not None:
            assert isinstance(self.model, RotaryModel)
            rows = [torch.tensor(self._whole(each.ids), device=device) for each in encodings]
            with evaluation_mode(self.model):
                return self._logit_score(self.model, Ragged.from_list(rows)).cpu()
        offsets = torch.tensor([0, *np.cumsum([len(each) for each in encodings])], device=device)
        ids, types = (
            Ragged(torch.tensor([number for each in columns for number in each], device=device), offsets)
            for columns in ([each.ids for each in encodings], [each.type_ids for each in encodings])
        )
        if isinstance(self.model, RaggedClassifier):
            with evaluation_mode(self.model):
                return self.model(ids, types.values).float().cpu()
        assert isinstance(self.model, BertModel)
        has_types = self.model.config.type_vocab_size > 1
        with evaluation_mode(self.model):
            given = types if has_types else None
            result = self.model(ids, token_types=given, outputs=("sequence",), only="first").sequence
        return result[:, 0].float().cpu()


def _modules(found: Path) -> tuple[Path, tuple[SentenceModule, ...]]:
    """The directory of the transformer, and the modules after it. Raises CheckpointError: it is no reranker."""
    modules = modules_json.read(found)
    folder = found if modules is None else modules.transformer
    settings = json_files.optional(found / "config_sentence_transformers.json") or {}
    architectures = (json_files.optional(folder / "config.json") or {}).get("architectures")
    if settings.get("model_type") in colbert.MODEL_TYPES or architectures == [COLBERT]:
        raise CheckpointError(
            f"{found} holds a ColBERT model, which gives a vector to every token: uwaga.TextEncoder.encode_tokens and "
            "`uwaga store add` take it"
        )
    if modules is None:
        return found, ()
    if modules.pooling:
        raise CheckpointError(
            f"{found} holds an embedding model, which has no score for a pair: uwaga.TextEncoder, `uwaga encode` and `uwaga serve` take it"
        )
    if unknown := [kind for kind, _ in modules.others if kind != "LogitScore"]:
        raise CheckpointError(
            f"{found / 'modules.json'} has modules that Reranker does not compute: {', '.join(map(printable, unknown))}; "
            "sentence_transformers.CrossEncoder reads it"
        )
    return modules.transformer, modules.others


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
