// The forward tile: scores of 6 rows and a block of keys, their online softmax, then the product with the values.
// Included inside the level's namespace.
//
// Both products are the same loop: `VECTORS` vectors of the packed operand are loaded once per step and multiplied with a
// broadcast element of each row, so that ROWS * VECTORS accumulators stay in registers and every load is used in ROWS (or
// VECTORS) multiply-adds. The strides of `a` are A_ROW between rows and A_DEPTH along the depth of the product.

// Multiply-add on whole vectors of one 32-bit word per lane: a float, or a pair of bfloat16 (see pairs-inl.h); and the
// score, in natural units, of a sum of products.
struct FloatProduct {
  static inline F step(F a, F b, F c) { return fma(a, b, c); }
  static inline F score(F sum, F) { return sum; }  // the packed queries are scaled
};

template <class Step, int ROWS, int VECTORS, int A_ROW, int A_DEPTH>
inline __attribute__((always_inline)) void accumulate(const float* a, const float* b, int64_t b_step, int depth,
                                                      F (&c)[ROWS][VECTORS]) {
  for (int d = 0; d < depth; ++d) {
    F right[VECTORS];
    UWAGA_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) right[v] = load(b + v * kLanes);
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) {
      const F left = broadcast(a[r * A_ROW]);
      UWAGA_UNROLL(8)
      for (int v = 0; v < VECTORS; ++v) c[r][v] = Step::step(left, right[v], c[r][v]);
    }
    a += A_DEPTH;
    b += b_step;
  }
}

// scores[r][0:VECTORS * kLanes] of one strip of keys, scaled; where TOP, top[r] keeps the largest by lane.
template <class Step, int ROWS, int VECTORS, bool TOP>
inline __attribute__((always_inline)) void score_strip(const float* query, const float* keys, int depth, F scale,
                                                       float* scores, float* top) {
  F c[ROWS][VECTORS];
  UWAGA_UNROLL(6)
  for (int r = 0; r < ROWS; ++r) {
    UWAGA_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) c[r][v] = zero();
  }
  accumulate<Step, ROWS, VECTORS, 1, kTileRows>(query, keys, kStrip, depth, c);
  UWAGA_UNROLL(6)
  for (int r = 0; r < ROWS; ++r) {
    F best = TOP ? load(top + r * kLanes) : zero();
    UWAGA_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) {
      const F score = Step::score(c[r][v], scale);
      store(scores + r * kBlockKeys + v * kLanes, score);
      if (TOP) best = max(score, best);
    }
    if (TOP) store(top + r * kLanes, best);
  }
}

// out[r][0:VECTORS * kLanes] = out * factor[r] + sum over `depth` of a * b; a null factor means 1. The sum of a block starts
// from zero and is then added: its rounding errors grow with the length of the block, not of the whole sequence.
template <class Step, int ROWS, int VECTORS, int A_ROW, int A_DEPTH>
inline __attribute__((always_inline)) void product_strip(const float* a, const float* b, int depth, const float* factor,
                                                         float* out, int64_t out_row, int64_t b_step = kStrip) {
  F c[ROWS][VECTORS];
  UWAGA_UNROLL(6)
  for (int r = 0; r < ROWS; ++r) {
    UWAGA_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) c[r][v] = zero();
  }
  accumulate<Step, ROWS, VECTORS, A_ROW, A_DEPTH>(a, b, b_step, depth, c);
  UWAGA_UNROLL(6)
  for (int r = 0; r < ROWS; ++r) {
    UWAGA_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) {
      float* at = out + r * out_row + v * kLanes;
      store(at, factor ? fma(load(at), broadcast(factor[r]), c[r][v]) : add(load(at), c[r][v]));
    }
  }
}

