"""Position encodings: sinusoidal, learned, rotary, and as a bias of the scores (ALiBi, T5).

Letters: B batch, H query heads, Q tokens, M model width, D head width, N packed tokens, R ragged rows.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.types import Device

from uwaga._base.arguments import check
from uwaga._base.shapes import NamedShape, shape_error
from uwaga._base.tracing import is_readable
from uwaga.nn.operand import check_width, map_values, values_of
from uwaga.nn.rotary_scaling import RotaryScaling
from uwaga.ops.attention.call import compute_dtype
from uwaga.ops.biases import AlibiBias, RelativeBias
from uwaga.ops.mask_program import Start
from uwaga.ops.ragged import Operand, Ragged
from uwaga.ops.rotary import rotate_halves

# The search for a repetition computes _CHUNK squared distances at once.
_CHUNK = 256
# More than the rounding error of a mean of float64 cosines: distances closer to the tolerance are recomputed.
_SLACK = 1e-12


def token_positions(layer: str, x: Operand, start: int | Tensor) -> Tensor:
    """Return int64 positions of the tokens: (Q,) for an int `start`, (..., Q) for one start per row, (N,) for a Ragged batch.

    start: the position of the first token of every row, or integers (B,), one per row (ragged: (R,)).
    """
    _check_start(layer, x, start)
    values = values_of(x)
    if not isinstance(x, Ragged):
        first = start[..., None] if isinstance(start, Tensor) else start
        return first + torch.arange(values.shape[-2], device=values.device)
    token_N = torch.arange(values.shape[0], device=values.device)
    row_N = torch.searchsorted(x.offsets[1:], token_N, right=True)
    first_N = start[row_N] if isinstance(start, Tensor) else start
    if x.first:  # of a part of a batch
        first_N = first_N + x.first * (row_N == 0)
    return token_N - x.offsets[row_N] + first_N


def roberta_positions(ids: Operand, padding: int) -> Operand:
    """Return RoBERTa's positions: padding + 1 for the first token of a row that is not padding, and padding for padding tokens.

    >>> roberta_positions(torch.tensor([[5, 1, 7, 1]]), padding=1)
    tensor([[2, 1, 3, 1]])
    >>> roberta_positions(Ragged(torch.tensor([5, 6, 7]), torch.tensor([0, 2, 3])), padding=1).values
    tensor([2, 3, 2])
    """
    is_token = map_values(lambda values: values != padding, ids)
    counted = map_values(lambda values: values.cumsum(-1), is_token)
    if isinstance(counted, Ragged):
        before_N1 = torch.cat((counted.values.new_zeros(1), counted.values))
        row_N = torch.repeat_interleave(counted.lengths, output_size=counted.values.shape[0])
        before_N = before_N1[counted.offsets[:-1]][row_N]  # what was counted before the row of each token
        counted = counted.with_values(counted.values - before_N)
        if counted.first:  # Ragged rows have no padding
            counted.values[: int(counted.offsets[1])] += counted.first
    return map_values(lambda count, token: count * token + padding, counted, is_token)


def _check_start(layer: str, x: Operand, start: int | Tensor) -> None:
    least = start
    if isinstance(start, Tensor):
        rows = (len(x),) if isinstance(x, Ragged) else tuple(x.shape[:-2])
        if start.shape != rows:
            tensors = [NamedShape(name="start", shape=tuple(start.shape), letters=("",) * start.dim())]
            rule = f"start must be an int or of shape {rows}, one per row"
            raise shape_error(layer, rule, tensors, "start", "has another shape")
        least = int(start.min()) if is_readable(start) and start.numel() else 0
    if least < 0:
        raise ValueError(f"{layer}: start must be at least 0, not {least}")


class Repeat(NamedTuple):
    """The result of `SinusoidalPositions.repeats`: encodings `length` positions apart have the distance `distance`."""

    length: int
    distance: float


class SinusoidalPositions(nn.Module):
    """Add sines and cosines of the position, x + PE (Vaswani et al. 2017, section 3.5), without parameters, for any length:

        PE(p, 2 i) = sin(p / base ** (2 i / M)),   PE(p, 2 i + 1) = cos(p / base ** (2 i / M))

    Args:
        d_model: M, even.
        base: 10000 in the paper: wavelengths from 2 pi to nearly base * 2 pi positions.
        layout: "interleaved", as above, or "halves": all sines before all cosines, as in tensor2tensor and Marian.

    Raises:
        ValueError: an odd d_model, a base of at most 1, an unknown layout.

    >>> SinusoidalPositions(4).table(2)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """

    def __init__(self, d_model: int, *, base: float = 10000.0, layout: str = "interleaved") -> None:
        super().__init__()
        _check(self, layout, d_model=d_model)
        check(base > 1.0, f"SinusoidalPositions: base must be greater than 1, not {base!r}")
        self.d_model, self.base, self.layout = d_model, base, layout
        self._table = _PositionTable(self._encodings)

    def forward(self, x: Operand, start: int | Tensor = 0) -> Operand:
        """Add the encoding of each token's position: (..., Q, M) or Ragged (N, M) as x is, in its dtype.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            start: position of the first token, or one per row, (B,) or ragged (R,).

        Raises:
            ShapeError: x has another width, or start is not one per row.
            ValueError: a start below 0.
        """
        check_width("SinusoidalPositions", "x", x, self.d_model)
        position = token_positions("SinusoidalPositions", x, start)
        code = self._table.at(position, compute_dtype(values_of(x).dtype))
        return map_values(lambda values: (values + code).to(values.dtype), x)

    def table(self, length: int) -> Tensor:
        """Return the encodings of positions 0 to length - 1, (length, M) float32, computed in float64 and rounded once."""
        return self._encodings(torch.arange(length)).float()

    def repeats(self, tolerance: float, *, limit: int = 1_000_000) -> Repeat | None:
        """Find the smallest offset at which encodings repeat within a tolerance, and their distance at that offset.

        The distance of two encodings is the norm of their difference divided by the norm of an encoding, sqrt(M / 2):

            distance(n) = |PE(p + n) - PE(p)| / |PE(p)| = sqrt(8 / M * sum_i sin(n w_i / 2) ** 2),  w_i = base ** (-2 i / M)

        It depends only on n: 0 for n = 0, sqrt(2) on average over all n, at most 2. It first grows with n; the result is the
        first n at which it is at most `tolerance` again after having exceeded it. In a sequence of at most that length, only
        the encodings of close neighbours are within the tolerance.

        Args:
            tolerance: greater than 0 and less than sqrt(2).
            limit: the greatest n that is examined.

        Returns:
            None: no repetition up to `limit`.

        Raises:
            ValueError: a tolerance outside its range.

        >>> SinusoidalPositions(2).repeats(0.02)        # 44 is nearly seven times 2 pi
        Repeat(length=44, distance=0.0177...)
        """
        check(
            0.0 < tolerance < math.sqrt(2.0),
            f"SinusoidalPositions.repeats: tolerance must lie between 0 and sqrt(2), not {tolerance!r}",
        )
        frequency_I = _angles(torch.ones(1), self.d_model, self.base)[0]
        has_exceeded = False
        for first in range(1, limit + 1, _CHUNK**2):
            squared_C = _squared_distances(first, frequency_I)[: limit + 1 - first]
            exceeds_C = squared_C > tolerance**2
            if not has_exceeded and not exceeds_C.any():
                continue
            skipped = 0 if has_exceeded else int(exceeds_C.int().argmax())
            has_exceeded = True
            for at in (squared_C[skipped:] <= tolerance**2 + _SLACK).nonzero().flatten().tolist():
                n = first + skipped + at
                # sqrt(mean(4 sin(n w / 2) ** 2)), which has no cancellation.
                distance = float(2.0 * (n * frequency_I / 2.0).sin().square().mean().sqrt())
                if distance <= tolerance:
                    return Repeat(n, distance)
        return None

    def _encodings(self, position: Tensor) -> Tensor:
        angle = _angles(position, self.d_model, self.base)
        if self.layout == "halves":
            return torch.cat((angle.sin(), angle.cos()), dim=-1)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, base={self.base}, layout={self.layout!r}"


def _squared_distances(first: int, frequency_I: Tensor) -> Tensor:
    """Return (C,) for n = first, first + 1, ...: the mean over w of 2 - 2 cos(n w). With n = a + b, cos(n w) = cos(a w) cos(b w) -
    sin(a w) sin(b w): two matrix products, and cosines of few angles."""
    step_S = torch.arange(_CHUNK, dtype=torch.float64)
    angle_SI = (first + step_S * _CHUNK)[:, None] * frequency_I
    step_SI = step_S[:, None] * frequency_I
    cosines_SS = angle_SI.cos() @ step_SI.cos().T - angle_SI.sin() @ step_SI.sin().T
    return 2.0 - 2.0 / len(frequency_I) * cosines_SS.flatten()


class LearnedPositions(nn.Module):
    """Add a learned vector of the position, x + weight[position], as in BERT and GPT-2.

    Gehring et al., "Convolutional Sequence to Sequence Learning" (2017).

    weight: (length, M), initialised from a normal distribution with standard deviation 0.02, as in BERT and GPT-2.

    Args:
        length: the number of positions.
        d_model: M.
    """

    def __init__(self, length: int, d_model: int, *, device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, d_model, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Operand, start: int | Tensor = 0) -> Operand:
        """Add the embedding of each token's position: (..., Q, M) or Ragged (N, M) as x is.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            start: position of the first token, or one per row, (B,) or ragged (R,).

        Raises:
            ShapeError: x has another width, or start is not one per row.
            ValueError: a start below 0; a position of at least `length` (with one start per row this is checked only where reading
                the values needs no synchronisation).
        """
        check_width("LearnedPositions", "x", x, self.weight.shape[1])
        position = token_positions("LearnedPositions", x, start)
        self._check(x, position, start)
        return map_values(lambda values: values + nn.functional.embedding(position, self.weight), x)

    def _check(self, x: Operand, position: Tensor, start: int | Tensor) -> None:
        tokens = x.max_length if isinstance(x, Ragged) else x.shape[-2]
        if isinstance(start, Tensor) or (isinstance(x, Ragged) and x.first):
            last = int(position.max()) if is_readable(position) and position.numel() else 0
        elif torch.compiler.is_compiling() and isinstance(x, Ragged):
            last = 0  # the longest row is unknown while tracing
        else:
            last = start + tokens - 1
        if last >= self.weight.shape[0]:
            raise ValueError(
                f"LearnedPositions: position {last} is out of range: there are {self.weight.shape[0]} positions"
            )

    def extra_repr(self) -> str:
        return f"length={self.weight.shape[0]}, d_model={self.weight.shape[1]}"


class Rotation(NamedTuple):
    """Cosines and sines of the rotary embedding of each token; computed once for all layers of a model."""

    cos: Tensor  # (Q, W / 2), (B, Q, W / 2) or, over a Ragged batch, (N, W / 2)
    sin: Tensor
    is_interleaved: bool

    def at(self, tokens_R: Tensor) -> "Rotation":
        """Return the rotation of some tokens of a Ragged batch, (R,) indices."""
        return Rotation(self.cos[tokens_R], self.sin[tokens_R], self.is_interleaved)

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate the first W elements of each head of (..., Q, H, D) or (N, H, D); the others are unchanged.

        Computed in float32 (float64 for float64), and rounded to the dtype of x.
        """
        width = 2 * self.cos.shape[-1]
        if width > x.shape[-1]:
            rule = f"the head width must be at least rotary_dim, {width}"
            tensors = [NamedShape(name="heads", shape=tuple(x.shape), letters=("",) * (x.dim() - 1) + ("D",))]
            raise shape_error("RotaryPositions", rule, tensors, "heads", f"D is {x.shape[-1]}")
        if not self.is_interleaved and (native := rotate_halves(x, self.cos, self.sin)) is not None:
            return native
        rotated = self._pairs(x[..., :width].to(compute_dtype(x.dtype))).to(x.dtype)
        return rotated if width == x.shape[-1] else torch.cat((rotated, x[..., width:]), dim=-1)

    def _pairs(self, x: Tensor) -> Tensor:
        cos, sin = self.cos[..., None, :].to(x.dtype), self.sin[..., None, :].to(x.dtype)
        if self.is_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class RotaryPositions(nn.Module):
    """Rotate queries and keys by their positions, so that scores depend on distances.

    The pair i of a head at position p, as a complex number, is multiplied by exp(1j * p * base ** (-2 i / W)) (Su et al.,
    "RoFormer", 2021, section 3.2.2).

        rotary = RotaryPositions(64)
        attention(x, rotary=rotary(x), mask=Causal())      # computed once for all layers

    Args:
        rotary_dim: W, the first W elements of each head are rotated; even, at most D.
        base: 10000 in the paper.
        layout: which two elements are a pair: "interleaved", 2 i and 2 i + 1, as in the paper, or "halves", i and
            i + W / 2, as in GPT-NeoX, and in Llama in transformers.
        scaling: other frequencies, for contexts longer than in training; None: no scaling.

    Raises:
        ValueError: an odd rotary_dim, an unknown layout.
    """

    def __init__(
        self,
        rotary_dim: int,
        *,
        base: float = 10000.0,
        layout: str = "interleaved",
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        _check(self, layout, rotary_dim=rotary_dim)
        self.rotary_dim, self.base, self.layout, self.scaling = rotary_dim, base, layout, scaling
        self._table = _PositionTable(self._cos_and_sin)

    def forward(self, x: Operand, start: int | Tensor = 0) -> Rotation:
        """Return the rotation for the tokens of x. Only the shape, dtype and device of x are used.

        Args:
            x: (..., Q, M), or Ragged with values (N, M).
            start: position of the first token, or one per row, (B,) or ragged (R,); with a cache, `cache.start`.

        Raises:
            ShapeError: start is not one per row.
            ValueError: a start below 0.
        """
        position = token_positions("RotaryPositions", x, start)
        cos, sin = self._table.at(position, compute_dtype(values_of(x).dtype)).chunk(2, dim=-1)
        return Rotation(cos, sin, self.layout == "interleaved")

    def _cos_and_sin(self, position: Tensor) -> Tensor:
        if self.scaling is None:
            angle = _angles(position, self.rotary_dim, self.base)
            return torch.cat((angle.cos(), angle.sin()), dim=-1)
        frequency_I = _angles(torch.ones(1, device=position.device), self.rotary_dim, self.base)[0]
        angle = position[..., None] * self.scaling.frequencies(frequency_I, self.base)
        return torch.cat((angle.cos(), angle.sin()), dim=-1) * self.scaling.scale

    def extra_repr(self) -> str:
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        return f"rotary_dim={self.rotary_dim}, base={self.base}, layout={self.layout!r}{scaling}"


class AlibiPositions(nn.Module):
    """The attention bias -slopes[h] * |j - p| (Press, Smith and Lewis, "Train Short, Test Long", 2022, section 3).

    slopes: (H,) float32, a buffer that is not saved: 2 ** (-8 h / H) for h = 1, ..., H where H is a power of two. Else the slopes
    for the power of two below H, followed by every second one of those for the power of two above, as in the authors' code.

        attention(x, bias=AlibiPositions(heads)(), mask=Causal())
    """

    slopes: Tensor

    def __init__(self, num_heads: int, *, device: Device = None) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(num_heads), device=device), persistent=False)

    def forward(self, start: Start = None) -> AlibiBias:
        """Return the bias. `start` is the position of the first query among the keys, as in `uwaga.AlibiBias`."""
        return AlibiBias(self.slopes, start=start)


