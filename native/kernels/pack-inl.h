// Packing: operands copied, widened to float32 and laid out for the tiles (layouts in kernels.h).
// Included inside the level's namespace.

constexpr int kStrip = kStripVectors * kLanes;

inline const float* typed(const void* p, const float*) { return static_cast<const float*>(p); }
inline const bfloat16* typed(const void* p, const bfloat16*) { return static_cast<const bfloat16*>(p); }
inline const float16* typed(const void* p, const float16*) { return static_cast<const float16*>(p); }

// Calls f with a null pointer of the element type that `dtype` names.
template <class Function>
inline void with_type(int dtype, const Function& f) {
  if (dtype == UWAGA_FLOAT32) return f(static_cast<const float*>(nullptr));
  if (dtype == UWAGA_BFLOAT16) return f(static_cast<const bfloat16*>(nullptr));
  f(static_cast<const float16*>(nullptr));
}

// Up to kLanes entries x[0], x[column], ... as floats; the rest zero.
template <class T>
inline F load_strided(const T* x, int64_t column, int count) {
  if (column == 1) return count >= kLanes ? load(x) : load_partial(x, count);
  float lanes[kLanes] = {};
  for (int n = 0; n < kLanes && n < count; ++n) lanes[n] = widen(x[n * column]);
  return load(lanes);
}

// Prefetches the row that lies `distance` further on: keys and values come from memory or an outer cache, and several rows read side
// by side are more streams than the hardware prefetcher follows. A prefetch past the end of memory is harmless.
constexpr int kPrefetchRows = 16;

template <class T>
inline void prefetch_ahead(const T* row, const Rows& rows, int width, uint64_t distance = kPrefetchRows) {
  if (rows.column != 1) return;
  // As integers, since a pointer may not leave its array, and the stride of a single row may have any value.
  const uint64_t ahead = reinterpret_cast<uintptr_t>(row) + distance * sizeof(T) * static_cast<uint64_t>(rows.row);
  for (uint64_t byte = 0; byte < static_cast<uint64_t>(width) * sizeof(T); byte += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(static_cast<uintptr_t>(ahead + byte)));
  }
}

template <class T>
inline void pack_columns_of(float* out, const T* x, const Rows& rows, int count, int width) {
  for (int n0 = 0; n0 < count; n0 += kLanes) {
    float* strip = out + int64_t{n0 / kStrip} * width * kStrip + n0 % kStrip;
    const int live = count - n0 < kLanes ? count - n0 : kLanes;
    if (rows.row == 1) {  // already transposed in memory
      for (int w = 0; w < width; ++w) {
        const T* from = x + n0 + w * rows.column;
        store(strip + int64_t{w} * kStrip, live == kLanes ? load(from) : load_partial(from, live));
      }
      continue;
    }
    for (int n = 0; n < live; ++n) prefetch_ahead(x + (n0 + n) * rows.row, rows, width);
    for (int w0 = 0; w0 < width; w0 += kLanes) {
      F lanes[kLanes];
      const int left = width - w0 < kLanes ? width - w0 : kLanes;
      const T* corner = x + n0 * rows.row + w0 * rows.column;
      float* to = strip + int64_t{w0} * kStrip;
      if (rows.column == 1 && live == kLanes && left == kLanes) {  // a full square: no branch per row
        for (int n = 0; n < kLanes; ++n) lanes[n] = load(corner + n * rows.row);
        transpose(lanes);
        for (int w = 0; w < kLanes; ++w) store(to + w * kStrip, lanes[w]);
        continue;
      }
      for (int n = 0; n < kLanes; ++n) {
        lanes[n] = n < live ? load_strided(corner + n * rows.row, rows.column, left) : zero();
      }
      transpose(lanes);
      for (int w = 0; w < left; ++w) store(to + w * kStrip, lanes[w]);
    }
  }
  // Kernels read the last strip to its end.
  const int filled = (count + kLanes - 1) / kLanes * kLanes;
  const int wanted = (count + kStrip - 1) / kStrip * kStrip;
  for (int n0 = filled; n0 < wanted; n0 += kLanes) {
    float* strip = out + int64_t{n0 / kStrip} * width * kStrip + n0 % kStrip;
    for (int w = 0; w < width; ++w) store(strip + int64_t{w} * kStrip, zero());
  }
}

inline void pack_columns(float* out, const Rows& rows, int count, int width) {
  with_type(rows.dtype, [&](auto* type) { pack_columns_of(out, typed(rows.data, type), rows, count, width); });
}

// Rows per pass: few enough that memory is read in order, enough that each strip is written in longer runs.
constexpr int kRowsAtOnce = 8;

template <class T>
inline void pack_rows_of(float* out, const T* x, const Rows& rows, int count, int depth, int width) {
  for (int first = 0; first < count; first += kRowsAtOnce) {
    const int last = first + kRowsAtOnce < count ? first + kRowsAtOnce : count;
    for (int n = first; n < last; ++n) prefetch_ahead(x + n * rows.row, rows, width);
    for (int w0 = 0; w0 < width; w0 += kStrip) {
      float* strip = out + int64_t{w0} * depth;
      for (int n = first; n < last; ++n) {
        const T* from = x + n * rows.row + w0 * rows.column;
        if (rows.column == 1 && w0 + kStrip <= width) {
          for (int v = 0; v < kStripVectors; ++v) store(strip + n * kStrip + v * kLanes, load(from + v * kLanes));
          continue;
        }
        for (int v = 0; v < kStripVectors; ++v) {
          const int left = width - w0 - v * kLanes;
          const F lanes = left > 0 ? load_strided(from + v * kLanes * rows.column, rows.column, left) : zero();
          store(strip + n * kStrip + v * kLanes, lanes);
        }
      }
    }
  }
}

