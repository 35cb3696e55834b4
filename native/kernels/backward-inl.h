// The backward tile, and the products that share its weights. Included inside the level's namespace.
//
//     P = exp(s - lse)    dP = dO V^T    dS = P * (dP - delta)    delta = sum_e dO_e O_e - dlse
//     dV += P^T dO        dK += dS^T Q   dQ += dS K
//
// (Dao, "FlashAttention-2", 2023, algorithm 2.) dQ and dK are multiplied by the scale when they are written.

// The constants of one row.
struct BackwardRow {
  F lse, delta;
};

inline BackwardRow backward_row(const BackwardTile& tile, int r) {
  // A row that sees no key has lse = -inf; its weights are 0.
  const float lse = tile.lse[r] == -__builtin_inff() ? __builtin_inff() : tile.lse[r];
  return {broadcast(lse), broadcast(tile.delta[r])};
}

// P and dS of VECTORS vectors of a row, with softmax and no other option, from scores in `weights` and dP in `grads`, both in
// place.
template <int VECTORS>
inline __attribute__((always_inline)) void plain_backward(const BackwardRow& row, float* weights, float* grads) {
  F p[VECTORS];
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) p[v] = mul(sub(load(weights + v * kLanes), row.lse), broadcast(kLog2E));
  exp2_each(p);
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) {
    store(weights + v * kLanes, p[v]);
    store(grads + v * kLanes, mul(p[v], sub(load(grads + v * kLanes), row.delta)));
  }
}

inline void plain_backward_row(const BackwardTile& tile, int r, int first, int last) {
  constexpr int kAtOnce = 4;
  float* weights = tile.weights + r * kBlockKeys;
  float* grads = tile.grad_scores + r * kBlockKeys;
  const BackwardRow row = backward_row(tile, r);
  int n = first;
  for (; n + kAtOnce * kLanes <= last; n += kAtOnce * kLanes) plain_backward<kAtOnce>(row, weights + n, grads + n);
  for (; n < last; n += kLanes) plain_backward<1>(row, weights + n, grads + n);
  if (!tile.mask.bits) return;
  for (n = first; n < last; n += kLanes) {
    const uint32_t seen = lane_bits(tile.mask.bits, r, n);
    store(weights + n, select(seen, load(weights + n), zero()));
    store(grads + n, select(seen, load(grads + n), zero()));
  }
}

// The same with every option: softcap, bias, dropout, no softmax.
inline void general_backward_row(const BackwardTile& tile, int r, int first, int last, const Block& block,
                                 const ScoreRule& rule) {
  float* weights = tile.weights + r * kBlockKeys;
  float* grads = tile.grad_scores + r * kBlockKeys;
  const BackwardRow row = backward_row(tile, r);
  const F inverse_keep = broadcast(1.0f / rule.keep);
  for (int n = first; n < last; n += kLanes) {
    F y = load(weights + n), dp = load(grads + n);
    F softcap_slope = broadcast(1.0f);  // derivative of the softcap
    if (rule.softcap != 0.0f) {
      const F t = tanh_of(div(y, broadcast(rule.softcap)));
      y = mul(t, broadcast(rule.softcap));
      softcap_slope = sub(broadcast(1.0f), mul(t, t));
    }
    if (tile.bias) y = add(y, load(tile.bias + r * kBlockKeys + n));
    const F p = rule.softmax ? exp2_of(mul(sub(y, row.lse), broadcast(kLog2E))) : y;
    F kept_weight = p;  // the weight after dropout
    if (rule.keep < 1.0f) {
      const uint32_t kept =
          keep_bits(tile.row_keys[r], static_cast<uint32_t>(block.first_key + n), rule.drop_threshold);
      kept_weight = select(kept, p, zero());
      dp = select(kept, mul(dp, inverse_keep), zero());
    }
    F ds = rule.softmax ? mul(p, sub(dp, row.delta)) : dp;
    if (tile.mask.bits) {
      const uint32_t seen = lane_bits(tile.mask.bits, r, n);
      kept_weight = select(seen, kept_weight, zero());
      ds = select(seen, ds, zero());
      softcap_slope = select(seen, softcap_slope, zero());
    }
    store(weights + n, kept_weight);
    if (tile.grad_bias) store(tile.grad_bias + r * kBlockKeys + n, ds);
    store(grads + n, mul(ds, softcap_slope));
  }
}

