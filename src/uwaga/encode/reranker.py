"""Reranker: how relevant passages are to a query, by a cross-encoder that reads both together.

Letters: N packed tokens, P passages.
"""

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np
import torch
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from torch import nn

from uwaga._base import json_files, keywords
from uwaga._base.arguments import check_iterable
from uwaga._base.errors import CheckpointError, UnsupportedModelError
from uwaga._base.terminal import printable, short
from uwaga.encode import chat_template, colbert, logit_score, sentence_config, sentence_head
from uwaga.encode.chat_template import ChatTemplate
from uwaga.encode.logit_score import LogitScore
from uwaga.encode.pooling import pool
from uwaga.encode.preprocessing import batches
from uwaga.encode.report import not_finite
from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier
from uwaga.models import opening
from uwaga.models.checkpoints import directories, load_save, modules_json, sentence_files
from uwaga.models.checkpoints.modules_json import SentenceModule
from uwaga.models.families import family_of, model_types
from uwaga.models.families.bert import COLBERT
from uwaga.models.model import Model
from uwaga.models.tokenizers.loading import Tokenizer, check_text
from uwaga.models.tokenizers.tokenizer_file import library_errors
from uwaga.models.transformer import Transformer
from uwaga.models.transformers_model import TransformersModel
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.engine_choice import Choice
from uwaga.ops.ragged import Ragged
from uwaga.ops.validation import is_integer

# As of TextEncoder: activations of so many tokens stay in the cache of the processor.
_TOKENS_PER_BATCH = 2048
_NO_CLASSIFIER = "is no cross-encoder: it has no classifier of sequences; uwaga.TextEncoder, `uwaga encode` and `uwaga serve` take an embedding model"
# Those that have embeddings of token types in transformers, and read type 0 alone here, with the number of types that they have by default.
_UNTYPED_FAMILIES = {"nomic_bert": 2, "gte": 1, "jina_embeddings_v3": 1}
_NO_INSTRUCTION = "Reranker: an instruction is for causal language models, such as Qwen3-Reranker"
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}  # of torch.nn, by the last part of their names


class Ranking(NamedTuple):
    """Passages, the most relevant first; of equal scores, the first passage comes first."""

    indices: np.ndarray  # (P,) int64, into the passages
    scores: np.ndarray  # (P,) float32, descending


class PooledScore(NamedTuple):
    """The modules after the Transformer, of a cross-encoder that pools the states of a pair."""

    pooling: tuple[str, ...]
    module: nn.Module  # (P, M) -> (P, 1)

    def __call__(self, states: Ragged) -> torch.Tensor:
        result: torch.Tensor = self.module(pool(states, self.pooling))
        return result[:, 0]


