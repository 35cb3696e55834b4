"""Reranker: the relevance of passages to a query, by a cross-encoder that reads both together, or by a causal language model, whose score is
in the logits of the token after a pair (Zhang et al., "Qwen3 Embedding", 2025; sentence-transformers' module LogitScore).

Letters: N packed tokens, P passages or pairs, M model width.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np
import torch
from tokenizers import Encoding
from tokenizers import Tokenizer as Backend
from torch import Tensor

from uwaga._base import keywords, untrusted
from uwaga._base.arguments import check, check_iterable
from uwaga._base.errors import CheckpointError, UnsupportedModelError
from uwaga._base.terminal import printable, short
from uwaga.encode import chat_template, colbert, sentence_config, sentence_head
from uwaga.encode.chat_template import ChatTemplate
from uwaga.encode.inference import TOKENS_PER_BATCH, batches, pool
from uwaga.encode.preprocessing import reason_against_text
from uwaga.encode.report import not_finite
from uwaga.integrations.transformers.ragged_classifier import RaggedClassifier
from uwaga.models import opening
from uwaga.models.checkpoints import directories, load_save, sentence_files
from uwaga.models.checkpoints.sentence_files import SentenceModule, SentenceModules
from uwaga.models.families import family_of, model_types
from uwaga.models.families.bert import COLBERT
from uwaga.models.model import Model
from uwaga.models.tokenizers.loading import load_tokenizer
from uwaga.models.tokenizers.tokenizer import Tokenizer, check_text, library_errors
from uwaga.models.transformer import Transformer
from uwaga.models.transformers_model import TransformersModel
from uwaga.nn.evaluation_mode import evaluation_mode
from uwaga.ops.engine_choice import Choice
from uwaga.ops.linear.api import linear_map
from uwaga.ops.ragged import Ragged
from uwaga.ops.validation import is_integer

_NO_CLASSIFIER = "is no cross-encoder: it has no classifier of sequences; uwaga.TextEncoder, `uwaga encode` and `uwaga serve` take an embedding model"
_NO_INSTRUCTION = "Reranker: an instruction is for causal language models, such as Qwen3-Reranker"
_ACTIVATIONS = {"Sigmoid": True, "Identity": False}  # classes of torch.nn
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_CARD = (  # from the model card of Qwen3-Reranker
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: '
    f"{{{{ messages[-3].content if messages | length > 2 else '{_INSTRUCTION}' }}}}\n<Query>: {{{{ messages[-2].content }}}}\n"
    "<Document>: {{ messages[-1].content }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n\n"
)
_CARD_FAMILY = "qwen3"  # the family of Qwen3-Reranker, whose first files have the chat template of Qwen3
_CARD_INSTEAD = "its chat template carries no pair, and texts are those of Qwen3-Reranker's card"

Score = Callable[[Ragged, Ragged], Tensor]  # from the ids of P pairs and their token types to (P,) float32


class Ranking(NamedTuple):
    """Passages, the most relevant first. If scores are equal, the first passage comes first."""

    indices: np.ndarray  # (P,) int64, into the passages
    scores: np.ndarray  # (P,) float32, descending


class Reranker:
    """Score pairs of a query and a passage, with a model that CrossEncoder reads.

    The models are those of sentence-transformers' CrossEncoder:

    - BERT, RoBERTa or a relative with a classifier of one label, or a classifier of another family by transformers.
    - An encoder with modules that compute a score from its pooled states.
    - A causal language model that answers yes or no, such as Qwen3-Reranker. Its score is the difference of these tokens' logits.

    Pairs are packed without padding, and a pair has the same bits in any batch. Only `tokenize` may run in several threads at once.

    Attributes:
        model: a Transformer with the output "sequence" or with logits, a RaggedClassifier of transformers' model, or an encoder.
        tokenizer: the model's tokenizer.
        max_tokens: the most tokens of a pair that the model reads, special tokens included.
        has_sigmoid: whether scores are between 0 and 1, as the model's configuration says.
        prompt: text before every query, or the system message of the chat template, as the directory says.
        instruction: the task that a causal language model judges by, instead of `prompt`. None: `prompt`, or the text of the model's
            card. `load` sets it.
    """

    def __init__(
        self,
        model: Model | RaggedClassifier,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        has_sigmoid: bool,
        score: Score | None = None,
        chat: ChatTemplate | None = None,
        instruction: str | None = None,
        prompt: str = "",
        truncation_side: str | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_tokens, self.has_sigmoid = max_tokens, has_sigmoid
        self._chat, self.instruction, self.prompt = chat, instruction, prompt
        if score is None:
            reads_types = isinstance(model, RaggedClassifier | TransformersModel) or model.config.type_vocab_size > 1
            score = partial(_classified, model, reads_types)
        self._score = score
        # A copy truncates, since truncation of the tokenizer itself would change it for other threads too.
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
            path_or_hub_id, revision: as `uwaga.models.load`.
            dtype: dtype of weights and arithmetic. None: the dtype of the stored weights, or float32 if that is float16.
            instruction: for a causal language model, what makes a passage relevant, such as "Given a question, find its answer".

        Raises:
            CheckpointError: a file is wrong; or the model has neither a classifier of one label nor logits with tokens for yes and no; or
                its family has no table in uwaga, and transformers is missing or the weights are not in safetensors.
            ValueError: an instruction for a model that reads none.
        """
        keywords.refuse(other, Reranker.load)
        root = directories.find(path_or_hub_id, revision)
        modules = sentence_files.modules(root)
        folder, is_saved = modules.transformer, modules.is_listed
        path, config = root / sentence_files.MODEL, folder / "config.json"
        described, stated = untrusted.read_json(config, missing_ok=True), untrusted.read_json(path, missing_ok=True)
        if stated.get("model_type") in colbert.MODEL_TYPES or described.get("architectures") == [COLBERT]:
            raise CheckpointError(
                f"{root} holds a ColBERT model, which gives a vector to every token: uwaga.TextEncoder with output='tokens' and "
                "`uwaga store add` take it"
            )
        settings = sentence_files.read(folder, is_module=is_saved)
        stated = stated if is_saved else {}  # sentence-transformers does not read it then
        prompt = _prompt(root, modules, stated, settings) if is_saved else ""
        chat = chat_template.read(root, settings, is_listed=is_saved)
        chat = chat and for_pairs(chat, None if is_saved else described.get("model_type"))
        has_sigmoid = _has_sigmoid(path, stated, config, described)
        is_classifier = not modules.pooling and opening.is_classifier(folder)
        check(instruction is None or not (modules.pooling or is_classifier), _NO_INSTRUCTION)
        model: Any
        score = None
        if modules.pooling:
            tokenizer = load_tokenizer(folder, lowercase=settings.lowercase, allows_types=True)
            tokenizer = tokenizer if chat is None else tokenizer.without_special_tokens()
            model, score = _pooled(root, modules, tokenizer, dtype, described)
        elif is_classifier:
            model = opening.read_classifier(folder, dtype)
            tokenizer = load_tokenizer(folder, lowercase=settings.lowercase, allows_types=True)
        else:
            try:
                model = load_save.load_folder(folder, dtype)
            except UnsupportedModelError as refusal:
                of_setting = f"; {refusal}" if described.get("model_type") in model_types() else ""
                raise CheckpointError(f"{folder} {_NO_CLASSIFIER}{of_setting}") from refusal
            tokenizer = load_tokenizer(folder, lowercase=settings.lowercase)
            if model.config.is_causal:
                score = logit_score(folder, modules.others, model, tokenizer.backend)
                has_place = instruction is None or chat is None or chat.reads_prompt()
                check(has_place, f"Reranker: the template of {folder} has no place for an instruction")
            elif instruction is not None:
                raise ValueError(_NO_INSTRUCTION)
            elif "sequence" not in model.config.outputs:
                raise CheckpointError(f"{folder} {_NO_CLASSIFIER}")
            elif len(model.config.labels) != 1:
                raise CheckpointError(
                    f"{folder} classifies sequences into {len(model.config.labels)} labels; a reranker has one"
                )
            else:
                score = partial(_classified, model, _reads_types(model, folder, described))
        most = (model if is_classifier else model.config).max_tokens or sys.maxsize
        return cls(
            model,
            tokenizer,
            max_tokens=min(most, settings.max_tokens or most),
            has_sigmoid=has_sigmoid,
            score=score,
            chat=chat,
            instruction=instruction,
            prompt=prompt,
            truncation_side=settings.truncation_side,
        )

    def __repr__(self) -> str:
        weight = next(self.model.parameters())
        return f"Reranker({str(self.tokenizer.path.parent)!r}, max_tokens={self.max_tokens}, {weight.dtype}, {weight.device})"

    def explain(self) -> Choice:
        """Return what computes the scores, in the words of `TextEncoder.explain`."""
        choice = self.model.choice if isinstance(self.model, RaggedClassifier) else self.model.explain()
        instead = f"; {self._chat.instead}" if self._chat is not None and self._chat.instead else ""
        return choice._replace(reason=choice.reason + instead)

    @property
    def truncates_left(self) -> bool:
        """Whether truncation removes the beginning of a pair's longer text."""
        return self._side == "left"

    def rank(
        self, query: str, passages: Sequence[str], *, top: int | None = None, overflow: str = "error", **other: Never
    ) -> Ranking:
        """Sort passages by their relevance to the query.

        Args:
            query: a text.
            passages: texts that are not empty.
            top: the number of passages to return. None: all.
            overflow: treatment of pairs with more than `max_tokens` tokens. "error" raises. "truncate" removes tokens from the end of
                the longer text, or from its beginning if the directory says truncation_side "left", as sentence-transformers does.

        Raises:
            ValueError: the query is empty; a passage is empty, too long with the query, or has a score that is NaN or infinite, and the
                message has its number; or an option is wrong.
        """
        keywords.refuse(other, Reranker.rank)
        check_iterable(passages, "Reranker: passages", "strings")
        is_count = top is None or (is_integer(top) and top >= 1)
        check(is_count, f"Reranker: top must be a whole number of at least 1, or None, not {top!r}")
        scores = self.scores([(query, passage) for passage in passages], overflow=overflow)
        order = np.argsort(-scores, kind="stable")[:top]
        return Ranking(order, scores[order])

    def scores(
        self, pairs: Sequence[tuple[str, str]], *, overflow: str = "error", raw: bool = False, **other: Never
    ) -> np.ndarray:
        """Compute the score of each pair of a query and a passage, (P,) float32.

        Args:
            pairs, overflow: P pairs of texts; as `rank`.
            raw: return logits, without the sigmoid.

        Raises:
            ValueError: as `rank`.
        """
        keywords.refuse(other, Reranker.scores)
        logits = self.logits(pairs, overflow=overflow)
        if not np.isfinite(logits).all():
            number = int(np.isfinite(logits).argmin())
            reason = not_finite("score", next(self.model.parameters()).dtype)
            raise ValueError(f"Reranker: passage {number} {reason}")
        return sigmoid(logits) if self.has_sigmoid and not raw else logits

    def logits(self, pairs: Sequence[tuple[str, str]], *, overflow: str = "error") -> np.ndarray:
        """Compute scores without the sigmoid, (P,) float32; they may be NaN or infinite."""
        is_known = overflow in ("error", "truncate")
        check(is_known, f"Reranker: overflow must be 'error' or 'truncate', not {overflow!r}")
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
        parts = batches([min(len(encoding), self.max_tokens) for encoding in encodings], TOKENS_PER_BATCH)
        return torch.cat([torch.zeros(0), *(self._logits(encodings[part]) for part in parts)]).numpy()

    def tokenize(self, pairs: Sequence[tuple[str, str]]) -> list[Encoding]:
        """Return all tokens of each pair, special tokens included. Raises ValueError."""
        check_iterable(pairs, "Reranker: pairs", "pairs of a query and a passage")
        for number, pair in enumerate(pairs):
            if isinstance(pair, str | bytes) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise ValueError(f"Reranker: pair {number} must be a query and a passage, not {short(pair)}")
            query, passage = pair
            if not isinstance(query, str) or not query or query.isspace():
                raise ValueError("Reranker: the query must be a string that is not empty")
            check_text("Reranker: the query", query)
            if (reason := reason_against_text(passage)) is not None:
                raise ValueError(f"Reranker: passage {number} {reason}")
        check_text(f"Reranker: {'prompt' if self.instruction is None else 'instruction'}", self._system)
        with library_errors(self.tokenizer.path):
            backend, prompt = self.tokenizer.backend, self._system
            if self._chat is None:
                return backend.encode_batch_fast([(prompt + query, text) for query, text in pairs])
            return backend.encode_batch_fast(self._chat.texts(pairs, prompt=prompt), add_special_tokens=False)

    @property
    def _system(self) -> str:
        return self.prompt if self.instruction is None else self.instruction

    def _whole(self, ids: list[int]) -> list[int]:
        """Return the tokens that the model reads, with the template's end if they fill it."""
        if self._chat is None or len(ids) < self.max_tokens:
            return ids
        end = self._chat.end(self.tokenizer.backend, 2, self._system)[-self.max_tokens :]
        kept = ids[-self.max_tokens :] if self._side == "left" else ids[: self.max_tokens]
        return kept[: self.max_tokens - len(end)] + end

    def _logits(self, encodings: Sequence[Encoding]) -> torch.Tensor:
        """Compute the logits of P pairs in one pass, (P,) float32."""
        device = next(self.model.parameters()).device
        rows = [self._whole(encoding.ids) for encoding in encodings]
        offsets = torch.tensor([0, *np.cumsum([len(row) for row in rows])], device=device)
        of_types = [encoding.type_ids[: len(row)] for encoding, row in zip(encodings, rows, strict=True)]
        ids, types = (
            Ragged(torch.tensor([number for column in columns for number in column], device=device), offsets)
            for columns in (rows, of_types)
        )
        with evaluation_mode(self.model):
            return self._score(ids, types).cpu()


