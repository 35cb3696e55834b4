// The forward tile of few rows on 64 keys and values where they lie, without packing them: each is read once, so that decoding
// runs at the speed of memory. Bit for bit the tile of forward-inl.h (or pairs-inl.h) on packed blocks: the same multiply-adds in
// the same order. Included inside the level's namespace.
//
// Keys are transposed in registers, kLanes keys by a few words at a time. That reads rows side by side, which the processor's
// prefetcher does not follow. So while a block is computed, the keys of the next one are prefetched line by line, into
// the second-level cache: the first-level one would not hold them, and its few open misses would hold up the loads of the square.

constexpr int kGroupKeys = 16;

// Prefetches rows line by line, a few lines at each step of a loop.
class Prefetch {
 public:
  Prefetch(const Rows& rows, int first, int last, int width, int steps) {
    if (first >= last) return;
    const int size = rows.dtype == UWAGA_FLOAT32 ? 4 : 2;
    stride_ = rows.row * size, bytes_ = width * size, left_ = last - first;
    row_ = static_cast<const char*>(rows.data) + first * stride_;
    lines_ = (kBlockKeys * ((bytes_ + 63) / 64) + steps - 1) / steps;
  }
  inline __attribute__((always_inline)) void step() {
    for (int n = 0; n < lines_ && left_; ++n) {
      __builtin_prefetch(row_ + at_, 0, 2);
      if ((at_ += 64) < bytes_) continue;
      at_ = 0, --left_;
      if (left_) row_ += stride_;
    }
  }

 private:
  const char* row_ = nullptr;
  int64_t stride_ = 0;
  int bytes_ = 0, at_ = 0, left_ = 0, lines_ = 0;
};

// The next entries of kLanes keys that are `row` apart, transposed, and the multiply-adds of a vector of them with the packed queries.
// kWords: vectors; kEntries: of a key; kSteps: entries per word.
template <class T>
struct InPlaceKeys {
  using Product = FloatProduct;
  static constexpr int kWords = sizeof(T) == 4 ? kLoadedWords : kLanes, kEntries = kWords, kSteps = 1;
  static inline __attribute__((always_inline)) void load_entries(const T* p, int64_t row, F (&x)[kWords]) {
    if constexpr (sizeof(T) == 4) {
      load_transposed(p, 4 * row, x);
    } else {
      UWAGA_UNROLL(16)
      for (int n = 0; n < kLanes; ++n) x[n] = load(p + n * row);
      transpose(x);
    }
  }
  template <int ROWS>
  static inline __attribute__((always_inline)) void step(const float* query, F keys, F (&c)[ROWS]) {
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) c[r] = fma(broadcast(query[r]), keys, c[r]);
  }
};
template <>
struct InPlaceKeys<bfloat16> {  // transposed two at a time, then widened
  using Product = FloatProduct;
  static constexpr int kWords = kLoadedWords, kEntries = 2 * kWords, kSteps = 2;
  static inline __attribute__((always_inline)) void load_entries(const bfloat16* p, int64_t row, F (&x)[kWords]) {
    load_transposed(p, 2 * row, x);
  }
  template <int ROWS>
  static inline __attribute__((always_inline)) void step(const float* query, F keys, F (&c)[ROWS]) {
    InPlaceKeys<float>::step(query, low_halves(keys), c);
    InPlaceKeys<float>::step(query + kTileRows, high_halves(keys), c);
  }
};

template <class Keys, int ROWS, int GROUPS, class T>
inline __attribute__((always_inline)) void score_groups_in_place(const float* query, const T* keys, int64_t row,
                                                                 int width, F scale, float* scores, F (&top)[ROWS],
                                                                 Prefetch& ahead) {
  F c[GROUPS][ROWS];
  for (auto& group : c) {
    for (F& sum : group) sum = zero();
  }
  for (int w = 0; w < width; w += Keys::kEntries) {
    UWAGA_UNROLL(4)
    for (int g = 0; g < GROUPS; ++g) {
      F words[Keys::kWords];
      const T* from = keys + g * kLanes * row + w;
      // Hides that the addresses of all keys could be kept from step to step: they would not fit into registers.
      asm volatile("" : "+r"(from));
      Keys::load_entries(from, row, words);
      UWAGA_UNROLL(16)
      for (int n = 0; n < Keys::kWords; ++n) Keys::step(query + n * Keys::kSteps * kTileRows, words[n], c[g]);
      ahead.step();
    }
    query += Keys::kWords * Keys::kSteps * kTileRows;
  }
  UWAGA_UNROLL(4)
  for (int g = 0; g < GROUPS; ++g) {
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) {
      const F score = Keys::Product::score(c[g][r], scale);
      store(scores + r * kBlockKeys + g * kLanes, score);
      top[r] = max(score, top[r]);
    }
  }
}

template <class Keys, class T>
inline void scores_in_place(const ForwardTile& tile, const T* keys, int64_t row, const ScoreRule& rule, Prefetch ahead,
                            float* top) {
  with_row_count(tile.rows, [&](auto rows) {
    constexpr int kGroups = rows.value <= 2 && kLanes < kGroupKeys ? 2 : 1;
    F best[rows.value];
    Prefetch next = ahead;  // in registers
    for (F& x : best) x = broadcast(-__builtin_inff());
    for (int n = 0; n < kBlockKeys; n += kGroups * kLanes) {
      score_groups_in_place<Keys, rows.value, kGroups>(tile.query, keys + n * row, row, tile.query_width,
                                                       broadcast(rule.scale), tile.scores + n, best, next);
    }
    for (int r = 0; r < rows.value; ++r) store(top + r * kLanes, best[r]);
  });
}

