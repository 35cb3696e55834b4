// Tiles of 16 query rows on the matrix unit: scores, and the product of weights and values. Included inside the level's namespace.
//
// One instruction multiplies 16 rows of 16 words, each a pair of bfloat16, by 16 words of 16 columns. Its second operand is what
// pairs-inl.h packs for keys and values, word by word; its first one has a row's words side by side. Depths are filled up with
// zeros to whole tiles: tiles of one size need no configuration between products. The softmax in between is that of
// forward-inl.h, of 16 rows.
//
// A product of a row and a column has the same bits in any row and column of a tile, so that tiles may have fewer rows, and a masked
// key, whose weight is zero, changes no bit of an output.

constexpr int64_t kStripBytes = kStrip * sizeof(float);
static_assert(kStrip == kBlockKeys && kLanes == kTileRows && kBlockPairs % kTileWords == 0);

inline int tile_words(int width) { return (pairs_of(width) + kTileWords - 1) / kTileWords * kTileWords; }

// How many scopes of this thread need the tiles: a driver's task may be inside another one's.
thread_local int g_tile_users = 0;

inline void begin_tiles() {
  if (g_tile_users++) return;
  TileConfiguration all{};
  all.palette = 1;
  for (int t = 0; t < 8; ++t) all.rows[t] = kTileRows, all.row_bytes[t] = 4 * kTileWords;
  configure_tiles(all);
}

// The registers are 8 KiB of state, which the system would save at every switch of threads.
inline void end_tiles() {
  if (--g_tile_users == 0) release_tiles();
}

// packed[r * tile_words(width) + w]: word w of row r. `factor` is 1 or -1.
inline void pack_queries_tile(float* out, const void* const* rows, int count, int width, int64_t column, int,
                              float factor) {
  const int words = tile_words(width);
  for (int r = 0; r < kTileRows; ++r) {
    for (int w = 0; w < words; w += kLanes) {
      F x = zero();
      if (r < count && 2 * w < width)
        x = load_pairs_strided(static_cast<const bfloat16*>(rows[r]) + 2 * w * column, column, width - 2 * w);
      store(out + r * words + w, factor < 0.0f ? negate_pairs(x) : x);
    }
  }
}

// packed[w * 64 + n]: word w of key n.
inline void pack_keys_tile(float* out, const Rows& rows, int count, int width) {
  const bfloat16* x = static_cast<const bfloat16*>(rows.data);
  const int words = tile_words(width);
  for (int n0 = 0; n0 < kBlockKeys; n0 += kLanes) {
    for (int w0 = 0; w0 < words; w0 += kLanes) {
      F lanes[kLanes];
      for (int n = 0; n < kLanes; ++n) {
        lanes[n] = n0 + n < count && 2 * w0 < width
                       ? load_pairs_strided(x + (n0 + n) * rows.row + 2 * w0 * rows.column, rows.column, width - 2 * w0)
                       : zero();
      }
      transpose(lanes);
      for (int w = 0; w < kLanes; ++w) store(out + int64_t{w0 + w} * kBlockKeys + n0, lanes[w]);
    }
  }
}

// As pack_rows_pairs, with zeros after the last key.
inline void pack_values_tile(float* out, const Rows& rows, int count, int depth, int width) {
  pack_rows_pairs(out, rows, count, depth, width);
  for (int w0 = 0; w0 < width; w0 += kStrip) {
    float* strip = out + int64_t{w0 / kStrip} * pairs_of(depth) * kStrip;
    for (int n = pairs_of(count); n < pairs_of(depth); ++n) {
      for (int v = 0; v < kStripVectors; ++v) store(strip + int64_t{n} * kStrip + v * kLanes, zero());
    }
  }
}

template <int V>
inline __attribute__((always_inline)) void add_column(const float* b) {
  load_tile<5 + V % 2>(b + V * kLanes, kStripBytes);  // two registers: the next load need not wait for the product
  add_tile_products<V, 4, 5 + V % 2>();
}

// Registers 0 to 3, those whose bit is set in `columns`, += register 4, which is loaded from a[16][16], times words b[16][64].
inline __attribute__((always_inline)) void add_columns(const void* a, int64_t a_row, const float* b, int columns) {
  load_tile<4>(a, a_row);
  if (columns & 1) add_column<0>(b);
  if (columns & 2) add_column<1>(b);
  if (columns & 4) add_column<2>(b);
  if (columns & 8) add_column<3>(b);
}

inline __attribute__((always_inline)) void store_columns(float* out, int64_t row_bytes, int columns) {
  if (columns & 1) store_tile<0>(out, row_bytes);
  if (columns & 2) store_tile<1>(out + kLanes, row_bytes);
  if (columns & 4) store_tile<2>(out + 2 * kLanes, row_bytes);
  if (columns & 8) store_tile<3>(out + 3 * kLanes, row_bytes);
}

// The bits of the vectors that hold the first `count` columns of 64.
inline int column_bits(int count) { return (1 << (count + kLanes - 1) / kLanes) - 1; }

