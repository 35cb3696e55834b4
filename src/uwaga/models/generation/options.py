"""The options of `generate`, checked."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of `generate` that decide which tokens come next. None and False: not given.

    Raises:
        ValueError: an option of a wrong type or value, or one that has no effect with the others.
    """

    max_new_tokens: int
    do_sample: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    num_beams: int
    length_penalty: float | None
    early_stopping: bool | str | None
    seed: int | None
    eos_token_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        _need("max_new_tokens", "a whole number of at least 1", self.max_new_tokens, _is_whole(self.max_new_tokens, 1))
        _need("do_sample", "True or False", self.do_sample, isinstance(self.do_sample, bool))
        _need("num_beams", "a whole number of at least 1", self.num_beams, _is_whole(self.num_beams, 1))
        if self.do_sample and self.num_beams > 1:
            raise ValueError("generate: do_sample=True and num_beams > 1 exclude each other")
        self._check_sampling()
        self._check_beams()

    def _check_sampling(self) -> None:
        _need_mode("do_sample=True", self.do_sample, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        _need_mode("do_sample=True", self.do_sample, seed=self.seed)
        if self.temperature is not None:
            fits = _is_number(self.temperature) and 0.0 < self.temperature < math.inf
            _need("temperature", "a positive number", self.temperature, fits)
        if self.top_k is not None:
            _need("top_k", "a whole number of at least 1, or None for all", self.top_k, _is_whole(self.top_k, 1))
        if self.top_p is not None:
            fits = _is_number(self.top_p) and 0.0 < self.top_p <= 1.0
            _need("top_p", "greater than 0 and at most 1", self.top_p, fits)
        if self.seed is not None:
            _need(
                "seed", "a whole number from 0 to 2**64 - 1", self.seed, _is_whole(self.seed, 0) and self.seed < 2**64
            )

    def _check_beams(self) -> None:
        is_search = self.num_beams > 1
        _need_mode("num_beams > 1", is_search, length_penalty=self.length_penalty, early_stopping=self.early_stopping)
        if self.length_penalty is not None:
            fits = _is_number(self.length_penalty) and math.isfinite(self.length_penalty)
            _need("length_penalty", "a finite number", self.length_penalty, fits)
        if self.early_stopping is not None:
            fits = isinstance(self.early_stopping, bool) or self.early_stopping == "never"
            _need("early_stopping", "True, False or 'never'", self.early_stopping, fits)


def _need(name: str, words: str, value: object, fits: bool) -> None:
    if not fits:
        raise ValueError(f"generate: {name} must be {words}, not {value!r}")


def _need_mode(mode: str, is_on: bool, **options: object) -> None:
    """An option without effect is an error of the caller."""
    for name, value in options.items():
        if value is not None and not is_on:
            raise ValueError(f"generate: {name} has no effect without {mode}")


def _is_whole(x: object, least: int) -> bool:
    return type(x) is int and x >= least


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)