// Vectors of a value's entries; of words, two vectors at a time, the even and the odd entries.
template <class T>
struct InPlaceValues {
  static constexpr int kDepth = 1, kVectors = 1;
  static inline __attribute__((always_inline)) void load_entries(const T* p, int64_t, F (&b)[1]) { b[0] = load(p); }
  static F step(F a, F b, F c) { return fma(a, b, c); }
  static void restore_order(F (&)[1]) {}
};
template <>
struct InPlaceValues<bfloat16> {
  static constexpr int kDepth = 1, kVectors = 2;
  static inline __attribute__((always_inline)) void load_entries(const bfloat16* p, int64_t, F (&b)[2]) {
    const F words = load_words(p);
    b[0] = low_halves(words), b[1] = high_halves(words);
  }
  static F step(F a, F b, F c) { return fma(a, b, c); }
  static void restore_order(F (&x)[2]) { interleave(x[0], x[1]); }
};

// out[r][0:UNITS vectors] of `weights`, [ROWS][a_row], one word for kDepth keys.
template <class Values, int ROWS, int UNITS, class T>
inline __attribute__((always_inline)) void values_strip_in_place(const float* weights, int a_row, const T* values,
                                                                 int64_t row, const float* factor, float* out,
                                                                 int64_t out_row) {
  constexpr int kVectors = Values::kVectors;
  F c[ROWS][UNITS][kVectors];
  for (auto& of_row : c) {
    for (auto& unit : of_row) {
      for (F& sum : unit) sum = zero();
    }
  }
  for (int n = 0; n < kBlockKeys / Values::kDepth; ++n) {
    F b[UNITS][kVectors];
    UWAGA_UNROLL(8)
    for (int u = 0; u < UNITS; ++u) Values::load_entries(values + u * kVectors * kLanes, row, b[u]);
    UWAGA_UNROLL(6)
    for (int r = 0; r < ROWS; ++r) {
      const F a = broadcast(weights[r * a_row + n]);
      UWAGA_UNROLL(8)
      for (int u = 0; u < UNITS; ++u) {
        UWAGA_UNROLL(2)
        for (int v = 0; v < kVectors; ++v) c[r][u][v] = Values::step(a, b[u][v], c[r][u][v]);
      }
    }
    values += Values::kDepth * row;
  }
  UWAGA_UNROLL(6)
  for (int r = 0; r < ROWS; ++r) {
    UWAGA_UNROLL(8)
    for (int u = 0; u < UNITS; ++u) {
      Values::restore_order(c[r][u]);
      UWAGA_UNROLL(2)
      for (int v = 0; v < kVectors; ++v) {
        float* at = out + r * out_row + (u * kVectors + v) * kLanes;
        store(at, fma(load(at), broadcast(factor[r]), c[r][u][v]));
      }
    }
  }
}

template <class Values, class T>
inline void values_in_place(const ForwardTile& tile, const float* weights, int a_row, const T* values, int64_t row,
                            const float* factor) {
  const int64_t out_row = padded_width(tile.value_width);
  with_row_count(tile.rows, [&](auto rows) {
    // One row: eight chains of multiply-adds; more rows: as many registers as in a packed tile.
    constexpr int kVectors = rows.value == 1 ? kRowVectors : kStripVectors;
    constexpr int kUnits = kVectors / Values::kVectors < 1 ? 1 : kVectors / Values::kVectors;
    constexpr int kUnit = Values::kVectors * kLanes;
    int w = 0;
    const auto strip = [&](auto units) {
      values_strip_in_place<Values, rows.value, units.value>(weights, a_row, values + w, row, factor,
                                                             tile.state.output + w, out_row);
      w += units.value * kUnit;
    };
    while (w + kUnits * kUnit <= tile.value_width) strip(constant<kUnits>());
    if constexpr (kUnits > 4) {
      if (w + 4 * kUnit <= tile.value_width) strip(constant<4>());
    }
    while (w < tile.value_width) strip(constant<1>());
  });
}

// From the scores of a whole block, of which nothing is masked, to the weights that multiply the values.
inline void weights_in_place(const ForwardTile& tile, const InPlaceBlock& rows, const ScoreRule& rule, float* top,
                             float* rescale) {
  for (int r = tile.rows; r < kTileRows; ++r) store(top + r * kLanes, broadcast(-__builtin_inff()));
  Block block{};
  block.first_key = rows.first_key, block.count = kBlockKeys;
  normalize_tile(tile, block, rule, rule.plain(), top, rescale);
}

// Of the next block's keys, for the loop over the squares of a block.
inline Prefetch keys_ahead(const ForwardTile& tile, const InPlaceBlock& rows, int entries) {
  return {rows.keys, kBlockKeys, rows.readable_keys, tile.query_width,
          kBlockKeys / kLanes * tile.query_width / entries};
}

inline void values_of_tile_in_place(const ForwardTile& tile, const InPlaceBlock& rows, const float* rescale) {
  with_type(rows.values.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    values_in_place<InPlaceValues<T>>(tile, tile.scores, kBlockKeys, static_cast<const T*>(rows.values.data),
                                      rows.values.row, rescale);
  });
}

inline void forward_tile_in_place(const ForwardTile& tile, const InPlaceBlock& rows, const ScoreRule& rule) {
  alignas(64) float top[kTileRows * kLanes], rescale[kMaxLanes];
  with_type(rows.keys.dtype, [&](auto* type) {
    using T = typename remove_pointer_to_const<decltype(type)>::type;
    using Keys = InPlaceKeys<T>;
    const Prefetch ahead = keys_ahead(tile, rows, Keys::kEntries);
    scores_in_place<Keys>(tile, static_cast<const T*>(rows.keys.data), rows.keys.row, rule, ahead, top);
  });
  weights_in_place(tile, rows, rule, top, rescale);
  if (tile.value_width) values_of_tile_in_place(tile, rows, rescale);
}
