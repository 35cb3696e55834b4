// Products of matrices: a tile of 6 rows times a strip of packed columns, and what is done to its sums before they are stored.
// Included inside the level's namespace.
//
// Every sum runs over the depth in order, in blocks that depend on the depth alone (drivers/matmul.cc): so a row of the result has
// the same bits whatever rows stand beside it.

// Word `depth` of row r of the left operand: from the caller's memory, whose rows are `row` bytes apart, or from a packed tile.
struct RowsInPlace {
  const char* data;
  int64_t row;
  inline F at(int r, int64_t depth) const {
    float word;
    __builtin_memcpy(&word, data + r * row + depth * static_cast<int64_t>(sizeof word), sizeof word);
    return broadcast(word);
  }
};
struct PackedTileRows {
  const float* data;
  inline F at(int r, int64_t depth) const { return broadcast(data[depth * kTileRows + r]); }
};

template <class Step, int ROWS, class Left>
inline __attribute__((always_inline)) void matmul_strip(const Left& left, const MatmulTile& tile) {
  F c[ROWS][kStripVectors];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kStripVectors; ++v) c[r][v] = zero();
  }
  const float* b = tile.b;
  const uintptr_t next = reinterpret_cast<uintptr_t>(tile.next_a);
  for (int64_t d = 0; d < tile.depth; ++d) {
    // A line of 16 words of each row of the following tile, one row a step.
    if (next && d % 16 < kTileRows) {
      __builtin_prefetch(reinterpret_cast<const void*>(next + d % 16 * tile.a_row + d / 16 * 64));
    }
    F right[kStripVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kStripVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r) {
      const F x = left.at(r, d);
#pragma GCC unroll 8
      for (int v = 0; v < kStripVectors; ++v) c[r][v] = Step::step(x, right[v], c[r][v]);
    }
    b += kStrip;
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kStripVectors; ++v) {
      F sum = c[r][v];
      if (tile.from) sum = add(load(tile.from + r * tile.from_row + v * kLanes), sum);
      store(tile.to + r * tile.to_row + v * kLanes, sum);
    }
  }
}

template <class Step>
inline void matmul_tile_of(const MatmulTile& tile) {
  with_row_count(tile.rows, [&](auto rows) {
    if (tile.a_row) {
      matmul_strip<Step, rows.value>(RowsInPlace{static_cast<const char*>(tile.a), tile.a_row}, tile);
    } else {
      matmul_strip<Step, rows.value>(PackedTileRows{static_cast<const float*>(tile.a)}, tile);
    }
  });
}

inline void matmul_tile(const MatmulTile& tile) { matmul_tile_of<FloatProduct>(tile); }

// Entries of b as words: `at` reads up to kLanes words from word w of a row on; `across` word w of up to kLanes adjacent rows.
template <class T>
struct FloatWords {
  static constexpr int kEntries = 1;
  using Step = FloatProduct;
  static inline F at(const T* row, int64_t w, int64_t left) {
    return left >= kLanes ? load(row + w) : load_partial(row + w, static_cast<int>(left));
  }
  static inline F across(const T* b, int64_t column, int64_t w, int64_t, int count) {
    const T* from = b + w * column;
    return count >= kLanes ? load(from) : load_partial(from, count);
  }
};

// Columns of the product whose entries lie one after another along the depth: squares of b are transposed in registers.
template <class Words, int ROWS, class Left, class T>
inline __attribute__((always_inline)) void few_rows_transposed(const Left& left, const FewRows& p, const T* b) {
  const int64_t words = (p.entries + Words::kEntries - 1) / Words::kEntries;
  for (int n0 = 0; n0 < p.width; n0 += kLanes) {
    const int count = p.width - n0 < kLanes ? p.width - n0 : kLanes;
    F c[ROWS];
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) c[r] = zero();
    for (int64_t w0 = 0; w0 < words; w0 += kLanes) {
      F lanes[kLanes];
      for (int n = 0; n < kLanes; ++n) {
        const T* row = b + (n0 + (n < count ? n : 0)) * p.b.row;
        lanes[n] = Words::at(row, w0 * Words::kEntries, p.entries - w0 * Words::kEntries);
        // As an integer, since a pointer may not leave its array.
        const uintptr_t place = reinterpret_cast<uintptr_t>(row);
        __builtin_prefetch(reinterpret_cast<const void*>(place + (w0 + 8 * kLanes) * Words::kEntries * sizeof(T)));
      }
      transpose(lanes);
      if (words - w0 >= kLanes) {
        UWAGA_UNROLL(16)
        for (int w = 0; w < kLanes; ++w) {
          UWAGA_UNROLL(6)
          for (int r = 0; r < ROWS; ++r) c[r] = Words::Step::step(left.at(r, w0 + w), lanes[w], c[r]);
        }
        continue;
      }
      for (int w = 0; w < words - w0; ++w) {
        for (int r = 0; r < ROWS; ++r) c[r] = Words::Step::step(left.at(r, w0 + w), lanes[w], c[r]);
      }
    }
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) {
      float* to = p.to + r * p.to_row + n0;
      store(to, p.add ? add(load(to), c[r]) : c[r]);
    }
  }
}

