// Weights from a known softmax, and sums and maxima of tiles of weights. Included inside the level's namespace.

template <int VECTORS>
inline __attribute__((always_inline)) void weights_from_known_softmax(float* scores, F maximum, F factor) {
  F p[VECTORS];
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) p[v] = mul(sub(load(scores + v * kLanes), maximum), broadcast(kLog2E));
  exp2_each(p);
  UWAGA_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) store(scores + v * kLanes, mul(p[v], factor));
}

inline void weights_of_known_row(float* row, int first, int last, F maximum, F factor) {
  constexpr int kAtOnce = 4;
  int n = first;
  for (; n + kAtOnce * kLanes <= last; n += kAtOnce * kLanes)
    weights_from_known_softmax<kAtOnce>(row + n, maximum, factor);
  for (; n < last; n += kLanes) weights_from_known_softmax<1>(row + n, maximum, factor);
}

template <class Step>
inline void known_weights_of_tile(const WeightsTile& tile, const Block& block, const ScoreRule& rule, int depth) {
  const int first = first_column(tile.mask), last = last_column(tile.mask);
  scores_of_tile<Step>(tile.query, block.keys, tile.rows, depth, tile.mask.bits ? tile.mask.last : kBlockKeys, rule,
                       tile.weights);
  if (!rule.plain()) apply_softcap_and_bias(tile.weights, tile.bias, tile.rows, first, last, rule);
  const F hidden = broadcast(tile.hidden);
  for (int r = 0; r < tile.rows; ++r) {
    float* row = tile.weights + r * kBlockKeys;
    weights_of_known_row(row, first, last, broadcast(tile.maximum[r]), broadcast(tile.factor[r]));
    if (!tile.mask.bits) continue;
    for (int n = first; n < last; n += kLanes) {
      store(row + n, select(lane_bits(tile.mask.bits, r, n), load(row + n), hidden));
    }
  }
}

inline void weights_tile(const WeightsTile& tile, const Block& block, const ScoreRule& rule) {
  known_weights_of_tile<FloatProduct>(tile, block, rule, tile.query_width);
}

inline int whole_first(int first) { return first / kLanes * kLanes; }

inline void add_rows(float* sums, const float* weights, int first_row, int last_row, int first, int last) {
  for (int n = whole_first(first); n < last; n += kLanes) {
    F sum = load(sums + n);
    for (int r = first_row; r < last_row; ++r) sum = add(sum, load(weights + r * kBlockKeys + n));
    store(sums + n, sum);
  }
}

inline void keep_largest(float* best, float* at, const float* weights, int first_row, int last_row, int number,
                         int first, int last) {
  for (int n = whole_first(first); n < last; n += kLanes) {
    F most = load(best + n), where = load(at + n);
    for (int r = first_row; r < last_row; ++r) {
      const F w = load(weights + r * kBlockKeys + n);
      where = less_select(most, w, broadcast(float_from_bits_of(number + r - first_row)), where);
      most = less_select(most, w, w, most);
    }
    store(best + n, most);
    store(at + n, where);
  }
}

inline void add_seen(float* sums, const float* weights, const uint64_t* bits, int rows, int first, int last) {
  for (int r = 0; r < rows; ++r) {
    F sum = load(sums + r * kMaxLanes);
    for (int n = whole_first(first); n < last; n += kLanes) {
      sum = add(sum, select(lane_bits(bits, r, n), load(weights + r * kBlockKeys + n), zero()));
    }
    store(sums + r * kMaxLanes, sum);
  }
}