// Runs f<VECTORS>(strip) over strips of `width` columns, the last with just the vectors that it needs.
template <class Function>
inline __attribute__((always_inline)) void for_strips(int width, const Function& f) {
  int w = 0;
  for (; w + kStrip <= width; w += kStrip) f(constant<kStripVectors>(), w);
  const int vectors = (width - w + kLanes - 1) / kLanes;
  if (vectors == 0) return;
  if (vectors == kStripVectors) return f(constant<kStripVectors>(), w);
  if constexpr (kStripVectors > 1) {
    if (vectors == 1) return f(constant<1>(), w);
  }
  if constexpr (kStripVectors > 2) {
    if (vectors == 2) return f(constant<2>(), w);
    if (vectors == 3) return f(constant<3>(), w);
  }
}

template <class Function>
inline __attribute__((always_inline)) void with_row_count(int rows, const Function& f) {
  switch (rows) {
    case 1:
      return f(constant<1>());
    case 2:
      return f(constant<2>());
    case 3:
      return f(constant<3>());
    case 4:
      return f(constant<4>());
    case 5:
      return f(constant<5>());
    default:
      return f(constant<6>());
  }
}

// Runs f<ROWS>(first row) over at most six rows at a time.
template <class Function>
inline __attribute__((always_inline)) void for_row_groups(int rows, const Function& f) {
  constexpr int kGroup = 6;
  if constexpr (kTileRows <= kGroup) return with_row_count(rows, [&](auto r) { f(r, 0); });
  for (int first = 0; first < rows; first += kGroup) {
    with_row_count(rows - first < kGroup ? rows - first : kGroup, [&](auto r) { f(r, first); });
  }
}

// A single row computes all strips of a block side by side: with one strip at a time, its two or four accumulators would leave
// the multiply-adds waiting for each other.
template <class Step, bool TOP>
inline void scores_of_row(const float* query, const float* keys, int depth, F scale, float* scores, float* top) {
  constexpr int kStrips = kBlockKeys / kStrip < 4 ? kBlockKeys / kStrip : 4;
  for (int n = 0; n < kBlockKeys; n += kStrips * kStrip) {
    F c[kStrips][kStripVectors];
    UWAGA_UNROLL(4)
    for (int s = 0; s < kStrips; ++s) {
      UWAGA_UNROLL(4)
      for (int v = 0; v < kStripVectors; ++v) c[s][v] = zero();
    }
    const float* strip = keys + int64_t{n} * depth;
    for (int d = 0; d < depth; ++d) {
      const F left = broadcast(query[d * kTileRows]);
      UWAGA_UNROLL(4)
      for (int s = 0; s < kStrips; ++s) {
        UWAGA_UNROLL(4)
        for (int v = 0; v < kStripVectors; ++v) {
          c[s][v] = Step::step(left, load(strip + (int64_t{s} * depth + d) * kStrip + v * kLanes), c[s][v]);
        }
      }
    }
    UWAGA_UNROLL(4)
    for (int s = 0; s < kStrips; ++s) {
      UWAGA_UNROLL(4)
      for (int v = 0; v < kStripVectors; ++v) {
        const F score = Step::score(c[s][v], scale);
        store(scores + n + s * kStrip + v * kLanes, score);
        if (TOP) store(top, max(score, load(top)));
      }
    }
  }
}

template <class Step, bool TOP = false>
inline void scores_of_tile(const float* query, const float* keys, int rows, int depth, int columns,
                           const ScoreRule& rule, float* scores, float* top = nullptr) {
  const F scale = broadcast(rule.scale);
  if (rows == 1 && columns == kBlockKeys) return scores_of_row<Step, TOP>(query, keys, depth, scale, scores, top);
  for_row_groups(rows, [&](auto r, int first) {
    for_strips(columns, [&](auto v, int n) {
      score_strip<Step, r.value, v.value, TOP>(query + first, keys + int64_t{n} * depth, depth, scale,
                                               scores + first * kBlockKeys + n, top + (TOP ? first * kLanes : 0));
    });
  });
}

