"""TextEncoder: texts in, vectors out, for corpora.

Letters: N packed tokens, R rows of the result, M model width.
"""

import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from uwaga._base import renamed
from uwaga._base.errors import CheckpointError
from uwaga.models import checkpoints, directories
from uwaga.models.bert.model import BertModel
from uwaga.models.text import sentence_config
from uwaga.models.text.memory import keep_freed_memory
from uwaga.models.text.packing import groups
from uwaga.models.text.prepare import Preparer
from uwaga.models.text.progress import Listener, Meter, listening
from uwaga.models.text.reader import Encoded, Reader
from uwaga.models.text.report import Report
from uwaga.models.text.sentence_config import SentenceConfig
from uwaga.models.text.tokenizer import Tokenizer
from uwaga.models.text.windows import Policy
from uwaga.ops.ragged import Ragged

# Tokens of a step: activations stay in the cache, and matrix products are large enough to be fast.
TOKENS_PER_BATCH = 2048

_renamed = renamed.parameters(long="overflow", budget="tokens_per_batch")


@renamed.parameters(recipe="config", room="max_tokens", width="embedding_dim")
class TextEncoder:
    """Texts to vectors, by an encoder such as those of sentence-transformers. One call at a time.

    Texts are tokenised a group at a time, on a thread, while the model reads the group before. They are packed one after
    the other into steps of about `tokens_per_batch` tokens, without padding anywhere, and come out in their order.

    Attributes:
        model: a BertModel.
        tokenizer: its tokenizer.
        config: how its hidden states become vectors.
        max_tokens: tokens of a text that the model takes, special tokens apart.
        report: what the rows are of the array that `encode`, `encode_stream` or `encode_tokens` gave last.
    """

    def __init__(self, model: BertModel, tokenizer: Tokenizer, config: SentenceConfig) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        limit = min(model.config.max_tokens, config.max_length or model.config.max_tokens)
        self.max_tokens = limit - tokenizer.special
        if self.max_tokens < 1:
            raise ValueError(
                f"TextEncoder: the limit of {limit} tokens leaves none for text beside {tokenizer.special} special tokens"
            )
        self.report = Report.join(())
        keep_freed_memory()

    @classmethod
    def load(
        cls,
        path_or_hub_id: str | os.PathLike[str],
        *,
        dtype: torch.dtype | None = None,
        revision: str | None = None,
    ) -> "TextEncoder":
        """From a sentence-transformers directory, a plain Hugging Face directory (mean pooling), or a hub id.

        Args:
            path_or_hub_id, revision: as uwaga.models.load.
            dtype: of the weights and the arithmetic, torch.bfloat16 for speed; None for the dtype they are stored in.

        Raises:
            CheckpointError: files that are wrong, do not fit together, or ask for something that is not computed here.
        """
        folder = directories.find(path_or_hub_id, revision)
        config = sentence_config.read(folder)
        model = checkpoints.load(config.folder, dtype=dtype)
        tokenizer = Tokenizer.load(config.folder, lowercase=config.lowercase)
        if not isinstance(model, BertModel):
            raise CheckpointError(f"{config.folder} holds a {type(model).__name__}; TextEncoder reads a BertModel")
        _check_fit(model, tokenizer, config)
        return cls(model, tokenizer, config)

    @property
    def embedding_dim(self) -> int:
        """Numbers of a vector: M, or as many times M as there are poolings."""
        return self.model.config.d_model * len(self.config.pooling)

    @_renamed
    def encode(
        self,
        texts: Iterable[str],
        *,
        overflow: str = "error",
        overlap: int = 0,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        normalize: bool | None = None,
        prompt: str | None = None,
        progress: bool | Listener | None = None,
    ) -> np.ndarray:
        """(R, M) float32: a vector for each text, in their order; `report` says what became of long ones.

        Args:
            texts: strings; none may be empty.
            overflow: what to do with texts of more than `max_tokens` tokens: "error" raises; "truncate" reads the first `max_tokens`
                tokens; "mean" gives the mean of the vectors of windows; "windows" a row for each window.
            overlap: tokens that neighbouring windows share.
            tokens_per_batch: tokens that the model reads in one step, about.
            normalize: whether vectors get the length 1 (after the mean over windows); None: as the model says.
            prompt: put before every text (windows after the first do without); None: the model's default.
                `config.prompts` has those that it knows.
            progress: True shows a bar on standard error; a function is called with a Progress after every step.

        Raises:
            DocumentError: a text that is empty, too long, or not a string of Unicode characters; says which.
            ValueError: options that do not go together.
        """
        texts = list(_no_string(texts))
        reader = self._reader(overflow, overlap, tokens_per_batch, normalize, prompt)
        with listening(progress, len(texts)) as listener:
            parts = list(reader.vectors(groups(texts, _size), Meter(listener, len(texts))))
        self.report = Report.join(part.report for part in parts)
        return np.concatenate([np.zeros((0, self.embedding_dim), np.float32), *(part.vectors for part in parts)])

    @_renamed
    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        overflow: str = "error",
        overlap: int = 0,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        normalize: bool | None = None,
        prompt: str | None = None,
        progress: bool | Listener | None = None,
    ) -> Iterator[np.ndarray]:
        """The same in pieces, in order, for texts without end: in memory are two groups of texts and the vectors of one.

        While an array is out, `report` tells what its rows are. Arguments and errors as `encode`.
        """
        reader = self._reader(overflow, overlap, tokens_per_batch, normalize, prompt)
        return self._stream(reader, groups(_no_string(texts), _size), progress)

    @_renamed
    def encode_groups(
        self,
        parts: Iterable[Sequence[str]],
        *,
        overflow: str = "error",
        overlap: int = 0,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        normalize: bool | None = None,
        prompt: str | None = None,
        progress: Listener | None = None,
    ) -> Iterator[Encoded]:
        """The same for texts in groups of the caller's making: each gives the same bits whatever came before it."""
        return self._reader(overflow, overlap, tokens_per_batch, normalize, prompt).vectors(parts, Meter(progress))

    @_renamed
    def encode_tokens(
        self,
        texts: Iterable[str],
        *,
        overflow: str = "error",
        overlap: int = 0,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        prompt: str | None = None,
        progress: bool | Listener | None = None,
    ) -> Ragged:
        """The hidden states of all tokens, special ones included: Ragged with values (N, M) in the model's dtype, and a
        row for each text, or with overflow="windows" for each window. Arguments and errors as `encode`."""
        if overflow == "mean":
            raise ValueError(
                "TextEncoder: tokens have no mean over windows; overflow='windows' gives the tokens of each"
            )
        texts = list(_no_string(texts))
        reader = self._reader(overflow, overlap, tokens_per_batch, False, prompt)
        with listening(progress, len(texts)) as listener:
            parts = list(reader.states(groups(texts, _size), Meter(listener, len(texts))))
        self.report = Report.join(part.report for part in parts)
        none = next(self.model.parameters()).new_zeros(0, self.model.config.d_model)
        offsets = torch.from_numpy(np.cumsum([0, *self.report.tokens], dtype=np.int64)).to(none.device)
        return Ragged(torch.cat([none, *(part.values for part in parts)]), offsets)

    def _reader(
        self, overflow: str, overlap: int, tokens_per_batch: int, normalize: bool | None, prompt: str | None
    ) -> Reader:
        if prompt is not None and not isinstance(prompt, str):
            raise ValueError(f"TextEncoder: prompt must be a string or None, not {prompt!r}")
        preparer = Preparer(
            tokenizer=self.tokenizer,
            policy=Policy(overflow=overflow, overlap=overlap, max_tokens=self.max_tokens),
            prompt=self.config.prompt if prompt is None else prompt,
        )
        return Reader(
            model=self.model,
            preparer=preparer,
            tokens_per_batch=tokens_per_batch,
            pooling=self.config.pooling,
            normalize=self.config.normalize if normalize is None else normalize,
        )

    def _stream(
        self, reader: Reader, parts: Iterable[Sequence[str]], progress: bool | Listener | None
    ) -> Iterator[np.ndarray]:
        with listening(progress, None) as listener:
            for part in reader.vectors(parts, Meter(listener)):
                self.report = part.report
                yield part.vectors


def _check_fit(model: BertModel, tokenizer: Tokenizer, config: SentenceConfig) -> None:
    """What no single file is wrong about. Raises CheckpointError, with the file that says the smallest number."""
    file_of_model = config.folder / "config.json"
    limits = [
        (model.config.max_tokens, file_of_model),
        (config.max_length or model.config.max_tokens, config.limited_by),
    ]
    limit, file = min(limits, key=lambda each: each[0])
    if limit <= tokenizer.special:
        raise CheckpointError(
            f"{file}: the limit of {limit} tokens leaves none for text beside {tokenizer.special} special tokens"
        )
    if tokenizer.vocabulary > model.config.vocab_size:
        raise CheckpointError(
            f"{file_of_model}: the vocabulary of {model.config.vocab_size} ends before token {tokenizer.vocabulary - 1} "
            "of tokenizer.json"
        )


def _size(text: object) -> int:
    # What is no string fails later, with its number.
    return len(text) if isinstance(text, str) else 1


def _no_string(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise ValueError("TextEncoder: texts must be several strings, not one, whose characters would be the texts")
    return texts
