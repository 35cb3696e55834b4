"""The options of `generate`, checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from uwaga._base.options import Integer, OptionError, Positive, Real, Size, Switch, read

_ALWAYS = {"max_new_tokens": Size, "do_sample": Switch, "num_beams": Size}
# By the options that they need.
_SAMPLING = {
    "temperature": Positive,
    "top_k": Size,
    "top_p": Annotated[Real, Gt(0), Le(1)],
    "seed": Annotated[Integer, Ge(0), Le(2**64 - 1)],
}
_BEAM_SEARCH = {"length_penalty": Real, "early_stopping": Literal[True, False, "never"]}


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
        self._check(_ALWAYS)
        if self.do_sample and self.num_beams > 1:
            raise ValueError("generate: do_sample=True and num_beams > 1 exclude each other")
        for mode, is_on, rules in (
            ("do_sample=True", self.do_sample, _SAMPLING),
            ("num_beams > 1", self.num_beams > 1, _BEAM_SEARCH),
        ):
            given = {name: rule for name, rule in rules.items() if getattr(self, name) is not None}
            for name in given:
                if not is_on:
                    raise ValueError(f"generate: {name} has no effect without {mode}")
            self._check(given)

    def _check(self, rules: Mapping[str, Any]) -> None:
        for name, rule in rules.items():
            try:
                read(rule, getattr(self, name), path=name)
            except OptionError as error:
                raise ValueError(f"generate: {error}") from None
