"""Random histories of a database, compared with attention over its rows in float64 and with one segment in memory, bit for bit."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from uwaga import SoftDatabase
from uwaga.store import reading, segments
from uwaga.store.database import Answer
from uwaga.store.reading import LiveRows

WIDTH, VALUES = 4, 3


class History(RuleBasedStateMachine):
    """Appends, deletions, compactions and reopenings; what the rows are is also kept in a plain dictionary."""

    dtype = torch.float32

    @initialize(seed=st.integers(0, 999), own_values=st.booleans(), heads=st.sampled_from([1, 1, 2]))
    def begin(self, seed: int, own_values: bool, heads: int) -> None:
        self.chance = torch.Generator().manual_seed(seed)
        self.folder, self.heads = Path(tempfile.mkdtemp()), heads
        self.own_values = own_values
        width = VALUES if own_values else None
        self.db = SoftDatabase.create(
            self.folder / "db", key_width=WIDTH, value_width=width, heads=heads, dtype=self.dtype
        )
        self.rows: dict[int, tuple[Tensor, Tensor, dict]] = {}
        self.append(6000, True, 10.0)

    def random(self, *sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=self.chance)

    def tail(self, width: int) -> tuple[int, ...]:
        return (width,) if self.heads == 1 else (self.heads, width)

    @rule(
        count=st.sampled_from([1, 2, 700, 2048, 3000]),
        has_records=st.booleans(),
        spread=st.sampled_from([0.1, 1.0, 30.0]),
    )
    def append(self, count: int, has_records: bool, spread: float) -> None:
        # Neighbours are near each other, so that bounds say something.
        centres = self.random(count // 2048 + 1, *self.tail(WIDTH)).repeat_interleave(2048, dim=0)[:count]
        keys = (spread * (centres + 0.1 * self.random(count, *self.tail(WIDTH)))).to(self.dtype)
        values = self.random(count, *self.tail(VALUES)).to(self.dtype) if self.own_values else None
        records = (
            [{"number": self.next + n, "text": f"row {self.next + n}"} for n in range(count)] if has_records else None
        )
        ids = self.db.append(keys, values, records)
        assert ids == range(self.next, self.next + count)
        for n, number in enumerate(ids):
            self.rows[number] = (keys[n], keys[n] if values is None else values[n], records[n] if records else {})
        self.last = ids.stop

    @property
    def next(self) -> int:
        return getattr(self, "last", 0)

    @precondition(lambda self: self.rows)
    @rule(share=st.sampled_from([0.001, 0.1, 0.3, 0.3, 1.0]), run=st.booleans())
    def delete(self, share: float, run: bool) -> None:
        ids = sorted(self.rows)
        count = max(1, int(share * len(ids)))
        start = int(torch.randint(len(ids) - count + 1, (), generator=self.chance))
        chosen = ids[start : start + count]
        if not run:
            chosen = [ids[n] for n in torch.randperm(len(ids), generator=self.chance)[:count]]
        self.db.delete(chosen)
        for number in chosen:
            del self.rows[number]

    @rule()
    def compact(self) -> None:
        before = self.db.stats()["bytes"]
        freed = self.db.compact()
        width = WIDTH + VALUES * self.own_values
        assert self.db.stats()["bytes"] == before - freed == len(self.rows) * self.heads * width * self.dtype.itemsize
        assert self.db.stats()["deleted"] == 0

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.db = SoftDatabase.open(self.folder / "db")

    @rule(scale=st.sampled_from([0.02, 0.5, 5.0, -0.5]), where=st.booleans())
    def read(self, scale: float, where: bool) -> None:
        query = self.random(3, *self.tail(WIDTH))
        middle = self.next // 2
        kept = {n: row for n, row in self.rows.items() if not where or row[2].get("number", -1) >= middle}
        condition = {"where": "number >= ?", "parameters": [middle]} if where and "number" in self.db.fields else {}
        if where and not condition:
            return
        answer = self.db.attend(query, scale=scale, top=5, **condition)
        self.compare(answer, query, kept, scale)
        if kept:
            assert_same_bits(answer, self.in_memory(query, kept, scale))
            alone = self.db.attend(query[1], scale=scale, top=5, **condition)
            assert torch.equal(alone.value, answer.value[1])
            assert torch.equal(alone.lse, answer.lse[1])
            assert torch.equal(alone.top.ids, answer.top.ids[1])

    def compare(self, answer: Answer, query: Tensor, kept: dict, scale: float) -> None:
        """With attention over the rows in float64."""
        total = answer.top.weights.sum(-1) + answer.unlisted_weight
        if not kept:
            assert not answer.value.any()
            assert answer.lse.isneginf().all()
            return
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
        query_QHD = query.reshape(3, self.heads, WIDTH).double()
        key_nHD, value_nHE = (torch.stack([row[n] for row in kept.values()]).double() for n in (0, 1))
        key_nHD, value_nHE = (x.reshape(len(kept), self.heads, -1) for x in (key_nHD, value_nHE))
        scores = torch.einsum("qhd,nhd->qhn", query_QHD, key_nHD) * scale
        weights = scores.softmax(-1)
        # A score in float32 is wrong by a few units of its last place, and a weight by as much relative to itself.
        unit = 2.0**-23 * (2 + 2 * float(scores.abs().max())) * 4
        exact = torch.einsum("qhn,nhe->qhe", weights, value_nHE).reshape(answer.value.shape)
        assert (answer.value - exact).abs().max() <= unit * float(value_nHE.abs().max())
        assert (answer.lse.reshape(3, self.heads) - scores.logsumexp(-1)).abs().max() <= unit
        entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
        assert (answer.entropy.reshape(3, self.heads) - entropy).abs().max() <= 30 * unit
        best = scores.topk(min(5, len(kept)), -1)
        result = answer.top.scores.reshape(3, self.heads, -1)
        assert (result - best.values).abs().max() <= unit * (1 + float(scores.abs().max()))
        shares = weights.gather(-1, best.indices)
        assert (answer.top.weights.reshape(3, self.heads, -1) - shares).abs().max() <= 2 * unit
        ids, numbers = answer.top.ids.flatten().tolist(), np.array(list(kept))
        records = nested(answer.top.records)
        assert set(ids) <= set(numbers.tolist())
        assert records == [kept[n][2] for n in ids]

    def in_memory(self, query: Tensor, kept: dict, scale: float) -> reading.PassResult:
        """The same from one segment in memory."""
        ids = np.array(list(kept))
        keys = torch.stack([row[0] for row in kept.values()]).reshape(len(kept), self.heads, -1).float()
        values = torch.stack([row[1] for row in kept.values()]).reshape(len(kept), self.heads, -1).float()
        entry = segments.Entry(int(ids[0]), int(ids[-1]), len(ids), "", b"")
        bounds = (torch.stack(parts) for parts in zip(*map(segments.bound, keys.split(segments.CHUNK)), strict=True))
        segment = segments.SegmentFile(entry, keys, values if self.own_values else keys, ids, *bounds)
        live, top = LiveRows([segment], [None]), min(5, len(kept))
        (result,) = reading.passes(live, query.reshape(3, self.heads, -1), scale, top, attention=True)
        return result

    @invariant()
    def length(self) -> None:
        assert len(self.db) == len(self.rows)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            assert self.db.ids().tolist() == sorted(self.rows)
            for row in list(self.db)[::97]:
                key, value, record = self.rows[row.id]
                assert torch.equal(row.key, key)
                assert torch.equal(row.value, value)
                assert row.record == record
            assert self.db.check() == []
            self.db.close()
            shutil.rmtree(self.folder)


class History16(History):
    dtype = torch.bfloat16


def nested(records: object) -> list:
    return [x for record in records for x in nested(record)] if isinstance(records, list) else [records]


def assert_same_bits(answer: Answer, result: reading.PassResult) -> None:
    heads = result.lse.size // 3

    def as_answer(x: Tensor | np.ndarray) -> Tensor:
        return torch.as_tensor(x).unflatten(0, (heads, 3)).transpose(0, 1)

    for mine, other in ((answer.value, result.value), (answer.lse, result.lse), (answer.entropy, result.entropy)):
        assert torch.equal(mine, as_answer(other).reshape(mine.shape))
    for mine, other in zip(answer.top[:3], (result.top_ids, result.top_weights, result.top_scores), strict=True):
        assert torch.equal(mine, as_answer(other).reshape(mine.shape))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [History, pytest.param(History16, marks=pytest.mark.stress)])
def test_random_histories(machine: type[History]) -> None:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    options = settings(max_examples=3, stateful_step_count=9, suppress_health_check=checks)
    run_state_machine_as_test(machine, settings=options)