// The bits of a row's keys from n on; all set where nothing masks.
inline uint32_t lane_bits(const uint64_t* bits, int row, int n) {
  return bits ? static_cast<uint32_t>(bits[row] >> n) : ~0u;
}

// Softcap and bias, in place; for rules that are not plain.
inline void apply_softcap_and_bias(float* scores, const float* bias, int rows, int first, int last,
                                   const ScoreRule& rule) {
  for (int r = 0; r < rows; ++r) {
    for (int n = first; n < last; n += kLanes) {
      float* at = scores + r * kBlockKeys + n;
      F y = load(at);
      if (rule.softcap != 0.0f) {
        y = mul(broadcast(rule.softcap), tanh_of(div(y, broadcast(rule.softcap))));
      }
      if (bias) y = add(y, load(bias + r * kBlockKeys + n));
      store(at, y);
    }
  }
}

// Largest score of each row by lane; masked scores become -inf on the way.
inline void mask_and_find_maxima(float* scores, const TileMask& mask, int rows, int first, int last, float* top) {
  const F hidden = broadcast(-__builtin_inff());
  for (int r = 0; r < rows; ++r) {
    float* row = scores + r * kBlockKeys;
    F best = hidden;
    for (int n = first; n < last; n += kLanes) {
      F s = load(row + n);
      if (mask.bits) {
        s = select(lane_bits(mask.bits, r, n), s, hidden);
        store(row + n, s);
      }
      best = max(s, best);
    }
    store(top + r * kLanes, best);
  }
}

constexpr float kLowest = -3.4028234663852886e38f;

// Updates the maxima of the rows from `top`, [rows][kLanes]. `offset` is what exponents are relative to (0 for a row that has seen
// no key yet, instead of its maximum of -inf), `rescale` = 2^moved the factor of earlier sums. exp(s - m) is
// 2^((s - m) * log2 e): the difference is taken first, since it is exact where it matters.
inline void update_maxima(const float* top, float* maximum, float* offset, float* moved, float* rescale) {
  row_maxima(top, offset);
  for (int r = 0; r < kTileRows; r += kLanes) {
    const F before = load(maximum + r);
    const F now = max(load(offset + r), before);
    const F from = less_select(now, broadcast(kLowest), zero(), now);
    store(maximum + r, now);
    store(offset + r, from);
    const F step = mul(sub(before, from), broadcast(kLog2E));
    store(moved + r, step);
    store(rescale + r, exp2_of(step));
  }
}

// exp(s - maximum) of VECTORS vectors of one row, in place; `at` is the first one's number in the block.
template <int VECTORS>
inline __attribute__((always_inline)) void exponentiate(float* scores, F offset, int at, F (&sums)[kChains]) {
  F p[VECTORS];
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) p[v] = mul(sub(load(scores + v * kLanes), offset), broadcast(kLog2E));
  exp2_each(p);
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) {
    store(scores + v * kLanes, p[v]);
    F& sum = sums[(at + v) % kChains];
    sum = add(sum, p[v]);
  }
}

inline __attribute__((always_inline)) void exponentiate_row(float* row, int first, int last, F offset, float* total,
                                                            float rescale) {
  constexpr int kAtOnce = 4;
  F sums[kChains];
  for (F& sum : sums) sum = zero();
  int n = first;
  for (; n + kAtOnce * kLanes <= last; n += kAtOnce * kLanes) {
    exponentiate<kAtOnce>(row + n, offset, n / kLanes, sums);
  }
  for (; n < last; n += kLanes) exponentiate<1>(row + n, offset, n / kLanes, sums);
  store(total, fma(load(total), broadcast(rescale), fold_chains(sums)));
}

// See rows-inl.h.
inline void exponentiate_with_statistics(const ForwardTile& tile, int first, int last, int first_key,
                                         const float* offset, const float* moved, const float* rescale);
inline void keep_top_keys(const ForwardTile& tile, const TileStatistics& statistics, const float* top, int first,
                          int last, int first_key);