// Columns of the product that are adjacent in memory, for two rows and more: the sums of a group of columns stay in registers.
template <class Words, int ROWS, class Left, class T>
inline __attribute__((always_inline)) void few_rows_by_groups(const Left& left, const FewRows& p, const T* b) {
  const int64_t words = (p.entries + Words::kEntries - 1) / Words::kEntries;
  constexpr int kVectors = ROWS > 2 ? kStripVectors : 2 * kStripVectors;  // as many sums as registers
  for (int n0 = 0; n0 < p.width; n0 += kVectors * kLanes) {
    F c[ROWS][kVectors];
    for (int r = 0; r < ROWS; ++r) {
      UWAGA_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) c[r][v] = zero();
    }
    const bool whole = p.width - n0 >= kVectors * kLanes;
    for (int64_t w = 0; w < words; ++w) {
      F right[kVectors];
      UWAGA_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        const int count = whole ? kLanes : p.width - n0 - v * kLanes;
        right[v] = count > 0 ? Words::across(b + n0 + v * kLanes, p.b.column, w, p.entries, count) : zero();
      }
      UWAGA_UNROLL(6)
      for (int r = 0; r < ROWS; ++r) {
        const F x = left.at(r, w);
        UWAGA_UNROLL(8)
        for (int v = 0; v < kVectors; ++v) c[r][v] = Words::Step::step(x, right[v], c[r][v]);
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      UWAGA_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        if (p.width - n0 <= v * kLanes) continue;
        float* to = p.to + r * p.to_row + n0 + v * kLanes;
        store(to, p.add ? add(load(to), c[r][v]) : c[r][v]);
      }
    }
  }
}

// The same for one row: kDepthAtOnce rows of b are read side by side from end to end, as the prefetcher follows best, while the sums
// of all columns wait in the first-level cache.
template <class Words, class Left, class T>
inline __attribute__((always_inline)) void one_row_in_order(const Left& left, const FewRows& p, const T* b) {
  constexpr int kDepthAtOnce = 8;
  const int64_t words = (p.entries + Words::kEntries - 1) / Words::kEntries;
  const auto add_words = [&](auto depth, int64_t w) {
    constexpr int D = depth.value;
    F x[D];
    UWAGA_UNROLL(8)
    for (int d = 0; d < D; ++d) x[d] = left.at(0, w + d);
    const auto add_columns = [&](int n, int count) {
      F c = w ? load(p.sums + n) : zero();
      UWAGA_UNROLL(8)
      for (int d = 0; d < D; ++d) {
        c = Words::Step::step(x[d], Words::across(b + n, p.b.column, w + d, p.entries, count), c);
      }
      store(p.sums + n, c);
    };
    const int whole = p.width / kLanes * kLanes;
    for (int n = 0; n < whole; n += kLanes) add_columns(n, kLanes);
    if (whole < p.width) add_columns(whole, p.width - whole);
  };
  int64_t w = 0;
  for (; w + kDepthAtOnce <= words; w += kDepthAtOnce) add_words(constant<kDepthAtOnce>(), w);
  for (; w < words; ++w) add_words(constant<1>(), w);
  for (int n = 0; n < p.width; n += kLanes) {
    const F sum = words ? load(p.sums + n) : zero();
    store(p.to + n, p.add ? add(load(p.to + n), sum) : sum);
  }
}

template <class Words, class T>
inline void few_rows_of(const FewRows& p, const T* b) {
  with_row_count(p.rows, [&](auto rows) {
    const RowsInPlace left{static_cast<const char*>(p.a), p.a_row};
    if (p.b.column == 1) {
      few_rows_transposed<Words, rows.value>(left, p, b);
    } else {
      if constexpr (rows.value == 1) {
        one_row_in_order<Words>(left, p, b);
      } else {
        few_rows_by_groups<Words, rows.value>(left, p, b);
      }
    }
  });
}

inline void few_rows(const FewRows& p) {
  with_type(p.b.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    few_rows_of<FloatWords<T>>(p, typed(p.b.data, type));
  });
}

// The rows of tiles out of columns: x[r][w] at data + r + w * column. Writes past the six rows of a tile as pack_tile does.
template <class T>
inline void pack_tiles_from_columns_of(float* out, const T* x, int64_t column, int count, int width,
                                       int64_t tile_room) {
  for (int w = 0; w < width; ++w) {
    const T* from = x + w * column;
    float* to = out + w * kTileRows;
    for (int r0 = 0; r0 < count; r0 += kTileRows, to += tile_room) {
      for (int r = 0; r < kTileRows; r += kLanes) {
        const int left = count - r0 - r < kLanes ? count - r0 - r : kLanes;
        store(to + r, left > 0 ? load_partial(from + r0 + r, left) : zero());
      }
    }
  }
}

