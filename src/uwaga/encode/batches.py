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
    """A function of batches of columns, which adds the vectors of a column of texts. It holds the names of things and no model, so that it is
    pickled in a few hundred bytes; the process that calls it loads the model, once, and shares the weights' memory with the other processes of its machine.

        encode = uwaga.encode.BatchEncoder("models/e5", overflow="mean")
        encode({"id": [7], "text": ["to be"]})["vector"]                                  # a batch of columns
        dataset.map_batches(BatchEncoder, fn_constructor_args=["models/e5"], concurrency=8)     # Ray Data, by actors
        frame.mapInPandas(encode, schema)                                                 # Spark

    A batch is a mapping from names to columns, a DataFrame of pandas or a Table of pyarrow, and so is the result; an iterator of batches gives an
    iterator of results, whose texts are tokenised while the model computes. The result has the columns of the batch without the
    texts, and

        start, stop, characters, tokens, windows     as the Report of a TextEncoder
        vector                                       E numbers of float32
        error                                        why the text cannot be encoded; None if it can

    with a row for each text, or for each of its windows or spans, in the order of the texts. A text that cannot be encoded has one row with
    its error, whose vector is null, or NaN in a mapping; given again, as it is or mended, it is tried again. The vector of a text has the same bits in
    any batch and any process.

    Args:
        model: a directory, which every machine has at this path, or the name of a bundled model or one of the hub.
        text: the column of the texts.
        dtype: of weights and arithmetic, by name; None: that of the files.
        fingerprint: of the model's files (`uwaga.models.checkpoints.directories`); None: as they are here and now. A process that
            finds others refuses them.
        keep_text: whether the result has the texts too.
        shared: as `TextEncoder.load` has it; False: each process has weights of its own.
        options: overflow, overlap, tokens_per_batch, normalize, prompt, prompt_name, truncate_dim and spans of
            `TextEncoder.encode`; spans is "paragraph", "sentence", "line" or "document".

    Raises CheckpointError: the model cannot be read, gives no vectors of texts, or is another one than the fingerprint's.
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
        """The model, as this process has it. Raises CheckpointError; ValueError: `dtype` is none."""
        return _encoder(self.model, self.dtype, self.fingerprint, self.shared)

    def __call__(self, batch: Any) -> Any:
        """Raises ValueError: there is no column of texts, or options do not go together; CheckpointError."""
        if not isinstance(batch, Mapping) and not hasattr(batch, "columns"):
            return self.stream(batch)
        return next(self.stream([batch]))

    def explained(self, batch: Any) -> "tuple[Choice, Any]":
        """What computes the hidden states (`TextEncoder.explain`), and the result of a call."""
        return self.load().explain(), self(batch)

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The results of some batches, in order. A batch is read while the one before it is computed. Raises as a call."""
        waiting: deque[tuple[Any, int]] = deque()

        def texts() -> Iterator[Sequence[Any]]:
            first = 0
            for batch in batches:
                column = _listed(batch, self.text)
                waiting.append((batch, first))
                first += len(column)
                yield column

        for encoded in self.load().stream(texts(), **self.options, skip_invalid=True):
            batch, first = waiting.popleft()
            rows, added = _results(encoded, first)
            yield _joined(batch, rows, added, None if self.keep_text else self.text)


def found(model: str) -> tuple[Path, str]:
    """The directory of a model that gives vectors of texts, and its fingerprint; nothing is loaded. Raises CheckpointError."""
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
    from uwaga.models.checkpoints import directories

    chosen = None if dtype is None else getattr(torch, dtype, None)
    if dtype is not None and not isinstance(chosen, torch.dtype):
        raise ValueError(f"BatchEncoder: dtype must be the name of a dtype of PyTorch, not {dtype!r}")
    folder, here = found(model)
    if here != fingerprint:
        raise CheckpointError(
            f"{folder} on {socket.gethostname()} holds another model than the work was begun with: its fingerprint is {here[:12]}, not "
            f"{fingerprint[:12]}; put the same files there"
        )
    encoder = TextEncoder.load(folder, dtype=chosen, shared=shared)
    if directories.fingerprint(folder) != fingerprint:
        raise CheckpointError(f"{folder}: its files were changed while they were read: run it again")
    return encoder


def _listed(batch: Any, name: str) -> list[Any]:
    """The texts of a batch."""
    columns = list(batch.column_names) if hasattr(batch, "column_names") else list(batch)
    if name not in columns:
        raise ValueError(
            f"BatchEncoder: there is no column {name!r}; the columns are {', '.join(map(repr, columns)) or 'none'}"
        )
    column = batch[name]
    if hasattr(column, "isna"):  # of pandas, where nothing is NaN
        return [None if is_missing else x for x, is_missing in zip(column, column.isna(), strict=True)]
    if hasattr(column, "to_pylist"):
        return cast("list[Any]", column.to_pylist())
    return cast("list[Any]", column.tolist()) if hasattr(column, "tolist") else list(column)


def _results(encoded: "Encoded", first: int) -> tuple[np.ndarray, dict[str, Any]]:
    """The text of each row of a batch's result (R,), and the columns that are added. first: the number of the batch's first text."""
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
    """These rows of a batch, without a column, and with the columns that are added, in the batch's own type."""
    if hasattr(batch, "column_names"):
        return _joined_arrow(batch, rows, added, dropped)
    if hasattr(batch, "iloc"):
        frame = (
            batch.drop(columns=[name for name in (*ADDED, dropped) if name in batch]).iloc[rows].reset_index(drop=True)
        )
        pairs = zip(added["vector"], added["error"], strict=True)
        vectors = [vector if error is None else None for vector, error in pairs]
        return frame.assign(**{**added, "vector": vectors})
    kept = {name: column for name, column in batch.items() if name not in ADDED and name != dropped}
    columns = {name: x if isinstance(x, np.ndarray) else _objects(x) for name, x in kept.items()}
    return {name: column[rows] for name, column in columns.items()} | added


def _joined_arrow(table: Any, rows: np.ndarray, added: dict[str, Any], dropped: str | None) -> Any:
    import pyarrow as pa

    kept = table.drop_columns([name for name in (*ADDED, dropped) if name in table.column_names]).take(pa.array(rows))
    for name in _NUMBERS:
        kept = kept.append_column(name, pa.array(added[name]))
    vectors, is_null = added["vector"], np.array([error is not None for error in added["error"]], bool)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1], mask=pa.array(is_null))
    return kept.append_column("vector", lists).append_column("error", pa.array(added["error"], pa.string()))


def _objects(column: Iterable[Any]) -> np.ndarray:
    values = list(column)
    result = np.empty(len(values), object)
    result[:] = values
    return result
