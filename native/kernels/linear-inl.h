// The products of linear attention: states k^T v, and queries times states. Included inside the level's
// namespace.

#ifdef UWAGA_LEVEL_BFLOAT16_PAIRS
// The words of rows 2 n and 2 n + 1, each entry rounded to bfloat16.
inline F join_rounded(F low, F high) {
  bfloat16 entries[2 * kLanes];
  const F words = narrow_pairs(low, high);
  __builtin_memcpy(entries, &words, sizeof entries);
  return join_halves(load_halves(entries, kLanes), load_halves(entries + kLanes, kLanes));
}

// What rounding to bfloat16 left over. Zero where the rounded entry is not finite: its remainder would be NaN.
inline F remainder_of(F x, F rounded) { return select(finite_bits(rounded), sub(x, rounded), zero()); }

inline void split_state(const float* state, float* high, float* low, int rows_width, int width) {
  const int64_t room = (int64_t{rows_width} + kStrip - 1) / kStrip * kStrip;
  for (int w = 0; w < width; w += kLanes) {
    const int64_t from = int64_t{w / kStrip} * kStrip * room + w % kStrip;
    const int64_t to = int64_t{w / kStrip} * kStrip * (room / 2) + w % kStrip;
    for (int d = 0; d < rows_width; d += 2) {
      const F even = load(state + from + d * kStrip);
      const F odd = d + 1 < rows_width ? load(state + from + (d + 1) * kStrip) : zero();
      const F words = join_rounded(even, odd);
      store(high + to + d / 2 * kStrip, words);
      store(low + to + d / 2 * kStrip,
            join_rounded(remainder_of(even, low_halves(words)), remainder_of(odd, high_halves(words))));
    }
  }
}

inline void add_outer_product_pairs(float* state, const float* a, const float* b, int count, int depth, int rows_width,
                                    int width) {
  const int64_t room = (int64_t{rows_width} + kStrip - 1) / kStrip * kStrip;
  const int64_t words = pairs_of(depth);
  for_strips(width, [&](auto v, int w) {
    for (int d0 = 0; d0 < rows_width; d0 += kStrip) {
      for (int r = 0; r < kStrip && d0 + r < rows_width; r += kTileRows) {
        const int left = kStrip - r < kTileRows ? kStrip - r : kTileRows;
        with_row_count(left, [&](auto rows) {
          product_strip<PairProduct, rows.value, v.value, 1, kStrip>(a + d0 * words + r, b + w * words, pairs_of(count),
                                                                     nullptr, state + w * room + (d0 + r) * kStrip,
                                                                     kStrip);
        });
      }
    }
  });
}

inline void add_tile_product_pairs(float* out, int64_t out_row, const float* tile, const float* high, const float* low,
                                   int rows, int depth, int width) {
  const int64_t room = (int64_t{depth} + kStrip - 1) / kStrip * kStrip;
  with_row_count(rows, [&](auto r) {
    for_strips(width, [&](auto v, int w) {
      F c[r.value][v.value];
      UWAGA_UNROLL(6)
      for (int n = 0; n < r.value; ++n) {
        UWAGA_UNROLL(8)
        for (int k = 0; k < v.value; ++k) c[n][k] = zero();
      }
      accumulate<PairProduct, r.value, v.value, 1, kTileRows>(tile, low + w * (room / 2), kStrip, pairs_of(depth), c);
      accumulate<PairProduct, r.value, v.value, 1, kTileRows>(tile, high + w * (room / 2), kStrip, pairs_of(depth), c);
      UWAGA_UNROLL(6)
      for (int n = 0; n < r.value; ++n) {
        UWAGA_UNROLL(8)
        for (int k = 0; k < v.value; ++k) {
          float* at = out + n * out_row + w + k * kLanes;
          store(at, add(load(at), c[n][k]));
        }
      }
    });
  });
}

// As `accumulate` of forward-inl.h, with the rows of `a` where they lie.
template <int ROWS, int VECTORS>
inline __attribute__((always_inline)) void accumulate_rows(const float* const (&a)[ROWS], const float* b, int depth,
                                                           F (&c)[ROWS][VECTORS]) {
  for (int d = 0; d < depth; ++d) {
    F right[VECTORS];
    UWAGA_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) right[v] = load(b + d * kStrip + v * kLanes);
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) {
      const F left = broadcast(a[r][d]);
      UWAGA_UNROLL(8)
      for (int v = 0; v < VECTORS; ++v) c[r][v] = pair_step(left, right[v], c[r][v]);
    }
  }
}

// Written by a call: for each type and number of rows inlined, it was an eighth of the library.
inline void write_rows_times_state_pairs(const RowsTimesState& x) {
  const int64_t room = (int64_t{x.depth} + kStrip - 1) / kStrip * kStrip;
  const int64_t out_size = x.out_dtype == UWAGA_FLOAT32 ? sizeof(float) : sizeof(bfloat16);
  with_row_count(x.count, [&](auto rows) {
    const float* a[rows.value];
    for (int r = 0; r < rows.value; ++r) a[r] = static_cast<const float*>(x.rows[r]);
    for_strips(x.width, [&](auto v, int w) {
      F c[rows.value][v.value];
      UWAGA_UNROLL(6)
      for (int r = 0; r < rows.value; ++r) {
        UWAGA_UNROLL(8)
        for (int k = 0; k < v.value; ++k) c[r][k] = zero();
      }
      accumulate_rows(a, x.low + w * (room / 2), x.depth / 2, c);
      accumulate_rows(a, x.high + w * (room / 2), x.depth / 2, c);
      alignas(64) float sums[rows.value][v.value * kLanes];
      UWAGA_UNROLL(6)
      for (int r = 0; r < rows.value; ++r) {
        UWAGA_UNROLL(8)
        for (int k = 0; k < v.value; ++k) store(sums[r] + k * kLanes, c[r][k]);
      }
      const int left = x.width - w < v.value * kLanes ? x.width - w : v.value * kLanes;
      for (int r = 0; r < rows.value; ++r) {
        char* to = static_cast<char*>(x.out[r]) + w * x.out_column * out_size;
        write_row(to, x.out_column, x.out_dtype, sums[r], x.factor, left);
      }
    });
  });
}
#endif

// Packed rows give the left operand too: within a strip, entry r of row n lies at n * kStrip + r.
inline void add_outer_product(float* state, const float* a, const float* b, int count, int depth, int rows_width,
                              int width) {
  const int64_t room = (int64_t{rows_width} + kStrip - 1) / kStrip * kStrip;
  for_strips(width, [&](auto v, int w) {
    for (int d0 = 0; d0 < rows_width; d0 += kStrip) {
      for (int r = 0; r < kStrip && d0 + r < rows_width; r += kTileRows) {
        const int left = kStrip - r < kTileRows ? kStrip - r : kTileRows;
        with_row_count(left, [&](auto rows) {
          product_strip<FloatProduct, rows.value, v.value, 1, kStrip>(a + int64_t{d0} * depth + r,
                                                                      b + int64_t{w} * depth, count, nullptr,
                                                                      state + w * room + (d0 + r) * kStrip, kStrip);
        });
      }
    }
  });
}

inline void add_tile_product(float* out, int64_t out_row, const float* tile, const float* state, int rows, int depth,
                             int width) {
  const int64_t room = (int64_t{depth} + kStrip - 1) / kStrip * kStrip;
  with_row_count(rows, [&](auto r) {
    for_strips(width, [&](auto v, int w) {
      product_strip<FloatProduct, r.value, v.value, 1, kTileRows>(tile, state + w * room, depth, nullptr, out + w,
                                                                  out_row);
    });
  });
}