// out[16][columns] of a[16][words], whose rows are `a_row` bytes apart, and packed words b[words][64]; `columns` is rounded up to
// whole tiles.
inline void product_of_tiles(const void* a, int64_t a_row, const float* b, int64_t words, int columns, float* out) {
  const int bits = column_bits(columns);
  clear_tile<0>();
  if (bits & 2) clear_tile<1>();
  if (bits & 4) clear_tile<2>();
  if (bits & 8) clear_tile<3>();
  for (int64_t w = 0; w < words; w += kTileWords)
    add_columns(static_cast<const char*>(a) + 4 * w, a_row, b + w * kStrip, bits);
  store_columns(out, kStripBytes, bits);
}

struct TileProduct {};
struct StoredProduct {};  // the products are in `scores` already

template <bool TOP>
inline void scale_scores(int rows, int columns, F scale, float* scores, float* top) {
  for (int r = 0; r < rows; ++r) {
    F best = TOP ? load(top + r * kLanes) : zero();
    for (int n = 0; n < columns; n += kLanes) {
      const F score = mul(load(scores + r * kBlockKeys + n), scale);
      store(scores + r * kBlockKeys + n, score);
      if (TOP) best = max(score, best);
    }
    if (TOP) store(top + r * kLanes, best);
  }
}

template <>
inline void scores_of_tile<TileProduct, false>(const float* query, const float* keys, int rows, int depth, int columns,
                                               const ScoreRule& rule, float* scores, float*) {
  product_of_tiles(query, 4 * depth, keys, depth, columns, scores);
  scale_scores<false>(rows, columns, broadcast(rule.scale), scores, nullptr);
}
template <>
inline void scores_of_tile<StoredProduct, false>(const float*, const float*, int rows, int, int columns,
                                                 const ScoreRule& rule, float* scores, float*) {
  scale_scores<false>(rows, columns, broadcast(rule.scale), scores, nullptr);
}
template <>
inline void scores_of_tile<StoredProduct, true>(const float*, const float*, int rows, int, int columns,
                                                const ScoreRule& rule, float* scores, float* top) {
  scale_scores<true>(rows, columns, broadcast(rule.scale), scores, top);
}

// The weights of columns [first, last), multiples of kLanes, as words; zeros elsewhere.
inline void narrow_weights_of_tile(const float* weights, int rows, int first, int last, float* pairs) {
  const auto at = [&](int r, int n) {
    return r < rows && n >= first && n < last ? load(weights + r * kBlockKeys + n) : zero();
  };
  for (int r = 0; r < kTileRows; ++r) {
    for (int n = 0; n < kBlockKeys; n += 2 * kLanes)
      store(pairs + r * kBlockPairs + n / 2, narrow_pairs(at(r, n), at(r, n + kLanes)));
  }
}

inline void add_product_of_row(const float* product, float factor, int width, float* out) {
  for (int w = 0; w < width; w += kLanes) store(out + w, fma(load(out + w), broadcast(factor), load(product + w)));
}

// As values_of_pairs_tile. A masked value that is not finite counts as zero, as its weight is.
inline void values_of_wide_tile(const ForwardTile& tile, const Block& block, const float* pairs, const float* factor) {
  const int64_t out_row = padded_width(tile.value_width);
  alignas(64) float product[kTileRows * kStrip];
  for (int w = 0; w < tile.value_width; w += kStrip) {
    const int width = tile.value_width - w < kStrip ? tile.value_width - w : kStrip;
    const float* values = block.values + int64_t{w} * kBlockPairs;
    float* out = tile.state.output + w;
    if (!tile.mask.guard) {
      product_of_tiles(pairs, 4 * kBlockPairs, values, kBlockPairs, width, product);
      for (int r = 0; r < tile.rows; ++r) add_product_of_row(product + r * kStrip, factor[r], width, out + r * out_row);
      continue;
    }
    alignas(64) float seen_values[kBlockPairs * kStrip];
    for (int r = 0; r < tile.rows; ++r) {
      for (int n = 0; n < kBlockPairs; ++n) {
        const uint32_t seen = static_cast<uint32_t>(tile.mask.bits[r] >> 2 * n) & 3;
        for (int v = 0; v < kStrip; v += kLanes)
          store(seen_values + n * kStrip + v, keep_halves(load(values + n * kStrip + v), seen));
      }
      product_of_tiles(pairs, 4 * kBlockPairs, seen_values, kBlockPairs, width, product);
      add_product_of_row(product + r * kStrip, factor[r], width, out + r * out_row);
    }
  }
}

inline void start_wide_tile(const ForwardTile& tile, const Block& block, const ScoreRule& rule) {
  const int columns = rule.plain() && !tile.mask.bits ? kBlockKeys : tile.mask.last;
  const int words = tile_words(tile.query_width);
  product_of_tiles(tile.query, 4 * words, block.keys, words, columns, tile.scores);
}

