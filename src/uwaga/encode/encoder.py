"""TextEncoder: texts in, vectors out, for corpora.

Letters: N packed tokens, R rows of the result, M model width.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, Never, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from torch.nn.functional import normalize as normalize_rows

from uwaga._base import keywords
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
from uwaga.models.checkpoints import directories, load_save, sentence_files
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
    """The rules and defaults of the options that `TextEncoder.encode` describes."""

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
    """The fields of EncodeOptions except `output` and `task`, as keywords for type checkers."""

    overflow: str
    overlap: int
    tokens_per_batch: int
    normalize: bool | None
    prompt: str | None
    prompt_name: str | None
    truncate_dim: int | None


class TextEncoder:
    """Encode texts to vectors, as sentence-transformers does. Not safe to call in two threads.

    A thread tokenises the next group of texts while the model computes the current group. Texts are packed into batches of about
    `tokens_per_batch` tokens without padding. The vectors have the order of the texts.

    Attributes:
        model: computes the hidden states. Of an encoder-decoder model, only the encoder runs.
        tokenizer: the model's tokenizer.
        config: maximum length, prompts, pooling and the modules after pooling.
        max_tokens: the most tokens of a text that the model reads, without special tokens.
        report: the part of a text that each row of the last result of `encode` was computed from.
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
        self._positions = model.config.max_tokens or sys.maxsize  # T5 has no limit, since its positions are relative
        self._query_padding = None if config.tokens is None else self._read_prefixes(config.tokens)
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
        """Load a directory of sentence-transformers, a plain Hugging Face directory, or a hub id.

        A directory means what it means to sentence-transformers: its modules Transformer, Pooling, Dense, LayerNorm and Normalize, its
        prompts, lengths and widths. A plain directory gets mean pooling, or the last token if the model is a causal language model.
        Families without a table in uwaga run as models of transformers, if transformers is installed (`explain` says how). Code that
        comes with a model never runs.

        Args:
            path_or_hub_id, revision: as `uwaga.models.load`.
            dtype: dtype of weights and arithmetic, such as torch.bfloat16 for speed. None: the dtype of the stored weights, or float32 if
                that is float16, whose largest number many models exceed. Modules after pooling compute in float32.
            truncate_dim: keep the first N dimensions of each vector, for models that were trained for it. None: as the model's config
                says.
            shared: map weights that are stored in `dtype` from the files, so that processes have them in memory once. Do not overwrite
                the files then while the model is in use.

        Raises:
            CheckpointError: a file is wrong, contradicts another one, or needs something that is not implemented; the model is a
                cross-encoder or another model without vectors; or its family has no table in uwaga, and transformers is missing or the
                weights are not in safetensors.
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
        """Return what computes the hidden states.

        The engine is "uwaga" for a model of ours. "transformers, packed" is a model of transformers that passed a check when it was
        loaded: a text has the same bits in any batch. "transformers, one by one" did not pass; `refused` has the reason.
        """
        return self.model.explain()

    def _read_prefixes(self, tokens: TokenVectors) -> tuple[int, int, bool] | None:
        """Add a ColBERT model's prefixes to the tokenizer; return the `padding` of queries."""
        tokenizer, expansion = self.tokenizer, tokens.expansion
        if colbert.register_prefixes(tokenizer.backend, tokens.prefixes):
            tokenizer.splits_at_spaces = False
        if expansion is None:
            return None
        number = colbert.expansion_id(tokenizer.backend, expansion, self.config.folder / "tokenizer_config.json")
        return number, min(expansion.length, self._positions), expansion.attend

    def _limit(self, task: str | None) -> int:
        """Return the most tokens of a text of a task, without special tokens."""
        tokens, special = self.config.tokens, self.tokenizer.num_special_tokens
        limit = min(self._positions, self.config.transformer.max_tokens or sys.maxsize)
        limit = limit if tokens is None else tokens.limit(task, limit, self._positions)
        if limit <= special:
            raise ValueError(
                f"TextEncoder: the limit of {limit} tokens leaves no room for text next to {special} special tokens"
            )
        return limit - special

    @property
    def has_token_vectors(self) -> bool:
        """Whether this is a ColBERT model, whose tokens have vectors and whose texts have none."""
        return self.config.tokens is not None

    @property
    def truncates_left(self) -> bool:
        """Whether truncation removes the beginning of a text, as the directory says."""
        return (self.config.transformer.truncation_side or self.tokenizer.truncation_side) == "left"

    @property
    def embedding_dim(self) -> int:
        """The length of a vector; of a ColBERT model, the length of a token's vector.

        It is M times the number of pooling modes, or the width of the module Dense, and at most truncate_dim.
        """
        return self._head.width if self._truncate_dim is None else self._truncate_dim

    @property
    def has_unit_vectors(self) -> bool:
        """Whether the last module scales vectors to length 1 and truncate_dim keeps all of them."""
        return self._head.normalize and self._truncate_dim is None

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name; "query" and "document" are empty if it has none."""
        return {"query": "", "document": "", **self.config.prompts}

    def _checked_dim(self, truncate_dim: int | None) -> int | None:
        """Return the argument truncate_dim, or the config's, which may exceed the width."""
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
        """Encode texts to vectors, in the order of the texts.

        A text has the same bits by itself and in any batch.

        - By default, a vector for each text: (R, embedding_dim) float32.
        - With `spans`, a vector for each span, computed from the whole text: late chunking (Günther et al., "Late Chunking: Contextual
          Chunk Embeddings Using Long-Context Embedding Models", 2024). Ragged with values (N, embedding_dim) float32 of N spans, and a
          row for each text. The model reads a text once, and pooling takes the hidden states of a span's tokens. A token belongs to the
          span that has its first character that is not white space. Special tokens and the prompt's tokens belong to no span.
        - With output="tokens", a vector for each token, special tokens included: Ragged with values (N, M) and a row for each text, or
          for each window if overflow="windows". `uwaga.maxsim` scores them. A model without a head, such as BERT or an embedding model,
          gives its hidden states in its dtype. A ColBERT model (a directory of sentence-transformers' MultiVectorEncoder, of PyLate or of
          ColBERT's code) gives float32 vectors of its projection, (N, embedding_dim). Mask tokens lengthen its queries up to the model's
          length for queries, and they have vectors. Punctuation and other tokens that the model skips in documents have no vector.

        `report` has the part of a text that each row was computed from.

        Args:
            texts: strings that are not empty; or one string, with `spans`.
            output: "vectors" (the default) or "tokens".
            spans: for each text, spans (start, stop) of its characters, in any order, which may overlap; for one string, its spans.
                "paragraph", "sentence", "line" or "document" divides each text into such spans.
            task: "query" or "document". It chooses the prompt, unless you give one. For a ColBERT model it also decides about mask tokens,
                tokens without a vector, and the most tokens of a text. None: no prompt of a task, and tokens are skipped as in documents.
            overflow: treatment of texts with more than `max_tokens` tokens. "error", the default, raises. "truncate" reads the first
                `max_tokens` tokens, or the last ones if the directory says truncation_side "left". "mean" returns the mean of the
                vectors of windows, "windows" a row for each window. With spans, "windows" reads overlapping windows (algorithm 2 of the
                paper, with windows of one size): a token in two windows has the state of the first one, so the second window's first
                `overlap` tokens only serve the tokens after them.
            overlap: tokens that neighbouring windows share; 0 by default.
            tokens_per_batch: approximate tokens of one forward pass; 2,048 by default.
            normalize: scale vectors to length 1, after the mean over windows and after truncate_dim. None: as the model's modules say,
                which scale vectors before truncate_dim.
            prompt: text to put before every text, or before its first window. None: the model's default.
            prompt_name: a key of `prompts`, instead of `prompt`.
            truncate_dim: keep the first N dimensions of each vector. None: as the encoder was loaded.
            progress: True shows a progress bar on standard error; a function is called with a Progress after every batch.

        Raises:
            DocumentError: a text is empty, too long or no valid Unicode string, its vector is NaN or infinite, or it has no spans; or a
                span is empty, outside its text, or has no token. The message has the text's number.
            ValueError: options or spans break a rule or contradict each other; or spans are given for a ColBERT model, or for a model
                that pools one token ("cls", "lasttoken") or by positions ("weightedmean").
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
        """Encode queries: `encode` with task="query"; the prompt may be empty."""
        return self.encode(texts, task="query", **options)

    def encode_document(self, texts: Iterable[str], **options: Any) -> Any:
        """Encode documents: `encode` with task="document"; the prompt may be empty."""
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
        """Encode any number of texts, and yield values and report of one group at a time.

        Two groups of texts and the vectors of one group are in memory.

        Args:
            texts: strings; or groups of strings made by the caller, which have the same bits whatever comes before them. The tokens of a
                TokenizedText are used as they are; it cannot be split into windows or spans.
            skip_invalid: leave out texts for which `encode` raises DocumentError. `Encoded.invalid` has the errors, and the report has
                the numbers of the other texts.
            spans: a name that `encode` takes, or a function of a text's number and the text.
            output, task, progress, options: as `encode`.

        Raises:
            DocumentError, ValueError: as `encode`.
        """
        check_iterable(texts, "TextEncoder: texts", "strings, or groups of strings")
        asked = _asked(output=output, task=task, **options)
        return self._inference(asked, spans, skip_invalid=skip_invalid)(text_groups(texts), progress)

    def token_strings(self, text: str, *, task: str | None = None, overflow: str = "error") -> list[str]:
        """Return the tokens that have vectors in output="tokens", as the vocabulary writes them.

        With overflow="windows", the tokens of all windows follow each other.
        """
        inference = self._inference(_asked(output="tokens", task=task, overflow=overflow))
        ids_N = torch.from_numpy(inference.preprocessor.tokenize([text], 0).ids)
        kept_N = ids_N if inference.selection is None else ids_N[inference.selection(ids_N)]
        return [self.tokenizer.backend.id_to_token(number) or "" for number in kept_N.tolist()]

    def _selection(self, tokens: TokenVectors, task: str | None) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Return a function from ids (N,) to (N,) bool, the tokens with vectors; None: all."""
        words = tokens.skipped_words if (task or "document") in tokens.skipped_of else ()
        without = colbert.token_ids(self.tokenizer.backend, words)
        only = () if task == "query" else tokens.kept_ids

        def select(ids_N: torch.Tensor) -> torch.Tensor:
            kept_N = torch.isin(ids_N, ids_N.new_tensor(without), invert=True)
            return kept_N & torch.isin(ids_N, ids_N.new_tensor(only)) if only else kept_N

        return select if without or only else None

    def similarity(self, vectors_RM: np.ndarray | Ragged, others_SM: np.ndarray | Ragged) -> np.ndarray:
        """Compute the similarity of each of R vectors to each of S vectors, (R, S) float32.

        `config.similarity` names it: the "cosine", the "dot" product, or minus the "euclidean" or "manhattan" distance. For a ColBERT model
        it is "maxsim" (`uwaga.maxsim`), or "meanmaxsim", which divides that by the number of the query's tokens.

        Args:
            vectors_RM, others_SM: (R, M) and (S, M), as `encode` returns them. Of a ColBERT model, what `encode` returns with
                output="tokens" for queries and for documents.

        Raises:
            ShapeError, ValueError: vectors of another kind, or a score that is NaN or infinite.
        """
        kind = self.config.similarity
        if isinstance(vectors_RM, Ragged) or isinstance(others_SM, Ragged):
            if self.config.tokens is None or not (isinstance(vectors_RM, Ragged) and isinstance(others_SM, Ragged)):
                raise ValueError(
                    "TextEncoder.similarity: vectors of tokens are compared with such, of a ColBERT model; see uwaga.maxsim"
                )
            scores_RS = maxsim(vectors_RM, others_SM)
            if kind == "meanmaxsim":
                scores_RS = scores_RS / vectors_RM.lengths[:, None]
        else:
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
            if kind in ("euclidean", "manhattan"):
                exact = "donot_use_mm_for_euclid_dist"  # by products, the distance of equal vectors would not be 0
                scores_RS = -torch.cdist(x_RM, y_SM, p=2.0 if kind == "euclidean" else 1.0, compute_mode=exact)
            else:
                if kind == "cosine":
                    x_RM, y_SM = normalize_rows(x_RM, dim=-1), normalize_rows(y_SM, dim=-1)
                scores_RS = linear_map(x_RM, y_SM)
        if not is_finite(scores_RS):
            row, column = (~scores_RS.isfinite()).nonzero()[0].tolist()
            raise ValueError(
                f"TextEncoder.similarity: scores must be finite, and that of vectors {row} and {column} is "
                f"{float(scores_RS[row, column])} in float32; check or scale these vectors"
            )
        return scores_RS.cpu().numpy()

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
            padding=self._query_padding if asked.task == "query" else None,
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
        """Yield the rules that the options break, by themselves or with this model."""
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

    def whole_text(self, text: str, prompt: str) -> str:
        """Return what is tokenised: prompt and text, or what the chat template makes of both."""
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
    """Return checked options. Raises TypeError: an unknown option; ValueError: a wrong value."""
    if other := values.keys() - _OPTIONS:
        keywords.refuse(dict.fromkeys(sorted(other)), TextEncoder.encode, _OPTIONS)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    try:
        result: EncodeOptions = read(EncodeOptions, plain)
    except OptionError as error:
        raise ValueError(f"TextEncoder: {error}") from None
    return result


