"""BatchEncoder: batches of columns with texts to batches of columns with vectors.

Letters: n rows of a batch, R rows of the result, E width of a vector.
"""

import os
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from uwaga._base.errors import CheckpointError
from uwaga._base.terminal import short

if TYPE_CHECKING:
    from uwaga.encode.encoder import TextEncoder
    from uwaga.encode.inference import Encoded
    from uwaga.ops.engine_choice import Choice

_NUMBERS = ("start", "stop", "characters", "tokens", "windows")
ADDED = (*_NUMBERS, "vector", "error")


class BatchEncoder:
    """A function that adds vectors of texts to batches of columns, and can be pickled.

    A pickle has a few hundred bytes, since it only names the model. The process that calls the function loads the model once. Processes of a
    machine have weights in memory once that are stored in `dtype`.

        encode = uwaga.encode.BatchEncoder("models/e5", overflow="mean")
        encode({"id": [7], "text": ["to be"]})["vector"]                                  # a batch of columns
        dataset.map_batches(BatchEncoder, fn_constructor_args=["models/e5"], concurrency=8)     # Ray Data, by actors
        frame.mapInPandas(encode, schema)                                                 # Spark

    A batch is a mapping from names to columns, a DataFrame of pandas or a Table of pyarrow, and so is the result. An iterator of batches
    gives an iterator of results, and texts are tokenised while the model computes. The result has a row for each text, or for each of its
    windows or spans, in the order of the texts. It has the columns of the batch without the texts, and

        start, stop, characters, tokens, windows     as the Report of a TextEncoder
        vector                                       E numbers of float32
        error                                        why the text cannot be encoded; None if it can

    A text that cannot be encoded has one row with its error and a vector that is null, or NaN in a mapping. Pass such rows again to try them
    again. The vector of a text has the same bits in any batch and any process.

    Args:
        model: a directory that every machine has at this path, or the name of a bundled model or of a model of the hub.
        text: the column of the texts.
        dtype: dtype of weights and arithmetic, by name. None: the dtype of the files.
        fingerprint: fingerprint of the model's files (`uwaga.models.checkpoints.directories`). None: of the files as they are now. A
            process that finds other files, now or after a batch, raises CheckpointError.
        keep_text: keep the texts in the result.
        shared: map weights from the files, as `TextEncoder.load`; replace such files by renaming others, since a file that is cut short
            ends the process. False: each process has weights of its own.
        options: overflow, overlap, tokens_per_batch, normalize, prompt, prompt_name, truncate_dim and spans of
            `TextEncoder.encode`; spans is "paragraph", "sentence", "line" or "document".

    Raises:
        CheckpointError: the model cannot be read, gives no vectors of texts, or has another fingerprint.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        text: str = "text",
        dtype: str | None = "float32",
        fingerprint: str | None = None,
        keep_text: bool = False,
        shared: bool = True,
        **options: Any,
    ) -> None:
        self.model = os.path.abspath(model) if Path(model).is_dir() else os.fspath(model)
        self.text, self.dtype, self.keep_text, self.shared, self.options = text, dtype, keep_text, shared, options
        self.fingerprint = found(self.model)[1] if fingerprint is None else fingerprint

    def __repr__(self) -> str:
        options = "".join(f", {name}={short(value)}" for name, value in self.options.items())
        return f"BatchEncoder({self.model!r}, dtype={self.dtype!r}{options})"

    def load(self) -> "TextEncoder":
        """Return the model of this process. Raises CheckpointError; ValueError: unknown dtype."""
        return _encoder(self.model, self.dtype, self.fingerprint, self.shared)

    def __call__(self, batch: Any) -> Any:
        """Encode a batch, or an iterator of batches. Raises CheckpointError, ValueError."""
        if not isinstance(batch, Mapping) and not hasattr(batch, "columns"):
            return self.stream(batch)
        return next(self.stream([batch]))

    def explained(self, batch: Any) -> "tuple[Choice, Any]":
        """Return what computes the hidden states (`TextEncoder.explain`), and the result of a call."""
        return self.load().explain(), self(batch)

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the results of batches, and read each batch while the one before is computed."""
        from uwaga.models.checkpoints import directories

        waiting: deque[tuple[Any, int]] = deque()

        def texts() -> Iterator[Sequence[Any]]:
            first = 0
            for batch in batches:
                column = _column(batch, self.text)
                waiting.append((batch, first))
                first += len(column)
                yield column

        for encoded in self.load().stream(texts(), **self.options, skip_invalid=True):
            if self.shared:
                _check(directories.find(self.model, None), self.fingerprint)
            batch, first = waiting.popleft()
            rows, added = _results(encoded, first)
            yield _joined(batch, rows, added, None if self.keep_text else self.text)


