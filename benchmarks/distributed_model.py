"""How fast would attention over 2 to 64 machines be, by a model with measured figures?

Measured in processes of one thread: the pairs of a query and a key that one process computes in a second, forward and backward; the bytes that go
from one process to another in a second; and the speed of two processes, to compare with the model's own answer for them.

The model runs the schedule of uwaga.sequence_parallel: which blocks of keys visit which processes in which order. A block is computed while the next
one arrives and leaves (ring.py). A machine is `--cores` measured processes, and its link sends and receives at the same time. Mask: causal,
B = 1, H = G, D = E. "speed" is the time of one machine over P times the time of P machines; 1 is linear.

The model leaves out copies and headers of a process, latencies, and everything of a real network except its rate.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from distributed import TIMEOUT, measured
from harness import DTYPES, Report, of_processes, options, parse

import uwaga
from uwaga.ops.attention.parts import PART_KEYS, PART_QUERIES
from uwaga.sequence_parallel.ring import KEY_STEP, turns_of
from uwaga.sequence_parallel.schedule import Plan, Steps, make_plan

# Products of two matrices that the passes of the backward ring make (of queries, of keys), of the five of one pass.
_OF_QUERIES, _OF_KEYS = 3 / 5, 4 / 5


class Case(NamedTuple):
    tokens: int
    heads: int
    width: int
    item: int  # bytes of a number
    forward: float  # pairs of one head that a machine computes in a second
    backward: float
    rate: float  # bytes that a link carries in a second

    def alone(self, backward: bool) -> float:
        """Return the seconds of one machine."""
        return self.tokens**2 / 2 * self.heads / (self.backward if backward else self.forward)

    def sending(self, rows: float) -> float:
        """Return the seconds of a link for `rows` rows of width D of each head."""
        return rows * self.heads * self.width * self.item / self.rate


def seconds(case: Case, size: int, *, backward: bool) -> float:
    """Return the time that `size` machines take."""
    if not backward:
        plan = _plan(case, size, queries=True)
        return 2 * _moving(case, plan, size) + _ring(case, plan, size, case.alone(backward=False), 2)
    of_queries, of_keys = _plan(case, size, queries=True), _plan(case, size, queries=False)
    alone = case.alone(backward=True)
    # Output gradients to where queries are computed, and gradients home; keys and values to where they stay, and theirs home.
    moving = 2 * _moving(case, of_queries, size) + 4 * _moving(case, of_keys, size)
    rings = ((of_queries, _OF_QUERIES, 2), (of_keys, _OF_KEYS, 3))
    return moving + sum(_ring(case, plan, size, alone * share, rows) for plan, share, rows in rings)


def _plan(case: Case, size: int, *, queries: bool) -> Plan:
    """What stays: queries or keys, under a causal mask."""
    if queries:
        return make_plan(lambda rows: (0, rows[1]), case.tokens, case.tokens, Steps(PART_QUERIES, PART_KEYS), size)
    return make_plan(lambda keys: (keys[0], case.tokens), case.tokens, case.tokens, Steps(KEY_STEP, PART_QUERIES), size)


def _edges(case: Case, size: int) -> list[tuple[int, int]]:
    return list(pairwise([case.tokens * n // size for n in range(size + 1)]))


def _moving(case: Case, plan: Plan, size: int) -> float:
    """Return the seconds that the busiest sender needs to move rows of width D to the process that computes them, or back."""
    rows = [
        end - begin - sum(max(min(last, end) - max(first, begin), 0) for first, last in intervals)
        for intervals, (begin, end) in zip(plan.intervals(size), _edges(case, size), strict=True)
    ]
    return case.sending(max(rows))


def _ring(case: Case, plan: Plan, size: int, alone: float, rows: int) -> float:
    """Seconds of `ring._travel` in all processes. alone: of one machine; rows: of width D that travel for each token."""
    orders = [plan.visits(b, _owner(case, size, block), size) for b, block in enumerate(plan.blocks)]
    turns = [turns_of(orders, rank) for rank in range(size)]
    early = [{b: n for n, blocks in before.items() for b in blocks} for before, _ in turns]
    # When a process began each block, after the beginning of all.
    begun: list[list[float]] = [[0.0] for _ in range(size)]
    computed = [0.0] * size  # when it is through with the last one
    left: list[dict[int, float]] = [{} for _ in range(size)]  # when a block that it passed on was with the next process
    relayed: list[int | None] = [None] * size  # the block before, where its buffer is still to leave
    sends, takes = [0.0] * size, [0.0] * size  # when its link is free
    of_pair = alone / sum(map(sum, plan.work))
    for b, visits in enumerate(orders):
        # A process asks for a block when it begins the one before, and sends its own then or earlier.
        source, ready = _owner(case, size, plan.blocks[b]), 0.0
        for at, rank in enumerate(visits):
            n, arrived = len(begun[rank]) - 1, 0.0
            if rank != source:
                arrived = max(ready, begun[rank][n], sends[source], takes[rank])
                arrived += case.sending(rows * (plan.blocks[b][1] - plan.blocks[b][0]))
                sends[source] = takes[rank] = left[source][b] = arrived
            waited = [left[rank].get(other, 0.0) for other in (*turns[rank][1].get(n, ()), relayed[rank])]
            begins = max(computed[rank], arrived, *waited)
            ready = begins if rank != source else begun[rank][early[rank].get(b, n - 1) + 1]
            begun[rank].append(begins)
            relayed[rank] = b if rank != source and at + 1 < len(visits) else None
            computed[rank] = begins + sum(plan.work[x][b] for x in plan.pieces_of(rank)) * of_pair
            source = rank
    return max(computed)


def _owner(case: Case, size: int, block: tuple[int, int]) -> int:
    return next(rank for rank, (_, end) in enumerate(_edges(case, size)) if block[0] < end)


def bandwidth(rank: int, folder: Path) -> float:
    """Return the bytes a second between two processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=TIMEOUT)
    result = uwaga.sequence_parallel.doctor()[1].megabytes_per_second * 1e6
    dist.barrier()
    return result


