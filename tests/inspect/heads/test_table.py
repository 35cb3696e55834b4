"""Head tables: every number is the mean over queries of the statistic of the dense matrix."""

import pandas
import pytest
import torch
from IPython.core.formatters import HTMLFormatter
from small_models import ask

import uwaga
from uwaga.inspect.heads.scores import induction, previous_token
from uwaga.inspect.heads.table import HeadTable, head_changes, head_table
from uwaga.inspect.recordings.recording import TokenStrings
from uwaga.maps.map import AttentionMap
from uwaga.nn.attention_id import AttentionId

TOKENS = torch.tensor([3, 5, 3, 3, 7, 5])


def layer(*batch: int, **options) -> AttentionMap:
    query, key = (torch.randn(*batch, 2, 6, 4).double() for _ in range(2))
    return AttentionMap(query, key, **{"mask": uwaga.Causal()} | options)


def statistics(dense_HQK: torch.Tensor) -> dict[str, torch.Tensor]:
    """(H, Q) each, of a causal map."""
    safe = dense_HQK.where(dense_HQK > 0, 1.0)
    i, j = torch.arange(dense_HQK.shape[-2])[:, None], torch.arange(dense_HQK.shape[-1])
    entropy = -(dense_HQK * safe.log()).sum(-1)
    return {
        "entropy": entropy,
        "normalized_entropy": torch.cat((entropy[..., :1] * 0, entropy[..., 1:] / (i[1:, 0] + 1).log()), -1),
        "peak": dense_HQK.amax(-1),
        "distance": (dense_HQK * (j - i).abs()).sum(-1),
        "effective_count": 1 / dense_HQK.square().sum(-1),
        "sink": dense_HQK[..., 0],
        "learned_sink": 1 - dense_HQK.sum(-1),
    }


def test_every_column_is_the_mean_of_its_statistic() -> None:
    maps = [layer(), layer(sinks=torch.randn(2).double())]
    table = head_table(maps, TOKENS)
    assert table.columns["layer"] == [0, 0, 1, 1]
    assert table.columns["head"] == [0, 1, 0, 1]
    for at, m in enumerate(maps):
        by_name = {name: values.mean(-1) for name, values in statistics(m.to_dense()).items()}
        by_name |= {"previous_token": previous_token(m), "induction": induction(m, TOKENS)}
        for name, values in by_name.items():
            got = torch.tensor(table.columns[name][2 * at : 2 * at + 2]).double()
            torch.testing.assert_close(got, values, msg=name)


def test_every_query_that_sees_something_counts_once() -> None:
    x = uwaga.Ragged.from_list([torch.randn(n, 2, 4).double() for n in (1, 4, 2)])
    m = AttentionMap(x, x, mask=uwaga.Causal())
    result = torch.cat([statistics(part.to_dense())["entropy"] for part in m], dim=1).mean(1)
    torch.testing.assert_close(torch.tensor(head_table(m).columns["entropy"]).double(), result)
    strict = layer(mask=uwaga.Causal(include_self=False), sinks=torch.zeros(2).double())
    of_others = strict.to_dense()[:, 1:, 0].mean(-1)  # the first query sees nothing and does not count
    torch.testing.assert_close(torch.tensor(head_table(strict).columns["sink"]).double(), of_others)


def test_it_prints_shows_itself_in_a_notebook_and_is_sorted_with_nan_last() -> None:
    table = HeadTable(columns={"layer": ["<enc>", 1], "head": [0, 1], "entropy": [0.125, float("nan")]})
    assert str(table) == "layer  head  entropy\n<enc>     0   0.1250\n    1     1      nan"
    assert HTMLFormatter()(table) == (
        "<table><thead><tr><th>layer</th><th>head</th><th>entropy</th></tr></thead><tbody>"
        "<tr><td>&lt;enc&gt;</td><td>0</td><td>0.1250</td></tr><tr><td>1</td><td>1</td><td>nan</td></tr></tbody></table>"
    )
    assert len(table) == 2
    many = HeadTable(columns={"layer": [0] * 4, "head": [0, 1, 2, 3], "sink": [0.5, float("nan"), 0.1, 0.9]})
    assert many.sorted("sink").columns["head"] == [2, 0, 3, 1]
    assert many.sorted("sink", descending=True).columns["head"] == [3, 0, 2, 1]
    pandas.testing.assert_frame_equal(many.to_pandas(), pandas.DataFrame(many.columns))