def _classified(model: Any, reads_types: bool, ids: Ragged, types: Ragged) -> Tensor:
    """Compute a Score by a classifier of one label."""
    if isinstance(model, RaggedClassifier):
        return model(ids, types.values).float()
    output = model(ids, token_types=types if reads_types else None, outputs=("sequence",), only="first")
    result: Tensor = output.sequence[:, 0].float()
    return result


def _reads_types(model: Model, folder: Path, described: Mapping[str, Any]) -> bool:
    """Whether token types change the states of a model. described: the content of config.json."""
    if isinstance(model, TransformersModel):
        return True
    kind = described.get("model_type")
    of_family = family_of(kind, str(folder)).tokenizer if kind in model_types() else None
    return model.config.type_vocab_size > 1 and opening.gives_types(folder, described, of_family)


def _prompt(
    root: Path, modules: SentenceModules, stated: Mapping[str, Any], settings: sentence_files.TransformerSettings
) -> str:
    """Return the text before every query, by the files of sentence-transformers.

    stated: the content of config_sentence_transformers.json. Raises CheckpointError: the directory has no reranker, or a file asks for
    something that is not computed.
    """
    path, model_type = root / sentence_files.MODEL, stated.get("model_type")
    kinds = [kind for kind, _ in modules.others]
    if modules.pooling and not ("Dense" in kinds and model_type == "CrossEncoder"):
        raise CheckpointError(
            f"{root} holds an embedding model, which has no score for a pair; give a cross-encoder, or compare vectors of uwaga.TextEncoder"
        )
    computed = ("Dense", "LayerNorm", "Normalize", "Dropout") if modules.pooling else ("LogitScore",)
    if unknown := [kind for kind in kinds if kind not in computed]:
        raise CheckpointError(
            f"{root / 'modules.json'} has modules that Reranker does not compute: {', '.join(map(printable, unknown))}; "
            "sentence_transformers.CrossEncoder reads it"
        )
    sentence_files.check(path, stated, sentence_files.MODEL)
    if model_type != "CrossEncoder":
        # sentence-transformers opens such a directory as another kind of model, without these settings.
        raise sentence_files.unsupported(path, "model_type", model_type, "'CrossEncoder'")
    task = (
        "feature-extraction" if modules.pooling else "text-generation" if modules.others else "sequence-classification"
    )
    if settings.task != task:
        raise sentence_files.unsupported(settings.path, "transformer_task", settings.task, f"{task!r}")
    sentence_config.check_no_lengths(settings)
    _, prompt = sentence_config.read_prompts(path, stated)
    if prompt and not modules.include_prompt:
        raise CheckpointError(
            f"{path}: default_prompt_name names a prompt, and the module Pooling leaves it out (include_prompt); {sentence_files.INSTEAD}"
        )
    return prompt


