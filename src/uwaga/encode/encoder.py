"""TextEncoder: texts in, vectors out, for corpora.

Letters: N packed tokens, R rows of the result, M model width.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Never, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from torch.nn.functional import normalize as normalize_rows

from uwaga._base import keywords, untrusted
from uwaga._base.arguments import check, check_iterable
from uwaga._base.errors import CheckpointError, ShapeError, UnsupportedModelError
from uwaga._base.options import Count, OptionError, Size, Switch, Text, field_rules, options, read
from uwaga.data.passages import Span, Split
from uwaga.encode import colbert, sentence_config, sentence_head
from uwaga.encode.colbert import TokenVectors
from uwaga.encode.inference import SPAN_POOLING, TOKENS_PER_BATCH, Encoded, Inference, keep_freed_memory
from uwaga.encode.preprocessing import Overflow, Preprocessor, SpansOf, TokenizedText, spans_of, text_groups
from uwaga.encode.progress import Listener
from uwaga.encode.report import Report
from uwaga.encode.sentence_config import SentenceConfig
from uwaga.models import opening
from uwaga.models.checkpoints import directories, load_save, mapped_weights, sentence_files
from uwaga.models.checkpoints.tables import is_finite
from uwaga.models.families import family_of
from uwaga.models.model import Model
from uwaga.models.tokenizers.loading import load_tokenizer
from uwaga.models.tokenizers.tokenizer import Tokenizer, check_text
from uwaga.ops.engine_choice import Choice
from uwaga.ops.linear.api import linear_map
from uwaga.ops.maxsim import maxsim
from uwaga.ops.ragged import Ragged
from uwaga.ops.validation import is_integer, tensor_of

Output = Literal["vectors", "tokens"]
Task = Literal["query", "document"]


@options
class EncodeOptions:
    """The options of `TextEncoder.encode`, which describes them, with their rules and defaults."""

    output: Output = "vectors"
    task: Task | None = None
    overflow: Overflow = "error"
    overlap: Count = 0
    tokens_per_batch: Size = TOKENS_PER_BATCH
    normalize: Switch | None = None
    prompt: Text | None = None
    prompt_name: Text | None = None
    truncate_dim: Size | None = None


class Options(TypedDict, total=False):
    """What a caller may give of EncodeOptions, besides `output` and `task`."""

    overflow: str
    overlap: int
    tokens_per_batch: int
    normalize: bool | None
    prompt: str | None
    prompt_name: str | None
    truncate_dim: int | None


class TextEncoder:
    """Texts to vectors, by an encoder such as those of sentence-transformers. Not safe to call from two threads at once.

    A thread tokenises the next group of texts while the model computes the current one. Texts are packed into batches of about
    `tokens_per_batch` tokens without padding, and their vectors come out in the order of the texts.

    Attributes:
        model: of which with both stacks the encoder alone runs.
        tokenizer: its tokenizer.
        config: maximum length, prompts, pooling and what follows it.
        max_tokens: the most tokens of a text that the model reads, special tokens not counted.
        report: for each row of the last result of `encode`, the part of a text that it is from.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        config: SentenceConfig,
        *,
        truncate_dim: int | None = None,
    ) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        modes = len(config.pooling) if config.tokens is None else 1
        self._head = sentence_head.read(config.head, model.config.d_model * modes, tokens=config.tokens)
        self._truncate_dim = self._checked_dim(truncate_dim)
        self._positions = _positions(model)
        self._most = min(self._positions, config.transformer.max_tokens or sys.maxsize)
        self._special = tokenizer.num_special_tokens
        self._expansion_id = self._prepare_tokens(config.tokens)
        self.max_tokens = self._limit(None)
        self.report = Report.join(())
        keep_freed_memory()

    @classmethod
    def load(
        cls,
        path_or_hub_id: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
        truncate_dim: int | None = None,
        shared: bool = False,
        **other: Never,
    ) -> "TextEncoder":
        """Load a sentence-transformers directory, a plain Hugging Face directory (mean pooling, or the last token of a
        causal language model), or a hub id. A directory means what
        sentence-transformers makes of it: its modules Transformer, Pooling, Dense, LayerNorm, Normalize, prompts, lengths and widths.
        Families that are not uwaga's own run as the models of transformers, if that is installed (`explain` says how). Code that comes
        with a model is never run.

        Args:
            path_or_hub_id, revision: as uwaga.models.load.
            dtype: of weights and arithmetic, torch.bfloat16 for speed; None for the dtype that the weights are stored in, or float32 in place
                of float16, whose largest number many models exceed. What follows pooling is computed in float32.
            truncate_dim: so many first numbers of every vector are the result, of models that were trained for it; None: as the
                model's config says.
            shared: whether the weights, converted to `dtype`, are in memory once for all processes of this machine that load the model
                so. They are mapped from a file in the folder of caches (UWAGA_DATA), which the first process writes.

        Raises:
            CheckpointError: files that are wrong, contradict each other, need something that is not implemented, or are those of a
                cross-encoder or another model that gives no vectors; a family that is not uwaga's own, without transformers, or not in
                safetensors.
            ValueError: truncate_dim is not from 1 to the length of a vector.
        """
        if other:
            keywords.refuse(other, TextEncoder.load)
        folder = directories.find(path_or_hub_id, revision)
        config = sentence_config.read(folder)
        model, tokenizer = _read(config, dtype, shared=shared)
        _check_fit(model, tokenizer, config)
        return cls(model, tokenizer, config, truncate_dim=truncate_dim)

    def __repr__(self) -> str:
        weight = next(self.model.parameters())
        what = f"embedding_dim={self.embedding_dim}, max_tokens={self.max_tokens}, {weight.dtype}, {weight.device}"
        return f"TextEncoder({str(self.config.folder)!r}, {what})"

    def explain(self) -> Choice:
        """What computes the hidden states: engine "uwaga", a model of ours; "transformers, packed", where that was checked when the model was
        loaded to give a text the same bits in any batch; or "transformers, one by one", and `refused` says why not packed."""
        return self.model.explain()

    def _prepare_tokens(self, tokens: TokenVectors | None) -> int | None:
        """Teaches the tokenizer the prefixes of a ColBERT model; the token that lengthens its queries. Raises CheckpointError."""
        if tokens is None:
            return None
        tokenizer, folder = self.tokenizer, self.config.folder
        if colbert.register_prefixes(tokenizer.backend, tokens.prefixes):
            tokenizer.splits_at_spaces = False
        if tokens.expansion is None:
            return None
        file = folder / "tokenizer_config.json"
        return colbert.expansion_id(
            tokenizer.backend, tokens.expansion, untrusted.read_json(file, missing_ok=True), file
        )

    def _limit(self, task: str | None) -> int:
        """The most tokens of a text of a task, special ones not counted."""
        tokens = self.config.tokens
        limit = self._most if tokens is None else tokens.limit(task, self._most, self._positions)
        rule = f"TextEncoder: the limit of {limit} tokens leaves none for text beside {self._special} special tokens"
        check(limit > self._special, rule)
        return limit - self._special

    @property
    def has_token_vectors(self) -> bool:
        """Whether this is a ColBERT model, which gives a vector to every token and none to a text: `encode(texts, output="tokens")`."""
        return self.config.tokens is not None

    @property
    def truncates_left(self) -> bool:
        """Whether a text that is truncated loses its beginning, and not its end, as the directory says."""
        return (self.config.transformer.truncation_side or self.tokenizer.truncation_side) == "left"

    @property
    def embedding_dim(self) -> int:
        """The length of a vector: M times the number of pooling modes, or the width of the module Dense, at most truncate_dim. Of a
        ColBERT model, the length of a token's vector."""
        return self._head.width if self._truncate_dim is None else self._truncate_dim

    @property
    def has_unit_vectors(self) -> bool:
        """Whether the vectors have length 1 by themselves: the model's last module is Normalize, and nothing is cut off after it."""
        return self._head.normalize and self._truncate_dim is None

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name: those that the model was trained with, and "query" and "document", which are empty if it has none."""
        return {"query": "", "document": "", **self.config.prompts}

    def _checked_dim(self, truncate_dim: int | None) -> int | None:
        """Return an argument truncate_dim, or that of the model's config, which may be wider than the vectors, as in sentence-transformers."""
        width = self._head.width
        if self.config.tokens is not None:
            rule = "TextEncoder: truncate_dim is for models that give one vector to a text, and this one is ColBERT"
            check(truncate_dim is None, rule)
            return None
        if truncate_dim is None:
            return None if self.config.truncate_dim is None else min(self.config.truncate_dim, width)
        is_dim = is_integer(truncate_dim) and 1 <= truncate_dim <= width
        check(
            is_dim, f"TextEncoder: truncate_dim must be None or a whole number from 1 to {width}, not {truncate_dim!r}"
        )
        return int(truncate_dim)

    @overload
    def encode(
        self,
        texts: Iterable[str],
        *,
        output: Literal["vectors"] = ...,
        spans: None = None,
        task: str | None = ...,
        progress: bool | Listener | None = ...,
        **options: Unpack[Options],
    ) -> np.ndarray: ...
    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        output: Output = ...,
        spans: Split | Sequence[Span] | Sequence[Sequence[Span]] | None = ...,
        task: str | None = ...,
        progress: bool | Listener | None = ...,
        **options: Unpack[Options],
    ) -> Any: ...
    def encode(
        self,
        texts: str | Iterable[str],
        *,
        output: Output = "vectors",
        spans: Split | Sequence[Span] | Sequence[Sequence[Span]] | None = None,
        task: str | None = None,
        progress: bool | Listener | None = None,
        **options: Unpack[Options],
    ) -> np.ndarray | Ragged:
        """Encode texts to vectors, in the order of the texts. `report` has the part of a text that each row is from.

        - A vector for each text: (R, embedding_dim) float32.
        - With `spans`, a vector for every span, made with the whole text in sight: late chunking (Günther et al., "Late Chunking:
          Contextual Chunk Embeddings Using Long-Context Embedding Models", 2024). Ragged with values (N, embedding_dim) float32, N spans,
          and a row for each text. The model reads a text once, and pools the hidden states of a span's tokens as those of a text. A token
          is in the span that has its first character, white space before it left out; special tokens and those of the prompt are in none.
        - With output="tokens", a vector for every token, special ones included: Ragged with values (N, M) and a row for each text, or with
          overflow="windows" for each window. `uwaga.maxsim` scores them. Without a head, as of BERT or an embedding model, they are the
          hidden states in the model's dtype. A ColBERT model, in the directory of sentence-transformers' MultiVectorEncoder, of PyLate or
          of ColBERT's own code, gives float32 vectors of its projection, (N, embedding_dim): queries are lengthened by mask tokens up to
          the model's length for them, which count; of documents, punctuation and what else the model skips has no vector.

        A text has the same bits alone as in any batch.

        Args:
            texts: strings, none of them empty; or one, with `spans`.
            output: "vectors" (the default) or "tokens".
            spans: for each text the spans (start, stop) of its characters, in any order, which may overlap; of one string, its
                spans. "paragraph", "sentence", "line" or "document" finds them, so that they cover the texts.
            task: "query" or "document": what the texts are. It is the prompt, unless one is given. Of a ColBERT model it decides about the
                mask tokens, the tokens without a vector, and the most tokens of a text; None: tokens are skipped as in documents.
            overflow: what to do with texts of more than `max_tokens` tokens: "error", the default, raises; "truncate" reads the first
                `max_tokens` tokens, or the last ones if the directory says truncation_side "left"; "mean" gives the mean of the vectors
                of windows; "windows" a row for each window. With spans "windows" reads overlapping windows (algorithm 2 of the paper,
                with windows of one size): a token in two windows has the state of the first, so that the second reads its first
                `overlap` tokens for those that follow.
            overlap: tokens that neighbouring windows share; 0 by default.
            tokens_per_batch: about how many tokens the model reads in one forward pass; 2,048 by default.
            normalize: whether vectors are scaled to length 1 (after the mean over windows, and after they are cut to
                truncate_dim); None: as the model's modules say, which cut vectors after scaling them.
            prompt: put before every text (of several windows, before the first one); None: the model's default.
            prompt_name: a key of `prompts`, in place of `prompt`.
            truncate_dim: so many first numbers of every vector are the result; None: as the encoder was loaded.
            progress: True shows a progress bar on standard error; a function is called with a Progress after every batch.

        Raises:
            DocumentError: a text that is empty, too long, or not a valid Unicode string, or whose vector has an entry that is NaN or
                infinite; a text without spans, or a span that is empty, outside its text, or has no token. Its number is in the message.
            ValueError: options or spans that are not these, or contradict each other; spans for a model whose vector is the state of one
                token (pooling "cls" or "lasttoken") or depends on positions ("weightedmean"), and for a ColBERT model.
        """
        asked = _asked(output=output, task=task, **options)
        if isinstance(texts, str) and spans is not None:
            texts, spans = [texts], spans if isinstance(spans, str) else cast("Sequence[Sequence[Span]]", [spans])
        check_iterable(texts, "TextEncoder: texts", "strings")
        texts = list(texts)
        of_texts = None if spans is None else spans_of(spans, len(texts))
        inference = self._inference(asked, of_texts)
        parts = list(inference(text_groups(texts), progress, len(texts)))
        values = torch.cat([inference.empty, *(part.values for part in parts)])
        self.report = replace(Report.join([part.report for part in parts]), engine=self.explain().engine)
        if output == "vectors" and spans is None:
            vectors: np.ndarray = values.numpy()
            return vectors
        if output == "vectors":
            lengths = [np.bincount(self.report.document, minlength=len(texts))]
        else:
            lengths = [part.lengths for part in parts if part.lengths is not None]
        offsets = torch.from_numpy(np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths])))
        return Ragged(values, offsets.to(values.device))

    def encode_query(self, texts: Iterable[str], **options: Any) -> Any:
        """Encode queries: `encode` with task="query", whose prompt is empty if the model has none."""
        keywords.refuse({name: None for name in options if name == "task"}, TextEncoder.encode_query)
        return self.encode(texts, task="query", **options)

    def encode_document(self, texts: Iterable[str], **options: Any) -> Any:
        """Encode documents: `encode` with task="document", whose prompt is empty if the model has none."""
        keywords.refuse({name: None for name in options if name == "task"}, TextEncoder.encode_document)
        return self.encode(texts, task="document", **options)

    def stream(
        self,
        texts: Iterable[str] | Iterable[Sequence[str | TokenizedText]],
        *,
        output: Output = "vectors",
        spans: Split | SpansOf | None = None,
        task: str | None = None,
        skip_invalid: bool = False,
        progress: bool | Listener | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Encoded]:
        """Encode any number of texts, a group at a time: `Encoded` has the values and the report of each. Two groups of texts, and the vectors
        of one, are in memory.

        Args:
            texts: strings; or groups of them made by the caller, which have the same bits whatever came before them. Texts of type
                TokenizedText are taken as their tokens are, and may not be split into windows or spans.
            skip_invalid: leave out texts for which `encode` raises DocumentError; `Encoded.invalid` has the errors, and the report
                the numbers of the others.
            spans: as `encode` names them, or a function of a text's number and itself.
            output, task, progress and options: as `encode`.

        Raises:
            DocumentError, ValueError: as `encode`.
        """
        check_iterable(texts, "TextEncoder: texts", "strings, or groups of strings")
        asked = _asked(output=output, task=task, **options)
        return self._inference(asked, spans, skip_invalid=skip_invalid)(text_groups(texts), progress)

    def token_strings(self, text: str, *, task: str | None = None, overflow: str = "error") -> list[str]:
        """The tokens of a text that have vectors in output="tokens", as the vocabulary writes them; with overflow="windows" those of
        all windows, one after another."""
        inference = self._inference(_asked(output="tokens", task=task, overflow=overflow))
        ids_N = torch.from_numpy(inference.preprocessor.tokenize([text], 0).ids)
        kept_N = ids_N if inference.selection is None else ids_N[inference.selection(ids_N)]
        return [self.tokenizer.backend.id_to_token(number) or "" for number in kept_N.tolist()]

    def _selection(self, tokens: TokenVectors, task: str | None) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The tokens of a ColBERT model that have vectors; None: all."""
        words = tokens.skipped_words if (task or "document") in tokens.skipped_of else ()
        without = colbert.token_ids(self.tokenizer.backend, words)
        only = () if task == "query" else tokens.kept_ids
        return partial(_selected, without, only) if without or only else None

    def similarity(self, vectors_RM: np.ndarray | Ragged, others_SM: np.ndarray | Ragged) -> np.ndarray:
        """(R, S) float32: how alike the vectors are, by `config.similarity`: their "cosine", their "dot" product, or minus their
        "euclidean" or "manhattan" distance. Of a ColBERT model "maxsim" (`uwaga.maxsim`), or "meanmaxsim", which divides it by
        the query's tokens.

        vectors_RM, others_SM: (R, M) and (S, M), such as `encode` gives; of a ColBERT model, what `encode(..., output="tokens")` gives of
        queries and of documents. Raises ShapeError, ValueError: others; a score that is NaN or infinite.
        """
        if isinstance(vectors_RM, Ragged) or isinstance(others_SM, Ragged):
            if self.config.tokens is None or not (isinstance(vectors_RM, Ragged) and isinstance(others_SM, Ragged)):
                raise ValueError(
                    "TextEncoder.similarity: vectors of tokens are compared with such, of a ColBERT model; see uwaga.maxsim"
                )
            scores_RS = maxsim(vectors_RM, others_SM)
            by = vectors_RM.lengths[:, None] if self.config.similarity == "meanmaxsim" else 1
            return _finite_scores(scores_RS / by)
        rule = "a ColBERT model compares vectors of tokens: give what encode returns with output='tokens'"
        check(self.config.tokens is None, f"TextEncoder.similarity: {rule}")
        x_RM, y_SM = (
            tensor_of(x, "TextEncoder.similarity: vectors", "; encode gives such").float()
            for x in (vectors_RM, others_SM)
        )
        if x_RM.dim() != 2 or y_SM.dim() != 2 or x_RM.shape[1] != y_SM.shape[1]:
            raise ShapeError(
                f"TextEncoder.similarity: vectors must be (R, M) and (S, M), not {tuple(x_RM.shape)} and {tuple(y_SM.shape)}"
            )
        if self.config.similarity in ("euclidean", "manhattan"):
            exact = "donot_use_mm_for_euclid_dist"  # by products, the distance of equal vectors would not be 0
            p = 2.0 if self.config.similarity == "euclidean" else 1.0
            return _finite_scores(-torch.cdist(x_RM, y_SM, p=p, compute_mode=exact))
        if self.config.similarity == "cosine":
            x_RM, y_SM = normalize_rows(x_RM, dim=-1), normalize_rows(y_SM, dim=-1)
        return _finite_scores(linear_map(x_RM, y_SM))

    def _inference(
        self, asked: EncodeOptions, spans: Split | SpansOf | None = None, *, skip_invalid: bool = False
    ) -> Inference:
        config, tokens, is_of_tokens = self.config, self.config.tokens, asked.output == "tokens"
        max_tokens = self._limit(asked.task)
        for reason in self._refusals(asked, spans, max_tokens):
            raise ValueError(f"TextEncoder: {reason}")
        preprocessor = Preprocessor(
            tokenizer=self.tokenizer,
            overflow=asked.overflow,
            overlap=asked.overlap,
            max_tokens=max_tokens,
            keeps_end=self.truncates_left,
            prompt=self._prompt(asked),
            chat=config.chat,
            include_prompt=config.include_prompt or config.chat is not None,
            skip_invalid=skip_invalid,
            padding=self._padding(asked.task),
            spans=spans_of(spans, None) if isinstance(spans, str) else spans,
        )
        weight, has_head = next(self.model.parameters()), tokens is not None or not is_of_tokens
        dim = self.embedding_dim if has_head else self.model.config.d_model
        if asked.truncate_dim is not None:
            dim = self._checked_dim(asked.truncate_dim) or dim
        as_modules = "after" if is_of_tokens else "before"
        has_length_1 = self._head.normalize and has_head if asked.normalize is None else asked.normalize
        dtype = torch.float32 if has_head or asked.normalize else weight.dtype
        return Inference(
            model=self.model,
            preprocessor=preprocessor,
            tokens_per_batch=asked.tokens_per_batch,
            empty=torch.zeros(0, dim, dtype=dtype, device=weight.device if is_of_tokens else "cpu"),
            head=self._head.module if has_head else None,
            normalize=("after" if asked.normalize else as_modules) if has_length_1 else None,
            pooling=None if is_of_tokens else config.pooling,
            selection=None if tokens is None else self._selection(tokens, asked.task),
        )

    def _refusals(self, asked: EncodeOptions, spans: Split | SpansOf | None, max_tokens: int) -> Iterator[str]:
        """Why options do not go with each other or with the model."""
        config, overflow = self.config, asked.overflow
        if config.tokens is not None and asked.output != "tokens":
            yield f"{config.folder} holds a ColBERT model, which gives a vector to every token and none to a text; use output='tokens'"
        if asked.overlap and overflow not in ("mean", "windows"):
            yield f"overlap needs overflow='mean' or 'windows', not {overflow!r}"
        if asked.overlap >= max_tokens:
            yield f"overlap must be from 0 to {max_tokens - 1}, not {asked.overlap!r}"
        if config.chat is not None and overflow in ("mean", "windows"):
            yield f"overflow must be 'error' or 'truncate' for a model with a chat template, not {overflow!r}"
        if asked.prompt is not None and asked.prompt_name is not None:
            yield "prompt and prompt_name are given; the model reads one prompt"
        if asked.output == "tokens":
            if overflow == "mean":
                yield "output='tokens' has no mean over windows; use overflow='windows'"
            if asked.truncate_dim is not None:
                yield "truncate_dim is of output='vectors', not of vectors of tokens"
            if spans is not None:
                yield "spans are of output='vectors'; output='tokens' has a vector for every token"
        if spans is None:
            return
        if unfit := sorted(set(config.pooling) - set(SPAN_POOLING)):
            yield (
                f"late chunking pools all tokens of a span, and the pooling of this model is {' and '.join(unfit)}; "
                f"it needs {', '.join(SPAN_POOLING)}"
            )
        if config.chat is not None:
            yield "late chunking is not supported for a model with a chat template"
        if overflow not in ("error", "windows"):
            yield f"overflow must be 'error' or 'windows' for spans, not {overflow!r}"

    def _padding(self, task: str | None) -> tuple[int, int, bool] | None:
        """The mask tokens after queries of a ColBERT model."""
        expansion = None if self.config.tokens is None else self.config.tokens.expansion
        if task != "query" or expansion is None:
            return None
        assert self._expansion_id is not None
        return self._expansion_id, min(expansion.length, self._positions), expansion.attend

    def whole_text(self, text: str, prompt: str) -> str:
        """What is tokenised of a text: it after the prompt, or what the directory's chat template makes of both."""
        return prompt + text if self.config.chat is None else self.config.chat.text(text, prompt=prompt)

    def _prompt(self, asked: EncodeOptions) -> str:
        if asked.prompt:
            check_text("TextEncoder: prompt", asked.prompt)
        name = asked.prompt_name or (asked.task if asked.prompt is None else None)
        if name is None:
            return self.config.prompt if asked.prompt is None else asked.prompt
        prompts = self.prompts
        check(name in prompts, f"TextEncoder: prompt_name must be one of {', '.join(map(repr, prompts))}, not {name!r}")
        return prompts[name]