def _read(config: SentenceConfig, dtype: torch.dtype | None, *, shared: bool) -> tuple[Model, Tokenizer]:
    """Read the model of a folder and its tokenizer. Raises CheckpointError."""
    try:
        model = load_save.load_folder(config.folder, dtype, has_head=False, shared=shared)
    except UnsupportedModelError as refusal:
        tokens = load_tokenizer(config.folder, lowercase=config.transformer.lowercase, allows_types=True)
        tokens = tokens if config.chat is None else tokens.without_special_tokens()
        expansion = None if config.tokens is None else config.tokens.expansion
        if expansion is not None and not expansion.attend:
            raise CheckpointError(
                f"{config.folder}: mask tokens that other tokens do not see need a family that has a table in uwaga"
            ) from refusal
        return opening.read_states(config.folder, dtype, tokens, refusal), tokens
    if () not in family_of(model.config.model_type, "load").architectures.values():
        raise CheckpointError(
            f"{config.folder} holds a {model.config.model_type} model, and TextEncoder cannot use it; {sentence_config.PEER_READS_IT}"
        )
    tokens = load_tokenizer(config.folder, lowercase=config.transformer.lowercase)
    return model, tokens if config.chat is None else tokens.without_special_tokens()


def _check_fit(model: Model, tokenizer: Tokenizer, config: SentenceConfig) -> None:
    """Raise CheckpointError if the files of a model contradict each other."""
    model_file, most = config.folder / "config.json", config.transformer.max_tokens
    limit, file = model.config.max_tokens or sys.maxsize, model_file
    if most is not None and most < limit:
        limit, file = most, config.transformer.limited_by or model_file
    if limit <= tokenizer.num_special_tokens:
        raise CheckpointError(
            f"{file}: the limit of {limit} tokens leaves no room for text next to {tokenizer.num_special_tokens} special tokens"
        )
    if not config.include_prompt and (config.transformer.truncation_side or tokenizer.truncation_side) == "left":
        raise CheckpointError(
            f"{config.folder}: truncation_side 'left' of the tokenizer cuts the prompt, and include_prompt false of Pooling leaves it out; "
            f"only 'right' is supported then; {sentence_files.INSTEAD}"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{model_file}: vocab_size is {model.config.vocab_size}, but tokenizer.json has the token id {tokenizer.vocab_size - 1}"
        )
