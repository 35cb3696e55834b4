import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uwaga.models.text.windows import Policy


@given(tokens=st.integers(1, 200), max_tokens=st.integers(1, 30), overlap=st.integers(0, 29))
def test_windows_cover_every_token_fit_and_are_of_one_size(tokens: int, max_tokens: int, overlap: int) -> None:
    if overlap >= max_tokens:
        return
    windows = Policy(overflow="windows", max_tokens=max_tokens, overlap=overlap).windows(tokens)
    sizes = [stop - start for start, stop in windows]
    assert windows[0][0] == 0
    assert windows[-1][1] == tokens
    assert max(sizes) <= max_tokens
    assert max(sizes) - min(sizes) <= 1
    for (_, stop), (start, _) in itertools.pairwise(windows):
        assert stop - start == overlap
    assert len(windows) == (1 if tokens <= max_tokens else -(-(tokens - overlap) // (max_tokens - overlap)))


def test_truncation_keeps_the_beginning() -> None:
    assert Policy(overflow="truncate", max_tokens=4).windows(9) == [(0, 4)]
    assert Policy(overflow="truncate", max_tokens=4).windows(3) == [(0, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overflow": "cut"}, "TextEncoder: overflow must be one of 'error', 'truncate', 'mean', 'windows', not 'cut'"),
        ({"overflow": "truncate", "overlap": 2}, "TextEncoder: overlap needs overflow='mean' or 'windows', not 'truncate'"),
        ({"overflow": "mean", "overlap": 8}, "TextEncoder: overlap must be from 0 to 7, not 8"),
        ({"overflow": "mean", "overlap": -1}, "TextEncoder: overlap must be from 0 to 7, not -1"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Policy(max_tokens=8, **options)
    assert str(caught.value) == message
