"""The options of `generate`, checked."""

from dataclasses import dataclass

from uwaga._base.validators import POSITIVE, OptionValidator, check, is_number, number, whole

_ALWAYS = {
    "max_new_tokens": whole(1),
    "do_sample": OptionValidator("True or False", lambda x: isinstance(x, bool)),
    "num_beams": whole(1),
}
# By the options that they need.
_SAMPLING = {
    "temperature": POSITIVE,
    "top_k": OptionValidator(f"{whole(1).words}, or None for all", whole(1).accepts),
    "top_p": number("greater than 0 and at most 1", lambda x: 0.0 < x <= 1.0),
    "seed": OptionValidator("a whole number from 0 to 2**64 - 1", whole(0, 2**64 - 1).accepts),
}
_BEAM_SEARCH = {
    "length_penalty": OptionValidator("a finite number", is_number),
    "early_stopping": OptionValidator("True, False or 'never'", lambda x: isinstance(x, bool) or x == "never"),
}


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
        check("generate", self, _ALWAYS)
        if self.do_sample and self.num_beams > 1:
            raise ValueError("generate: do_sample=True and num_beams > 1 exclude each other")
        for mode, is_on, kinds in (
            ("do_sample=True", self.do_sample, _SAMPLING),
            ("num_beams > 1", self.num_beams > 1, _BEAM_SEARCH),
        ):
            given = {name: kind for name, kind in kinds.items() if getattr(self, name) is not None}
            for name in given:
                if not is_on:
                    raise ValueError(f"generate: {name} has no effect without {mode}")
            check("generate", self, given)