// Replaces scores by weights; `rescale` is the factor for the rows' earlier sums and outputs.
inline void softmax_of_tile(const ForwardTile& tile, int first, int last, int first_key, const float* top,
                            float* rescale) {
  alignas(64) float offset[kMaxLanes], moved[kMaxLanes];
  update_maxima(top, tile.state.maximum, offset, moved, rescale);
  if (tile.statistics) return exponentiate_with_statistics(tile, first, last, first_key, offset, moved, rescale);
  for (int r = 0; r < tile.rows; ++r) {
    exponentiate_row(tile.scores + r * kBlockKeys, first, last, broadcast(offset[r]), tile.state.sum + r * kMaxLanes,
                     rescale[r]);
  }
}

// Without softmax the weights are the scores, and 0 where masked.
inline void mask_scores(float* scores, const TileMask& mask, int rows, int first, int last) {
  if (!mask.bits) return;
  for (int r = 0; r < rows; ++r) {
    for (int n = first; n < last; n += kLanes) {
      float* at = scores + r * kBlockKeys + n;
      store(at, select(lane_bits(mask.bits, r, n), load(at), zero()));
    }
  }
}

inline void drop_weights(float* weights, const uint32_t* row_keys, int rows, int first, int last, int first_key,
                         uint32_t threshold) {
  for (int r = 0; r < rows; ++r) {
    for (int n = first; n < last; n += kLanes) {
      float* at = weights + r * kBlockKeys + n;
      const uint32_t kept = keep_bits(row_keys[r], static_cast<uint32_t>(first_key + n), threshold);
      store(at, select(kept, load(at), zero()));
    }
  }
}

// The product of one row, key by key, without masked keys: the same multiply-adds in the same order as in the tile, so the same
// bits, but independent of masked values, which may be NaN.
inline void guarded_row(const float* weights, uint64_t bits, const Block& block, int first, int last, float factor,
                        float* out, int width) {
  for (int w = 0; w < width; w += kLanes) {
    F c = zero();
    const float* strip = block.values + w / kStrip * block.value_strip + w % kStrip;
    for (int n = first; n < last; ++n) {
      if (bits >> n & 1) c = fma(broadcast(weights[n]), load(strip + n * block.value_row), c);
    }
    store(out + w, fma(load(out + w), broadcast(factor), c));
  }
}

constexpr int kRowVectors = 8;

inline void values_of_tile(const ForwardTile& tile, const Block& block, int first, int last, const float* factor) {
  const int64_t out_row = padded_width(tile.value_width);
  if (tile.mask.guard) {
    for (int r = 0; r < tile.rows; ++r) {
      guarded_row(tile.scores + r * kBlockKeys, tile.mask.bits[r], block, first, last, factor[r],
                  tile.state.output + r * out_row, tile.value_width);
    }
    return;
  }
  int done = 0;
  if (tile.rows == 1 &&
      block.value_strip == kStrip) {  // whole rows read in place: more accumulators, one stream of memory
    for (; done + kRowVectors * kLanes <= tile.value_width; done += kRowVectors * kLanes) {
      product_strip<FloatProduct, 1, kRowVectors, kBlockKeys, 1>(
          tile.scores + first, block.values + done + first * block.value_row, last - first, factor,
          tile.state.output + done, out_row, block.value_row);
    }
  }
  for_row_groups(tile.rows, [&](auto r, int row) {
    for_strips(tile.value_width - done, [&](auto v, int from) {
      const int w = done + from;
      product_strip<FloatProduct, r.value, v.value, kBlockKeys, 1>(
          tile.scores + row * kBlockKeys + first,
          block.values + w / kStrip * block.value_strip + first * block.value_row, last - first, factor + row,
          tile.state.output + row * out_row + w, out_row, block.value_row);
    });
  });
}