class Reranker:
    """A cross-encoder, as sentence-transformers' CrossEncoder reads it: BERT, RoBERTa or a relative with a classifier of one label, one of
    any other family by transformers, any encoder with modules that make a score of its pooled states, or a causal language model that answers yes or no, such as Qwen3-Reranker, whose score is the
    difference of these tokens' logits.

    Pairs are packed without padding, and a pair has the same bits in any batch. Not safe to call from two threads at once, but for
    `tokenize`.

    Attributes:
        model: a Transformer with the output "sequence" or with logits of a next token, a RaggedClassifier of transformers' model, or an encoder.
        tokenizer: of the model.
        max_tokens: the most tokens of a pair that the model reads, special ones included.
        has_sigmoid: whether scores are between 0 and 1, as the model's configuration says.
        prompt: before every query, or for the directory's chat template, as the directory says.
        instruction: what a causal language model is told to judge by, in place of `prompt`; None: `prompt`, or as its card says. Set by
            `load`.
    """

    def __init__(
        self,
        model: Model | RaggedClassifier,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        has_sigmoid: bool,
        logit_score: LogitScore | None = None,
        pooled_score: PooledScore | None = None,
        chat: ChatTemplate | None = None,
        instruction: str | None = None,
        prompt: str = "",
        gives_types: bool = True,
        truncation_side: str | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_tokens, self.has_sigmoid = max_tokens, has_sigmoid
        self._logit_score, self._chat, self.instruction = logit_score, chat, instruction
        self._pooled_score, self.prompt, self._gives_types = pooled_score, prompt, gives_types
        # One of its own: a tokenizer that truncates for a moment would do so for other threads too.
        self._truncating = Backend.from_str(tokenizer.backend.to_str())
        self._side = side = truncation_side or tokenizer.truncation_side
        self._truncating.enable_truncation(max_tokens, strategy="longest_first", direction=side)

    @classmethod
    def load(
        cls,
        path_or_hub_id: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        instruction: str | None = None,
        **other: Never,
    ) -> "Reranker":
        """Load a directory that sentence-transformers or transformers wrote, or a hub id.

        Args:
            path_or_hub_id, revision: as uwaga.models.load.
            dtype: of weights and arithmetic; None for the dtype that the weights are stored in, or float32 in place of float16.
            instruction: of a causal language model, what makes a passage relevant, as "Given a question, find its answer".

        Raises:
            CheckpointError: files that are wrong, or a model without a classifier of one label, and no causal language model with
                tokens for yes and no; a classifier of a family that is not uwaga's own, without transformers, or not in safetensors.
            ValueError: an instruction for a model that reads none.
        """
        keywords.refuse(other, Reranker.load)
        found = _read(directories.find(path_or_hub_id, revision))
        folder, settings = found.folder, found.settings

        def made(
            model: Model | RaggedClassifier, tokenizer: Tokenizer, positions: int | None, **more: Any
        ) -> "Reranker":
            most = sys.maxsize if positions is None else positions
            return cls(
                model,
                tokenizer,
                max_tokens=min(most, settings.max_tokens or most),
                has_sigmoid=found.has_sigmoid,
                truncation_side=settings.truncation_side,
                chat=found.chat,
                prompt=found.prompt,
                **more,
            )

        if found.pooling:
            if instruction is not None:
                raise ValueError(_NO_INSTRUCTION)
            tokenizer = Tokenizer.load(folder, lowercase=settings.lowercase, allows_types=True)
            tokenizer = tokenizer if found.chat is None else tokenizer.without_special_tokens()
            encoder = _encoder(folder, tokenizer, dtype)
            head = sentence_head.read(found.others, encoder.config.d_model * len(found.pooling), output="scores")
            if head.width != 1:
                raise CheckpointError(f"{found.root} gives {head.width} scores to a pair; a reranker has one")
            pooled_score, types = PooledScore(found.pooling, head.module), _gives_types(folder)
            kinds = _UNTYPED_FAMILIES.get(encoder.config.model_type)
            if (
                found.chat is None
                and types
                and kinds is not None
                and found.described.get("type_vocab_size", kinds) != 1
            ):
                raise CheckpointError(
                    f"{folder}: its tokenizer gives token types to pairs, and {printable(encoder.config.model_type)} of uwaga reads none; "
                    f"{sentence_files.INSTEAD}"
                )
            return made(
                encoder,
                tokenizer,
                encoder.config.max_tokens,
                pooled_score=pooled_score,
                gives_types=types,
            )
        is_classifier = opening.is_classifier(folder)
        if is_classifier and instruction is not None:
            raise ValueError(_NO_INSTRUCTION)
        if is_classifier:
            classifier = opening.read_classifier(folder, dtype)
            tokenizer = Tokenizer.load(folder, lowercase=settings.lowercase, allows_types=True)
            return made(classifier, tokenizer, classifier.max_tokens)
        try:
            model = load_save.load_folder(folder, dtype)
        except UnsupportedModelError as refusal:
            raise CheckpointError(f"{folder} {_NO_CLASSIFIER}") from refusal
        tokenizer = Tokenizer.load(folder, lowercase=settings.lowercase)
        if model.config.is_causal:
            score = logit_score.read(folder, found.others, model, tokenizer.backend)
            if instruction is not None and found.chat is not None and not found.chat.reads_prompt():
                raise ValueError(f"Reranker: the template of {folder} has no place for an instruction")
            return made(model, tokenizer, model.config.max_tokens, logit_score=score, instruction=instruction)
        if instruction is not None:
            raise ValueError(_NO_INSTRUCTION)
        if "sequence" not in model.config.outputs:
            raise CheckpointError(f"{folder} {_NO_CLASSIFIER}")
        if len(model.config.labels) != 1:
            raise CheckpointError(
                f"{folder} classifies sequences into {len(model.config.labels)} labels; a reranker has one"
            )
        return made(model, tokenizer, model.config.max_tokens, gives_types=_gives_types(folder))

    def __repr__(self) -> str:
        weight = next(self.model.parameters())
        return f"Reranker({str(self.tokenizer.path.parent)!r}, max_tokens={self.max_tokens}, {weight.dtype}, {weight.device})"

    def explain(self) -> Choice:
        """What computes the scores: engine "uwaga", a model of ours; "transformers, packed" or "transformers, one by one", as
        `TextEncoder.explain`."""
        choice = self.model.choice if isinstance(self.model, RaggedClassifier) else self.model.explain()
        instead = f"; {self._chat.instead}" if self._chat is not None and self._chat.instead else ""
        return choice._replace(reason=choice.reason + instead)

    @property
    def truncates_left(self) -> bool:
        """Whether a pair that is truncated loses the beginning of its longer text, and not the end, as the directory says."""
        return self._side == "left"

    def rank(
        self, query: str, passages: Sequence[str], *, top: int | None = None, overflow: str = "error", **other: Never
    ) -> Ranking:
        """The passages by their relevance to the query.

        Args:
            query: a text.
            passages: texts; none may be empty.
            top: return the best so many; None: all.
            overflow: what to do with pairs of more than `max_tokens` tokens: "error" raises; "truncate" takes tokens from the end
                of the longer text, or from its beginning if the directory says truncation_side "left", as sentence-transformers does.

        Raises:
            ValueError: an empty query, a passage that is empty or with the query too long, or whose score is NaN or infinite, with its
                number in the message, or a wrong option.
        """
        keywords.refuse(other, Reranker.rank)
        check_iterable(passages, "Reranker: passages", "strings")
        if top is not None and (not is_integer(top) or top < 1):
            raise ValueError(f"Reranker: top must be a whole number of at least 1, or None, not {top!r}")
        scores = self.scores([(query, passage) for passage in passages], overflow=overflow)
        order = np.argsort(-scores, kind="stable")[:top]
        return Ranking(order, scores[order])

    def scores(
        self, pairs: Sequence[tuple[str, str]], *, overflow: str = "error", raw: bool = False, **other: Never
    ) -> np.ndarray:
        """(P,) float32: a score for each pair of a query and a passage. raw: without the sigmoid. Other options as `rank`."""
        keywords.refuse(other, Reranker.scores)
        logits = self.logits(pairs, overflow=overflow)
        if not np.isfinite(logits).all():
            number = int(np.isfinite(logits).argmin())
            reason = not_finite("score", next(self.model.parameters()).dtype)
            raise ValueError(f"Reranker: passage {number} {reason}")
        return sigmoid(logits) if self.has_sigmoid and not raw else logits

    def logits(self, pairs: Sequence[tuple[str, str]], *, overflow: str = "error") -> np.ndarray:
        """(P,) float32: as `scores`, without the sigmoid, and NaN or infinite where the model gives that."""
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
                if self._chat is None:
                    with library_errors(self.tokenizer.path):
                        encodings[number] = self._truncating.encode(self._system + pairs[number][0], pairs[number][1])
        logits = [torch.zeros(0)]
        for batch in batches([min(len(each), self.max_tokens) for each in encodings], _TOKENS_PER_BATCH):
            logits.append(self._logits(encodings[batch]))
        return torch.cat(logits).numpy()

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> list[Encoding]:
        """The tokens of each pair, special ones included, however many. Raises ValueError."""
        check_iterable(pairs, "Reranker: pairs", "pairs of a query and a passage")
        for number, pair in enumerate(pairs):
            if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise ValueError(f"Reranker: pair {number} must be a query and a passage, not {short(pair)}")
            query, passage = pair
            if not isinstance(query, str) or not query or query.isspace():
                raise ValueError("Reranker: the query must be a string that is not empty")
            if not isinstance(passage, str):
                raise ValueError(f"Reranker: passage {number} must be a string, not {type(passage).__name__}")
            if not passage or passage.isspace():
                raise ValueError(f"Reranker: passage {number} is empty")
            check_text("Reranker: the query", query)
            check_text(f"Reranker: passage {number}", passage)
        check_text(f"Reranker: {'prompt' if self.instruction is None else 'instruction'}", self._system)
        with library_errors(self.tokenizer.path):
            if self._chat is None:
                prompt = self._system
                return self.tokenizer.backend.encode_batch_fast([(prompt + query, text) for query, text in pairs])
            texts = [self._chat.text(*pair, prompt=self._system) for pair in pairs]
            return self.tokenizer.backend.encode_batch_fast(texts, add_special_tokens=False)

    @property
    def _system(self) -> str:
        return self.prompt if self.instruction is None else self.instruction

    def _whole(self, ids: list[int]) -> list[int]:
        """The tokens that the model reads: of a pair that fills it, the last ones are what the template puts after a passage."""
        if self._chat is None or len(ids) < self.max_tokens:
            return ids
        end = self._chat.end(self.tokenizer.backend, 2, self._system)[-self.max_tokens :]
        kept = ids[-self.max_tokens :] if self._side == "left" else ids[: self.max_tokens]
        return kept[: self.max_tokens - len(end)] + end

    def _logits(self, encodings: Sequence[Encoding]) -> torch.Tensor:
        """(P,) float32 of P pairs, in one pass."""
        device = next(self.model.parameters()).device
        rows = [self._whole(each.ids) for each in encodings]
        if self._logit_score is not None:
            assert isinstance(self.model, Transformer)
            tensors = [torch.tensor(row, device=device) for row in rows]
            with evaluation_mode(self.model):
                return self._logit_score(self.model, Ragged.from_list(tensors)).cpu()
        offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])], device=device)
        of_types = [each.type_ids[: len(row)] for each, row in zip(encodings, rows, strict=True)]
        ids, types = (
            Ragged(torch.tensor([number for each in columns for number in each], device=device), offsets)
            for columns in (rows, of_types)
        )
        if isinstance(self.model, RaggedClassifier):
            with evaluation_mode(self.model):
                return self.model(ids, types.values).float().cpu()
        gives_types = isinstance(self.model, TransformersModel) or (
            self._gives_types and self.model.config.type_vocab_size > 1
        )
        types_N = types if gives_types else None
        with evaluation_mode(self.model):
            if self._pooled_score is not None:
                states = self.model(ids, token_types=types_N, outputs=()).last_hidden_state
                return self._pooled_score(states).cpu()
            result = self.model(ids, token_types=types_N, outputs=("sequence",), only="first").sequence
        return result[:, 0].float().cpu()