_OPTIONS = list(field_rules(EncodeOptions))


def _asked(**values: Any) -> EncodeOptions:
    """Raises TypeError: a name that is no option; ValueError: a value that breaks its rule."""
    if other := values.keys() - _OPTIONS:
        keywords.refuse(dict.fromkeys(sorted(other)), TextEncoder.encode, _OPTIONS)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    try:
        result: EncodeOptions = read(EncodeOptions, plain)
    except OptionError as error:
        raise ValueError(f"TextEncoder: {error}") from None
    return result


def _read(config: SentenceConfig, dtype: torch.dtype | None, *, shared: bool) -> tuple[Model, Tokenizer]:
    """The model of a folder and its tokenizer. Raises CheckpointError."""
    file = mapped_weights.shared_file(config.folder, dtype) if shared else None
    try:
        model = load_save.load_folder(config.folder, dtype, has_head=False, shared=file)
    except UnsupportedModelError as refusal:
        tokens = load_tokenizer(config.folder, lowercase=config.transformer.lowercase, allows_types=True)
        tokens = tokens if config.chat is None else tokens.without_special_tokens()
        expansion = None if config.tokens is None else config.tokens.expansion
        if expansion is not None and not expansion.attend:
            raise CheckpointError(
                f"{config.folder}: mask tokens that the others do not see are computed for uwaga's own families alone"
            ) from refusal
        return opening.read_states(config.folder, dtype, tokens, refusal, file), tokens
    if () not in family_of(model.config.model_type, "load").architectures.values():
        raise CheckpointError(
            f"{config.folder} holds a {model.config.model_type} model, and TextEncoder cannot use it; {sentence_config.PEER_READS_IT}"
        )
    tokens = load_tokenizer(config.folder, lowercase=config.transformer.lowercase)
    return model, tokens if config.chat is None else tokens.without_special_tokens()