class RelativePositions(nn.Module):
    """The learned attention bias weight[bucket(j - p), h] (Raffel et al., "T5", 2020, section 2.1): the first half of the
    buckets has one distance each, the others are logarithmically wider, up to `max_distance`. Shared by the layers of a stack.

    weight: (num_buckets, H), initially zero.

    Args:
        num_heads: H.
        num_buckets: the number of buckets; with `bidirectional` half of them are for keys after the query.
        max_distance: distances from here on share the last bucket.
        bidirectional: True in an encoder; False in a decoder, where keys after the query have the bucket of distance 0.
    """

    def __init__(
        self,
        num_heads: int,
        *,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.max_distance, self.bidirectional = max_distance, bidirectional
        self.weight = nn.Parameter(torch.zeros(num_buckets, num_heads, device=device, dtype=dtype))
        self()  # RelativeBias checks num_buckets and max_distance

    def forward(self, start: Start = None) -> RelativeBias:
        """Return the bias. `start` is the position of the first query among the keys, as in `uwaga.RelativeBias`."""
        return RelativeBias(self.weight, bidirectional=self.bidirectional, max_distance=self.max_distance, start=start)

    def extra_repr(self) -> str:
        buckets, heads = self.weight.shape
        return f"num_heads={heads}, num_buckets={buckets}, max_distance={self.max_distance}, bidirectional={self.bidirectional}"


def alibi_slopes(heads: int) -> list[float]:
    """Return the slopes of AlibiPositions, one for each head."""
    below = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    between = [2.0 ** (-8.0 * (h + 1) / (2 * below)) for h in range(0, 2 * below, 2)]
    return slopes + between[: heads - below]


class _PositionTable:
    """A cache of `rows(position)`, a function from int64 positions (...) to float64 (..., W), rounded once.

    On the CPU, and not while tracing, the rows of all positions so far are kept, and their number at least doubles when it must
    grow. On an accelerator computing them is faster than reading the greatest position; a traced graph cannot keep them.
    """

    def __init__(self, rows: Callable[[Tensor], Tensor]) -> None:
        self._rows = rows
        self._kept: dict[torch.dtype, Tensor] = {}

    def at(self, position: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the rows (..., W) of the positions (...), which are not negative."""
        if not is_readable(position) or position.numel() == 0:
            return self._rows(position).to(dtype)
        needed, kept = int(position.max()) + 1, self._kept.get(dtype)
        if kept is None or len(kept) < needed:
            length = needed if kept is None else max(needed, 2 * len(kept))
            # Tensors made in inference mode cannot be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                kept = self._kept[dtype] = self._rows(torch.arange(length)).to(dtype)
        return kept[position]


def _angles(position: Tensor, width: int, base: float) -> Tensor:
    """Return (..., width / 2) float64: position * base ** (-2 i / width)."""
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=position.device) / width
    return position[..., None] * base**-exponent


def _check(layer: nn.Module, layout: str, **widths: int) -> None:
    wrong = [
        f"{name} must be even and positive, not {width}" for name, width in widths.items() if width < 2 or width % 2
    ]
    if layout not in ("interleaved", "halves"):
        wrong.append(f"layout must be 'interleaved' or 'halves', not {layout!r}")
    if wrong:
        raise ValueError(f"{type(layer).__name__}: {wrong[0]}")
