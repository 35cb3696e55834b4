// The backward pass on the matrix unit, where all its operands are bfloat16. Included after amx-inl.h inside the level's namespace.
//
// Scores and dP are products of bfloat16 as they are. The products that sum the gradients have P and dS as one operand; these are split
// into two bfloat16, high + low, and multiplied one after the other: their error stays 2^-17 of a weight, the other operand is exact.
//
//     dQ[16 rows][D] += dS[16 rows][64 keys] K               words of two keys
//     dK^T[D][64 keys] += Q^T[D][32 rows] dS[32 rows][64 keys]   words of two rows; dV^T = dO^T P likewise
//
// dK and dV are summed transposed: so P and dS are right operands, for which words of two adjacent rows are enough, and the left
// ones are packed once for all blocks of keys. A transposition of P and dS in every tile would take longer than the products.
//
// As in the forward pass a weight of zero changes no bit, so that tiles of zeros may be skipped, and a masked operand that is not
// finite is replaced by zero in a copy.

inline void backward_of_tiles(const BackwardTile& tile, const Block& block, const ScoreRule& rule) {
  gradients_of_tile<TileProduct, TileProduct>(tile, block, rule, tile_words(tile.query_width),
                                              tile_words(tile.value_width));
}

inline void pack_transposed_tiles(float* out, const void* const* rows, int count, int width, int64_t column) {
  const auto entries = [&](int r, int w) {
    if (r >= count) return zero();
    return load_halves_strided(static_cast<const bfloat16*>(rows[r]) + w * column, column, width - w);
  };
  for (int w = 0; w < width; w += kLanes, out += kLanes * kTileWords) {
    F words[kLanes];
    for (int n = 0; n < kTileWords; ++n) words[n] = join_halves(entries(2 * n, w), entries(2 * n + 1, w));
    transpose(words);
    for (int n = 0; n < kLanes; ++n) store(out + n * kTileWords, words[n]);
  }
}

// 32 keys of two rows: as words of two keys, and as words of two rows.
struct SplitWords {
  F first_row, second_row, first_keys, last_keys;
  SplitWords(const F (&first)[2], const F (&second)[2])
      : first_row(narrow_pairs(first[0], first[1])), second_row(narrow_pairs(second[0], second[1])) {
    join_rows(first_row, second_row, &first_keys, &last_keys);
  }
  void store_to(float* row, float* column) const {
    if (row) {
      store(row, first_row);
      store(row + kBlockPairs, second_row);
    }
    if (column) {
      store(column, first_keys);
      store(column + kLanes, last_keys);
    }
  }
};

inline void split_weights(const SplitTile& tile) {
  constexpr int64_t kRowLow = kTileRows * kBlockPairs;
  for (int r = 0; r < kTileRows; r += 2) {
    for (int n = 0; n < kBlockKeys; n += 2 * kLanes) {
      const float* from = tile.weights + r * kBlockKeys + n;
      F first[2] = {zero(), zero()}, second[2] = {zero(), zero()};
      if (r < tile.rows) first[0] = load(from), first[1] = load(from + kLanes);
      if (r + 1 < tile.rows) second[0] = load(from + kBlockKeys), second[1] = load(from + kBlockKeys + kLanes);
      float* row = tile.by_row ? tile.by_row + r * kBlockPairs + n / 2 : nullptr;
      float* column = tile.by_column ? tile.by_column + r / 2 * kBlockKeys + n : nullptr;
      const SplitWords high(first, second);
      high.store_to(row, column);
      // A word of two rows has both rounded entries at the lanes of the floats that they came from.
      first[0] = remainder_of(first[0], low_halves(high.first_keys));
      first[1] = remainder_of(first[1], low_halves(high.last_keys));
      second[0] = remainder_of(second[0], high_halves(high.first_keys));
      second[1] = remainder_of(second[1], high_halves(high.last_keys));
      SplitWords(first, second).store_to(row ? row + kRowLow : nullptr, column ? column + tile.low : nullptr);
    }
  }
}

inline __attribute__((always_inline)) void load_columns(const float* from, int64_t row_bytes, int columns) {
  if (columns & 1) load_tile<0>(from, row_bytes);
  if (columns & 2) load_tile<1>(from + kLanes, row_bytes);
  if (columns & 4) load_tile<2>(from + 2 * kLanes, row_bytes);
  if (columns & 8) load_tile<3>(from + 3 * kLanes, row_bytes);
}

// to[16][columns] = from + a b, words [first, last) of the rows of a strip of keys; the rows of both `row_bytes` apart.
inline void add_rows_strip(const RowsGradient& p, const float* b, const float* from, int64_t from_bytes, float* to,
                           int64_t to_bytes, int columns) {
  load_columns(from, from_bytes, columns);
  for (int w = p.first / 2 / kTileWords * kTileWords; 2 * w < p.last; w += kTileWords) {
    for (int64_t part = 0; part <= kTileRows * kBlockPairs; part += kTileRows * kBlockPairs)
      add_columns(p.a + part + w, 4 * kBlockPairs, b + w * kStrip, columns);
  }
  store_columns(to, to_bytes, columns);
}