def _pooled(
    root: Path,
    modules: SentenceModules,
    tokenizer: Tokenizer,
    dtype: torch.dtype | None,
    described: Mapping[str, Any],
) -> tuple[Model, Score]:
    """Read a model whose states are pooled, and the Score by the modules after it.

    described: the content of config.json. Raises CheckpointError.
    """
    folder = modules.transformer
    model: Model
    try:
        model = load_save.load_folder(folder, dtype, has_head=False)
        if model.config.has_both:
            raise CheckpointError(
                f"{folder} holds a {model.config.model_type} model, and Reranker pools no states of it; {sentence_files.INSTEAD}"
            )
    except UnsupportedModelError as refusal:
        model = opening.read_states(folder, dtype, tokenizer, refusal)
    head = sentence_head.read(modules.others, model.config.d_model * len(modules.pooling), output="scores")
    if head.width != 1:
        raise CheckpointError(f"{root} gives {head.width} scores to a pair; a reranker has one")
    reads_types = _reads_types(model, folder, described)

    def score(ids: Ragged, types: Ragged) -> Tensor:
        states = model(ids, token_types=types if reads_types else None, outputs=()).last_hidden_state
        result: Tensor = head.module(pool(states, modules.pooling))[:, 0]
        return result

    return model, score


def logit_score(folder: Path, modules: Sequence[SentenceModule], model: Transformer, backend: Backend) -> Score:
    """Return the Score of a causal language model: one logit after a pair, or a difference.

    modules: the modules after the Transformer. Raises CheckpointError: the model has no logits; or no module LogitScore names tokens, and
    the tokenizer has no tokens "yes" and "no".
    """
    if not (model.config.is_causal and "logits" in model.config.outputs):
        raise CheckpointError(f"{folder} has no logits of a next token, which a reranker of this family is read from")
    path = next((module.folder / "config.json" for module in modules if module.kind == "LogitScore"), None)
    if path is None:
        true_id, false_id = backend.token_to_id("yes"), backend.token_to_id("no")
        if true_id is None or false_id is None:
            raise CheckpointError(
                f"{folder} is no reranker: its tokenizer lacks the tokens yes and no, and it has no module LogitScore"
            )
    else:
        settings = untrusted.read_json(path)
        sentence_files.check(path, settings, "LogitScore")
        for name in ("true_token_id", "false_token_id"):
            number = settings.get(name)
            is_id = type(number) is int and 0 <= number < model.config.vocab_size
            if not is_id and not (number is None and name == "false_token_id"):
                raise CheckpointError(
                    f"{path}: {name} must be a token of the vocabulary, not {printable(repr(number))}"
                )
        true_id, false_id = settings["true_token_id"], settings.get("false_token_id")
    rows = [true_id] if false_id is None else [true_id, false_id]

    def score(ids: Ragged, _: Ragged) -> Tensor:
        states_PM = model(ids, outputs=(), only="last").last_hidden_state.values
        assert model.lm_head is not None
        decoder = model.lm_head.decoder
        table_VM = model.output_embeddings.token_embedding.weight if decoder is None else decoder.weight
        # One or two rows of the output projection are multiplied, instead of the whole vocabulary.
        logits_P2 = model.lm_head.cap(linear_map(states_PM, table_VM[rows]).float())
        return logits_P2[:, 0] if false_id is None else logits_P2[:, 0] - logits_P2[:, 1]

    return score


