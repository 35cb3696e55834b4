// Row statistics, computed by the forward tile: entropy, squares, distances and the largest weights.
// Included inside the level's namespace.

// An integer in the bits of a float, to be stored and moved but not computed with.
inline float float_from_bits_of(int32_t number) {
  float word;
  __builtin_memcpy(&word, &number, sizeof word);
  return word;
}

alignas(64) constexpr float kLaneNumbers[kMaxLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Inserts `score` into a decreasing list, after its equals, and drops the last entry. Without a branch on the index of
// insertion: it is unpredictable, and a mispredicted branch costs more than moving eight entries.
inline void insert_key(float score, float key, float* scores, float* keys, int top) {
  const F x = broadcast(score);
  for (int n = (top - 1) / kLanes * kLanes; n >= 0; n -= kLanes) {
    const F here = load(scores + n), before = load(scores + n - 1);
    const F moved = less_select(before, x, load(keys + n - 1), broadcast(key));
    store(keys + n, less_select(here, x, moved, load(keys + n)));
    store(scores + n, less_select(here, x, less_select(before, x, before, x), here));
    if (scores[n - 1] >= score) break;  // the entries before stay; before the first one there is +inf
  }
}

// Bit n: whether row[n] > floor, for columns [first, last) in whole vectors.
inline uint64_t above(const float* row, int first, int last, float floor) {
  uint64_t bits = 0;
  for (int n = first; n < last; n += kLanes) {
    bits |= static_cast<uint64_t>(less_bits(broadcast(floor), load(row + n))) << n;
  }
  return bits;
}

// A decreasing list of at most kLanes entries, in two registers between insertions: through memory each insertion would wait for
// the stores of the one before, which a load one entry beside them cannot take over.
struct ShortList {
  F scores, keys;

  // As insert_key.
  void insert(float score, float key) {
    const F x = broadcast(score), before = shift_in(scores, __builtin_inff());
    keys = less_select(scores, x, less_select(before, x, shift_in(keys, 0.0f), broadcast(key)), keys);
    scores = less_select(scores, x, less_select(before, x, before, x), scores);
  }
};

inline void keep_top_keys(const ForwardTile& tile, const TileStatistics& statistics, const float* top, int first,
                          int last, int first_key) {
  alignas(64) float highest[kMaxLanes];
  row_maxima(top, highest);
  const int end = statistics.top - 1;
  float* floors = statistics.top_scores;
  uint32_t rows = 0;
  for (int r = 0; r < kTileRows; r += kLanes) rows |= less_bits(load(floors + r), load(highest + r)) << r;
  for (rows &= (1u << tile.rows) - 1; rows; rows &= rows - 1) {
    const int r = __builtin_ctz(rows);
    float* scores = statistics.top_scores + r * top_row(statistics.top) + kTopFirst;
    float* keys = statistics.top_keys + r * top_row(statistics.top) + kTopFirst;
    const float* row = tile.scores + r * kBlockKeys;
    // A list that is not full takes every key; so that few are inserted in vain, it is asked again after each vector.
    const int step = scores[end] == -__builtin_inff() ? kLanes : kBlockKeys;
    for (int from = first; from < last; from += step) {
      uint64_t bits = above(row, from, from + step < last ? from + step : last, scores[end]);
      if (!bits) continue;
      if (statistics.top <= kLanes) {
        ShortList list{load(scores), load(keys)};
        for (; bits; bits &= bits - 1) {
          const int n = __builtin_ctzll(bits);
          list.insert(row[n], float_from_bits_of(first_key + n));
        }
        store(scores, list.scores);
        store(keys, list.keys);
        continue;
      }
      for (; bits; bits &= bits - 1) {
        const int n = __builtin_ctzll(bits);
        insert_key(row[n], float_from_bits_of(first_key + n), scores, keys, statistics.top);
      }
    }
    floors[r] = scores[end];
  }
}

// The sums of one row.
struct StatisticSums {
  F entropy = zero(), squares = zero(), distance = zero();
};

// `exponentiate` of forward-inl.h, operation by operation, with these sums beside it.
template <bool ENTROPY, bool MOMENTS, int VECTORS>
inline __attribute__((always_inline)) void exponentiate_and_accumulate(float* scores, F offset, int at, F from,
                                                                       F (&chains)[kChains], StatisticSums* sums) {
  F p[VECTORS], x[VECTORS];
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) {
    p[v] = mul(sub(load(scores + v * kLanes), offset), broadcast(kLog2E));
    // Where the weight is 0, 0 times minus infinity must be 0.
    if (ENTROPY) x[v] = max(broadcast(-127.0f), p[v]);
  }
  exp2_each(p);
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) {
    store(scores + v * kLanes, p[v]);
    F& sum = chains[(at + v) % kChains];
    sum = add(sum, p[v]);
    if (ENTROPY) sums->entropy = fma(p[v], x[v], sums->entropy);
    if (MOMENTS) {
      sums->squares = fma(p[v], p[v], sums->squares);
      const F away = abs(add(from, broadcast(static_cast<float>(v * kLanes))));
      sums->distance = fma(p[v], away, sums->distance);
    }
  }
}

