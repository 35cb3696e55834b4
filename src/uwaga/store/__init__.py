"""Attention over what is stored: a database whose answer is the mean of all its values, weighted by how well their keys fit.

database    SoftDatabase: rows that last, and what they say to a query
files       passages of text files as rows
encoders    the model that made the keys, and questions that are texts
reading     one pass over all rows
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
    from uwaga.store.encoders import ask, encoder_of, model_name
    from uwaga.store.files import AddedFiles, add_files
    from uwaga.store.segments import Damage, Row

__all__ = [
    "AddedFiles",
    "Answer",
    "Damage",
    "Row",
    "SoftDatabase",
    "SoftDatabaseError",
    "Top",
    "add_files",
    "ask",
    "encoder_of",
    "model_name",
]

_HOME = {
    "AddedFiles": "uwaga.store.files",
    "Answer": "uwaga.store.database",
    "Damage": "uwaga.store.segments",
    "Row": "uwaga.store.segments",
    "SoftDatabase": "uwaga.store.database",
    "SoftDatabaseError": "uwaga._base.errors",
    "Top": "uwaga.store.database",
    "add_files": "uwaga.store.files",
    "ask": "uwaga.store.encoders",
    "encoder_of": "uwaga.store.encoders",
    "model_name": "uwaga.store.encoders",
}

__getattr__, __dir__ = names(__name__, _HOME)