def for_pairs(chat: ChatTemplate, family: object) -> ChatTemplate:
    """Return the chat template of a reranker. Raises CheckpointError: it leaves out a text.

    family: the model type, if sentence-transformers did not save the directory. Such directories of Qwen3-Reranker have the template of
    Qwen3, which has no place for a pair, so the template of Qwen3-Reranker's card replaces it.
    """
    if not (missing := chat.missing_roles()):
        return chat
    if family == _CARD_FAMILY:
        return ChatTemplate(_CARD, chat.path, {}, instead=_CARD_INSTEAD)
    raise CheckpointError(
        f"{chat.path}: its chat template leaves out the message of the role {' and of the role '.join(missing)}, so that a pair has no "
        "score; write a template for the roles system, query and document to chat_template.jinja"
    )


def sigmoid(scores_P: np.ndarray) -> np.ndarray:
    """Compute the sigmoid (P,) float32 of single numbers: arrays have other last bits."""
    return np.array([1 / (1 + math.exp(-x)) if x > -80 else math.exp(x) for x in scores_P.tolist()], np.float32)


def _has_sigmoid(path: Path, model: Mapping[str, Any], config: Path, described: Mapping[str, Any]) -> bool:
    """Whether sentence-transformers applies a sigmoid to the logit.

    path, model: config_sentence_transformers.json and its content. config, described: config.json. Raises CheckpointError.
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
        raise sentence_files.unsupported(
            file, key, name, " or ".join(f"torch.nn.{activation}" for activation in _ACTIVATIONS)
        )
    return _ACTIVATIONS[last]
