"""Attention over what is stored: a database whose answer is the mean of all its values, weighted by how well their keys fit; and one of
the vectors of tokens.

database    SoftDatabase: rows that last, and what they say to a query
token_database  TokenDatabase: texts as the vectors of their tokens, and their MaxSim
writer, snapshot  what both are: one process that writes; one moment that is shown
files       passages of text files as rows
encoders    the model that made the keys, and questions that are texts
reading     one pass over all rows
shared_reading  its shares, by the processes of a group
segments    files of rows
catalog     the SQLite file of what the files mean
parquet     rows to and from Parquet

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga._base.errors import SoftDatabaseError
    from uwaga.store.database import Answer, SoftDatabase, Top
    from uwaga.store.encoders import Match, TokenAnswer, ask, ask_tokens, encoder_of, model_name
    from uwaga.store.files import AddedFiles, add_files
    from uwaga.store.segments import Damage, StoredRow, StoredTokens
    from uwaga.store.token_database import TokenDatabase, TokenMatches, open_database

__all__ = [
    "AddedFiles",
    "Answer",
    "Damage",
    "Match",
    "SoftDatabase",
    "SoftDatabaseError",
    "StoredRow",
    "StoredTokens",
    "TokenAnswer",
    "TokenDatabase",
    "TokenMatches",
    "Top",
    "add_files",
    "ask",
    "ask_tokens",
    "encoder_of",
    "model_name",
    "open_database",
]

_HOME = {
    "AddedFiles": "uwaga.store.files",
    "Answer": "uwaga.store.database",
    "Damage": "uwaga.store.segments",
    "StoredRow": "uwaga.store.segments",
    "SoftDatabase": "uwaga.store.database",
    "SoftDatabaseError": "uwaga._base.errors",
    "Match": "uwaga.store.encoders",
    "StoredTokens": "uwaga.store.segments",
    "TokenAnswer": "uwaga.store.encoders",
    "TokenDatabase": "uwaga.store.token_database",
    "TokenMatches": "uwaga.store.token_database",
    "Top": "uwaga.store.database",
    "add_files": "uwaga.store.files",
    "ask": "uwaga.store.encoders",
    "ask_tokens": "uwaga.store.encoders",
    "open_database": "uwaga.store.token_database",
    "encoder_of": "uwaga.store.encoders",
    "model_name": "uwaga.store.encoders",
}

__getattr__, __dir__ = names(__name__, _HOME)
