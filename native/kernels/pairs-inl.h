// The forward tile on pairs of bfloat16: one multiply-add of 16 words adds 32 products. Included inside the level's
// namespace where the level has `pair_step`, `load_pairs`, `load_halves` and `narrow_pairs`.
//
// Two entries along the depth of a product share a 32-bit word, the earlier one in its low half; an odd last entry has a
// zero beside it. Counted in words the layouts are those of kernels.h: a width W of the scores becomes W / 2 words, and
// the rows of the values become half as many. A word is stored as a float but never computed with as one.
//
// Unlike in float32, products are exact, sums are rounded as the instruction of the level (pair_step) does, and weights are rounded
// to bfloat16 before they multiply the values; the row's sum is of unrounded weights. The largest weight of a chunk is 1 and
// exact, so a row that sees one key returns its value unchanged.

struct PairProduct {
  static inline F step(F a, F b, F c) { return pair_step(a, b, c); }
  static inline F score(F sum, F scale) { return mul(sum, scale); }
};

constexpr int kBlockPairs = kBlockKeys / 2;

inline int pairs_of(int count) { return (count + 1) / 2; }

// Words of up to 2 * kLanes entries x[0], x[column], ...; the rest zero.
inline F load_pairs_strided(const bfloat16* x, int64_t column, int count) {
  if (column == 1) return load_pairs(x, count < 2 * kLanes ? count : 2 * kLanes);
  bfloat16 entries[2 * kLanes] = {};
  for (int n = 0; n < 2 * kLanes && n < count; ++n) entries[n] = x[n * column];
  return load_pairs(entries, 2 * kLanes);
}

inline void pack_columns_pairs(float* out, const Rows& rows, int count, int width) {
  const bfloat16* x = static_cast<const bfloat16*>(rows.data);
  const int words = pairs_of(width);
  const int wanted = (count + kStrip - 1) / kStrip * kStrip;  // kernels read the last strip to its end
  for (int n0 = 0; n0 < wanted; n0 += kLanes) {
    float* strip = out + int64_t{n0 / kStrip} * words * kStrip + n0 % kStrip;
    const bool whole = rows.column == 1 && n0 + kLanes <= count;
    for (int n = 0; whole && n < kLanes; ++n) prefetch_ahead(x + (n0 + n) * rows.row, rows, width);
    for (int w0 = 0; w0 < words; w0 += kLanes) {
      F lanes[kLanes];
      const int left = words - w0 < kLanes ? words - w0 : kLanes;
      if (whole && 2 * (w0 + kLanes) <= width) {  // a full square: no branch per row
        const bfloat16* corner = x + n0 * rows.row + 2 * w0;
        for (int n = 0; n < kLanes; ++n) lanes[n] = load_words(corner + n * rows.row);
        transpose(lanes);
        for (int w = 0; w < kLanes; ++w) store(strip + int64_t{w0 + w} * kStrip, lanes[w]);
        continue;
      }
      for (int n = 0; n < kLanes; ++n) {
        lanes[n] = n0 + n < count
                       ? load_pairs_strided(x + (n0 + n) * rows.row + 2 * w0 * rows.column, rows.column, width - 2 * w0)
                       : zero();
      }
      transpose(lanes);
      for (int w = 0; w < left; ++w) store(strip + int64_t{w0 + w} * kStrip, lanes[w]);
    }
  }
}

// Up to kLanes entries x[0], x[column], ... in the low halves of words; the rest zero.
inline F load_halves_strided(const bfloat16* x, int64_t column, int count) {
  if (column == 1) return load_halves(x, count < kLanes ? count : kLanes);
  bfloat16 entries[kLanes] = {};
  for (int n = 0; n < kLanes && n < count; ++n) entries[n] = x[n * column];
  return load_halves(entries, kLanes);
}

static_assert(kStripVectors % 2 == 0);

inline void pack_rows_pairs(float* out, const Rows& rows, int count, int depth, int width) {
  const bfloat16* x = static_cast<const bfloat16*>(rows.data);
  for (int w0 = 0; w0 < width; w0 += kStrip) {
    float* strip = out + int64_t{w0 / kStrip} * pairs_of(depth) * kStrip;
    for (int n = 0; n < count; n += 2) {
      const bfloat16* from = x + n * rows.row + w0 * rows.column;
      float* words = strip + int64_t{n / 2} * kStrip;
      if (rows.column == 1 && w0 + kStrip <= width && n + 1 < count) {
        prefetch_ahead(from, rows, kStrip, kBlockKeys);
        prefetch_ahead(from + rows.row, rows, kStrip, kBlockKeys);
        for (int v = 0; v < kStripVectors; v += 2) {
          F first, second;
          join_rows(load_words(from + v * kLanes), load_words(from + rows.row + v * kLanes), &first, &second);
          store(words + v * kLanes, first);
          store(words + (v + 1) * kLanes, second);
        }
        continue;
      }
      for (int v = 0; v < kStripVectors; ++v) {
        const int left = width - w0 - v * kLanes;
        const int64_t at = v * kLanes * rows.column;
        const F low = left > 0 ? load_halves_strided(from + at, rows.column, left) : zero();
        const F high =
            left > 0 && n + 1 < count ? load_halves_strided(from + rows.row + at, rows.column, left) : zero();
        store(words + v * kLanes, join_halves(low, high));
      }
    }
  }
}

