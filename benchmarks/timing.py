"""Time several ways of doing one thing against each other, in one process and in turn.

Clock frequency, caches and other processes change from second to second, by more than the difference to be measured. So
the sides run in rounds, one sample of each, first in one order and then in the other; a ratio is taken within a round and
the median over the rounds.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

Side = Callable[[], object]
Clock = Callable[[], float]

_SAMPLE_SECONDS = 0.005  # a sample repeats its call for about this long, far above the resolution of the clock


class Comparison(NamedTuple):
    """What `compare` measured: for every side the seconds of one call, one figure per round."""

    samples: dict[str, list[float]]

    @property
    def rounds(self) -> int:
        return min(len(samples) for samples in self.samples.values())

    def seconds(self, side: str) -> float:
        """Return the median over the rounds."""
        return statistics.median(self.samples[side])

    def ratio(self, side: str, to: str) -> float:
        """Return how many times longer `side` takes than `to`: the median of the ratios within each round.

        >>> Comparison({"a": [2.0, 4.0, 6.0], "b": [1.0, 1.0, 2.0]}).ratio("a", to="b")
        3.0
        """
        return statistics.median(a / b for a, b in zip(self.samples[side], self.samples[to], strict=True))


def compare(
    sides: Mapping[str, Side], *, seconds: float = 1.0, least: int = 3, most: int = 51, clock: Clock = time.perf_counter
) -> Comparison:
    """Run the sides in turn for about `seconds` in all.

    Args:
        sides: what to call, by name.
        seconds: when to stop starting new rounds.
        least: the smallest number of rounds, however long they take.
        most: the largest number of rounds.
        clock: what samples are measured by: time.process_time is the processor's time of all threads of this process, which other
            processes lengthen less.
    """
    repeats = {name: _repeats(side, clock) for name, side in sides.items()}
    samples: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    started = time.perf_counter()
    for round_number in range(most):
        if round_number >= least and time.perf_counter() - started > seconds:
            break
        for name in order:
            samples[name].append(_sample(sides[name], repeats[name], clock))
        order.reverse()
    return Comparison(samples)


def _repeats(side: Side, clock: Clock) -> int:
    side()  # warm-up: memory pages, caches and what is created on first use
    once = _sample(side, 1, clock)
    return max(1, int(_SAMPLE_SECONDS / max(once, 1e-9)))


def _sample(side: Side, repeats: int, clock: Clock) -> float:
    started = clock()
    for _ in range(repeats):
        side()
    return (clock() - started) / repeats