// The columns that a tile computes: its visible keys, widened to whole vectors.
inline int first_column(const TileMask& mask) { return mask.first / kLanes * kLanes; }
inline int last_column(const TileMask& mask) { return (mask.last + kLanes - 1) / kLanes * kLanes; }

// From scaled products to the weights that multiply the values. `has_top`: `top` has the rows' maxima already.
inline void normalize_tile(const ForwardTile& tile, const Block& block, const ScoreRule& rule, bool has_top, float* top,
                           float* rescale) {
  const int first = first_column(tile.mask), last = last_column(tile.mask);
  if (!rule.plain()) apply_softcap_and_bias(tile.scores, tile.bias, tile.rows, first, last, rule);
  if (rule.softmax) {
    if (!has_top) mask_and_find_maxima(tile.scores, tile.mask, tile.rows, first, last, top);
    if (tile.statistics && tile.statistics->top)
      keep_top_keys(tile, *tile.statistics, top, first, last, block.first_key);
    softmax_of_tile(tile, first, last, block.first_key, top, rescale);
  } else {
    mask_scores(tile.scores, tile.mask, tile.rows, first, last);
    for (int r = 0; r < kTileRows; ++r) rescale[r] = 1.0f;
  }
  if (rule.keep < 1.0f) {
    drop_weights(tile.scores, tile.row_keys, tile.rows, first, last, block.first_key, rule.drop_threshold);
  }
}

// The weights of a tile from its products, which are `depth` steps deep.
template <class Step>
inline void weights_of_tile(const ForwardTile& tile, const Block& block, const ScoreRule& rule, int depth,
                            float* rescale) {
  alignas(64) float top[kTileRows * kLanes];
  for (int r = 0; r < kTileRows; ++r) store(top + r * kLanes, broadcast(-__builtin_inff()));
  const bool whole = rule.plain() && !tile.mask.bits;
  if (whole) {
    scores_of_tile<Step, true>(tile.query, block.keys, tile.rows, depth, kBlockKeys, rule, tile.scores, top);
  } else {
    scores_of_tile<Step>(tile.query, block.keys, tile.rows, depth, tile.mask.last, rule, tile.scores);
  }
  normalize_tile(tile, block, rule, whole, top, rescale);
}

inline void forward_tile(const ForwardTile& tile, const Block& block, const ScoreRule& rule) {
  alignas(64) float rescale[kMaxLanes];
  weights_of_tile<FloatProduct>(tile, block, rule, tile.query_width, rescale);
  values_of_tile(tile, block, tile.mask.first, tile.mask.last, rescale);
}

inline float lane_sum(const float* sum) { return reduce_add(load(sum)); }
inline void lane_sums(const float* sums, float* out, int rows) {
  for (int r = 0; r < rows; ++r) out[r] = lane_sum(sums + r * kMaxLanes);
}

// Merges the softmaxes of a row over two sets of keys: total = total * exp(..) + part * exp(..).
inline void merge_rows(float* total, RowResult* total_rows, const float* part, const RowResult* part_rows, int rows,
                       int width) {
  const int64_t row_width = padded_width(width);
  for (int r = 0; r < rows; ++r) {
    RowResult& sum = total_rows[r];
    const RowResult& more = part_rows[r];
    const float highest = more.maximum > sum.maximum ? more.maximum : sum.maximum;
    const float from = highest == -__builtin_inff() ? 0.0f : highest;
    alignas(64) float factor[kMaxLanes] = {(sum.maximum - from) * kLog2E, (more.maximum - from) * kLog2E};
    for (int n = 0; n < 2; n += kLanes) store(factor + n, exp2_of(load(factor + n)));
    sum = {highest, sum.sum * factor[0] + more.sum * factor[1]};
    float* out = total + r * row_width;
    for (int w = 0; w < width; w += kLanes) {
      store(out + w,
            fma(load(part + r * row_width + w), broadcast(factor[1]), mul(load(out + w), broadcast(factor[0]))));
    }
  }
}