// `factor` is 1 or -1: any other would round the queries. Writes past the six rows as pack_tile does.
inline void pack_tile_pairs(float* out, const void* const* rows, int count, int width, int64_t column, int,
                            float factor) {
  constexpr int kGroups = (kTileRows + kLanes - 1) / kLanes;
  const int words = pairs_of(width);
  for (int w0 = 0; w0 < words; w0 += kLanes) {
    const int left = words - w0 < kLanes ? words - w0 : kLanes;
    F lanes[kGroups][kLanes];
    for (int g = 0; g < kGroups; ++g) {
      for (int n = 0; n < kLanes; ++n) {
        F& lane = lanes[g][n];
        const int r = g * kLanes + n;
        lane = zero();
        if (r >= count) continue;
        lane = load_pairs_strided(static_cast<const bfloat16*>(rows[r]) + 2 * w0 * column, column, width - 2 * w0);
        if (factor < 0.0f) lane = negate_pairs(lane);
      }
      transpose(lanes[g]);
    }
    for (int w = 0; w < left; ++w) {
      for (int g = 0; g < kGroups; ++g) store(out + (w0 + w) * kTileRows + g * kLanes, lanes[g][w]);
    }
  }
}

inline bool all_finite_pairs(const float* packed, int64_t count) {  // count, in words, is a multiple of kLanes
  uint32_t finite = ~0u >> (32 - kLanes);
  for (int64_t n = 0; n < count; n += kLanes) {
    const F words = load(packed + n);
    finite &= finite_bits(low_halves(words)) & finite_bits(high_halves(words));
  }
  return finite == ~0u >> (32 - kLanes);
}

// Packs the weights of keys [first, last), multiples of kLanes, into words, and what stands around them up to whole words, which
// the product does not read.
inline void narrow_weights(const float* weights, int rows, int first, int last, float* pairs) {
  for (int r = 0; r < rows; ++r) {
    const float* row = weights + r * kBlockKeys;
    for (int n = first / (2 * kLanes) * 2 * kLanes; n < last; n += 2 * kLanes) {
      store(pairs + r * kBlockPairs + n / 2, narrow_pairs(load(row + n), load(row + n + kLanes)));
    }
  }
}

// guarded_row of forward-inl.h for pairs: a masked value counts as zero, and its weight is zero already.
inline void guarded_pairs_row(const float* pairs, uint64_t bits, const float* values, int first, int last, float factor,
                              float* out, int width) {
  for (int w = 0; w < width; w += kLanes) {
    F c = zero();
    const float* strip = values + int64_t{w / kStrip} * kBlockPairs * kStrip + w % kStrip;
    for (int n = first; n < last; ++n) {
      const uint32_t seen = static_cast<uint32_t>(bits >> 2 * n) & 3;
      if (seen) c = pair_step(broadcast(pairs[n]), keep_halves(load(strip + n * kStrip), seen), c);
    }
    store(out + w, fma(load(out + w), broadcast(factor), c));
  }
}

inline void values_of_pairs_tile(const ForwardTile& tile, const Block& block, const float* pairs, const float* factor) {
  const int64_t out_row = padded_width(tile.value_width);
  const int first = tile.mask.first / 2, last = pairs_of(tile.mask.last);
  if (tile.mask.guard) {
    for (int r = 0; r < tile.rows; ++r) {
      guarded_pairs_row(pairs + r * kBlockPairs, tile.mask.bits[r], block.values, first, last, factor[r],
                        tile.state.output + r * out_row, tile.value_width);
    }
    return;
  }
  with_row_count(tile.rows, [&](auto r) {
    for_strips(tile.value_width, [&](auto v, int w) {
      product_strip<PairProduct, r.value, v.value, kBlockPairs, 1>(
          pairs + first, block.values + int64_t{w} * kBlockPairs + first * kStrip, last - first, factor,
          tile.state.output + w, out_row);
    });
  });
}