inline void add_rows_gradient(const RowsGradient& p) {
  const int64_t row_bytes = p.out_row * static_cast<int64_t>(sizeof(float));
  for (int w = 0; w < p.width; w += kStrip) {
    const int columns = column_bits(p.width - w < kStrip ? p.width - w : kStrip);
    const float* keys = p.b + int64_t{w} * kBlockPairs;
    float* out = p.out + w;
    if (!p.seen) {
      add_rows_strip(p, keys, out, row_bytes, out, row_bytes, columns);
      continue;
    }
    alignas(64) float seen_keys[kBlockPairs * kStrip], sums[kTileRows * kStrip];
    for (int r = 0; r < p.rows; ++r) {
      for (int n = 0; n < kBlockPairs; ++n) {
        const uint32_t seen = static_cast<uint32_t>(p.seen[r] >> 2 * n) & 3;
        for (int v = 0; v < kStrip; v += kLanes)
          store(seen_keys + n * kStrip + v, keep_halves(load(keys + n * kStrip + v), seen));
      }
      add_rows_strip(p, seen_keys, out, row_bytes, sums, kStripBytes, columns);
      for (int v = 0; v < kStripVectors && columns >> v & 1; ++v)
        store(out + r * p.out_row + v * kLanes, load(sums + r * kStrip + v * kLanes));
    }
  }
}

// The tiles of keys that some of a group's rows see.
inline int seen_columns(const DepthRange& keys) {
  return keys.first < keys.last ? column_bits(keys.last) & ~((1 << keys.first / kLanes) - 1) : 0;
}

// The key `n` alone, of rows that do not all see it.
inline void add_guarded_column(const ColumnsGradient& p, int n) {
  const float* const parts[] = {p.high, p.low};
  const int column = 1 << n / kLanes;
  for (int w = 0; w < p.width; w += kLanes) {
    alignas(64) float sums[kLanes * kStrip];
    float* out = p.out + w * kBlockKeys;
    load_columns(out, kStripBytes, column);
    for (int g = 0; g < p.groups; ++g) {
      if (!(seen_columns(p.keys[g]) & column)) continue;
      alignas(64) uint32_t words[kLanes * kTileWords];
      __builtin_memcpy(words, p.a + g * p.a_next + w * kTileWords, sizeof words);
      for (int m = 0; m < kLanes * kTileWords; ++m) {
        const uint64_t* seen = p.seen + g * ColumnsGradient::kRows + m % kTileWords * 2;
        words[m] &= (seen[0] >> n & 1 ? 0xFFFFu : 0u) | (seen[1] >> n & 1 ? 0xFFFF0000u : 0u);
      }
      const int64_t at = int64_t{g} * kTileWords * kBlockKeys;
      for (const float* part : parts) add_columns(words, 4 * kTileWords, part + at, column);
    }
    store_columns(sums, kStripBytes, column);
    for (int m = 0; m < kLanes; ++m) out[m * kBlockKeys + n] = sums[m * kStrip + n];
  }
}

inline void add_columns_gradient(const ColumnsGradient& p) {
  if (p.seen) {
    for (int n = 0; n < p.count; ++n) add_guarded_column(p, n);
    return;
  }
  const float* const parts[] = {p.high, p.low};
  int all = 0;
  for (int g = 0; g < p.groups; ++g) all |= seen_columns(p.keys[g]);
  for (int w = 0; w < p.width; w += kLanes) {
    float* out = p.out + w * kBlockKeys;
    load_columns(out, kStripBytes, all);
    for (int g = 0; g < p.groups; ++g) {
      const float* a = p.a + g * p.a_next + w * kTileWords;
      const int64_t at = int64_t{g} * kTileWords * kBlockKeys;
      for (const float* part : parts) add_columns(a, 4 * kTileWords, part + at, seen_columns(p.keys[g]));
    }
    store_columns(out, kStripBytes, all);
  }
}

inline void transpose_gradient(float* out, const float* sums, int width) {
  const int64_t row = padded_width(width);
  for (int n = 0; n < kBlockKeys; n += kLanes) {
    for (int w = 0; w < width; w += kLanes) {
      F lanes[kLanes];
      for (int m = 0; m < kLanes; ++m) lanes[m] = load(sums + (w + m) * kBlockKeys + n);
      transpose(lanes);
      for (int m = 0; m < kLanes; ++m) store(out + (n + m) * row + w, lanes[m]);
    }
  }
}
