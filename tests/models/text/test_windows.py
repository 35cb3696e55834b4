import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uwaga.models.text.windows import Policy


@given(tokens=st.integers(1, 200), room=st.integers(1, 30), overlap=st.integers(0, 29))
def test_windows_cover_every_token_fit_and_are_of_one_size(tokens: int, room: int, overlap: int) -> None:
    if overlap >= room:
        return
    windows = Policy(long="windows", room=room, overlap=overlap).windows(tokens)
    sizes = [stop - start for start, stop in windows]
    assert windows[0][0] == 0
    assert windows[-1][1] == tokens
    assert max(sizes) <= room
    assert max(sizes) - min(sizes) <= 1
    for (_, stop), (start, _) in itertools.pairwise(windows):
        assert stop - start == overlap
    assert len(windows) == (1 if tokens <= room else -(-(tokens - overlap) // (room - overlap)))


def test_truncation_keeps_the_beginning() -> None:
    assert Policy(long="truncate", room=4).windows(9) == [(0, 4)]
    assert Policy(long="truncate", room=4).windows(3) == [(0, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"long": "cut"}, "TextEncoder: long must be one of 'error', 'truncate', 'mean', 'windows', not 'cut'"),
        ({"long": "truncate", "overlap": 2}, "TextEncoder: overlap belongs to long='mean' and long='windows', not to 'truncate'"),
        ({"long": "mean", "overlap": 8}, "TextEncoder: overlap must be from 0 to 7, not 8"),
        ({"long": "mean", "overlap": -1}, "TextEncoder: overlap must be from 0 to 7, not -1"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(options: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Policy(room=8, **options)
    assert str(caught.value) == message
