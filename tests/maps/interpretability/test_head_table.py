"""Head tables: every number is the mean over queries of the statistic of the dense matrix."""

import pandas
import pytest
import torch

import uwaga
from uwaga.maps.interpretability.head_scores import induction, previous_token
from uwaga.maps.interpretability.head_table import HeadTable, head_table
from uwaga.maps.map import AttentionMap

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
        "support": 1 / dense_HQK.square().sum(-1),
        "sink": dense_HQK[..., 0],
        "learned_sink": 1 - dense_HQK.sum(-1),
    }


def test_every_column_is_the_mean_of_its_statistic() -> None:
    maps = [layer(), layer(sinks=torch.randn(2).double())]
    table = head_table(maps, TOKENS)
    assert table.columns["layer"] == [0, 0, 1, 1]
    assert table.columns["head"] == [0, 1, 0, 1]
    for at, m in enumerate(maps):
        found = {name: values.mean(-1) for name, values in statistics(m.to_dense()).items()}
        found |= {"previous_token": previous_token(m), "induction": induction(m, TOKENS)}
        for name, values in found.items():
            got = torch.tensor(table.columns[name][2 * at : 2 * at + 2]).double()
            torch.testing.assert_close(got, values, msg=name)


def test_columns_are_these_and_those_of_tokens_come_with_tokens() -> None:
    names = ["layer", "head", "entropy", "normalized_entropy", "peak", "distance", "support", "sink", "learned_sink"]
    assert list(head_table(layer()).columns) == [*names, "previous_token"]
    assert list(head_table(layer(), TOKENS).columns) == [*names, "previous_token", "duplicate_token", "induction"]


def test_a_batch_counts_every_query_once() -> None:
    m = layer(3)
    found = statistics(m.to_dense())["entropy"].mean((0, 2))
    torch.testing.assert_close(torch.tensor(head_table(m).columns["entropy"]).double(), found)


def test_a_ragged_batch_counts_every_query_once() -> None:
    x = uwaga.Ragged.from_list([torch.randn(n, 2, 4).double() for n in (1, 4, 2)])
    m = AttentionMap(x, x, mask=uwaga.Causal())
    found = torch.cat([statistics(part.to_dense())["entropy"] for part in m], dim=1).mean(1)
    torch.testing.assert_close(torch.tensor(head_table(m).columns["entropy"]).double(), found)


def test_queries_that_see_nothing_do_not_count() -> None:
    m = layer(mask=uwaga.Causal(include_self=False), sinks=torch.zeros(2).double())
    found = m.to_dense()[:, 1:, 0].mean(-1)
    torch.testing.assert_close(torch.tensor(head_table(m).columns["sink"]).double(), found)


def test_a_model_in_training_gives_the_same_table() -> None:
    query, key = torch.randn(2, 2, 6, 4)
    plain = head_table(AttentionMap(query, key), TOKENS)
    assert head_table(AttentionMap(query.clone().requires_grad_(), key), TOKENS) == plain


def test_layers_keep_the_names_of_a_mapping() -> None:
    maps = {("decoder", 0): layer(), ("cross", 0): layer()}
    table = head_table(maps)
    assert table.layers == [("decoder", 0), ("cross", 0)]
    assert table.columns["layer"][0] == ("decoder", 0)


def test_pandas_reads_it() -> None:
    table = head_table([layer(), layer()], TOKENS)
    frame = pandas.DataFrame(table.columns)
    assert frame.shape == (4, len(table.columns))
    assert frame.groupby("layer")["entropy"].mean()[1] == pytest.approx(sum(table.columns["entropy"][2:]) / 2)


def test_it_prints_and_shows_itself_in_a_notebook() -> None:
    table = HeadTable(columns={"layer": ["<enc>", 1], "head": [0, 1], "entropy": [0.125, float("nan")]})
    assert str(table) == "layer  head  entropy\n<enc>     0   0.1250\n    1     1      nan"
    assert table._repr_html_() == (
        "<table><thead><tr><th>layer</th><th>head</th><th>entropy</th></tr></thead><tbody>"
        "<tr><td>&lt;enc&gt;</td><td>0</td><td>0.1250</td></tr><tr><td>1</td><td>1</td><td>nan</td></tr></tbody></table>"
    )
    assert len(table) == 2


def test_sorting_puts_nan_last_both_ways() -> None:
    table = HeadTable(columns={"layer": [0] * 4, "head": [0, 1, 2, 3], "sink": [0.5, float("nan"), 0.1, 0.9]})
    assert table.sorted("sink").columns["head"] == [2, 0, 3, 1]
    assert table.sorted("sink", descending=True).columns["head"] == [3, 0, 2, 1]


def test_the_matrix_of_a_statistic_is_nan_where_a_layer_has_no_such_head() -> None:
    table = HeadTable(columns={"layer": ["a", "a", "b"], "head": [0, 1, 0], "sink": [0.1, 0.2, 0.3]})
    expected = torch.tensor([[0.1, 0.2], [0.3, float("nan")]]).double()
    torch.testing.assert_close(table.matrix("sink"), expected, equal_nan=True, rtol=1e-7, atol=0)


@pytest.mark.parametrize("ask", [HeadTable.matrix, HeadTable.sorted])
def test_an_unknown_column_is_named(ask) -> None:
    with pytest.raises(ValueError) as caught:
        ask(HeadTable(columns={"layer": [0], "head": [0], "sink": [0.1]}), "entropie")
    assert str(caught.value) == "HeadTable: there is no column 'entropie': choose one of layer, head, sink"


def test_the_former_name_of_descending_is_refused() -> None:
    with pytest.raises(TypeError) as caught:
        HeadTable(columns={"layer": [0], "head": [0], "sink": [0.5]}).sorted("sink", falling=True)
    assert str(caught.value) == "sorted: falling is now called descending"