inline void finish_wide_tile(const ForwardTile& tile, const Block& block, const ScoreRule& rule) {
  alignas(64) float rescale[kMaxLanes];
  weights_of_tile<StoredProduct>(tile, block, rule, 0, rescale);
  if (!block.value_pairs) return values_of_tile(tile, block, tile.mask.first, tile.mask.last, rescale);
  alignas(64) float pairs[kTileRows * kBlockPairs];
  narrow_weights_of_tile(tile.scores, tile.rows, first_column(tile.mask), last_column(tile.mask), pairs);
  values_of_wide_tile(tile, block, pairs, rescale);
}

inline void forward_wide_tile(const ForwardTile& tile, const Block& block, const ScoreRule& rule) {
  start_wide_tile(tile, block, rule);
  finish_wide_tile(tile, block, rule);
}

inline void weights_wide_tile(const WeightsTile& tile, const Block& block, const ScoreRule& rule) {
  known_weights_of_tile<TileProduct>(tile, block, rule, tile_words(tile.query_width));
}

inline void backward_wide_tile(const BackwardTile& tile, const Block& block, const ScoreRule& rule) {
  gradients_of_tile<TileProduct, FloatProduct>(tile, block, rule, tile_words(tile.query_width), tile.value_width);
}

// Depth is a multiple of kTileWords here, and sixteen rows of a can be read.
inline void matmul_wide_tile(const MatmulTile& tile) {
  alignas(64) float product[kTileRows * kStrip];
  product_of_tiles(tile.a, tile.a_row ? tile.a_row : 4 * tile.depth, tile.b, tile.depth, kStrip, product);
  for (int r = 0; r < tile.rows; ++r) {
    for (int n = 0; n < kStrip; n += kLanes) {
      F sum = load(product + r * kStrip + n);
      if (tile.from) sum = add(load(tile.from + r * tile.from_row + n), sum);
      store(tile.to + r * tile.to_row + n, sum);
    }
  }
}

// packed[w * 16 + r]: word w of row r, and zeros up to whole tiles.
inline void pack_few_rows_tile(float* out, const void* const* rows, int count, int width, int64_t column, int dtype,
                               float factor) {
  pack_tile_pairs(out, rows, count, width, column, dtype, factor);
  for (int w = pairs_of(width); w < tile_words(width); ++w) store(out + w * kTileRows, zero());
}

// Sixteen columns of b and 32 entries along their depth: where they lie, or a copy with zeros where there are fewer.
class ColumnTile {
 public:
  ColumnTile(const FewRows& p, int first) : p_(p), first_(first), columns_(p.width - first) {}
  template <int T>
  inline void load(int64_t entry) {
    const bfloat16* from = static_cast<const bfloat16*>(p_.b.data) + first_ * p_.b.row + entry;
    const int64_t left = p_.entries - entry;
    if (columns_ >= kTileRows && left >= 2 * kTileWords) return load_tile<T>(from, 2 * p_.b.row);
    for (int n = 0; n < kTileRows; ++n) {
      const int count = left < 2 * kTileWords ? static_cast<int>(left) : 2 * kTileWords;
      store(copy_ + n * kTileWords, n < columns_ ? load_pairs(from + n * p_.b.row, count) : zero());
    }
    load_tile<T>(copy_, 4 * kTileWords);
  }

 private:
  const FewRows& p_;
  const int64_t first_, columns_;
  alignas(64) float copy_[kTileRows * kTileWords];
};

// Few rows: the columns of b, adjacent along the depth, are the left operand, where they lie, so that nothing of b is packed. A
// product of two numbers does not depend on their order, so neither do the bits.
inline void few_wide_rows(const FewRows& p) {
  const auto write = [&](const float* product, int first) {
    F lanes[kLanes];
    for (int n = 0; n < kLanes; ++n) lanes[n] = load(product + n * kLanes);
    transpose(lanes);
    for (int r = 0; r < p.rows; ++r) {
      float* to = p.to + r * p.to_row + first;
      store(to, p.add ? add(load(to), lanes[r]) : lanes[r]);
    }
  };
  alignas(64) float product[kTileRows * kLanes];
  for (int n = 0; n < p.width; n += 2 * kTileRows) {
    const bool two = n + kTileRows < p.width;
    ColumnTile first(p, n), second(p, n + kTileRows);
    const float* rows = static_cast<const float*>(p.a);
    clear_tile<0>();
    clear_tile<1>();
    for (int64_t at = 0; at < p.entries; at += 2 * kTileWords, rows += kTileWords * kTileRows) {
      load_tile<6>(rows, 4 * kTileRows);
      first.load<4>(at);
      add_tile_products<0, 4, 6>();
      if (!two) continue;
      second.load<5>(at);
      add_tile_products<1, 5, 6>();
    }
    store_tile<0>(product, 4 * kLanes);
    write(product, n);
    if (!two) continue;
    store_tile<1>(product, 4 * kLanes);
    write(product, n + kTileRows);
  }
}