def recording(*, seed: int = 0) -> uwaga.Recording:
    """Two encoder layers, and one of cross-attention."""
    torch.manual_seed(seed)
    result = uwaga.Recording(strings=TokenStrings(None, {"encoder": [list("abaacb")], "decoder": [list("xyz")]}))
    for where, (q, k) in {("encoder", 0): (6, 6), ("encoder", 1): (6, 6), ("cross", 0): (3, 6)}.items():
        ask(result, AttentionId(*where), torch.randn(1, 2, q, 4).double(), torch.randn(1, 2, k, 4).double())
    return result


def test_the_table_of_a_recording() -> None:
    made = recording()
    table = head_table(made)
    assert table.columns["kind"] == ["encoder"] * 4 + ["cross"] * 2
    assert table.columns["layer"] == [0, 0, 1, 1, 0, 0]
    assert table.layers == [("encoder", 0), ("encoder", 1), ("cross", 0)]
    tokens = torch.tensor([[0, 1, 0, 0, 2, 1]])
    for layer in (0, 1):
        one = head_table(made.maps["encoder", layer], tokens)
        for name, column in one.columns.items():
            if name != "layer":
                assert table.columns[name][2 * layer : 2 * layer + 2] == column, name
    assert all(value != value for value in table.columns["induction"][4:] + table.columns["distance"][4:])
    assert table.columns["entropy"][4:] == head_table(made.maps["cross", 0]).columns["entropy"]
    assert table.matrix("entropy").shape == (3, 2)


def test_heads_that_were_picked_keep_their_numbers() -> None:
    attention, x = uwaga.nn.MultiHeadAttention(16, 4).eval(), torch.randn(1, 6, 16)
    with uwaga.watch(attention) as every, uwaga.watch(attention, heads=[3, 1]) as picked, torch.no_grad():
        attention(x)
    whole, some = head_table(every), head_table(picked)
    assert some.columns["head"] == [3, 1]
    assert some.columns["entropy"] == [whole.columns["entropy"][head] for head in (3, 1)]
    assert some.matrix("entropy").isnan().tolist() == [[True, False, True, False]]


def test_changes_are_total_variation_and_differences_of_the_statistics() -> None:
    before, after = recording(), recording(seed=1)
    result, tables = head_changes(before, after), (head_table(before), head_table(after))
    assert list(result.columns)[:4] == ["kind", "layer", "head", "total_variation"]
    change = result.columns["total_variation"]
    assert change == sorted(change, reverse=True)
    for row in result.rows:
        name, head = (row["kind"], row["layer"]), row["head"]
        pair = [x.maps[name].to_dense()[0, head] for x in (before, after)]
        assert row["total_variation"] == pytest.approx(float((pair[1] - pair[0]).abs().sum(-1).mean() / 2), rel=1e-12)
        values = [next(x for x in t.rows if (x["kind"], x["layer"], x["head"]) == (*name, head)) for t in tables]
        assert row["entropy"] == values[1]["entropy"] - values[0]["entropy"]


def test_one_head_that_changed_comes_first() -> None:
    query, key = torch.randn(1, 4, 6, 4), torch.randn(1, 4, 6, 4)
    other = query.clone()
    other[0, 2] *= 3
    maps = [{"a": AttentionMap(x, key, mask=uwaga.Causal())} for x in (query, other)]
    table = head_changes(*maps)
    assert table.columns["head"][0] == 2
    assert table.columns["total_variation"][1:] == [0.0] * 3
    ragged = [
        {0: AttentionMap(*(uwaga.Ragged.from_list(list(x.transpose(1, 2))) for x in (q, key)))} for q in (query, other)
    ]
    dense = [{0: AttentionMap(q, key)} for q in (query, other)]
    assert head_changes(*ragged).columns["total_variation"] == pytest.approx(
        head_changes(*dense).columns["total_variation"], abs=1e-6
    )