inline void pack_tiles_from_columns(float* out, const Rows& x, int count, int width, int64_t tile_room) {
  with_type(x.dtype, [&](auto* type) {
    pack_tiles_from_columns_of(out, typed(x.data, type), x.column, count, width, tile_room);
  });
}

// Activations of N vectors at once; see exp2_each.
//
// GELU (Hendrycks and Gimpel 2016): x P(X <= x) for a standard normal X. With h = P(X > |x|) = 2^q(|x|) it is x h for negative x and
// x (1 - h) for positive, which cancels nowhere. q is the minimax polynomial of log2 P(X > u) on [0, 6], relative to the error that it
// leaves in GELU, with q(0) = -1; it falls without bound beyond.
template <int N>
inline __attribute__((always_inline)) void gelu_each(F (&x)[N]) {
  const float coefficients[] = {7.761021834085113e-07f,  -1.0015109182859305e-05f,
                                7.050448039080948e-05f,  -2.577484992798418e-04f,
                                -4.826454824069515e-05f, 7.008829619735479e-03f,
                                -5.248448252677917e-02f, -4.592066109180450e-01f,
                                -1.151105761528015f,     -1.0f};
  F u[N], q[N];
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) u[n] = abs(x[n]);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) q[n] = broadcast(-2.5820863669423488e-08f);
  UWAGA_UNROLL(10)
  for (const float c : coefficients) {
    UWAGA_UNROLL(8)
    for (int n = 0; n < N; ++n) q[n] = fma(q[n], u[n], broadcast(c));
  }
  exp2_each(q);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) {
    x[n] = mul(x[n], less_select(x[n], zero(), q[n], sub(broadcast(1.0f), q[n])));
  }
}

// x / (1 + 2^t) with t = linear x + cubic x^3: GELU's tanh form is x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)), SiLU x sigmoid(x).
template <int N>
inline __attribute__((always_inline)) void sigmoid_product_each(F (&x)[N], float linear, float cubic) {
  const F limit = broadcast(126.0f);  // of exp2_each; beyond, 2^t counts as infinite
  F t[N], power[N];
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) {
    // A cubic of 0 times an infinite square would be NaN.
    const F factor = cubic == 0.0f ? broadcast(linear) : fma(mul(x[n], x[n]), broadcast(cubic), broadcast(linear));
    t[n] = mul(x[n], factor);
    power[n] = less_select(limit, t[n], limit, t[n]);
  }
  exp2_each(power);
  UWAGA_UNROLL(8)
  for (int n = 0; n < N; ++n) {
    const F finite_or_not = less_select(limit, t[n], broadcast(__builtin_inff()), power[n]);
    x[n] = div(x[n], add(broadcast(1.0f), finite_or_not));
  }
}

template <int N>
inline __attribute__((always_inline)) void activate_each(int activation, F (&x)[N]) {
  constexpr float kTwoRootTwoOverPi = 1.5957691216057308f;
  switch (activation) {
    case UWAGA_GELU:
      return gelu_each(x);
    case UWAGA_GELU_TANH:
      return sigmoid_product_each(x, -kTwoRootTwoOverPi * kLog2E, -kTwoRootTwoOverPi * 0.044715f * kLog2E);
    case UWAGA_SILU:
      return sigmoid_product_each(x, -kLog2E, 0.0f);
    case UWAGA_RELU:
      UWAGA_UNROLL(8)
      for (int n = 0; n < N; ++n) x[n] = max(zero(), x[n]);
      return;
    default:
      return;
  }
}

template <class T>
inline void finish_tile_of(const MatmulEpilogue& e, T* out, const T* residual, T* preactivation) {
  for (int r = 0; r < e.rows; ++r) {
    for (int w = 0; w < e.width; w += kStrip) {
      F x[kStripVectors];
      const float* sums = e.sums + r * e.sums_row + w;
      UWAGA_UNROLL(8)
      for (int v = 0; v < kStripVectors; ++v) x[v] = load(sums + v * kLanes);
      if (e.bias) {
        UWAGA_UNROLL(8)
        for (int v = 0; v < kStripVectors; ++v) x[v] = add(x[v], load(e.bias + w + v * kLanes));
      }
      const auto store_all = [&](T* to) {
        for (int v = 0; v < kStripVectors; ++v) {
          const int left = e.width - w - v * kLanes;
          if (left > 0) store_partial(to + w + v * kLanes, x[v], left < kLanes ? left : kLanes);
        }
      };
      if (preactivation) store_all(preactivation + r * e.preactivation_row);
      activate_each(e.activation, x);
      if (residual) {
        for (int v = 0; v < kStripVectors; ++v) {
          const int left = e.width - w - v * kLanes;
          const T* from = residual + r * e.residual_row + w + v * kLanes;
          if (left > 0) x[v] = add(x[v], left < kLanes ? load_partial(from, left) : load(from));
        }
      }
      store_all(out + r * e.out_row);
    }
  }
}

inline void finish_tile(const MatmulEpilogue& e) {
  with_type(e.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    finish_tile_of(e, static_cast<T*>(e.out), typed(e.residual, type), static_cast<T*>(e.preactivation));
  });
}