inline void clear_columns(float* tile, int rows, int first, int last) {
  for (int r = 0; r < rows; ++r) {
    for (int n = 0; n < first; n += kLanes) store(tile + r * kBlockKeys + n, zero());
    for (int n = last; n < kBlockKeys; n += kLanes) store(tile + r * kBlockKeys + n, zero());
  }
}

// `block.keys` and `block.values` are both packed as columns here; the products of queries and keys are `depth` steps of Step
// deep, those of output gradients and values `value_depth` steps of ValueStep.
template <class Step, class ValueStep>
inline void gradients_of_tile(const BackwardTile& tile, const Block& block, const ScoreRule& rule, int depth,
                              int value_depth) {
  const int first = first_column(tile.mask), last = last_column(tile.mask);
  scores_of_tile<Step>(tile.query, block.keys, tile.rows, depth, tile.mask.last, rule, tile.weights);
  ScoreRule unscaled = rule;
  unscaled.scale = 1.0f;
  scores_of_tile<ValueStep>(tile.grad_output, block.values, tile.rows, value_depth, tile.mask.last, unscaled,
                            tile.grad_scores);
  const bool plain = rule.plain() && rule.keep == 1.0f && !tile.grad_bias;
  for (int r = 0; r < tile.rows; ++r) {
    if (plain) {
      plain_backward_row(tile, r, first, last);
    } else {
      general_backward_row(tile, r, first, last, block, rule);
    }
  }
  clear_columns(tile.weights, tile.rows, first, last);
  clear_columns(tile.grad_scores, tile.rows, first, last);
  if (tile.grad_bias) clear_columns(tile.grad_bias, tile.rows, first, last);
}

inline void backward_tile(const BackwardTile& tile, const Block& block, const ScoreRule& rule) {
  gradients_of_tile<FloatProduct, FloatProduct>(tile, block, rule, tile.query_width, tile.value_width);
}

template <int A_ROW, int A_DEPTH>
inline void product_of(const Product& p) {
  for_strips(p.width, [&](auto v, int w) {
    const auto add_rows = [&](auto rows, int r) {
      const DepthRange depth = p.by_tile ? p.by_tile[r / kTileRows] : DepthRange{p.first, p.last};
      if (depth.first >= depth.last) return;
      product_strip<FloatProduct, rows.value, v.value, A_ROW, A_DEPTH>(
          p.a + depth.first * A_DEPTH + r * A_ROW, p.b + int64_t{w} * p.b_depth + depth.first * kStrip,
          depth.last - depth.first, nullptr, p.out + r * p.out_row + w, p.out_row);
    };
    int r = 0;
    for (; r + kTileRows <= p.rows; r += kTileRows) add_rows(constant<kTileRows>(), r);
    if (r < p.rows) with_row_count(p.rows - r, [&](auto rows) { add_rows(rows, r); });
  });
}

inline void product_rows(const Product& p) { product_of<kBlockKeys, 1>(p); }
inline void product_columns(const Product& p) { product_of<1, kBlockKeys>(p); }

inline void add_to(float* total, const float* part, int64_t count) {  // count is a multiple of kLanes
  for (int64_t n = 0; n < count; n += kLanes) store(total + n, add(load(total + n), load(part + n)));
}

// out[0:width] += a * b[0:width], where b is one row packed in strips of `b_depth`.
inline void add_scaled_row(float* out, float a, const float* b, int b_depth, int width) {
  for (int w = 0; w < width; w += kLanes) {
    const float* lanes = b + int64_t{w / kStrip} * b_depth * kStrip + w % kStrip;
    store(out + w, fma(broadcast(a), load(lanes), load(out + w)));
  }
}