def _check_fit(model: Model, tokenizer: Tokenizer, config: SentenceConfig) -> None:
    """Check that the files of a model agree. Raises CheckpointError, which names the file with the smallest limit."""
    model_file, limit, most = config.folder / "config.json", _positions(model), config.transformer.max_tokens
    file: Path | None = model_file
    if most is not None and most < limit:
        limit, file = most, config.transformer.limited_by
    if limit <= tokenizer.num_special_tokens:
        raise CheckpointError(
            f"{file}: the limit of {limit} tokens leaves none for text beside {tokenizer.num_special_tokens} special tokens"
        )
    if not config.include_prompt and (config.transformer.truncation_side or tokenizer.truncation_side) == "left":
        raise CheckpointError(
            f"{config.folder}: its tokenizer has truncation_side 'left', which cuts the prompt, and its Pooling include_prompt false, which "
            f"leaves the prompt out; only 'right' is supported then; {sentence_files.INSTEAD}"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{model_file}: vocab_size is {model.config.vocab_size}, but tokenizer.json has the token id {tokenizer.vocab_size - 1}"
        )


def _positions(model: Model) -> int:
    """The most tokens that a model takes, special ones included."""
    return model.config.max_tokens or sys.maxsize  # T5's positions are relative: none


def _selected(without: Sequence[int], only: Sequence[int], ids_N: torch.Tensor) -> torch.Tensor:
    """(N,) bool: all but `without`, and of `only` if it is not empty."""
    kept_N = torch.isin(ids_N, ids_N.new_tensor(without), invert=True)
    return kept_N & torch.isin(ids_N, ids_N.new_tensor(only)) if only else kept_N


def _finite_scores(scores_RS: torch.Tensor) -> np.ndarray:
    """On the CPU. Raises ValueError: one is not finite."""
    if not is_finite(scores_RS):
        row, column = (~scores_RS.isfinite()).nonzero()[0].tolist()
        value = float(scores_RS[row, column])
        raise ValueError(
            f"TextEncoder.similarity: scores must be finite, and that of vectors {row} and {column} is {value} in float32; check or scale "
            "these vectors"
        )
    return scores_RS.cpu().numpy()