class _Directory(NamedTuple):
    """What the files of a directory say beside the model."""

    root: Path
    folder: Path  # of the transformer
    described: Mapping[str, Any]  # the content of config.json
    settings: sentence_files.TransformerSettings
    others: tuple[SentenceModule, ...]  # the modules after the Transformer, without Pooling
    pooling: tuple[str, ...]  # empty: the model gives scores or logits by itself
    chat: ChatTemplate | None  # makes a text of a pair; None: the tokenizer joins them
    prompt: str  # before every query
    has_sigmoid: bool


def _read(found: Path) -> _Directory:
    """Raises CheckpointError: it is no reranker, or a file asks for something that is not computed."""
    modules = modules_json.read(found)
    folder = found if modules is None else modules.transformer
    path = found / sentence_files.MODEL
    model = json_files.optional(path) or {}
    described = json_files.optional(folder / "config.json") or {}
    if model.get("model_type") in colbert.MODEL_TYPES or described.get("architectures") == [COLBERT]:
        raise CheckpointError(
            f"{found} holds a ColBERT model, which gives a vector to every token: uwaga.TextEncoder with output='tokens' and "
            "`uwaga store add` take it"
        )
    settings = sentence_files.read(folder, is_module=modules is not None)
    if modules is None:  # sentence-transformers reads no config_sentence_transformers.json then
        has_sigmoid = _has_sigmoid(path, {}, folder / "config.json", described)
        chat = chat_template.read(found, folder, settings.path, None)
        chat = chat and logit_score.for_pairs(chat, described.get("model_type"))
        return _Directory(found, folder, described, settings, (), (), chat, "", has_sigmoid)
    is_scored = any(kind == "Dense" for kind, _ in modules.others) and model.get("model_type") == "CrossEncoder"
    if modules.pooling and not is_scored:
        raise CheckpointError(
            f"{found} holds an embedding model, which has no score for a pair: uwaga.TextEncoder, `uwaga encode` and `uwaga serve` take it"
        )
    known = ("Dense", "LayerNorm", "Normalize", "Dropout") if modules.pooling else ("LogitScore",)
    if unknown := [kind for kind, _ in modules.others if kind not in known]:
        raise CheckpointError(
            f"{found / 'modules.json'} has modules that Reranker does not compute: {', '.join(map(printable, unknown))}; "
            "sentence_transformers.CrossEncoder reads it"
        )
    sentence_files.check(path, model, sentence_files.MODEL)
    if model.get("model_type") != "CrossEncoder":
        # sentence-transformers makes another model of the directory, without its settings.
        raise sentence_files.unsupported(path, "model_type", model.get("model_type"), "'CrossEncoder'")
    task = (
        "feature-extraction" if modules.pooling else "text-generation" if modules.others else "sequence-classification"
    )
    if settings.task != task:
        raise sentence_files.unsupported(settings.path, "transformer_task", settings.task, f"{task!r}")
    for each in modules.others:
        if each.kind == "LogitScore":
            place = each.folder / "config.json"
            sentence_files.check(place, json_files.optional(place) or {}, "LogitScore")
    for key in ("query_length", "document_length", "query_expansion"):
        if settings.values.get(key) is not None:
            raise sentence_files.unsupported(settings.path, key, settings.values[key], "null")
    _, prompt = sentence_config.read_prompts(path, model)
    if prompt and not modules.include_prompt:
        raise CheckpointError(
            f"{path}: default_prompt_name names a prompt, and the module Pooling leaves it out (include_prompt); {sentence_files.INSTEAD}"
        )
    has_sigmoid = _has_sigmoid(path, model, folder / "config.json", described)
    chat = chat_template.read(found, folder, settings.path, settings.values)
    chat = chat and logit_score.for_pairs(chat, None)
    return _Directory(found, folder, described, settings, modules.others, modules.pooling, chat, prompt, has_sigmoid)


