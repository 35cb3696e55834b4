"""A layer's attention to a database, mixed with its attention to the text.

Letters: B batch, H heads, Q queries, D key width, E value width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from uwaga._base.arguments import check
from uwaga._base.errors import ShapeError


class MemoryAttention(nn.Module):
    """Attend to all rows of a database, and mix the answer with a layer's own result by a learned gate.

    Wu et al., "Memorizing Transformers" (2022), section 3.2, with the mean over every row instead of the k nearest.

        result = g memory(query) + (1 - g) local,    g = sigmoid(gate), memory(q) = softmax(scale q K^T) V

    Queries, the local result, the scale and the gate have gradients; keys and values come from the database and are frozen. The
    database is not part of the state dict, and a layer with its open files cannot be copied or pickled.

    Args:
        database: an open `uwaga.SoftDatabase` of H heads.
        scale: of the scores, at first; None: 1/sqrt(D). Its logarithm is learned, one for each head.
        gate: at first; -2 leaves 0.12 to the memory. One for each head.

    Raises:
        ValueError: a scale that is not a finite number above 0.

    >>> import tempfile, uwaga
    >>> folder = tempfile.TemporaryDirectory()
    >>> db = uwaga.SoftDatabase.create(folder.name + "/db", key_width=4, heads=2)
    >>> _ = db.append(torch.randn(100, 2, 4))
    >>> layer = MemoryAttention(db)
    >>> layer(torch.randn(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)).shape
    torch.Size([1, 2, 3, 4])
    >>> db.close(); folder.cleanup()
    """

    def __init__(self, database: Any, *, scale: float | None = None, gate: float = -2.0) -> None:
        super().__init__()
        schema = database.schema
        scale = 1 / math.sqrt(schema.key_width) if scale is None else float(scale)
        is_positive = math.isfinite(scale) and scale > 0
        check(is_positive, f"MemoryAttention: scale must be finite and above 0, not {scale!r}")
        self.database = database
        self.log_scale = nn.Parameter(torch.full((schema.heads,), math.log(scale)))
        self.gate = nn.Parameter(torch.full((schema.heads,), float(gate)))

    def forward(self, query: Tensor, local: Tensor) -> Tensor:
        """Mix the database's answer with the layer's own result by the learned gate.

        Args:
            query: (..., H, Q, D).
            local: (..., H, Q, E), the attention outputs of the layer's own heads.

        Returns:
            (..., H, Q, E), in the dtype of `local`.

        Raises:
            ShapeError: sizes that do not fit the database or each other.
            ValueError, SoftDatabaseError: as `SoftDatabase.attend`.
        """
        result = self.read(query)
        if result.shape != local.shape:
            raise ShapeError(
                f"MemoryAttention: local is {tuple(local.shape)}, and the database's values for these queries are {tuple(result.shape)}"
            )
        share = self.gate.sigmoid()[:, None, None]
        return (share * result + (1 - share) * local).to(local.dtype)

    def read(self, query: Tensor) -> Tensor:
        """Ask the database with queries (..., H, Q, D), without the gate: (..., H, Q, E), float32."""
        heads = self.database.schema.heads
        if query.dim() < 3 or query.shape[-3] != heads:
            raise ShapeError(f"MemoryAttention: the query is {tuple(query.shape)}, and must be (..., {heads}, Q, D)")
        scaled = (query.float() * self.log_scale.exp()[:, None, None]).transpose(-3, -2)
        value: Tensor = self.database.attend(scaled if heads > 1 else scaled[..., 0, :], scale=1.0, top=0).value
        value = value if heads > 1 else value[..., None, :]
        return value.transpose(-3, -2).to(query.device)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(
            "MemoryAttention: its database is open files; save state_dict(), and make the layer again with the database"
        )

    def extra_repr(self) -> str:
        """Return the number of rows and their sizes."""
        schema = self.database.schema
        return f"rows={len(self.database)}, heads={schema.heads}, key_width={schema.key_width}"