template <bool ENTROPY, bool MOMENTS>
inline void exponentiate_row_with_statistics(const ForwardTile& tile, int r, int first, int last, int first_key,
                                             F offset, float moved, float rescale) {
  constexpr int kAtOnce = 4;
  float* row = tile.scores + r * kBlockKeys;
  float* total = tile.state.sum + r * kMaxLanes;
  const TileStatistics& statistics = *tile.statistics;
  const float origin = MOMENTS ? static_cast<float>(first_key) - statistics.position[r] : 0.0f;
  const auto from = [&](int n) { return add(broadcast(origin + static_cast<float>(n)), load(kLaneNumbers)); };
  F chains[kChains];
  for (F& sum : chains) sum = zero();
  StatisticSums sums;
  int n = first;
  for (; n + kAtOnce * kLanes <= last; n += kAtOnce * kLanes) {
    exponentiate_and_accumulate<ENTROPY, MOMENTS, kAtOnce>(row + n, offset, n / kLanes, from(n), chains, &sums);
  }
  for (; n < last; n += kLanes) {
    exponentiate_and_accumulate<ENTROPY, MOMENTS, 1>(row + n, offset, n / kLanes, from(n), chains, &sums);
  }
  const F keep = broadcast(rescale);
  if (ENTROPY) {
    // p' = p 2^moved, so p' log2 p' = 2^moved (p log2 p + moved p)
    float* at = statistics.entropy + r * kMaxLanes;
    const F before = fma(broadcast(rescale == 0.0f ? 0.0f : moved), load(total), load(at));
    store(at, fma(before, keep, sums.entropy));
  }
  if (MOMENTS) {
    float* squares = statistics.squares + r * kMaxLanes;
    store(squares, fma(load(squares), mul(keep, keep), sums.squares));
    float* distance = statistics.distance + r * kMaxLanes;
    store(distance, fma(load(distance), keep, sums.distance));
  }
  store(total, fma(load(total), keep, fold_chains(chains)));
}

inline void exponentiate_with_statistics(const ForwardTile& tile, int first, int last, int first_key,
                                         const float* offset, const float* moved, const float* rescale) {
  const bool entropy = tile.statistics->entropy, moments = tile.statistics->squares;
  for (int r = 0; r < tile.rows; ++r) {
    const auto run = [&](auto row) {
      row(tile, r, first, last, first_key, broadcast(offset[r]), moved[r], rescale[r]);
    };
    if (entropy && moments) {
      run(exponentiate_row_with_statistics<true, true>);
    } else if (entropy) {
      run(exponentiate_row_with_statistics<true, false>);
    } else if (moments) {
      run(exponentiate_row_with_statistics<false, true>);
    } else {
      run(exponentiate_row_with_statistics<false, false>);
    }
  }
}