def _encoder(folder: Path, tokenizer: Tokenizer, dtype: torch.dtype | None) -> Model:
    """The model of a folder, whose states are pooled. Raises CheckpointError."""
    try:
        model = load_save.load_folder(folder, dtype, has_head=False)
    except UnsupportedModelError as refusal:
        return opening.read_states(folder, dtype, tokenizer, refusal)
    if model.config.has_both:
        raise CheckpointError(
            f"{folder} holds a {model.config.model_type} model, and Reranker pools no states of it; {sentence_files.INSTEAD}"
        )
    return model


def _gives_types(folder: Path) -> bool:
    described = json_files.read(folder / "config.json")
    kind = described.get("model_type")
    of_family = family_of(kind, str(folder)).tokenizer if kind in model_types() else None
    return opening.gives_types(folder, described, of_family)


def sigmoid(scores_P: np.ndarray) -> np.ndarray:
    """(P,) float32, one number after another: an array at a time, a number would have other last bits at other places."""
    each_P = [1 / (1 + math.exp(-x)) if x > -80 else math.exp(x) for x in scores_P.tolist()]
    return np.array(each_P, np.float32)


def _has_sigmoid(path: Path, model: Mapping[str, Any], config: Path, described: Mapping[str, Any]) -> bool:
    """The activation that sentence-transformers applies to the logit of one label: what the first of the files says, of any of its
    versions, or a sigmoid. Raises CheckpointError.

    path, model: config_sentence_transformers.json and what is in it. config, described: config.json.
    """
    nested = described.get("sentence_transformers")
    key, old = "activation_fn", "sbert_ce_default_activation_function"
    if model.get(key) is not None:
        file, name = path, model[key]
    elif isinstance(nested, dict) and key in nested:
        file, name = config, nested[key]
    else:
        file, key, name = config, old, described.get(old)
    if name is None:
        return True
    last = str(name).rpartition(".")[2]
    if not str(name).startswith("torch.") or last not in _ACTIVATIONS:
        raise sentence_files.unsupported(file, key, name, " or ".join(f"torch.nn.{each}" for each in _ACTIVATIONS))
    return _ACTIVATIONS[last]
