"""Norm-weighted attention against the vectors themselves."""

import pytest
import torch

import uwaga
from uwaga.inspect.heads.norms import ScaledMap, value_norms
from uwaga.maps.map import AttentionMap

HEADS, GROUPS, WIDTH, MODEL = 4, 2, 3, 10


def transformed(v_GKE: torch.Tensor, w_o: torch.Tensor) -> torch.Tensor:
    """(..., H, K, M): v_j W_O^h."""
    heads = w_o.shape[0] // v_GKE.shape[-1]
    v_HKE = v_GKE.repeat_interleave(heads // v_GKE.shape[-3], dim=-3)
    return v_HKE @ w_o.unflatten(0, (heads, -1))


@pytest.mark.parametrize(("model", "dtype"), [(MODEL, torch.float64), (2, torch.float64), (MODEL, torch.bfloat16)])
def test_norms_are_those_of_the_transformed_values(model: int, dtype: torch.dtype) -> None:
    value, w_o = torch.randn(2, GROUPS, 5, WIDTH).to(dtype), torch.randn(HEADS * WIDTH, model).to(dtype)
    wider = torch.float32 if dtype == torch.bfloat16 else dtype
    torch.testing.assert_close(value_norms(value, w_o), transformed(value.to(wider), w_o.to(wider)).norm(dim=-1))


def test_rows_are_the_lengths_of_what_each_key_adds_to_the_output() -> None:
    """|a_ij v_j W_O^h|, entry by entry, and together they are what attention and its projection give."""
    q, k = torch.randn(HEADS, 6, WIDTH).double(), torch.randn(GROUPS, 5, WIDTH).double()
    v, w_o = torch.randn(GROUPS, 5, WIDTH).double(), torch.randn(HEADS * WIDTH, MODEL).double()
    m = AttentionMap(q, k)
    parts_HQKM = m.to_dense()[..., None] * transformed(v, w_o)[:, None]
    torch.testing.assert_close(ScaledMap(m, value_norms(v, w_o)).to_dense(), parts_HQKM.norm(dim=-1))
    output = uwaga.attention(q, k, v).transpose(0, 1).flatten(1) @ w_o
    torch.testing.assert_close(parts_HQKM.sum((0, 2)), output)


def test_a_ragged_batch() -> None:
    w_o = torch.randn(HEADS * WIDTH, MODEL).double()
    q, k, v = (uwaga.Ragged.from_list([torch.randn(n, HEADS, WIDTH).double() for n in (2, 4)]) for _ in range(3))
    m = AttentionMap(q, k)
    scaled = ScaledMap(m, value_norms(v, w_o))
    for r in range(2):
        norms = transformed(v.to_list()[r].transpose(0, 1), w_o).norm(dim=-1)
        torch.testing.assert_close(scaled[r].to_dense(), m[r].to_dense() * norms[:, None])


def test_what_a_mask_hides_stays_hidden() -> None:
    x, scale = torch.randn(1, 4, 3), torch.ones(1, 4)
    scale[0, 3] = torch.nan
    m = ScaledMap(AttentionMap(x, x, mask=uwaga.Causal()), scale)
    assert m[0, :3].isfinite().all()
    assert m[0, 3, 3].isnan()