def found(model: str) -> tuple[Path, str]:
    """Return directory and fingerprint of a model, without loading it. Raises CheckpointError."""
    from uwaga.encode import sentence_config
    from uwaga.models.checkpoints import directories

    folder = directories.find(model, None)
    if sentence_config.read(folder).tokens is not None:
        raise CheckpointError(
            f"{folder} holds a ColBERT model, which gives a vector to every token and none to a document; `uwaga store add` takes it"
        )
    return folder, directories.fingerprint(folder)


@lru_cache(maxsize=1)
def _encoder(model: str, dtype: str | None, fingerprint: str, shared: bool) -> "TextEncoder":
    import torch

    from uwaga.encode.encoder import TextEncoder

    chosen = None if dtype is None else getattr(torch, dtype, None)
    if dtype is not None and not isinstance(chosen, torch.dtype):
        raise ValueError(f"BatchEncoder: dtype must be the name of a dtype of PyTorch, not {dtype!r}")
    folder, here = found(model)
    if here != fingerprint:
        raise CheckpointError(
            f"{folder} on {socket.gethostname()} holds another model than the one that the work began with: its fingerprint is {here[:12]}, "
            f"not {fingerprint[:12]}; put the same files there"
        )
    encoder = TextEncoder.load(folder, dtype=chosen, shared=shared)
    _check(folder, fingerprint)
    return encoder


def _check(folder: Path, fingerprint: str) -> None:
    from uwaga.models.checkpoints import directories

    if directories.fingerprint(folder) != fingerprint:
        raise CheckpointError(f"{folder}: its files changed while they were read; run it again")


def _column(batch: Any, name: str) -> list[Any]:
    """Return the texts of a batch, from the column of this name."""
    columns = list(batch.column_names) if hasattr(batch, "column_names") else list(batch)
    if name not in columns:
        raise ValueError(
            f"BatchEncoder: there is no column {name!r}; the columns are {', '.join(map(repr, columns)) or 'none'}"
        )
    column = batch[name]
    if hasattr(column, "isna"):  # pandas writes NaN for a missing text
        return [None if is_missing else x for x, is_missing in zip(column, column.isna(), strict=True)]
    if hasattr(column, "to_pylist"):
        return cast("list[Any]", column.to_pylist())
    return cast("list[Any]", column.tolist()) if hasattr(column, "tolist") else list(column)


def _results(encoded: "Encoded", first: int) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the text of each row (R,), and the new columns. first: number of the first text."""
    report, invalid = encoded.report, encoded.invalid
    rows = np.concatenate([report.document, np.array([error.document for error in invalid], np.int64)]) - first
    order = np.argsort(rows, kind="stable")
    empty = np.zeros(len(invalid), np.int64)
    added: dict[str, Any] = {name: np.concatenate([getattr(report, name), empty])[order] for name in _NUMBERS}
    nothing = np.full((len(invalid), encoded.vectors.shape[1]), np.nan, np.float32)
    added["vector"] = np.concatenate([encoded.vectors, nothing])[order]
    errors = np.full(len(rows), None, object)
    errors[len(report.document) :] = [error.reason for error in invalid]
    added["error"] = errors[order]
    return rows[order], added


def _joined(batch: Any, rows: np.ndarray, added: dict[str, Any], dropped: str | None) -> Any:
    """Return rows of a batch, without the column `dropped` and with new columns."""
    vectors, is_null = added["vector"], [error is not None for error in added["error"]]
    replaced = (*ADDED, dropped)
    if hasattr(batch, "column_names"):
        import pyarrow as pa

        kept = batch.drop_columns([name for name in replaced if name in batch.column_names]).take(pa.array(rows))
        for name in _NUMBERS:
            kept = kept.append_column(name, pa.array(added[name]))
        mask = pa.array(is_null, pa.bool_())
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1], mask=mask)
        return kept.append_column("vector", lists).append_column("error", pa.array(added["error"], pa.string()))
    if hasattr(batch, "iloc"):
        kept = batch.drop(columns=[name for name in replaced if name in batch]).iloc[rows].reset_index(drop=True)
        shown = [None if is_missing else vector for vector, is_missing in zip(vectors, is_null, strict=True)]
        return kept.assign(**{**added, "vector": shown})
    result = {}
    for name, column in batch.items():
        if name not in replaced:
            result[name] = column[rows] if isinstance(column, np.ndarray) else _objects(column)[rows]
    return result | added


def _objects(column: Iterable[Any]) -> np.ndarray:
    """Return an array of the objects; NumPy would make a table of lists of equal lengths."""
    values = list(column)
    result = np.empty(len(values), object)
    result[:] = values
    return result
