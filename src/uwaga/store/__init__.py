"""Attention over what is stored: a database whose answer is the mean of all its values, weighted by how well their keys fit.

database    SoftDatabase: rows that last, and what they say to a query
reading     one pass over all rows
segments    files of rows
catalog     the SQLite file of what the files mean
parquet     rows to and from Parquet
"""

from uwaga._base.errors import SoftDatabaseError
from uwaga.store.database import Answer, SoftDatabase, Top
from uwaga.store.segments import Damage, Row

__all__ = ["Answer", "Damage", "Row", "SoftDatabase", "SoftDatabaseError", "Top"]