// See in_place-inl.h.
struct InPlacePairKeys {
  using Product = PairProduct;
  static constexpr int kWords = kLoadedWords, kEntries = 2 * kWords, kSteps = 1;
  static inline __attribute__((always_inline)) void load_entries(const bfloat16* p, int64_t row, F (&x)[kWords]) {
    load_transposed(p, 2 * row, x);
  }
  template <int ROWS>
  static inline __attribute__((always_inline)) void step(const float* query, F keys, F (&c)[ROWS]) {
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) c[r] = pair_step(broadcast(query[r]), keys, c[r]);
  }
};
struct InPlacePairValues {
  static constexpr int kDepth = 2, kVectors = 2;
  static inline __attribute__((always_inline)) void load_entries(const bfloat16* p, int64_t row, F (&b)[2]) {
    const F first = load_words(p), second = load_words(p + row);
    b[0] = join_low_entries(first, second), b[1] = join_high_entries(first, second);
  }
  static F step(F a, F b, F c) { return pair_step(a, b, c); }
  static void restore_order(F (&x)[2]) { interleave(x[0], x[1]); }
};

inline void forward_tile_in_place_pairs(const ForwardTile& tile, const InPlaceBlock& rows, const ScoreRule& rule) {
  alignas(64) float top[kTileRows * kLanes], rescale[kMaxLanes];
  const Prefetch ahead = keys_ahead(tile, rows, InPlacePairKeys::kEntries);
  scores_in_place<InPlacePairKeys>(tile, static_cast<const bfloat16*>(rows.keys.data), rows.keys.row, rule, ahead, top);
  weights_in_place(tile, rows, rule, top, rescale);
  if (!tile.value_width) return;
  if (rows.values.dtype != UWAGA_BFLOAT16) return values_of_tile_in_place(tile, rows, rescale);
  alignas(64) float pairs[kTileRows * kBlockPairs];
  narrow_weights(tile.scores, tile.rows, 0, kBlockKeys, pairs);
  values_in_place<InPlacePairValues>(tile, pairs, kBlockPairs, static_cast<const bfloat16*>(rows.values.data),
                                     rows.values.row, rescale);
}

inline void forward_tile_pairs(const ForwardTile& tile, const Block& block, const ScoreRule& rule) {
  alignas(64) float rescale[kMaxLanes];
  weights_of_tile<PairProduct>(tile, block, rule, pairs_of(tile.query_width), rescale);
  if (!block.value_pairs) return values_of_tile(tile, block, tile.mask.first, tile.mask.last, rescale);
  alignas(64) float pairs[kTileRows * kBlockPairs];
  narrow_weights(tile.scores, tile.rows, first_column(tile.mask), last_column(tile.mask), pairs);
  values_of_pairs_tile(tile, block, pairs, rescale);
}

inline void weights_tile_pairs(const WeightsTile& tile, const Block& block, const ScoreRule& rule) {
  known_weights_of_tile<PairProduct>(tile, block, rule, pairs_of(tile.query_width));
}

inline void backward_tile_pairs(const BackwardTile& tile, const Block& block, const ScoreRule& rule) {
  gradients_of_tile<PairProduct, FloatProduct>(tile, block, rule, pairs_of(tile.query_width), tile.value_width);
}

inline void matmul_tile_pairs(const MatmulTile& tile) { matmul_tile_of<PairProduct>(tile); }

struct PairWords {
  static constexpr int kEntries = 2;
  using Step = PairProduct;
  static inline F at(const bfloat16* row, int64_t entry, int64_t left) {
    return load_pairs(row + entry, left < 2 * kLanes ? static_cast<int>(left) : 2 * kLanes);
  }
  static inline F across(const bfloat16* b, int64_t column, int64_t w, int64_t entries, int count) {
    const int lanes = count < kLanes ? count : kLanes;
    const F low = load_halves(b + 2 * w * column, lanes);
    return join_halves(low, 2 * w + 1 < entries ? load_halves(b + (2 * w + 1) * column, lanes) : zero());
  }
};

inline void few_rows_pairs(const FewRows& p) { few_rows_of<PairWords>(p, static_cast<const bfloat16*>(p.b.data)); }

inline void pack_tiles_from_columns_pairs(float* out, const Rows& x, int count, int width, int64_t tile_room) {
  const bfloat16* from = static_cast<const bfloat16*>(x.data);
  for (int w = 0; w < width; w += 2, from += 2 * x.column) {
    float* to = out + w / 2 * kTileRows;
    for (int r0 = 0; r0 < count; r0 += kTileRows, to += tile_room) {
      for (int r = r0; r < r0 + kTileRows; r += kLanes) {
        const int lanes = count - r < kLanes ? (count - r > 0 ? count - r : 0) : kLanes;
        const F high = w + 1 < width && lanes ? load_halves(from + x.column + r, lanes) : zero();
        store(to + (r - r0), lanes ? join_halves(load_halves(from + r, lanes), high) : zero());
      }
    }
  }
}
