"""The public functions: validate once, choose an engine, call it.

Letters: B batch, H query heads, G key/value heads, Q queries, K keys, D query/key width, E value width, N packed tokens,
R ragged rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Never, Protocol

import torch
from torch import Tensor

from uwaga._base import keywords
from uwaga.ops.attention import choose, fast_path
from uwaga.ops.attention.arguments import AttentionOptions, make_call, unflatten_lse, unflatten_output
from uwaga.ops.attention.autograd import run
from uwaga.ops.biases import DistanceBias
from uwaga.ops.engine_choice import Choice
from uwaga.ops.masks import Mask
from uwaga.ops.ragged import Operand


class AttendedLse(NamedTuple):
    """The output of attention and the log-sum-exp of each query's scores, (..., H, Q), or Ragged (N, H)."""

    output: Operand
    lse: Operand


class Override(Protocol):
    """An object that serves every call instead of the engines; see `override_attention`."""

    def attend(
        self, query: Operand, key: Operand, value: Operand, options: AttentionOptions, impl: str | None
    ) -> AttendedLse: ...

    def attend_with_map(
        self,
        operands: tuple[Operand, Operand, Operand],
        options: AttentionOptions,
        impl: str | None,
        entropy: bool,
        topk: int | None,
    ) -> tuple[Operand, Operand, Any]:
        """Return the output, the lse and the map of `uwaga.attend`."""

    def explain(
        self, query: Operand, key: Operand, value: Operand, options: AttentionOptions, impl: str | None
    ) -> Choice: ...


override: Override | None = None  # set by the innermost active `override_attention`


@contextmanager
def override_attention(by: Override) -> Iterator[None]:
    """Let `by` serve `attention`, `attention_and_lse`, `attend` and `explain` inside the context, in all threads."""
    global override
    before, override = override, by
    try:
        yield
    finally:
        override = before


def attention(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    normalize: str | None = "softmax",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    impl: str | None = None,
    **other: Never,
) -> Operand:
    """Compute exact attention: the average of the values, weighted by softmax(q . k * scale).

    The output of query i is sum_j a_ij v_j, with a_ij = softmax_j(q_i . k_j * scale) over the keys j that query i sees (Vaswani et
    al., "Attention Is All You Need", 2017, equation 1). ops/attention/reference.py is the specification of every
    option, in plain PyTorch.

    Args:
        query: (..., H, Q, D), a plain matrix (Q, D), or Ragged with values (N, H, D) or (N, D). Strided views are read
            in place.
        key: (..., G, K, D), with the same leading dimensions (nothing is broadcast: expand them, which copies nothing).
            H must be a multiple of G: query head h reads key head h // (H // G).
        value: (..., G, K, E).
        mask: which keys a query sees: Causal, Window, KeyLengths, Documents, a bool tensor that broadcasts to the scores
            (..., H, Q, K), or any of these joined by & and |. None: every query sees all keys.
        bias: added to the scores after scale and softcap: AlibiBias, RelativeBias, or a floating tensor that broadcasts
            to the scores. Its entries of -inf hide the key.
        scale: a number, or None for 1/sqrt(D); 1.0 leaves the scores unscaled.
        normalize: "softmax", or None to use the scores as weights, a_ij = s_ij.
        softcap: c > 0 bounds the scores to c * tanh(s / c), before the bias (Gemma 2, 2024).
        sinks: (H,) floating, a logit per head that adds exp(sink) to the denominator of the softmax only (after Xiao et
            al., "Efficient Streaming Language Models with Attention Sinks", 2023).
        dropout: probability in [0, 1) of dropping a weight; kept ones are multiplied by 1 / (1 - dropout). The seed is
            drawn from PyTorch's default generator, so torch.manual_seed makes a call repeatable.
        impl: None chooses (see `explain`); "cpu", "flex", "torch", "linear" or "reference" runs that engine or raises.

    Returns:
        (..., H, Q, E) in the query's dtype; Ragged if the query is. A query that sees no key gives zeros.

    Raises:
        ShapeError: shapes that do not fit together.
        ValueError: mixed dtypes or devices, an unknown option, or a named engine that cannot serve.

    >>> x = torch.eye(3)
    >>> attention(x, x, x, scale=1.0, normalize=None)
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    if other:
        keywords.refuse(other, attention)
    if override is None and bias is None and sinks is None:
        done = fast_path.attend(query, key, value, mask, scale, normalize, softcap, dropout, impl, False)
        if done is not None:
            return done[0]
    options = AttentionOptions(mask, bias, scale, normalize, softcap, sinks, dropout)
    if override is not None:
        return override.attend(query, key, value, options, impl).output
    call = make_call(query, key, value, options, wants_lse=False)
    output, _ = run(call, choose.engine_name(call, impl))
    return unflatten_output(query, output)


def attention_and_lse(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    normalize: str | None = "softmax",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    impl: str | None = None,
) -> AttendedLse:
    """Compute attention and the log-sum-exp of each query's scores, lse_i = log sum_j exp(s_ij).

    Both results are differentiable.

    Args:
        normalize: must be "softmax".
        query, key, value, mask, bias, scale, softcap, sinks, dropout, impl: as in `attention`.

    Returns:
        The output as `attention` returns it, and the lse (..., H, Q), or Ragged (N, H), in float32 (float64 for float64). A
        sink is a term of the sum. A query that sees no key has lse = -inf, or its head's sink if there are sinks.

    Raises:
        ShapeError, ValueError: as `attention`; normalize=None.
    """
    if normalize != "softmax":
        raise ValueError("attention: the log-sum-exp needs normalize='softmax'")
    if override is None and bias is None and sinks is None:
        done = fast_path.attend(query, key, value, mask, scale, normalize, softcap, dropout, impl, True)
        if done is not None:
            output, lse = done
            assert lse is not None
            return AttendedLse(output, lse)
    options = AttentionOptions(mask, bias, scale, normalize, softcap, sinks, dropout)
    if override is not None:
        return override.attend(query, key, value, options, impl)
    call = make_call(query, key, value, options, wants_lse=True)
    output_BHQE, lse_BHQ = run(call, choose.engine_name(call, impl))
    assert lse_BHQ is not None
    return AttendedLse(unflatten_output(query, output_BHQE), unflatten_lse(query, lse_BHQ))


def explain(
    query: Operand,
    key: Operand,
    value: Operand,
    *,
    mask: Mask | Tensor | None = None,
    bias: DistanceBias | Tensor | None = None,
    scale: float | None = None,
    normalize: str | None = "softmax",
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    impl: str | None = None,
    **other: Never,
) -> Choice:
    """Return the engine that `attention` would use for these arguments, and the reasons.

    No attention is computed.

    Args:
        query, key, value, mask, bias, scale, normalize, softcap, sinks, dropout, impl: as in `attention`.

    Returns:
        The name of the engine, the reason for it, and for each engine that cannot serve the call, the reason against it.

    Raises:
        ShapeError, ValueError: as `attention`.

    >>> x = torch.zeros(4, 8, dtype=torch.float64)
    >>> explain(x, x, x).engine
    'reference'
    """
    keywords.refuse(other, explain)
    options = AttentionOptions(mask, bias, scale, normalize, softcap, sinks, dropout)
    if override is not None:
        return override.explain(query, key, value, options, impl)
    # A call with dropout draws a seed: restore the state of the random generator, which `explain` must not change.
    with torch.random.fork_rng(devices=[], enabled=bool(dropout)):
        call = make_call(query, key, value, options, wants_lse=False)
    return choose.choice(call, impl)