if __name__ == "__main__":
    parser = options(__doc__ or "", grid=False)
    parser.add_argument("--measured-n", type=int, default=16384, help="number of measured tokens")
    parser.add_argument("--n", type=int, nargs="+", default=[65536, 1_000_000], help="number of tokens in the model")
    parser.add_argument("--machines", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64])
    parser.add_argument("--gbit", type=float, nargs="+", default=[10, 100], help="rate of a link in 10^9 bits a second")
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--measured-heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--cores", type=int, default=32, help="cores of a machine")
    parser.add_argument("--turns", type=int, default=4, help="number of timed turns")
    chosen = parse(parser)
    if chosen.quick:
        chosen.measured_n, chosen.n, chosen.machines = 64, [4096], [2, 64]
        chosen.measured_heads, chosen.width, chosen.turns = 2, 16, 1
    headings = ["pass", "N", "link", *(f"{size} machines" for size in chosen.machines)]
    report = Report(chosen, "Attention over many machines, by a model", headings)
    models, chosen.heads = chosen.heads, chosen.measured_heads  # `measured` reads it
    times = measured(2, chosen.measured_n, "causal", chosen)["times"]
    rate = max(of_processes(2, bandwidth))
    pairs = chosen.measured_n**2 / 2 * chosen.heads
    speeds = {name: pairs / times[f"one {name}"] for name in ("forward", "backward")}
    case = partial(Case, width=chosen.width, item=DTYPES[chosen.dtype[0]].itemsize)
    for name in speeds:
        for tokens in chosen.n:
            for gbit in chosen.gbit:
                machine = case(
                    tokens,
                    models,
                    forward=speeds["forward"] * chosen.cores,
                    backward=speeds["backward"] * chosen.cores,
                    rate=gbit * 1e9 / 8,
                )
                alone = machine.alone(name == "backward")
                cells = [alone / size / seconds(machine, size, backward=name == "backward") for size in chosen.machines]
                report.row(name, f"{tokens:,}", f"{gbit:g} Gbit/s", *(f"{x:.2f}" for x in cells))
    report.say(f"\nMeasured: {rate / 1e6:,.0f} MB a second between two processes.\n")
    for name, speed in speeds.items():
        here = case(chosen.measured_n, chosen.heads, forward=speeds["forward"], backward=speeds["backward"], rate=rate)
        model = here.alone(name == "backward") / 2 / seconds(here, 2, backward=name == "backward")
        found = times[f"one {name}"] / 2 / times[f"uwaga {name}"]
        report.say(
            f"{name}: {speed:.2e} pairs a second in one process. Two processes at N = {chosen.measured_n:,}, {chosen.heads} heads: "
            f"measured {found:.2f}, by the model {model:.2f} of linear.\n"
        )
