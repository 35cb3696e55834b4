"""The text encoder of a soft database: the one that made its keys encodes the questions too."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, overload

from uwaga._base.errors import DataError
from uwaga._base.terminal import short
from uwaga.models.checkpoints import directories
from uwaga.models.checkpoints.fingerprints import fingerprint

if TYPE_CHECKING:
    from uwaga.encode.encoder import TextEncoder
    from uwaga.store.catalog import Parameters
    from uwaga.store.database import Answer, SoftDatabase, Top
    from uwaga.store.token_database import TokenDatabase

COSINE_SCALE = 20.0  # of scores, before softmax


def model_name(model: str | os.PathLike[str]) -> str:
    """What `SoftDatabase.create` stores of a model: its name as it is given, and the fingerprint of its files, wherever they lie.

    model: as `TextEncoder.load` takes it. Raises CheckpointError.
    """
    return _name(model, directories.find(model, None))


def _name(model: str | os.PathLike[str], folder: Path) -> str:
    return f"{os.fspath(model)}@{fingerprint(folder)[:32]}"


def encoder_of(db: "SoftDatabase | TokenDatabase", model: str | os.PathLike[str] | None = None) -> "TextEncoder":
    """The encoder that made the keys of a database.

    Args:
        db: created with `model=model_name(...)`.
        model: where it lies now, as `TextEncoder.load` takes it; None: the name that the database has, of a bundled model alone. A name in
            a database of a stranger shall load nothing.

    Raises:
        DataError: the database names no bundled model, or the fingerprint of the model's files is another one.
        CheckpointError: the model cannot be loaded.
    """
    from uwaga.encode.encoder import TextEncoder

    check_database("encoder_of", db)
    made, _, known = (db.model or "").rpartition("@")
    if model is None:
        if made not in directories.BUNDLED:
            raise DataError(f"{db.path}: was made with {made or 'no known model'}; give the option model to load it")
        model = made
    folder = directories.find(model, None)
    name = _name(model, folder)
    if name.rpartition("@")[2] != known:
        raise DataError(
            f"{db.path}: its keys were made by {db.model}, not by {name}: give the directory with the files that it had then, or make the database "
            "anew"
        )
    return TextEncoder.load(folder)


def check_database(place: str, db: object) -> None:
    """Raises ValueError: it is something else."""
    from uwaga.store.database import SoftDatabase
    from uwaga.store.token_database import TokenDatabase

    if not isinstance(db, SoftDatabase | TokenDatabase):
        raise ValueError(f"{place}: db must be a database, such as open_database(path) gives, not {short(db)}")


def check_encoder(place: str, encoder: object) -> None:
    """Raises ValueError: it is something else."""
    from uwaga.encode.encoder import TextEncoder

    if not isinstance(encoder, TextEncoder):
        raise ValueError(f"{place}: encoder must be a TextEncoder, such as encoder_of(db) gives, not {short(encoder)}")


class Match(NamedTuple):
    """A token of a question and the one of a passage that it found."""

    token: str  # of the question, as the vocabulary writes it
    found: str  # of the passage; its place in it, where the record has not the text of these tokens
    product: float


class TokenAnswer(NamedTuple):
    """What a database of token vectors says to a question."""

    top: "Top"  # of (k,): the passages with the largest MaxSim
    matches: "list[list[Match]]"  # of each passage, for each token of the question; the products sum to the score


@overload
def ask(
    db: "SoftDatabase",
    question: str,
    encoder: "TextEncoder",
    *,
    scale: float = ...,
    where: str | None = ...,
    parameters: "Parameters" = ...,
    top: int = ...,
) -> "Answer": ...
@overload
def ask(
    db: "TokenDatabase",
    question: str,
    encoder: "TextEncoder",
    *,
    where: str | None = ...,
    parameters: "Parameters" = ...,
    top: int = ...,
) -> TokenAnswer: ...
def ask(
    db: "SoftDatabase | TokenDatabase",
    question: str,
    encoder: "TextEncoder",
    *,
    scale: float | None = None,
    where: str | None = None,
    parameters: "Parameters" = (),
    top: int = 5,
) -> "Answer | TokenAnswer":
    """What a database says to a text: `SoftDatabase.attend` of its vector; of vectors of tokens, the passages that fit it best by MaxSim, and
    which of their tokens its tokens found.

    Args:
        db: whose keys are vectors of the encoder.
        question: any text; of a TokenDatabase, not longer than the model's queries.
        encoder: `encoder_of(db)`.
        scale: of the cosines, before softmax: higher is sharper; None: 20. Not of a TokenDatabase.
        where, parameters: as `SoftDatabase.attend`.
        top: how many passages, at most.

    Raises:
        ValueError: an argument is none of these, or the question is too long; otherwise as `SoftDatabase.attend` or `TokenDatabase.search`.
    """
    import torch

    from uwaga.store.database import SoftDatabase

    check_database("ask", db)
    check_encoder("ask", encoder)
    if isinstance(db, SoftDatabase):
        (vector,) = torch.from_numpy(encoder.encode([question], overflow="mean"))
        factor = COSINE_SCALE if scale is None else scale
        return db.attend(vector, scale=factor, where=where, parameters=parameters, top=top)
    if scale is not None:
        raise ValueError(f"ask: scale is of cosines before softmax, and {db.path} has vectors of tokens")
    query = encoder.encode([question], output="tokens", task="query")
    tokens = encoder.token_strings(question, task="query")
    found = db.search(query, top, where=where, parameters=parameters)
    ids, records = found.ids[0], found.records[0]
    matches = []
    for number, record in zip(ids.tolist(), records, strict=True):
        if number < 0:
            continue
        own, text = db.matches(query.values, number), record.get("text")
        names = _token_names(encoder, text, len(db.tokens(number)))
        rows = zip(tokens, own.tokens.tolist(), own.products.tolist(), strict=True)
        matches.append([Match(token, names[at], product) for token, at, product in rows])
    return TokenAnswer(
        found._replace(ids=ids, weights=found.weights[0], scores=found.scores[0], records=records), matches
    )


def _token_names(encoder: "TextEncoder", text: object, count: int) -> list[str]:
    """The tokens of a passage of so many, or their places where it is not the text that they are of."""
    names = encoder.token_strings(text, task="document", overflow="windows") if isinstance(text, str) and text else []
    return names if len(names) == count else [str(n) for n in range(count)]