inline void pack_rows(float* out, const Rows& rows, int count, int depth, int width) {
  with_type(rows.dtype, [&](auto* type) { pack_rows_of(out, typed(rows.data, type), rows, count, depth, width); });
}

// Tiles are written in ascending w, one whole vector each: what exceeds the six rows is overwritten by the next w, so `out`
// needs kMaxLanes more floats at its end.
template <class T>
inline void pack_tile_of(float* out, const void* const* rows, int count, int width, int64_t column, float factor) {
  if (count == 1) {  // no transposition for a single row
    __builtin_memset(out, 0, sizeof(float) * kTileRows * width);
    const T* row = static_cast<const T*>(rows[0]);
    for (int w = 0; w < width; ++w) out[w * kTileRows] = factor * widen(row[w * column]);
    return;
  }
  if constexpr (kLanes >= kTileRows) {
    const F times = broadcast(factor);
    int w0 = 0;
    if (column == 1 && count == kTileRows) {  // a full tile: no branch per row
      for (; w0 + kLanes <= width; w0 += kLanes) {
        F lanes[kLanes];
        for (int n = 0; n < kLanes; ++n) {
          lanes[n] = n < kTileRows ? mul(times, load(static_cast<const T*>(rows[n < kTileRows ? n : 0]) + w0)) : zero();
        }
        transpose(lanes);
        for (int w = 0; w < kLanes; ++w) store(out + (w0 + w) * kTileRows, lanes[w]);
      }
    }
    for (; w0 < width; w0 += kLanes) {
      const int left = width - w0 < kLanes ? width - w0 : kLanes;
      F lanes[kLanes];
      for (int n = 0; n < kLanes; ++n) {
        lanes[n] =
            n < count ? mul(times, load_strided(static_cast<const T*>(rows[n]) + w0 * column, column, left)) : zero();
      }
      transpose(lanes);
      for (int w = 0; w < left; ++w) store(out + (w0 + w) * kTileRows, lanes[w]);
    }
  } else {
    for (int n = 0; n < kTileRows; ++n) {
      for (int w = 0; w < width; ++w) {
        out[w * kTileRows + n] = n < count ? factor * widen(static_cast<const T*>(rows[n])[w * column]) : 0.0f;
      }
    }
  }
}

inline void pack_tile(float* out, const void* const* rows, int count, int width, int64_t column, int dtype,
                      float factor) {
  with_type(dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    pack_tile_of<T>(out, rows, count, width, column, factor);
  });
}

inline bool all_finite(const float* packed, int64_t count) {  // count is a multiple of kLanes
  // x - x is NaN for NaN and infinities, and a NaN stays in a sum. Four sums, since each addition waits for the one before.
  constexpr int kSums = 4;
  F sums[kSums];
  for (F& sum : sums) sum = zero();
  const auto add_excess = [&](F& sum, int64_t n) {
    const F x = load(packed + n);
    sum = add(sum, sub(x, x));
  };
  int64_t n = 0;
  for (; n + kSums * kLanes <= count; n += kSums * kLanes) {
    for (int k = 0; k < kSums; ++k) add_excess(sums[k], n + k * kLanes);
  }
  for (; n < count; n += kLanes) add_excess(sums[0], n);
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3]))) == 0.0f;
}

template <class T>
inline void write_row_of(T* out, int64_t column, const float* row, float factor, int width) {
  const F times = broadcast(factor);
  int w = 0;
  if (column == 1) {
    for (; w + kLanes <= width; w += kLanes) store_partial(out + w, mul(times, load(row + w)), kLanes);
  }
  for (; w < width; w += kLanes) {
    const int left = width - w < kLanes ? width - w : kLanes;
    const F lanes = mul(times, left == kLanes ? load(row + w) : load_partial(row + w, left));
    if (column == 1) {
      store_partial(out + w, lanes, left);
    } else {
      T narrow[kLanes];
      store_partial(narrow, lanes, kLanes);
      for (int n = 0; n < left; ++n) out[(w + n) * column] = narrow[n];
    }
  }
}

inline void write_row(void* out, int64_t column, int dtype, const float* row, float factor, int width) {
  with_type(dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    write_row_of(static_cast<T*>(out), column, row, factor, width);
  });
}

inline void write_rows(void* const* out, int64_t column, int dtype, const float* rows, int64_t row_width,
                       const float* factors, int count, int width) {
  with_type(dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    for (int r = 0; r < count; ++r)
      write_row_of(static_cast<T*>(out[r]), column, rows + r * row_width, factors[r], width);
  });
}

inline float dot_rows(const void* a, int64_t a_column, int a_dtype, const void* b, int64_t b_column, int b_dtype,
                      int width) {
  F sums[kChains];
  for (F& sum : sums) sum = zero();
  with_type(a_dtype, [&](auto* a_type) {
    with_type(b_dtype, [&](auto* b_type) {
      int w = 0;
      if (a_column == 1 && b_column == 1) {
        for (; w + kLanes <= width; w += kLanes) {
          F& sum = sums[w / kLanes % kChains];
          sum = fma(load(typed(a, a_type) + w), load(typed(b, b_type) + w), sum);
        }
      }
      for (; w < width; w += kLanes) {
        F& sum = sums[w / kLanes % kChains];
        sum = fma(load_strided(typed(a, a_type) + w * a_column, a_column, width - w),
                  load_strided(typed(b, b_type) + w * b_column, b_column, width - w), sum);
      }
    });
  });
  return reduce_add(fold_chains(sums));
}
