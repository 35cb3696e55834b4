"""Attention over what is stored: a database whose answer is the mean of all its values, weighted by how well their keys fit; and one of
the vectors of tokens.

database    SoftDatabase: rows that last, and what they say to a query
token_database  TokenDatabase: texts as the vectors of their tokens, and their MaxSim
stored      what both are: one moment that is shown, one process that writes
texts       passages of files as rows, the encoder that made the keys, and questions
reading     one pass over all rows
segments    files of rows
catalog     the SQLite file of what the files mean

The public names; each is imported when first used.
"""

from typing import TYPE_CHECKING

from uwaga._base.lazy import names

if TYPE_CHECKING:
    from uwaga._base.errors import SoftDatabaseError as SoftDatabaseError
    from uwaga.store.database import Answer as Answer
    from uwaga.store.database import SoftDatabase as SoftDatabase
    from uwaga.store.database import Top as Top
    from uwaga.store.segments import Damage as Damage
    from uwaga.store.segments import StoredRow as StoredRow
    from uwaga.store.segments import StoredTokens as StoredTokens
    from uwaga.store.texts import AddedFiles as AddedFiles
    from uwaga.store.texts import Match as Match
    from uwaga.store.texts import TokenAnswer as TokenAnswer
    from uwaga.store.texts import add_files as add_files
    from uwaga.store.texts import ask as ask
    from uwaga.store.texts import encoder_of as encoder_of
    from uwaga.store.texts import model_name as model_name
    from uwaga.store.token_database import TokenDatabase as TokenDatabase
    from uwaga.store.token_database import TokenMatches as TokenMatches
    from uwaga.store.token_database import open_database as open_database
else:
    __all__, __getattr__, __dir__ = names(__name__)
