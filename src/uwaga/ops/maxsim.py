"""MaxSim, the score of a query and a document by the vectors of their tokens (Khattab and Zaharia 2020, "ColBERT", equation 3).

Letters: T tokens of all queries, t of one, N tokens of documents, M width, Q queries, S documents.
"""

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from uwaga._base.arguments import check
from uwaga._base.errors import ShapeError
from uwaga.ops.linear.api import linear_map
from uwaga.ops.ragged import Ragged

_FLOATS = 2**22  # of the similarities that are in memory at a time, where no gradient is needed


def maxsim(query_tokens: Ragged, document_tokens: Ragged) -> Tensor:
    """Score each document for each query by late interaction (MaxSim).

    A score is the sum, over the tokens of the query, of the largest dot product with a token of the document. Nothing is padded, and
    a score has the same bits whatever other queries and documents are in the call. Scores are differentiable with respect to both
    arguments. If two products are equal, one of the tokens gets the gradient.

    Args:
        query_tokens: Ragged with values (T, M), a row for each query.
        document_tokens: Ragged with values (N, M), a row for each document. `TextEncoder.encode` with output="tokens" gives both; vectors of
            length 1 make the products cosines.

    Returns:
        (Q, S) float32, or float64 if one argument is float64; bfloat16 and float16 are computed in float32.

    Raises:
        ShapeError: values that are no matrices of one width.
        ValueError: what is not Ragged, of other dtypes or on two devices; a query or document without tokens; NaN or infinite numbers.

    >>> queries = Ragged.from_list([torch.tensor([[1.0, 0.0], [0.0, 2.0]])])
    >>> documents = Ragged.from_list([torch.eye(2), torch.tensor([[3.0, 1.0]])])
    >>> maxsim(queries, documents)
    tensor([[3., 5.]])
    """
    _check(query_tokens, document_tokens)
    both = (query_tokens, document_tokens)
    dtype = torch.float64 if torch.float64 in (batch.values.dtype for batch in both) else torch.float32
    queries, documents = (batch.values.to(dtype) for batch in both)
    if not len(query_tokens) or not len(document_tokens):
        return queries.new_zeros(len(query_tokens), len(document_tokens))
    records = torch.is_grad_enabled() and (queries.requires_grad or documents.requires_grad)
    most = len(documents) if records else max(1, _FLOATS // max(1, query_tokens.max_length))
    ends_S = document_tokens.offsets[1:].tolist()
    parts, first = [], 0
    while first < len(ends_S):
        start = ends_S[first - 1] if first else 0
        stop = first + 1
        while stop < len(ends_S) and ends_S[stop] - start <= most:
            stop += 1
        values_NM, offsets = documents[start : ends_S[stop - 1]], document_tokens.offsets[first : stop + 1] - start
        every_N = torch.arange(len(values_NM), device=values_NM.device)
        scores = [
            _scores(query_tM, values_NM, every_N, offsets) for query_tM in queries.split(query_tokens.lengths.tolist())
        ]
        parts.append(torch.stack(scores))
        first = stop
    return torch.cat(parts, 1)


def _scores(query_tM: Tensor, values_NM: Tensor, every_N: Tensor, offsets: Tensor) -> Tensor:
    """Compute (S,) for one query. Its tokens are the columns of a product of their own: the bits of a row of a product are promised to be the
    same whatever the other rows are, and nothing is about other columns."""
    product_Nt = linear_map(values_NM, query_tM)
    largest_St = embedding_bag(every_N, product_Nt, offsets, mode="max", include_last_offset=True)
    # One after another: a sum over a dimension may associate by the number of rows.
    return largest_St.cumsum(1)[:, -1]


def _check(query_tokens: Ragged, document_tokens: Ragged) -> None:
    for name, tokens in (("query_tokens", query_tokens), ("document_tokens", document_tokens)):
        if not isinstance(tokens, Ragged):
            raise ValueError(f"maxsim: {name} must be Ragged, a row for each text, not {type(tokens).__name__}")
        if tokens.values.dim() != 2:
            raise ShapeError(f"maxsim: {name} must have values (tokens, M), not {tuple(tokens.values.shape)}")
        check(
            tokens.values.is_floating_point(), f"maxsim: {name} must be of a floating dtype, not {tokens.values.dtype}"
        )
    if query_tokens.values.shape[1] != document_tokens.values.shape[1]:
        raise ShapeError(
            f"maxsim: query_tokens and document_tokens disagree on the width M of a vector: {query_tokens.values.shape[1]} and "
            f"{document_tokens.values.shape[1]}"
        )
    check(
        query_tokens.values.device == document_tokens.values.device,
        f"maxsim: query_tokens are on {query_tokens.values.device} and document_tokens on {document_tokens.values.device}",
    )
    for name, tokens in (("query", query_tokens), ("document", document_tokens)):
        if bool((tokens.lengths == 0).any()):
            raise ValueError(f"maxsim: {name} {int((tokens.lengths == 0).nonzero()[0])} has no tokens, and so no score")
        if not bool((is_finite_N := tokens.values.detach().isfinite().all(-1)).all()):
            at = int((~is_finite_N).nonzero()[0])
            row = int(torch.searchsorted(tokens.offsets, at, right=True)) - 1
            raise ValueError(f"maxsim: {name} {row} has a vector with an entry that is NaN or infinite")
