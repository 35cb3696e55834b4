"""Frequencies of rotary positions for contexts that are longer than those of the training. Letters: W rotated elements of a head."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = ("linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How `RotaryPositions` changes its frequencies f = base ** (-2 i / W); names are those of transformers' rope_parameters.

    - linear: f / factor for all: positions are interpolated (Chen et al., "Extending Context Window ... via Positional Interpolation", 2023).
    - dynamic: the frequencies of texts of at most original_max_position_embeddings tokens, which are unchanged; longer ones would have
      frequencies by their length, and those of shorter texts after them (bloc97 and emozilla 2023): models reject them.
    - llama3: f / factor for wavelengths above original / low_freq_factor, f below original / high_freq_factor, and a line between
      them (Llama Team, "The Llama 3 Herd of Models", 2024).
    - yarn: f / factor for few rotations in the original context, f for many, a ramp between beta_slow and beta_fast rotations, and
      cosines and sines times `scale` (Peng et al., "YaRN", 2024).

    Raises:
        ValueError: an unknown kind, or numbers without a meaning.
    """

    kind: str
    factor: float
    original_max_position_embeddings: int | None = None  # the length of texts in training; needed by llama3 and yarn
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True  # whether the ends of yarn's ramp are whole numbers
    attention_factor: float | None = None  # yarn's `scale`; None: by factor, mscale and mscale_all_dim
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        for rule in self._broken_rules():
            raise ValueError(f"RotaryScaling: {rule}")

    def _broken_rules(self) -> Iterator[str]:
        length, low, high = self.original_max_position_embeddings, self.low_freq_factor, self.high_freq_factor
        if self.kind not in KINDS:
            yield f"kind must be one of {', '.join(map(repr, KINDS))}, not {self.kind!r}"
        if not self.factor > 0:
            yield f"factor must be positive, not {self.factor!r}"
        if self.kind in ("llama3", "yarn") and not (length or 0) >= 1:
            yield f"{self.kind} needs original_max_position_embeddings of at least 1, not {length!r}"
        if self.kind == "llama3" and not 0 < low < high:
            yield f"low_freq_factor must be above 0 and below high_freq_factor, not {low!r} and {high!r}"
        if self.kind == "yarn" and not 0 < self.beta_slow <= self.beta_fast:
            yield f"beta_slow must be above 0 and at most beta_fast, not {self.beta_slow!r} and {self.beta_fast!r}"

    @property
    def scale(self) -> float:
        """Return the factor of cosines and sines: 1 except in yarn."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._growth(self.mscale) / self._growth(self.mscale_all_dim)
        return self._growth(1.0)

    def _growth(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

    def frequencies(self, frequency_I: Tensor, base: float) -> Tensor:
        """Return (W / 2,) float64 from the frequencies (W / 2,) without scaling, base ** (-2 i / W)."""
        if self.kind == "dynamic":
            return frequency_I
        if self.kind == "linear":
            return frequency_I / self.factor
        original = self.original_max_position_embeddings
        assert original is not None
        if self.kind == "llama3":
            rotations_I = original * frequency_I / (2 * math.pi)
            low, high = self.low_freq_factor, self.high_freq_factor
            share_I = ((rotations_I - low) / (high - low)).clamp(0, 1)  # of the frequency as it is
        else:
            share_I = 1 - self._ramp(len(frequency_I), base, original).to(frequency_I)
        return frequency_I * (share_I + (1 - share_I) / self.factor)

    def _ramp(self, count: int, base: float, original: int) -> Tensor:
        """Return (W / 2,) from 0 to 1 between the pairs that rotate beta_fast and beta_slow times in the original context."""
        ends = [
            count * math.log(original / (beta * 2 * math.pi)) / math.log(base)
            for beta in (self.beta_fast, self.beta_slow)
        ]
        low, high = (math.floor(ends[0]), math.ceil(ends[1])) if self.truncate else ends
        low, high = max(low, 0), min(high, 2 * count - 1)
        high = high + 0.001 if low == high else high  # as in transformers, which avoids a division by 0 so
        return ((torch.arange(count, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
